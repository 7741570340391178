"""Requests in Redis: the script or transaction for each, and its read set.

Most are planned in a transaction, as `runner.store.requests` says. Claims, checkpoints and settles have
separate scripts, which decline unusual cases; events and spending have separate scripts, too.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from runner.approvals import ballots
from runner.approvals.ballots import Submission
from runner.approvals.voting import ApplyOperation, CastVote
from runner.definition.model import AFTER_GRAPH, Topology, item_id, shape_name
from runner.errors import StoreError
from runner.records import budgets
from runner.records.budgets import Tagged
from runner.records.checkpoints import Saved
from runner.records.codec import LazyValue
from runner.records.interrupts import Interrupt, ReceiptStatus, address_of, run_of
from runner.records.run import Status
from runner.scheduler.changes import stops
from runner.store import encoding
from runner.store.apply_transition import JTI
from runner.store.encoding import (
    CHUNK,
    FUNCTION_ENTRY,
    LARGE,
    WRITTEN,
    doorbells_of,
    dump,
    event_data,
    question_fields,
    reply_of,
)
from runner.store.interface import Claim, Doorbell, Handlers, R, Reply, Request, Start, Token
from runner.store.redis import absences, freezes, grants, ledger, measurements, packed_runs
from runner.store.redis.connection import Argument
from runner.store.redis.fast.fast_path import FastPath
from runner.store.redis.fast.plan_arguments import ClaimRead
from runner.store.redis.keys import (
    LIMITS,
    PASSKEYS,
    TEMPLATE,
    idempotency_key,
    run_key,
    shape_key,
)
from runner.store.redis.transaction import questions, run_end
from runner.store.redis.transaction.questions import votes_field
from runner.store.redis.transaction.sets import (
    CONSTANT,
    Command,
    ReadSet,
    StoreSettings,
    WriteSet,
)
from runner.store.redis.transaction.transaction import (
    HEAD,
    OPEN,
    Call,
    LimitAway,
    Plan,
    Transaction,
    Transactions,
    of_run,
)
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    CancelRun,
    ChangeAbsence,
    ChangeGrant,
    ChangeLimit,
    ClaimVisit,
    CloseRaise,
    DrainRun,
    EmitEvent,
    ExpandMap,
    ForkRun,
    FreezeScope,
    MigrateRuns,
    OpenRaise,
    ParkVisit,
    PassOver,
    RemoveRun,
    ReportResult,
    RetryVisit,
    RewriteRuns,
    SaveCheckpoint,
    SettleVisit,
    ShareSlots,
    SpendBudget,
    StartRun,
    ThawScope,
    UseDecision,
    UseGrant,
    VisitRequest,
    WithdrawQuestion,
    owned,
)

log = logging.getLogger(__name__)

Fields = list[tuple[str, str]]
"""Fields of hashes: (key, field)."""

WOKEN_AT_ONCE = 500
"""Timers that one request examines after a thaw, or when a limit is relaxed."""


class Requests:
    """Applies the requests of a RedisStore."""

    def __init__(
        self,
        call: Call,
        transactions: Transactions,
        fast: FastPath,
        settings: StoreSettings,
    ) -> None:
        """Take the parts of the store; `call` runs a script."""
        self._call = call
        self._transactions = transactions
        self._fast = fast
        self._settings = settings
        self._has_archive, self._has_template = False, True
        self._ahead = threading.local()
        self._handlers: Handlers = {
            AnswerQuestions: self._answer,
            ApplyOperation: self._operate,
            AskQuestions: self._wait,
            CastVote: self._vote,
            ChangeAbsence: self._change_absence,
            ChangeGrant: self._change_grant,
            ChangeLimit: self._change_limit,
            ClaimVisit: self._claim,
            CloseRaise: self._close_raise,
            EmitEvent: self._emit,
            ExpandMap: self._expand,
            FreezeScope: self._freeze,
            OpenRaise: self._open_raise,
            ParkVisit: self._wait,
            PassOver: self._pass_over,
            RemoveRun: self._remove,
            SaveCheckpoint: self._save,
            SettleVisit: self._settle,
            ShareSlots: self._share_slots,
            SpendBudget: self._spend,
            StartRun: self._start,
            ThawScope: self._thaw,
            UseDecision: self._use,
            UseGrant: self._use_grant,
        }

    def do(self, request: Request[R]) -> R:
        """Apply a request with the handler for its type, or else in a transaction by its plan."""
        reply: R = self._handlers.get(type(request), self._plan)(request)
        return reply

    def _plan(self, request: Request[Reply]) -> Reply:
        fields, commands = _reads(request)
        return self._transactions.run(
            request.verb,
            request.plan,
            fields,
            commands,
            makes_room=isinstance(request, RetryVisit | CancelRun | DrainRun),
        )

    # One visit on a worker

    def _start(self, request: StartRun) -> Reply:
        start = request.start
        topologies = self._settings.topologies
        graph_id = start.graph_id
        key = start.idempotency_key
        asks: list[Command] = [("GET", idempotency_key(graph_id, key))] if key else []
        wants = of_run(start.run_id)
        if start.parent is not None:
            wants += _of_visit(start.parent)
        elif fingerprint := start.fingerprint or topologies.latest.get(graph_id, ""):
            topology = topologies.get(fingerprint)
            rules = topology.admission if topology else None
            if rules:
                asks += [("ZCARD", f"runs:{status}:{graph_id}") for status in OPEN]
            if not rules or not rules.by:
                speculation = _speculate(
                    start, fingerprint, asks, has_template=self._has_template
                )

                def plan(transaction: Transaction) -> Reply:
                    self._has_template = bool(
                        transaction.write_set.read_set.reply("EXISTS", TEMPLATE)
                    )
                    return request.plan(transaction)

                return self._transactions.run("start", plan, speculation=speculation)
        if start.fingerprint is None:
            wants.append(("graphs", graph_id))
        return self._transactions.run("start", request.plan, wants, asks)

    def _claim(self, request: ClaimVisit) -> Claim | Reply:
        """Claim a visit, and remove its doorbell from the window of its queue, if keys share the queue."""
        reply, topology = self._claim_visit(request)
        rung = self._arrive(request, topology)
        return replace(reply, doorbells=[*reply.doorbells, *rung]) if rung else reply

    def _pass_over(self, request: PassOver) -> Reply:
        topology = self._settings.topologies.get(request.fingerprint)
        return Reply("passed", self._arrive(request, topology))

    def _arrive(
        self, request: ClaimVisit | PassOver, topology: Topology | None
    ) -> Sequence[Doorbell]:
        node = topology.nodes.get(shape_name(request.node)) if topology else None
        if topology is None or topology.fairness is None or node is None:
            return ()
        task = f"{request.run_id}.{request.node}.{request.visit}.{request.attempt}"
        try:
            lane = node.queue, node.priority
            return doorbells_of(self._call("arrive", *lane, task, verb=request.verb))
        except StoreError as error:
            log.warning("fairness.later: %s The next node may begin some seconds later.", error)
            return ()

    def _share_slots(self, request: ShareSlots) -> Reply:
        """Write the sizes of windows, and ring while they have room, also after failed arrivals."""
        reply = self._plan(request)
        rung = list[Doorbell]()
        for queue in request.slots:
            word = b"more"
            while word == b"more":
                word, *bells = self._call("arrive", queue, "", "", verb=request.verb)
                rung += doorbells_of([word, *bells])
        return replace(reply, doorbells=rung)

    def _claim_visit(self, request: ClaimVisit) -> tuple[Claim | Reply, Topology | None]:
        run_id = request.run_id
        node = request.node
        visit = (run_id, node, request.visit, request.attempt, request.nonce)
        claim_reply, topology = self._fast.claim(*visit)
        if claim_reply is not None:
            return claim_reply, topology
        make_claim: list[Callable[[], Claim]] = []

        def plan(transaction: Transaction) -> Reply:
            nonlocal topology
            run = transaction.find(run_id)
            reply = request.plan(transaction)
            topology = run.topology if run else None
            if run and reply.word == "claimed":
                make_claim[:] = [self._fast.claim_from(run, node)]
            return reply

        wants = of_run(
            run_id, f"n:{node}", f"q:{node}", f"k:{node}", *self._fast.needed(run_id, node)
        )
        wants += [(LIMITS, name) for name in self._fast.limits(run_id, node)]
        try:
            reply = self._transactions.run("claim", plan, wants)
        except LimitAway as error:
            log.warning("limit.away: %s Node %s of run %s waits for it.", error, node, run_id)
            return Reply("limited"), topology
        return (make_claim[0]() if reply.word == "claimed" else reply), topology

    def _save(self, request: SaveCheckpoint) -> Reply:
        token = request.token
        _forget_kept(token)
        saved = encoding.saved_arguments(request.saved)
        return reply_of(self._call("save", *token_arguments(token), *saved))

    def _use(self, request: UseDecision) -> Reply:
        token = request.token
        written = list[WriteSet]()

        def plan(transaction: Transaction) -> Reply:
            written[:] = [transaction.write_set]
            return request.plan(transaction)

        wants, asks = _reads(request)
        speculation = (
            self._fast.speculate(token) if self._fast.knows(token, [request.use]) else None
        )
        reply = self._transactions.run(request.verb, plan, wants, asks, speculation=speculation)
        self._fast.note_use(token, request.saved, written[0])
        return reply

    def _wait(self, request: AskQuestions) -> Reply:
        token = request.token
        interrupts = request.interrupts
        parks = isinstance(request, ParkVisit)

        def plan(transaction: Transaction) -> Reply:
            reply = request.plan(transaction)
            if reply.word in {"asked", "waiting", "ready"}:
                transaction.bound_size(token.run_id)
            return reply

        ruled = [question.id for question in interrupts if question.rule is not None]
        fields = [field for question in interrupts for field in question_fields(question.id)]
        fields += [f"q:{token.node}", *map(votes_field, ruled)]
        wants, asks = _of_visit_saving(token, request.saved, *fields)
        wants += [("early", f"?{question.id}") for question in interrupts]
        # The digest of a question with a rule covers its expiry, which needs the time of a look.
        speculation = self._fast.speculate(token, interrupts) if parks and not ruled else None
        _forget_kept(token)
        return self._transactions.run(
            request.verb, plan, wants, asks, makes_room=parks, speculation=speculation
        )

    def _settle(self, request: SettleVisit) -> Reply:
        token = request.token
        settlement = request.settlement
        nonce = request.nonce
        completes = settlement.status is Status.COMPLETED
        output = settlement.output
        texts = []
        if completes:
            entry = dump(settlement.entry).removeprefix(FUNCTION_ENTRY)
            texts = self._encode(
                token, entry, output if isinstance(output, LazyValue) else dump(output)
            )
        if texts:
            claim_reply = self._fast.settle(token, settlement, nonce, *texts)
            if claim_reply is not None:
                return claim_reply
        repeats = False

        def plan(transaction: Transaction) -> Reply:
            nonlocal repeats
            run = transaction.find(token.run_id)
            repeats = run is not None and run.node(token.node).nonce == nonce
            stopping = run is None or stops(transaction.changes(run), token.node)
            if run is not None:
                run.encoded[token.node, token.visit] = texts
            reply = request.plan(transaction)
            if run is not None and reply.word == "settled":
                self._has_archive = transaction.write_set.exists(run_end.ARCHIVE)
                attempt = run.node(token.node).attempt
                transaction.write_set.rung_by = (
                    f"{token.run_id}.{token.node}.{token.visit}.{attempt}"
                )
                if completes and not stopping and token.node != AFTER_GRAPH:
                    transaction.bound_size(token.run_id)
            return reply

        fields = [f"n:{node}" for node, _, _ in settlement.reads]
        for use in settlement.effects:
            fields += question_fields(use.interrupt_id)
        wants, asks = _of_visit_saving(token, settlement.saved, *fields)
        asks += run_end.end_reads(token.run_id)
        is_plain = completes and not settlement.session
        is_plain = is_plain and self._fast.knows(token, settlement.effects)
        speculation = (
            self._fast.speculate(token, has_archive=self._has_archive) if is_plain else None
        )
        reply = self._transactions.run(
            "settle", plan, wants, asks, makes_room=True, speculation=speculation
        )
        if settlement.may_continue and repeats and reply.word == "settled":
            return Reply("settled", claim=self._fast.repeat_claim(token, nonce))
        return reply

    def _expand(self, request: ExpandMap) -> Reply:
        # A long list is written in several requests, so that it doesn't block other clients. A run that stops
        # needs no more of them; the last one begins the map.
        token = request.token
        rows = self._encode(token, *map(dump, request.items or ()))
        size = sum(map(len, rows))
        texts = rows
        mark = ""
        step = CHUNK
        if len(rows) > CHUNK:
            mark = "#"
            texts = [b"\n".join(rows[at : at + CHUNK]) for at in range(0, len(rows), CHUNK)]
            step = max(1, WRITTEN // max(map(len, texts)))
        name = f"{token.node}.{token.visit}.{mark}"
        fields = [(f"{name}{number}", text) for number, text in enumerate(texts)]
        while len(fields) > step:
            put = functools.partial(self._put_rows, token, dict(fields[:step]), size)
            if self._transactions.run("expand", put, _of_visit(token)).word != "more":
                break
            del fields[:step]
        stored_request = replace(request, items=rows) if rows else request

        def plan(transaction: Transaction) -> Reply:
            self._put_rows(token, dict(fields[:step]), size, transaction)
            reply = stored_request.plan(transaction)
            if reply.word == "expanded":
                transaction.bound_size(token.run_id)
            return reply

        begun = (f"n:{item_id(token.node, index)}" for index in range(min(CHUNK, len(rows))))
        return self._transactions.run(
            "expand", plan, _of_visit(token, f"m:{token.node}", *begun)
        )

    def _put_rows(
        self, token: Token, fields: Mapping[str, bytes], size: int, transaction: Transaction
    ) -> Reply:
        """Write some items of a map unless it has begun, its run stops, or another worker owns it."""
        run = owned(transaction, token)
        if run is None or run.record.stopping or run.map(token.node).visit == token.visit:
            return Reply("unwanted")
        run.put_rows(fields)
        run.check_size(size, self._settings.most())
        return Reply("more")

    def _encode(self, token: Token, *values: bytes | LazyValue) -> list[bytes]:
        """Store large values of a run and return references to them; return other values unchanged."""
        return [
            data
            if isinstance(data, bytes) and len(data) <= LARGE
            else self._settings.shelve(token.run_id, data)
            for data in values
        ]

    # Operations of people

    def _answer(self, request: AnswerQuestions) -> Reply:
        wants = [
            field for answer in request.answers for field in _of_question(answer.interrupt_id)
        ]
        return self._transactions.run("answer", request.plan, wants)

    def _vote(self, request: CastVote) -> Reply:
        def plan(transaction: Transaction) -> Reply:
            reply = request.plan(transaction)
            if reply.receipts[0].status in {ReceiptStatus.ACCEPTED, ReceiptStatus.COUNTED}:
                transaction.write_set.measure(measurements.vote(str(request.ballot.decision)))
            return reply

        return self._on_question(plan, "vote", request.ballot)

    def _operate(self, request: ApplyOperation) -> Reply:
        return self._on_question(request.plan, request.operation.kind, request.operation)

    def _on_question(self, plan: Plan, verb: str, operation: Submission) -> Reply:
        """Apply a person's vote or operation on a question with a rule."""
        name = operation.interrupt_id
        voter = operation.voter.principal.key
        jti = ballots.jti_of(operation)
        wants = _of_vote(name, voter, *([] if jti is None else [f"{JTI}{jti}"]))
        if (counter := operation.voter.counter) is not None:
            wants.append((PASSKEYS, counter[0]))
        ahead = vars(self._ahead).pop("reads", {}).get(f"{name}|{voter}")
        return self._transactions.run(verb, plan, wants, speculation=ahead)

    def question_before_vote(self, name: str, voter: str) -> Interrupt | None:
        """Read a question, with all that the voter's vote on it reads if this thread casts it next."""
        ahead = ReadSet()
        ahead.request(_of_vote(name, voter), [("EXISTS", TEMPLATE)])
        self._transactions.look(ahead, "vote")
        ahead.is_speculative = ahead.has_entries = True
        self._ahead.reads = {f"{name}|{voter}": ahead}
        return questions.question(WriteSet(ahead, self._settings), run_key(run_of(name)), name)

    def _remove(self, request: RemoveRun) -> Reply:
        def plan(transaction: Transaction) -> Reply:
            run = run_end.read_record(transaction.write_set, request.run_id)
            if run is None:
                return Reply("unknown")
            if run.parent:
                return Reply("inside")
            if run_end.in_use(run):
                return Reply("goes_on")
            transaction.write_set.read(run_key(request.run_id), "run")
            ledger.note_removal(transaction.write_set, run)
            run_end.remove(transaction.write_set, run)
            return Reply("removed")

        return self._transactions.run("remove", plan, makes_room=True)

    def _change_limit(self, request: ChangeLimit) -> Reply:
        reply = self._transactions.run(
            "limit", request.plan, [(LIMITS, request.name)], makes_room=True
        )
        if reply.word == "relaxed":
            self.wake_ready_nodes()
        return reply

    def _change_absence(self, request: ChangeAbsence) -> Reply:
        return self._change(
            "absence", [(absences.ABSENCES, request.who)], absences.change, request
        )

    def _change_grant(self, request: ChangeGrant) -> Reply:
        return self._change(
            "grant", [(grants.GRANTS, request.grant_id)], grants.change, request
        )

    def _change(
        self, verb: str, wants: Fields, change: Callable[..., Reply], *arguments: object
    ) -> Reply:
        return self._transactions.run(
            verb,
            lambda transaction: change(transaction.write_set, *arguments),
            wants,
            makes_room=True,
        )

    def _use_grant(self, request: UseGrant) -> Reply:
        key = grants.uses_key(request.grant_id)
        names = ["used", f"key:{request.key}", *(f"sum:{name}" for name in request.amounts)]
        wants = [(grants.GRANTS, request.grant_id), *((key, name) for name in names)]
        return self._transactions.run(
            "use_grant", lambda transaction: grants.use(transaction.write_set, request), wants
        )

    def _freeze(self, request: FreezeScope) -> Reply:
        return self._change(
            "freeze", [(freezes.FROZEN, request.scope)], freezes.freeze, *astuple(request)
        )

    def _thaw(self, request: ThawScope) -> Reply:
        thawed = Reply("unknown")

        def thaw(write_set: WriteSet) -> Reply:
            nonlocal thawed
            reply = freezes.thaw(write_set, *astuple(request))
            # A repeat after a lost reply finds nothing to thaw.
            thawed = reply if reply.word == "thawed" else thawed
            return thawed

        reply = self._change("thaw", [(freezes.FROZEN, request.scope)], thaw)
        if reply.word == "thawed":
            self.wake_ready_nodes()
        return reply

    def wake_ready_nodes(self) -> None:
        """Make the doorbells of ready nodes that a freeze or a limit has delayed due now."""
        start, count = 0, WOKEN_AT_ONCE
        while count == WOKEN_AT_ONCE:
            _, count = self._call("wake_ready", start, WOKEN_AT_ONCE)
            start += WOKEN_AT_ONCE

    # Events and budgets

    def _emit(self, request: EmitEvent) -> None:
        run_id = request.run_id
        kind = request.kind
        data = event_data(kind, request.data)
        while (
            self._call("emit", run_id, kind, request.node, request.visit, data)[0] == b"packed"
        ):
            packed_runs.unpack(self._call, run_id)

    def _spend(self, request: SpendBudget) -> str:
        tagged = request.tagged
        spending = request.spending
        sum_of = (f"{tagged.tag}={tagged.value}", tagged.window) if tagged else ("", 0)
        raises = [
            item for question, raised in spending.raises.items() for item in (question, *raised)
        ]
        arguments: list[Argument] = [len(spending.raises), *raises]
        for pairs in (sorted(spending.bounds.items()), spending.amounts.items()):
            arguments += [len(pairs), *(item for pair in pairs for item in pair)]
        head = (request.run_id, *sum_of, spending.who, spending.nonce)
        return str(self._call("spend", *head, *arguments)[1].decode())

    def _open_raise(self, request: OpenRaise) -> str:
        def plan(transaction: Transaction) -> Reply:
            fields = _sum_fields(transaction.write_set, request.run_id, request.tagged)
            asker = budgets.open_raise(
                fields, request.counter, request.visit, request.instead_of
            )
            return Reply("asked", detail=asker)

        return self._transactions.run(request.verb, plan).detail

    def _close_raise(self, request: CloseRaise) -> list[str]:
        waiting: list[str] = []

        def plan(transaction: Transaction) -> Reply:
            fields = _sum_fields(transaction.write_set, request.run_id, request.tagged)
            waiting[:] = budgets.close_raise(
                fields, request.counter, request.visit, request.refusal
            )
            return Reply("closed")

        self._transactions.run(request.verb, plan, makes_room=True)
        return waiting


def _sum_fields(write_set: WriteSet, run_id: str, tagged: Tagged | None) -> budgets.RaiseFields:
    """Open the sum of a tag, or of an outermost run; empty if the run is gone."""
    if tagged is not None:
        key = f"budget:{tagged.key(write_set.read_set.now)}"
        write_set.command("PEXPIRE", key, 2 * tagged.window)
        return _SumFields(write_set, key, "")
    root = write_set.read_unvalidated(run_key(run_id), "root", CONSTANT)
    key = run_key(root.decode() if root else run_id)
    return _SumFields(write_set, key, "b:") if write_set.read(key, "of") else {}


@dataclass
class _SumFields:
    """The fields of a sum in a transaction."""

    _write_set: WriteSet
    _key: str
    _mark: str

    def get(self, name: str) -> str | None:
        value = self._write_set.read(self._key, self._mark + name)
        return None if value is None else value.decode()

    def __setitem__(self, name: str, value: str) -> None:
        self._write_set.put(self._key, self._mark + name, value)

    def pop(self, name: str, default: None) -> str | None:
        value = self.get(name)
        if value is not None:
            self._write_set.drop(self._key, self._mark + name)
        return default if value is None else value


def _reads(request: Request[Any]) -> tuple[Fields, list[Command]]:
    """Return the read set of a request's plan: fields and commands."""
    match request:
        case RetryVisit(token, _, _, saved):
            return _of_visit_saving(token, saved)
        case UseDecision(token, use, saved):
            return _of_visit_saving(token, saved, *question_fields(use.interrupt_id))
        case VisitRequest(token):
            return _of_visit(token), []
        case ReportResult(run_id, node, _, reference):
            return of_run(run_id, f"n:{node}", f"h:{reference}"), []
        case CancelRun(run_id):
            return of_run(run_id, "cancel"), []
        case WithdrawQuestion(name):
            return _of_question(name), []
        case RewriteRuns(runs) | MigrateRuns(runs):
            return [field for run in runs for field in of_run(run.run_id, "again")], []
        case ForkRun(fork):
            key = run_key(fork.source)
            fields = [*of_run(fork.start.run_id), *of_run(fork.source)]
            fields += [
                (key, f"{kind}:{node}.{visit}") for node, visit in fork.results for kind in "xo"
            ]
            for node in fork.remembers:
                fields += [(key, f"k:{node}"), (f"{key}:m", f"#{node}")]
            return fields, []
    return of_run(request.run_id), []


def _of_visit(token: Token, *names: str) -> Fields:
    """Name the fields that a request for a visit reads."""
    return of_run(token.run_id, f"n:{token.node}", *names)


def _of_visit_saving(
    token: Token, saved: Saved | None, *names: str
) -> tuple[Fields, list[Command]]:
    """Return the read set of a request that may write a checkpoint: fields and commands."""
    fields = _of_visit(token, *names)
    if saved is None:
        return fields, []
    key = run_key(token.run_id)
    return [(f"{key}:m", f"#{token.node}"), *fields], [("HSTRLEN", key, f"k:{token.node}")]


def _of_question(interrupt_id: str, *names: str) -> Fields:
    """Name the fields that a request for a question reads; none if the id can't be a question's."""
    address = address_of(interrupt_id)
    if address is None:
        return []
    fields = question_fields(interrupt_id)
    return of_run(address.run_id, f"n:{address.node_id}", *fields, *names)


def _of_vote(name: str, *whose: str) -> Fields:
    return _of_question(name, votes_field(name), *(votes_field(name, each) for each in whose))


def _speculate(
    start: Start, fingerprint: str, asks: Sequence[Command], *, has_template: bool
) -> ReadSet:
    """Presume that a run is new, and its graph as this process knows it, so that it starts in one request.

    The doorbells' template is presumed to exist if it did at the last start.
    """
    fields: dict[str, dict[str, bytes | None]] = {
        run_key(start.run_id): dict.fromkeys(HEAD),
        shape_key(fingerprint): {"meta": b""},
        "graphs": {start.graph_id: fingerprint.encode()},
    }
    reads = ReadSet()
    reads.speculate(fields, {**dict.fromkeys(asks), ("EXISTS", TEMPLATE): int(has_template)})
    return reads


def _forget_kept(token: Token) -> None:
    """Note that a visit writes a checkpoint or questions, so that its claim's reads are outdated."""
    if isinstance(token.seen, ClaimRead):
        token.seen.kept = None


def token_arguments(token: Token) -> tuple[Argument, ...]:
    """Return a token as script arguments."""
    return (token.run_id, token.node, token.visit, token.fence)
