"""Interfaces of the two outside parts: a store that keeps runs, and a dispatcher that rings doorbells.

A store applies the transitions of `runner.scheduler`, each atomically. Every writing call carries a
nonce or is idempotent by its state: repeating it after a lost reply changes nothing and returns the
first reply. All times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from runner.approvals.absences import Absence
from runner.approvals.ballots import Standing, Use
from runner.approvals.freezes import Freeze
from runner.approvals.grants import GrantRecord
from runner.definition.model import Topology
from runner.errors import CorruptDocument, UsageError
from runner.immutable import immutable
from runner.limits.fairness import Share
from runner.limits.setting import LimitSetting
from runner.records.budgets import Sum, Tagged
from runner.records.checkpoints import Saved, Session, SessionUpdate
from runner.records.codec import JSON, JSONMapping, JSONObject, LazyValue
from runner.records.interrupts import Interrupt, Receipt
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.records.payloads import Hidden, Payload
from runner.records.run import (
    EventKind,
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


@immutable
class Doorbell:
    """A wake-up: the visit to claim, and the queue to ring it on. It carries no data.

    With a `share` the store keeps the doorbell until its key has its turn.
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


@immutable
class Token:
    """A worker's right to write for one visit: only the newest fence is obeyed.

    `seen` is for the store alone: the records that the claim read, so that they need not be read again.
    """

    run_id: str
    node: str
    visit: int
    fence: int
    seen: object = field(default=None, compare=False, repr=False)


class UnreadableClaim(CorruptDocument):
    """A claimed visit has damaged stored values: its node is held."""

    def __init__(self, token: Token, graph_id: str, error: Exception) -> None:
        """Keep the claim's token, so that the node can be held."""
        super().__init__(
            f"a stored value for node {token.node!r} of run {token.run_id} is damaged: {error}"
        )
        self.token, self.graph_id = token, graph_id


@immutable
class Start:
    """A run to begin. `task`, `invocation_state` and `tags` are packed JSON data. With `parent` set it is a
    child run, and the parent's node waits for it; `on_end` names a task to call at its end. `trace` is the
    traceparent (W3C) of the program that starts it. `requester` has the `principal` (key) who asked for the
    run, and the `body` of the signed request; its `inherited` is true if the run was made from another run
    and has taken over that run's people.
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
    requester: JSONMapping | None = None


ReplyWord = Literal[
    "accepted",
    "admitted",
    "advanced",
    "after",
    "already",
    "answered",
    "archivable",
    "archived",
    "asked",
    "busy",
    "cancelled",
    "changed",
    "claimed",
    "closed",
    "crowded",
    "dead",
    "delegated",
    "done",
    "drained",
    "due",
    "end_reported",
    "ended",
    "escalated",
    "exists",
    "expanded",
    "expired",
    "failing",
    "forked",
    "frozen",
    "full",
    "goes_on",
    "handed",
    "held",
    "inside",
    "kept",
    "later",
    "left",
    "limited",
    "locked",
    "lost",
    "malformed",
    "migrated",
    "more",
    "moved",
    "no_items",
    "noted",
    "nothing_open",
    "over",
    "passed",
    "put_off",
    "queued",
    "ready",
    "refused",
    "relaxed",
    "released",
    "reminded",
    "removed",
    "reopened",
    "repeated",
    "reported",
    "retrying",
    "revoked",
    "rung",
    "same",
    "saved",
    "sent",
    "settled",
    "sized",
    "skipped",
    "spent",
    "stale",
    "started",
    "stopped",
    "stopping",
    "swept",
    "taken",
    "thawed",
    "unknown",
    "unknown_graph",
    "unread",
    "unwanted",
    "used",
    "waiting",
    "withdrawn",
    "woken",
]
"""The outcome of a request: mypy refuses a comparison with any other word."""


@immutable
class Reply:
    """The result of a transition.

    `doorbells` are still to be rung, a claim is delayed by `delay_ms`, and the external task named
    `reference` may be cancelled. `claim` is the next node, which a settle has claimed under its own nonce.
    `fired` lists the schedules, jobs and webhooks, by kind and name, that a sweep found due.
    `receipts` belong to answers, a vote or an operation. `detail` says why a start is refused. `count` is the
    number of things that were done.
    """

    word: ReplyWord
    doorbells: Sequence[Doorbell] = ()
    run_id: str = ""
    delay_ms: int = 0
    reference: str = ""
    claim: Claim | None = None
    fired: Sequence[tuple[str, str]] = ()
    receipts: Sequence[Receipt] = ()
    detail: str = ""
    count: int = 0


@immutable
class Claim:
    """A claimed visit and the data it needs; `inputs` are (node, visit, output) in edge order.

    `fingerprint` identifies the run's graph, `signature` the node. A map item's `task` is the item; large
    tasks and outputs may be lazy, also the child's. `map` counts a map's items, `report` is an external
    task's result. `doorbells` are still to be rung; `rung_by` is the task that rang the doorbell of a claim
    that a settle took. `votes` are the votes behind answers, by question, as far as they were read.
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
    votes: Mapping[str, Sequence[JSONMapping]] = field(default_factory=dict)


Rung = TypeVar("Rung", bound=Reply | Claim)
"""A reply or a claim, with doorbells that are still to be rung."""


@immutable
class Settlement:
    """The end of a visit: status, edge bits, the stored output and entry, and the `reads` of conditions.

    `entry` is the rest of a NodeResult (packed result or error, usage, times). With `insist` a settle that
    is refused as "changed" locks the run for a short time. `session` is written with it. With `may_continue`
    the worker may claim the node that becomes ready, without a doorbell, if it is the only one and
    `scheduler.may_follow` allows it. Otherwise a store that rings itself may claim the visit whose doorbell
    is next in the node's queue. `effects` are approved effects that ended with the visit.
    """

    status: Status
    edges: str
    output: JSON
    entry: VisitEntry
    saved: Saved | None = None
    reads: Sequence[tuple[str, int, str]] = ()
    insist: bool = False
    session: SessionUpdate | None = None
    may_continue: bool = False
    effects: Sequence[Use] = ()


@immutable
class Fork:
    """A run to begin from the results of another.

    `results` maps each (node, visit) whose result is copied to its place in the order (below 0; 0: none);
    nodes in `remembers` also keep their documents. `input` (packed) is the task of `visit`, if set.
    `reopened` is the value in the snapshot from which the fork was planned.
    """

    start: Start
    source: str
    records: Records
    results: Mapping[tuple[str, int], int]
    remembers: Sequence[str] = ()
    visit: tuple[str, int] | None = None
    input: JSON = None
    reopened: str = ""


def _detail_without_reason(event: Event) -> str:
    return "" if event.kind == EventKind.RUN_STOPPING else event.detail


@immutable
class Event:
    """One event of a run; `position` orders them and resumes a reader."""

    position: str
    kind: str
    at: int
    node: str = ""
    visit: int = 0
    detail: Annotated[str, Hidden(_detail_without_reason)] = ""
    data: Payload[JSON] = None


@immutable
class RunSnapshot:
    """A whole run; `outputs` and `entries` are by (node, visit), `events` is the number of its last event.

    `reopened` is the nonce of its last retry or migration. `size` is in bytes, including all runs inside it;
    it is 0 for a run inside another, and in the memory store.
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

    def node(self, name: str) -> NodeRecord:
        """Return the record of a node; a new one if it was not reached."""
        return self.nodes.get(name, NodeRecord())


class Request(Generic[R]):
    """One change to a store, as a value; `R` is the type of its reply. See `runner.store.requests`.

    `verb` is its name in logs and metrics. `run_id` names the run whose partition handles it, or is "".
    """

    __slots__ = ()

    verb: ClassVar[str]

    if TYPE_CHECKING:  # at runtime it would become the default of a subclass's field `run_id`

        @property
        def run_id(self) -> str: ...

    def plan(self, transaction: Any) -> R:  # noqa: ARG002 - as in subclasses
        """Plan the change on the runs of a `UnitOfWork`, for requests that every store plans alike."""
        raise needs_redis(f"request {self.verb!r}")


Handlers = dict[type[Request[Any]], Callable[[Any], Any]]
"""The functions of a store that handle requests which it doesn't only plan."""


def needs_redis(what: str) -> UsageError:
    """Return the error of an operation that the memory store doesn't have."""
    return UsageError(
        f"the memory store has no {what}: it serves one run in process. Nothing was changed; "
        "use a Redis store."
    )


class Store(Bounded, Protocol):
    """A store of runs. Raises StoreError when it can't be reached; then nothing has changed.

    `do` makes every change to a run, each a `Request`; the other methods read, or concern the whole store.
    `namespace` is the environment's namespace. `clock` returns ms; without it the time is this machine's.
    """

    namespace: str
    clock: Callable[[], int] | None

    # Graphs

    def publish(self, topologies: Sequence[Topology], *, replace: bool = True) -> None:
        """Make graphs known; the last graph of a name is current, without `replace` the first."""

    def graphs(self) -> dict[str, str]:
        """Return the fingerprint of every known graph, by name."""

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        """Return the shape of a graph as it was published; None once no run needs it."""

    def partition(
        self, graph_id: str, idempotency_key: str | None, tags: Mapping[str, str] = NO_TAGS
    ) -> int:
        """Choose the partition that a new run's id must name; a repeated start gets its run's partition.

        Runs of a key, whose starts wait for each other, share a partition.
        """

    # Changes

    def do(self, request: Request[R]) -> R:
        """Apply a request; repeating it after a lost reply changes nothing and returns the first reply."""

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        """Extend leases: "ok", "stale", "cancelled" (the run was), or "" if the partition is unreachable."""

    # Questions

    def votes(self, interrupt_id: str) -> list[JSONObject]:
        """Read a question's votes that count or were voided, in order."""

    def standings(self, ids: Sequence[str]) -> list[Standing]:
        """Read the standing of the votes on each question."""

    def answerers(self, run_id: str, node: str, but: str = "") -> frozenset[str]:
        """Return the keys of people who answered or voted on a node's questions of its latest visit.

        The question with the id `but` is left out.
        """

    def requester(self, run_id: str) -> JSONMapping | None:
        """Read the requester of a run's outermost run, as in `Start`; None if it isn't known."""

    def interrupts(self, ids: Sequence[str], voter: str = "") -> list[Interrupt | None]:
        """Read questions by id in their present state; None for an id that was never asked.

        If the `voter`, by key, votes on the only one next, in this thread, that vote reads less.
        """

    def open_interrupts(
        self, query: InterruptQuery = EVERY_QUESTION, limit: int = 100, cursor: str = ""
    ) -> Page[Interrupt]:
        """List open questions, oldest or most urgent first, or closed ones within the retention time, newest
        first; a cursor continues an earlier page.
        """

    def count_questions(self, queries: Sequence[InterruptQuery]) -> list[int]:
        """Count open questions for each query: an upper bound, exact if one list holds just its matches."""

    def frozen(self) -> dict[str, Freeze]:
        """Return the freezes that hold, by scope."""

    def signed(self, kind: type[Signed]) -> dict[str, Signed]:
        """Return all grants by id, each with its uses so far, or all absences by the absent person."""

    def limit_settings(self) -> dict[str, LimitSetting]:
        """Return the stored settings of limits, by name."""

    def sweep(self, limit: int = 100) -> Reply:
        """Handle due timers, and other work that is due; the reply's word is the number of timers."""

    # Reading

    def read(self, run_id: str, *, messages: bool = False) -> RunSnapshot | None:
        """Read a whole run; the conversations of its nodes only with `messages`."""

    def peek(self, run_id: str) -> RunRecord | None:
        """Read a run's counters and status only."""

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[Fetched]:
        """Read nodes with their latest output and entry, for conditions and maps."""

    def documents(self, run_id: str) -> JSONObject:
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
        """Read events after a position; wait up to `wait` seconds for the first one."""

    def read_unless_executing(self, run_id: str, wait: float = 0) -> RunSnapshot | None:
        """Read a whole run, after up to `wait` seconds; None if it still executes.

        Raises:
            NotFoundError: the run doesn't exist.
        """

    # Budgets: the spending of agents in a run and all runs inside it, or in all runs with a tag

    def spent(self, run_id: str, tagged: Tagged | None = None) -> dict[str, Sum]:
        """Read a sum by counter; it is empty if nothing was added."""

    def tags(self, run_id: str) -> dict[str, str]:
        """Return the tags of the outermost run."""

    # Sessions: conversations that outlive their runs

    def session(self, session_id: str) -> Session:
        """Read a session; it is empty if it was never written."""

    def forget_session(self, session_id: str) -> bool:
        """Delete a session; return False if it didn't exist."""


class Dispatcher(Protocol):
    """Rings the doorbells that the store did not ring itself."""

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Ring each doorbell. Raising is safe: the sweeper rings again."""

    def call(self, task: str, kwargs: JSONMapping, task_id: str) -> bool:
        """Send a Celery task, `name` or `name@queue`; return False to leave it to another process."""
