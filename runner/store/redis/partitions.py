"""A store of several partitions, each a RedisStore, on one server or on several.

A run lives in one partition, with all its data and all runs inside it; its id names the partition. Requests
for one run go to that partition only, at no extra cost. Lists are merged; sweeps and renewals go to all
partitions. If partitions are on several servers, the task queue is on the first one.
"""

from __future__ import annotations

import functools
import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from runner.approvals.ballots import Standing
from runner.definition.model import Topology
from runner.errors import ConflictError, StoreError, UsageError
from runner.limits.setting import LimitSetting
from runner.records.budgets import Sum, Tagged
from runner.records.checkpoints import Session, SessionUpdate
from runner.records.codec import JSONObject
from runner.records.interrupts import Interrupt, ReceiptStatus
from runner.records.listings import (
    ENDED,
    SEPARATOR,
    InterruptQuery,
    Page,
    RunQuery,
    RunSummary,
    cursor_of,
    grouped,
    position_in,
)
from runner.records.run import Status, claim_name, outermost
from runner.records.run_ids import PARTITION_DIGITS, effect_name, partition_of
from runner.store import interface
from runner.store.addresses import cluster
from runner.store.interface import (
    Claim,
    Doorbell,
    Handlers,
    R,
    Reply,
    Request,
    Rung,
    Token,
)
from runner.store.receipts import receipts_for
from runner.store.redis.connection import RedisConnection
from runner.store.redis.doorbell_template import DoorbellTemplate
from runner.store.redis.due_timers import SLOT
from runner.store.redis.keys import Keys, node_of
from runner.store.redis.layout import FREE, Layout
from runner.store.redis.ledger import AuditLog
from runner.store.redis.measurements import Increments
from runner.store.redis.store import RedisStore
from runner.store.redis.transaction.transaction import Call
from runner.store.requests import (
    AnswerQuestions,
    ChangeLimit,
    CloseRaise,
    OpenRaise,
    RetryVisit,
    SettleVisit,
    ShareSlots,
    SpendBudget,
    StartRun,
    ThawScope,
)

if TYPE_CHECKING:
    from runner.settings import Settings

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def open_store(settings: Settings, *, push: bool = True, retry_for: float = 0) -> SharedStore:
    """Open the store of the settings; nothing is connected yet. `push` and `retry_for` as for RedisStore.

    With `push`, doorbells are pushed onto the task queue, wherever it is.
    """
    places = settings.partition_addresses
    first = settings.first_url
    together = all(place.url == first for place in places) and not cluster(first)

    def open_partition(number: int, *, pushes: bool) -> RedisStore:
        return RedisStore(
            places[number].url,
            namespace=settings.namespace,
            partition=places[number].partition,
            places=places,
            lease=settings.lease,
            retention=settings.retention,
            push=pushes,
            max_bytes=settings.max_result,
            max_state=settings.max_state,
            max_run=settings.max_run,
            retry_for=retry_for,
            durability=settings.durability,
            audit=settings.audit,
            max_open_runs=settings.max_open_runs,
        )

    if len(places) == 1:
        return open_partition(0, pushes=push)
    # A partition that pushes without a queue makes its timers due at once, for a broker elsewhere.
    others = push and (together or not settings.broker_is_store)
    partitions = [
        open_partition(number, pushes=others if number else push)
        for number in range(len(places))
    ]
    return PartitionedStore(partitions, relays=push and not together)


def wake_keys(settings: Settings) -> list[str]:
    """Return the lists on the first server through which programs that can't ring ask for a sweep."""
    first = settings.first_url
    own = [place for place in settings.partition_addresses if place.url == first]
    if cluster(first):
        own = own[:1]
    return [Keys(settings.namespace, place.partition).wake for place in own]


def _where_it_is(
    method: Callable[Concatenate[RedisStore, Arguments], Result],
) -> Callable[Concatenate[PartitionedStore, Arguments], Result]:
    """Make a method for the partition of the run or question that comes first, or for the first one."""

    @functools.wraps(method)
    def call(
        store: PartitionedStore, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return method(store.partition_of(str(*args[:1])), *args, **kwargs)

    return call


class PartitionedStore:
    """Runs in several partitions. Thread-safe, and usable after a fork."""

    def __init__(self, partitions: Sequence[RedisStore], *, relays: bool) -> None:
        """Take the partitions; with `relays` the first one's server pushes the doorbells of the others."""
        first = self._first = partitions[0]
        self._partitions = tuple(partitions)
        self._layout = Layout(self.connections, first.namespace)
        self._relays = relays
        self.lease_ms = first.lease_ms
        self.max_bytes = first.max_bytes
        self.max_state = first.max_state
        self.max_run = first.max_run
        self.clock = first.clock
        self.namespace = first.namespace
        for partition in self._partitions:
            partition.limits.home = functools.partial(self._limit_home, partition)
            partition.limits.offer = self._offer
        self._away: dict[RedisStore, float] = {}
        self._left_out = set[RedisStore]()
        self._handlers: Handlers = {
            AnswerQuestions: self._answer,
            ChangeLimit: self._change_limit,
            CloseRaise: self._do_with_sum,
            OpenRaise: self._do_with_sum,
            RetryVisit: self._retry,
            SettleVisit: self._settle,
            StartRun: self._start,
            ShareSlots: self._share_slots,
            SpendBudget: self._do_with_sum,
            ThawScope: self._thaw,
        }
        self._rotation = 0

    @property
    def connection(self) -> RedisConnection:
        """The connection to the first server, for threads of this process that need no other."""
        return self._first.connection

    @property
    def connections(self) -> list[RedisConnection]:
        """The connections of each partition."""
        return [partition.connection for partition in self._partitions]

    def close(self) -> None:
        for partition in self._partitions:
            partition.close()

    @property
    def audit_logs(self) -> Sequence[AuditLog]:
        return [audit for partition in self._partitions for audit in partition.audit_logs]

    def install_doorbell(self, template: DoorbellTemplate | None) -> None:
        """Store the message with which scripts ring the task queue, wherever they push it, or none."""
        for partition in self._that_push:
            partition.install_doorbell(template)

    def has_doorbell(self) -> bool:
        return all(partition.has_doorbell() for partition in self._that_push)

    @property
    def _that_push(self) -> Sequence[RedisStore]:
        return [self._first] if self._relays else self._partitions

    def partition(
        self,
        graph_id: str,
        idempotency_key: str | None,
        tags: Mapping[str, str] = interface.NO_TAGS,
    ) -> int:
        return self._layout.choose(graph_id, idempotency_key, tags)

    # Which partition

    def partition_of(self, name: str) -> RedisStore:
        """Return the partition that the id of a run or a question names, or the first one."""
        number = partition_of(name)
        return self._partitions[number] if number < len(self._partitions) else self._first

    def _rung(self, partition: RedisStore, reply: Rung) -> Rung:
        """Let the first server ring for a partition on another; return the reply with unrung doorbells."""
        if not (self._relays and reply.doorbells) or partition is self._first:
            return reply
        try:
            return replace(reply, doorbells=self._first.push(reply.doorbells))
        except StoreError as error:
            log.warning("doorbell.failed: %s The next sweep rings again.", error)
            return reply

    # Graphs

    def publish(self, topologies: Sequence[Topology], *, replace: bool = True) -> None:
        # The first partition, which lists graphs, comes last: a listed graph can be started everywhere.
        if replace:
            self._copy_limits()
        for partition in reversed(self._partitions):
            try:
                partition.publish(topologies, replace=replace)
            except StoreError as error:
                names = [topology.graph_id for topology in topologies]
                if replace or not error.passing or self._first.lacking(names):
                    raise
        for topology in topologies:
            if topology.admission and topology.admission.by:
                self._layout.allow_by_key(topology.graph_id, topology.admission.by)
        self._layout.allow({outermost(topology.graph_id): None for topology in topologies})

    def lacking(self, names: Sequence[str]) -> list[str]:
        """Return the names of graphs that some partition lacks."""
        return sorted(
            {name for partition in self._partitions for name in partition.lacking(names)}
        )

    graphs = _where_it_is(RedisStore.graphs)

    def remove_graph(self, name: str) -> int:
        """Delete a graph as in `RedisStore`, from the first partition last; from none if any has a run."""
        shapes = [
            self.topology(graph, fingerprint)
            for graph, fingerprint in self.graphs().items()
            if outermost(graph) == name
        ]
        for partition in reversed(self._partitions):
            if runs := partition.remove_graph(name):
                # A run may have begun in one partition while the graph was deleted from another.
                self.publish([shape for shape in shapes if shape], replace=False)
                return runs
        return 0

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        shapes = (partition.topology(graph_id, fingerprint) for partition in self._partitions)
        return next((shape for shape in shapes if shape is not None), None)

    # One visit on a worker

    def do(self, request: Request[R]) -> R:
        """Apply a request in the partition of its run."""
        handler = self._handlers.get(type(request))
        reply: R = (
            handler(request)
            if handler
            else self._do(self.partition_of(request.run_id), request)
        )
        return reply

    def _do(self, partition: RedisStore, request: Request[R]) -> R:
        reply: Any = partition.do(request)
        if isinstance(reply, Reply | Claim):
            reply = self._rung(partition, reply)
        result: R = reply
        return result

    def _start(self, request: StartRun) -> Reply:
        """Start a run; if its partition has no room, and no key requires that partition, use another."""
        start = request.start
        first = self.partition_of(request.run_id)
        reply = self._do(first, request)
        spread = self._layout.spread(start.graph_id) if reply.word == "full" else None
        has_key = start.idempotency_key or effect_name(start.run_id) != start.run_id
        if has_key or spread != FREE:
            return reply
        for number, other in enumerate(self._partitions[: self._layout.usable()]):
            if reply.word == "full" and other is not first:
                run_id = f"{number:0{PARTITION_DIGITS}d}{start.run_id[PARTITION_DIGITS:]}"
                reply = self._do(other, StartRun(replace(start, run_id=run_id)))
        return reply

    def _settle(self, request: SettleVisit) -> Reply:
        partition = self.partition_of(request.run_id)
        session = request.settlement.session
        if session is None or (home := self._home(session.session_id)) is partition:
            return self._do(partition, request)
        settlement = replace(request.settlement, session=_as_part(session))
        reply = self._do(partition, replace(request, settlement=settlement))
        if reply.word == "settled":
            try:
                self._move(session.session_id, partition, home)
            except StoreError as error:
                log.warning("session.later: %s The next reader of the session moves it.", error)
        return reply

    def _answer(self, request: AnswerQuestions) -> Reply:
        """Apply a set of answers, which can't be applied as one if their questions are in several partitions.

        Raises:
            ConflictError: they are; nothing was applied.
        """
        names = [answer.interrupt_id for answer in request.answers]
        partitions = {self.partition_of(name) for name in names}
        questions = self.interrupts(names) if len(partitions) > 1 else []
        if questions:
            asked = [question.id for question in questions if question is not None]
            partitions = {self.partition_of(name) for name in asked} or {self._first}
        if len(partitions) > 1:
            now = self.clock() if self.clock else time.time_ns() // 1_000_000
            receipts, _ = receipts_for(
                *(request.answers, questions, lambda _: "", request.nonce, now),
                max_bytes=request.max_bytes,
            )
            if any(receipt.status is not ReceiptStatus.ACCEPTED for receipt in receipts):
                return Reply("answered", receipts=receipts)
            raise ConflictError(
                "the answers are to questions of runs in several partitions, which can't be applied as one; "
                "none was applied. Send a set for each run."
            )
        (partition,) = partitions
        return self._do(partition, request)

    # Limits. The hash of a key names the partition that counts it; every partition has all settings.

    def _limit_home(self, partition: RedisStore, key: str) -> Call | None:
        """Return the script call of the partition that counts a key; None if it is this one."""
        home = self._partitions[self._layout.limit_home(key)]
        return None if home is partition else home.limits.call

    def _offer(self, run_id: str, node: str) -> Sequence[Doorbell]:
        """Ring for a node to which a limit offers a slot, in the partition of its run."""
        partition = self.partition_of(run_id)
        return self._rung(partition, partition.limits.ring(run_id, node)).doorbells

    def _check_slot(self, home: RedisStore, name: str) -> Sequence[Doorbell]:
        """Release a slot whose lease is over, unless its node may run; ring if the node is ready."""
        version, run_id, text = name.split("|", 2)
        claim, _, text = text.partition("|")
        node, _, key = text.partition("\n")
        record = self.partition_of(run_id).limits.node(run_id, node)
        status = record.status if record and claim_name(record) == claim else None
        if status is Status.RUNNING:
            return ()
        how = "leave" if record is None else "drop"
        member = f"@{claim}|{run_id}|{node}"
        try:
            offered = home.limits.drop(how, key, member, version)
        except StoreError as error:
            log.warning("limit.later: %s A slot of %r is free later.", error, key)
            return ()
        members = [tuple(node_of(each).split("|", 1)) for each in offered]
        if status is Status.READY:
            members.append((run_id, node))
        return [bell for member in members for bell in self._offer(*member)]

    def _change_limit(self, request: ChangeLimit) -> Reply:
        """Change a limit's setting in every partition, last in the first one, which lists settings."""
        for partition in self._partitions[1:]:
            partition.do(replace(request, event=""))
        return self._first.do(request)

    def _copy_limits(self) -> None:
        """Copy the settings of limits to partitions that were added later."""
        settings = self._first.limits.settings()
        for partition in self._partitions[1:] if settings else ():
            for name in settings.keys() - partition.limits.settings().keys():
                partition.do(
                    ChangeLimit(
                        name,
                        functools.partial(lambda setting, _: setting, settings[name]),
                        "",
                        "",
                    )
                )

    def _retry(self, request: RetryVisit) -> Reply:
        """Retry a visit; if that paused a limit's key, pause it in every partition."""
        partition = self.partition_of(request.run_id)
        name = request.limit
        reply = self._do(partition, request)
        if not name or (paused := partition.limits.settings().get(name)) is None:
            return reply

        def change(setting: LimitSetting) -> LimitSetting:
            for pause in paused.pauses:
                if pause.by == request.by and setting.paused_until(pause.key) < pause.ends_at:
                    setting = setting.pause(pause)
            return setting

        self._each(lambda other: other.do(ChangeLimit(name, change, "", "")))
        return reply

    def _do_with_sum(self, request: Any) -> Any:
        return self._of_sum(request.run_id, request.tagged).do(request)

    def _thaw(self, request: ThawScope) -> Reply:
        reply = self._first.do(request)
        if reply.word == "thawed":
            self._each(lambda partition: partition.requests.wake_ready_nodes())
        return reply

    def _share_slots(self, request: ShareSlots) -> Reply:
        shared = replace(request, partitions=len(self._partitions))
        replies = self._each(lambda partition: self._do(partition, shared))
        return Reply("sized", [bell for reply in replies for bell in reply.doorbells])

    def _each(self, ask: Callable[[RedisStore], Result]) -> list[Result]:
        """Ask every partition; one that can't be reached doesn't block the others."""
        replies = []
        for partition in self._partitions:
            try:
                replies.append(ask(partition))
                self._left_out.discard(partition)
            except StoreError as error:
                if partition not in self._left_out:
                    log.warning(
                        "partition.left_out: %s There, limits may not pause and nodes begin some seconds "
                        "later.",
                        error,
                    )
                self._left_out.add(partition)
        return replies

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        by_partition = grouped(tokens, lambda token: self.partition_of(token.run_id))
        words: dict[Token, str] = {}
        for partition, own in by_partition.items():
            try:
                words |= zip(own, partition.renew(own), strict=True)
            except StoreError as error:
                if len(by_partition) == 1:
                    raise
                log.warning("lease.renewal.failed: %s Trying again.", error)
        return [words.get(token, "") for token in tokens]

    # Questions

    keep_early = _where_it_is(RedisStore.keep_early)
    votes = _where_it_is(RedisStore.votes)

    def standings(self, ids: Sequence[str]) -> list[Standing]:
        return self._of_each(ids, RedisStore.standings)

    def _of_each(
        self, ids: Sequence[str], read: Callable[[RedisStore, list[str]], list[Item]]
    ) -> list[Item]:
        """Read items by the ids of questions, at once from each partition."""
        items: dict[str, Item] = {}
        for partition, names in grouped(dict.fromkeys(ids), self.partition_of).items():
            items |= zip(names, read(partition, names), strict=True)
        return [items[name] for name in ids]

    def interrupts(self, ids: Sequence[str], voter: str = "") -> list[Interrupt | None]:
        return self._of_each(ids, lambda store, names: store.interrupts(names, voter))

    answerers = _where_it_is(RedisStore.answerers)
    requester = _where_it_is(RedisStore.requester)

    def open_interrupts(
        self,
        query: InterruptQuery = interface.EVERY_QUESTION,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[Interrupt]:
        if query.run:
            return self.partition_of(query.run).open_interrupts(query, limit, cursor)
        pages = [
            functools.partial(partition.open_interrupts, query)
            for partition in self._partitions
        ]
        return merged(pages, limit, cursor, query.position, newest=False)

    def count_questions(self, queries: Sequence[InterruptQuery]) -> list[int]:
        return [
            sum(counts)
            for counts in zip(
                *(one.count_questions(queries) for one in self._partitions), strict=True
            )
        ]

    # The archive

    def archivable(
        self,
        place: str,
        limit: int,
        *,
        pause: float,
        mine: float,
        hold: float,
        problem: str = "",
    ) -> list[str]:
        """Take ended runs to archive, as `RedisStore.archivable`; each time another partition is first."""
        self._rotation += 1
        runs: list[str] = []
        for number in range(len(self._partitions)):
            partition = self._partitions[(number + self._rotation) % len(self._partitions)]
            # Each partition is called, even with a limit of 0, to learn that an archive exists.
            left = limit - len(runs)
            runs += partition.archivable(
                place, left, pause=pause, mine=mine, hold=hold, problem=problem
            )
        return runs

    def archived(self, runs: Mapping[str, int]) -> None:
        for partition, run_ids in grouped(runs, self.partition_of).items():
            partition.archived({run_id: runs[run_id] for run_id in run_ids})

    # Freezes

    signed = _where_it_is(RedisStore.signed)
    frozen = _where_it_is(RedisStore.frozen)
    limit_settings = _where_it_is(RedisStore.limit_settings)

    # Time

    def sweep(self, limit: int = 100) -> Reply:
        """Sweep every partition; an unreachable partition doesn't block the others.

        Unless it is the first, one whose server hangs is skipped for twice the time that this took.
        """
        count = 0
        doorbells = list[Doorbell]()
        failed: StoreError | None = None
        fired = list[tuple[str, str]]()
        for partition in self._partitions:
            began = time.monotonic()
            if partition is not self._first and began < self._away.get(partition, 0.0):
                continue
            try:
                reply = self._rung(partition, partition.sweep(limit))
            except StoreError as error:
                failed = failed or error
                if partition not in self._away:
                    log.warning("sweep.failed: %s The other partitions are swept.", error)
                self._away[partition] = 3 * time.monotonic() - 2 * began
                continue
            self._away.pop(partition, None)
            count += reply.count
            doorbells += reply.doorbells
            for kind, name in reply.fired:
                if kind == SLOT:
                    doorbells += self._check_slot(partition, name)
                else:
                    fired.append((kind, name))
        if failed and len(self._away) == len(self._partitions):
            raise failed
        return Reply("swept", doorbells, fired=fired, count=count)

    # Reading

    read = _where_it_is(RedisStore.read)
    read_unless_executing = _where_it_is(RedisStore.read_unless_executing)
    peek = _where_it_is(RedisStore.peek)
    fetch = _where_it_is(RedisStore.fetch)
    documents = _where_it_is(RedisStore.documents)
    children = _where_it_is(RedisStore.children)
    events = _where_it_is(RedisStore.events)
    waited = _where_it_is(RedisStore.waited)
    tags = _where_it_is(RedisStore.tags)

    def runs(
        self, query: RunQuery = interface.EVERY_RUN, limit: int = 100, cursor: str = ""
    ) -> Page[RunSummary]:
        pages = [functools.partial(partition.runs, query) for partition in self._partitions]
        return merged(pages, limit, cursor, lambda run: run.position, newest=True)

    # Times that processes measure are in the first partition, times until answers in their runs' partitions

    def measure(self, increments: Increments) -> None:
        self._first.measure(increments)

    # Budgets. A tag's budget is in one partition.

    def spent(self, run_id: str, tagged: Tagged | None = None) -> dict[str, Sum]:
        return self._of_sum(run_id, tagged).spent(run_id, tagged)

    def _of_sum(self, run_id: str, tagged: Tagged | None) -> RedisStore:
        if tagged is None:
            return self.partition_of(run_id)
        return self._partitions[
            zlib.crc32(f"{tagged.tag}={tagged.value}".encode()) % len(self._partitions)
        ]

    # Sessions. Each has a home partition. A settle elsewhere leaves its part of a session in the run's
    # partition, in the same script; then the part is moved to the home. A reader of the session first moves
    # remaining parts.

    def session(self, session_id: str) -> Session:
        home = self._home(session_id)
        self._gather(session_id, home)
        return home.session(session_id)

    def forget_session(self, session_id: str) -> bool:
        home = self._home(session_id)
        self._gather(session_id, home)
        existed = home.forget_session(session_id)
        for partition in (home, *self._partitions):
            partition.sessions.forget_parts(session_id)
        return existed

    def _home(self, session_id: str) -> RedisStore:
        return self._partitions[self._layout.session_home(session_id)]

    def _gather(self, session_id: str, home: RedisStore) -> None:
        for partition in self._partitions:
            if partition is not home:
                self._move(session_id, partition, home)

    def _move(self, session_id: str, partition: RedisStore, home: RedisStore) -> None:
        while (part := partition.sessions.take_part(session_id)) is not None:
            home.sessions.add_part(session_id, str(self._partitions.index(partition)), part)
            partition.sessions.drop_part(session_id, part)


SharedStore = RedisStore | PartitionedStore
"""A store that several processes share."""


def connections(store: SharedStore) -> Sequence[RedisConnection]:
    """Return the connection of each partition: a thread that uses the store already has them."""
    return [store.connection] if isinstance(store, RedisStore) else store.connections


def _as_part(session: SessionUpdate) -> SessionUpdate:
    """Wrap a visit's part of a session whose home is elsewhere, so that deletions are moved, too."""
    state: JSONObject = {name: [value] for name, value in session.state.items()}
    return replace(session, state=state | {name: [] for name in session.gone}, gone=[])


Fetch = Callable[[int, str], Page[Item]]
"""A function that reads a page of one partition: at most a number of items after a cursor."""


def merged(
    pages: Sequence[Fetch[Item]],
    limit: int,
    cursor: str,
    position_of: Callable[[Item], tuple[int, str]],
    *,
    newest: bool,
) -> Page[Item]:
    """Merge the pages of several listings; the cursor has a position in each, or one for all.

    Raises:
        UsageError: it isn't the cursor of a listing with this number of partitions.
    """
    positions = cursor.split(SEPARATOR)
    positions *= len(pages) if len(positions) == 1 else 1
    if len(positions) != len(pages):
        raise UsageError(
            f"{cursor!r} is no cursor of a listing of {len(pages)} partitions; pass the `next` of the "
            "previous page, or none to begin."
        )
    read = [
        Page(()) if position == ENDED else fetch(limit, position)
        for fetch, position in zip(pages, positions, strict=True)
    ]
    found = sorted(
        (
            (position_of(item), source, item)
            for source, page in enumerate(read)
            for item in page
        ),
        key=lambda entry: entry[0],
        reverse=newest,
    )
    # No listing may go past the end of another's page while that listing has more.
    ends = [position_in(page.next) for page in read if page.next]
    if ends:
        last = max(ends) if newest else min(ends)
        found = [entry for entry in found if (entry[0] >= last if newest else entry[0] <= last)]
    taken = found[:limit]
    left = found[limit:]
    counts = [sum(source == number for _, source, _ in taken) for number in range(len(pages))]
    following = []
    for page, position, count in zip(read, positions, counts, strict=True):
        if count == len(page):
            following.append(page.next or ENDED)
        else:
            # Also for a listing that gave nothing: its beginning would return newer items than this page.
            following.append(cursor_of(position_of(taken[-1][2])) if taken else position)
    more = left or any(position != ENDED for position in following)
    return Page(tuple(item for *_, item in taken), SEPARATOR.join(following) if more else None)
