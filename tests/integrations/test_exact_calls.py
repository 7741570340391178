"""Tool calls of frameworks that people approve: what is shown is what the tool gets."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, v1

from runner import GraphBuilder, Status
from runner.approvals.rules import Rule
from runner.approvals.votes import unfit_response
from runner.errors import UsageError
from tests.execution.test_effects import vote
from tests.integrations.extras import need

need("langchain", "dev")
need("agents", "openai-agents")
need("pydantic_ai", "pydantic-ai")

import agents  # noqa: E402 - only where the extra is installed
from langchain.agents import create_agent  # noqa: E402 - as above
from langchain.agents.middleware import HumanInTheLoopMiddleware  # noqa: E402 - as above
from langchain_core.tools import StructuredTool  # noqa: E402 - as above
from langgraph.graph import START, MessagesState, StateGraph  # noqa: E402 - as above

from runner.integrations.framework import strict, whole_call  # noqa: E402 - as above
from runner.integrations.langgraph import LangGraphNode  # noqa: E402 - as above
from runner.integrations.pydantic_ai import PydanticAIAgent  # noqa: E402 - as above
from tests.integrations import (  # noqa: E402 - as above
    langgraph_graphs,
    openai_sdk_agents,
    pydantic_agents,
)

pytestmark = pytest.mark.full

PAID: list[tuple[str, int, int]] = []


@pytest.fixture(autouse=True)
def nothing_paid():
    PAID.clear()


class Fee(BaseModel):
    percent: int = 50


def refund(order: str, amount: int = 1000, fee: Fee = Fee(percent=1)) -> str:  # noqa: B008 - it is not changed
    """Refund an order."""
    PAID.append((order, amount, fee.percent))
    return f"{amount} paid"


def openai_node(args, rule):
    tool = agents.function_tool(refund, needs_approval=rule is not None, strict_mode=False)
    call = openai_sdk_agents.call("refund", "c1", **args)
    return openai_sdk_agents.node(call, openai_sdk_agents.results, tools=[tool], approval=rule)


def langgraph_node(args, rule, mode="batched", *more):
    calls = [langgraph_graphs.call("refund", "c1", **args), *more]

    def compiled(checkpointer):
        replies = [langgraph_graphs.reply(*calls), langgraph_graphs.reply(content="done")]
        return create_agent(
            langgraph_graphs.Model(replies=replies),
            [StructuredTool.from_function(refund)],
            middleware=[HumanInTheLoopMiddleware({"refund": True}, interrupt_mode=mode)]
            if rule
            else [],
            checkpointer=checkpointer,
        )

    return LangGraphNode(compiled, approval=rule, name="agent")


def per_call_node(args, rule):
    return langgraph_node(args, rule, "per_call")


NODES = [openai_node, langgraph_node, per_call_node]


def run_of(run_graph, node, args, rule):
    builder = GraphBuilder()
    builder.add_node(node(args, rule), "agent")
    return run_graph(builder.build(), "go")


UNFIT = [
    {"order": "7", "\u0430mount": 5},
    {"order": "7", "amount ": 5},
    {"order": "7", "amount": "1_0"},
    {"order": "7", "amount": True},
    {"order": "7", "amount": 5, "fee": {"perc\u0435nt": 2}},
    {"order": "7", "amount": 5, "fee": {}},
]


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("args", UNFIT)
def test_a_call_that_the_tool_would_read_as_another_is_not_asked_about(run_graph, node, args):
    """Nobody is asked, the tool is not called, and the model gets an error; without approval it is called."""
    run = run_of(run_graph, node, args, Rule())
    assert (run.interrupts, run.status, PAID) == ([], Status.COMPLETED, [])

    run_of(run_graph, node, args, None)  # the control
    assert len(PAID) == 1


@pytest.mark.parametrize("node", NODES)
def test_defaults_are_shown(run_graph, node):
    """The question has all that the tool gets, and the call is that."""
    run = run_of(run_graph, node, {"order": "7"}, Rule())
    [question] = run.interrupts
    assert question.action["args"] == {"order": "7", "amount": 1000, "fee": {"percent": 1}}
    vote(run, "ana")
    assert (run.status, PAID) == (Status.COMPLETED, [("7", 1000, 1)])


WHOLE = {"order": "7", "amount": 60, "fee": {"percent": 1}}
EDITS = [
    {"order": "7", "amout": 60, "fee": {"percent": 1}},
    {"order": "7", "amount": 60},
    {**WHOLE, "fee": {}},
]


@pytest.mark.parametrize("node", [langgraph_node, per_call_node])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_all_that_the_tool_gets(run_graph, node, edit):
    """An edit with an unknown name, or that leaves a name out, is refused at the door."""
    run = run_of(run_graph, node, {"order": "7", "amount": 120}, Rule())
    [question] = run.interrupts
    assert "schema" in unfit_response("edit", edit, question)
    assert not unfit_response("edit", WHOLE, question)
    assert vote(run, "ana", "edit", WHOLE) == "accepted"
    assert (run.status, PAID) == (Status.COMPLETED, [("7", 60, 1)])


@pytest.mark.parametrize("node", [langgraph_node, per_call_node])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_passed_a_door_is_not_called_where_it_does_not_fit(run_graph, node, edit):
    """A worker believes no door: people are asked again, about a whole call, and nothing is paid."""
    run = run_of(run_graph, node, {"order": "7", "amount": 120}, Rule())
    assert vote(run, "ana", "edit", edit) == "accepted"
    [again] = run.interrupts
    assert (again.action["args"].keys(), PAID) == (WHOLE.keys(), [])


@pytest.mark.parametrize("args", [{"order": "7"}, {"order": "7", "amount": "1_0"}])
def test_pydantic_ai_calls_what_was_shown(run_graph, args):
    """The arguments are shown as the framework has validated them, and the approved call has those."""

    def build():
        call = pydantic_agents.call("refund", "c1", **args)
        agent = pydantic_agents.agent(call, pydantic_agents.results)
        agent.tool_plain(refund, requires_approval=True)
        return agent

    run = run_of(run_graph, lambda args, rule: PydanticAIAgent(build), args, None)
    [question] = run.interrupts
    shown = question.reason["args"]
    assert shown["amount"] == (10 if "amount" in args else 1000)
    run.answer(True)
    assert [(shown["order"], shown["amount"], shown["fee"]["percent"])] == PAID


def test_two_tools_of_one_name_lend_each_other_no_default(run_graph):
    """Which of them is called is not known: the arguments are shown as the model wrote them."""

    def other(order: str, amount: int = 5) -> str:
        """Refund less."""
        raise AssertionError((order, amount))

    def compiled(checkpointer):
        calls = [langgraph_graphs.call("refund", "c1", order="7")]
        replies = [langgraph_graphs.reply(*calls), langgraph_graphs.reply(content="done")]
        tools = {
            "first": (StructuredTool.from_function(refund), replies),
            "second": (StructuredTool.from_function(other, name="refund"), replies[1:]),
        }
        graph = StateGraph(MessagesState)
        for name, (tool, replies_of) in tools.items():
            gate = HumanInTheLoopMiddleware({"refund": True})
            model = langgraph_graphs.Model(replies=replies_of)
            graph.add_node(name, create_agent(model, [tool], middleware=[gate]))
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        return graph.compile(checkpointer=checkpointer)

    builder = GraphBuilder()
    builder.add_node(LangGraphNode(compiled, approval=Rule(), name="agent"), "agent")
    run = run_graph(builder.build(), "go")
    [question] = run.interrupts
    assert question.action["args"] == {"order": "7"}
    vote(run, "ana")
    assert (run.status, PAID) == (Status.COMPLETED, [("7", 1000, 1)])


def test_a_tool_of_pydantic_1_is_called_as_the_model_wrote_it(run_graph, monkeypatch):
    """Its schema is not known here; the node runs."""

    class Order(v1.BaseModel):
        order: str

    monkeypatch.setattr(
        StructuredTool,
        "from_function",
        lambda function: StructuredTool(
            name="refund", description="Refund.", func=function, args_schema=Order
        ),
    )
    run = run_of(run_graph, langgraph_node, {"order": "7"}, Rule())
    [question] = run.interrupts
    assert question.action["args"] == {"order": "7"}
    vote(run, "ana")
    assert (run.status, PAID) == (Status.COMPLETED, [("7", 1000, 1)])


SCHEMAS = [
    ({"anything": True}, {"anything": [1]}),
    ({"amount": {"type": "integer", "default": 2}, "more": True}, {"amount": 1, "more": None}),
]


@pytest.mark.parametrize(("properties", "args"), SCHEMAS)
def test_a_schema_may_let_a_name_have_any_value(properties, args):
    """`true` is a JSON Schema, too; control: a name that is not in it is refused."""
    schema = strict({"type": "object", "properties": properties})
    assert whole_call("tool", args, schema) == args
    with pytest.raises(UsageError):
        whole_call("tool", {**args, "other": 1}, schema)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize("key", ["c1", "c2"])
def test_an_edit_of_one_call_is_none_of_another(run_graph, mode, key):
    """A reply with one id twice is refused: the middleware would make both calls with one edit."""
    second = langgraph_graphs.call("refund", key, order="8", amount=8)
    builder = GraphBuilder()
    builder.add_node(langgraph_node({"order": "7"}, Rule(), mode, second), "agent")
    run = run_graph(builder.build(), "go")
    if key == "c1":
        assert (run.status, PAID) == (Status.FAILED, [])
        return
    first, other = run.interrupts
    vote(run, "ana", "edit", WHOLE, question=first.id)
    vote(run, "ana", question=other.id)
    # LangGraph makes the calls of one message in threads, so in any order.
    assert (run.status, sorted(PAID)) == (Status.COMPLETED, [("7", 60, 1), ("8", 8, 1)])
