"""Writes what this release stores of runs in every state, as a JSON file beside this one.

    python tests/stored/export.py 0.1.0

It starts a Redis server of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import redis

import runner
from runner.dev.embedded import embedded_store
from runner.store.redis import packed_runs
from runner.store.redis.store import RedisStore
from runner.store.requests import ShareSlots

sys.path.insert(0, str(Path(__file__).parent))

from stories import STORIES, Office


def stored(client: Any) -> dict[str, Any]:
    """Read every key: its type and its value, in a form that JSON has."""
    found = {}
    for key in sorted(client.scan_iter("*")):
        kind = client.type(key).decode()
        value = {
            "string": lambda key=key: _text(client.get(key)),
            "hash": lambda key=key: _texts(client.hgetall(key)),
            "list": lambda key=key: [_text(message) for message in client.lrange(key, 0, -1)],
            "zset": lambda key=key: [
                [_text(name), at] for name, at in client.zrange(key, 0, -1, withscores=True)
            ],
            "stream": lambda key=key: [
                [_text(at), _texts(fields)] for at, fields in client.xrange(key)
            ],
        }[kind]()
        found[_text(key)] = [kind, value]
    return found


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _texts(found: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in sorted(found.items())}


def main(release: str) -> None:
    """Write the file of a release."""
    with embedded_store() as server:
        text = export(server.url)
    (Path(__file__).parent / f"{release}.json").write_text(text + "\n", encoding="utf-8")


def export(url: str) -> str:
    """Begin a run of every story in an empty database, and leave it where it is to be stored."""
    store = RedisStore(url, push=False)
    office, runs = Office(store), {}
    for name in sorted(office.names, key=lambda name: not STORIES[name].is_packed):
        story = STORIES[name]
        store.do(ShareSlots({name: 1} if "fairness" in story.options else {}))
        for _ in range(story.starts):
            runs[name] = office.engine.start(name, f"task of {name}", tags={"key": name})
        if story.is_lost:
            office.bells.clear()
        office.work()
        if story.held:
            office.open(changed=name)
        for response in story.answers:
            office.answer([runs[name]], response)
            if story.status != "executing":
                office.work()
        office.bells.clear()
        status = str(store.peek(runs[name]).status)
        assert status == story.status, (name, status)
        if story.is_packed:
            pack(url)
    client = redis.Redis.from_url(url)
    document = {"v": 1, "runs": runs, "keys": stored(client)}
    text = json.dumps(document, indent=0, sort_keys=True, ensure_ascii=True)
    for folder in (
        Path(runner.__file__).parents[1],
        Path(__file__).parents[2],
        Path(sys.prefix),
    ):
        # Tracebacks name files: those of this machine are no part of the form.
        text = text.replace(f"{folder}/", "")
    store.close()
    return text


def pack(url: str) -> None:
    """Pack what has ended, as a sweep does later."""
    later = time.time_ns() // 1_000_000 + packed_runs.AGE_MS
    store = RedisStore(url, push=False, clock=lambda: later)
    assert packed_runs.pack(store._call) > 0
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
