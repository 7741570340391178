"""The template that lets a script ring the task queue: its message with places left to fill in.

The Celery skin makes it from a message that the installed Celery itself wrote; the store keeps it,
so that any process that starts or answers can ring without Celery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.errors import UsageError

PLACES = frozenset(
    {"id", "root_id", "correlation_id", "delivery_tag", "queue", "shadow", "priority", "argsrepr"}
)
"""What a script can fill in: all are the inside of a JSON string, but `priority`, a number."""

OPEN, CLOSE = "\x01", "\x02"


@dataclass(frozen=True, slots=True)
class DoorbellTemplate:
    """A message as text and places by turns, beginning and ending with text.

    `queue_keys` gives for each priority (0 to 9) what follows the queue's name in the key of its list.
    """

    parts: Sequence[str]
    queue_keys: Mapping[int, str] = field(default_factory=dict)

    def fields(self) -> dict[str, str]:
        """Return the fields of the stored template.

        Raises:
            UsageError: a place is unknown, or the text holds a character that marks places.
        """
        said = []
        for position, part in enumerate(self.parts):
            if position % 2 and part not in PLACES:
                raise UsageError(f"a doorbell has no place {part!r}; it has {', '.join(sorted(PLACES))}.")
            if OPEN in part or CLOSE in part:
                raise UsageError("the text of a doorbell must not hold the characters U+0001 and U+0002.")
            said.append(f"{OPEN}{part}{CLOSE}" if position % 2 else part)
        suffixes = {str(priority): suffix for priority, suffix in self.queue_keys.items()}
        return {"envelope": "".join(said), **suffixes}
