"""The title of a question: one sentence about the effect, filled from the arguments that people approve.

A template has names in braces, such as "Transfer {amount} {currency} to {iban}". Nothing in it is evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from runner.errors import UsageError
from runner.records.shown_text import shown

FIELD = re.compile(r"\{(\w+)\}")

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
        problem = "may have braces only around the name of an argument, as in {amount}"
    if problem:
        raise UsageError(f"the title of a rule {problem}, not {template!r:.80}.")


def check_names(template: str, names: Collection[str], subject: str) -> None:
    """Check that a template names only arguments that `subject` has.

    Raises:
        UsageError: it names another one.
    """
    if unknown := [name for name in FIELD.findall(template) if name not in names]:
        raise UsageError(
            f"the title {template!r} names {unknown[0]!r}, which is not an argument of {subject}; "
            f"it may name {', '.join(sorted(names)) or 'none'}."
        )


def filled(template: str, args: Mapping[str, Any]) -> str:
    """Fill a template: a text without spaces unchanged, other values as JSON, with nothing invisible."""
    return FIELD.sub(lambda field: _shown(args, field[1]), template)


def _shown(args: Mapping[str, Any], name: str) -> str:
    if name not in args:
        return f"(no {name})"
    value = args[name]
    is_plain = isinstance(value, str) and value and not re.search(r'[\s"]', value)
    text = value if is_plain else json.dumps(value, ensure_ascii=False)
    text = shown(text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…")
    return text.replace("\n", "\\n").replace("\t", "\\t")
