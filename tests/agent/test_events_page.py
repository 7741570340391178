"""The page about events says what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from runner import Agent, GraphBuilder, Status, hooks, tool
from runner.testing import ScriptedModel

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "events.md"
PARENTS = {"HookEvent", "AgentEvent", "GraphEvent"}
EVENTS = {name: kind for name, kind in vars(hooks).items() if name.endswith("Event") and name not in PARENTS}


def test_the_tables_list_every_event_with_its_writable_attributes_and_direction() -> None:
    """Each event has one row; what the row calls writable or reversed is so."""
    rows = re.findall(r"^\| `(\w+Event)` (↩ )?\|([^|]*)\|([^|]*)\|", PAGE.read_text("utf-8"), re.MULTILINE)
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
    "AfterNodeCallEvent": (2, 1, 2),  # the last messages lie with the result, which isn't final yet
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
        result = watched.graph([{"interruptResponse": {"interruptId": question.id, "response": asked}}])

    assert result.status is Status.COMPLETED
    assert watched.happened == (2, 1, 4)
    assert 0 < asked == watched.fired.count((kind, True))


def test_without_a_question_each_row_fires_in_its_order() -> None:
    """Control: nobody asks, the graph ends at once, and every event of the page has fired."""
    watched = Watched(None)

    assert watched.graph("go").status is Status.COMPLETED
    assert (watched.happened, {kind for kind, _ in watched.fired}) == ((2, 1, 4), set(EVENTS))
    model = ["BeforeModelCallEvent", "AfterModelCallEvent", "MessageAddedEvent"]
    call = ["BeforeToolsEvent", "BeforeToolCallEvent", "AfterToolCallEvent", "AfterToolsEvent"]
    begin = ["BeforeGraphEvent", "BeforeNodeCallEvent", "BeforeInvocationEvent", "MessageAddedEvent"]
    end = ["AfterInvocationEvent", "AfterNodeCallEvent", "AfterGraphEvent"]
    assert [kind for kind, _ in watched.fired] == [*begin, *model, *call, "MessageAddedEvent", *model, *end]


def test_every_row_of_the_page_is_tested() -> None:
    """A new event needs a row, and a row needs its line here."""
    assert set(HELD_BACK) == set(EVENTS)
