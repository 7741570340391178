"""One claimed visit as its executor sees it: the claim's values, and writes that carry its fence."""

from __future__ import annotations

import functools
import logging
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar, Unpack

from runner.approvals import visit_judge
from runner.approvals.ballots import Use
from runner.approvals.digests import Action
from runner.approvals.freezes import Freezes
from runner.approvals.policies import wants_no_more
from runner.approvals.rules import Approval, Rule
from runner.approvals.visit_judge import VisitJudge
from runner.definition.model import BEFORE_GRAPH, map_of
from runner.definition.registry import CompiledGraph
from runner.errors import ApprovalMismatch, LeaseLost, NotFoundError, StoreError
from runner.execution.leases import Lease
from runner.records import codec, failures, size_limits
from runner.records.asking import numbered_question
from runner.records.budgets import Spending, Sum, Tagged
from runner.records.checkpoints import (
    NodeDocument,
    Saved,
    Session,
    SessionUpdate,
    load_document,
)
from runner.records.codec import JSON, JSONMapping, JSONObject, LazyValue
from runner.records.executors import ExternalTaskState, Input
from runner.records.interrupts import Address, Interrupt, InterruptOptions
from runner.records.outcomes import Failed, Interrupted, Outcome, Succeeded
from runner.records.run import SKIPPED, Status
from runner.records.run_ids import effect_name
from runner.scheduler.waits import LIVE
from runner.store.interface import Claim, Fetched, Reply, Request, RunSnapshot, Store
from runner.store.requests import (
    AskQuestions,
    CloseRaise,
    EmitEvent,
    OpenRaise,
    SaveCheckpoint,
    SpendBudget,
    UseDecision,
    WakeVisit,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

FRESH = 0.5
"""Seconds for which a reply of the store is recent enough in long work."""


def never() -> bool:
    """Return False: the node that a visit makes ready gets a doorbell, for any worker."""
    return False


class ClaimedVisit:
    """One claimed visit as an executor may use it. It reads from the claim and writes to the store.

    `plan` is the graph, `spec` the node's declaration; `judge` checks the decisions on its questions.
    `tentative` is the outcome of a node that has ended while its After hooks still ask. If
    `replays`, that outcome was stored by an earlier execution, so only those hooks run now. `trace`
    names the span of the previous execution; an observer replaces it. `first_name` is `node.visit`
    as the visit began, if its node was renamed since. `outage` is the error of a write that did not
    reach the store. `may_continue` returns whether its settle may claim the next node for this
    process.
    """

    def __init__(
        self,
        claim: Claim,
        lease: Lease,
        store: Store,
        plan: CompiledGraph,
        *,
        judge: VisitJudge,
        freezes: Freezes,
        ring: Callable[[Reply], Reply],
    ) -> None:
        self.claim = claim
        self.lease = lease
        self.store = store
        self.freezes = freezes
        self._ring, self._judge = ring, judge
        token = claim.token
        record = claim.record
        self.plan = plan
        self.spec = plan.node(token.node)
        document = load_document(claim.document)
        is_current = document is not None and document.visit == token.visit
        current = document if is_current else None
        memory = document if is_current or not plan.definition.reset_on_revisit else None
        routes = plan.routes.get(token.node, ())
        self.address = Address(
            token.run_id, token.node, token.visit, routes=tuple(routes), judge=judge
        )
        self.graph_id = claim.graph_id
        self.attempt = record.attempt
        self.inputs: Sequence[Input] = [
            Input(node, visit, output)
            for node, visit, output in claim.inputs
            if node != BEFORE_GRAPH
        ]
        self.input_values: Sequence[JSON | LazyValue] = [
            claim.task,
            *map(operator.itemgetter(2), claim.inputs),
        ]
        state = claim.invocation_state
        self.invocation_state: JSONObject = codec.unpack(state) if state else {}
        self.answers: Mapping[str, Interrupt] = {
            answer.id: _in_attempt(answer, record.attempt) for answer in claim.answers
        }
        self.document = memory.executor if memory else None
        self.messages: list[JSON] = list(claim.messages) if memory else []
        self.external_task = (
            ExternalTaskState(record.handed, claim.report, record.late)
            if record.handed
            else None
        )
        self.tentative = current.tentative if current else None
        self.replays = self.tentative is not None
        self.trace = current.trace if current else ""
        self.first_name = document.first_name(token.visit) if document else ""
        self.outage: StoreError | None = None
        self.may_continue = never
        # The stored state, which `wrap_kept` writes again.
        self._kept, self._kept_messages = self.document, len(self.messages)
        self._begun: dict[str, Use] = {}
        for question in self.answers.values():
            self._note_begun(question)
        self._warned = False

    @functools.cached_property
    def task(self) -> Any:
        """The task of the run; for a map's item, the item."""
        task = self.claim.task
        if isinstance(task, LazyValue) and task.is_plain:
            return task.read()
        return codec.unpack(codec.read(task))

    @property
    def idempotency_key(self) -> str:
        """The same text for every start of this visit, even if its node was renamed meanwhile."""
        name = self.first_name or f"{self.address.node_id}.{self.address.visit}"
        return f"{effect_name(self.address.run_id)}.{name}"

    def question(
        self,
        name: str,
        reason: object = None,
        *,
        scope: str,
        number: int = 1,
        **options: Unpack[InterruptOptions],
    ) -> Interrupt:
        """Build a question, under an id that no withdrawn question has had."""
        return numbered_question(
            self.address, self.answers, name, reason, scope=scope, number=number, **options
        )

    def save(self, checkpoint: Saved) -> None:
        """Save a checkpoint from which the next attempt starts."""
        self._write(SaveCheckpoint(self.claim.token, self.wrap(checkpoint)), checkpoint)

    def ask(self, interrupts: Sequence[Interrupt], checkpoint: Saved) -> None:
        """Publish questions at once, while other work of this node goes on."""
        size_limits.check_questions(interrupts, self.store.max_bytes)
        self._write(
            AskQuestions(self.claim.token, interrupts, self.wrap(checkpoint)), checkpoint
        )

    def use(self, use: Use, checkpoint: Saved | None = None) -> None:
        """Record that a decision is used, with the checkpoint that starts the approved work.

        Raises:
            ApprovalMismatch: it was used for something else. EffectsFrozen: the graph is frozen.
        """
        if not use.result:
            self.check_effect()
        if checkpoint is None:
            reply = self._do(UseDecision(self.claim.token, use, self.wrap_kept()))
        else:
            reply = self._write(
                UseDecision(self.claim.token, use, self.wrap(checkpoint)), checkpoint
            )
        if reply.word == "spent":
            raise ApprovalMismatch(
                f"the decision on {use.interrupt_id} was used for something else, and counts once."
            )
        if use.key == self.idempotency_key and not use.grant:
            self._begun[use.interrupt_id] = use

    def _note_begun(self, question: Interrupt) -> None:
        """Note that an earlier attempt of this visit has begun work that a decision approves."""
        use = question.used or {}
        if use.get("key") == self.idempotency_key:
            self._begun[question.id] = Use(question.id, use["effect"], use["key"])

    def effects(self, status: Status, outcome: JSON | LazyValue) -> list[Use]:
        """Return the uses of decisions by this visit, which end with it in this outcome.

        A skipped node says nothing about the effects of its earlier attempts.
        """
        begun = () if self.claim.record.handed.startswith(SKIPPED) else self._begun.values()
        return [use.with_outcome(status, codec.read(outcome)) for use in begun]

    def approved(
        self,
        name: str,
        action: JSONMapping | None,
        rule: Rule | None,
        node: str | None,
    ) -> tuple[Interrupt, Approval]:
        """Return the newest decision on a question of an earlier node, if it approves this action.

        Raises:
            ApprovalMismatch: it does not, or no decision exists.
        """
        if rule is None and name in {node, *(item.node_id for item in self.inputs)}:
            # The question whether a node may run has the node's name, and the graph's rule.
            spec = self.plan.definition.nodes.get(map_of(name) or name)
            rule = spec.approval if spec and isinstance(spec.approval, Rule) else None
        if rule is None:
            raise ApprovalMismatch(
                f"ctx.approved({name!r}) names no rule, and any client that writes to the store can lower "
                "the stored one. The decision is kept: pass rule=, the same as to the interrupt() "
                "that asked, and start the worker again."
            )
        question = self._decided(name, node)
        rule = self._rule_of(rule, question)
        shown = rule.frozen()
        # The use by the node that asked is not the effect.
        has_begun = question.used_key == self.idempotency_key
        decision = question if has_begun else replace(question, used=None)
        approval = self._request(
            lambda: self._judge.approval(replace(question, rule=shown), decision)
        )
        if self._judge.is_stale(rule, decision):
            raise ApprovalMismatch(
                f"the approval of {name!r} was not used in its time: fork the run from the node that asked."
            )
        same = action is None or approval.effect == (
            Action(self._judge.tenant, "function", name, codec.plain(action)).digest()
        )
        # An answer in place of the shown action approves none.
        approves = {"approve", "edit"} if question.action else {"approve", "edit", "respond"}
        if approval.decision not in approves or not same:
            raise ApprovalMismatch(
                f"this node's next action is not the one that was approved as {name!r}: the decision is "
                f"{approval.decision!r}, and the action is {'this' if same else 'another'}."
            )
        self._note_begun(question)
        return question, approval

    def _rule_of(self, rule: Rule, question: Interrupt) -> Rule:
        """Return the rule that applied to a question: the code's, or a policy's that is at least as strict.

        Raises:
            ApprovalMismatch: the code requires more than the policy did.
        """
        asked_rule = Rule.thawed(question.rule or {})
        if not asked_rule.policy:
            return rule
        if not wants_no_more(rule, asked_rule):
            raise ApprovalMismatch(
                f"ctx.approved({question.name!r}) wants more than the policy {asked_rule.policy['name']} did "
                "when the question was asked."
            )
        return asked_rule

    def _decided(self, name: str, node: str | None) -> Interrupt:
        """Return the newest decided question with that name, asked by `node` or by the nodes before this one.

        Raises:
            ApprovalMismatch: no such question was decided.
        """
        visits = [
            (item.node_id, item.visit) for item in self.inputs if node in {None, item.node_id}
        ]
        if not visits and node is not None:
            ((record, _, _),) = self.fetch([node])
            visits = [(node, record.visit)]
        addresses = [
            replace(self.address, node_id=node, visit=visit, within="", routes=())
            for node, visit in visits
        ]
        question = self._request(lambda: visit_judge.decided(self.store, addresses, name))
        if question is None:
            nodes = ", ".join(node for node, _ in visits) or "no node"
            raise ApprovalMismatch(
                f"no one has decided {name!r} by a rule: {nodes} came before this one, without a decided "
                "question of that name. Name the node that asks: ctx.approved(name, action, node=...). A "
                "fork has none of its first run's decisions: fork from the node that asked."
            )
        return question

    def recall(self, session_id: str) -> Session:
        """Read a session as completed visits left it."""
        return self._request(lambda: self.store.session(session_id))

    def fetch(self, nodes: Sequence[str]) -> list[Fetched]:
        """Read other nodes of the run in their current state."""
        return self._request(lambda: self.store.fetch(self.address.run_id, nodes))

    def spend(self, tag: Tagged | None, spending: Spending) -> str:
        """Add to a sum of the run or of a tag, even if another worker now has the node."""
        return self._request(
            lambda: self.store.do(SpendBudget(self.address.run_id, tag, spending))
        )

    def open_raise(self, tag: Tagged | None, counter: str) -> str:
        """Ask to raise a bound of a sum, or wait for the answer that another live visit has asked for."""
        request = OpenRaise(self.address.run_id, tag, counter, self._visit_name)
        asker = self._request(lambda: self.store.do(request))
        if asker and not asker.startswith("!") and not self._is_live(asker):
            asker = self._request(lambda: self.store.do(replace(request, instead_of=asker)))
        return asker

    def close_raise(self, tag: Tagged | None, counter: str, refusal: str = "") -> None:
        """Wake the visits that wait for this visit's question about a bound."""
        request = CloseRaise(self.address.run_id, tag, counter, self._visit_name, refusal)
        for waiting in self._request(lambda: self.store.do(request)):
            run_id, visit, node = waiting.split(" ", 2)
            self._ring(
                self._request(
                    functools.partial(self.store.do, WakeVisit(run_id, node, int(visit)))
                )
            )

    @property
    def _visit_name(self) -> str:
        return f"{self.address.run_id} {self.address.visit} {self.address.node_id}"

    def _is_live(self, visit_name: str) -> bool:
        run_id, visit, node = visit_name.split(" ", 2)
        try:
            ((record, _, _),) = self._request(lambda: self.store.fetch(run_id, [node]))
        except NotFoundError:
            return False
        return record.visit == int(visit) and record.status in LIVE

    def spent(self, tag: Tagged | None) -> dict[str, Sum]:
        """Read a sum of the run or of a tag."""
        return self._request(lambda: self.store.spent(self.address.run_id, tag))

    def tags(self) -> dict[str, str]:
        """Return the tags of the run."""
        return self._request(lambda: self.store.tags(self.address.run_id))

    def _request(self, request: Callable[[], T]) -> T:
        """Make a request to the store, and note its outage."""
        try:
            return request()
        except StoreError as error:
            self.outage = error
            raise

    def emit(self, kind: str, data: JSONMapping) -> None:
        """Add an event to the run's stream; an outage loses the event but does not stop the node.

        Data too large for a stream is replaced by its size, `{"left_out": bytes}`.
        """
        json_value = codec.pack(data, f"the data of a {kind} event")
        size = len(codec.dump_json(json_value))
        if size > size_limits.MAX_EVENT:
            json_value = {"left_out": size}
        try:
            self.store.do(
                EmitEvent(
                    self.address.run_id,
                    kind,
                    self.address.node_id,
                    self.address.visit,
                    json_value,
                )
            )
        except StoreError as error:
            log.warning(
                "event.lost: %s The %s event of run %s is left out.",
                error,
                kind,
                self.address.run_id,
            )

    def check(self) -> None:
        """Raise LeaseLost, RunStopped or NodeTimedOut if this worker may no longer run the node."""
        self.lease.check()

    def check_store(self) -> None:
        """Check like `check`, but ask the store first unless it replied within `FRESH` seconds."""
        if time.monotonic() - self.lease.renewed > FRESH:
            self.lease.renew()
        self.lease.check()

    def check_effect(self, tool: str = "") -> None:
        """Raise EffectsFrozen if effects of this graph, or calls of this tool, are frozen."""
        self.freezes.check(self.graph_id, tool)

    def waiting_for(self, outcome: Interrupted) -> Sequence[Interrupt]:
        """List the questions that the node waits for, including older ones if the outcome keeps them."""
        if not outcome.keeps:
            return outcome.interrupts
        older = self.store.interrupts(self.claim.record.questions)
        return [
            *outcome.interrupts,
            *(interrupt for interrupt in older if interrupt is not None),
        ]

    def run_snapshot(self) -> RunSnapshot | None:
        """Read the whole run, for the event after it."""
        return self.store.read(self.address.run_id)

    def wrap(self, checkpoint: Saved) -> Saved:
        """Wrap an executor's document in the node's document, which adds visit, trace and first name."""
        document = NodeDocument(
            self.address.visit, checkpoint.document, None, self.trace, self.first_name
        )
        return Saved(document.dump(), checkpoint.keep, checkpoint.messages)

    def wrap_kept(self) -> Saved:
        """Wrap the executor's last saved state again, with or without the tentative outcome."""
        document = NodeDocument(
            self.address.visit, self._kept, self.tentative, self.trace, self.first_name
        )
        return Saved(document.dump(), self._kept_messages)

    def _write(self, request: Request[Reply], checkpoint: Saved) -> Reply:
        size = size_limits.check_saved(self.address.node_id, checkpoint, self.store)
        if size >= size_limits.LARGE_STATE and not self._warned:
            self._warned = True
            log.warning(
                "state.large: node %r of run %s keeps %s bytes, and writes them at every checkpoint.",
                self.address.node_id,
                self.address.run_id,
                f"{size:,}",
            )
        reply = self._do(request)
        self.lease.has_saved |= bool(checkpoint.messages) or checkpoint.document != self._kept
        self._kept = checkpoint.document
        self._kept_messages = checkpoint.keep + len(checkpoint.messages)
        return reply

    def _do(self, request: Request[Reply]) -> Reply:
        reply = self._request(lambda: self.store.do(request))
        if reply.word == "stale":
            self.lease.state = "stale"
            raise LeaseLost(
                f"node {self.address.node_id!r} of run {self.address.run_id} was given to another "
                "worker; this one's write was refused."
            )
        return reply


def _in_attempt(answer: Interrupt, attempt: int) -> Interrupt:
    """Return an answer as an attempt sees it.

    A withdrawn question fails the attempt that asked it; a later attempt asks it again.
    """
    withdrawal = answer.withdrawal
    if withdrawal is None or attempt <= withdrawal["attempt"]:
        return answer
    return replace(answer, withdrawal={**withdrawal, "reask": True})


def dump_outcome(outcome: Succeeded | Failed) -> JSONObject:
    kind = "succeeded" if isinstance(outcome, Succeeded) else "failed"
    if isinstance(outcome, Succeeded):
        result = codec.read(outcome.result)
        outcome = replace(outcome, result=result, output=codec.read(outcome.output))
    else:
        outcome = replace(outcome, raised=None)
    document = {"kind": kind, **asdict(outcome)}
    document.pop("raised", None)
    return document


def load_outcome(document: JSONMapping) -> Outcome:
    fields = {key: value for key, value in document.items() if key != "kind"}
    fields["saved"] = Saved(**fields["saved"]) if fields["saved"] else None
    if document["kind"] == "succeeded":
        fields["session"] = SessionUpdate(**fields["session"]) if fields["session"] else None
        return Succeeded(**fields)
    fields["error"] = failures.load(fields["error"])
    return Failed(**fields)
