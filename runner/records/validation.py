"""Checks of callers' values: names, people, keys and reasons, and answers against JSON Schemas."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time
from functools import lru_cache
from typing import Any, TypeGuard

import pydantic

from runner.errors import UsageError
from runner.records import codec
from runner.records.codec import JSONMapping
from runner.records.schema_paths import SchemaPaths, paths_of
from runner.records.shown_text import shown

MAX_TEXT = 1000
"""The most characters of a name or a key."""

MAX_REASON = 10_000
"""The most characters of the reason of an operation."""

MAX_PEOPLE = 1000


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is an integer or a float; a boolean isn't."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def one_line(value: object) -> str:
    """Return a value as one line of text for a log, a terminal or a pipe, with nothing in it hidden."""
    return shown(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def similar(name: str, names: Iterable[str]) -> str:
    """Return " Did you mean …?" with the most similar name, to follow a refusal, or ""."""
    nearest = difflib.get_close_matches(name, list(names), 1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def problem(value: object, limit: int = MAX_TEXT) -> str:
    """Describe why a value isn't a short text; "" if it is one."""
    if not isinstance(value, str):
        return f"must be a text, not {value!r:.80}"
    if len(value) > limit:
        return f"has {len(value):,} characters, more than the {limit:,} that it may have"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is not valid text"
    return ""


def checked(value: str, field: str, most: int = MAX_TEXT) -> str:
    """Check a short text and return it; `field` names it in the error.

    Raises:
        UsageError: it is not a text, too long, or not valid Unicode.
    """
    fault = problem(value, most)
    if fault:
        raise UsageError(f"{field} {fault}.")
    return value


def reason(value: str) -> str:
    """Check the reason of an operation and return it.

    Raises:
        UsageError: it is not a text, or too long.
    """
    return checked(value, "the reason", MAX_REASON)


def people(names: Iterable[str] | None, field: str) -> list[str]:
    """Check a list of people and return it.

    Raises:
        UsageError: it is a single text, too long, or an item is not a text.
    """
    people_names = [] if names is None else [names] if isinstance(names, str) else list(names)
    if isinstance(names, str) or len(people_names) > MAX_PEOPLE:
        raise UsageError(f"{field} must be a list of at most {MAX_PEOPLE:,} people.")
    return [checked(name, field) for name in people_names]


SHOWN = 80
"""The most characters that an error shows of a value that doesn't fit."""


def of_model(error: pydantic.ValidationError) -> str:
    """Describe the first problem that a pydantic model reports, and count the others."""
    problems = error.errors(include_url=False, include_context=False)
    first_problem = problems[0]
    where = ".".join(map(str, first_problem["loc"])) or "the value"
    value = repr(first_problem["input"])
    shown = value if len(value) <= SHOWN else f"{value[: SHOWN - 1]}…"
    suffix = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{where}: {first_problem['msg']}, got {shown}{suffix}"


# JSON Schemas of answers: checked when a question is asked, applied when an answer arrives.  A
# schema is stored with its question, so that an answer is validated without user code. As answers
# may come from the network, references to anything outside the schema are refused.


def check_schema(schema: JSONMapping, field: str) -> None:
    """Check a schema; `field` names it in the error.

    Raises:
        UsageError: it is not a JSON Schema, has too many paths, or refers to something outside itself.
    """
    reason = _compiled(codec.dump_json(schema))[1]
    if reason:
        raise UsageError(f"{field} can't be used: {reason}.")


STRICT = {
    "$dynamicAnchor": "meta",
    "$ref": "https://json-schema.org/draft/2020-12/schema",
    "unevaluatedProperties": False,
}
"""The schema of schemas with known keywords alone, at every depth: others have no effect."""


def check_keywords(schema: JSONMapping, field: str) -> None:
    """Check a schema as `check_schema` does, and that JSON Schema has each of its keywords.

    Raises:
        UsageError: it can't be used, or would ignore a keyword, such as `maximun`.
    """
    import jsonschema_rs  # noqa: PLC0415 - as below

    check_schema(schema, field)
    if errors := [*jsonschema_rs.validator_for(STRICT).iter_errors(schema)]:
        raise UsageError(f"{field} can't be used: {errors[-1].message}.")


def check_paths(schema: JSONMapping, field: str) -> None:
    """Check only a schema's paths while a program starts, because loading a validator is slow.

    Raises:
        UsageError: it has too many paths, or refers to something outside itself.
    """
    try:
        paths_of(codec.load_json(codec.dump_json(schema)))
    except UsageError as error:
        raise UsageError(f"{field} can't be used: {error}.") from None


def mismatch(schema: JSONMapping, value: Any) -> str:
    """Describe how a plain JSON value violates a schema; "" when it is valid."""
    path, message = violation(schema, value)
    if path is None:
        return message and f"the question's schema can't be used: {message}"
    where = "".join(f"[{key!r}]" for key in path)
    return f"the answer{where} does not fit the question's schema: {message}"


def violation(schema: JSONMapping, value: Any) -> tuple[Sequence[str | int] | None, str]:
    """Return where a plain JSON value first violates a schema, and how.

    The place is None if the value is valid, or if the schema can't be used, with the reason.
    """
    validator, reason, paths = _compiled(codec.dump_json(schema))
    if paths is not None and (refusal := paths.refusal(value)):
        return (), refusal
    error = None if validator is None else next(validator.iter_errors(value), None)
    error = error and _main_error(error)
    return (None, reason) if error is None else (error.instance_path, error.message)


def _main_error(error: Any) -> Any:
    """Return the error in the only alternative beside null."""
    inner = [
        errors[0]
        for errors in getattr(error.kind, "context", ())
        if getattr(errors[0].kind, "types", ()) != ["null"]
    ]
    return _main_error(inner[0]) if len(inner) == 1 else error


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> tuple[Any, str, SchemaPaths | None]:
    import jsonschema_rs  # noqa: PLC0415 - most programs check no schema, and it takes long to load

    try:
        validator = jsonschema_rs.validator_for(
            schema.decode(), formats=FORMATS, validate_formats=True, retriever=_deny
        )
        return validator, "", paths_of(codec.load_json(schema))
    except Exception as error:  # noqa: BLE001 - after any error the schema can't be used
        return None, str(getattr(error, "message", error)), None


def _parsed_by(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return ":" in text

    return fits


DURATION = re.compile(
    r"[-+]?P(?=\d|T\d)(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?"
)

FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _parsed_by(datetime.fromisoformat),
    "time": _parsed_by(time.fromisoformat),
    "duration": lambda text: DURATION.fullmatch(text) is not None,
    "regex": lambda text: True,  # noqa: ARG005 - each language has its own form
}
"""Formats that are checked less strictly than RFC 3339 defines them.

A time needs no zone, like the value of a page's time field, and a duration may be negative or have
a fraction, as pydantic writes it.
"""


def _deny(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, and references outside it are not followed")
