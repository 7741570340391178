"""The template from which a script makes doorbells: a queue message with places to fill in.

The Celery skin makes it from a message that the installed Celery itself wrote; the store keeps it,
so that any process that starts or answers can ring without Celery.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.errors import UsageError

VERSION = 1
"""The version of what a script can fill in. Processes of two releases that differ in it may share a store:
each rings with the template that a worker of its own version left, or wakes a sweep."""

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
"""Values that a script can fill in: each is the inside of a JSON string, but `priority`, a number, and
`parent_id`, a whole string or null."""


@dataclass(frozen=True, slots=True)
class DoorbellTemplate:
    """A message as text and places by turns, beginning and ending with text.

    `queue_keys` gives for each priority (0 to 9) what follows the queue's name in the key of its list,
    `prefix` what is before it.
    """

    parts: Sequence[str]
    queue_keys: Mapping[int, str] = field(default_factory=dict)
    prefix: str = ""

    def fields(self) -> dict[str, str]:
        """Return the fields of the stored template: a format of Lua's, and what to fill in, in order.

        Raises:
            UsageError: a place is unknown.
        """
        texts, places = self.parts[::2], self.parts[1::2]
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
    """Write a stored template as Lua, for the front of the script `apply`; nothing where there is none."""
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
    """Quote a text for Lua: all but plain characters as numbers."""
    plain = re.sub(rb"[^ !#-\[\]-~]", lambda match: b"\\%03d" % match[0][0], text.encode())
    return f'"{plain.decode()}"'
