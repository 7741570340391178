"""The waist: every door calls these few verbs. Start, deliver, answer, cancel, sweep.

The engine loads what the store gives out, lets the core and the node's own code decide, and
commits. It holds no state of a run, so any number of engines in any number of processes may work
on the same store.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from runner import conditions, endings, failures, ids, labels, nodes, releases, telemetry
from runner.actions import END
from runner.alarms import Alarms
from runner.aside import Aside
from runner.control import Control
from runner.delivery import Delivery
from runner.errors import (
    ConflictError,
    CorruptDocument,
    LeaseLost,
    PayloadTooLarge,
    RunStopped,
    StoreError,
)
from runner.handover import Handover
from runner.last_lives import LastLives
from runner.leases import Lease, Leases
from runner.leaving import Leaving
from runner.missing import no_such_run
from runner.outcomes import Delegated, Expanded, Failed, Handed, Interrupted, NextBatch, Outcome, Succeeded
from runner.ports import Claim, Dispatcher, Reply, Settlement, Store, Token
from runner.registry import Plan, Registry
from runner.run import Status
from runner.starts import Starts
from runner.unserved import Unserved
from runner.visits import ClaimedVisit

JSON = Any
log = logging.getLogger(__name__)

ASK_AGAIN = 3
"""How often conditions are asked again when what they read has changed, before others must wait."""

GIVE_UP = 1_000
"""How often a settle is tried that finds another node's lock or changed results; then the lease ends."""

LOCKED = 0.01
"""Seconds before a settle is tried again that found the run locked by another node."""


class Engine(Aside, Control, Handover, Leaving):
    """Runs graphs on a store. Thread-safe; share one per process."""

    def __init__(
        self, store: Store, dispatcher: Dispatcher, registry: Registry, lease: float | None = None
    ) -> None:
        """`lease` is in seconds: without it the store's, which fits where nodes may be lost."""
        self.store, self.registry = store, registry
        self._dispatcher = dispatcher
        self.leases = Leases(store, store.lease_ms / 1000 if lease is None else lease)
        self._starts = Starts(store, registry)
        self._unserved = Unserved(store)
        self._last_lives = LastLives(store)
        self._alarms = Alarms(self.sweep)

    # -- verbs -------------------------------------------------------------------------------------

    def start(
        self,
        graph_id: str,
        task: object,
        *,
        invocation_state: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        run_id: str | None = None,
        on_end: str = "",
    ) -> str:
        """Begin a run and return its id; the same idempotency key returns the same run.

        Raises:
            NotFoundError: neither this process nor any worker so far knows the graph.
            UnstorableError: the task or the state can't be stored.
        """
        run_id = run_id or ids.run_id()
        reply = self._starts.run(
            run_id, graph_id, task, state=invocation_state, key=idempotency_key, tags=tags, on_end=on_end
        )
        return self._ring(reply).run_id or run_id

    def publish(self, names: Sequence[str]) -> None:
        """Make graphs of this process, and those inside them, known; held nodes that fit them go on."""
        self._starts.publish(names)
        for reply in releases.release(self.store, self.registry, names):
            self._ring(reply)

    def deliver(self, run_id: str, node: str, visit: int, attempt: int) -> Delivery:
        """Claim a visit, run its node and commit its end; a stale or doubled doorbell changes nothing."""
        if node == END:
            return Delivery(endings.tell(self.store, self._dispatcher, run_id, visit))
        claim = self._last_lives.claim(run_id, node, visit, attempt, ids.nonce())
        if isinstance(claim, Reply):
            if claim.delay_ms:
                self.sweep_in(claim.delay_ms / 1000)
            return Delivery(self._ring(claim).word, reference=claim.reference)
        plan = self._find(claim.graph_id)
        if plan is None or not nodes.unchanged(plan, claim):
            return Delivery(self._set_aside(plan, claim), claim.graph_id)
        limit = plan.node(node).timeout or plan.definition.node_timeout
        late: Future[Delivery] = Future()
        give_up = functools.partial(self._time_out, plan, claim, late)
        with self._hold(claim.token, limit, give_up) as lease:
            delivery = self._attempt(plan, claim, lease)
        # The code of a node that was given up may end much later: its task ends as the node did.
        return late.result() if delivery.word == "stale" and lease.state == "timed_out" else delivery

    def cancel(self, run_id: str, reason: str) -> str:
        """Stop a run: "cancelled", or "already" when it ends or has ended.

        Raises:
            NotFoundError: there is no such run. UsageError: the reason is no text, or long.
        """
        word = self._ring(self.store.cancel(run_id, labels.reason(reason))).word
        if word == "unknown":
            raise no_such_run(run_id)
        self.leases.look()
        return word

    def sweep(self, limit: int = 100) -> int:
        """Do what is due (lost leases, retries, lost doorbells, expiries) and return how much it was."""
        return int(self._ring(self.store.sweep(limit)).word)

    def sweep_in(self, seconds: float) -> None:
        """Sweep once more after so many seconds, for what is due before a sweeper looks again."""
        self._alarms.ring_in(seconds)

    # -- one delivery ------------------------------------------------------------------------------

    def _attempt(self, plan: Plan, claim: Claim, lease: Lease) -> Delivery:
        try:
            return self._run(plan, claim, lease)
        except LeaseLost as lost:
            log.info("node.lost: %s", lost)
            return Delivery("stale", claim.graph_id)
        except CorruptDocument as damaged:
            log.error("node.held: %s Run %s waits for migration.", damaged, claim.token.run_id)  # noqa: TRY400 - the message says all
            return Delivery(self._ring(self.store.hold(claim.token)).word, claim.graph_id)
        except RunStopped:
            return Delivery(self._put_back(claim, 0), claim.graph_id)

    def _run(self, plan: Plan, claim: Claim, lease: Lease) -> Delivery:
        visit = self._visit(plan, claim, lease)
        began = time.monotonic()
        outcome = telemetry.observed(visit, lambda: nodes.execute(plan, visit))
        spent = round((time.monotonic() - began) * 1000)
        try:
            return self._commit(plan, visit, outcome, spent, lease.timeout)
        except PayloadTooLarge as full:
            return self._fail(plan, visit, nodes.refused(visit, outcome, full), spent)

    def _commit(
        self, plan: Plan, visit: ClaimedVisit, outcome: Outcome, spent: int, timeout: float | None
    ) -> Delivery:
        claim = visit.claim
        match outcome:
            case Interrupted():
                return self._park(visit, outcome)
            case Delegated():
                begun = self._ring(self._starts.child(claim, outcome.task))
                return Delivery(begun.word, claim.graph_id, child=begun.run_id)
            case Handed():
                word = self._hand(claim.token, outcome, timeout)
                return Delivery(word, claim.graph_id, reference=outcome.reference)
            case Expanded():
                return Delivery(
                    self._ring(self.store.expand(claim.token, outcome.items)).word, claim.graph_id
                )
            case NextBatch():
                reply = self.store.advance(claim.token, outcome, ids.nonce())
                return Delivery(self._ring(reply).word, claim.graph_id)
            case Failed():
                return self._fail(plan, visit, outcome, spent)
            case Succeeded():
                return self._complete(plan, visit, outcome, spent)

    def _visit(self, plan: Plan, claim: Claim, lease: Lease) -> ClaimedVisit:
        reset, routes = plan.definition.reset_on_revisit, plan.routes(claim.token.node)
        return ClaimedVisit(claim, lease, self.store, reset=reset, routes=routes)

    def _time_out(self, plan: Plan, claim: Claim, told: Future[Delivery], lease: Lease) -> None:
        """Fail a node whose code still runs after its deadline; the fence refuses what it does later."""
        visit = self._visit(plan, claim, lease)
        self._last_lives.ended(claim.token)
        try:
            late = Failed(failures.record(lease.timed_out()))
            told.set_result(self._fail(plan, visit, late, round((lease.timeout or 0) * 1000)))
        except StoreError as error:
            log.warning("node.timeout.unrecorded: %s The lease runs out instead.", error)
        finally:
            if not told.done():
                told.set_result(Delivery("stale", claim.graph_id))

    def _park(self, visit: ClaimedVisit, outcome: Interrupted) -> Delivery:
        claim, asked = visit.claim, visit.waiting_for(outcome)
        word = self._ring(self.store.park(claim.token, asked, nodes.wrapped(visit, outcome))).word
        if word == "nothing_open":
            raise ConflictError(
                f"node {claim.token.node!r} stopped to wait, but none of its questions is open; "
                "its lease will run out and it is tried again."
            )
        return Delivery(word, claim.graph_id, asked if word == "waiting" else ())

    def _complete(self, plan: Plan, visit: ClaimedVisit, outcome: Succeeded, spent: int) -> Delivery:
        token, node = visit.claim.token, visit.address.node_id
        entry = nodes.entry(plan.node(node).kind, spent, outcome.usage)
        if outcome.result != outcome.output:
            entry["result"] = outcome.result
        saved = visit.wrap(outcome.saved) if outcome.saved else None
        nonce = ids.nonce()
        for refused in range(GIVE_UP):
            try:
                edges, reads = conditions.bits(
                    plan.asked(node), lambda: conditions.state_after(self.store, plan, visit, outcome, entry)
                )
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a user's condition raises fails its source
                return self._settle_failed(visit, Failed(failures.record(error), outcome.saved), entry)
            entry.update(conditions.decided(edges, reads, plan.topology.nodes.get(node)))
            settlement = Settlement(
                Status.COMPLETED,
                edges,
                outcome.output,
                entry,
                saved,
                reads,
                insist=refused >= ASK_AGAIN,
                session=outcome.session,
            )
            word = self._settle(token, settlement, nonce)
            if word != "changed":
                return Delivery(word, visit.graph_id)
        raise ConflictError(
            f"the conditions after node {node!r} read results that kept changing; the node's lease runs "
            "out and it is tried again."
        )

    def _fail(self, plan: Plan, visit: ClaimedVisit, outcome: Failed, spent: int) -> Delivery:
        spec = plan.node(visit.address.node_id)
        entry = nodes.entry(spec.kind, spent, outcome.usage)
        tried = visit.attempt - visit.claim.record.uncounted
        delay = spec.retry.delay(tried, outcome.error, random.random()) if spec.retry else None  # noqa: S311 - jitter is no secret
        if delay is None or outcome.final:
            return self._settle_failed(visit, outcome, entry)
        entry["error"] = asdict(outcome.error)
        saved = nodes.wrapped(visit, outcome)
        word = self._ring(self.store.retry(visit.claim.token, round(delay * 1000), entry, saved)).word
        return Delivery(word, visit.graph_id, error=outcome.error, retry_in=delay)

    def _settle_failed(self, visit: ClaimedVisit, outcome: Failed, entry: dict[str, JSON]) -> Delivery:
        entry.pop("result", None)
        failed = {**entry, "error": asdict(outcome.error)}
        saved = nodes.wrapped(visit, outcome)
        settlement = Settlement(Status.FAILED, "", None, failed, saved, alone=outcome.alone)
        word = self._settle(visit.claim.token, settlement, ids.nonce())
        return Delivery(word, visit.graph_id, error=outcome.error)

    def _settle(self, token: Token, settlement: Settlement, nonce: str) -> str:
        """Settle; where another node has the run's lock, wait for its turn to end."""
        for _ in range(GIVE_UP):
            word = self._ring(self.store.settle(token, settlement, nonce)).word
            if word != "locked":
                return word
            time.sleep(LOCKED)
        return "locked"

    # -- rest --------------------------------------------------------------------------------------

    def _ring(self, reply: Reply) -> Reply:
        if reply.doorbells:
            try:
                self._dispatcher.ring(reply.doorbells)
            except StoreError as error:
                log.warning("doorbell.failed: %s The sweeper rings again.", error)
        return reply
