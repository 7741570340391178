"""JSON Schemas of answers: checked when a question is asked, applied when an answer arrives.

A schema is stored with its question, so that an answer is validated without user code. As answers may come
from the network, references to anything outside the schema are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from runner.errors import UsageError
from runner.records import codec


def check(schema: Mapping[str, Any], field: str) -> None:
    """Check a schema; `field` names it in the error.

    Raises:
        UsageError: it is not a JSON Schema, or refers to something outside itself.
    """
    reason = _compiled(codec.dump_json(schema))[1]
    if reason:
        raise UsageError(f"{field} can't be used: {reason}.")


def mismatch(schema: Mapping[str, Any], value: Any) -> str:
    """Describe how a plain JSON value violates a schema; "" when it is valid."""
    validator, reason = _compiled(codec.dump_json(schema))
    if validator is None:
        return f"the question's schema can't be used: {reason}"
    violation = next(validator.iter_errors(value), None)
    if violation is None:
        return ""
    where = "".join(f"[{part!r}]" for part in violation.instance_path)
    return f"the answer{where} does not fit the question's schema: {violation.message}"


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> tuple[Any, str]:
    import jsonschema_rs  # noqa: PLC0415 - most programs check no schema, and it takes long to load

    try:
        return jsonschema_rs.validator_for(schema.decode(), retriever=_deny), ""
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it can't be used
        return None, str(getattr(error, "message", error))


def _deny(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, and references outside it are not followed")
