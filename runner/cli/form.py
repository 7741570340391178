"""An answer asked for on the terminal, field by field, as the schema of the question says.

Each value is checked before the next field is asked for. What is sent at the end is shown as JSON and
confirmed, because a text such as `42` can be read as a number, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from runner.cli.exits import CommandError, Exit
from runner.cli.output import Output, block, compact
from runner.records.validation import one_line

if TYPE_CHECKING:
    from runner.cli.views import Question

MISSING = object()
"""Stands for a field that gets no value."""

YES_OR_NO = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


def ask_for_answer(question: Question, output: Output) -> Any:
    """Ask for each field of the answer, show the whole, and return it.

    Raises:
        CommandError: the person did not confirm it. Abort: Ctrl-C or Ctrl-D.
    """
    schema = question.response_schema or {}
    properties = schema.get("properties")
    if isinstance(properties, dict) and properties:
        answer: Any = {}
        for name, declared in properties.items():
            value = _ask(
                name, resolved(declared, schema), schema, required=name in schema.get("required", ())
            )
            if value is not MISSING:
                answer[name] = value
    else:
        answer = _ask("answer", resolved(schema, schema), schema, whole=True)
    output.note("The answer:")
    click.echo(block(json.dumps(answer, indent=2, ensure_ascii=False)), err=True)
    if not click.confirm("Send it?", default=True, err=True):
        raise CommandError(Exit.USAGE, "Nothing was sent; the question stays open.")
    return answer


def ask_for_responder(question: Question) -> str | None:
    """Ask who answers, where only some people may."""
    if not question.assignees:
        return None
    people = one_line(", ".join(question.assignees))
    return str(click.prompt(f"Your name ({people} may answer)", err=True)).strip()


def resolved(field: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's schema, with what it refers to in $defs."""
    if not isinstance(field, dict):
        return {}
    name = str(field.get("$ref", "")).removeprefix("#/$defs/")
    definition = schema.get("$defs", {}).get(name, {})
    return {**(definition if isinstance(definition, dict) else {}), **field}


def _ask(
    name: str, field: dict[str, Any], schema: Mapping[str, Any], *, required: bool = True, whole: bool = False
) -> Any:
    from runner.records import schemas

    own = {**field, "$defs": schema["$defs"]} if "$defs" in schema else field
    default = field.get("default", MISSING)
    prompt = _prompt(name, field, required=required)
    if "description" in field:
        click.echo(f"  {one_line(field['description'])}", err=True)
    while True:
        # With a default for click, Enter alone is an answer: the field's own default, or no value.
        text = click.prompt(prompt, default="", show_default=False, err=True)
        if not text and default is not MISSING:
            return default
        if not text and not required:
            return MISSING
        values = list(_values(text, field))
        for value in values:
            # An answer as a whole can be neither null nor empty; a field can.
            if whole and value in (None, ""):
                break
            if not schemas.mismatch(own, value):
                return value
        problem = schemas.mismatch(own, values[0]) or "an answer is needed, and null is none"
        click.echo(f"  {one_line(problem)}", err=True)


def _prompt(name: str, field: dict[str, Any], *, required: bool) -> str:
    words = []
    if choices := field.get("enum"):
        words.append(" | ".join(compact(choice) for choice in choices))
    elif "const" in field:
        words.append(compact(field["const"]))
    else:
        kinds = {"boolean": "yes or no", "string": "text", "array": "JSON list", "object": "JSON object"}
        kind = str(field.get("type", "JSON"))
        words.append(kinds.get(kind, kind))
    if "default" in field:
        words.append(f"default {compact(field['default'])}")
    elif not required:
        words.append("optional")
    return one_line(f"{name} ({', '.join(words)})")


def _values(text: str, field: dict[str, Any]) -> Iterator[Any]:
    """Return what the text can mean, the likeliest first: a choice, yes or no, JSON, a text."""
    yield from (choice for choice in field.get("enum", ()) if text == compact(choice))
    if field.get("type") == "boolean" and text.lower() in YES_OR_NO:
        yield YES_OR_NO[text.lower()]
    elif field.get("type") != "string":
        with suppress(ValueError):
            yield json.loads(text)
    yield text
