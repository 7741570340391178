"""Every hook event can ask: where it parks, what it replays, and what it must not repeat."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from runner import GraphBuilder, Status, hooks
from runner.agent import Agent, tool
from runner.agent.models.scripted import ScriptedModel
from runner.records.outcomes import Interrupted
from tests.agent.visits import Hooks, Node, done, failed, scripted, use
from tests.graphs import AGENT_EVENTS


class Trace:
    """An agent of one tool and two turns, whose events and calls are written down."""

    def __init__(self, *pairs: Any, calls: int = 1, **options: Any) -> None:
        self.lines: list[str] = []
        trace = self

        @tool
        def work(n: int = 0) -> str:
            """Work."""
            trace.lines.append(f"work {n}")
            return f"worked {n}"

        def first(messages: Any) -> Any:
            del messages
            trace.lines.append("model")
            return [use("work", f"t{n}", n=n) for n in range(calls)]

        def second(messages: Any) -> Any:
            del messages
            trace.lines.append("model")
            return "end"

        model = ScriptedModel([first, second])
        self.node = Node(lambda: Agent("a", model, [work], hooks=[Hooks(*pairs)], **options))

    @property
    def conversation(self) -> list[Any]:
        """The messages stored so far."""
        return self.node.messages


def plain() -> list[Any]:
    """The conversation as it is without questions."""
    trace = Trace()
    done(trace.node.run())
    return trace.conversation


@pytest.mark.full
@pytest.mark.parametrize("event_type", AGENT_EVENTS, ids=lambda t: t.__name__)
def test_the_same_name_twice_in_an_event_is_refused(event_type: Any) -> None:
    """Two callbacks under one name: the invocation ends in an error, whichever the event."""
    pair = (event_type, lambda event: event.interrupt("same"))
    trace = Trace(pair, pair)
    assert "'same' was asked twice" in str(failed(trace.node.run()).error)
    assert trace.node.published == []


@pytest.mark.full
@pytest.mark.parametrize("event_type", AGENT_EVENTS, ids=lambda t: t.__name__)
def test_a_callback_that_raises_fails_the_agent_and_a_retry_goes_on(event_type: Any) -> None:
    """The error is the node's; the next attempt fires the event again and repeats no finished call."""
    fail = [True]

    async def bad(event: Any) -> None:
        del event
        if fail:
            fail.pop()
            raise RuntimeError("callback broke")

    trace = Trace((event_type, bad))
    assert str(failed(trace.node.run()).error) == "RuntimeError: callback broke"
    done(trace.node.run())
    assert trace.lines == ["model", "work 0", "model"]
    assert trace.conversation == plain()


@pytest.mark.full
@pytest.mark.parametrize("event_type", AGENT_EVENTS, ids=lambda t: t.__name__)
def test_two_questions_of_one_event_wait_for_each_other(event_type: Any) -> None:
    """A first answer replays the event, the open question comes back with the same id."""

    def ask(event: Any) -> None:
        if event.attempt == 1 and getattr(event, "message", {"role": "user"})["role"] == "user":
            event.interrupt("one")
            event.interrupt("two")

    trace = Trace((event_type, ask))
    outcome = trace.node.run()
    rounds = 0
    while isinstance(outcome, Interrupted):
        rounds += 1
        assert rounds < 12
        names = trace.node.names
        assert len(names) == 1
        outcome = trace.node.resume(**{names[0]: rounds})
    done(outcome)
    assert trace.conversation == plain()


def test_before_invocation_asks_before_anything_is_added() -> None:
    """Replay point: nothing is in the conversation yet, and the messages shown are the same input."""
    shown: list[Any] = []

    def ask(event: hooks.BeforeInvocationEvent) -> None:
        shown.append([m["content"][0]["text"] for m in event.messages])
        if event.messages:
            event.messages = [{"role": "user", "content": [{"text": event.interrupt("what")}]}]

    trace = Trace((hooks.BeforeInvocationEvent, ask))
    trace.node.run()
    assert trace.conversation == []
    done(trace.node.resume(what="something else"))
    assert shown == [["go"], ["go"]]
    assert trace.conversation[0]["content"] == [{"text": "something else"}]


def test_after_model_call_asks_before_the_reply_is_added() -> None:
    """Replay point: the reply waits beside the conversation; a retry throws it away and asks again."""
    seen: list[Any] = []

    def judge(event: hooks.AfterModelCallEvent) -> None:
        assert event.stop_response is not None
        seen.append((event.attempt, event.stop_response.stop_reason))
        event.retry = event.interrupt("good") == "no"

    trace = Trace((hooks.AfterModelCallEvent, judge))
    trace.node.run()
    assert len(trace.conversation) == 1
    trace.node.resume(good="no")
    assert trace.lines == ["model", "model"]
    assert len(trace.conversation) == 1
    trace.node.resume(good="yes")
    done(trace.node.resume(good="yes"))
    assert seen[:4] == [(1, "tool_use"), (1, "tool_use"), (2, "tool_use"), (2, "tool_use")]


def test_after_model_call_sees_the_error_and_may_retry() -> None:
    """A person may decide that a model error is worth another call; the exception survives the pause."""
    errors_seen: list[Any] = []
    errors = [TimeoutError("slow")]

    def reply(messages: Any) -> Any:
        del messages
        return errors.pop() if errors else "end"

    def judge(event: hooks.AfterModelCallEvent) -> None:
        if event.exception is not None:
            event.retry = event.interrupt("again", reason=str(event.exception))
            errors_seen.append(event.exception)

    node = scripted([reply], hooks=[(hooks.AfterModelCallEvent, judge)])
    node.run()
    assert node.open[0].reason == "slow"
    done(node.resume(again=True))
    assert [type(error) for error in errors_seen] == [TimeoutError]


def test_before_model_call_may_answer_in_the_models_place() -> None:
    """`cancel` ends the invocation with that text; the model isn't called."""

    def deny(event: hooks.BeforeModelCallEvent) -> None:
        if event.interrupt("may_call") == "no":
            event.cancel = "not today"

    trace = Trace((hooks.BeforeModelCallEvent, deny))
    trace.node.run()
    assert done(trace.node.resume(may_call="no")).output == "not today"
    assert trace.lines == []


def test_before_invocation_may_deny_it() -> None:
    """`cancel` of BeforeInvocation ends the invocation with that text; the model isn't called."""

    def deny(event: hooks.BeforeInvocationEvent) -> None:
        event.cancel = True

    trace = Trace((hooks.BeforeInvocationEvent, deny))
    assert done(trace.node.run()).output == "invocation denied by hook"
    assert trace.lines == []


def test_after_tools_asks_before_the_results_are_added() -> None:
    """Replay point: all results are final, none is in the conversation yet."""

    def ask(event: hooks.AfterToolsEvent) -> None:
        event.end_turn = event.interrupt("stop_here", reason=len(event.message["content"]))

    trace = Trace((hooks.AfterToolsEvent, ask), calls=2)
    trace.node.run()
    assert trace.node.open[0].reason == 2
    assert trace.node.results == []
    assert (
        done(trace.node.resume(stop_here="stopped by a person")).output == "stopped by a person"
    )
    assert sorted(trace.lines) == ["model", "work 0", "work 1"]
    assert len(trace.node.results) == 2


def test_after_invocation_may_answer_at_once() -> None:
    """`resume` with answers goes on without leaving the execution."""

    def gate(event: hooks.BeforeToolCallEvent) -> None:
        event.cancel_tool = event.interrupt("may_it") == "no"

    def robot(event: hooks.AfterInvocationEvent) -> None:
        if event.result.interrupts:
            key = event.result.interrupts[0].id
            event.resume = [{"interruptResponse": {"interruptId": key, "response": "yes"}}]

    trace = Trace((hooks.BeforeToolCallEvent, gate), (hooks.AfterInvocationEvent, robot))
    done(trace.node.run())
    assert trace.lines == ["model", "work 0", "model"]


def test_after_invocation_may_go_on_with_a_new_input() -> None:
    """`resume` with a text begins another round in the same invocation."""
    rounds: list[int] = []

    def more(event: hooks.AfterInvocationEvent) -> None:
        rounds.append(1)
        if len(rounds) == 1:
            event.resume = "and then?"

    trace = Trace((hooks.AfterInvocationEvent, more))
    done(trace.node.run())
    texts = [
        block["text"] for m in trace.conversation for block in m["content"] if "text" in block
    ]
    assert texts == ["go", "end", "and then?", "end"]


def test_an_invocation_is_announced_again_on_resume_and_not_asked_about_again() -> None:
    """Each pass begins with BeforeInvocation; what a person answered for this input isn't asked twice."""
    seen: list[int] = []

    def ask(event: hooks.BeforeInvocationEvent) -> None:
        event.interrupt("start")
        seen.append(len(event.messages))

    def gate(event: Any) -> None:
        event.interrupt("may_it")

    pairs = [(hooks.BeforeInvocationEvent, ask), (hooks.BeforeModelCallEvent, gate)]
    trace = Trace(*pairs, (hooks.BeforeToolCallEvent, gate))
    trace.node.run()
    trace.node.resume(start=1)
    for _ in range(3):
        assert trace.node.names == ["may_it"]
        trace.node.resume(may_it=1)
    done(trace.node.outcome)
    assert seen == [1, 0, 0, 0]


def test_an_event_made_by_hand_can_not_ask() -> None:
    """`interrupt` on an event made by hand is an error that says so."""
    with pytest.raises(Exception, match="can't ask a person"):
        hooks.AfterToolCallEvent(
            tool_use={"toolUseId": "t", "name": "x", "input": {}}
        ).interrupt("q")


@pytest.mark.full
def test_a_group_event_and_a_call_that_both_ask_lose_no_answer() -> None:
    """AfterTools asks about a partial batch while a call waits: both are answered, both take effect."""

    def gate(event: hooks.BeforeToolCallEvent) -> None:
        if event.tool_use["toolUseId"] == "t1":
            event.interrupt("may_t1")

    def look(event: hooks.AfterToolsEvent) -> None:
        if len(event.message["content"]) == 1:
            event.interrupt("partial")

    for order in (("partial", "may_t1"), ("may_t1", "partial"), ("both",)):
        trace = Trace((hooks.BeforeToolCallEvent, gate), (hooks.AfterToolsEvent, look), calls=2)
        trace.node.run()
        assert sorted(trace.node.names) == ["may_t1", "partial"]
        if order == ("both",):
            trace.node.resume(partial=1, may_t1=1)
        else:
            for name in order:
                trace.node.resume(**{name: 1})
        done(trace.node.outcome)
        assert sorted(trace.lines) == ["model", "model", "work 0", "work 1"]
        assert len(trace.node.results) == 2


# -- the page about hook events ----------------------------------------------------------------------

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "hook-events.md"
PARENTS = {"HookEvent", "AgentEvent", "GraphEvent"}
EVENTS = {
    name: kind
    for name, kind in vars(hooks).items()
    if name.endswith("Event") and name not in PARENTS
}


def test_the_tables_list_every_event_with_its_writable_attributes_and_direction() -> None:
    """Each event has one row; what the row calls writable or reversed is so."""
    rows = re.findall(
        r"^\| `(\w+Event)` (↩ )?\|([^|]*)\|([^|]*)\|", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert sorted(name for name, *_ in rows) == sorted(EVENTS)
    for name, arrow, _, writable in rows:
        assert set(re.findall(r"`(\w+)`", writable)) == EVENTS[name].writable, name
        assert bool(arrow) == EVENTS[name].reverse, name


def test_the_example_of_the_page_runs() -> None:
    """The provider on the page can be registered."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - the page's own example
    registry = hooks.HookRegistry([names["Review"]()])
    assert len(registry.callbacks_for(hooks.AfterToolCallEvent)) == 1


HELD_BACK = {
    "BeforeGraphEvent": (0, 0, 0),
    "BeforeNodeCallEvent": (0, 0, 0),
    "BeforeInvocationEvent": (0, 0, 0),
    "MessageAddedEvent": (0, 0, 1),
    "BeforeModelCallEvent": (0, 0, 1),
    "AfterModelCallEvent": (1, 0, 1),
    "BeforeToolsEvent": (1, 0, 2),
    "BeforeToolCallEvent": (1, 0, 2),
    "AfterToolCallEvent": (1, 1, 2),
    "AfterToolsEvent": (1, 1, 2),
    "AfterInvocationEvent": (2, 1, 4),
    "AfterNodeCallEvent": (
        2,
        1,
        2,
    ),  # the last messages lie with the result, which isn't final yet
    "AfterGraphEvent": (2, 1, 4),
}
"""For each event, what had happened when it first asked: model calls, tool runs, messages."""


class Watched:
    """A graph of one agent, with a callback for every event; one of them asks."""

    def __init__(self, asks: str | None) -> None:
        self.asks = asks
        self.done: list[str] = []
        self.fired: list[tuple[str, bool]] = []
        self.refused: set[str] = set()
        self.agent = Agent("a", ScriptedModel([self.first, self.second]), [self.tool()])
        for kind in EVENTS.values():
            if kind.__mro__[1] is hooks.AgentEvent:
                self.agent.hooks.add_callback(kind, self.hear)
        builder = GraphBuilder()
        builder.add_node(self.agent, "a")
        self.graph = builder.set_hook_providers([self]).build()

    def register_hooks(self, registry: hooks.HookRegistry, **kwargs: Any) -> None:
        """Listen to the events of the graph."""
        for kind in EVENTS.values():
            if kind.__mro__[1] is hooks.GraphEvent:
                registry.add_callback(kind, self.hear)

    def tool(self) -> Any:
        """Make a tool that says that it ran."""

        @tool
        def work() -> str:
            """Work."""
            self.done.append("work")
            return "worked"

        return work

    def first(self, messages: Any) -> Any:
        """Call the tool."""
        self.done.append("model")
        return {"toolUse": {"name": "work"}}

    def second(self, messages: Any) -> str:
        """End."""
        self.done.append("model")
        return "end"

    def hear(self, event: Any) -> None:
        """Write an event down, see what of it can be written, and ask if it is the one."""
        kind = type(event)
        self.fired.append((kind.__name__, event.is_replay))
        if kind.__name__ != self.asks:
            return
        for field in dataclasses.fields(event):
            value = getattr(event, field.name, None)
            if field.name in kind.writable:
                setattr(event, field.name, value)
            elif not field.name.startswith("_"):
                with pytest.raises(AttributeError, match=f"{field.name} is not writable"):
                    setattr(event, field.name, value)
        event.interrupt("go")

    @property
    def happened(self) -> tuple[int, int, int]:
        """Count model calls, tool runs and messages."""
        return self.done.count("model"), self.done.count("work"), len(self.agent.messages)


@pytest.mark.full
@pytest.mark.parametrize("kind", sorted(HELD_BACK))
def test_each_row_holds_back_what_it_says(kind: str) -> None:
    """While an event of a row asks, what follows has not begun; answered, all of it happens once."""
    watched = Watched(kind)
    result = watched.graph("go")
    assert watched.happened == HELD_BACK[kind]
    asked = 0
    while result.status is Status.INTERRUPTED:
        asked += 1
        [question] = result.interrupts
        result = watched.graph(
            [{"interruptResponse": {"interruptId": question.id, "response": asked}}]
        )

    assert result.status is Status.COMPLETED
    assert watched.happened == (2, 1, 4)
    assert 0 < asked == watched.fired.count((kind, True))


def test_without_a_question_each_row_fires_in_its_order() -> None:
    """Control: nothing is asked, the graph ends at once, and every event of the page has fired."""
    watched = Watched(None)

    assert watched.graph("go").status is Status.COMPLETED
    assert (watched.happened, {kind for kind, _ in watched.fired}) == ((2, 1, 4), set(EVENTS))
    model = ["BeforeModelCallEvent", "AfterModelCallEvent", "MessageAddedEvent"]
    call = ["BeforeToolsEvent", "BeforeToolCallEvent", "AfterToolCallEvent", "AfterToolsEvent"]
    begin = [
        "BeforeGraphEvent",
        "BeforeNodeCallEvent",
        "BeforeInvocationEvent",
        "MessageAddedEvent",
    ]
    end = ["AfterInvocationEvent", "AfterNodeCallEvent", "AfterGraphEvent"]
    assert [kind for kind, _ in watched.fired] == [
        *begin,
        *model,
        *call,
        "MessageAddedEvent",
        *model,
        *end,
    ]


def test_every_row_of_the_page_is_tested() -> None:
    """A new event needs a row, and a row needs its line here."""
    assert set(HELD_BACK) == set(EVENTS)
