"""JSON Schemas of answers: checked when a question is asked, and used at the door.

A schema is stored with its question, so that a door needs no user code. Doors may face the
network, so a schema must hold everything that it refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from runner import codec
from runner.errors import UsageError


def check(schema: Mapping[str, Any], field: str) -> None:
    """Make sure that a schema can be used; `field` names it in the error.

    Raises:
        UsageError: it is no JSON Schema, or refers to something outside itself.
    """
    reason = _compiled(codec.dump_json(schema))[1]
    if reason:
        raise UsageError(f"{field} can't be used: {reason}.")


def mismatch(schema: Mapping[str, Any], value: Any) -> str:
    """Say how a plain JSON value breaks a schema, or return "" when it fits."""
    validator, reason = _compiled(codec.dump_json(schema))
    if validator is None:
        return f"the question's schema can't be used: {reason}"
    found = next(validator.iter_errors(value), None)
    if found is None:
        return ""
    where = "".join(f"[{part!r}]" for part in found.instance_path)
    return f"the answer{where} does not fit the question's schema: {found.message}"


@lru_cache(maxsize=256)
def _compiled(schema: bytes) -> tuple[Any, str]:
    import jsonschema_rs  # noqa: PLC0415 - most programs check no schema, and it takes long to load

    try:
        return jsonschema_rs.validator_for(schema.decode(), retriever=_deny), ""
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it can't be used
        return None, str(getattr(error, "message", error))


def _deny(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, and references outside it are not followed")
