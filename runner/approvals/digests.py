"""Digests of approved content: SHA-256 over canonical JSON (RFC 8785), prefixed with a domain.

Any language can recompute them: docs/reference/digests.md lists the hashed objects, key by key.
Each kind of digest hashes one object, never joined texts, so that two different things never have
the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import rfc8785

from runner.errors import UnstorableError
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSON, JSONObject

DOMAIN = "celery-graph-runner/{kind}/v2\n"
"""Prefix of the JSON: digests of two kinds never coincide."""

MAY_DIFFER = re.compile(r"[:,\[](?<!\w:)-?(?:\d{16}|[NI]|[\d.]+e|\d+\.0(?!\d))")
"""Finds each number that `ENCODER` may write in another than the canonical form, and sometimes a text."""

REMEMBERED = 4_096
"""Length of a text from which it is searched each time: a decision hashes the same short texts often."""

_searched = functools.lru_cache(256)(MAY_DIFFER.search)

ENCODER = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
)


def canonical(value: JSON, subject: str) -> bytes:
    """Return JSON data in its canonical form.

    Raises:
        UnstorableError: a number is NaN, infinite or an integer of 2**53 or more, which other
            languages would read as a different number, or a text contains half of a surrogate pair.
    """
    try:
        text = ENCODER.encode(value)
        # Names with characters from here on may sort differently in UTF-16, as the standard wants.
        search = _searched if len(text) < REMEMBERED else MAY_DIFFER.search
        if search(f",{text}") or not (text.isascii() or max(text) < "\ud800"):
            return rfc8785.dumps(value)
        return text.encode()
    except (rfc8785.CanonicalizationError, TypeError, UnicodeEncodeError) as error:
        raise UnstorableError(
            f"{subject} can't be hashed so that other programs get the same digest: {error}. "
            "Nothing was asked. Send large integers as text."
        ) from error


def digest(kind: str, value: JSON, subject: str = "") -> str:
    """Hash one object: "sha256:" and 64 hexadecimal digits.

    Raises:
        UnstorableError: see `canonical`.
    """
    text = DOMAIN.format(kind=kind).encode() + canonical(value, subject or f"the {kind}")
    return "sha256:" + hashlib.sha256(text).hexdigest()


def payload_digest(data: JSON) -> str:
    """Hash the data that an audit entry refers to; data without a canonical form is hashed as stored."""
    try:
        return digest("payload", data)
    except UnstorableError:
        return "stored:sha256:" + hashlib.sha256(codec.dump_json(data)).hexdigest()


@immutable
class Action:
    """Effect to be approved: a tool call, or the effect that a function announces.

    `tenant` is the namespace of the installation, `kind` is "tool", "function" or "node". `schema`
    is the JSON Schema of the tool's arguments: under a different schema the same arguments may mean
    something else.
    """

    tenant: str
    kind: str
    tool: str
    args: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None

    def preimage(self) -> JSONObject:
        """Return the object that is hashed."""
        return {
            "tenant": self.tenant,
            "kind": self.kind,
            "tool": self.tool,
            "args": dict(self.args),
            "tool_schema": digest(
                "schema", dict(self.schema or {}), f"the schema of {self.tool!r}"
            ),
        }

    def digest(self) -> str:
        """Hash the call; raises as `canonical` does."""
        return digest("action", self.preimage(), f"the call of {self.tool!r}")
