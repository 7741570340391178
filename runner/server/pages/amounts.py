"""Amounts of questions: an argument is one by its name, and its currency is the argument `currency`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from markupsafe import Markup

from runner.approvals.titles import grouped, number_of
from runner.operations.questions import QuestionView
from runner.records.codec import JSONMapping
from runner.records.shown_text import shown

AMOUNT = re.compile(
    "(?:^|_)(?:amount|total|sum|price|cost|fee)s?(?:_|$)|Amount|Total|Price|Cost|Fee"
)
"""Names of amounts, also in camelCase, but no parts of words such as "coffee"."""


def content_of(question: QuestionView) -> JSONMapping:
    """Return the arguments of a question's call; without a call its reason, if that is an object."""
    content = question.action["args"] if question.action else question.reason
    return content if isinstance(content, Mapping) else {}


def amount_of(question: QuestionView) -> tuple[Decimal, str] | None:
    """Return the first amount of a question and its currency; None without an amount."""
    args = content_of(question)
    for name, value in args.items():
        if AMOUNT.search(name) and (amount := number_of(value)) is not None:
            return amount, shown(str(args.get("currency", "")))[:12]
    return None


def written(value: Any, name: str = "amount") -> Markup | None:
    """Write a value as an amount if its name says that it is one; None for any other value."""
    amount = number_of(value) if AMOUNT.search(name) else None
    return None if amount is None else _marked(amount)


def _marked(amount: Decimal) -> Markup:
    """Write an amount so that a script can write it in the reader's language."""
    # A number needs no escaping.
    return Markup(f'<data class="amount" value="{amount}">{grouped(amount)}</data>')  # noqa: S704 - as above


def sums_of(questions: Iterable[QuestionView]) -> Markup:
    """Return the sums of the amounts by currency, such as "41,203.50 EUR, 90.00 USD"."""
    sums = defaultdict[str, Decimal](Decimal)
    for amount, currency in filter(None, map(amount_of, questions)):
        sums[currency] += amount
    return Markup(", ").join(
        Markup("{} {}").format(_marked(amount), currency).rstrip()
        for currency, amount in sums.items()
    )
