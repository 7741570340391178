"""Digests of what people approve: SHA-256 over canonical JSON (RFC 8785), with a domain in front.

Any language can compute them again: docs/reference/digests.md has the objects that are hashed, key by key.
Each kind of digest hashes one object, never joined texts, so that no two different things have the same
bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from runner.errors import UnstorableError
from runner.records import codec
from runner.records.codec import JSON

DOMAIN = "celery-graph-runner/{kind}/v2\n"
"""Prefix of the JSON: a digest of one kind is never that of another."""


def canonical(value: JSON, subject: str) -> bytes:
    """Return JSON data in its canonical form.

    Raises:
        UnstorableError: a number is NaN, infinite or an integer of 2**53 and more, which other languages
        would read as another one, or a text has half of a surrogate pair.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
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
    """Hash what an entry of the audit stands for; data without a canonical form is hashed as it is stored."""
    try:
        return digest("payload", data)
    except UnstorableError:
        return "stored:sha256:" + hashlib.sha256(codec.dump_json(data)).hexdigest()


@dataclass(frozen=True, slots=True)
class Action:
    """Effect to be approved: a tool's call, or what a function says that it is about to do.

    `tenant` is the namespace of the installation, `kind` is "tool", "function" or "node". `schema` is the
    JSON Schema of the tool's arguments: with another one the same arguments may mean something else.
    """

    tenant: str
    kind: str
    tool: str
    args: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None

    def preimage(self) -> dict[str, JSON]:
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
        """Hash the call; see `canonical` for what is raised."""
        return digest("action", self.preimage(), f"the call of {self.tool!r}")


def policy(rule: JSON, on_expire: JSON, expires_at: int | None, risk: str) -> dict[str, JSON]:
    """Return the object hashed as a question's policy: who decides, and what happens without a decision."""
    return {"rule": rule, "on_expire": on_expire, "expires_at": expires_at, "risk": risk}
