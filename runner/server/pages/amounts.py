"""Amounts of questions: arguments with certain names; the currency is the argument `currency`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from markupsafe import Markup

from runner.approvals.titles import grouped, number_of
from runner.immutable import kept
from runner.operations.questions import QuestionView
from runner.records.codec import JSONMapping
from runner.records.shown_text import shown

AMOUNT = re.compile(
    "(?:^|_)(?:amount|total|sum|price|cost|fee)s?(?:_|$)|Amount|Total|Price|Cost|Fee"
)
"""Names of amounts, also in camelCase, but no parts of words such as "coffee"."""

KINDS = ("amount", "total", "sum", "price", "cost", "fee")
"""Words of these names, the main one first: a fee beside an amount isn't the sum paid."""


def content_of(question: QuestionView) -> JSONMapping:
    """Return the arguments of a question's call; without a call its reason, if that is an object."""
    content = question.action["args"] if question.action else question.reason
    return content if isinstance(content, Mapping) else {}


@kept
def amount_of(question: QuestionView) -> tuple[Decimal, str] | None:
    """Return the main amount of a question and its currency; None if it isn't a number."""
    args = content_of(question)
    names = [name for kind in KINDS for name in args if kind in name.lower()]
    amount = number_of(args.get(next(filter(AMOUNT.search, names), "")))
    return None if amount is None else (amount, shown(str(args.get("currency") or ""))[:12])


def written(value: Any, name: str = "amount") -> Markup | None:
    """Write a value as an amount if its name says that it is one; None for any other value."""
    amount = number_of(value) if AMOUNT.search(name) else None
    return None if amount is None else _marked(amount)


def _marked(amount: Decimal) -> Markup:
    """Write an amount so that a script can write it in the reader's language."""
    # A number needs no escaping.
    return Markup(f'<data class="amount" value="{amount}">{grouped(amount)}</data>')  # noqa: S704 - as above


def sums_of(questions: Iterable[QuestionView]) -> Markup:
    """Return the sums of the amounts by currency, such as "41,203.50 EUR, 1 without an amount"."""
    sums = defaultdict[str, Decimal](Decimal)
    amounts = [*map(amount_of, questions)]
    for amount, currency in filter(None, amounts):
        sums[currency] += amount
    texts = [
        Markup("{} {}").format(_marked(amount), currency).rstrip()
        for currency, amount in sums.items()
    ]
    if texts and None in amounts:
        texts.append(Markup("{} without an amount").format(amounts.count(None)))
    return Markup(", ").join(texts)
