"""A day at a till: what people are asked without grants, and with one for small refunds.

One person asks for refunds, two decide. The page of grants has the figures, in the words of this test.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from runner import Agent, Client, GraphBuilder, Status, tool
from runner.approvals import Rule
from runner.approvals.rules import Grants
from runner.definition.registry import Registry
from runner.store.redis.store import RedisStore
from runner.testing import ScriptedModel

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "grants.md"

AMOUNTS = {(5, 50): 120, (50, 120): 60, (120, 500): 16, (500, 5_000): 4}
"""How many refunds of a day are between two amounts in EUR, each cent as likely as another."""

USES, SUM = 25, 500
SMALL = Grants({"properties": {"amount": {"maximum": 50}}}, uses=USES, sums={"amount": SUM})
RULE = Rule(eligible=["ana", "ben"], exclude=["requester"], grants=SMALL)
TWO = Rule(eligible=["ana", "ben"], exclude=["requester"], need=2)
WITHIN = {"properties": {"amount": {"maximum": 50}, "currency": {"const": "EUR"}}}


def refunds() -> list[tuple[str, str]]:
    """Return the day's refunds, as they come: amounts and currencies, one in twenty in another."""
    chance = random.Random(2026)  # noqa: S311 - to repeat
    amounts = [
        Decimal(chance.randint(low * 100, high * 100)) / 100
        for (low, high), number in AMOUNTS.items()
        for _ in range(number)
    ]
    chance.shuffle(amounts)
    return [(f"{amount:.2f}", "CHF" if chance.random() < 0.05 else "EUR") for amount in amounts]


def rule_of(arguments: dict[str, Any]) -> Rule:
    """Two people decide above 500."""
    return TWO if arguments["amount"] > 500 else RULE


@dataclass
class Till:
    """The day at one store: chris asks for refunds, ana and ben decide on what they are asked."""

    store: RedisStore
    paid: list[tuple[str, str]] = field(default_factory=list)
    questions: int = 0
    votes: int = 0
    grants: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bells: deque[Any] = deque()

        @tool(approval=rule_of)
        def refund(amount: Decimal, currency: str) -> str:
            """Pay a refund."""
            self.paid.append((str(amount), currency))
            return "paid"

        def call(messages):
            amount, currency = messages[0]["content"][0]["text"].split()
            return {
                "toolUse": {"name": "refund", "input": {"amount": amount, "currency": currency}}
            }

        builder = GraphBuilder()
        builder.add_node(Agent("clerk", ScriptedModel([call, "done"]), [refund]), "pay")
        till, registry = builder.build(), Registry()
        registry.add("till", lambda: till)
        self.client = Client(store=self.store, dispatcher=self, registry=registry)

    def ring(self, doorbells) -> None:
        self.bells.extend(doorbells)

    def call(self, task, kwargs, task_id) -> bool:
        return True

    def work(self) -> None:
        while self.bells:
            bell = self.bells.popleft()
            self.client.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)

    def ask(self, amount: str, currency: str) -> None:
        """Have one refund paid; who is asked about a small one grants the next, unless a grant is valid."""
        run = self.client.start("till", f"{amount} {currency}", requester="chris")
        self.work()
        for question in run.interrupts():
            self.questions += 1
            is_small = currency == "EUR" and Decimal(amount) <= 50
            if is_small:
                self.grant(question.id)
            for name in ("ana", "ben")[: question.rule["need"]]:
                self.votes += 1
                self.client.vote(question.id, "approve", by=name, digest=question.digest)
        self.work()
        assert run.status is Status.COMPLETED, run.result().results["pay"].result

    def grant(self, question: str) -> None:
        """Grant the next ones like this, in the place of what was used up."""
        self.votes += 1
        receipt = self.client.grant(
            question, by="ana", bounds=WITHIN, uses=USES, sums={"amount": SUM}
        )
        assert receipt.status == "accepted"
        self.grants.append(receipt.interrupt_id)


def told(till: Till) -> str:
    """Say for the page what was counted: without grants each refund is a question, of one vote or two."""
    votes = sum(rule_of({"amount": Decimal(amount)}).need for amount, _ in refunds())
    return (
        f"A day of {len(refunds())} refunds asks {len(refunds())} questions without grants. With "
        f"grants for {USES} refunds up to 50 EUR, {SUM} EUR in all, it asks {till.questions}, and "
        f"people vote {till.votes} times instead of {votes}."
    )


@pytest.mark.slow
def test_a_day_with_a_grant_asks_fewer_questions(redis_url):
    """All is paid, by a grant only what it is for, and the page says how many questions are left."""
    till = Till(RedisStore(redis_url))
    for amount, currency in refunds():
        till.ask(amount, currency)
    assert till.paid == refunds()
    used = [view.summed["amount"] for view in till.client.grants()]
    granted = sum(view.used for view in till.client.grants())
    assert granted == len(refunds()) - till.questions
    assert max(map(Decimal, used)) <= SUM
    assert told(till) in " ".join(PAGE.read_text().split())
