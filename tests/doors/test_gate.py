"""The gate before an MCP server, in a process of its own, with a client that counts what was made."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys

import pytest

from runner.approvals import Auth
from runner.dev.worker_process import worker_process
from runner.errors import DefinitionError
from runner.operations.backlog import with_waits
from runner.operations.doctor import read_facts
from runner.operations.installation import Installation
from runner.operations.views import read_run
from runner.settings import Settings
from tests.integrations.extras import need
from tests.ports import free_port
from tests.waiting import wait_until

need("mcp", "mcp")

from mcp import Client as McpClient  # noqa: E402 - with the extra
from mcp import StdioServerParameters  # noqa: E402 - likewise

from runner.approvals.policies import CallContext, of_tool  # noqa: E402 - likewise
from runner.doors.gated_call import TOLD, read_policy  # noqa: E402 - likewise
from tests.doors.gate_soak import soak  # noqa: E402 - likewise
from tests.doors.gates import SERVER, command, paid  # noqa: E402 - likewise
from tests.doors.test_mcp import Tasks, task_call, task_that  # noqa: E402 - likewise

pytestmark = pytest.mark.full


def question(people):
    """Return the one open question."""
    wait_until(lambda: list(people.interrupts()), "people are asked")
    (asked,) = people.interrupts()
    return asked


def vote(people, decision="approve", **options):
    asked = question(people)
    receipt = people.vote(asked.id, decision, by="ana", digest=asked.digest, **options)
    assert receipt.status == "accepted"
    return asked


def until_told(people, asked):
    """Wait for the record that the client has got the outcome, which follows the reply."""
    events = people.run(asked.run_id).events
    wait_until(lambda: TOLD in [event.data for event in events()], "the outcome is told")


BIG = {"to": "bob", "amount": 500}

POLICY_AT_WORK = """
from pathlib import Path
from runner.approvals import Rule

def approval(args, call):
    began = Path(__file__).with_name("began")
    if began.exists():
        began.write_text("")
        began.unlink()
        Path(__file__).with_name("go_on").read_text()
    return Rule(eligible=["ana"])
"""


def test_a_call_waits_for_approval_and_is_made_once(tmp_path, opened, people):
    """The same call again gets the outcome of the one that was approved; the next one is asked anew."""
    with opened() as client:
        text, is_error = client.text("pay", **BIG)
        asked = question(people)
        assert is_error
        assert asked.id in text
        assert asked.action["args"] == {**BIG, "note": "none"}
        assert paid(tmp_path) == []

        vote(people)
        assert client.text("pay", **BIG) == ("pay: 500 to bob", False)
        assert client.text("pay", **BIG)[1]
        assert question(people).id != asked.id
    assert paid(tmp_path) == ["pay bob 500 none"]


def test_tools_and_free_calls_pass_unchanged(tmp_path, opened):
    """The list of tools is the server's own, and a call within the policy's bounds is made at once."""
    with opened() as client:
        ours = client.ask("tools/list")["result"]
        text = client.text("pay", to="bob", amount=50)
    environment = {**os.environ, "CHANGES": str(tmp_path / "changes")}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}) + "\n"
    plain = subprocess.run(
        SERVER, input=line, capture_output=True, text=True, env=environment, check=True
    )

    assert ours == json.loads(plain.stdout)["result"]
    assert text == ("pay: 50 to bob", False)
    assert paid(tmp_path) == ["pay bob 50 none"]


def test_a_rejection_is_a_result_that_a_model_can_read(tmp_path, opened, people):
    """It says who rejected the call and why; nothing is made."""
    with opened(wait=30) as client:
        number = client.begin_call("pay", BIG)
        vote(people, "reject", comment="too much")
        result = client.end(number)["result"]

    assert result["isError"]
    assert "ana rejected the call of pay" in result["content"][0]["text"]
    assert "too much" in result["content"][0]["text"]
    assert paid(tmp_path) == []


def test_an_edited_call_is_made_as_edited(tmp_path, opened, people):
    """The server gets the arguments that people approved, not those of the client."""
    with opened(wait=30) as client:
        number = client.begin_call("pay", BIG)
        vote(people, "edit", response={**BIG, "amount": 60, "note": "less"})
        client.end(number)
    assert paid(tmp_path) == ["pay bob 60 less"]


def test_a_client_that_leaves_finds_the_outcome_later(tmp_path, opened, people):
    """The wait survives the gate: the approved call is made when the same call comes again, once."""
    with opened() as client:
        client.call("pay", **BIG)
    asked = vote(people)
    assert paid(tmp_path) == []
    with opened(wait=30) as client:
        assert client.text("pay", **BIG) == ("pay: 500 to bob", False)
        until_told(people, asked)
    assert paid(tmp_path) == ["pay bob 500 none"]
    with opened() as client:
        assert client.text("pay", **BIG)[1]
    assert paid(tmp_path) == ["pay bob 500 none"]


def test_equal_calls_at_once_are_two_calls(tmp_path, opened, people):
    """Two calls that wait at the same time are asked and made each."""
    with opened(wait=30) as client:
        numbers = [client.begin_call("pay", BIG) for _ in range(2)]
        wait_until(lambda: len(list(people.interrupts())) == 2, "both are asked")
        for asked in people.interrupts():
            people.vote(asked.id, "approve", by="ana")
        texts = [client.text_of(number)[0] for number in numbers]
    assert texts == ["pay: 500 to bob"] * 2
    assert paid(tmp_path) == ["pay bob 500 none"] * 2


def test_a_call_cancelled_before_it_was_asked_is_continued(tmp_path, opened, people):
    """The client cancels it while the policy is at work: the same call again is not a second one."""
    (tmp_path / "policy.py").write_text(POLICY_AT_WORK)
    began, go_on = tmp_path / "began", tmp_path / "go_on"
    for pipe in (began, go_on):
        os.mkfifo(pipe)
    with opened(policy="policy.py", wait=30) as client:
        number = client.begin_call("pay", BIG)
        began.read_text()
        client.send({"method": "notifications/cancelled", "params": {"requestId": number}})
        client.ask("tools/list")  # it has read what came before
        go_on.write_text("")
        wait_until(people.runs, "the call is a run")
        again = client.begin_call("pay", BIG)
        vote(people)
        assert client.text_of(again) == ("pay: 500 to bob", False)
        assert len(people.runs()) == 1


def test_a_server_that_dies_under_a_call_leaves_it_unknown(tmp_path, opened, people):
    """An approved call and a free one get a clear error; other calls stay and are asked of a new server."""
    policy = "calls:\n  - {tools: [garble, hang], rule: pass}\n  - {tools: '*', rule: {}}\n"
    (tmp_path / "policy.yaml").write_text(policy)
    with opened(wait=30) as client:
        waiting = client.begin_call("pay", BIG)
        pay = question(people)
        free = client.begin_call("hang", BIG)
        number = client.begin_call("die", BIG)
        wait_until(lambda: len(list(people.interrupts())) == 2, "both are asked")
        (die,) = [each for each in people.interrupts() if each.id != pay.id]
        people.vote(die.id, "approve", by="ana")

        text = client.text_of(number)[0]
        assert "The server has ended" in text
        assert "may or may not have been made, and is not repeated" in text
        assert "The server has ended" in client.end(free)["error"]["message"]
        assert "The server has ended" in client.ask("ping")["error"]["message"]
        assert [each.id for each in people.interrupts()] == [pay.id]
        client.send({"method": "notifications/cancelled", "params": {"requestId": waiting}})
    people.vote(pay.id, "approve", by="ana")
    with opened(wait=30) as client:
        assert client.text("pay", **BIG) == ("pay: 500 to bob", False)


def test_an_approval_outlives_a_server_that_has_died(tmp_path, opened, people):
    """The call was surely not begun: the same call is made by a new gate, once, and nobody is asked again."""
    policy = "calls:\n  - {tools: die, rule: pass}\n  - {tools: '*', rule: {}}\n"
    (tmp_path / "policy.yaml").write_text(policy)
    with opened(wait=30) as client:
        number = client.begin_call("pay", BIG)
        asked = question(people)
        assert "The server has ended" in client.call("die", **BIG)["error"]["message"]
        vote(people)
        for text in (
            client.text_of(number)[0],
            client.text("pay", **BIG)[0],
        ):
            assert "The server has ended: start the gate again. The call was not made." in text
    assert paid(tmp_path) == []
    with opened(wait=30) as client:
        assert client.text("pay", **BIG) == ("pay: 500 to bob", False)
        until_told(people, asked)
        assert list(people.interrupts()) == []
        client.begin_call("pay", BIG)
        assert question(people).id != asked.id
    assert paid(tmp_path) == ["pay bob 500 none"]


def test_an_approval_whose_time_is_over_when_the_server_is_back_asks_again(
    tmp_path, opened, people
):
    """The rule's `use_within` is the control of the test above."""
    (tmp_path / "policy.yaml").write_text("calls: [{tools: '*', rule: {use_within: 0.01}}]")
    with opened() as client:
        client.text("pay", **BIG)
    asked = vote(people)
    with opened() as client:
        client.text("pay", **BIG)
        assert question(people).id != asked.id
    assert paid(tmp_path) == []


def test_a_server_that_sends_garbage_fails_what_is_under_way(tmp_path, opened):
    """The client gets an error in MCP's form, and the next call is served."""
    (tmp_path / "policy.yaml").write_text("calls: [{tools: [garble, pay], rule: pass}]")
    with opened() as client:
        error = client.call("garble", **BIG)["error"]
        assert error["code"] == -32700
        assert "not JSON-RPC" in error["message"]
        assert client.text("pay", **BIG) == ("pay: 500 to bob", False)


def test_a_server_that_hangs_does_not_hold_the_gate(opened, people):
    """An approved call that gets no answer in time isn't known to have been made, and isn't repeated."""
    with opened(wait=30, timeout=0.5) as client:
        number = client.begin_call("hang", BIG)
        vote(people)
        assert "has not answered within 0.5 s" in client.text_of(number)[0]
        assert client.text("pay", to="bob", amount=1) == ("pay: 1 to bob", False)


def test_a_server_may_ask_the_client_under_an_approved_call(opened, people):
    """Its elicitation reaches the client, whose answer reaches it."""
    with opened(wait=30) as client:
        number = client.begin_call("ask", BIG)
        vote(people)
        request = client.asked()
        assert request["method"] == "elicitation/create"
        client.send({"id": request["id"], "result": {"action": "decline"}})
        assert client.text_of(number)[0] == "asked: decline"


@pytest.mark.parametrize("change", ["change", "vanish"])
def test_a_tool_that_has_changed_since_it_was_approved_is_not_called(
    tmp_path, opened, people, change
):
    """Under another schema the same arguments may mean something else: the approval does not count."""
    tool = "vanish" if change == "vanish" else "pay"
    with opened(wait=30) as client:
        number = client.begin_call(tool, BIG)
        question(people)
        (tmp_path / "changes" / change).touch()
        vote(people)
        result = client.end(number)["result"]
    assert result["isError"]
    assert paid(tmp_path) == []


def test_a_line_that_is_not_json_is_refused(opened):
    """The client's own garbage gets an error without an id, and the session goes on."""
    with opened() as client:
        client.process.stdin.write("{\n")
        assert client.text("pay", to="bob", amount=1) == ("pay: 1 to bob", False)
        assert client.end(None)["error"]["code"] == -32700


def test_a_gate_ends_when_its_client_leaves(opened, people):
    """It leaves no process behind, also while a call waits."""
    with opened(wait=30) as client:
        client.begin_call("pay", BIG)
        question(people)
        client.process.stdin.close()
        assert client.process.wait(60) == 0


def test_a_call_without_an_id_is_not_relayed(tmp_path, opened):
    """A notification can't be answered, and a careless server might make the call."""
    with opened() as client:
        client.send({"method": "tools/call", "params": {"name": "pay", "arguments": BIG}})
        assert client.text("pay", to="bob", amount=1) == ("pay: 1 to bob", False)
    assert paid(tmp_path) == ["pay bob 1 none"]


def test_only_the_approved_call_reaches_the_server(opened, people):
    """Other fields of the client's request were shown to nobody."""
    more = {"_meta": {"dry": False}, "inputResponses": {}, "task": {}}
    with opened(wait=30) as client:
        number = client.begin_call("echo", BIG, **more)
        vote(people)
        text = client.text_of(number)[0]
    assert json.loads(text) == {"name": "echo", "arguments": {**BIG, "note": "none"}}


def test_a_server_cannot_answer_a_call_that_it_did_not_get(opened, people):
    """Its forged answer to a call that waits is dropped."""
    with opened(wait=30) as client:
        number = client.begin_call("pay", BIG)
        question(people)
        assert client.text("free_forge", to=str(number), amount=1)[0] == "forged"
        vote(people, "reject")
        assert "ana rejected" in client.text_of(number)[0]


def test_a_policy_knows_the_requester_before_it_lets_a_call_through(tmp_path, opened):
    """A rule for this user isn't missed because the call has no run yet."""
    (tmp_path / "policy.py").write_text(
        "import getpass\n"
        "from runner.approvals import Rule\n"
        "def approval(args, call):\n"
        "    return Rule() if call.requester.key == f'human:|{getpass.getuser()}' else None\n"
    )
    with opened(policy="policy.py") as client:
        assert "It waits for approval" in client.text("pay", **BIG)[0]


def test_nothing_misses_a_worker_for_approved_calls(opened, redis_url, people):
    """A gate makes them, and perhaps none is open: workers can't help, and the run's page says so."""
    with opened() as client:
        client.call("pay", **BIG)
    asked = vote(people)
    installation = Installation(Settings(redis_url=redis_url))
    (node,) = with_waits(installation, read_run(installation.store, asked.run_id)).nodes
    assert node.progress == "a gate makes the call when its client sends it again"
    facts = read_facts(Settings(redis_url=redis_url))
    assert "tool-gate" not in facts.graphs
    assert "tool-gate" not in facts.run_queues
    assert [row.queue for row in facts.backlog] == []


def test_the_doorbells_of_the_gates_queue_do_not_pile_up(tmp_path, opened, redis_url, people):
    """No worker serves the queue, so the gate deletes what answers have put there."""
    (tmp_path / "plain.py").write_text(
        "from runner import GraphBuilder, graph\n"
        "@graph('plain')\n"
        "def plain():\n"
        "    builder = GraphBuilder()\n"
        "    builder.add_node(lambda ctx: 1, 'one')\n"
        "    return builder.build()\n"
    )
    settings = {"RUNNER_GRAPHS": "plain", "PYTHONPATH": str(tmp_path)}
    with worker_process({"RUNNER_REDIS_URL": redis_url, **settings}, concurrency=1) as worker:
        worker.wait_ready()  # it leaves what a doorbell needs
    connection = people.engine.store.connection
    with opened(wait=30) as client:
        for _ in range(2):
            number = client.begin_call("pay", BIG)
            vote(people)
            client.end(number)
        # A vote may put its doorbell there just after the gate has seen the vote and deleted them.
        keys = connection.call("KEYS", "runner/tool-gate*")
        assert sum(connection.call("LLEN", key) for key in keys) <= 1


SHOP = """
import sys

from mcp.server import MCPServer

server = MCPServer("shop")


@server.tool()
def pay(to: str, amount: int) -> str:
    return f"pay: {amount} to {to}"


server.run(*sys.argv[1:2], **({"port": int(sys.argv[2])} if sys.argv[2:] else {}))
"""


def test_the_server_may_be_at_a_url(tmp_path, opened, people):
    """Its session is the gate's; calls are held and made as over stdio."""
    (tmp_path / "shop.py").write_text(SHOP)
    port = free_port()
    run = [sys.executable, str(tmp_path / "shop.py"), "streamable-http", str(port)]
    with subprocess.Popen(run, stderr=subprocess.DEVNULL) as server:
        wait_until(lambda: listens(port), "it listens")
        with opened(url=f"http://127.0.0.1:{port}/mcp", wait=30) as client:
            assert client.text("pay", to="bob", amount=1) == ("pay: 1 to bob", False)
            number = client.begin_call("pay", BIG)
            vote(people)
            assert client.text_of(number)[0] == "pay: 500 to bob"
        server.kill()


def test_a_client_with_tasks_gets_a_task(tmp_path, redis_url, people):
    """Its result is the outcome, also if the gate was started again meanwhile."""
    (tmp_path / "shop.py").write_text(SHOP)
    program, *arguments = command(tmp_path, command=[sys.executable, str(tmp_path / "shop.py")])
    environment = {
        **os.environ,
        "RUNNER_REDIS_URL": redis_url,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    server = StdioServerParameters(command=program, args=arguments, env=environment)

    async def begin():
        async with McpClient(server, extensions=[Tasks()]) as client:
            task = await client.session.call_tool("pay", BIG, allow_claimed=True)
            state = await task_call(client, "tasks/get", task.task_id)
            assert state["status"] == "working"
            assert question(people).id in state["statusMessage"]
            return task.task_id

    async def end(task_id):
        async with McpClient(server, extensions=[Tasks()]) as client:
            return await task_that(client, task_id, "completed")

    task_id = asyncio.run(begin())
    vote(people)
    task = asyncio.run(end(task_id))
    assert task["result"]["content"][0]["text"] == "pay: 500 to bob"


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Policies


def rule(gates, tool, **args):
    found = of_tool(gates, tool)
    return found and found.rule(args, CallContext(tool, "", "call", 0))


def test_a_policy_in_yaml_takes_the_first_entry_that_fits(tmp_path):
    """A call that no entry fits is for anyone to approve: nothing passes by being forgotten."""
    command(tmp_path)
    gates = read_policy(str(tmp_path / "policy.yaml"))

    assert rule(gates, "pay", amount=50) is None
    assert list(rule(gates, "pay", amount=51).eligible) == ["ana"]
    assert list(rule(gates, "pay").eligible) == ["ana"]
    assert rule(gates, "free_lunch") is None
    (tmp_path / "policy.yaml").write_text("calls: [{tools: 'a[b]*', rule: pass}]")
    gates = read_policy(str(tmp_path / "policy.yaml"))
    assert (rule(gates, "a[b]c"), bool(rule(gates, "ab"))) == (None, True)
    nested = "order: {type: object, properties: {sums: {items: {maximum: 5, multipleOf: 1}}}}"
    (tmp_path / "policy.yaml").write_text(
        f"calls: [{{tools: pay, rule: pass, bounds: {{{nested}}}}}]"
    )
    gates = read_policy(str(tmp_path / "policy.yaml"))
    for sums, passes in (([5, 1.0], True), ([5, "100"], False), ([6], False), ([True], False)):
        assert (rule(gates, "pay", order={"sums": sums}) is None) == passes
    (tmp_path / "policy.yaml").write_text("calls: []")
    forgotten = rule(read_policy(str(tmp_path / "policy.yaml")), "pay")
    assert list(forgotten.eligible) == ["anyone"]


def test_a_policy_in_yaml_names_the_level_of_identity(tmp_path):
    """With the age of the login, as the fields are nested; also in stages."""
    fields = "auth: {level: 2, max_age: 900}, stages: [{need: 2}, {auth: {level: 3}}]"
    (tmp_path / "policy.yaml").write_text(f"calls: [{{tools: pay, rule: {{{fields}}}}}]")
    found = rule(read_policy(str(tmp_path / "policy.yaml")), "pay")
    assert found.auth == Auth(2, 900)
    assert [(stage.need, stage.auth.level) for stage in found.stages] == [(2, 0), (1, 3)]


def test_a_policy_in_yaml_may_allow_grants(tmp_path, opened, people):
    """One decision then makes the calls within its bounds, and people are asked about others."""
    bounds = "{properties: {amount: {maximum: 600}}}"
    fields = f"eligible: [ana], grants: {{bounds: {bounds}, uses: 2}}"
    (tmp_path / "policy.yaml").write_text(f"calls: [{{tools: pay, rule: {{{fields}}}}}]")
    with opened(wait=0.5) as client:
        assert client.text("pay", **BIG)[1]
        asked = question(people)
        people.grant(
            asked.id, by="ana", bounds={"properties": {"amount": {"maximum": 550}}}, uses=1
        )
        vote(people)
        assert client.text("pay", **BIG) == ("pay: 500 to bob", False)
        assert client.text("pay", to="eve", amount=550) == ("pay: 550 to eve", False)
        assert client.text("pay", to="eve", amount=550)[1]
    assert paid(tmp_path) == ["pay bob 500 none", "pay eve 550 none"]


def test_a_policy_in_python_is_a_function_of_tool_and_arguments(tmp_path):
    """`approval` of the file is what `mcp_tools` takes: a rule, a function, or a mapping of both."""
    path = tmp_path / "policy.py"
    path.write_text(
        "from runner.approvals import Rule\n"
        "def approval(args, call):\n"
        "    return Rule(eligible=['ana']) if call.tool == 'pay' and args['amount'] > 50 else None\n"
    )
    gates = read_policy(str(path))

    assert rule(gates, "pay", amount=50) is None
    assert list(rule(gates, "pay", amount=51).eligible) == ["ana"]


@pytest.mark.parametrize(
    "text",
    [
        "calls: 1",
        "[]",
        "calls: [{tools: a}]",
        "calls: [{tools: a, rule: {need: 0}}]",
        "calls: [{tools: a, rule: pass, bounds: {amount: {type: money}}}]",
        "calls: [{tools: a, rule: pass, bound: {}}]",
        "calls: [{tools: a, rule: pass, bounds: {amount: {maximum: 5}}}]",
        "calls: [{tools: a, rule: pass, bounds: {amount: {type: integer, maximun: 5}}}]",
        "calls: [{tools: a, rule: pass, bounds: {to: {type: array, items: {enums: [a]}}}}]",
        "calls: [{tools: a, bounds: {amount: {const: 1}}, rule: pass, bounds: {}}]",
        "calls: [{tools: a, bounds: {amount: {type: integer, maximum: 5, maximum: 50}}, rule: pass}]",
        "calls: [{tools: a, rule: {agents: 'no'}}]",
        "calls: [{tools: a, rule: {grants: true}}]",
        "calls: [{tools: a, rule: {escalate: {60: [eva]}}}]",
        "calls: [{tools: a, rule: {escalate: [[60, ['rol:lead']]]}}]",
    ],
)
def test_a_policy_that_cannot_be_read_starts_nothing(tmp_path, text):
    """The error names the file."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(DefinitionError, match="policy"):
        read_policy(str(path))


@pytest.mark.parametrize("text", ["", "calls:", "pay: pass", "calls: []\ndefault: pass"])
def test_a_policy_without_calls_or_with_more_says_so(tmp_path, text):
    """A setting beside `calls` would be taken for a rule, and has no effect."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(DefinitionError, match="it must have `calls`, a list of entries"):
        read_policy(str(path))


def test_a_policy_that_fails_lets_nothing_through(tmp_path, opened):
    """An error of the policy is the call's result."""
    (tmp_path / "policy.py").write_text(
        "def approval(args):\n    raise ValueError('no rate')\n"
    )
    with opened(policy="policy.py") as client:
        text, is_error = client.text("pay", **BIG)
    assert is_error
    assert "The call was not made: no rate" in text
    assert paid(tmp_path) == []


# Kills


@pytest.mark.slow
def test_killed_gates_make_no_call_twice_and_none_without_approval(tmp_path, redis_url):
    """Whenever a gate, its client or its server dies, a call is made at most once, and only if approved."""
    tally = soak(tmp_path, redis_url, 60, lanes=2)

    assert len(tally.outcomes) == 60
    assert tally.wrong() == {"unapproved": [], "doubled": [], "untrue": []}


@pytest.mark.slow
def test_a_gate_that_forgets_what_it_began_is_found_out(tmp_path, redis_url):
    """The control of the test above: without the record of the beginning, calls are made twice."""

    def is_found(number):
        options = {"lanes": 2, "main": "tests.doors.forgetful_gate"}
        return soak(tmp_path / str(number), redis_url, 100, **options).wrong()["doubled"]

    assert any(map(is_found, range(5)))  # kills come at random
