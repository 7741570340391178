"""Functions as nodes: one context in, JSON data or a pydantic model out.

A function runs again from its top when it is resumed; answers it has are returned by
`interrupt()`, and results of `once()` are returned without running again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from runner import codec, failures, inputs, loops
from runner.asking import Asker
from runner.errors import ConflictError, InterruptRaised, RunnerError
from runner.interrupts import Interrupt
from runner.outcomes import Failed, Interrupted, Outcome, Saved, Succeeded, Visit

NodeFunction = Callable[["NodeContext"], Any]


class NodeContext:
    """What a function node knows of its run, and how it asks, remembers and reports."""

    def __init__(self, visit: Visit) -> None:
        """Wrap one visit; made by the engine, not by users."""
        self._visit = visit
        self._asker = Asker(visit.address, "function", answers=visit.answers, repeat=True)
        document = visit.document or {}
        ours = document.get("visit") == visit.address.visit
        self._once: dict[str, Any] = dict(document["once"]) if ours else {}
        self.task: Any = visit.task
        self.inputs: dict[str, Any] = {item.node_id: item.output for item in visit.inputs}
        self.invocation_state: dict[str, Any] = visit.invocation_state
        self.run_id: str = visit.address.run_id
        self.node_id: str = visit.address.node_id
        self.graph_id: str = visit.graph_id
        self.visit: int = visit.address.visit
        self.attempt: int = visit.attempt

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
    ) -> Any:
        """Ask a person, or return the answer: the first call ends this execution, a later one returns.

        `response` answers at once, unless a person has. `expires_in` is in seconds; then `on_expire`
        holds: "reject" (the default: InterruptExpired is raised here) or {"response": value}.

        Raises:
            UsageError: the name is empty. UnstorableError: the reason can't be stored.
            InterruptExpired: nobody answered in time.
        """
        return self._asker.ask(
            name,
            reason,
            response,
            response_schema=response_schema,
            assignees=assignees,
            expires_in=expires_in,
            on_expire=on_expire,
        )

    def once(self, key: str, fn: Callable[[], Any], *, on_unknown: str = "repeat") -> Any:
        """Run `fn` until one result of it is recorded in this visit, and never after that.

        A crash between the effect and the record repeats it, with the same idempotency key. With
        `on_unknown="raise"` the intent is recorded first, and a crash in between raises instead.

        Raises:
            RunnerError: with on_unknown="raise", an earlier start left no result.
            UnstorableError: the result can't be stored.
        """
        if key in self._once:
            return self._recall(key)
        if on_unknown == "raise":
            self._remember(key, {"begun": True})
        result = fn()
        if inspect.isawaitable(result):
            result = loops.run(_finish(result))
        self._remember(key, {"result": codec.pack(result, f"the result of once({key!r})")})
        return self._recall(key)

    def _recall(self, key: str) -> Any:
        entry = self._once[key]
        if "result" in entry:
            return codec.unpack(entry["result"])
        raise RunnerError(
            f"once({key!r}) was started before and left no result: it may or may not have happened. "
            "Look at the service, then start the run again or answer for it by hand."
        )

    def _remember(self, key: str, entry: dict[str, Any]) -> None:
        self._once = {**self._once, key: entry}
        self._visit.save(self.saved())

    def saved(self) -> Saved:
        """What this function keeps across pauses."""
        return Saved({"v": 1, "visit": self.visit, "once": self._once})

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far this node is, from 0 to 1, to whoever watches the run."""
        self._visit.emit("progress", {"fraction": float(fraction), "note": note})

    def check(self) -> None:
        """Stop here when the lease was lost or the run was cancelled; call it in long loops.

        Raises:
            LeaseLost: another worker goes on. RunStopped: the run was cancelled.
        """
        self._visit.check()

    @property
    def asked(self) -> list[Interrupt]:
        """Questions of this execution that have no answer yet."""
        return self._asker.asked


async def _finish(result: Awaitable[Any]) -> Any:
    return await result


class FunctionNode:
    """The executor for a function, sync or async."""

    kind = "function"

    def __init__(self, function: NodeFunction) -> None:
        """Wrap a function that takes one NodeContext."""
        self.function = function

    def execute(self, visit: Visit) -> Outcome:
        """Run the function once; what it raises is its failure."""
        context = NodeContext(visit)
        try:
            result = self._call(context)
            # A bare `except` in the function may have swallowed a question: it still counts.
            if not context.asked:
                return Succeeded(codec.pack(result, "result"), codec.plain(result))
        except InterruptRaised:
            return Interrupted(context.asked, context.saved())
        except ConflictError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is its failure
            return Failed(failures.record(error))
        return Interrupted(context.asked, context.saved())

    def _call(self, context: NodeContext) -> Any:
        result = self.function(context)
        if inspect.isawaitable(result):
            return loops.run(_finish(result))
        return result


def takes_context(function: object) -> bool:
    """Tell whether a callable can be given one NodeContext."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
        signature.bind(None)
    except (TypeError, ValueError):
        return False
    return True
