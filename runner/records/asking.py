"""The one implementation of `interrupt()`: return the recorded answer, or record the question.

Functions, tools, hooks and adapters all use it, each with its own place (address, scope, number).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, Unpack, cast, overload

import pydantic

from runner.approvals.digests import Action
from runner.errors import (
    ApprovalMismatch,
    InterruptExpired,
    InterruptRaised,
    InterruptWithdrawn,
    UsageError,
)
from runner.records import validation
from runner.records.codec import plain, unpack
from runner.records.interrupts import (
    Address,
    AnswerModel,
    DeliveryOptions,
    Interrupt,
    InterruptOptions,
    InterruptStatus,
    answer_value,
    ends_node,
)


class InterruptCall(Protocol):
    """`interrupt()` as a type checker sees it: a model as the schema is also the type of the answer."""

    @overload
    def __call__(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        *,
        response_schema: type[AnswerModel],
        **options: Unpack[DeliveryOptions],
    ) -> AnswerModel: ...
    @overload
    def __call__(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        **options: Unpack[InterruptOptions],
    ) -> Any: ...


class InterruptMethod(Protocol):
    """A method `interrupt()`."""

    def __get__(self, instance: object, owner: type | None = None) -> InterruptCall: ...


def typed_interrupt(method: Callable[..., Any]) -> InterruptMethod:
    """Give a method its overloads; at run time it is unchanged."""
    return cast("InterruptMethod", method)


class Asker:
    """Asks questions for one place in a user's code.

    Questions and refusals are also recorded here, so that code that swallows the exception doesn't
    lose the question. `repeat` allows one name several times (in a tool: the same question). If a
    question with a rule names no action, `call` builds it.
    """

    def __init__(
        self,
        address: Address,
        scope: str,
        number: int = 1,
        answers: Mapping[str, Interrupt] | None = None,
        *,
        repeat: bool = False,
        call: Callable[[], Action | None] | None = None,
    ) -> None:
        self.asked: list[Interrupt] = []
        self.refused: UsageError | None = None
        self.mismatch: ApprovalMismatch | None = None
        self._address = address
        self._scope = scope
        self._number = number
        self._answers = answers or {}
        self._repeat, self._call = repeat, call
        self._used: set[str] = set()

    def decide(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        **options: Unpack[InterruptOptions],
    ) -> tuple[Any, Interrupt]:
        """Return the answer, and the question as it was answered.

        Raises:
            InterruptRaised: the question isn't answered yet.
            InterruptExpired: the question has expired. InterruptWithdrawn: an operator has withdrawn it.
            UsageError: an argument of the question is invalid.
            ApprovalMismatch: it was decided by a rule, and the decision does not hold.
        """
        try:
            question = self._question(name, reason, options)
            self._check_rule(question, response)
        except UsageError as error:
            self.refused = error
            raise
        earlier = self._answers.get(question.id)
        if earlier is not None and is_answered(earlier):
            try:
                schema = options.get("response_schema")
                return judged_value(self._address, question, earlier, schema), earlier
            except ApprovalMismatch as error:
                self.mismatch = error
                raise
        if response is not None:
            return response, question
        if all(question.id != pending.id for pending in self.asked):
            self.asked.append(question)
        raise InterruptRaised(name)

    def _check_rule(self, question: Interrupt, response: object) -> None:
        if question.rule is not None and (response is not None or self._address.judge is None):
            raise UsageError(
                f"interrupt {question.name!r} has a rule, so votes decide it, in a run of a graph: it takes "
                "no response in advance, and an agent that is called directly can't ask it."
            )

    def _question(self, name: str, reason: object, options: InterruptOptions) -> Interrupt:
        if self._call is not None and options.get("rule") is not None:
            options.setdefault("action", self._call())
        question = numbered_question(
            self._address,
            self._answers,
            name,
            reason,
            scope=self._scope,
            number=self._number,
            **options,
        )
        if name in self._used and not self._repeat:
            raise UsageError(
                f"interrupt {name!r} was asked twice in one event; give each question a name of its own."
            )
        self._used.add(name)
        return question


def judged_value(
    address: Address, question: Interrupt, earlier: Interrupt, schema: object = None
) -> Any:
    """Return the answer to a question that no longer waits; with a rule, its `Approval`.

    Raises:
        InterruptExpired, InterruptWithdrawn: it ended without an answer.
        ApprovalMismatch: the decision does not hold.
    """
    value = answer_value(earlier, schema)
    if address.judge is None or (question.rule is None and earlier.rule is None):
        return value
    approval = address.judge.approval(question, earlier)
    return replace(value, votes=approval.votes, effect=approval.effect)


def is_answered(question: Interrupt) -> bool:
    """Return whether a question no longer waits; a hook may answer one still open in the store."""
    return question.response is not None or not question.is_open


def is_asked_again(earlier: Interrupt) -> bool:
    """Return whether a question ended so that the same code asks it once more.

    An operator withdrew it with `reask`, or it was withdrawn because its node stopped waiting for
    it (the run had stopped, or the node asked something else). Or its node ended when it expired,
    and was then retried.
    """
    if earlier.withdrawal is not None:
        return bool(earlier.withdrawal["reask"])
    if earlier.status is InterruptStatus.EXPIRED:
        return ends_node(earlier)
    return earlier.status is InterruptStatus.WITHDRAWN


def numbered_question(
    address: Address,
    answers: Mapping[str, Interrupt],
    name: str,
    reason: object = None,
    *,
    scope: str,
    number: int = 1,
    **options: Unpack[InterruptOptions],
) -> Interrupt:
    """Build a question, with the number of times that it has been asked again as part of its id.

    So an answer to the earlier question is never taken for an answer to this one. The number grows
    when `is_asked_again` holds, or when the recorded answer does not match the schema of the
    present code. If an answer fits the schema but not the code's model, it is asked for again with
    the problem.
    """
    repeats = 0
    replaces = ""
    shown = reason
    schema = options.get("response_schema")
    while True:
        question = address.ask(
            name, shown, scope=scope, number=number, reasked=repeats, **options
        )
        earlier = answers.get(question.id)
        if earlier is None:
            if address.judge and (rule := options.get("rule")):
                address.judge.check_reach(rule)
            break
        problem = _problem(earlier, question, schema) if isinstance(schema, type) else ""
        if not (
            problem
            or is_asked_again(earlier)
            or is_outdated(earlier, question)
            or _is_stale(earlier, options, address)
            or (len(answers) > 1 and _is_replaced(earlier, answers, address))
        ):
            break
        shown = with_problem(reason, problem) if problem else shown
        if (earlier.withdrawal or {}).get("to") and not options.get("rule"):
            options["assignees"] = (earlier.withdrawal or {})["to"]
        repeats = repeats + 1
        replaces = "" if is_asked_again(earlier) else earlier.id
    return replace(question, replaces=replaces) if replaces else question


def _is_replaced(
    earlier: Interrupt, answers: Mapping[str, Interrupt], address: Address
) -> bool:
    """Return whether a later question replaced this one, even if its answer fits the code now."""
    later_id = address.interrupt_id(
        earlier.scope, earlier.name, earlier.number, earlier.reasked + 1
    )
    return later_id in answers and answers[later_id].replaces == earlier.id


def with_problem(reason: object, problem: str) -> dict[str, object]:
    """Return the reason of a question that is asked again because its answer can't be used."""
    return {"question": reason, "problem": problem}


def _problem(earlier: Interrupt, question: Interrupt, schema: object) -> str:
    """Describe why the code's model refuses an answer that fits its schema; "" if it doesn't."""
    if not is_answered(earlier) or is_asked_again(earlier):
        return ""
    if earlier.rule is not None and earlier.response_schema != question.response_schema:
        return ""  # its votes are for the question as it was asked: see `Judge`
    try:
        answer_value(earlier, schema)
    except pydantic.ValidationError as error:
        return validation.of_model(error)
    except (InterruptExpired, InterruptWithdrawn):
        return ""
    return ""


def _is_stale(earlier: Interrupt, options: InterruptOptions, address: Address) -> bool:
    """Return whether a decision by a rule wasn't used in time, so that it is asked for again."""
    rule = options.get("rule")
    judge = address.judge
    if rule is None or judge is None or earlier.status is not InterruptStatus.ANSWERED:
        return False
    return judge.is_stale(rule, earlier)


def is_outdated(earlier: Interrupt, question: Interrupt) -> bool:
    """Return whether an answer to an earlier schema doesn't match the question's present schema."""
    if (
        question.response_schema in (None, earlier.response_schema)
        or earlier.withdrawal is not None
    ):
        return False
    if earlier.rule is not None:
        return False  # its votes are for the question as it was asked: see `Judge`
    answer = earlier.response
    if earlier.status is InterruptStatus.EXPIRED:
        answer = (
            earlier.on_expire.get("response") if isinstance(earlier.on_expire, dict) else None
        )
    return answer is not None and bool(
        validation.mismatch(question.response_schema or {}, plain(unpack(answer)))
    )
