"""Where runs live: `open_store` gives the one in Redis; `memory` has the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.store.redis.store import RedisStore


def open_store(url: str, **settings: Any) -> RedisStore:
    """Open the store at a Redis URL; `settings` are those of `RedisStore`. Connects when first used."""
    from runner.store.redis.store import RedisStore  # noqa: PLC0415 - not needed by graphs in memory

    return RedisStore(url, **settings)
