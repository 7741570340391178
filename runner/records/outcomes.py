"""Outcomes of one execution of a node.

An executor never writes to the store: it returns an outcome, which the engine applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.records import failures
from runner.records.checkpoints import Remembered, Saved
from runner.records.codec import JSON, LazyValue
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The node has completed. `result` is packed and becomes NodeResult.result, `output` is its plain
    JSON form and the input of the next nodes, both lazy where the node passes a large value on; `saved` is
    for a later visit (an agent's memory), `session` for later runs.
    """

    result: JSON | LazyValue
    output: JSON | LazyValue
    usage: dict[str, int] = field(default_factory=dict)
    saved: Saved | None = None
    session: Remembered | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The node has failed. With `final` no retry policy applies.

    `raised` is what its own code has raised in this process, as monitors want it. It is None where the node
    failed with a run inside it or an external task, which is reported there, or by what a person decided.
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


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The node waits for a person: `interrupts` are all open questions, `saved` is what resumes it.

    With `keeps`, questions that were open when the node was claimed stay open, listed or not. With `awaits`
    it also waits for the answer to a question of that visit.
    """

    interrupts: list[Interrupt]
    saved: Saved | None = None
    usage: dict[str, int] = field(default_factory=dict)
    keeps: bool = False
    awaits: str = ""


@dataclass(frozen=True, slots=True)
class Delegated:
    """The node is a graph: a child run executes it, and its end makes the node ready. A lazy task is passed
    on as it is stored.
    """

    task: JSON | LazyValue


@dataclass(frozen=True, slots=True)
class Expanded:
    """The node is a map: it waits for its items (packed); with None for those that this visit already has."""

    items: list[JSON] | None


@dataclass(frozen=True, slots=True)
class ExternalTask:
    """An external system executes the node under the id `reference`; `send` submits it once the node waits.

    `send` may be called again with the same id. An exception of it is logged, and it is called again later.
    """

    reference: str
    send: Callable[[], None]
    description: str = ""
    """The task for whoever asks what the node waits for, such as "task shop.charge on queue shop"."""


Outcome = Succeeded | Failed | Interrupted | Delegated | Expanded | ExternalTask
