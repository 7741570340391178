"""The engine: starts runs, executes the nodes whose doorbells ring, and handles due timers.

Every entry point (Celery, streams, CLI, Client, tests) calls these few verbs. The engine claims a
visit from the store, runs the node's code, and commits the outcome. It holds no run's state, so any
number of engines in any number of processes may work on one store. People's operations on runs
(answers, retries, forks, migrations) are in `runner.operations`, which uses an engine's store and
its `ring`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import asdict
from types import MappingProxyType
from typing import Unpack

from runner import async_loop
from runner.approvals import freezes
from runner.approvals.decision_keys import DecisionKeys, SigningKey
from runner.approvals.freezes import WAIT_MS, Freezes
from runner.approvals.visit_judge import KnownGrants, VisitJudge
from runner.definition.registry import CompiledGraph, Registry
from runner.errors import (
    ApprovalMismatch,
    ConflictError,
    CorruptDocument,
    EffectsFrozen,
    LeaseLost,
    NodeFailed,
    PayloadTooLarge,
    RetryAfter,
    RunStopped,
    StoreError,
    UnstorableError,
)
from runner.execution import conditions, held_nodes, nodes, telemetry
from runner.execution.context import ClaimedVisit, never
from runner.execution.held_nodes import RETURN_DELAY_MS, UnservedNodes
from runner.execution.leases import Lease, Leases, Quarantine, SweepTimer
from runner.execution.runs import RunStarter, StartOptions, call_on_end
from runner.immutable import immutable
from runner.records import codec, failures, size_limits, validation
from runner.records.codec import JSON
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt
from runner.records.outcomes import (
    Delegated,
    Expanded,
    ExternalTask,
    Failed,
    Interrupted,
    Outcome,
    Succeeded,
)
from runner.records.run import EventKind, Status, VisitEntry, no_such_run
from runner.scheduler.changes import CALLBACK_NODE
from runner.store.interface import (
    Claim,
    Dispatcher,
    Reply,
    ReplyWord,
    Request,
    Rung,
    Settlement,
    Store,
    Token,
    UnreadableClaim,
)
from runner.store.requests import (
    CancelRun,
    ClaimVisit,
    ConfirmHandOver,
    DrainRun,
    EmitEvent,
    ExpandMap,
    HandOver,
    HoldVisit,
    LeaveVisit,
    ParkVisit,
    PassOver,
    ReportResult,
    RetryVisit,
    SettleVisit,
    new_nonce,
)

log = logging.getLogger(__name__)

CONDITION_TRIES = 3
"""Evaluations of conditions whose results changed meanwhile, before the run is locked."""

MOST_REASON = 300
"""Characters shown of the reason for which a node waits."""

DRAINS = 40
"""Steps of a stop that its caller runs itself."""

SETTLE_TRIES = 1_000
"""Attempts at a settle that meets another node's lock or changed results; then the lease runs out."""

LOCKED = 0.01
"""Seconds before retrying a settle that met another node's lock on the run."""


@immutable
class DoorbellOutcome:
    """Outcome of a doorbell: the store's reply, and why the node waits or failed, if it does.

    `child` is the run that a nested graph's node waits for. `reference` is the external task that a
    node waits for, or that may be revoked; `retry_in` is in seconds. `following` is a visit that
    the settle has claimed for this process, which must execute or leave it. `raised` is as in
    `Failed`.
    """

    word: ReplyWord
    graph_id: str = ""
    interrupts: Sequence[Interrupt] = ()
    child: str = ""
    reference: str = ""
    error: ErrorRecord | None = None
    retry_in: float | None = None
    following: Claim | None = None
    raised: BaseException | None = None


class Engine:
    """Runs graphs on a store. Thread-safe; share one per process.

    `is_stopping` returns whether a signal ends this process: a SystemExit in a node then comes from
    the signal and not from the node's own code. (Code that calls `sys.exit` fails its node; if it
    counted as a lost worker, it would end one process after the other.)
    """

    is_stopping: Callable[[], bool] = staticmethod(lambda: False)
    worker: str = "_".join(platform.node().split())
    """The name of the worker that this engine claims nodes for, without spaces, quotes and backslashes.

    A program that isn't a worker, for example a gate, has its machine's name.
    """

    fire: Mapping[str, Callable[[str], object]] = MappingProxyType({})
    """Handles a due schedule, job or webhook, by kind; a process that can't leaves it to another."""

    directory: str | None = None
    """The name of the directory that knows people's groups; None uses the settings' directory."""

    signing_level: int | None = None
    """The highest level at which this process signs for its own callers; None uses its key's level."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        registry: Registry,
        lease: float | None = None,
    ) -> None:
        """Use a lease of `lease` seconds, or the store's, which suits processes that may be lost."""
        self.store, self.registry = store, registry
        self.decision_keys = DecisionKeys()
        self._dispatcher = dispatcher
        self.leases = Leases(store, store.lease_ms / 1000 if lease is None else lease)
        self._starter = RunStarter(store, registry)
        self._unserved = UnservedNodes(store)
        self._quarantine = Quarantine(store)
        self.freezes = Freezes(store.frozen, registry.names_on)
        self._grants = KnownGrants(store)
        self._sweep_timer = SweepTimer(self.sweep)

    # -- verbs -------------------------------------------------------------------------------------

    @functools.cached_property
    def signing_key(self) -> SigningKey | None:
        """The key by which this process signs its own callers' decisions; None if it has no key."""
        from runner.settings import Settings  # noqa: PLC0415 - reading settings is slow, and rarely needed

        path = Settings().signing_key
        return SigningKey.read(path) if path else None

    @functools.cached_property
    def plain_issuer(self) -> str:
        """The issuer of names that are written without one; "" if none is set."""
        from runner.settings import Settings  # noqa: PLC0415 - as above

        return Settings().plain_names_issuer

    def start(self, graph_id: str, task: object, **options: Unpack[StartOptions]) -> str:
        """Start a run and return its id; the same idempotency key returns the same run.

        Raises:
            NotFoundError: neither this process nor any worker so far knows the graph.
            UnstorableError: the task or the state can't be stored.
        """
        return self.ring(self._starter.run(graph_id, task, options)).run_id

    def publish(self, names: Sequence[str]) -> None:
        """Publish this process's graphs and their nested graphs, and release held nodes that fit them."""
        self._starter.publish(names, replace=True)
        for reply in held_nodes.release(self.store, self.registry, names):
            self.ring(reply)

    def deliver(
        self,
        run_id: str,
        node: str,
        visit: int,
        attempt: int,
        *,
        nonce: str = "",
        may_continue: Callable[[], bool] = never,
    ) -> DoorbellOutcome:
        """Claim a visit, run its node and commit the outcome; a stale doorbell changes nothing.

        A lost claim is made again with its `nonce`. For `may_continue` see `execute`.
        """
        if node == CALLBACK_NODE:
            return DoorbellOutcome(call_on_end(self.store, self._dispatcher, run_id, visit))
        if self.freezes.known and self._is_frozen(run_id, node, visit, attempt):
            return DoorbellOutcome("frozen")
        try:
            claim = self._quarantine.claim(
                run_id, node, visit, attempt, nonce or new_nonce(self.worker)
            )
        except UnreadableClaim as error:
            return self._hold_refused(error, "", error)
        if isinstance(claim, Reply):
            if claim.delay_ms:
                self.sweep_in(claim.delay_ms / 1000)
            return DoorbellOutcome(self.ring(claim).word, reference=claim.reference)
        return self.execute(self.ring(claim), may_continue)

    def execute(
        self, claim: Claim, may_continue: Callable[[], bool] = never
    ) -> DoorbellOutcome:
        """Run the node of a claimed visit and commit the outcome.

        If `may_continue` returns true when the node has completed, its settle may claim the next
        one.
        """
        plan = self._find_plan(claim.graph_id)
        if plan is None or not nodes.unchanged(plan, claim):
            return DoorbellOutcome(self._hold_or_return(plan, claim), claim.graph_id)
        timeout = plan.node(claim.token.node).timeout or plan.definition.node_timeout
        timed_out = on_timeout = None
        if timeout is not None:
            timed_out = Future[DoorbellOutcome]()
            on_timeout = functools.partial(self._fail_timed_out, plan, claim, timed_out)
        lease = self.leases.hold(claim.token, timeout, on_timeout)
        try:
            # Changes that the node and its code make to their context end with it.
            delivery = copy_context().run(self._execute, plan, claim, lease, may_continue)
        except SystemExit:
            if self.is_stopping():  # by a signal, in a child of a pool
                self._release(claim.token)
            raise
        finally:
            self._quarantine.release(claim.token)
            self.leases.end(claim.token)
        # The code of a node that timed out may return much later; its Celery task ends as the node did.
        if timed_out and delivery.word == "stale" and lease.has_expired:
            return timed_out.result()
        return delivery

    def _is_frozen(self, run_id: str, node: str, visit: int, attempt: int) -> bool:
        """Return whether a run's nodes are frozen; if so, none is claimed, and doorbells ring again later."""
        record = self.store.peek(run_id)
        freeze = self.freezes.of(record.graph_id) if record else None
        if record is None or freeze is None:
            return False
        log.info("node.frozen: run %s waits: %s", run_id, freeze)
        self.do(PassOver(run_id, node, visit, attempt, record.fingerprint))
        return True

    def report(
        self, run_id: str, node: str, visit: int, reference: str, outcome: JSON
    ) -> ReplyWord:
        """Record an external task's packed outcome; return "reported", or "stale" or "unknown" if too late.

        Raises:
            PayloadTooLarge: the outcome is larger than a value may be; nothing was stored.
        """
        size_limits.check(f"the report on {reference}", outcome, self.store.max_bytes)
        return self.do(ReportResult(run_id, node, visit, reference, outcome)).word

    def cancel(self, run_id: str, reason: str) -> ReplyWord:
        """Stop a run; return "cancelled", or "already" if it is stopping or has ended.

        Raises:
            NotFoundError: the run doesn't exist. UsageError: the reason isn't a text, or is too long.
        """
        reply = self.do(CancelRun(run_id, validation.reason(reason), new_nonce()))
        if reply.word == "unknown":
            raise no_such_run(run_id)
        self.leases.look()
        if reply.detail:
            self._drain(run_id)
        return reply.word

    def _drain(self, run_id: str) -> None:
        """Cancel the nodes that a stop has left to a timer; the sweep does what `DRAINS` steps leave."""
        last_node = ""
        with contextlib.suppress(StoreError):
            for _ in range(DRAINS):
                reply = self.do(DrainRun(run_id, last_node))
                if reply.word != "after":
                    return
                last_node = reply.detail

    def end_without_worker(
        self, run_id: str, node: str, visit: int, attempt: int
    ) -> DoorbellOutcome | None:
        """Return the outcome of a visit that failed, was cancelled or whose question expired; else None."""
        ((record, _, entry),) = self.store.fetch(run_id, [node])
        if (record.visit, record.attempt) != (visit, attempt):
            return None
        if record.status is Status.CANCELLED:
            return DoorbellOutcome("cancelled")
        if entry is None:
            return None
        if record.status is Status.FAILED and "error" in entry:
            return DoorbellOutcome("settled", error=failures.load(entry["error"]))
        if record.status is Status.COMPLETED and entry.get("expired"):
            return DoorbellOutcome("settled")
        return None

    def end_revoked(self, run_id: str, node: str, visit: int, attempt: int) -> ReplyWord:
        """Fail a node whose task an operator revoked, if it would begin now; return the reply's word."""
        claim = self.ring(
            self.store.do(ClaimVisit(run_id, node, visit, attempt, new_nonce(self.worker)))
        )
        if isinstance(claim, Reply):
            return claim.word
        plan = self._find_plan(claim.graph_id)
        if plan is None or not nodes.unchanged(plan, claim):
            return self._hold_or_return(plan, claim)
        log.warning(
            "node.revoked: node %r of run %s fails: its task was revoked.", node, run_id
        )
        lease = self.leases.hold(claim.token)
        try:
            failed = self._visit(plan, claim, lease)
            error = failures.record(NodeFailed("an operator has revoked its Celery task."))
            return self._settle_failed(
                failed, Failed(error), nodes.entry(failed.spec.kind, 0, {})
            ).word
        finally:
            self.leases.end(claim.token)

    def sweep(self, limit: int = 100) -> int:
        """Handle due timers (lost leases, retries, lost doorbells, expiries); return their number."""
        reply = self.ring(self.store.sweep(limit))
        for kind, name in reply.fired:
            self._fire(kind, name)
        return reply.count

    def _fire(self, kind: str, name: str) -> None:
        """Handle a due schedule, job or webhook; an error of one doesn't delay the others."""
        try:
            if kind in self.fire:
                self.fire[kind](name)
        except StoreError:
            raise
        except Exception:
            log.exception("%s.failed: %r does nothing; it is tried again.", kind, name)

    def sweep_in(self, seconds: float) -> None:
        """Sweep again after so many seconds, for timers due before the next regular sweep."""
        self._sweep_timer.sweep_in(seconds)

    def running(self) -> list[Token]:
        return self.leases.held()

    def leave(self, tokens: Sequence[Token] | None = None) -> list[Token]:
        """Release claims, or every visit that this process runs, so that other workers start them at once.

        Later writes by the nodes' code are refused. Return the released claims.
        """
        return [
            token
            for token in (self.running() if tokens is None else tokens)
            if self._release(token)
        ]

    def do(self, request: Request[Reply]) -> Reply:
        """Make a request to the store, and publish the doorbells of its reply."""
        return self.ring(self.store.do(request))

    def ring(self, reply: Rung) -> Rung:
        """Publish the doorbells of a store's reply; a sweep rings a lost one again."""
        if reply.doorbells:
            try:
                self._dispatcher.ring(reply.doorbells)
            except StoreError as error:
                log.warning("doorbell.failed: %s The next sweep rings again.", error)
        return reply

    # -- nodes that this process can't run, and a process that stops ------------------------------------

    def _find_plan(self, graph_id: str) -> CompiledGraph | None:
        """Find a graph; if its factory raises, this process counts as not having it."""
        try:
            return self.registry.find(graph_id)
        except Exception:
            log.exception(
                "graph.broken: graph %r could not be built; its node was returned to the queue.",
                graph_id,
            )
            return None

    def _hold_or_return(self, plan: CompiledGraph | None, claim: Claim) -> ReplyWord:
        """Hold an older run's node if a deploy changed its graph; return a newer run's to the queue."""
        self._quarantine.release(claim.token)
        if held_nodes.is_current(self.store, self._find_plan, plan, claim):
            log.warning(
                "node.held: run %s waits for migration: node %r of graph %r has changed since the run "
                "started. Answers are kept; see `runner runs show`.",
                claim.token.run_id,
                claim.token.node,
                claim.graph_id,
            )
            return self.do(HoldVisit(claim.token)).word
        if self._unserved.is_new(claim.token):
            reply = self.do(LeaveVisit(claim.token)).word
        else:
            reply = self._return_to_queue(claim, RETURN_DELAY_MS)
        if reply in {"left", "retrying"}:
            self._unserved.record(claim, plan)
        return reply

    def _return_to_queue(self, claim: Claim, delay_ms: int) -> ReplyWord:
        """Retry a node later, on any worker; no attempt is counted."""
        return self.do(RetryVisit(claim.token, delay_ms, None, None)).word

    def _release(self, token: Token) -> bool:
        # The renewals stop first: if the store can't be reached, the lease then runs out without
        # them.
        lease = self.leases.drop(token)
        try:
            stalled = None if lease is None else not lease.has_saved
            return self.do(LeaveVisit(token, stalled=stalled)).word != "stale"
        except StoreError as error:
            log.warning("node.not_returned: %s Its lease runs out instead.", error)
            return False

    # -- one delivery ------------------------------------------------------------------------------

    def _execute(
        self, plan: CompiledGraph, claim: Claim, lease: Lease, may_continue: Callable[[], bool]
    ) -> DoorbellOutcome:
        try:
            try:
                visit = self._visit(plan, claim, lease)
            except codec.READ_ERRORS as error:
                raise CorruptDocument(f"the visit's data can't be read: {error}") from error
            visit.may_continue = may_continue
            began = time.monotonic()
            async_loop.stop_by(lease.stop)
            freezes.check_by(visit.check_effect)
            outcome = telemetry.observed(visit, functools.partial(nodes.execute, visit))
            elapsed_ms = round((time.monotonic() - began) * 1000)
            try:
                return self._commit(visit, outcome, elapsed_ms)
            except PayloadTooLarge as error:
                return self._fail(visit, nodes.refused(visit, outcome, error), elapsed_ms)
        except LeaseLost as error:
            log.info("node.lost: %s", error)
            return DoorbellOutcome("stale", claim.graph_id)
        except (ApprovalMismatch, CorruptDocument) as error:
            return self._hold_refused(claim, plan.node(claim.token.node).kind, error)
        except EffectsFrozen as error:
            return self._wait_for_thaw(claim, error)
        except RunStopped:
            return DoorbellOutcome(self._return_to_queue(claim, 0), claim.graph_id)
        except RetryAfter as error:
            return self._postpone(claim, error)

    def _wait_for_thaw(self, claim: Claim, error: EffectsFrozen) -> DoorbellOutcome:
        """Return a node that met a freeze to the queue, and tell the run's watchers."""
        token = claim.token
        log.info("node.frozen: node %r of run %s waits: %s", token.node, token.run_id, error)
        self.store.do(
            EmitEvent(
                token.run_id,
                EventKind.NODE_FROZEN,
                token.node,
                token.visit,
                {"reason": str(error)},
            )
        )
        return DoorbellOutcome(
            self._return_to_queue(claim, WAIT_MS), claim.graph_id, retry_in=WAIT_MS / 1000
        )

    def _postpone(self, claim: Claim, error: RetryAfter) -> DoorbellOutcome:
        """Continue a node after the time that its code asked for; no attempt is counted."""
        reason = validation.one_line(error.reason)[:MOST_REASON]
        delay_ms = math.ceil(error.seconds * 1000)
        reply = self.do(RetryVisit(claim.token, delay_ms, None, None, reason, error.limit)).word
        record = failures.record(error)
        return DoorbellOutcome(
            reply, claim.graph_id, error=record, retry_in=error.seconds, raised=error
        )

    def _hold_refused(
        self,
        claim: Claim | UnreadableClaim,
        kind: str,
        error: ApprovalMismatch | CorruptDocument,
    ) -> DoorbellOutcome:
        """Hold a node whose next effect was not approved, or whose document is damaged, until released."""
        token = claim.token
        record = failures.record(error)
        log.error(
            "node.held: node %r of run %s was not run on: %s", token.node, token.run_id, error
        )
        entry = nodes.entry(kind, 0, {})
        entry["error"] = asdict(record)
        return DoorbellOutcome(
            self.do(HoldVisit(token, entry)).word, claim.graph_id, error=record
        )

    def _visit(self, plan: CompiledGraph, claim: Claim, lease: Lease) -> ClaimedVisit:
        judge = VisitJudge(
            self.store,
            self.decision_keys,
            claim,
            retry=plan.node(claim.token.node).retry,
            check_exclusions=functools.partial(self.registry.check_exclusions, claim.graph_id),
            known_grants=self._grants,
            plain_issuer=lambda: self.plain_issuer,
        )
        return ClaimedVisit(
            claim, lease, self.store, plan, judge=judge, freezes=self.freezes, ring=self.ring
        )

    def _commit(
        self, visit: ClaimedVisit, outcome: Outcome, elapsed_ms: int
    ) -> DoorbellOutcome:
        token = visit.claim.token
        graph_id = visit.graph_id
        match outcome:
            case Succeeded():
                return self._complete(visit, outcome, elapsed_ms)
            case Failed():
                return self._fail(visit, outcome, elapsed_ms)
            case Interrupted():
                return self._park(visit, outcome)
            case Delegated():
                reply = self.ring(self._starter.child(visit.claim, outcome.task))
                return DoorbellOutcome(reply.word, graph_id, child=reply.run_id)
            case Expanded():
                return DoorbellOutcome(self.do(ExpandMap(token, outcome.items)).word, graph_id)
            case ExternalTask():
                return DoorbellOutcome(
                    self._send_external(token, outcome, visit.lease.timeout),
                    graph_id,
                    reference=outcome.reference,
                )

    def _complete(
        self, visit: ClaimedVisit, outcome: Succeeded, elapsed_ms: int
    ) -> DoorbellOutcome:
        node = visit.address.node_id
        entry = nodes.entry(visit.spec.kind, elapsed_ms, outcome.usage)
        if outcome.result != outcome.output:
            entry["result"] = outcome.result
        if outcome.skipped:
            entry["skipped"] = outcome.skipped
        checkpoint = visit.wrap(outcome.saved) if outcome.saved else None
        nonce = new_nonce(self.worker)
        for refusals in range(SETTLE_TRIES):
            try:
                edges, reads = conditions.bits(visit, outcome, entry)
            except (StoreError, CorruptDocument):
                raise
            except Exception as error:  # noqa: BLE001 - any error of a user's condition fails its source
                return self._settle_failed(visit, Failed.of(error, saved=outcome.saved), entry)
            entry.update(conditions.decided(edges, reads, visit.plan.topology.nodes.get(node)))
            settlement = Settlement(
                Status.COMPLETED,
                edges,
                outcome.output,
                entry,
                checkpoint,
                reads,
                insist=refusals >= CONDITION_TRIES,
                session=outcome.session,
                # It claims without a freeze check, maybe a node of another graph.
                may_continue=visit.may_continue() and not self.freezes.known,
                effects=visit.effects(Status.COMPLETED, outcome.output),
            )
            reply = self._settle(visit.claim.token, settlement, nonce)
            if reply.word != "changed":
                return DoorbellOutcome(reply.word, visit.graph_id, following=reply.claim)
        raise ConflictError(
            f"the conditions after node {node!r} read results that kept changing; the node's lease runs "
            "out and it is tried again."
        )

    def _fail(self, visit: ClaimedVisit, outcome: Failed, elapsed_ms: int) -> DoorbellOutcome:
        """Retry the node later if its policy says so, otherwise settle it as failed."""
        spec = visit.spec
        entry = nodes.entry(spec.kind, elapsed_ms, outcome.usage)
        attempts = visit.attempt - visit.claim.record.uncounted
        jitter = random.random()  # noqa: S311 - it isn't a secret
        delay = spec.retry.delay(attempts, outcome.error, jitter) if spec.retry else None
        if delay is None or outcome.final:
            return self._settle_failed(visit, outcome, entry)
        entry["error"] = asdict(outcome.error)
        checkpoint = nodes.wrapped(visit, outcome)
        reply = self.do(
            RetryVisit(visit.claim.token, round(delay * 1000), entry, checkpoint)
        ).word
        return DoorbellOutcome(
            reply, visit.graph_id, error=outcome.error, retry_in=delay, raised=outcome.raised
        )

    def _settle_failed(
        self, visit: ClaimedVisit, outcome: Failed, entry: VisitEntry
    ) -> DoorbellOutcome:
        entry.pop("result", None)
        entry["error"] = asdict(outcome.error)
        effects = visit.effects(Status.FAILED, entry["error"])
        checkpoint = nodes.wrapped(visit, outcome)
        settlement = Settlement(Status.FAILED, "", None, entry, checkpoint, effects=effects)
        reply = self._settle(visit.claim.token, settlement, new_nonce(self.worker)).word
        return DoorbellOutcome(
            reply, visit.graph_id, error=outcome.error, raised=outcome.raised
        )

    def _settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        """Settle a visit; if another node has locked the run, wait until that node has settled."""
        for _ in range(SETTLE_TRIES):
            reply = self.do(SettleVisit(token, settlement, nonce))
            if reply.word != "locked":
                return reply
            async_loop.call_blocking(time.sleep, LOCKED)
        return Reply("locked")

    def _park(self, visit: ClaimedVisit, outcome: Interrupted) -> DoorbellOutcome:
        claim = visit.claim
        questions = visit.waiting_for(outcome)
        saved = nodes.wrapped(visit, outcome)
        reply = self.do(ParkVisit(claim.token, questions, saved, outcome.awaits)).word
        if reply == "nothing_open":
            names = ", ".join(question.id for question in questions) or "none"
            error = CorruptDocument(
                f"it waits for questions that are not open, and their answers are not stored: {names}."
            )
            return self._hold_refused(claim, visit.spec.kind, error)
        return DoorbellOutcome(reply, claim.graph_id, questions if reply == "waiting" else ())

    def _send_external(
        self, token: Token, outcome: ExternalTask, timeout: float | None
    ) -> ReplyWord:
        """Make a node wait for an external task and send that; `timeout` counts in seconds from then on."""
        reply = self.do(HandOver(token, outcome.reference, outcome.description)).word
        if reply != "handed":
            return reply
        try:
            outcome.send()
        except UnstorableError as error:
            self.report(
                token.run_id,
                token.node,
                token.visit,
                outcome.reference,
                {"error": asdict(failures.record(error)), "discarded": True},
            )
            return reply
        except Exception:
            log.exception(
                "external_task.unsent: %s is sent again after one lease.", outcome.reference
            )
            return reply
        self.store.do(
            ConfirmHandOver(
                token, outcome.reference, max(1, round(timeout * 1000)) if timeout else 0
            )
        )
        return reply

    def _fail_timed_out(
        self, plan: CompiledGraph, claim: Claim, end: Future[DoorbellOutcome], lease: Lease
    ) -> None:
        """Fail a node whose code still runs after its deadline; the fence refuses its later writes."""
        visit = self._visit(plan, claim, lease)
        self._quarantine.release(claim.token)
        try:
            error = lease.timed_out()
            log.warning(
                "node.timeout: run %s: %s Its code still runs: end the worker if it never returns.",
                claim.token.run_id,
                error,
            )
            end.set_result(
                self._fail(visit, Failed.of(error), round((lease.timeout or 0) * 1000))
            )
        except StoreError as error:
            log.warning("node.timeout.unrecorded: %s The lease runs out instead.", error)
        finally:
            if not end.done():
                end.set_result(DoorbellOutcome("stale", claim.graph_id))
