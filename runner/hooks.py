"""Hook events, the registry of callbacks, and the one place where events are fired.

A callback may change an event's writable attributes, and ask a person by `event.interrupt(...)`.
Every pass runs all callbacks and collects every question; an error of a callback ends the invocation.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import (
    Any,
    ClassVar,
    Generic,
    Protocol,
    Union,
    Unpack,
    get_args,
    get_origin,
    runtime_checkable,
)

from typing_extensions import TypeVar

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
        return self.asker.decide(name, reason, response, **options)[0]


_Kind = TypeVar("_Kind", bound=HookEvent)
_Agent = TypeVar("_Agent", default=Any)


@dataclass(kw_only=True)
class AgentEvent(HookEvent, Generic[_Agent]):
    """An event of an agent; `agent` shows its name, state and messages.

    `AfterToolCallEvent[MyAgent]` means the same as `AfterToolCallEvent`.
    """

    agent: Any = None


@dataclass(kw_only=True)
class BeforeInvocationEvent(AgentEvent[_Agent]):
    """An agent begins or continues; `messages` is the new input, empty if it continues."""

    writable = frozenset({"messages", "cancel"})
    messages: list[dict[str, Any]] = field(default_factory=list)
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterInvocationEvent(AgentEvent[_Agent]):
    """An agent ends or stops to wait; set `resume` to an input or answers to continue at once."""

    writable = frozenset({"resume"})
    reverse = True
    result: Any = None
    resume: Any = None


@dataclass(kw_only=True)
class MessageAddedEvent(AgentEvent[_Agent]):
    """A message was added to the conversation."""

    message: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class BeforeModelCallEvent(AgentEvent[_Agent]):
    """The model is about to be called; `cancel` ends the invocation with that text instead."""

    writable = frozenset({"cancel"})
    cancel: bool | str = False


@dataclass(frozen=True)
class ModelStopResponse:
    """Reply of the model, and the reason why it stopped."""

    message: dict[str, Any]
    stop_reason: str


@dataclass(kw_only=True)
class AfterModelCallEvent(AgentEvent[_Agent]):
    """The model replied or raised; `retry` throws the reply away and calls it again."""

    writable = frozenset({"retry"})
    reverse = True
    stop_response: ModelStopResponse | None = None
    exception: BaseException | None = None
    retry: bool = False


@dataclass(kw_only=True)
class BeforeToolsEvent(AgentEvent[_Agent]):
    """A batch of tool calls is about to run; `message` holds those calls, `cancel` refuses them all."""

    writable = frozenset({"cancel"})
    message: dict[str, Any] = field(default_factory=dict)
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterToolsEvent(AgentEvent[_Agent]):
    """A batch ended; `message` holds the final results, `end_turn` ends the invocation with a text."""

    writable = frozenset({"end_turn"})
    reverse = True
    message: dict[str, Any] = field(default_factory=dict)
    end_turn: bool | str | list[dict[str, Any]] = False


@dataclass(kw_only=True)
class BeforeToolCallEvent(AgentEvent[_Agent]):
    """One tool call is about to run; it may be changed, given to another tool or cancelled."""

    writable = frozenset({"cancel_tool", "selected_tool", "tool_use"})
    selected_tool: Any = None
    tool_use: dict[str, Any] = field(default_factory=dict)
    cancel_tool: bool | str = False


@dataclass(kw_only=True)
class AfterToolCallEvent(AgentEvent[_Agent]):
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

    def __init__(self, hooks: Sequence[HookProvider | Callback] = ()) -> None:
        self._entries: list[tuple[int, tuple[type[HookEvent], ...], Callback]] = []
        for hook in hooks:
            self.add_hook(hook)

    def add_callback(
        self,
        event_type: type[_Kind] | Sequence[type[_Kind]] | Callable[[_Kind], Any] | None,
        callback: Callable[[_Kind], Any] | None = None,
        *,
        order: int = 0,
    ) -> None:
        """Call `callback(event)`, sync or async, at each event of a type or a subtype of it.

        A list gives several types. Without a type, as in `add_callback(callback)`, the annotation
        of the callback's parameter is the type, or a union of types.

        Raises:
            DefinitionError: a type isn't an event, or the callback can't be called.
        """
        if callback is None and not isinstance(event_type, (type, Sequence)):
            event_type, callback = None, event_type
        if not callable(callback):
            raise DefinitionError(f"the callback {callback!r} can't be called.")
        event_types = _annotated(callback) if event_type is None else event_type
        listed = event_types if isinstance(event_types, Sequence) else (event_types,)
        kinds = tuple(get_origin(kind) or kind for kind in listed)
        for kind in kinds or (None,):
            if not (isinstance(kind, type) and issubclass(kind, HookEvent)):
                raise DefinitionError(
                    f"{kind!r} is not an event type of runner.hooks: annotate the parameter of {callback!r} "
                    "with one, or give it as the event type."
                )
        self._entries.append((order, kinds, callback))

    def add_hook(self, hook: HookProvider | Callback) -> None:
        """Add the callbacks of a provider, or a callback whose annotation names its event.

        Raises:
            DefinitionError: it has no `register_hooks`, and isn't such a callback.
        """
        if isinstance(hook, HookProvider):
            hook.register_hooks(self)
        elif callable(hook):
            self.add_callback(hook)
        else:
            raise DefinitionError(f"{hook!r} has no register_hooks(registry, **kwargs).")

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Add the callbacks of this registry to another one."""
        del kwargs
        registry._entries.extend(self._entries)

    def callbacks_for(self, event_type: type[HookEvent]) -> list[Callback]:
        """List the callbacks in the order they run."""
        if not self._entries:
            return []
        entries = [entry for entry in self._entries if issubclass(event_type, entry[1])]
        if event_type.reverse:
            entries.reverse()
        return [callback for _, _, callback in sorted(entries, key=lambda entry: entry[0])]


def _annotated(callback: Callback) -> tuple[Any, ...]:
    """Return the types in the annotation of a callback's parameter."""
    try:
        parameters = inspect.signature(callback, eval_str=True).parameters
        hint = next(iter(parameters.values())).annotation
    except Exception:  # noqa: BLE001 - an annotation may be any code
        hint = inspect.Parameter.empty
    if hint is inspect.Parameter.empty:
        return ()
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


async def fire(
    event: HookEvent, callbacks: Sequence[Callback], lock: asyncio.Lock | None = None
) -> list[Interrupt]:
    """Run all callbacks on an event and return the questions that have no answer yet.

    A sync callback runs on a thread; with `lock` only one runs at a time. An error of a callback is
    raised.
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
