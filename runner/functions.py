"""Functions as nodes: one context in, JSON data or a pydantic model out; `typed` adds checked data.

A function runs again from its top when it is resumed; answers it has are returned by
`interrupt()`, and results of `once()` are returned without running again.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from runner import codec, failures, inputs, loops, typed
from runner.asking import Asker
from runner.errors import InterruptRaised, LeaseLost, RunnerError, RunStopped, UsageError
from runner.interrupts import Interrupt
from runner.maps import index_of
from runner.outcomes import Failed, Interrupted, Outcome, Saved, Succeeded, Visit


class NodeContext:
    """What a function node knows of its run, and how it asks, remembers and reports.

    `task` is what the run was started with, of a map's item the item. `inputs` has the outputs of the
    nodes before by node id, `invocation_state` what the run was given beside its task. `run_id`,
    `graph_id`, `node_id`, `visit` and `attempt` say where it is; `item_index` is None outside of maps.
    """

    def __init__(self, visit: Visit) -> None:
        """Wrap one visit; made by the engine, not by users."""
        self._visit = visit
        self._asker = Asker(visit.address, "function", answers=visit.answers, repeat=True)
        document = visit.document or {}
        ours = document.get("visit") == visit.address.visit
        self._once: dict[str, Any] = dict(document["once"]) if ours else {}
        self._lock = threading.Lock()
        self.task: Any = visit.task
        self.inputs: dict[str, Any] = {item.node_id: item.output for item in visit.inputs}
        self.invocation_state: dict[str, Any] = visit.invocation_state
        self.run_id: str = visit.address.run_id
        self.node_id: str = visit.address.node_id
        self.graph_id: str = visit.graph_id
        self.visit: int = visit.address.visit
        self.attempt: int = visit.attempt
        self.item_index: int | None = index_of(visit.address.node_id)

    @property
    def input_text(self) -> str:
        """The task and the outputs of the nodes before, as one text in edge order."""
        return inputs.text(self.task, self._visit.inputs)

    @property
    def idempotency_key(self) -> str:
        """The same text at every start of this visit: give it to services that take one."""
        return self._visit.idempotency_key

    def interrupt(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        *,
        response_schema: object = None,
        assignees: Sequence[str] | None = None,
        expires_in: float | None = None,
        on_expire: object = None,
        remind_every: float | None = None,
        remind_after: Sequence[float] | None = None,
    ) -> Any:
        """Ask a person, or return the answer: the first call ends this execution, a later one returns.

        `response` answers at once, unless a person has. `expires_in` is in seconds; then `on_expire`
        holds: "reject" (the default: InterruptExpired is raised here), {"response": value}, "fail" (the
        node fails) or {"route": node} (the node ends, and an edge for that leads on). People are reminded
        every `remind_every` seconds, or when those in `remind_after` have passed since the question.

        Raises:
            UsageError: an argument can't be used. UnstorableError: the reason can't be stored.
            InterruptExpired: nobody answered in time.
        """
        self.check()
        return self._asker.ask(
            name,
            reason,
            response,
            response_schema=response_schema,
            assignees=assignees,
            expires_in=expires_in,
            on_expire=on_expire,
            remind_every=remind_every,
            remind_after=remind_after,
        )

    def once(self, key: str, fn: Callable[[], Any], *, on_unknown: str = "repeat") -> Any:
        """Run `fn` until one result of it is recorded in this visit, and never after that.

        A crash between the effect and the record repeats it, with the same idempotency key. With
        `on_unknown="raise"` the intent is recorded first, and a crash in between raises instead. An
        async function that gives an async `fn` awaits what this returns.

        Raises:
            RunnerError: with on_unknown="raise", an earlier start left no result.
            UnstorableError: the result can't be stored.
        """
        self.check()
        if on_unknown not in ("repeat", "raise"):
            raise UsageError(f"once({key!r}): on_unknown is 'repeat' or 'raise', not {on_unknown!r}.")
        if inspect.iscoroutinefunction(fn) and loops.is_running():
            return self._once_async(key, fn, on_unknown)
        if self._begins(key, on_unknown):
            try:
                self._finish(key, _awaited(fn()))
            except InterruptRaised:
                self._forget(key)
                raise
        return self._recall(key)

    async def _once_async(self, key: str, fn: Callable[[], Awaitable[Any]], on_unknown: str) -> Any:
        if await loops.in_thread(self._begins, key, on_unknown):
            try:
                await loops.in_thread(self._finish, key, await fn())
            except InterruptRaised:
                await loops.in_thread(self._forget, key)
                raise
        return self._recall(key)

    def _begins(self, key: str, on_unknown: str) -> bool:
        if key not in self._once and on_unknown == "raise":
            self._record(key, {"begun": True})
            return True
        return key not in self._once

    def _finish(self, key: str, result: object) -> None:
        self._record(key, {"result": codec.pack(result, f"the result of once({key!r})")})

    def _forget(self, key: str) -> None:
        """A question ended it: it is known to be unfinished, and begins again with the answer."""
        if key in self._once:
            self._record(key, None)

    def _recall(self, key: str) -> Any:
        entry = self._once[key]
        if "result" in entry:
            return codec.unpack(entry["result"])
        raise RunnerError(
            f"once({key!r}) was started before and left no result: it may or may not have happened. "
            "Look at the service, then start the run again or answer for it by hand."
        )

    def _record(self, key: str, entry: dict[str, Any] | None) -> None:
        with self._lock:
            kept = {other: known for other, known in self._once.items() if other != key}
            self._once = kept if entry is None else {**kept, key: entry}
            self._visit.save(self.saved())

    def saved(self) -> Saved:
        """What this function keeps across pauses."""
        return Saved({"v": 1, "visit": self.visit, "once": self._once})

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far this node is, from 0 to 1, to whoever watches the run."""
        self.check()
        self._visit.emit("progress", {"fraction": float(fraction), "note": note})

    def check(self) -> None:
        """Stop here when this node is no longer ours; call it in long loops, the other methods do.

        Raises:
            LeaseLost: another worker goes on. RunStopped: the run was cancelled. NodeTimedOut: the node
                is past its timeout.
        """
        self._visit.check()

    @property
    def asked(self) -> list[Interrupt]:
        """Questions of this execution that have no answer yet."""
        return self._asker.asked


def _awaited(result: Any) -> Any:
    return loops.run(_wait(result)) if inspect.isawaitable(result) else result


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


class FunctionNode:
    """The executor for a function, sync or async."""

    kind = typed.KIND

    def __init__(self, function: Callable[..., Any], form: typed.Form) -> None:
        """Wrap a function; `form` says how it is called. Made by `function_node`."""
        self.function, self.form = function, form

    def execute(self, visit: Visit) -> Outcome:
        """Run the function once; what it raises is its failure."""
        context = NodeContext(visit)
        try:
            result = _awaited(self.form.call(context, visit))
            ended: Outcome = Succeeded(*self.form.stored(result, visit))
        except (LeaseLost, RunStopped, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if not context.asked and not isinstance(error, Exception):
                raise
            ended = Failed(failures.record(error))
        # Code that swallows, wraps or replaces the exception of a question can't lose the question.
        return Interrupted(context.asked, context.saved()) if context.asked else ended


def function_node(function: object) -> FunctionNode | None:
    """Wrap a function of one NodeContext, or of data with a type and perhaps the context; None for others.

    Raises:
        DefinitionError: it has types that can't be checked.
    """
    form = typed.form(function, NodeContext)
    return FunctionNode(function, form) if form is not None and callable(function) else None
