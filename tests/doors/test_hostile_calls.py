"""Calls that a client, or a model that controls it, makes to get around the gate or to end it."""

from __future__ import annotations

import json

import pytest

from tests.doors.gates import paid
from tests.integrations.extras import need
from tests.waiting import wait_until

pytestmark = pytest.mark.full

need("mcp", "mcp")

HEAD = '{"jsonrpc": "2.0", "id": 90, "method": "tools/call", "params": '


def eve(amount):
    return {"to": "eve", "amount": amount}


def called(args, name="pay"):
    return HEAD + json.dumps({"name": name, "arguments": args}) + "}"


def written(args):
    """Return a call whose arguments are this text."""
    return HEAD + f'{{"name": "pay", "arguments": {args}}}}}'


NOT_JSON = "not one JSON-RPC message"

HOSTILE = {
    "a key twice": (written('{"to": "eve", "amount": 5, "amount": 500}'), NOT_JSON),
    "NaN": (written('{"to": "eve", "amount": NaN}'), NOT_JSON),
    "1e400": (written('{"to": "eve", "amount": 1e400}'), NOT_JSON),
    "half a surrogate pair": (written('{"to": "\\ud800", "amount": 500}'), NOT_JSON),
    "deep": (written("[" * 100_000 + "]" * 100_000), NOT_JSON),
    "deeper than the store": (
        written('{"to": "eve", "amount": 500, "note": ' + "[" * 90 + "]" * 90 + "}"),
        "do not fit the schema",
    ),
    "a batch": (f"[{called(eve(5))}]", NOT_JSON),
    "a list as id": (called(eve(5)).replace("90", "[90]", 1), NOT_JSON),
    "true as id": (called(eve(5)).replace("90", "true", 1), NOT_JSON),
    "a list as parameters": (HEAD + "[]}", "a call has a `name`"),
    "no parameters": (HEAD + "null}", "a call has a `name`"),
    "null as arguments": (called(None), "do not fit the schema"),
    "a list as arguments": (called([]), "a call has a `name`"),
    "a list as name": (called({}, ["pay"]), "a call has a `name`"),
    "arguments in another case": (
        called({"to": "eve", "amount": 5, "AMOUNT": 500}),
        "differ only in case",
    ),
    "a name in another case": (
        HEAD + '{"name": "free_forge", "Name": "pay", "arguments": {}}}',
        "differ only in case",
    ),
    "a float of an integer": (
        called(eve(50.5)),
        "do not fit the schema",
    ),
    "an argument less": (called({"to": "eve"}), "do not fit the schema of pay"),
    "an argument more": (called({**eve(500), "more": 1}), "do not fit the schema of pay"),
    "a text of an integer": (called(eve("5")), "do not fit the schema"),
    "a bool of an integer": (called(eve(True)), "do not fit the schema"),
    "a look-alike": (called(eve(5), "p\u0430y"), "has no tool"),
    "another width": (called(eve(5), "\uff50ay"), "has no tool"),
    "a pattern": (called(eve(5), "p*"), "has no tool"),
    "a class of characters": (called(eve(5), "[p]ay"), "has no tool"),
    "a space": (called(eve(5), "pay "), "has no tool"),
    "20 MB": (called({**eve(500), "note": "x" * 20_000_000}), "was not made"),
}


def test_a_hostile_call_is_refused_and_the_session_goes_on(tmp_path, opened, people):
    """The client gets an answer to each, nobody is asked, and nothing is made."""
    said = {}
    with opened(wait=0) as client:
        for name, (line, _) in HOSTILE.items():
            client.process.stdin.write(line + "\n")
            client.process.stdin.flush()
            client.until_answered({None, 90}, 1)
            said[name] = json.dumps({**client.taken(None), **client.taken(90)})
        assert client.text("pay", to="bob", amount=5) == ("pay: 5 to bob", False)

    wrong = {
        name: said[name][:300] for name, (_, text) in HOSTILE.items() if text not in said[name]
    }
    assert wrong == {}
    assert list(people.interrupts()) == []
    assert paid(tmp_path) == ["pay bob 5 none"]


BIG = {"to": "bob", "amount": 500}


def test_an_id_cannot_be_used_twice_at_a_time(tmp_path, opened, people):
    """The second request is refused, and the first one's cancellation and answer stay its own."""
    with opened(wait=30) as client:
        number = client.begin_call("pay", BIG)
        wait_until(lambda: list(people.interrupts()), "people are asked")
        client.send(
            {"id": number, "method": "tools/call", "params": {"name": "pay", "arguments": BIG}}
        )
        assert "is under way" in client.end(number)["error"]["message"]
        (asked,) = people.interrupts()
        people.vote(asked.id, "approve", by="ana")
        assert client.text_of(number)[0] == "pay: 500 to bob"
    assert paid(tmp_path) == ["pay bob 500 none"]


def test_a_cancelled_call_waits_on_and_gets_no_answer(tmp_path, opened, people):
    """Clients cancel calls that take long: the same call again gets the outcome of the one question."""
    with opened(wait=30) as client:
        number = client.begin_call("pay", BIG)
        wait_until(lambda: list(people.interrupts()), "people are asked")
        client.send({"method": "notifications/cancelled", "params": {"requestId": [number]}})
        client.send({"method": "notifications/cancelled", "params": {"requestId": number}})
        (asked,) = people.interrupts()
        people.vote(asked.id, "approve", by="ana")
        assert client.text("pay", **BIG) == ("pay: 500 to bob", False)
        assert client.taken(number) == {}
    assert paid(tmp_path) == ["pay bob 500 none"]


def test_a_stricter_policy_counts_for_calls_that_wait(tmp_path, opened, people):
    """A policy is read at the start: a gate goes on by the old one, and the next gate asks by the new one."""
    (tmp_path / "policy.yaml").write_text("calls: [{tools: '*', rule: {eligible: [ana]}}]")
    with opened() as client:
        client.text("pay", **BIG)
        (asked,) = people.interrupts()
        (tmp_path / "policy.yaml").write_text("calls: [{tools: '*', rule: {eligible: [ben]}}]")
        client.text("pay", to="eve", amount=500)
        assert {tuple(each.rule["eligible"]) for each in people.interrupts()} == {
            ("user:human:|ana",)
        }
    people.vote(asked.id, "approve", by="ana")
    with opened() as client:
        assert "It waits for approval" in client.text("pay", **BIG)[0]
        (again,) = (each for each in people.interrupts() if each.action == asked.action)
        assert (again.id != asked.id, tuple(again.rule["eligible"])) == (
            True,
            ("user:human:|ben",),
        )
    assert paid(tmp_path) == []


@pytest.mark.parametrize(
    "answer",
    ['{"result": []}', '{"result": {}}', '{"result": {"tools": [{"name": ["pay"]}]}}',
     '{"result": {"tools": 1}}', '{"result": null}',
     '{"error": {}}', '{"error": 1}', "[]", '{"id": ["x"], "result": {}}'],
)  # fmt: skip
def test_a_list_of_tools_that_cannot_be_read_refuses_calls(opened, answer, people):
    """The client is told, nobody is asked, and the gate goes on."""
    environment = {"TOOLS": answer}
    with opened(env=environment) as client:
        for _ in range(2):
            text, is_error = client.text("pay", **BIG)
            assert is_error
            assert "The call was not made: The server" in text
    assert list(people.interrupts()) == []
