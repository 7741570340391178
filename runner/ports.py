"""What the core needs of the world: a store and a way to ring for work.

A store keeps runs and applies the transitions of `schedule.py`, each atomically. Every writing
call carries a nonce or is idempotent by its state: repeating it after a lost reply changes
nothing and gives the first reply. All times are milliseconds of the store's own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.bounds import Bounded
from runner.graph import Topology
from runner.handing import Handing
from runner.interrupts import Answer, Interrupt, Receipt
from runner.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.migrating import Migrating
from runner.outcomes import NextBatch, Remembered, Saved, Session
from runner.removing import Removing
from runner.run import MapRecord, NodeRecord, Records, Rewrite, RunRecord, Status

JSON = Any

Fetched = tuple[NodeRecord, JSON, dict[str, JSON] | None]
"""A node as it stands, with its latest output and entry."""

EVERY_RUN = RunQuery()
EVERY_QUESTION = InterruptQuery()


@dataclass(frozen=True, slots=True)
class Doorbell:
    """A wake-up: which visit to claim, and the queue to ring it on. It carries no data."""

    run_id: str
    node: str
    visit: int
    attempt: int
    queue: str
    priority: int
    graph_id: str

    @property
    def task_id(self) -> str:
        """The name of the message: `run.node.visit.attempt`."""
        return f"{self.run_id}.{self.node}.{self.visit}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Token:
    """A worker's right to write for one visit: only the newest fence is obeyed."""

    run_id: str
    node: str
    visit: int
    fence: int


@dataclass(frozen=True, slots=True)
class Start:
    """A run to begin. `task`, `given` (invocation state) and `tags` are packed JSON data. With `parent` set
    it is a child run, whose node waits for it; `on_end` names a task to call at its end.
    """

    run_id: str
    graph_id: str
    fingerprint: str | None
    task: JSON
    given: JSON = None
    tags: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    parent: Token | None = None
    root: str = ""
    on_end: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a transition answered: bells to ring, how long a claim is put off, which handed work may stop."""

    word: str
    doorbells: Sequence[Doorbell] = ()
    run_id: str = ""
    delay_ms: int = 0
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed visit and all that it needs; `inputs` are (node, visit, output) in edge order.

    `fingerprint` and `signature` are those of the run's graph and node, `current` was last published under
    its name. An item's `task` is the item; `map` is what became of a map's items, `report` of handed work.
    """

    token: Token
    graph_id: str
    fingerprint: str
    current: str
    signature: str
    record: NodeRecord
    task: JSON
    given: JSON
    inputs: Sequence[tuple[str, int, JSON]]
    answers: Sequence[Interrupt]
    document: JSON | None
    messages: Sequence[JSON]
    child: RunSnapshot | None = None
    map: MapRecord | None = None
    report: JSON = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a visit: status, edge bits, the stored output and entry, what conditions read.

    `entry` is the rest of a NodeResult (packed result or error, usage, times). With `insist` a settle that
    is refused as "changed" makes others wait. `session` is written with it. `alone` failures stop no run.
    """

    status: Status
    edges: str
    output: JSON
    entry: dict[str, JSON]
    saved: Saved | None = None
    reads: Sequence[tuple[str, int, str]] = ()
    insist: bool = False
    session: Remembered | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """A run to begin from what another has done.

    `kept` are the (node, visit) whose results are copied, with their place in the order (below 0; 0: none);
    nodes in `remembers` also keep their documents. The visit `at` is given `input` (packed) as its task.
    """

    start: Start
    source: str
    records: Records
    kept: Mapping[tuple[str, int], int]
    remembers: Sequence[str] = ()
    at: tuple[str, int] | None = None
    input: JSON = None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run; `position` orders them and resumes a reader."""

    position: str
    kind: str
    at: int
    node: str = ""
    visit: int = 0
    detail: str = ""
    data: JSON = None


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A whole run; `outputs` and `entries` are by (node, visit), `events` is the number of its last event.

    `size` is in bytes, with all runs inside it; 0 for one inside another.
    """

    record: RunRecord
    nodes: Mapping[str, NodeRecord]
    task: JSON
    given: JSON
    tags: Mapping[str, str]
    created_at: int
    ended_at: int
    order: Sequence[str]
    outputs: Mapping[tuple[str, int], JSON]
    entries: Mapping[tuple[str, int], dict[str, JSON]]
    interrupts: Sequence[Interrupt]
    messages: Mapping[str, Sequence[JSON]] = field(default_factory=dict)
    maps: Mapping[str, MapRecord] = field(default_factory=dict)
    events: int = 0
    size: int = 0


class Store(Handing, Migrating, Removing, Bounded, Protocol):
    """Where runs live. Raises StoreError when it can't be reached; then nothing has changed."""

    def publish(self, topologies: Sequence[Topology]) -> None:
        """Make graphs known by name; the last one published under a name is the current one."""

    def graphs(self) -> dict[str, str]:
        """Return the fingerprint of every known graph, by name."""

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        """Return the shape of a graph as it was published; None when no run needs it any more."""

    def start(self, start: Start, nonce: str) -> Reply:
        """Begin a run: "started", "exists" (same idempotency key: its run), "unknown_graph"."""

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        """Take a ready visit, or be told "stale", "cancelled", "unknown" or "limited" (it has to wait)."""

    def save(self, token: Token, saved: Saved) -> Reply:
        """Checkpoint a running visit: "saved" or "stale"."""

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        """Publish questions of a running visit at once: "asked", "stopping" or "stale"."""

    def park(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        """Let a visit wait: "waiting", "ready", "cancelled", "nothing_open" or "stale"."""

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        """End a visit: "settled", "changed" (ask conditions again), "locked" (wait a little), "stale"."""

    def advance(self, token: Token, batch: NextBatch, nonce: str) -> Reply:
        """Open the next batch of a run that goes in batches: "advanced" or "stale"."""

    def retry(self, token: Token, delay_ms: int, entry: dict[str, JSON] | None, saved: Saved | None) -> Reply:
        """Run a visit again later; with an `entry` (its error) that is a new attempt."""

    def expand(self, token: Token, items: Sequence[JSON] | None) -> Reply:
        """Let a map wait for items, None for those it has: "expanded", "cancelled", "no_items", "stale"."""

    def answer(self, answers: Sequence[Answer], nonce: str) -> tuple[list[Receipt], Reply]:
        """Apply a set of checked answers: all of them or none."""

    def fork(self, fork: Fork) -> Reply:
        """Begin a run from what another has done: "forked", "unknown" (the other) or "unknown_graph"."""

    def withdraw(self, interrupt_id: str, reason: str, *, reask: bool) -> Reply:
        """Take an open question back: "withdrawn", "closed" (answered, expired or withdrawn) or "unknown"."""

    def cancel(self, run_id: str, reason: str) -> Reply:
        """Stop a run: "cancelled", "already" or "unknown"."""

    def rewrite(self, runs: Sequence[Rewrite], nonce: str) -> Reply:
        """Let ended runs go on, a parent before its children: "reopened" all, "moved" or "unknown" none."""

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        """Extend leases: "ok", "stale", or "cancelled" when somebody cancelled the run."""

    def sweep(self, limit: int = 100) -> Reply:
        """Do what is due; the word is the number of timers handled."""

    def told(self, run_id: str, end: int) -> Reply:
        """Note that an end of a run was told: "told", or "stale" when the run has ended again or is gone."""

    def emit(self, run_id: str, kind: str, node: str, visit: int, data: JSON) -> None:
        """Add an event to a run's stream."""

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        """Read questions by id, each as it stands."""

    def open_interrupts(
        self, query: InterruptQuery = EVERY_QUESTION, limit: int = 100, cursor: str = ""
    ) -> Page[Interrupt]:
        """List open questions, oldest first; a cursor goes on after an earlier page."""

    def read(self, run_id: str) -> RunSnapshot | None:
        """Read a whole run."""

    def peek(self, run_id: str) -> RunRecord | None:
        """Read a run's counters and status only."""

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[Fetched]:
        """Read nodes with their latest output and entry, for conditions and maps."""

    def runs(self, query: RunQuery = EVERY_RUN, limit: int = 100, cursor: str = "") -> Page[RunSummary]:
        """List runs, newest first; a cursor goes on after an earlier page."""

    def session(self, session_id: str) -> Session:
        """Read a session; one that nobody wrote is empty."""

    def forget_session(self, session_id: str) -> bool:
        """Delete a session; False when there was none."""

    def children(self, run_id: str) -> list[str]:
        """Name the child runs of a run, oldest first."""

    def events(self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0) -> list[Event]:
        """Read events after a position; wait up to so many seconds for the first one."""


class Dispatcher(Protocol):
    """Rings the queue for doorbells that the store did not ring itself."""

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Ring each; raising is safe, for the sweeper rings again."""

    def call(self, task: str, kwargs: Mapping[str, JSON], task_id: str) -> bool:
        """Send a Celery task, `name` or `name@queue`; False leaves it to another process."""


Ids = Callable[[], str]
"""Makes a new unique text: run ids (sorted by time) and nonces."""
