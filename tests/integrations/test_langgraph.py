"""LangGraph graphs as nodes: their checkpoints, their questions, and the tool calls that people review."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest
from pydantic import BaseModel, field_validator

from runner import GraphBuilder, RetryPolicy, Status
from runner.approvals.rules import Rule
from runner.errors import CorruptDocument, DefinitionError
from runner.records import failures
from runner.records.outcomes import Failed
from runner.records.validation import mismatch
from tests.execution.test_effects import vote
from tests.integrations.adapter_contract import StoredNode, done, waits
from tests.integrations.extras import need
from tests.waiting import wait_until

need("langgraph", "langgraph")
need("langchain", "dev")

from langchain.agents import create_agent  # noqa: E402 - only where the extra is installed
from langchain.agents.middleware import HumanInTheLoopMiddleware  # noqa: E402 - as above
from langchain_core.tools import StructuredTool  # noqa: E402 - as above
from langgraph import func  # noqa: E402 - as above
from langgraph.checkpoint.conformance import checkpointer_test, validate  # noqa: E402 - as above
from langgraph.graph import END, START, StateGraph  # noqa: E402 - as above
from langgraph.types import interrupt  # noqa: E402 - as above

from runner.integrations.langgraph import LangGraphNode, NodeCheckpointer  # noqa: E402 - as above
from tests.integrations.langgraph_graphs import (  # noqa: E402 - as above
    Model,
    State,
    asks,
    call,
    graph,
    reply,
    text,
)

pytestmark = pytest.mark.full

MADE: list[str] = []


@pytest.fixture(autouse=True)
def no_calls():
    MADE.clear()


def node(factory, **options):
    begin = {"input": lambda visit: {"notes": []}, "output": text}
    return StoredNode(lambda: LangGraphNode(factory, **{**begin, **options}))


# -- checkpoints -----------------------------------------------------------------------------------


class FromJson(NodeCheckpointer):
    """Reads from what a checkpointer restores that got the JSON text."""

    @property
    def restored(self):
        return NodeCheckpointer(json.loads(json.dumps(self.document())), lambda: None)

    def get_tuple(self, config):
        return self.restored.get_tuple(config)

    def list(self, config, **options):
        return self.restored.list(config, **options)


@pytest.mark.parametrize("keeps_all", [True, False])
def test_the_checkpointer_is_one_for_langgraph(keeps_all):
    """It passes all base tests of LangGraph's conformance kit; not where it drops older checkpoints."""

    @checkpointer_test("node")
    async def make():
        checkpointer = FromJson(None, lambda: None)
        checkpointer.keeps_all = keeps_all
        yield checkpointer

    report = asyncio.run(validate(make))

    assert report.passed_all_base() is keeps_all, report.to_dict()


def test_what_is_stored_does_not_grow_with_the_steps():
    """Only the newest checkpoint is stored, of the whole graph and of subgraphs that still run."""

    def compiled(checkpointer, steps):
        inner = StateGraph(State)
        inner.add_node("add", lambda state: {"notes": ["x"]})
        inner.add_edge(START, "add")
        builder = StateGraph(State)
        builder.add_node("count", lambda state: {"notes": []})
        builder.add_node("inner", inner.compile())
        builder.add_edge(START, "inner")
        builder.add_edge("inner", "count")
        builder.add_conditional_edges(
            "count", lambda state: END if len(state["notes"]) >= steps else "inner"
        )
        return builder.compile(checkpointer=checkpointer)

    def stored(steps):
        run = node(lambda checkpointer: compiled(checkpointer, steps), output=lambda state: "")
        done(run.execute())
        return {name: len(rows) for name, rows in run.document["thread"].items()}

    few, many = stored(2), stored(8)
    assert (few["checkpoints"], many["checkpoints"]) == (1, 1)
    assert many["values"] == few["values"]
    # What the last step has written may come after the checkpoint that has it.
    assert many["writes"] <= 3


@pytest.mark.parametrize("crashes", [True, False])
def test_a_crash_repeats_no_finished_node(run_graph, crashes):
    """The worker dies before it stores what the second node notes; another one runs only that again."""

    def first(state):
        MADE.append("first")
        return {"notes": ["one"]}

    def second(state):
        MADE.append("second")
        if crashes and MADE.count("second") == 1:
            run_graph.crash_at("agent", "after_effect")
        return {"notes": ["two"]}

    def compiled(checkpointer):
        MADE.append("worker")
        builder = StateGraph(State).add_sequence([first, second])
        return builder.add_edge(START, "first").compile(checkpointer=checkpointer)

    adapter = LangGraphNode(
        compiled, input=lambda visit: {"notes": []}, output=text, name="agent"
    )
    run = run_graph(graph_of(adapter), "go")

    assert run.result.results["agent"].output == "one two"
    begun = ["worker", "first", "second"]
    again = ["worker", "second"] if crashes else []
    assert [*begun, *again] == MADE


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("checkpoints", ["another form", ""]),
        ("checkpoints", ["msgpack", "gaRhYmNkwQ=="]),
        ("writes", ["pickle", "gASVAAAALg=="]),
    ],
)
def test_checkpoints_that_cannot_be_read_are_refused(row, value):
    """The error names the version that has written them, and nothing changes; control: they go on."""
    run = node(graph(ask=asks("sky")))
    [question] = waits(run.execute())
    run.answer(question, "blue")
    readable, record = run.text, json.loads(run.text)
    record["document"]["library"] = "99.0"
    place = {"checkpoints": 3, "writes": 6}[row]
    record["document"]["thread"][row][0][place] = value
    run.text = before = json.dumps(record)
    error = failures.restore(run.execute().error)

    assert isinstance(error, CorruptDocument)
    assert "99.0" in str(error)
    assert run.text == before
    run.text = readable
    assert done(run.execute()).output == "blue"


@dataclass
class Order:
    number: int


def test_objects_of_unknown_classes_are_not_loaded():
    """What writes to Redis can't have a worker build any object: classes are named by the node."""

    def noted(state):
        return {"notes": [Order(7)]}

    def shown(state):
        return {"notes": [type(state["notes"][0]).__name__, interrupt("sure?")]}

    def compiled(checkpointer):
        builder = StateGraph(State).add_sequence([noted, shown])
        return builder.add_edge(START, "noted").compile(checkpointer=checkpointer)

    def kinds(state):
        return state["notes"][1]

    def output(**options):
        run = node(compiled, output=kinds, **options)
        (question,) = waits(run.execute())
        run.answer(question, "yes")
        return done(run.execute()).output

    assert (output(types=[Order]), output()) == ("Order", "dict")


@pytest.mark.parametrize(
    "compiled",
    [
        lambda checkpointer: graph(ask=asks("sky"))(None),
        lambda checkpointer: "graph",
        lambda checkpointer: (
            StateGraph(State)
            .add_sequence([("ask", asks("sky"))])
            .add_edge(START, "ask")
            .compile(checkpointer=checkpointer, interrupt_before=["ask"])
        ),
    ],
)
def test_a_graph_that_could_not_go_on_is_refused(compiled):
    """Without the node's checkpointer, or with breakpoints that ask nothing, it fails before it begins."""
    error = failures.restore(node(compiled).execute().error)

    assert isinstance(error, DefinitionError)
    assert "nothing was run" in str(error)


# -- questions -------------------------------------------------------------------------------------


def test_an_interrupt_is_a_question_with_its_schema():
    """Its value is the reason; an agent inbox' action is the name; a schema is that of the answer."""

    def node_(state):
        value = {"action_request": {"action": "refund", "args": {"order": "7"}}}
        return {"notes": [interrupt(value, response_schema=int)]}

    (question,) = waits(node(graph(ask=node_)).execute())

    assert (question.name, question.reason["action_request"]["args"]) == (
        "refund",
        {"order": "7"},
    )
    assert question.response_schema["type"] == "integer"


def named(name):
    """The value of an interrupt whose question has this name."""
    return {"action_request": {"action": name}}


@pytest.mark.parametrize("end", ["crash", "error", "nothing"])
def test_an_answer_is_asked_for_once(run_graph, end):
    """If the node ends between an answer and what it is for, it goes on with it: no one is asked again."""

    def compiled(checkpointer):
        def left_is_stored():
            writes = checkpointer.document()["writes"]
            return any("notes" in write and "left" in write[-1] for write in writes)

        def right(state):
            notes = [interrupt(named("red"))]
            if not MADE:
                MADE.append("right")
                wait_until(left_is_stored, "the other answer is used")
                if end == "crash":
                    run_graph.crash_at("agent", "after_effect")
                if end == "error":
                    raise ConnectionError
            return {"notes": [*notes, interrupt(named("blue"))]}

        return graph(left=asks(named("sky")), right=right)(checkpointer)

    adapter = LangGraphNode(compiled, input=lambda visit: {"notes": []}, output=text)
    builder = GraphBuilder()
    builder.add_node(adapter, "agent", retry=RetryPolicy(2, backoff=0))
    run = run_graph(builder.build(), "go")
    run.answer("1", "sky")
    run.answer("2", "red")
    assert ([question.name for question in run.interrupts], MADE) == (["blue"], ["right"])
    run.answer("3")

    assert run.result.results["agent"].output == "1 2 3"


def stumbles(state):
    MADE.append("stumbles")
    if len(MADE) == 1:
        raise ConnectionError
    return {"notes": []}


def inner():
    steps = [("ask", asks("red")), stumbles, ("ask_more", asks("blue"))]
    return StateGraph(State).add_sequence(steps).add_edge(START, "ask").compile()


def functional(checkpointer):
    asked = func.task(lambda topic: asks(topic)({})["notes"], name="asked")

    @func.entrypoint(checkpointer=checkpointer)
    def run(state):
        red = asked("red").result()
        stumbles(state)
        return {"notes": red + asked("blue").result()}

    return run


@pytest.mark.parametrize(
    "compiled",
    [
        graph(inner=inner()),
        graph(outer=lambda state: inner().invoke({"notes": []})),
        functional,
    ],
)
def test_an_answer_within_is_asked_for_once(compiled):
    """Of a subgraph, as a node or called by one, and of a task, too: it fails later, and goes on there."""
    run = node(compiled)
    (red,) = waits(run.execute())
    run.answer(red, "1")
    assert isinstance(run.execute(), Failed)
    (blue,) = waits(run.execute())
    run.answer(blue, "2")

    assert (red.reason, blue.reason, done(run.execute()).output) == ("red", "blue", "1 2")


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, number):
        if number % 2:
            raise ValueError("take an even number")
        return number


def test_an_answer_that_the_graph_refuses_is_asked_for_again():
    """Where a class refuses what its schema allows, the question comes again with why; the others don't."""

    def ask(state):
        return {"notes": [interrupt("which?", response_schema=Even).number]}

    run = node(graph(ask=ask, other=asks("sky")))
    which, sky = waits(run.execute())
    run.answer(which, {"number": 3})
    run.answer(sky, "blue")
    (again,) = waits(run.execute())
    assert waits(run.execute()) == [again]
    assert again.id != which.id
    assert again.reason == {"question": "which?", "problem": "Value error, take an even number"}
    run.answer(again, {"number": 4})

    assert done(run.execute()).output == "4 blue"


# -- tool calls that people review -------------------------------------------------------------------


def refund(order: str) -> str:
    """Pay an order back."""
    MADE.append(order)
    return f"{order} is paid back"


def agent(mode, *replies, decisions=("approve", "edit", "reject", "respond")):
    """A factory of LangChain's agent, whose tool calls people review."""

    def compiled(checkpointer):
        review = {"refund": {"allowed_decisions": list(decisions)}}
        return create_agent(
            Model(replies=list(replies)),
            [refund],
            middleware=[HumanInTheLoopMiddleware(review, interrupt_mode=mode)],
            checkpointer=checkpointer,
        )

    return compiled


CALLS = reply(call("refund", "c1", order="7"), call("refund", "c2", order="8"))


def of(mode, approval=None, **options):
    return LangGraphNode(
        agent(mode, CALLS, reply(content="done"), **options), approval=approval, name="agent"
    )


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_tool_calls_are_reviewed_one_by_one(mode):
    """Each call is a question, answered with the middleware's decision; no token is counted twice."""
    run = StoredNode(lambda: of(mode))
    first, second = waits(run.execute())
    assert [question.reason["args"]["order"] for question in (first, second)] == ["7", "8"]
    assert mismatch(first.response_schema, {"type": "ignore"})

    edit = {"type": "edit", "edited_action": {"name": "refund", "args": {"order": "9"}}}
    run.answer(second, {"type": "reject", "message": "no"})
    assert waits(run.execute()) == [first]
    run.answer(first, edit)
    ended = done(run.execute())

    assert (MADE, ended.output) == (["9"], "done")
    assert ended.usage == {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30}


REFERRING = {
    "type": "object",
    "properties": {
        "order": {"$ref": "#/definitions/order"},
        "instead": {"$ref": "#/properties/order"},
    },
    "required": ["order"],
    "definitions": {"order": {"type": "object", "properties": {"id": {"$ref": "#/$defs/id"}}}},
    "$defs": {"id": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize("approval", [None, Rule()])
def test_references_of_a_tools_schema_lead_to_its_own_parts(approval):
    """An edit is checked by them, in the schema of a decision and in that of a rule's votes."""

    def refund(order, instead=None):
        MADE.append(order["id"])

    tool = StructuredTool(name="refund", description="-", func=refund, args_schema=REFERRING)

    def compiled(checkpointer):
        review = {"refund": {"allowed_decisions": ["approve", "edit"]}}
        return create_agent(
            Model(
                replies=[reply(call("refund", "c1", order={"id": 7})), reply(content="done")]
            ),
            [tool],
            middleware=[HumanInTheLoopMiddleware(review)],
            checkpointer=checkpointer,
        )

    run = StoredNode(lambda: LangGraphNode(compiled, approval=approval, name="agent"))
    (question,) = waits(run.execute())

    def edited(**args):
        edit = {"type": "edit", "edited_action": {"name": "refund", "args": args}}
        return mismatch(question.response_schema, args if approval else edit)

    assert not edited(order={"id": 8})
    assert not edited(order={"id": 8}, instead={"id": 9})
    assert edited(order={"id": 0})
    assert edited(order={"id": 8}, instead={"id": 0})
    assert edited(order={"id": 8, "amount": 1})
    if not approval:
        args = {"order": {"id": 8}}
        run.answer(
            question, {"type": "edit", "edited_action": {"name": "refund", "args": args}}
        )
        assert done(run.execute()).output == "done"
        assert MADE == [8]


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize(
    ("decision", "response", "made"),
    [
        ("approve", None, ["7"]),
        ("edit", {"order": "9"}, ["9"]),
        ("reject", None, []),
        ("respond", "it was paid before", []),
    ],
)
def test_a_rule_decides_tool_calls(run_graph, mode, decision, response, made):
    """People see the exact call, and their votes are the middleware's decision on it."""
    run = run_graph(graph_of(of(mode, Rule())), "go")
    first, second = run.interrupts
    assert (first.action["tool"], first.action["args"]) == ("refund", {"order": "7"})

    for question, kind, given in ((second, "reject", None), (first, decision, response)):
        assert run.status is Status.INTERRUPTED
        assert vote(run, "ana", kind, given, question=question.id) == "accepted"

    assert (run.status, MADE) == (Status.COMPLETED, made)
    approved = [question for question in run.store.interrupts([first.id]) if question.used]
    assert len(approved) == len(made)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize("allowed", [["approve", "reject"], ["approve"]])
def test_people_decide_only_what_the_middleware_takes(run_graph, mode, allowed):
    """A vote for another decision is refused: the middleware would fail on it, and the node with it."""
    build = agent(mode, reply(call("refund", "c1", order="7")), reply(), decisions=allowed)
    run = run_graph(graph_of(LangGraphNode(build, approval=Rule(), name="agent")), "go")

    assert vote(run, "ana", "edit", {"order": "9"}) == "forbidden"
    assert vote(run, "ana") == "accepted"
    assert (run.status, MADE) == (Status.COMPLETED, ["7"])


def test_a_decision_that_neither_takes_is_refused():
    """A rule and a middleware without a common decision: the node fails, and says so of both."""
    build = agent("per_call", reply(call("refund", "c1", order="7")), decisions=["respond"])
    rule = Rule(decisions=["approve", "edit"])
    run = StoredNode(lambda: LangGraphNode(build, approval=rule))
    error = failures.restore(run.execute().error)

    assert isinstance(error, DefinitionError)
    assert "approve, edit and the agent takes respond for refund" in str(error)


@pytest.mark.parametrize("changed", [True, False])
def test_a_call_that_was_changed_after_its_approval_is_not_made(run_graph, changed):
    """The call that is about to be made is compared with what was approved: the node is held."""
    build = agent("per_call", reply(call("refund", "c1", order="7")), reply(content="done"))
    orders = [b"", b""]

    def compiled(checkpointer):
        for writes in checkpointer.writes.values():
            for key, (task, channel, (kind, data), path) in writes.items():
                writes[key] = (task, channel, (kind, data.replace(*orders)), path)
        return build(checkpointer)

    run = run_graph(graph_of(LangGraphNode(compiled, approval=Rule(), name="agent")), "go")
    if changed:
        orders[:] = b"order\xa17", b"order\xa19"
    vote(run, "ana")

    assert (run.status, MADE) == (
        (Status.NEEDS_MIGRATION, []) if changed else (Status.COMPLETED, ["7"])
    )


def graph_of(adapter):
    builder = GraphBuilder()
    builder.add_node(adapter, "agent")
    return builder.build()
