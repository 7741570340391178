"""Judgement of decisions for one visit, with the data that its claim brought and the store keeps beside it.

The claim reads the votes once, if a question with a rule was answered: a visit makes no request for
them. Keys are read when a rule asks for identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from runner.approvals import grants, judgement
from runner.approvals.calendars import escalates_at
from runner.approvals.decision_keys import DecisionKeys
from runner.approvals.digests import Action
from runner.approvals.grants import GrantRecord
from runner.approvals.judgement import Evidence, level_of
from runner.approvals.rules import (
    OUTER,
    Approval,
    Requester,
    Rule,
    VoterFacts,
    check_reach,
    excluded_answerers,
    excludes_requester,
)
from runner.definition.policies import RetryPolicy
from runner.errors import ApprovalMismatch, UsageError
from runner.records import codec, run_ids
from runner.records.codec import JSONMapping
from runner.records.interrupts import Address, Interrupt, InterruptStatus
from runner.records.run import PATH
from runner.scheduler.timers import CRASH_BUDGET
from runner.store.interface import Claim, Store
from runner.store.requests import UseGrant

MOST_AGAIN = 100
"""Maximum number of repeats of a question among which a later node looks for the last."""


GRANTS_EVERY = 1.0
"""Seconds for which a process uses the grants it has read; it reads them again before it asks people."""


class KnownGrants:
    """Cache of the grants. Thread-safe; it reads only when a call begins whose rule allows grants."""

    def __init__(self, store: Store) -> None:
        """Prepare the cache without reading."""
        self._store, self._due = store, 0.0
        self._records: Sequence[GrantRecord] = ()

    def read(self, *, fresh: bool = False) -> Sequence[GrantRecord]:
        """Return all grants, the oldest first; `fresh` reads them now."""
        if fresh or time.monotonic() >= self._due:
            records = self._store.signed(GrantRecord).values()
            self._records = sorted(records, key=lambda each: each.grant.made_at)
            self._due = time.monotonic() + GRANTS_EVERY
        return self._records


class VisitJudge:
    """Judge of the decisions on one visit's questions."""

    def __init__(
        self,
        store: Store,
        keys: DecisionKeys,
        claim: Claim,
        *,
        retry: RetryPolicy | None,
        check_exclusions: Callable[[Rule], None],
        known_grants: KnownGrants,
        plain_issuer: Callable[[], str],
    ) -> None:
        """Read the votes on the claim's answers that were decided by a rule.

        `retry` is the node's policy: it says how long a begun effect may begin again.
        `check_exclusions` refuses a rule that excludes the answerers of an unknown node.
        `plain_issuer` reads the issuer of names without one.
        """
        self._check_exclusions = check_exclusions
        self._grants = known_grants
        self._plain_issuer = plain_issuer
        self._node = claim.token.node
        self._run_id = claim.token.run_id
        self._nested = PATH in claim.graph_id
        self.graph_id = claim.graph_id
        self.tenant = store.namespace
        self._store = store
        self._keys = keys
        self._votes = claim.votes
        self._retry_ms = round(retry.longest * 1000) if retry else 0
        self._retry_ms += CRASH_BUDGET * store.lease_ms
        self._evidence = {
            answer.id: self._read(answer) for answer in claim.answers if answer.rule is not None
        }

    def approval(self, question: Interrupt, decision: Interrupt) -> Approval:
        """Return the decision on a question, if it holds.

        Raises:
            ApprovalMismatch: it does not hold.
        """
        return judgement.judge(
            question, decision, self._evidence.get(decision.id) or self._read(decision)
        )

    def is_stale(self, rule: Rule, decision: Interrupt) -> bool:
        """Return whether it is too late to use a decision; a rejection is never used.

        At level 0 a used decision is never too late. Above, it gets only the time of a retry more:
        anyone who writes to the store can mark it as used.
        """
        if decision.decision == "reject" or (decision.used is not None and level_of(rule) == 0):
            return False
        return judgement.is_stale(
            rule, decision, self._now(), 0 if decision.used is None else self._retry_ms
        )

    def _now(self) -> int:
        clock = self._store.clock
        return clock() if clock else time.time_ns() // 1_000_000

    def check(self, rule: Rule) -> None:
        """Check the facts that a rule depends on.

        Raises:
            UsageError: it excludes the requester, who is not known, or names an unknown node or
                calendar.
        """
        escalates_at(rule, 0)
        self._check_exclusions(rule)
        if excludes_requester(rule):
            requester = self._store.requester(self._run_id)
            level = level_of(rule)
            if not is_named(requester):
                raise UsageError(
                    "the rule excludes who asked for the run, but no one was named when it was started: "
                    "start it with requester=, or make it from another run with by=."
                )
            keys = self._keys.read() if level else {}
            signed = judgement.requester_level(requester, keys, self._root(self._run_id))
            if signed < level and (keys or not requester.get("body")):
                raise UsageError(
                    f"the rule excludes who asked for the run, and asks for level {level}, but the start is "
                    f"proven at level {signed} alone: have who starts it sign at that level."
                )

    def check_reach(self, rule: Rule) -> None:
        """Check, before a question is asked, that the people whom its rule names can decide it.

        Raises:
            UsageError: too few of them are left.
        """
        requester = (excludes_requester(rule) and self._store.requester(self._run_id)) or {}
        people = *filter(None, [requester.get("principal")]), *requester.get("on_behalf_of", ())
        answered_by = answerers_of(self._store, rule, self._run_id, is_nested=self._nested)
        if people or answered_by:
            check_reach(
                rule, VoterFacts(people, answered_by, plain_issuer=self._plain_issuer())
            )

    def requester(self) -> Requester:
        """Return who asked for the run, and at which level that is proven for this very run."""
        stored_requester = self._store.requester(self._run_id)
        if stored_requester is None:
            return Requester()
        return judgement.requester_of(
            stored_requester, self._keys.read(), self._root(self._run_id)
        )

    def use_grant(self, rule: Rule, action: Action, key: str) -> str:
        """Use a grant for an action that nobody was asked about, and return its id; "" if none covers it.

        The use is counted once for the idempotency key of the effect.
        """
        for is_fresh in (False, True):
            records = self._grants.read(fresh=is_fresh)
            if records and (grant := self._use_one_of(records, rule, action, key)):
                return grant
        return ""

    def _use_one_of(
        self, records: Sequence[GrantRecord], rule: Rule, action: Action, key: str
    ) -> str:
        shown = action.preimage()
        requester = None
        # A call repeated after a crash continues by the grant that has counted it.
        for record in sorted(records, key=lambda each: key not in each.used_for):
            grant = record.grant
            if not grant.covers(shown, self.graph_id):
                continue
            amounts = record.amounts(shown["args"], key)
            if amounts is None:
                continue
            requester = requester or self.requester()
            if grants.judge(
                record,
                rule,
                requester,
                answerers_of(self._store, rule, self._run_id),
                keys=self._keys.read,
                now=self._now(),
            ):
                continue
            use = UseGrant(
                grant.id,
                grant.digest(),
                key,
                amounts,
                action.digest(),
                self._run_id,
                self._node,
            )
            if self._store.do(use).word == "used":
                return grant.id
        return ""

    def tags(self) -> Mapping[str, str]:
        """Return the tags of the run."""
        return self._store.tags(self._run_id)

    def _read(self, answer: Interrupt) -> Evidence:
        try:
            rule = Rule.thawed(answer.rule or {})
        except UsageError as error:
            raise ApprovalMismatch(f"{answer.name!r} has a damaged rule: {error}") from error
        requester = None
        root = answer.run_id
        if excludes_requester(rule):
            requester = self._store.requester(answer.run_id)
            root = self._root(answer.run_id)
        # Doors check who answered this node's other questions.
        answered = codec.without(answerers(self._store, rule, answer), answer.node_id)
        return Evidence(
            self._votes.get(answer.id) or self._store.votes(answer.id),
            requester,
            answered,
            self._keys.read,
            root,
            began_at(self._store, answer),
            self._plain_issuer() if level_of(rule) or answered else "",
            self.tenant,
        )

    def _root(self, run_id: str) -> str:
        """Return the outermost run; for a nested graph's run it comes from the store."""
        record = self._store.peek(run_id) if self._nested else None
        return record.root if record else run_id


def is_named(requester: JSONMapping | None) -> TypeGuard[JSONMapping]:
    """Return whether it is known who asked for a run; `inherited` requesters asked for another run."""
    return requester is not None and not requester.get("inherited")


def began_at(store: Store, question: Interrupt) -> int:
    """Return when a question's run was started (ms), by its id, which the question's digest covers."""
    # Run ids don't follow the store's own clock, which a test may set.
    return 0 if store.clock else run_ids.time_of(question.run_id)


def decided(store: Store, addresses: Sequence[Address], name: str) -> Interrupt | None:
    """Return the newest question of a name that any of these visits asked by a rule and that is answered.

    If it was asked again, the last one counts; each repeat has its own id.
    """
    newest: Interrupt | None = None
    for address in addresses:
        for scope in ("function", "node"):  # a tool's decision is for its own call alone
            for again in range(MOST_AGAIN):
                (question,) = store.interrupts([address.interrupt_id(scope, name, 1, again)])
                if question is None:
                    break
                if question.rule is not None and question.status is InterruptStatus.ANSWERED:
                    newest = max(newest or question, question, key=lambda one: one.answered_at)
    return newest


def answerers(store: Store, rule: Rule, question: Interrupt) -> dict[str, frozenset[str]]:
    """Return, by node as a rule names it, who answered it: in the question's run or one around it.

    For the node that asks, these are the people who answered its other questions.
    """
    return answerers_of(
        store,
        rule,
        question.run_id,
        is_nested=PATH in (question.place or {}).get("graph", ""),
        but=question.id,
    )


def answerers_of(
    store: Store, rule: Rule, run_id: str, *, is_nested: bool = True, but: str = ""
) -> dict[str, frozenset[str]]:
    """Return, by node as a rule names it, who answered it in a run or one around it, except one question."""
    nodes = excluded_answerers(rule)
    runs = [run_id]
    if nodes and is_nested:
        while (record := store.peek(runs[-1])) is not None and record.parent:
            runs.append(record.parent)
    return {
        node: frozenset().union(
            *(
                store.answerers(run_id, node.removeprefix(OUTER), but)
                for run_id in runs[node.startswith(OUTER) :]
            )
        )
        for node in nodes
    }
