"""Hook events, the registry of callbacks, and the one place where events are fired.

A callback may change an event's writable attributes, and ask a person by `event.interrupt(...)`.
Every pass runs all callbacks and collects every question; an error of a callback ends the invocation.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, Unpack, runtime_checkable

from runner import async_loop
from runner.errors import DefinitionError, InterruptRaised, UsageError
from runner.records.asking import Asker, typed_interrupt
from runner.records.interrupts import Interrupt, InterruptOptions

Callback = Callable[[Any], Any]


@dataclass(kw_only=True)
class HookEvent:
    """An event, before or after; `is_replay`: callbacks saw it before; `attempt` counts calls."""

    writable: ClassVar[frozenset[str]] = frozenset()
    reverse: ClassVar[bool] = False

    invocation_state: dict[str, Any] = field(default_factory=dict)
    is_replay: bool = False
    attempt: int = 1
    asker: Asker | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Seal the event: from now on only writable attributes may change."""
        object.__setattr__(self, "_sealed", True)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to change an attribute that the event doesn't declare writable."""
        if name not in self.writable and "_sealed" in self.__dict__:
            raise AttributeError(f"Property {name} is not writable")
        super().__setattr__(name, value)

    @typed_interrupt
    def interrupt(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        **options: Unpack[InterruptOptions],
    ) -> Any:
        """Ask a person and return the answer; `response` is an answer given in advance.

        The options are the same as in `NodeContext.interrupt`, such as response_schema, assignees,
        expires_in, on_expire, remind_every and remind_after.

        Raises:
            UsageError: the question can't be asked as it is; this ends the invocation.
        """
        if self.asker is None:
            raise UsageError(
                "this event was not fired by an agent or a graph, so it can't ask a person."
            )
        return self.asker.ask(name, reason, response, **options)


_Kind = TypeVar("_Kind", bound=HookEvent)


@dataclass(kw_only=True)
class AgentEvent(HookEvent):
    """An event of an agent; `agent` shows its name, state and messages."""

    agent: Any = None


@dataclass(kw_only=True)
class BeforeInvocationEvent(AgentEvent):
    """An agent begins or continues; `messages` is the new input, empty if it continues."""

    writable = frozenset({"messages", "cancel"})
    messages: list[dict[str, Any]] = field(default_factory=list)
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterInvocationEvent(AgentEvent):
    """An agent ends or stops to wait; set `resume` to an input or answers to continue at once."""

    writable = frozenset({"resume"})
    reverse = True
    result: Any = None
    resume: Any = None


@dataclass(kw_only=True)
class MessageAddedEvent(AgentEvent):
    """A message was added to the conversation."""

    message: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class BeforeModelCallEvent(AgentEvent):
    """The model is about to be called; `cancel` ends the invocation with that text instead."""

    writable = frozenset({"cancel"})
    cancel: bool | str = False


@dataclass(frozen=True)
class ModelStopResponse:
    """Reply of the model, and the reason why it stopped."""

    message: dict[str, Any]
    stop_reason: str


@dataclass(kw_only=True)
class AfterModelCallEvent(AgentEvent):
    """The model replied or raised; `retry` throws the reply away and calls it again."""

    writable = frozenset({"retry"})
    reverse = True
    stop_response: ModelStopResponse | None = None
    exception: BaseException | None = None
    retry: bool = False


@dataclass(kw_only=True)
class BeforeToolsEvent(AgentEvent):
    """A batch of tool calls is about to run; `message` holds those calls, `cancel` refuses them all."""

    writable = frozenset({"cancel"})
    message: dict[str, Any] = field(default_factory=dict)
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterToolsEvent(AgentEvent):
    """A batch ended; `message` holds the final results, `end_turn` ends the invocation with a text."""

    writable = frozenset({"end_turn"})
    reverse = True
    message: dict[str, Any] = field(default_factory=dict)
    end_turn: bool | str | list[dict[str, Any]] = False


@dataclass(kw_only=True)
class BeforeToolCallEvent(AgentEvent):
    """One tool call is about to run; it may be changed, given to another tool or cancelled."""

    writable = frozenset({"cancel_tool", "selected_tool", "tool_use"})
    selected_tool: Any = None
    tool_use: dict[str, Any] = field(default_factory=dict)
    cancel_tool: bool | str = False


@dataclass(kw_only=True)
class AfterToolCallEvent(AgentEvent):
    """One tool call succeeded, raised `exception`, was cancelled (`cancel_message`) or had no tool.

    `result` may be replaced. `retry` runs the call once more; a cancelled call is run only with
    `retry_cancelled`. `duration` is in seconds.
    """

    writable = frozenset({"result", "retry", "retry_cancelled"})
    reverse = True
    selected_tool: Any = None
    tool_use: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    exception: BaseException | None = None
    cancel_message: str | None = None
    duration: float | None = None
    retry: bool = False
    retry_cancelled: bool = False


@dataclass(kw_only=True)
class GraphEvent(HookEvent):
    """An event of a graph; `source` is the graph."""

    source: Any = None


@dataclass(kw_only=True)
class BeforeNodeCallEvent(GraphEvent):
    """A node is about to run; `cancel_node` fails it with that text instead."""

    writable = frozenset({"cancel_node"})
    node_id: str = ""
    cancel_node: bool | str = False


@dataclass(kw_only=True)
class AfterNodeCallEvent(GraphEvent):
    """A node ended; `result` is its tentative result."""

    reverse = True
    node_id: str = ""
    result: Any = None


@dataclass(kw_only=True)
class BeforeGraphEvent(GraphEvent):
    """A run of the graph begins."""

    task: Any = None


@dataclass(kw_only=True)
class AfterGraphEvent(GraphEvent):
    """A run of the graph ended; `result` is its result."""

    reverse = True
    result: Any = None


@runtime_checkable
class HookProvider(Protocol):
    """An object that registers its own callbacks."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Add the callbacks to the registry."""


class HookRegistry:
    """Callbacks by event: low `order` first, then as registered; After events reverse equal orders."""

    def __init__(self, providers: Sequence[HookProvider] = ()) -> None:
        self._entries: list[tuple[int, type[HookEvent], Callback]] = []
        for provider in providers:
            self.add_hook(provider)

    def add_callback(
        self, event_type: type[_Kind], callback: Callable[[_Kind], Any], *, order: int = 0
    ) -> None:
        """Call `callback(event)`, sync or async, at each event of this type or a subtype of it.

        Raises:
            DefinitionError: the type isn't an event, or the callback can't be called.
        """
        if not (isinstance(event_type, type) and issubclass(event_type, HookEvent)):
            raise DefinitionError(f"{event_type!r} is not an event type of runner.hooks.")
        if not callable(callback):
            raise DefinitionError(f"the callback for {event_type.__name__} can't be called.")
        self._entries.append((order, event_type, callback))

    def add_hook(self, provider: HookProvider) -> None:
        """Add the callbacks of a provider.

        Raises:
            DefinitionError: it has no `register_hooks`.
        """
        if not isinstance(provider, HookProvider):
            raise DefinitionError(f"{provider!r} has no register_hooks(registry, **kwargs).")
        provider.register_hooks(self)

    def callbacks_for(self, event_type: type[HookEvent]) -> list[Callback]:
        """List the callbacks in the order they run."""
        if not self._entries:
            return []
        entries = [entry for entry in self._entries if issubclass(event_type, entry[1])]
        if event_type.reverse:
            entries.reverse()
        return [callback for _, _, callback in sorted(entries, key=lambda entry: entry[0])]


async def fire(
    event: HookEvent, callbacks: Sequence[Callback], lock: asyncio.Lock | None = None
) -> list[Interrupt]:
    """Run all callbacks on an event and return the questions that have no answer yet.

    A sync callback runs on a thread, so that a blocking callback holds up nothing else; with `lock`
    only one runs at a time. An error of a callback is raised.
    """
    for callback in callbacks:
        await _call(callback, event, lock)
        refusal = event.asker and (event.asker.mismatch or event.asker.refused)
        if refusal:
            raise refusal
    return [] if event.asker is None else event.asker.asked


async def _call(callback: Callback, event: HookEvent, lock: asyncio.Lock | None) -> None:
    # The one place where a hook's InterruptRaised is caught: the asker remembers the question.
    try:
        if inspect.iscoroutinefunction(callback):
            await callback(event)
            return
        async with lock or asyncio.Lock():
            outcome = await async_loop.in_thread(callback, event)
        if inspect.isawaitable(outcome):
            await outcome
    except InterruptRaised:
        return
