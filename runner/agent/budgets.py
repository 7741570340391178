"""Limits of an agent's spending, and the check before each call of its model and its tools.

An invocation's own sum is in the agent's stored state; the sums of runs and tags are in the store,
where every worker adds to them. Before a call, one request reserves its count and known price, and
adds nothing if that exceeds a bound; a model's tokens are added after its reply. So the number of
calls never exceeds a budget; tokens and costs exceed it at most by the model calls then running.

Each sum has at most one open question. The first call that exceeds the bound asks; the visit's
other calls wait for that answer, and so do other visits, which the store lists: the visit that
asked wakes them.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from runner import hooks
from runner.agent.checkpointer import Checkpointer
from runner.agent.machine.protocol import FireHook
from runner.agent.machine.state import AgentState, CallStage
from runner.approvals.rules import Rule
from runner.errors import BudgetExceeded, DefinitionError, InterruptExpired, InterruptWithdrawn
from runner.immutable import immutable
from runner.records import codec
from runner.records.asking import is_answered
from runner.records.budgets import (
    AWAITED,
    COUNTERS,
    MICROS,
    QUESTION,
    USAGE,
    Spending,
    Sum,
    Tagged,
)
from runner.records.codec import JSONObject
from runner.records.interrupts import Interrupt
from runner.records.validation import is_number

MONTH = 30 * 86_400.0

STOP = "stop"

SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "raise_by": {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000_000}
            },
            "required": ["raise_by"],
            "additionalProperties": False,
        },
        {"const": STOP},
    ]
}
"""The schema of answers to the question about a used-up budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices of an agent's calls, in any currency: per million tokens, and `calls` per tool call.

    Example: `Price(input=3, output=15, calls={"search": 0.01})`.
    """

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0
    calls: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            DefinitionError: one is negative, infinite or not a number.
        """
        for number in (
            self.input,
            self.output,
            self.cache_read,
            self.cache_write,
            *self.calls.values(),
        ):
            if not (is_number(number) and 0 <= number < math.inf):
                raise DefinitionError(f"a price must be a number from 0, not {number!r:.40}.")

    def of_reply(self, usage: Mapping[str, int]) -> int:
        """Return the cost of a model's reply, in millionths, rounded up."""
        counts = (
            ("inputTokens", self.input),
            ("outputTokens", self.output),
            ("cacheReadInputTokens", self.cache_read),
            ("cacheWriteInputTokens", self.cache_write),
        )
        return _rounded_up(sum(usage.get(name, 0) * price for name, price in counts))

    def of_call(self, tool: str) -> int:
        """Return the cost of a tool call, in millionths."""
        return _rounded_up(self.calls.get(tool, 0.0) * MICROS)


def _rounded_up(micros: float) -> int:
    """Round up, unless only a floating-point error puts the number above a whole number."""
    return math.ceil(round(micros, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of spending `per` "invocation", "run" or "tag:<name>"; None means no limit.

    A run's sum covers all its agents with a budget per run, also in runs inside it. A tag's sum
    covers all runs with the same tag value, in windows of `window` seconds counted from 1970.
    `tokens` are input and output together; `cost` is in the currency of the agent's prices. A call
    that would exceed the budget isn't made: with `over="fail"` the node fails; with "ask",
    `assignees` are asked to raise the budget or to stop, or the people a `rule` names vote on it.
    The question may expire like an `interrupt()` question.
    """

    per: str = "invocation"
    tokens: int | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    cost: float | None = None
    over: Literal["fail", "ask"] = "fail"
    window: float = MONTH
    assignees: Sequence[str] | None = None
    expires_in: float | None = None
    rule: Rule | None = None

    def __post_init__(self) -> None:
        """Check the parts.

        Raises:
            DefinitionError: a part is invalid, or nothing is limited.
        """
        tag = self.per.removeprefix("tag:")
        if self.per not in {"invocation", "run"} and (tag == self.per or not tag):
            raise DefinitionError(
                f'a budget is per "invocation", "run" or "tag:<name>", not {self.per!r:.80}.'
            )
        if self.over not in {"fail", "ask"}:
            raise DefinitionError(
                f'over of a budget is "fail" or "ask", not {self.over!r:.40}.'
            )
        if self.rule is not None and (self.over == "fail" or self.assignees is not None):
            raise DefinitionError(
                'the rule of a budget says who raises it: it needs over="ask", and no assignees.'
            )
        if not self.window > 0:
            raise DefinitionError("the window of a budget must be longer than 0 seconds.")
        limits = self._declared
        for name, limit in limits.items():
            kinds = (int, float) if name == "cost" else (int,)
            if isinstance(limit, bool) or not isinstance(limit, kinds) or not 0 < limit < 2**43:
                raise DefinitionError(
                    f"{name} of a budget must be a number above 0, not {limit!r:.40}."
                )
        if not limits:
            raise DefinitionError(f"a budget needs a limit: one of {', '.join(COUNTERS)}.")

    @property
    def limits(self) -> dict[str, int]:
        """The limits by counter; the cost is in millionths."""
        return {
            name: round(limit * MICROS) if name == "cost" else limit
            for name, limit in self._declared.items()
        }

    @property
    def _declared(self) -> JSONObject:
        return {name: limit for name in COUNTERS if (limit := getattr(self, name)) is not None}


def checked_budgets(
    budgets: Sequence[Budget], price: Price | None, agent: str
) -> tuple[Budget, ...]:
    """Check the budgets of an agent.

    Raises:
        DefinitionError: a budget or the price has the wrong type, or a cost limit has no price.
    """
    for budget in budgets:
        if not isinstance(budget, Budget):
            raise DefinitionError(
                f"agent {agent!r} has {budget!r:.80} as a budget, which isn't a Budget."
            )
        if budget.cost is not None and price is None:
            raise DefinitionError(
                f"agent {agent!r} has a budget for its cost; it needs price=Price(...)."
            )
    if price is not None and not isinstance(price, Price):
        raise DefinitionError(
            f"agent {agent!r} has {price!r:.80} as its price, which isn't a Price."
        )
    return tuple(budgets)


@immutable
class Bound:
    """One limit of one of an agent's budgets."""

    agent: str
    budget: Budget
    counter: str
    limit: int

    @property
    def question(self) -> str:
        """The name of the question about raising it; only an invocation's names the agent."""
        per = self.budget.per
        return (
            f"{QUESTION}{f'{self.agent}.' if per == 'invocation' else ''}{per}.{self.counter}"
        )

    @property
    def rule(self) -> Rule | None:
        """The rule of that question, which shows no call: it can only be answered or rejected."""
        rule = self.budget.rule
        return rule and replace(rule, decisions=("respond", "reject"))


class Meter:
    """Counts the spending of one agent's execution, for itself and for the agents above it."""

    def __init__(
        self,
        agent: str,
        budgets: Sequence[Budget],
        price: Price | None,
        checkpointer: Checkpointer,
        *,
        state: Callable[[], AgentState],
        above: Meter | None = None,
    ) -> None:
        """Start from the agent's current `state`; `above` is the calling agent's meter."""
        self._checkpointer = checkpointer
        self.state = state
        self.above = above
        self.price: Price | None = price or (above.price if above else None)
        self.lock: asyncio.Lock = above.lock if above else asyncio.Lock()
        bounds = [
            Bound(agent, budget, counter, limit)
            for budget in budgets
            for counter, limit in budget.limits.items()
        ]
        self.own = [bound for bound in bounds if bound.budget.per == "invocation"]
        self.shared: list[Bound] = [
            *(bound for bound in bounds if bound.budget.per != "invocation"),
            *(above.shared if above else ()),
        ]
        usage = state().usage
        self.used = {counter: usage.get(name, 0) for counter, name in USAGE.items()}
        # Calls that began in an earlier execution are added to `usage` only when they end.
        self.used["tool_calls"] += sum(
            call.stage is CallStage.RUNNING for call in state().calls
        )
        self._tags: Mapping[str, str] | None = None
        self._judged: dict[str, Any] = {}
        self.asked: dict[str, tuple[Meter, str]] = above.asked if above else {}
        self.closed: set[str] = above.closed if above else set()

    # -- counting calls ---------------------------------------------------------------------------

    async def replied(self, usage: Mapping[str, int]) -> dict[str, int]:
        """Add a model's reply to all sums, and return its usage with the budget counters.

        Some providers send counts below 0, which are read as 0; others send no total.
        """
        usage = {name: max(0, count) for name, count in usage.items()}
        both = usage.get("inputTokens", 0) + usage.get("outputTokens", 0)
        usage["totalTokens"] = max(usage.get("totalTokens", 0), both)
        cost = self.price.of_reply(usage) if self.price else 0
        amounts = {"tokens": usage["totalTokens"], "cost": cost}
        amounts = {counter: amount for counter, amount in amounts.items() if amount}
        if amounts:
            async with self.lock:
                for tag in await self._sums():
                    await self._spend(tag, amounts)
                self._count(amounts)
        cost_usage = {USAGE["cost"]: cost} if cost else {}
        return {**usage, USAGE["model_calls"]: 1, **cost_usage}

    def ended(self, tool: str) -> dict[str, int]:
        """Return a tool call's own usage, without the usage of an agent inside it."""
        cost = self.price.of_call(tool) if self.price else 0
        return {USAGE["tool_calls"]: 1, **({USAGE["cost"]: cost} if cost else {})}

    def _count(self, amounts: Mapping[str, int]) -> None:
        for meter in self._chain():
            for counter, amount in amounts.items():
                meter.used[counter] += amount

    def _chain(self) -> Iterator[Meter]:
        meter: Meter | None = self
        while meter is not None:
            yield meter
            meter = meter.above

    # -- before a call ----------------------------------------------------------------------------

    def guard(self, command: FireHook) -> hooks.Callback | None:
        """Return the last callback to run before a call, or None for another event."""
        guards: dict[str, hooks.Callback] = {
            "before_model_call": self._before_model,
            "before_tool_call": self._before_tool,
        }
        return guards.get(command.event)

    async def _before_model(self, event: hooks.BeforeModelCallEvent) -> None:
        if not event.cancel:
            await self._reserve(event, {"model_calls": 1})

    async def _before_tool(self, event: hooks.BeforeToolCallEvent) -> None:
        tool = event.selected_tool
        if tool is not None and not event.cancel_tool:
            cost = self.price.of_call(tool.tool_name) if self.price else 0
            await self._reserve(event, {"tool_calls": 1, **({"cost": cost} if cost else {})})

    async def _reserve(self, event: hooks.AgentEvent, amounts: dict[str, int]) -> None:
        """Count a call before it begins.

        Raises:
            BudgetExceeded: it would exceed a budget; nothing is counted.
            InterruptRaised: it would exceed a budget and a person is asked; nothing is counted.
        """
        if event.asker is not None and event.asker.asked:
            return  # the call doesn't begin in this pass
        async with self.lock:
            over = self._over_own(amounts)
            asker = ""
            if over is None:
                over, asker = await self._reserve_shared(amounts)
            if over is None:
                self._count(amounts)
                return
            await self._refuse(event, over, asker)

    def _over_own(self, amounts: Mapping[str, int]) -> Bound | None:
        for meter in self._chain():
            for bound in meter.own:
                if not _is_for(bound, amounts):
                    continue
                total = meter.used[bound.counter] + max(1, amounts.get(bound.counter, 0))
                if total > bound.limit + sum(amount for _, amount in self._raises(bound)):
                    return bound
        return None

    async def _reserve_shared(self, amounts: dict[str, int]) -> tuple[Bound | None, str]:
        """Return the bound that a call would exceed, and the visit already asking to raise it."""
        reserved_tags: list[Tagged | None] = []
        for tag, every in (await self._sums()).items():
            bounds = [bound for bound in every if _is_for(bound, amounts)]
            lowest = {
                bound.counter: bound for bound in sorted(bounds, key=lambda bound: -bound.limit)
            }
            limits = {counter: bound.limit for counter, bound in lowest.items()}
            raises: dict[str, tuple[str, int]] = {}
            for bound in bounds:
                try:
                    new_raises = self._raises(bound)
                except BudgetExceeded as error:
                    await self._checkpointer.close_raise(tag, bound.counter, str(error))
                    raise
                raises |= {question: (bound.counter, amount) for question, amount in new_raises}
            over = await self._spend(tag, amounts, limits, raises)
            asker = ""
            for counter in {raises[question][0] for question in raises.keys() - self.closed}:
                if not self._is_asked(lowest[counter]):
                    await self._checkpointer.close_raise(tag, counter)
            self.closed |= raises.keys()
            if over and lowest[over].budget.over == "ask":
                asker = await self._checkpointer.open_raise(tag, over)
                # It may have been raised just before this call joined the waiting ones.
                over = await self._spend(tag, amounts, limits) if asker[:1] != "!" else over
            if over:
                for reserved_tag in reserved_tags:
                    await self._spend(
                        reserved_tag, {name: -amount for name, amount in amounts.items()}
                    )
                return lowest[over], asker
            reserved_tags.append(tag)
        return None, ""

    async def _sums(self) -> dict[Tagged | None, list[Bound]]:
        """Return the bounds of every sum in the store; None is the run's sum."""
        sums: dict[Tagged | None, list[Bound]] = {}
        for bound in self.shared:
            if bound.budget.per == "run":
                sums.setdefault(None, []).append(bound)
                continue
            if self._tags is None:
                self._tags = await self._checkpointer.tags()
            tag = bound.budget.per.removeprefix("tag:")
            if tag in self._tags:  # the budget doesn't apply to a run without the tag
                sums.setdefault(
                    Tagged(tag, self._tags[tag], max(1, round(bound.budget.window * 1000))), []
                ).append(bound)
        return sums

    async def _spend(
        self,
        tag: Tagged | None,
        amounts: Mapping[str, int],
        bounds: Mapping[str, int] | None = None,
        raises: Mapping[str, tuple[str, int]] | None = None,
    ) -> str:
        spender = self._checkpointer.address.node_id
        spending = Spending(spender, uuid.uuid4().hex, amounts, bounds or {}, raises or {})
        return await self._checkpointer.spend(tag, spending)

    # -- over a budget ----------------------------------------------------------------------------

    def _raises(self, bound: Bound) -> list[tuple[str, int]]:
        """Return the amounts that people have added to a bound in this invocation, by question.

        Raises:
            BudgetExceeded: the decision was to stop.
            ApprovalMismatch: the stored decision doesn't match the votes.
        """
        raises = {}
        for question in self._questions(bound):
            if question.response is None:
                continue
            rule = bound.rule and bound.rule.frozen()
            if question.reason["agent"] != bound.agent and question.rule != rule:
                continue  # another agent of this visit asked other people
            response = self._answer(question, bound)
            amount = response.get("raise_by") if isinstance(response, dict) else None
            if not isinstance(amount, (int, float)):
                by_whom = f" by {question.responder}" if question.responder else ""
                raise BudgetExceeded(f"{_used_up(bound)}, and it was decided{by_whom} to stop.")
            raises[question.id] = (
                round(amount * MICROS) if bound.counter == "cost" else round(amount)
            )
        return list(raises.items())

    def _questions(self, bound: Bound) -> Iterator[Interrupt]:
        """Yield this invocation's questions about raising a bound, answered or not."""
        for meter in self._chain():
            for question in meter.state().questions.values():
                if question.name.partition("#")[0] == bound.question:
                    yield question

    def _answer(self, question: Interrupt, bound: Bound) -> Any:
        """Return the answer to a bound's question; with a rule, count its votes again, once."""
        judge = self._checkpointer.address.judge
        if bound.rule is None or judge is None:
            return codec.plain(codec.unpack(question.response))
        if question.id not in self._judged:
            self._judged[question.id] = codec.plain(
                judge.approval(replace(question, rule=bound.rule.frozen()), question).response
            )
        return self._judged[question.id]

    async def _refuse(self, event: hooks.AgentEvent, bound: Bound, asker: str) -> None:
        raises = self._raises(bound)
        tag, spent, raise_sum = await self._spent(bound)
        if asker[:1] == "!":
            raise BudgetExceeded(asker[1:])
        if bound.budget.over == "fail" or event.asker is None:
            raise BudgetExceeded(
                f"{_used_up(bound)}: {_amount(bound, spent)} are spent. The call was not made."
            )
        if asker or self._is_asked(bound):
            where = "other" if asker else "own"
            name = bound.question
            event.asker.asked.append(Interrupt(f"{AWAITED}{where}.{name}", name, asker))
            return
        number = f"#{len(raises) + 1}" if raises else ""
        try:
            event.interrupt(
                f"{bound.question}{number}",
                {
                    "budget": bound.budget.per,
                    "agent": bound.agent,
                    "counter": bound.counter,
                    "spent": _plain(bound, spent),
                    "limit": _plain(bound, bound.limit + raise_sum),
                },
                response_schema=SCHEMA,
                assignees=bound.budget.assignees,
                rule=bound.rule,
                action=None,
                expires_in=bound.budget.expires_in,
            )
        except (InterruptExpired, InterruptWithdrawn) as error:
            if bound in self.shared:
                await self._checkpointer.close_raise(
                    tag, bound.counter, f"{_used_up(bound)}: {error}"
                )
            raise
        finally:
            for question in event.asker.asked:
                self.asked[bound.question] = self, question.id

    def _is_asked(self, bound: Bound) -> bool:
        """Return whether a call of this visit waits for an answer about raising a bound."""
        if any(
            not (question.id.startswith(AWAITED) or is_answered(question))
            for question in self._questions(bound)
        ):
            return True
        meter, question_id = self.asked.get(bound.question, (self, ""))
        return bool(question_id) and question_id not in meter.state().questions

    async def _spent(self, bound: Bound) -> tuple[Tagged | None, int, int]:
        """Return a bound's sum, the amount spent, and the amount by which people have raised it."""
        for meter in self._chain():
            if bound in meter.own:
                raise_sum = sum(amount for _, amount in self._raises(bound))
                return None, meter.used[bound.counter], raise_sum
        for tag, bounds in (await self._sums()).items():
            if bound in bounds:
                tag_sum = (await self._checkpointer.spent(tag)).get(bound.counter, Sum())
                return tag, tag_sum.spent, tag_sum.raised
        return None, 0, 0


def _is_for(bound: Bound, amounts: Mapping[str, int]) -> bool:
    """Return whether a bound applies: tool-call limits don't stop models, or token limits tools."""
    return bound.counter in amounts or (
        "model_calls" in amounts and bound.counter in {"tokens", "cost"}
    )


def _used_up(bound: Bound) -> str:
    limit = _amount(bound, bound.limit)
    return f"the budget of agent {bound.agent!r} per {bound.budget.per}, {limit}, is used up"


def _amount(bound: Bound, number: int) -> str:
    value = _plain(bound, number)
    if bound.counter == "cost":
        return f"a cost of {value:,}"
    return f"{value:,} {bound.counter.replace('_', ' ')}"


def _plain(bound: Bound, number: int) -> float:
    return number / MICROS if bound.counter == "cost" else number
