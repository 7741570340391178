"""An answer that is written in an editor: a file that says what is asked, and what was made of it.

Lines that begin with // are comments; JSON has none, so they are left out when the file is read. The
file is kept until the answer is accepted: what somebody has written is never lost.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from runner.interrupts import Interrupt

COMMENT = re.compile(r"^[ \t]*//.*(?:\n|\Z)", re.MULTILINE)
WORDS = (
    "type",
    "enum",
    "const",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "items",
)
"""What of a field's schema is written above it."""


def without_comments(text: str) -> str:
    """Leave out the lines that begin with //; no line of JSON can."""
    return COMMENT.sub("", text)


def edited(asked: Interrupt) -> Path:
    """Let a person write the answer in $VISUAL or $EDITOR, and return the file with it.

    Raises:
        CommandError: the question is not open, or nothing was written; nothing is to be sent.
        ClickException: the editor failed.
    """
    if not asked.is_open:
        raise CommandError(
            Exit.CONFLICT,
            f"The question is {asked.status}; it takes no answer any more.",
            f"See what became of it: runner interrupts show {asked.id}.",
        )
    before = template(asked)
    handle, name = tempfile.mkstemp(prefix="runner-answer-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(before)
    path = Path(name)
    click.edit(filename=name)
    written = without_comments(_read(path)).strip()
    if not written or written == without_comments(before).strip():
        path.unlink()
        how = "is empty" if not written else "was left as it is"
        raise CommandError(
            Exit.USAGE,
            f"The answer {how}; nothing was sent.",
            "The question stays open: ask for --edit again.",
        )
    return path


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(Exit.USAGE, f"{path} can't be read: {error}; nothing was sent.") from error


def template(asked: Interrupt) -> str:
    """Write what is asked as comments, and an answer to be filled in."""
    from runner.cli.view import shown

    # What agents say may hold anything: visible text only, so that no line poses as the answer.
    head = [f"{asked.name}, asked by node {asked.node_id} of run {asked.run_id}"]
    if asked.reason is not None:
        head += ["Reason:", *_block(shown(asked.reason))]
    schema = asked.response_schema
    fields = _fields(schema or {})
    if schema is not None and not fields:
        head += ["The answer must fit this JSON Schema:", *_block(schema)]
    head += [
        "",
        "Write the answer below, as JSON. Lines that begin with // are left out.",
        "Nothing is sent when the answer stays empty or as it is.",
    ]
    return "\n".join([*(_comment(line) for line in head), *fields, ""])


def _comment(line: str, indent: str = "") -> str:
    from runner.cli.output import one_line

    return f"{indent}// {one_line(line)}".rstrip()


def _block(value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return [f"  {line}" for line in text.splitlines()]


def _fields(schema: dict[str, Any]) -> list[str]:
    """Write an object with one commented line for each field; nothing for any other schema."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return []
    required, lines = schema.get("required", ()), ["{"]
    for index, (name, found) in enumerate(properties.items()):
        field = _resolved(found, schema)
        comma = "," if index + 1 < len(properties) else ""
        lines.append(_comment(_said(field, needed=name in required), "  "))
        lines.append(f"  {json.dumps(name)}: {json.dumps(field.get('default'))}{comma}")
    return [*lines, "}"]


def _resolved(field: Any, schema: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(field, dict):
        return {}
    name = str(field.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name, {})
    return {**(found if isinstance(found, dict) else {}), **field}


def _said(field: dict[str, Any], *, needed: bool) -> str:
    words = {key: field[key] for key in WORDS if key in field} or {
        key: field[key] for key in ("anyOf", "oneOf", "allOf") if key in field
    }
    parts = [str(field[key]) for key in ("description",) if key in field]
    parts.append("required" if needed else "may be left out")
    parts += [f"{key} {json.dumps(value, ensure_ascii=False)}" for key, value in words.items()]
    return "; ".join(parts)
