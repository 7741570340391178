"""How one execution of a node ends: a value, decided by the executor, applied by the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.failures import ErrorRecord
from runner.interrupts import Address, Interrupt

JSON = Any


@dataclass(frozen=True, slots=True)
class Saved:
    """What a node keeps across a pause: its document, and the messages after the first `keep`.

    `document` is packed JSON data with a field `v`. Messages are stored as deltas: the stored list
    is cut to `keep` and `messages` are appended.
    """

    document: dict[str, JSON]
    keep: int = 0
    messages: list[JSON] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation that outlives its runs: packed messages in order, and packed values by name."""

    messages: list[JSON] = field(default_factory=list)
    state: dict[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a completed visit adds to a session: the node's messages after the first `first`.

    `state` are the values that it changed, `gone` the names that it deleted.
    """

    session_id: str
    first: int
    state: dict[str, JSON] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The node is done. `result` is packed and comes back as NodeResult.result, `output` is its
    plain JSON form and goes to the next nodes; `saved` is kept for a later visit (agents' memory),
    `session` for later runs.
    """

    result: JSON
    output: JSON
    usage: dict[str, int] = field(default_factory=dict)
    saved: Saved | None = None
    session: Remembered | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The node's own code raised. With `final` no retry policy may try again; `alone`, in a graph
    that runs as Strands runs it, ends its branch only.
    """

    error: ErrorRecord
    saved: Saved | None = None
    usage: dict[str, int] = field(default_factory=dict)
    final: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The node waits for a person: `interrupts` are all that are open, `saved` is what resumes it.

    With `keeps` the questions that were open when the node was claimed stay so, named or not.
    """

    interrupts: list[Interrupt]
    saved: Saved | None = None
    usage: dict[str, int] = field(default_factory=dict)
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Delegated:
    """The node is a graph: a child run does its work, and its end wakes the node."""

    task: JSON


@dataclass(frozen=True, slots=True)
class NextBatch:
    """Every node of a batch has settled: `taken` are its completed nodes with a bit per edge out of
    each, `following` the nodes of the next batch with the (node, visit) that are their inputs. With a
    `reason` the run fails instead of opening it.
    """

    taken: Sequence[tuple[str, str]]
    following: Sequence[tuple[str, Sequence[tuple[str, int]]]]
    reason: str = ""
    saved: Saved | None = None


@dataclass(frozen=True, slots=True)
class Expanded:
    """The node is a map: its items, packed, do its work, or with None those it has; their end wakes it."""

    items: list[JSON] | None


@dataclass(frozen=True, slots=True)
class Handed:
    """Another system does the work under the name `reference`; `send` tells it, once the node waits.

    `send` may be called again under the same name; what it raises is logged, and it is called again later.
    """

    reference: str
    send: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Work:
    """The work that a node has handed out in this attempt: `report` is what the system said of it, packed,
    or None; `late` says that it said nothing in time.
    """

    reference: str
    report: JSON = None
    late: bool = False


Outcome = Succeeded | Failed | Interrupted | Delegated | Expanded | Handed | NextBatch


@dataclass(frozen=True, slots=True)
class Input:
    """One live incoming edge: the upstream node, its visit and its output as plain JSON data.

    `lines` show the output to an agent, where they are another text than its own.
    """

    node_id: str
    visit: int
    output: JSON
    lines: Sequence[str] | None = None


class Visit(Protocol):
    """What an executor may know and do during one execution of its node.

    All values given out are plain or unpacked copies; methods that write raise LeaseLost when the
    node now belongs to another worker.
    """

    address: Address
    graph_id: str
    attempt: int
    task: Any
    inputs: Sequence[Input]
    invocation_state: dict[str, Any]
    answers: Mapping[str, Interrupt]
    document: dict[str, JSON] | None
    messages: list[JSON]
    work: Work | None

    @property
    def idempotency_key(self) -> str:
        """The same text for every start of this visit: `run.node.visit`."""

    def save(self, saved: Saved) -> None:
        """Checkpoint: what is saved here is what the next attempt starts with."""

    def ask(self, interrupts: Sequence[Interrupt], saved: Saved) -> None:
        """Publish questions at once, while other work of this node goes on."""

    def recall(self, session_id: str) -> Session:
        """Read a session as completed visits have left it; one that nobody wrote is empty."""

    def emit(self, kind: str, data: Mapping[str, JSON]) -> None:
        """Add an event (progress, text delta …) to the run's events."""

    def check(self) -> None:
        """Raise LeaseLost when the lease is lost, the run is cancelled or the deadline has passed."""


class Executor(Protocol):
    """Anything that can be a node: it runs one execution and says how it ended.

    `execute` must not raise for an error of the node's own code: that is `Failed`. It may block;
    it is called on a thread of its own.
    """

    kind: str

    def execute(self, visit: Visit) -> Outcome:
        """Run the node until it is done, failed or waits for a person."""
