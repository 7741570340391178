"""What the library needs of the world: a store that keeps runs, and a dispatcher that rings for work.

A store applies the transitions of `runner.scheduler`, each atomically. Every writing call carries a
nonce or is idempotent by its state: repeating it after a lost reply changes nothing and returns the
first reply. All times are milliseconds of the store's own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.approvals.ballots import Ballot, Operation, Standing, Use
from runner.approvals.freezes import Freeze
from runner.definition.model import Topology
from runner.records.budgets import Spending, Sum, Tagged
from runner.records.checkpoints import Remembered, Saved, Session
from runner.records.codec import JSON
from runner.records.interrupts import Decision, Interrupt, Receipt
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.records.migration import Migration
from runner.records.run import (
    MapRecord,
    NodeRecord,
    Records,
    Rewrite,
    RunRecord,
    Status,
    VisitEntry,
    VisitKey,
)
from runner.records.size_limits import Bounded

Fetched = tuple[NodeRecord, JSON, VisitEntry | None]
"""A node's record, with its latest output and entry."""

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
    """A worker's right to write for one visit: only the newest fence is obeyed.

    `seen` is the store's own: what the claim has read, so that it need not be read again.
    """

    run_id: str
    node: str
    visit: int
    fence: int
    seen: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Start:
    """A run to begin. `task`, `given` (invocation state) and `tags` are packed JSON data. With `parent` set
    it is a child run, whose node waits for it; `on_end` names a task to call at its end. `trace` is the
    traceparent (W3C) of the program that starts it. `requester` has the `principal` (key) who asked for the
    run, and the `body` of the signed message that said so.
    """

    run_id: str
    graph_id: str
    fingerprint: str | None
    task: JSON
    invocation_state: JSON = None
    tags: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    parent: Token | None = None
    root: str = ""
    on_end: str = ""
    trace: str = ""
    requester: Mapping[str, JSON] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a transition returned.

    `doorbells` are still to be rung, a claim is delayed by `delay_ms`, and the external task named
    `reference` may be cancelled. `claim` is the node that a settle has claimed in turn, under its own nonce.
    `fired` are schedules, jobs and webhooks, by kind and name, which a sweep has found to be due.
    """

    word: str
    doorbells: Sequence[Doorbell] = ()
    run_id: str = ""
    delay_ms: int = 0
    reference: str = ""
    claim: Claim | None = None
    fired: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed visit and all that it needs; `inputs` are (node, visit, output) in edge order.

    `fingerprint` and `signature` are those of the run's graph and node. An item's `task` is the item;
    `map` counts a map's items, `report` is an external task's result. `rung_by` is the task that rang a
    doorbell which a settle has taken.
    """

    token: Token
    graph_id: str
    fingerprint: str
    signature: str
    record: NodeRecord
    task: JSON
    invocation_state: JSON
    inputs: Sequence[tuple[str, int, JSON]]
    answers: Sequence[Interrupt]
    document: JSON | None
    messages: Sequence[JSON]
    child: RunSnapshot | None = None
    map: MapRecord | None = None
    report: JSON = None
    rung_by: str = ""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a visit: status, edge bits, the stored output and entry, what conditions read.

    `entry` is the rest of a NodeResult (packed result or error, usage, times). With `insist` a settle that
    is refused as "changed" locks the run for a short time. `session` is written with it. With `stay` the
    node that it makes ready may be claimed for this worker instead of rung for, where it is the only one and
    `scheduler.may_follow` allows it. Otherwise a store that rings itself may claim the one whose doorbell is
    next in the node's queue. `effects` are what people had approved and has ended with the visit.
    """

    status: Status
    edges: str
    output: JSON
    entry: VisitEntry
    saved: Saved | None = None
    reads: Sequence[tuple[str, int, str]] = ()
    insist: bool = False
    session: Remembered | None = None
    stay: bool = False
    effects: Sequence[Use] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """A run to begin from the results of another.

    `results` are the (node, visit) whose results are copied, with their place in the order (below 0; 0:
    none); nodes in `remembers` also keep their documents. The task of `visit`, if there is one, is `input`
    (packed). `reopened` is that of the snapshot from which the fork was planned.
    """

    start: Start
    source: str
    records: Records
    results: Mapping[tuple[str, int], int]
    remembers: Sequence[str] = ()
    visit: tuple[str, int] | None = None
    input: JSON = None
    reopened: str = ""


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

    `reopened` is the nonce of its last retry or migration. `size` is in bytes, with all runs inside it; 0 for
    one inside another, and in memory.
    """

    record: RunRecord
    nodes: Mapping[str, NodeRecord]
    task: JSON
    invocation_state: JSON
    tags: Mapping[str, str]
    created_at: int
    ended_at: int
    order: Sequence[str]
    outputs: Mapping[VisitKey, JSON]
    entries: Mapping[VisitKey, VisitEntry]
    interrupts: Sequence[Interrupt]
    messages: Mapping[str, Sequence[JSON]] = field(default_factory=dict)
    maps: Mapping[str, MapRecord] = field(default_factory=dict)
    events: int = 0
    reopened: str = ""
    size: int = 0


class Store(Bounded, Protocol):
    """Where runs are kept. Raises StoreError when it can't be reached; then nothing has changed.

    A method that returns a Reply names the words that the reply may have. A visit's `token` is "stale"
    when another worker has taken the node over, or its run has gone on without it. `namespace` is that of
    the environment. `clock` gives ms; without it the time is this machine's.
    """

    namespace: str
    clock: Callable[[], int] | None

    # Graphs

    def publish(self, topologies: Sequence[Topology], *, replace: bool = True) -> None:
        """Make graphs known; the last of a name is the current one, without `replace` the first."""

    def graphs(self) -> dict[str, str]:
        """Return the fingerprint of every known graph, by name."""

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        """Return the shape of a graph as it was published; None when no run needs it any more."""

    # One visit on a worker

    def partition(self, graph_id: str, idempotency_key: str | None) -> int:
        """Choose the partition of a new run, which its id must name; a repeat gets that of the run."""

    def start(self, start: Start, nonce: str) -> Reply:
        """Begin a run: "started", "exists" (same idempotency key: its run), "unknown_graph"."""

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        """Take a ready visit; otherwise "stale", "cancelled", "unknown" or "limited" (it has to wait)."""

    def save(self, token: Token, saved: Saved) -> Reply:
        """Checkpoint a running visit: "saved" or "stale"."""

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        """Publish questions of a running visit at once: "asked", "stopping" or "stale"."""

    def park(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        """Make a visit wait: "waiting", "ready", "cancelled", "nothing_open" or "stale"."""

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        """End a visit: "settled", "changed" (evaluate conditions again), "locked" (wait), "stale"."""

    def retry(
        self, token: Token, delay_ms: int, entry: VisitEntry | None, saved: Saved | None
    ) -> Reply:
        """Run a visit again later; with an `entry` (its error) that is a new attempt.

        "retrying", "cancelled" or "stale".
        """

    def expand(self, token: Token, items: Sequence[JSON] | None) -> Reply:
        """Start a map's items, None for those it has: "expanded", "cancelled", "no_items", "stale"."""

    def hold(self, token: Token, entry: VisitEntry | None = None) -> Reply:
        """Hold a visit until its run is migrated: "held" or "stale".

        With an `entry` (its error) what it was about to do is refused: that leaves a dead letter, too.
        """

    def leave(self, token: Token, *, stalled: bool | None = None) -> Reply:
        """Ring again for a running visit whose worker shuts down: "left", "cancelled", "dead" or "stale".

        `stalled` says of code that ran that it has stored nothing new since its claim; "dead" when that has
        happened too often in a row.
        """

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        """Extend leases: "ok", "stale", "cancelled" (its run was), or "" where its partition is away."""

    # External tasks: another system works for a node, which waits without a worker. First the node is made
    # to wait, then the system is called, then that is recorded. Whatever is lost in between, the node is rung
    # again and calls the system again under the same reference.

    def hand(self, token: Token, reference: str) -> Reply:
        """Make a visit wait for a result: "handed", "ready" (it is there), "cancelled" or "stale"."""

    def sent(self, token: Token, reference: str, timeout_ms: int) -> Reply:
        """Record that the system has the task, due in so many ms (0: no limit): "sent" or "stale"."""

    def report(self, run_id: str, node: str, visit: int, reference: str, outcome: JSON) -> Reply:
        """Record an external task's result (packed) once: "reported" (a repeat too), "stale", "unknown"."""

    # Questions

    def answer(
        self, answers: Sequence[Decision], nonce: str, questions: Sequence[Interrupt | None] = ()
    ) -> tuple[list[Receipt], Reply]:
        """Apply a set of checked answers: all of them or none.

        `questions` are those of the answers as the caller has read them; the store reads them itself
        only where they are missing or have changed since.
        """

    def vote(self, ballot: Ballot, nonce: str) -> tuple[Receipt, Reply]:
        """Count one vote on a question with a rule; the one that meets the rule answers the question."""

    def act(self, operation: Operation, nonce: str) -> tuple[Receipt, Reply]:
        """Do what somebody wants with a question with a rule, besides voting."""

    def use(self, token: Token, use: Use, saved: Saved) -> Reply:
        """Record that a decision is used, with the checkpoint that starts what it is for.

        "used", "spent" when it was used for something else or is none, or "stale".
        """

    def votes(self, interrupt_id: str) -> list[dict[str, Any]]:
        """Read the votes of a question that count or were voided, in order."""

    def standings(self, ids: Sequence[str]) -> list[Standing]:
        """Read how the votes of questions stand."""

    def answerers(self, run_id: str, node: str) -> frozenset[str]:
        """Return the keys of those who answered, or voted on, what a node asked in its latest visit."""

    def requester(self, run_id: str) -> Mapping[str, Any] | None:
        """Read who asked for the outermost run of a run: see `Start`; None when that is not known."""

    def withdraw(self, interrupt_id: str, reason: str, *, reask: bool) -> Reply:
        """Withdraw an open question: "withdrawn", "closed" (answered, expired or withdrawn) or "unknown"."""

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        """Read questions by id in their present state; None for one that was never asked."""

    def open_interrupts(
        self, query: InterruptQuery = EVERY_QUESTION, limit: int = 100, cursor: str = ""
    ) -> Page[Interrupt]:
        """List open questions, oldest first or urgent first; a cursor continues an earlier page."""

    def count_questions(self, queries: Sequence[InterruptQuery]) -> list[int]:
        """Return how many open questions match each at most: exact where a list has just those."""

    # What people do to runs

    def cancel(self, run_id: str, reason: str, nonce: str = "") -> Reply:
        """Stop a run: "cancelled", "already" (it is stopping or has ended) or "unknown"."""

    def fork(self, fork: Fork) -> Reply:
        """Begin a run from the results of another: "forked", "unknown" (the other) or "unknown_graph".

        "moved" when the other was retried or migrated since it was read, or a node that it remembers of has
        begun another visit.
        """

    def rewrite(self, runs: Sequence[Rewrite], nonce: str) -> Reply:
        """Reopen ended runs, a parent before its children: "reopened" all, "moved" or "unknown" none."""

    def migrate(self, runs: Sequence[Migration], nonce: str) -> Reply:
        """Move waiting runs to other shapes, a parent before its children: all or none.

        "migrated", "moved" when one has changed since it was read or does not wait, "unknown" or
        "unknown_graph".
        """

    def release(self, run_id: str, nodes: Sequence[str]) -> Reply:
        """Make held nodes ready again: "released", or "stale" when none of them is held."""

    def remove(self, run_id: str) -> Reply:
        """Remove an ended run before its time: "removed", "goes_on", "inside" (another run) or "unknown".

        It is gone at once, and its idempotency key with it; the runs inside it go with the next sweeps.
        """

    # Freezes: see runner/approvals/freezes.py

    def freeze(self, scope: str, reason: str, by: str) -> Reply:
        """Stop the effects of a scope: "frozen", or "already"."""

    def thaw(self, scope: str, reason: str, by: str) -> Reply:
        """End a freeze: "thawed", or "unknown" where there is none."""

    def frozen(self) -> dict[str, Freeze]:
        """Return what is frozen, by its scope."""

    # Time

    def sweep(self, limit: int = 100) -> Reply:
        """Do what is due; the word is the number of timers handled."""

    def end_reported(self, run_id: str, end: int) -> Reply:
        """Record that the callback for an end of a run was called: "end_reported", or "stale"."""

    # Reading

    def read(self, run_id: str) -> RunSnapshot | None:
        """Read a whole run."""

    def peek(self, run_id: str) -> RunRecord | None:
        """Read a run's counters and status only."""

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[Fetched]:
        """Read nodes with their latest output and entry, for conditions and maps."""

    def documents(self, run_id: str) -> dict[str, JSON]:
        """Read the checkpoints of a run's nodes, by node."""

    def children(self, run_id: str) -> list[str]:
        """Return the ids of a run's child runs, oldest first."""

    def runs(
        self, query: RunQuery = EVERY_RUN, limit: int = 100, cursor: str = ""
    ) -> Page[RunSummary]:
        """List runs, newest first; a cursor continues an earlier page."""

    # Events

    def emit(self, run_id: str, kind: str, node: str, visit: int, data: JSON) -> None:
        """Add an event to a run; one that is gone gets none."""

    def events(
        self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0
    ) -> list[Event]:
        """Read events after a position; wait up to so many seconds for the first one."""

    # Budgets: what agents spend, of a run with all runs inside it, or of all runs with a tag

    def spend(self, run_id: str, tagged: Tagged | None, spending: Spending) -> str:
        """Add to a sum: return "", or the counter whose bound is reached; then nothing is added.

        Without `tagged` the sum is that of the outermost run. A run that is gone has no sum: "".
        """

    def spent(self, run_id: str, tagged: Tagged | None = None) -> dict[str, Sum]:
        """Read a sum by counter; one that nothing was ever added to is empty."""

    def tags(self, run_id: str) -> dict[str, str]:
        """Return the tags of the outermost run."""

    # Sessions: conversations that outlive their runs

    def session(self, session_id: str) -> Session:
        """Read a session; one that was never written is empty."""

    def forget_session(self, session_id: str) -> bool:
        """Delete a session; False when there was none."""


class Dispatcher(Protocol):
    """Rings for the doorbells that the store did not ring itself."""

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Ring each. Raising is safe: the sweeper rings again."""

    def call(self, task: str, kwargs: Mapping[str, JSON], task_id: str) -> bool:
        """Send a Celery task, `name` or `name@queue`; False leaves it to another process."""
