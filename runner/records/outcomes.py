"""Outcomes of one execution of a node.

An executor doesn't write its outcome to the store: it returns it, and the engine applies it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from runner.immutable import immutable
from runner.records import failures
from runner.records.checkpoints import Saved, SessionUpdate
from runner.records.codec import JSON, LazyValue
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt


@immutable
class Succeeded:
    """The node has completed. `result` is packed and becomes NodeResult.result; `output` is its
    plain JSON form and the input of the next nodes. Both are lazy if the node passes a large value
    on. `saved` is for a later visit (an agent's memory), `session` for later runs. `skipped` is the
    person who gave the output of a node that didn't run.
    """

    result: JSON | LazyValue
    output: JSON | LazyValue
    usage: dict[str, int] = field(default_factory=dict)
    saved: Saved | None = None
    session: SessionUpdate | None = None
    skipped: str = ""


@immutable
class Failed:
    """The node has failed. With `final` no retry policy applies.

    `raised` is the exception that the node's code raised in this process, for monitors. It is None
    if the node failed by a child run or an external task, which is reported there, or by a person's
    decision.
    """

    error: ErrorRecord
    saved: Saved | None = None
    usage: dict[str, int] = field(default_factory=dict)
    final: bool = False
    raised: BaseException | None = field(default=None, compare=False)

    @classmethod
    def of(cls, error: BaseException, **options: Any) -> Failed:
        """Return the failure of a node that has raised an exception."""
        return cls(failures.record(error), raised=error, **options)


@immutable
class Interrupted:
    """The node waits for a person: `interrupts` are all open questions; it resumes from `saved`.

    With `keeps`, questions that were open when the node was claimed stay open, listed or not. With
    `awaits` it also waits for the answer to a question of that visit.
    """

    interrupts: list[Interrupt]
    saved: Saved | None = None
    usage: dict[str, int] = field(default_factory=dict)
    keeps: bool = False
    awaits: str = ""


@immutable
class Delegated:
    """The node is a graph: a child run executes it, and the end of that run makes the node ready. A
    lazy task is passed on as it is stored.
    """

    task: JSON | LazyValue


@immutable
class Expanded:
    """The node is a map: it waits for its items (packed), or with None for those it already has."""

    items: list[JSON] | None


@immutable
class ExternalTask:
    """An external system executes the node under the id `reference`; `send` submits it once the node waits.

    `send` may be called again with the same id. If it raises, the error is logged and it is called
    again later.
    """

    reference: str
    send: Callable[[], None]
    description: str = ""
    """The task for whoever asks what the node waits for, such as "task shop.charge on queue shop"."""


Outcome = Succeeded | Failed | Interrupted | Delegated | Expanded | ExternalTask
