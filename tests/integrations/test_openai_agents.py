"""Agents of the OpenAI Agents SDK as nodes: the calls that people approve, nested agents, what is stored."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from runner import GraphBuilder, Status
from runner.approvals.rules import Rule
from runner.errors import CorruptDocument, LeaseLost
from runner.records import failures
from runner.records.validation import mismatch
from tests.execution.test_effects import vote
from tests.integrations.adapter_contract import StoredNode, done, waits
from tests.integrations.extras import need

need("agents", "openai-agents")

from agents import Agent, AgentHooks, RunContextWrapper, function_tool  # noqa: E402 - only where the extra is installed

from tests.integrations.openai_sdk_agents import (  # noqa: E402 - as above
    MADE,
    agent,
    call,
    manager,
    node,
    paint,
    results,
)

pytestmark = pytest.mark.full

CALLS = [call("paint", "c1", wall="north"), call("paint", "c2", wall="south")]


@pytest.fixture(autouse=True)
def no_calls():
    MADE.clear()


def graph_of(adapter):
    builder = GraphBuilder()
    builder.add_node(adapter, "agent")
    return builder.build()


def test_calls_are_approved_one_by_one():
    """Each call is a question with its arguments, answered yes or no, and no token is counted twice."""
    run = StoredNode(lambda: node(CALLS, results))
    first, second = waits(run.execute())
    assert (first.name, first.reason["args"]) == ("paint", {"wall": "north"})
    edit = {"kind": "tool-approved", "override_args": {"wall": "east"}}
    assert mismatch(first.response_schema, edit)
    assert not mismatch(first.response_schema, True)

    run.answer(second, {"kind": "tool-denied", "message": "it is wet"})
    assert waits(run.execute()) == [first]
    run.answer(first, True)
    ended = done(run.execute())

    assert (MADE, ended.output) == (["north"], "north painted; it is wet")
    assert ended.usage == {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30}


@pytest.mark.parametrize(("decision", "made"), [("approve", ["north"]), ("reject", [])])
def test_a_rule_decides_calls(run_graph, decision, made):
    """People vote on the exact call, to approve or to reject it: the SDK has no other decision."""
    run = run_graph(graph_of(node(CALLS, results, approval=Rule())), "go")
    first, second = run.interrupts
    assert (first.action["tool"], first.action["args"]) == ("paint", {"wall": "north"})
    assert list(first.rule["decisions"]) == ["approve", "reject"]
    assert vote(run, "ana", "edit", {"wall": "east"}, question=first.id) == "forbidden"

    assert vote(run, "ana", "reject", None, question=second.id) == "accepted"
    assert vote(run, "ana", decision, None, question=first.id) == "accepted"

    assert (run.status, MADE) == (Status.COMPLETED, made)
    approved = [question for question in run.store.interrupts([first.id]) if question.used]
    assert len(approved) == len(made)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ("nothing", Status.COMPLETED),
        ("the call", Status.NEEDS_MIGRATION),
        ("what is run", Status.FAILED),
    ],
)
def test_a_call_that_was_changed_after_its_approval_is_not_made(run_graph, changed, status):
    """The call is compared with what was approved, which holds the node; the SDK makes no other call."""

    def context(visit):
        state = (visit.document or {}).get("state")
        if state and changed == "the call":
            state.update(json.loads(json.dumps(state).replace("north", "south")))
        if state and changed == "what is run":
            response = state["last_processed_response"]
            text = json.dumps(response["functions"])
            assert "north" in text
            response["functions"] = json.loads(text.replace("north", "south"))
        return {}

    built = node(call("paint", "c1", wall="north"), results, approval=Rule(), context=context)
    run = run_graph(graph_of(built), "go")
    vote(run, "ana")

    assert (run.status, MADE) == (status, ["north"] if changed == "nothing" else [])


@pytest.mark.parametrize("yes", [True, False])
def test_calls_of_agents_that_are_tools_are_asked(yes):
    """What a nested agent wants to call is a question of the node, its tokens are the node's, too."""
    run = StoredNode(lambda: node(factory=manager))
    [question] = waits(run.execute())
    assert (question.name, question.reason["args"]) == ("paint", {"wall": "north"})
    run.answer(question, yes)
    ended = done(run.execute())

    assert (MADE, "north painted" in ended.output) == (
        (["north"], True) if yes else ([], False)
    )
    assert ended.usage["totalTokens"] == 60


@pytest.mark.parametrize(("yes", "made"), [("north", ["north"]), ("south", ["south"])])
def test_calls_with_one_id_are_asked_one_by_one(yes, made):
    """Two nested agents, whose models number their calls alike: each answer is for its call alone."""

    def build():
        nested = [
            agent(call("paint", "c1", wall=wall), results, name=wall).as_tool(wall, "Decorate.")
            for wall in ("north", "south")
        ]
        both = [call("north", "x1", input="go"), call("south", "x2", input="go")]
        return agent(both, results, tools=nested, name="manager")

    run = StoredNode(lambda: node(factory=build))
    questions = waits(run.execute())
    walls = [question.reason["args"]["wall"] for question in questions]
    for question, wall in zip(questions, walls, strict=True):
        run.answer(question, wall == yes)
    done(run.execute())

    assert (walls, MADE) == (["north", "south"], made)


def test_an_agent_that_took_over_asks():
    """A call of an agent that another one has handed over to is a question; that agent goes on."""

    def build():
        handoff = call("transfer_to_painter", "c0")
        painter = agent(handoff, call("paint", "c1", wall="north"), results)
        return agent(handoff, "never", name="clerk", tools=[], handoffs=[painter])

    run = StoredNode(lambda: node(factory=build))
    [question] = waits(run.execute())
    run.answer(question, True)

    assert (done(run.execute()).output.endswith("north painted"), MADE) == (True, ["north"])


def test_visits_may_share_agents():
    """A visit that was lost stops no other one, whose factory returns the same agents."""
    shared = manager()
    lost, run = (StoredNode(lambda: node(factory=lambda: shared)) for _ in range(2))
    waits(lost.execute())
    lost.lost = True
    with pytest.raises(LeaseLost):
        lost.execute()

    [question] = waits(run.execute())
    run.answer(question, True)
    done(run.execute())
    assert MADE == ["north"]


@pytest.mark.parametrize("context", [{"key": "sk-secret"}, SimpleNamespace(key="sk-secret")])
def test_the_context_is_not_stored(context):
    """Tools get the object that `context` makes, in each process; of it nothing is in the document."""
    got = []

    @function_tool
    def look(given: RunContextWrapper[Any]) -> str:
        """Look."""
        got.append(given.context)
        return "seen"

    replies = (CALLS[0], call("look", "c2"), "done")
    run = StoredNode(lambda: node(*replies, tools=[paint, look], context=lambda visit: context))
    [question] = waits(run.execute())
    assert "north" in run.text
    assert "sk-secret" not in run.text
    run.answer(question, True)
    done(run.execute())

    assert got == [context]


def test_a_state_that_the_sdk_cannot_read_is_refused():
    """The error names the version that has written it, and nothing that is stored changes."""
    run = StoredNode(lambda: node(CALLS[0], results))
    [question] = waits(run.execute())
    run.answer(question, True)
    record = json.loads(run.text)
    record["document"] |= {"library": "99.0"}
    record["document"]["state"]["$schemaVersion"] = "99.0"
    run.text = before = json.dumps(record)

    error = failures.restore(run.execute().error)

    assert isinstance(error, CorruptDocument)
    assert "99.0" in str(error)
    assert (run.text, MADE) == (before, [])


def test_hooks_of_agents_are_called():
    """Hooks that an agent has, the node's or a nested one, are called with their own state."""

    class Hooks(AgentHooks):
        seen = ""

        async def on_tool_start(self, context, agent, tool):
            self.seen += f"{agent.name}:{tool.name} "

    hooks = Hooks()

    def build() -> Agent:
        look = function_tool(lambda: "seen", name_override="look", description_override="Look.")
        inner = agent(call("look", "c9"), results, tools=[look], name="inner", hooks=hooks)
        tool = inner.as_tool("ask", "Ask.")
        return agent(call("ask", "c1", input="x"), results, tools=[tool], hooks=hooks)

    assert done(StoredNode(lambda: node(factory=build)).execute()).output == "seen"
    assert hooks.seen == "painter:ask inner:look "
