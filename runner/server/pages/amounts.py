"""Amounts of calls: an argument is one by its name, and its currency is the argument `currency`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal

from runner.operations.questions import QuestionView
from runner.records.shown_text import shown

AMOUNT = re.compile(
    "(?:^|_)(?:amount|total|sum|price|cost|fee)s?(?:_|$)|Amount|Total|Price|Cost|Fee"
)
"""Names of amounts, also in camelCase, but no parts of words such as "coffee"."""

LARGEST = 10**15


def amount_of(question: QuestionView) -> tuple[Decimal, str] | None:
    """Return the first amount of a question's call and its currency; None without an amount."""
    args = (question.action or {}).get("args") or {}
    for name, value in args.items():
        if AMOUNT.search(name):
            with suppress(ArithmeticError):
                amount = Decimal(str(value))  # raises for True, as for any other word
                if abs(amount) < LARGEST:  # raises for NaN
                    return amount, shown(str(args.get("currency", "")))[:12]
    return None


def sums_of(questions: Iterable[QuestionView]) -> str:
    """Return the sums of the amounts by currency, such as "41,203.50 EUR, 90.00 USD"."""
    sums = defaultdict[str, Decimal](Decimal)
    for amount, currency in filter(None, map(amount_of, questions)):
        sums[currency] += amount
    return ", ".join(f"{amount:,.2f} {currency}".rstrip() for currency, amount in sums.items())
