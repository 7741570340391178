"""The kinds of events of a run, and which of them are also notices.

Events are for readers of one run; notices are for services that act on questions and ends of all runs. The
scripts of the store repeat the set of notices in `parts/events.lua`.
"""

from __future__ import annotations

import enum


class EventKind(enum.StrEnum):
    """The kinds of event in a run's stream."""

    RUN_STARTED = "run.started"
    RUN_STATUS = "run.status"
    RUN_STOPPING = "run.stopping"
    RUN_ENDED = "run.ended"
    RUN_RETRIED = "run.retried"
    RUN_FORKED = "run.forked"
    RUN_MIGRATED = "run.migrated"
    NODE_STARTED = "node.started"
    NODE_COMPLETED = "node.completed"
    NODE_FAILED = "node.failed"
    NODE_SKIPPED = "node.skipped"
    NODE_CANCELLED = "node.cancelled"
    NODE_WAITING = "node.waiting"
    NODE_RESUMED = "node.resumed"
    NODE_RETRYING = "node.retrying"
    NODE_EXPANDED = "node.expanded"
    NODE_LIMITED = "node.limited"
    NODE_HELD = "node.held"
    NODE_RELEASED = "node.released"
    NODE_UNSERVED = "node.unserved"
    NODE_LOST = "node.lost"
    NODE_LEFT = "node.left"
    INTERRUPT_ASKED = "interrupt.asked"
    INTERRUPT_ANSWERED = "interrupt.answered"
    INTERRUPT_EXPIRED = "interrupt.expired"
    INTERRUPT_REMINDED = "interrupt.reminded"
    INTERRUPT_WITHDRAWN = "interrupt.withdrawn"
    INTERRUPT_MOVED = "interrupt.moved"
    RECEIPT = "receipt"
    PROGRESS = "progress"
    AGENT = "agent"


OF_RUNS = "run."
"""Prefix of the kinds that concern a whole run: those of a child run are not in its root's stream."""

NOTICES = frozenset(
    {
        EventKind.INTERRUPT_ASKED,
        EventKind.INTERRUPT_ANSWERED,
        EventKind.INTERRUPT_EXPIRED,
        EventKind.INTERRUPT_REMINDED,
        EventKind.INTERRUPT_WITHDRAWN,
        EventKind.RUN_ENDED,
        EventKind.RUN_MIGRATED,
    }
)
"""Events that also go to the partition's notices, for approval services."""
