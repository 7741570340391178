"""The template from which a script makes doorbells: a queue message with places to fill in.

runner/celery makes it from a message that the installed Celery wrote; the store keeps it, so that any
process that starts or answers can ring without Celery.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from runner.errors import UsageError
from runner.immutable import immutable

VERSION = 1
"""The version of the places that a script can fill in. Processes of two releases with different versions may
share a store: each rings with the template that a worker of its version left, or wakes a sweep."""

PLACES = frozenset(
    {
        "id",
        "root_id",
        "parent_id",
        "correlation_id",
        "delivery_tag",
        "queue",
        "shadow",
        "priority",
        "argsrepr",
    }
)
"""Values that a script can fill in: each is the inside of a JSON string, except `priority`, a number, and
`parent_id`, a whole string or null."""


@immutable
class DoorbellTemplate:
    """A message as alternating text and places, beginning and ending with text.

    In the key of a queue's list, `prefix` comes before the queue's name, and `queue_keys` has the suffix for
    each priority (0 to 9).
    """

    parts: Sequence[str]
    queue_keys: Mapping[int, str] = field(default_factory=dict)
    prefix: str = ""

    def fields(self) -> dict[str, str]:
        """Return the fields of the stored template: a Lua format, and the places to fill in, in order.

        Raises:
            UsageError: a place is unknown.
        """
        texts = self.parts[::2]
        places = self.parts[1::2]
        for place in places:
            if place not in PLACES:
                raise UsageError(
                    f"a doorbell has no place {place!r}; it has {', '.join(sorted(PLACES))}."
                )
        template = "%s".join(text.replace("%", "%%") for text in texts)
        suffixes = {str(priority): suffix for priority, suffix in self.queue_keys.items()}
        fields = {
            "template": template,
            "places": " ".join(places),
            "prefix": self.prefix,
            **suffixes,
        }
        return {
            **fields,
            "digest": hashlib.sha1(repr(fields).encode(), usedforsecurity=False).hexdigest(),
        }


def constants(fields: Mapping[str, str]) -> str:
    """Write a stored template as Lua code to put before the script `apply`, even if none is stored."""
    if "digest" not in fields:
        return "local DOORBELL\n"
    places = ", ".join(f"values.{place}" for place in fields["places"].split())
    ends = ", ".join(
        f"[{name}] = {_quoted(value)}" for name, value in fields.items() if name.isdecimal()
    )
    return (
        f"local DOORBELL, QUEUES_BEGIN = {_quoted(fields['digest'])}, {_quoted(fields['prefix'])}\n"
        f"local QUEUES_END = {{{ends}}}\n"
        f"local function fill_template(values) return ({_quoted(fields['template'])}):format({places}) end\n"
    )


def _quoted(text: str) -> str:
    """Quote a text for Lua, writing all but plain characters as numbers."""
    plain = re.sub(rb"[^ !#-\[\]-~]", lambda match: b"\\%03d" % match[0][0], text.encode())
    return f'"{plain.decode()}"'
