"""What the doors have in common: which early answers are kept, and which errors pass."""

from __future__ import annotations

from collections.abc import Callable

from runner.errors import StoreError
from runner.execution.engine import Engine
from runner.operations.inbox import Keep
from runner.records.codec import JSON
from runner.settings import Settings
from runner.store.redis.partitions import SharedStore


def keeper_of(
    engine: Engine, settings: Settings, door: str, message: Callable[[], JSON]
) -> Keep | None:
    """Return what keeps a message of a door for its question; None where none is kept."""
    store, seconds = engine.store, settings.early_answer
    if not isinstance(store, SharedStore) or not seconds:
        return None
    return lambda interrupt_id: store.keep_early(interrupt_id, door, message(), seconds)


def is_away(error: Exception, settings: Settings) -> bool:
    """Return whether nothing can be applied now; otherwise the store refuses this one message.

    Such a message is tried again, since people may remove the cause; those behind it don't wait. Of several
    partitions it may be that of this message alone which is away.
    """
    return isinstance(error, StoreError) and error.passing and len(settings.places) == 1
