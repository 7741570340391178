"""The patterns of LangGraph's documentation for people in the loop, as graphs that a worker imports."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from runner import graph
from runner.integrations.langgraph import LangGraphNode
from tests.graphs import wired
from tests.integrations.langgraph_graphs import Model, call, reply


@dataclass(frozen=True)
class Example:
    """A pattern; `rounds` has the answers to what is asked at once, and `types` the classes in the state."""

    build: Callable[[Any], Any]
    start: Any
    rounds: list[list[Any]]
    types: list[type] = field(default_factory=list)


def plain(values):
    """The final state as data: of messages the texts."""
    if isinstance(values, dict) and "messages" in values:
        return [message.text for message in values["messages"]]
    return values


class State(TypedDict, total=False):
    text: str
    age: int
    question: str
    items: list[str]
    decision: Any
    notes: Annotated[list[Any], operator.add]


def chain(checkpointer, *nodes):
    builder = StateGraph(State).add_sequence(nodes)
    return builder.add_edge(START, nodes[0].__name__).compile(checkpointer)


def route(checkpointer):
    """Approve or reject: the answer says which node is next."""

    def approve(state) -> Command:
        allowed = interrupt({"question": "Pay?", "details": state["text"]})
        return Command(goto="pay" if allowed else "cancel")

    builder = StateGraph(State)
    builder.add_node("approve", approve, destinations=("pay", "cancel"))
    builder.add_node("pay", lambda state: {"notes": ["paid"]})
    builder.add_node("cancel", lambda state: {"notes": ["cancelled"]})
    return builder.add_edge(START, "approve").compile(checkpointer)


def edit(checkpointer):
    """Review and edit the state."""

    def write(state):
        return {"text": f"{state['text']}, draft"}

    def review(state):
        return {"text": interrupt({"instruction": "Edit this", "content": state["text"]})}

    def publish(state):
        return {"notes": [f"published: {state['text']}"]}

    return chain(checkpointer, write, review, publish)


REPLIES = [reply(call("send", "c1", to="ana", subject="hi")), reply(content="done")]


@tool
def send(to: str, subject: str) -> str:
    """Send a mail."""
    answer = interrupt({"action": "send", "to": to, "subject": subject})
    if answer["action"] != "approve":
        return "not sent"
    return f"sent to {to}: {answer.get('subject', subject)}"


def mailer(checkpointer):
    """Ask in a tool; the answer may change its arguments."""
    return create_agent(Model(replies=REPLIES), [send], checkpointer=checkpointer)


def own_loop(checkpointer):
    """Review a tool call in a node of its own: continue, change the call, or tell the model."""

    def think(state):
        return {"messages": [Model(replies=REPLIES).invoke(state["messages"])]}

    def review(state) -> Command:
        message = state["messages"][-1]
        (wanted,) = message.tool_calls
        answer = interrupt({"question": "Is this correct?", "call": wanted})
        if answer["action"] == "feedback":
            told = ToolMessage(answer["data"], tool_call_id=wanted["id"], name=wanted["name"])
            return Command(goto="think", update={"messages": [told]})
        changed = {**wanted, "args": {**wanted["args"], **answer.get("data", {})}}
        message = message.model_copy(update={"tool_calls": [changed]})
        return Command(goto="act", update={"messages": [message]})

    def act(state):
        (wanted,) = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(str(wanted["args"]), tool_call_id=wanted["id"])]}

    builder = StateGraph(MessagesState).add_node(think).add_node(act)
    builder.add_node("review", review, destinations=("act", "think"))
    builder.add_edge(START, "think").add_edge("act", "think")
    builder.add_conditional_edges(
        "think", lambda state: "review" if state["messages"][-1].tool_calls else END
    )
    return builder.compile(checkpointer)


def validation(checkpointer):
    """Validate input: an edge leads back to the node until the answer is good."""

    def ask(state):
        answer = interrupt(state.get("question", "How old are you?"))
        if isinstance(answer, int) and answer > 0:
            return {"age": answer}
        return {"question": f"{answer!r} is no age. How old are you?"}

    builder = StateGraph(State).add_node(ask).add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: END if "age" in state else "ask")
    return builder.compile(checkpointer)


def validation_loop(checkpointer):
    """Validate input in one node, with a loop."""

    def ask(state):
        question = "How old are you?"
        while not isinstance(answer := interrupt(question), int):
            question = f"{answer!r} is no age. How old are you?"
        return {"age": answer}

    return chain(checkpointer, ask)


class Decision(BaseModel):
    approved: bool
    note: str = ""


def schema(checkpointer):
    """A schema of the answer, which is an object of its class."""

    def ask(state):
        return {"decision": interrupt("Approve?", response_schema=Decision)}

    def use(state):
        decision = state["decision"]
        return {"decision": None, "text": f"{decision.approved}, {decision.note}"}

    return chain(checkpointer, ask, use)


def asking(name):
    return lambda state: {"notes": [f"{name}: {interrupt(f'What is {name}?')}"]}


def parallel(checkpointer):
    """Several interrupts at once, resumed with a map."""
    builder = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, asking(name)).add_edge(START, name)
    return builder.compile(checkpointer)


def tasks(checkpointer):
    """An interrupt in each of several tasks of one node."""

    def review(state):
        return {"notes": [interrupt({"item": state["text"]})]}

    builder = StateGraph(State).add_node(review)
    builder.add_conditional_edges(
        START, lambda state: [Send("review", {"text": item}) for item in state["items"]]
    )
    return builder.compile(checkpointer)


def in_order(checkpointer):
    """Several interrupts in one node, matched by their order."""

    def ask(state):
        return {"notes": [interrupt(f"Your {name}?") for name in ("name", "age", "city")]}

    return chain(checkpointer, ask)


def inner(checkpointer=None):
    def prepare(state):
        return {"text": f"{state['text']}, prepared"}

    def confirm(state):
        return {"notes": [interrupt({"confirm": state["text"]})]}

    return chain(checkpointer, prepare, confirm)


def subgraph(checkpointer):
    """A subgraph as a node."""
    builder = StateGraph(State).add_node("inner", inner()).add_node("last", asking("last"))
    return builder.add_edge(START, "inner").add_edge("inner", "last").compile(checkpointer)


def subgraph_call(checkpointer):
    """A subgraph that a node calls as a function, which has asked before."""

    def outer(state):
        first = interrupt("Begin?")
        values = inner().invoke({"text": f"{state['text']}, {first}"})
        return {"notes": [values["text"], *values["notes"]]}

    return chain(checkpointer, outer)


@tool
def refund(order: str) -> str:
    """Pay an order back."""
    return f"{order} is paid back"


def middleware(checkpointer):
    """LangChain's middleware reviews two tool calls at once."""
    calls = [call("refund", "c1", order="7"), call("refund", "c2", order="8")]
    return create_agent(
        Model(replies=[reply(*calls), reply(content="done")]),
        [refund],
        middleware=[HumanInTheLoopMiddleware({"refund": True})],
        checkpointer=checkpointer,
    )


@task
def add(text, more):
    return f"{text} {more}"


@task
def ask_for(text):
    return f"{text} {interrupt(f'What follows {text}?')}"


def function(checkpointer):
    """The functional API: tasks that have ended are not run again."""

    @entrypoint(checkpointer=checkpointer)
    def write(text):
        return add(ask_for(add(text, "bar").result()).result(), "qux").result()

    return write


USER = {"messages": [{"role": "user", "content": "go"}]}
DRAFT: State = {"text": "order 7"}
EDIT = {"type": "edit", "edited_action": {"name": "refund", "args": {"order": "9"}}}
REJECT = {"type": "reject", "message": "not this one"}

EXAMPLES = {
    "approve": Example(route, DRAFT, [[True]]),
    "reject": Example(route, DRAFT, [[False]]),
    "edit": Example(edit, DRAFT, [["a better text"]]),
    "tool": Example(mailer, USER, [[{"action": "approve", "subject": "hello"}]]),
    "tool_refused": Example(mailer, USER, [[{"action": "cancel"}]]),
    "call_continue": Example(own_loop, USER, [[{"action": "continue"}]]),
    "call_update": Example(own_loop, USER, [[{"action": "update", "data": {"to": "ben"}}]]),
    "call_feedback": Example(own_loop, USER, [[{"action": "feedback", "data": "to ben"}]]),
    "validation": Example(validation, {}, [["thirty"], [30]]),
    "validation_loop": Example(validation_loop, {}, [["thirty"], [30]]),
    "schema": Example(schema, {}, [[{"approved": True, "note": "fine"}]], [Decision]),
    "parallel": Example(parallel, {}, [["blue", "red"]]),
    "tasks": Example(tasks, {"items": ["a", "b", "c"]}, [["yes", "no", "later"]]),
    "in_order": Example(in_order, {}, [["Ana"], [30], ["Rome"]]),
    "subgraph": Example(subgraph, DRAFT, [["yes"], ["done"]]),
    "subgraph_call": Example(subgraph_call, DRAFT, [["now"], ["yes"]]),
    "middleware": Example(middleware, USER, [[EDIT, REJECT]]),
    "function": Example(function, "foo", [["baz"]]),
}


def reference(example):
    """Run an example with LangGraph alone; return what it asks at once each time, and how it ends."""
    compiled = example.build(InMemorySaver())
    config = {"configurable": {"thread_id": "reference"}}
    compiled.invoke(example.start, config)
    asked = []
    for answers in example.rounds:
        interrupts = compiled.get_state(config).interrupts
        asked.append([each.value for each in interrupts])
        compiled.invoke(Command(resume=resume_map(interrupts, answers)), config)
    state = compiled.get_state(config)
    assert not state.interrupts
    return asked, plain(state.values)


def resume_map(interrupts, answers):
    given = iter(answers)
    return {
        each.id: {"decisions": [next(given) for _ in each.value["action_requests"]]}
        if "action_requests" in each.value
        else next(given)
        for each in interrupts
    }


def register(name, example):
    @graph(f"langgraph-{name}")
    def build():
        node = LangGraphNode(
            example.build,
            input=lambda visit: example.start,
            output=plain,
            types=example.types,
        )
        return wired({"asker": node}).build()


for each in EXAMPLES.items():
    register(*each)
