"""The gate at the beginning of a call: it asks people by the call's rule, and judges their decision.

A policy is asked for the rule twice: when the call begins, and after the decision, for the
arguments with which the call would be made. If the policy then wants more than was given, or
raises, or the tool doesn't take an edit as it is, the call is not made and a new question is asked,
about those arguments and by that rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pydantic import ValidationError

from runner.approvals.ballots import Use
from runner.approvals.digests import Action
from runner.approvals.policies import CallContext, Policy, rule_of, wants_no_more
from runner.approvals.rules import Approval, Rule
from runner.approvals.titles import LONGEST
from runner.errors import ApprovalMismatch, UsageError
from runner.immutable import immutable
from runner.records import validation
from runner.records.asking import is_answered, judged_value
from runner.records.codec import JSONMapping
from runner.records.interrupts import Address, Interrupt

MOST_STEPS = 20
"""Maximum number of questions about one call."""


@immutable
class CallState:
    """State of a call that needs approval: its question, the decision (None while it is open), and the
    arguments with which the call would be made.
    """

    question: Interrupt
    approval: Approval | None
    args: Any


@immutable
class Granted:
    """A call that a grant covers: the grant's id, the call's digest and arguments; the use is counted."""

    grant: str
    effect: str
    args: Any

    def use(self, key: str) -> Use:
        """Return the use to record."""
        return Use("", self.effect, key, grant=self.grant)


class GatedCall(Protocol):
    """One call of a tool or node, as its executor describes it to the gate."""

    @property
    def address(self) -> Address:
        """Where the call begins."""

    @property
    def answers(self) -> Mapping[str, Interrupt]:
        """The known questions of this visit, by id."""

    def question(self, step: int, rule: Rule, args: Any) -> Interrupt:
        """Build the question about these arguments; `step` counts the call's questions, from 0.

        Raises:
            UsageError: it can't be asked.
        """

    def earlier(self, step: int) -> Iterable[Interrupt]:
        """List a step's questions that were asked before, in any state."""

    def action(self, args: Any) -> Action:
        """Return the action of the call with these arguments."""

    def use_key(self, step: int) -> str:
        """Return the idempotency key under which the effect of the call is used."""

    def policy_arguments(self, args: Any) -> JSONMapping:
        """Return the arguments in the form that a policy takes."""

    def edited(self, approval: Approval) -> Any:
        """Return the arguments that the tool would get for an edit.

        Raises:
            UsageError, pydantic.ValidationError: they don't fit the tool.
        """


def decide(
    approval: Rule | Policy, call: GatedCall, args: Any, context: CallContext
) -> CallState | Granted | None:
    """Return the state of a call's approval; None if the call needs no approval.

    Raises:
        ApprovalMismatch: a decision does not hold. InterruptExpired, InterruptWithdrawn: nobody
            decided.
        UsageError: a question can't be asked. Any error that a policy raises before a question was
            asked.
    """
    state: CallState | None = None
    stricter_rule: Rule | None = None
    for step in range(MOST_STEPS):
        rule = asked_rule = _asked_rule(call, step)
        if isinstance(approval, Rule):
            again = asked_rule or stricter_rule
            rule = replace(approval, because=again.because) if step and again else approval
        elif asked_rule is None:
            rule = (
                stricter_rule
                if step
                else rule_of(approval, call.policy_arguments(args), context)
            )
        if rule is None:
            return state
        if asked_rule is None and rule.grants is not None and call.address.judge is not None:
            action = call.action(args)
            if grant := call.address.judge.use_grant(rule, action, call.use_key(step)):
                return Granted(grant, action.digest(), args)
        question = call.question(step, rule, args)
        earlier = call.answers.get(question.id)
        if earlier is None or not is_answered(earlier):
            return CallState(question, None, args)
        decision: Approval = judged_value(call.address, question, earlier)
        if decision.decision == "edit":
            args, problem = _edited_call(call, decision, args)
            if problem:
                stricter_rule = replace(rule, because=problem)
                continue
        state = CallState(earlier, decision, args)
        if isinstance(approval, Rule) or not decision.approved:
            return state
        stricter_rule = _wanted(approval, rule, call, args, context)
    raise ApprovalMismatch(
        f"{context.tool!r} was asked about {MOST_STEPS} times, and not called."
    )


def _edited_call(call: GatedCall, edit: Approval, args: Any) -> tuple[Any, str]:
    """Return the arguments of an edit, and why they are asked about again: "" if they are not."""
    try:
        edited = call.edited(edit)
        is_same = call.action(edited).digest() == edit.effect
        return edited, "" if is_same else "this is how the tool reads the edit"
    except ValidationError as error:
        problem = validation.of_model(error)
    except UsageError as error:
        problem = str(error)
    return args, validation.one_line(problem)[:LONGEST]


def _asked_rule(call: GatedCall, step: int) -> Rule | None:
    """Return the rule by which a step was asked before; None if it was not asked."""
    rules = [
        (question.reasked, question.rule) for question in call.earlier(step) if question.rule
    ]
    return Rule.thawed(max(rules, key=lambda rule: rule[0])[1]) if rules else None


def _wanted(
    policy: Policy, met_rule: Rule, call: GatedCall, args: Any, context: CallContext
) -> Rule | None:
    """Return the rule that the policy wants directly before the effect, if it wants more than was met."""
    try:
        rule = policy.rule(call.policy_arguments(args), context)
    except Exception as error:  # noqa: BLE001 - whatever it raises, the call must not be made
        return replace(met_rule, because=f"its policy failed: {type(error).__name__}")
    return None if rule is None or wants_no_more(rule, met_rule) else rule
