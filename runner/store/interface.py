"""The library's needs of the world: a store that keeps runs, and a dispatcher that rings for work.

A store applies the transitions of `runner.scheduler`, each atomically. Every writing call carries a
nonce or is idempotent by its state: repeating it after a lost reply changes nothing and returns the
first reply. All times are milliseconds of the store's own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from runner.approvals.absences import Absence
from runner.approvals.ballots import Standing, Use
from runner.approvals.freezes import Freeze
from runner.approvals.grants import GrantRecord
from runner.definition.model import Topology
from runner.errors import CorruptDocument
from runner.limits.fairness import Share
from runner.limits.setting import LimitSetting
from runner.records.budgets import Sum, Tagged
from runner.records.checkpoints import Remembered, Saved, Session
from runner.records.codec import JSON, LazyValue
from runner.records.interrupts import Interrupt, Receipt
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.records.run import (
    MapRecord,
    NodeRecord,
    Records,
    RunRecord,
    Status,
    VisitEntry,
    VisitKey,
)
from runner.records.size_limits import Bounded

Fetched = tuple[NodeRecord, JSON, VisitEntry | None]
"""A node's record, with its latest output and entry."""

R = TypeVar("R")
Signed = TypeVar("Signed", bound=GrantRecord | Absence)

NO_TAGS: Mapping[str, str] = MappingProxyType({})

EVERY_RUN = RunQuery()

EVERY_QUESTION = InterruptQuery()


@dataclass(frozen=True, slots=True)
class Doorbell:
    """A wake-up: which visit to claim, and the queue to ring it on. It carries no data.

    With a `share` the store keeps it until its key has its turn.
    """

    run_id: str
    node: str
    visit: int
    attempt: int
    queue: str
    priority: int
    graph_id: str
    share: Share | None = None

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


class UnreadableClaim(CorruptDocument):
    """A visit was claimed whose stored values are damaged: its node is held."""

    def __init__(self, token: Token, graph_id: str, error: Exception) -> None:
        """Keep the claim's token, so that the node can be held."""
        super().__init__(
            f"what node {token.node!r} of run {token.run_id} needs is damaged: {error}"
        )
        self.token, self.graph_id = token, graph_id


@dataclass(frozen=True, slots=True)
class Start:
    """A run to begin. `task`, `given` (invocation state) and `tags` are packed JSON data. With `parent` set
    it is a child run, whose node waits for it; `on_end` names a task to call at its end. `trace` is the
    traceparent (W3C) of the program that starts it. `requester` has the `principal` (key) who asked for the
    run, and the `body` of the signed message that said so; `inherited` is true where the run was made from
    another and has the people of that.
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
    """The result of a transition.

    `doorbells` are still to be rung, a claim is delayed by `delay_ms`, and the external task named
    `reference` may be cancelled. `claim` is the node that a settle has claimed in turn, under its own nonce.
    `fired` are schedules, jobs and webhooks, by kind and name, which a sweep has found to be due.
    `receipts` are those of answers, of a vote or of an operation. `detail` says why a start is refused.
    """

    word: str
    doorbells: Sequence[Doorbell] = ()
    run_id: str = ""
    delay_ms: int = 0
    reference: str = ""
    claim: Claim | None = None
    fired: Sequence[tuple[str, str]] = ()
    receipts: Sequence[Receipt] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed visit and all that it needs; `inputs` are (node, visit, output) in edge order.

    `fingerprint` and `signature` are those of the run's graph and node. An item's `task` is the item;
    a large task or output may be lazy, also the child's. `map` counts a map's items, `report` is an
    external task's result. `doorbells` are still to be rung, `rung_by` is the task that rang one which a
    settle has taken. `votes` are those on answers, by question, as far as they were read.
    """

    token: Token
    graph_id: str
    fingerprint: str
    signature: str
    record: NodeRecord
    task: JSON | LazyValue
    invocation_state: JSON
    inputs: Sequence[tuple[str, int, JSON | LazyValue]]
    answers: Sequence[Interrupt]
    document: JSON | None
    messages: Sequence[JSON]
    child: RunSnapshot | None = None
    map: MapRecord | None = None
    report: JSON = None
    rung_by: str = ""
    doorbells: Sequence[Doorbell] = ()
    votes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


Rung = TypeVar("Rung", bound=Reply | Claim)
"""A reply or a claim, with doorbells that are still to be rung."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a visit: status, edge bits, the stored output and entry, what conditions read.

    `entry` is the rest of a NodeResult (packed result or error, usage, times). With `insist` a settle that
    is refused as "changed" locks the run for a short time. `session` is written with it. With `may_continue`
    the node that it makes ready may be claimed for this worker instead of rung for, where it is the only one
    and `scheduler.may_follow` allows it. Otherwise a store that rings itself may claim the one whose
    doorbell is next in the node's queue. `effects` are what people had approved and has ended with the visit.
    """

    status: Status
    edges: str
    output: JSON
    entry: VisitEntry
    saved: Saved | None = None
    reads: Sequence[tuple[str, int, str]] = ()
    insist: bool = False
    session: Remembered | None = None
    may_continue: bool = False
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


class Request(Generic[R]):
    """One change of a store, as a value; `R` is the type of its reply. See `runner.store.requests`.

    `verb` is its name in logs and metrics. `run_id` chooses the partition that does it: that of a run, or "".
    """

    __slots__ = ()

    verb: ClassVar[str]

    if TYPE_CHECKING:  # else a field `run_id` of a subclass would have it as its default

        @property
        def run_id(self) -> str: ...

    def plan(self, transaction: Any) -> R:
        """Plan it on the runs of a `UnitOfWork`, where each store does it alike."""
        raise NotImplementedError(f"{type(self).__name__} has no plan.")


class Store(Bounded, Protocol):
    """Where runs are kept. Raises StoreError when it can't be reached; then nothing has changed.

    `do` does every change of a run, which is a `Request`; the other methods read, or concern the whole
    store. `namespace` is that of the environment. `clock` gives ms; without it the time is this machine's.
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

    def partition(
        self, graph_id: str, idempotency_key: str | None, tags: Mapping[str, str] = NO_TAGS
    ) -> int:
        """Choose the partition of a new run, which its id must name; a repeat gets that of the run.

        Runs of a key, whose starts wait for each other, have the same one.
        """

    # Changes

    def do(self, request: Request[R]) -> R:
        """Do a request; repeating it after a lost reply changes nothing and returns the first reply."""

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        """Extend leases: "ok", "stale", "cancelled" (its run was), or "" where its partition is away."""

    # Questions

    def votes(self, interrupt_id: str) -> list[dict[str, Any]]:
        """Read the votes of a question that count or were voided, in order."""

    def standings(self, ids: Sequence[str]) -> list[Standing]:
        """Read how the votes of questions stand."""

    def answerers(self, run_id: str, node: str) -> frozenset[str]:
        """Return the keys of those who answered, or voted on, what a node asked in its latest visit."""

    def requester(self, run_id: str) -> Mapping[str, Any] | None:
        """Read who asked for the outermost run of a run: see `Start`; None when that is not known."""

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        """Read questions by id in their present state; None for one that was never asked."""

    def open_interrupts(
        self, query: InterruptQuery = EVERY_QUESTION, limit: int = 100, cursor: str = ""
    ) -> Page[Interrupt]:
        """List open questions, oldest first or urgent first, or closed ones of the time of retention, newest
        first; a cursor continues an earlier page.
        """

    def count_questions(self, queries: Sequence[InterruptQuery]) -> list[int]:
        """Return how many open questions match each at most: exact where a list has just those."""

    def frozen(self) -> dict[str, Freeze]:
        """Return what is frozen, by its scope."""

    def signed(self, kind: type[Signed]) -> dict[str, Signed]:
        """Return all grants by their id, with how much was used of each, or all absences by who is away."""

    def limit_settings(self) -> dict[str, LimitSetting]:
        """Return what is set of limits, by name."""

    def sweep(self, limit: int = 100) -> Reply:
        """Do what is due; the word is the number of timers handled."""

    # Reading

    def read(self, run_id: str, *, messages: bool = False) -> RunSnapshot | None:
        """Read a whole run; the conversations of its nodes only with `messages`."""

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

    def events(
        self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0
    ) -> list[Event]:
        """Read events after a position; wait up to so many seconds for the first one."""

    def is_executing(self, run_id: str, wait: float = 0) -> bool:
        """Return whether a run executes; wait up to so many seconds until it does not."""

    # Budgets: what agents spend, of a run with all runs inside it, or of all runs with a tag

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
