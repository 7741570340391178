"""Amounts of calls: an argument is one by its name, and its currency is the argument `currency`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal, InvalidOperation

from runner.operations.questions import QuestionView

AMOUNT = re.compile("amount|total|sum|price|cost|fee", re.IGNORECASE)


def amount_of(question: QuestionView) -> tuple[Decimal, str] | None:
    """Return the first amount of a question's call and its currency; None without an amount."""
    args = (question.action or {}).get("args") or {}
    for name, value in args.items():
        if AMOUNT.search(name) and not isinstance(value, bool):
            with suppress(InvalidOperation):
                amount = Decimal(str(value))
                if amount.is_finite():
                    return amount, str(args.get("currency", ""))
    return None


def sums_of(questions: Iterable[QuestionView]) -> str:
    """Return the sums of the amounts by currency, such as "41,203.50 EUR, 90.00 USD"."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for amount, currency in filter(None, map(amount_of, questions)):
        sums[currency] += amount
    return ", ".join(f"{amount:,.2f} {currency}".rstrip() for currency, amount in sums.items())
