"""The arguments that people see are those that are hashed, edited and called; what can't be is an error."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any, NotRequired

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from runner import Agent, GraphBuilder, Status, tool
from runner.agent.tools import whole_arguments, whole_schema
from runner.errors import UsageError
from runner.integrations.mcp import McpTool
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.records.validation import mismatch
from runner.store.memory.store import MemoryStore
from runner.testing import ManualClock, ScriptedModel
from tests.agent.visits import use
from tests.execution import test_effects
from tests.execution.test_effects import ONE, SIGNED, vote
from tests.execution.test_freezes import GRAPHS, Site

keys = test_effects.keys

PAID: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_paid():
    """No call was made before the test."""
    PAID.clear()


class Discount(pydantic.BaseModel):
    percent: int = 50
    note: str = ""


@tool(approval=ONE)
def refund(order: str, amount: int = 1000, discount: Discount | None = None) -> str:
    """Pay back."""
    PAID.append((order, amount, *([discount.percent] if discount else [])))
    return f"paid {amount}"


def graph_of(one, *inputs, rule=None):
    calls = [use(one.tool_name, f"t{n}") for n, _ in enumerate(inputs)]
    for call, given_ in zip(calls, inputs, strict=True):
        call["toolUse"]["input"] = given_
    if rule is not None:
        one = tool(approval=rule)(one.function)
    builder = GraphBuilder()
    builder.add_node(Agent("clerk", ScriptedModel([calls, "done"]), [one]), "pay")
    return builder.build()


def results(run) -> list[dict]:
    """What the model got."""
    blocks = [
        block
        for message in run.store.read(run.id, messages=True).messages["pay"]
        for block in message["content"]
    ]
    return [block["toolResult"] for block in blocks if "toolResult" in block]


UNKNOWN = ["\u0430mount", "Amount", "amount ", "amo\u200bunt", "amount\x00", "__proto__"]


@pytest.mark.full
@pytest.mark.parametrize("rule", [ONE, None])
@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_an_error_for_the_model(run_graph, name, rule):
    """Nobody is asked and nothing is paid: not the 5 that is written beside the default, nor the default."""
    one = refund if rule else tool(refund.function)
    run = run_graph(graph_of(one, {"order": "7", name: 5}), "go")
    assert (run.status, PAID) == (Status.COMPLETED, [])
    assert [result["status"] for result in results(run)] == ["error"]


@pytest.mark.full
@pytest.mark.parametrize(
    "given_",
    [
        {"order": "7", "amount": "abc"},
        {"order": "7", "amount": 2**53},
        {"order": "7", "amount": 2**70},
        {"order": "\ud800"},
        {"order": "7", "discount": {"percent": 5, "per\u0441ent": 9}},
        {"order": "7", "amount": float("nan")},
        {"order": "7", "discount": None, "more": "x" * 600_000},
        ["7", 5],
        "7",
        None,
    ],
    ids=repr,
)
def test_a_call_that_can_not_be_made_is_an_error_for_the_model(run_graph, given_):
    """The agent goes on; the other call of the reply is asked about, and made."""
    run = run_graph(graph_of(refund, given_, {"order": "8", "amount": 5}), "go")
    (question,) = run.interrupts
    assert question.action["args"]["order"] == "8"
    vote(run, "ana")
    assert (run.status, PAID) == (Status.COMPLETED, [("8", 5)])
    assert [result["status"] for result in results(run)] == ["error", "success"]


def test_arguments_that_no_rule_is_for_are_an_error_for_the_model_too(run_graph):
    """Values that can't be stored, nesting and size end the call, not the node."""
    deep: Any = "x"
    for _ in range(80):
        deep = [deep]
    given_ = [
        {"order": "\udfff"},
        {"order": float("inf")},
        {"order": deep},
        {"order": "x" * 3_000_000},
    ]
    run = run_graph(graph_of(tool(refund.function), *given_, {"order": "8"}), "go")
    assert (run.status, PAID) == (Status.COMPLETED, [("8", 1000)])
    assert [result["status"] for result in results(run)] == ["error"] * 4 + ["success"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ({"order": "7"}, {"order": "7", "amount": 1000, "discount": None}),
        ({"order": "7", "amount": "1_0"}, {"order": "7", "amount": 10, "discount": None}),
        ({"order": "7", "amount": True}, {"order": "7", "amount": 1, "discount": None}),
        (
            {"discount": {"note": "x"}, "order": "7", "amount": 5.0},
            {"order": "7", "amount": 5, "discount": {"percent": 50, "note": "x"}},
        ),
    ],
)
@pytest.mark.parametrize("signed", [False, True])
def test_what_is_shown_is_what_is_called(run_graph, keys, given_, shown, signed):
    """With every default and in the form that the function gets, whoever signs for it."""
    run = run_graph(graph_of(refund, given_, rule=SIGNED if signed else None), "go")
    assert run.interrupts[0].action["args"] == shown
    for name in ("ana", "ben")[: 1 + signed]:
        vote(run, name, signed=signed, keys=keys)
    discount = shown["discount"]
    assert [
        (shown["order"], shown["amount"], *([discount["percent"]] if discount else []))
    ] == PAID


EDITS = [
    {"order": "7", "amout": 50},
    {"order": "7", "\u0430mount": 50, "discount": None},
    {"order": "7", "amount": 50},
    {"order": "7", "amount": "50", "discount": None},
    {"order": "7", "amount": True, "discount": None},
    {"order": "7", "amount": 50, "discount": {"precent": 1}},
    {"order": "7", "amount": 50, "discount": {"percent": 1}},
    {"order": "7", "amount": 50, "discount": {"percent": 1, "note": "", "more": 1}},
]
WHOLE = {"order": "7", "amount": 50, "discount": {"percent": 1, "note": ""}}


@pytest.fixture
def asked(monkeypatch):
    """A site in which a call of 120 waits to be approved, and its question."""
    monkeypatch.setitem(GRAPHS, "asks", lambda: graph_of(refund, {"order": "7", "amount": 120}))
    clock = ManualClock()
    site = Site(MemoryStore(clock), clock)
    run_id = site.engine.start("asks", "go")
    site.deliver()
    return site, site.store.read(run_id).interrupts[0]


@pytest.mark.full
@pytest.mark.parametrize("decision", ["edit", "approve"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_does_not_fit_is_refused_at_the_door(asked, edit, decision):
    """With the reason, and the question stays open; so is one that leaves something to a default."""
    site, question = asked
    vote = Decision(question.id, edit, "ana", decision=decision)
    (receipt,) = apply_decisions(site.engine, [vote])
    assert receipt.status == "rejected"
    assert "schema" in receipt.detail
    (receipt,) = apply_decisions(site.engine, [replace(vote, response=WHOLE)])
    assert receipt.status == "accepted"
    site.deliver()
    assert PAID == [("7", 50, 1)]


@pytest.mark.full
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_passed_a_door_is_not_called_where_it_does_not_fit(
    run_graph, keys, edit, signed
):
    """A worker believes no door: people are asked again, about a whole call, and nothing is paid."""
    run = run_graph(
        graph_of(refund, {"order": "7", "amount": 120}, rule=SIGNED if signed else None), "go"
    )
    for name in ("ana", "ben")[: 1 + signed]:
        vote(run, name, "edit", edit, signed=signed, keys=keys)
    (again,) = run.interrupts
    assert (again.decision, PAID) == ("", [])
    assert again.action["args"].keys() == WHOLE.keys()


Money = Annotated[Decimal, pydantic.Field(gt=0, decimal_places=2)]


@tool(approval=ONE)
def refund_money(amount: Money, at: dt.datetime | None = None) -> str:
    """Pay back."""
    PAID.append((amount, at))
    return f"paid {amount}"


NOON = dt.datetime(2026, 12, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize("rule", [ONE, lambda args: ONE])
@pytest.mark.parametrize(
    ("edit", "read", "because"),
    [
        ({"amount": " 50 "}, {"amount": "50"}, "this is how the tool reads the edit"),
        ({"amount": ".5"}, {"amount": "0.5"}, "this is how the tool reads the edit"),
        ({"amount": 50}, {"amount": "50"}, "this is how the tool reads the edit"),
        (
            {"amount": "9", "at": "2026-12-31T12:00:00+00:00"},
            {"amount": "9", "at": "2026-12-31T12:00:00Z"},
            "this is how the tool reads the edit",
        ),
        ({"amount": "1.234,50"}, {}, "amount: Input should be a valid decimal"),
        ({"amount": "-1"}, {}, "amount: Input should be greater than 0"),
        ({"amount": "1.005"}, {}, "no more than 2 decimal places"),
    ],
)
def test_an_edit_that_a_tool_reads_otherwise_is_asked_about_again(
    run_graph, rule, edit, read, because
):
    """As the tool would get it, or as the call was if the tool does not take it; nothing is lost."""
    run = run_graph(graph_of(refund_money, {"amount": "120"}, rule=rule), "go")
    proposed = {"amount": "120", "at": None}
    assert vote(run, "ana", "edit", {**proposed, **edit}) == "accepted"
    (again,) = run.interrupts
    assert (again.action["args"], PAID) == ({**proposed, **read}, [])
    assert because in again.rule["because"]
    assert vote(run, "ana", question=again.id) == "accepted"
    at = NOON if "at" in edit else None
    assert [(Decimal(read.get("amount", "120")), at)] == PAID


def test_an_edit_of_a_function_has_the_names_that_were_shown(run_graph):
    """Where no schema says them; and a node can't be edited."""
    builder = GraphBuilder()
    builder.add_node(
        lambda ctx: ctx.interrupt("pay?", rule=ONE, action={"to": "Acme", "amount": 5}), "pay"
    )
    builder.add_node(lambda ctx: ctx.task, "gated", approval=ONE)
    clock = ManualClock()
    site = Site(MemoryStore(clock), clock)
    site.engine.registry.add("function", builder.build)
    run_id = site.engine.start("function", "go")
    site.deliver()
    function, node = sorted(
        site.store.read(run_id).interrupts, key=lambda one: one.name != "pay?"
    )

    def edit(question, response):
        vote = Decision(question.id, response, "ana", decision="edit")
        return apply_decisions(site.engine, [vote])[0]

    assert "lacks ['amount']" in edit(function, {"to": "Acme", "amout": 9}).detail
    assert edit(node, {"task": "other", "inputs": {}}).status == "rejected"
    assert edit(function, {"to": "Acme", "amount": 9}).status == "accepted"


class Tags(pydantic.BaseModel):
    tags: set[str] = {"x", "y"}
    when: dt.date | None = None


class Place(TypedDict):
    town: str
    street: NotRequired[str]


@tool(approval=ONE)
def many(  # noqa: PLR0917 - one for each kind of type
    a: Decimal = Decimal("1.50"),
    b: frozenset[str] = frozenset({"b", "a", "c"}),
    c: dict[int, Tags] | None = None,
    d: tuple[int, str] = (1, "x"),
    e: Annotated[float, pydantic.Field(ge=0)] = 0,
    schema: str = "s",
    places: list[Place] = [],  # noqa: B006 - never changed
) -> str:
    """Take much."""
    PAID.append((a, b, c, d, e, schema, places))
    return "ok"


INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str)
        | st.integers(-9, 9),
        "b": st.lists(st.text("abc", max_size=2), max_size=4),
        "c": st.dictionaries(
            st.integers(0, 9).map(str),
            st.fixed_dictionaries({}, optional={"tags": st.lists(st.text("xyz", max_size=1))}),
            max_size=2,
        ),
        "d": st.tuples(st.integers(0, 9) | st.sampled_from(["1", True]), st.text("ab")).map(
            list
        ),
        "e": st.floats(0, 100) | st.integers(0, 100) | st.just("1e1"),
        "schema": st.text("ab"),
        "places": st.lists(
            st.fixed_dictionaries({"town": st.text("ab")}, optional={"street": st.text("ab")}),
            max_size=2,
        ),
    },
)


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(INPUTS)
def test_shown_arguments_are_whole_and_read_as_the_same_again(given_):
    """They fit the schema of edits, no default is left out, and they are their own validated form."""
    shown = whole_arguments(many, given_)
    assert shown.keys() == {"a", "b", "c", "d", "e", "schema", "places"}
    assert whole_arguments(many, json.loads(json.dumps(shown))) == shown
    assert mismatch(whole_schema(many), shown) == ""
    assert shown["b"] == sorted(shown["b"])


def test_arguments_that_can_not_be_shown_are_refused():
    """What would be hidden, is another value when it is read again, or another default each time."""
    numbers = iter(range(9))

    @tool(approval=ONE)
    def hidden(key: pydantic.SecretStr) -> None: ...

    @tool(approval=ONE)
    def scaled(cents: Annotated[int, pydantic.AfterValidator(lambda n: n * 100)]) -> None: ...

    @tool(approval=ONE)
    def other(n: int = pydantic.Field(default_factory=lambda: next(numbers))) -> None: ...

    for one, given_ in [(hidden, {"key": "k"}), (scaled, {"cents": 5}), (other, {})]:
        with pytest.raises(UsageError, match="reads as the same"):
            whole_arguments(one, given_)
    assert whole_arguments(scaled, {"cents": 0}) == {"cents": 0}


SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "amount": {"type": "integer", "default": 1000}},
    "required": ["order"],
}


class Server:
    """An MCP server that notes what it is sent."""

    async def call(self, name, arguments):
        PAID.append(arguments)
        return {"status": "success", "content": [{"text": name}]}


def of_mcp():
    listed = SimpleNamespace(name="refund", description="Pay back.", input_schema=SCHEMA)
    one = McpTool(Server(), listed)
    one.approval = ONE
    return one


def with_schema():
    @tool(name="refund", approval=ONE, inputSchema=SCHEMA, context=True)
    def raw(tool_context) -> str:
        PAID.append(tool_context.tool_use["input"])
        return "ok"

    return raw


@pytest.mark.full
@pytest.mark.parametrize("make", [of_mcp, with_schema])
def test_a_tool_with_a_schema_of_its_own_is_held_to_it(run_graph, make):
    """Unknown names and wrong types are errors; the declared default is shown, and sent."""
    inputs = [
        {"order": "7", "\u0430mount": 5},
        {"order": "7", "amount": "1_0"},
        {"amount": 1},
        {"order": "7"},
    ]
    run = run_graph(graph_of(make(), *inputs), "go")
    (question,) = run.interrupts
    assert question.action["args"] == {"order": "7", "amount": 1000}
    vote(run, "ana", "edit", {"order": "7", "amount": 50})
    assert PAID == [{"order": "7", "amount": 50}]
    assert [result["status"] for result in results(run)] == ["error"] * 3 + ["success"]
