"""One claimed visit as its executor sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from runner import codec, failures, sizes
from runner.errors import LeaseLost, StoreError
from runner.graph import HIDDEN
from runner.interrupts import Address, Interrupt
from runner.leases import Lease
from runner.node_documents import NodeDocument, load_document
from runner.outcomes import Failed, Input, Interrupted, Outcome, Remembered, Saved, Session, Succeeded, Work
from runner.ports import Claim, Fetched, Reply, RunSnapshot, Store

log = logging.getLogger(__name__)

JSON = Any


class ClaimedVisit:
    """The Visit given to executors: reads from the claim, writes through the store."""

    def __init__(
        self, claim: Claim, lease: Lease, store: Store, *, reset: bool, routes: Sequence[str] = ()
    ) -> None:
        """Wrap a claim; with `reset` a new visit starts without the memory of older ones.

        `routes` are the nodes to which edges for expired questions lead.
        `replays` says that the node has ended and only the hooks after it run; `outage` is set when
        something that the executor wrote did not reach the store. `trace` names the span of the execution
        before this one, for observers, which put their own there.
        """
        token = claim.token
        self.claim = claim
        self.address = Address(token.run_id, token.node, token.visit, routes=tuple(routes))
        self.graph_id = claim.graph_id
        self.attempt = claim.record.attempt
        self.task = codec.unpack(claim.task)
        self.inputs: Sequence[Input] = [
            Input(node, visit, output) for node, visit, output in claim.inputs if not node.startswith(HIDDEN)
        ]
        self.invocation_state: dict[str, Any] = codec.unpack(claim.given) or {}
        self.answers: Mapping[str, Interrupt] = {
            answer.id: _in_attempt(answer, self.attempt) for answer in claim.answers
        }
        found = load_document(claim.document)
        mine = found if found and found.visit == token.visit else None
        known = mine if reset else found
        self.document = known.executor if known else None
        self.messages: list[JSON] = list(claim.messages) if known else []
        self.tentative = mine.tentative if mine else None
        self.replays = self.tentative is not None
        self.trace = mine.trace if mine else ""
        self._named = found.first_name(token.visit) if found else ""
        at = claim.record
        self.work = Work(at.handed, claim.report, at.late) if at.handed else None
        self.outage: StoreError | None = None
        self._warned = False
        self._kept, self._kept_messages = self.document, len(self.messages)
        self._lease, self.store = lease, store

    @property
    def idempotency_key(self) -> str:
        """The same text for every start of this visit, whatever its node is named meanwhile."""
        named = self._named or f"{self.address.node_id}.{self.address.visit}"
        return f"{self.address.run_id}.{named}"

    def save(self, saved: Saved) -> None:
        """Checkpoint what the next attempt starts with."""
        self._write(lambda: self.store.save(self.claim.token, self.wrap(saved)), saved)

    def ask(self, interrupts: Sequence[Interrupt], saved: Saved) -> None:
        """Publish questions at once, while other work of this node goes on."""
        sizes.check_questions(interrupts, self.store.max_bytes)
        self._write(lambda: self.store.ask(self.claim.token, interrupts, self.wrap(saved)), saved)

    def recall(self, session_id: str) -> Session:
        """Read a session as completed visits have left it."""
        try:
            return self.store.session(session_id)
        except StoreError as error:
            self.outage = error
            raise

    def fetch(self, nodes: Sequence[str]) -> list[Fetched]:
        """Read other nodes of the run as they stand."""
        try:
            return self.store.fetch(self.address.run_id, nodes)
        except StoreError as error:
            self.outage = error
            raise

    def emit(self, kind: str, data: Mapping[str, JSON]) -> None:
        """Add an event to the run's stream; one that an outage keeps out is no reason to stop.

        Of data that is too large for a stream its size is told instead.
        """
        packed = codec.pack(data, f"the data of a {kind} event")
        size = len(codec.dump_json(packed))
        if size > sizes.MAX_EVENT:
            packed = {"left_out": size}
        try:
            self.store.emit(self.address.run_id, kind, self.address.node_id, self.address.visit, packed)
        except StoreError as error:
            log.warning(
                "event.lost: %s The %s event of run %s is left out.", error, kind, self.address.run_id
            )

    def check(self) -> None:
        """Raise LeaseLost or RunStopped when the node is no longer ours to run."""
        self._lease.check()

    def waiting_for(self, outcome: Interrupted) -> Sequence[Interrupt]:
        """List all that the node waits for; an executor that can't name its older questions keeps them."""
        if not outcome.keeps:
            return outcome.interrupts
        older = self.store.interrupts(self.claim.record.questions)
        return [*outcome.interrupts, *(each for each in older if each is not None)]

    def run_snapshot(self) -> RunSnapshot | None:
        """Read the whole run, for the event after it."""
        return self.store.read(self.address.run_id)

    def wrap(self, saved: Saved) -> Saved:
        """Put the executor's document into the node's."""
        document = NodeDocument(self.address.visit, saved.document, None, self.trace, self._named)
        return Saved(document.dump(), saved.keep, saved.messages)

    def wrap_kept(self) -> Saved:
        """Write what the executor saved last again, with the tentative outcome or without it."""
        document = NodeDocument(self.address.visit, self._kept, self.tentative, self.trace, self._named)
        return Saved(document.dump(), self._kept_messages)

    def _write(self, write: Callable[[], Reply], saved: Saved) -> None:
        size = sizes.check_saved(self.address.node_id, saved, self.store)
        if size >= sizes.LARGE_STATE and not self._warned:
            self._warned = True
            log.warning(
                "state.large: node %r of run %s keeps %s bytes, and writes them at every checkpoint.",
                self.address.node_id,
                self.address.run_id,
                f"{size:,}",
            )
        try:
            reply = write()
        except StoreError as error:
            self.outage = error
            raise
        if reply.word == "stale":
            self._lease.state = "stale"
            raise LeaseLost(
                f"node {self.address.node_id!r} of run {self.address.run_id} was given to another "
                "worker; what this one wrote was refused."
            )
        self._kept, self._kept_messages = saved.document, saved.keep + len(saved.messages)


def _in_attempt(answer: Interrupt, attempt: int) -> Interrupt:
    """A withdrawn question fails the attempt that asked it; a later attempt asks it anew."""
    withdrawal = answer.withdrawal
    if withdrawal is None or attempt <= withdrawal["attempt"]:
        return answer
    return replace(answer, withdrawal={**withdrawal, "reask": True})


def dump_outcome(outcome: Succeeded | Failed) -> dict[str, JSON]:
    """Store an outcome that waits for the hooks after the node."""
    kind = "succeeded" if isinstance(outcome, Succeeded) else "failed"
    return {"kind": kind, **asdict(outcome)}


def load_outcome(stored: Mapping[str, JSON]) -> Outcome:
    """Read a stored tentative outcome."""
    fields = {key: value for key, value in stored.items() if key != "kind"}
    fields["saved"] = Saved(**fields["saved"]) if fields["saved"] else None
    if stored["kind"] == "succeeded":
        fields["session"] = Remembered(**fields["session"]) if fields["session"] else None
        return Succeeded(**fields)
    fields["error"] = failures.load(fields["error"])
    return Failed(**fields)
