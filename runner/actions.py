"""What a transition asks its store to do besides writing records, in the same atomic step."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from runner.events import EventKind

END = "@end"
"""Where the doorbell of an ended run rings that has somebody to tell: its visit is which end it is."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Ring the queue for a node that is ready; `attempt` tells a stale doorbell from this one."""

    node: str
    visit: int
    attempt: int
    queue: str
    priority: int


class TimerKind(enum.StrEnum):
    """What time does: each kind has one entry per node, interrupt or run.

    A node's entry says, by its status, to ring again, to try again, or that its lease has run out; a
    map's, that it has more items to begin or to cancel than one step takes; a callback's, that nobody was
    told yet of the run's end.
    """

    NODE = "node"
    EXPIRE = "expire"
    REMIND = "remind"
    DRAIN = "drain"
    DEADLINE = "deadline"
    MAP = "map"
    CALLBACK = "callback"


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Do something at `at` (milliseconds of the store's clock); replaces an earlier entry."""

    kind: TimerKind
    key: str
    at: int


@dataclass(frozen=True, slots=True)
class DropTimer:
    """Forget a timer; one that is gone already is no error."""

    kind: TimerKind
    key: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Add an event to the run's stream, and to the notices where its kind is one of those."""

    kind: EventKind
    node: str = ""
    visit: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """Give a question its final state, "expired" or "withdrawn"."""

    interrupt_id: str
    status: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """A question's time is over and its node ends with it: write what that leaves behind.

    See `expiry.py`; `edges` are those that the node takes, "" when it fails.
    """

    node: str
    visit: int
    interrupt_id: str
    edges: str


@dataclass(frozen=True, slots=True)
class TellParent:
    """The run's status changed and it is a child: its parent's node must know."""

    status: str


@dataclass(frozen=True, slots=True)
class StopChild:
    """A run that stops has a child run below `node`: cancel that, too, and look there no more."""

    run_id: str
    node: str


@dataclass(frozen=True, slots=True)
class Bury:
    """A node killed every worker that took it: write its error and a dead letter."""

    node: str
    visit: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """The next execution of a rate may begin at `at` (ms)."""

    key: str
    at: int


@dataclass(frozen=True, slots=True)
class Take:
    """A node has a place of a limit: until it leaves it, or until `until` (ms) if it is only kept for it."""

    key: str
    node: str
    until: int | None


@dataclass(frozen=True, slots=True)
class Queue:
    """A node found no place: it stands in the queue of those that ask since `since` (ms) and later."""

    key: str
    node: str
    since: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A node gives its place in a limit or its queue back; a place goes on as by `PassOn`."""

    key: str
    node: str
    concurrency: int


@dataclass(frozen=True, slots=True)
class PassOn:
    """Keep the free places of a limit for the first in its queue, for a lease's time, and ring them."""

    key: str
    concurrency: int


PlaceAction = Reserve | Take | Queue | Leave | PassOn
"""What is done to limits, which many runs share."""

Action = (
    Bury
    | Conclude
    | Dispatch
    | SetTimer
    | DropTimer
    | Announce
    | Close
    | TellParent
    | StopChild
    | PlaceAction
)
