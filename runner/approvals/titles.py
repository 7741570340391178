"""The title of a question: one sentence about the effect, filled from the arguments that people approve.

A template has names in braces, such as "Transfer {amount:money} to {iban}". Nothing in it is evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from decimal import Decimal
from typing import Any

from runner.errors import UsageError
from runner.records.codec import JSONMapping
from runner.records.shown_text import shown

FIELD = re.compile(r"\{(\w+)(?::(,?(?:\.\df)?|money))?\}")
"""An argument with its format: digits as in `{amount:,.2f}`, or an amount with its currency."""

NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?", re.ASCII)
"""A number as it is written without an exponent; longer ones aren't amounts."""

LONGEST = 200
"""Maximum number of characters of a template."""

LONGEST_VALUE = 80
"""Maximum number of characters of an argument in a title; the question has the whole argument."""


def check(template: str) -> None:
    """Check a template by itself.

    Raises:
        UsageError: it isn't a short line of text, or has a brace that is not around a plain name.
    """
    problem = ""
    if not isinstance(template, str) or len(template) > LONGEST:
        problem = f"must be a text of at most {LONGEST} characters"
    elif not template.isprintable() or shown(template) != template:
        problem = "must be one line without characters that can't be seen"
    elif re.search("[{}]", FIELD.sub("", template)):
        problem = "may have braces only around the name of an argument, as in {amount} or {amount:money}"
    if problem:
        raise UsageError(f"the title {problem}, not {template!r:.80}.")


def check_names(template: str, names: Collection[str], subject: str) -> None:
    """Check that a template names only arguments that `subject` has.

    Raises:
        UsageError: it names another one.
    """
    if unknown := [name for name, _ in FIELD.findall(template) if name not in names]:
        raise UsageError(
            f"the title {template!r} names {unknown[0]!r}, which is not an argument of {subject}; "
            f"it may name {', '.join(sorted(names)) or 'none'}."
        )


def filled(template: str, args: JSONMapping) -> str:
    """Fill a template: a text without spaces unchanged, other values as JSON, with nothing invisible.

    A number has the format of its field, with all its digits.
    """
    return FIELD.sub(lambda field: _shown(args, *field.groups("")), template)


def _shown(args: JSONMapping, name: str, form: str = "") -> str:
    if name not in args:
        return f"(no {name})"
    value = args[name]
    amount = number_of(value) if form else None
    if amount is not None and form == "money":
        currency = _shown(args, "currency") if args.get("currency") else ""
        return f"{grouped(amount)} {currency}".rstrip()
    if amount is not None:
        return grouped(amount, form)
    is_plain = isinstance(value, str) and value and not re.search(r'[\s"]', value)
    text = value if is_plain else json.dumps(value, ensure_ascii=False)
    text = shown(text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…")
    return text.replace("\n", "\\n").replace("\t", "\\t")


def number_of(value: Any) -> Decimal | None:
    """Return a number, or a text that is one, with all its digits; None for any other value."""
    is_number = NUMBER.fullmatch(str(value)) and not isinstance(value, bool)
    return Decimal(str(value)) if is_number else None


def grouped(amount: Decimal, form: str = ",.2f") -> str:
    """Write an amount with groups of digits and at least two decimals, or in a form; it is never rounded."""
    text = format(amount, form)
    if Decimal(text.replace(",", "")) == amount:
        return text
    return format(amount, f"{form[0]}f".lstrip("."))
