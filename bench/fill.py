"""Runs made without a worker: this process is the engine that executes their nodes; and copies of runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis

from bench import graphs
from runner import Graph
from runner.definition.registry import Registry
from runner.execution import ids
from runner.execution.engine import Engine
from runner.store.interface import Doorbell, Store
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore

TEMPLATES = 1_000
"""Runs that are executed; more are copies of these."""

AT_ONCE = 200
"""Copies that one script makes."""

COPY = """
-- Copy a run that waits: fields, events and entries of sorted sets, each copy under an id of its own and a
-- millisecond older than the one before.
-- ARGV: run, how many entries; key, member and score of each; ms by which the first is older; ids.
local prefix, run, count = KEYS[1] .. 'r:', ARGV[1], tonumber(ARGV[2])
local key, first, time = prefix .. run, 4 + 3 * count, '1' .. ('%d'):rep(12)
local fields, events = redis.call('HGETALL', key), redis.call('LRANGE', key .. ':e', 0, -1)
local graph = KEYS[1] .. 'g:' .. redis.call('HGET', key, 'of'):match('^%S+')
for nth = first, #ARGV do
  local age, copy = ARGV[first - 1] + nth - first, prefix .. ARGV[nth]
  local function copied(text)
    return (text:gsub(run, ARGV[nth]):gsub(time, function(ms) return ('%.0f'):format(ms - age) end))
  end
  local function all(texts)
    local copies = {}
    for place, text in ipairs(texts) do copies[place] = copied(text) end
    return unpack(copies)
  end
  redis.call('HSET', copy, all(fields))
  redis.call('RPUSH', copy .. ':e', all(events))
  for place = 3, 3 * count, 3 do
    redis.call('ZADD', ARGV[place], ARGV[place + 2] - age, copied(ARGV[place + 1]))
  end
  redis.call('HINCRBY', graph, 'runs', 1)
end
"""


def copy_runs(server: redis.Redis, graph: str, count: int) -> None:
    """Copy the first runs of a graph that wait, in turn, until there are so many more."""
    prefix = Keys().prefix
    runs = server.zrange(f"{prefix}runs:interrupted:{graph}", 0, TEMPLATES - 1)
    entries: dict[bytes, list[Any]] = {run: [] for run in runs}
    for key in server.scan_iter(f"{prefix}*", _type="zset"):
        for member, score in server.zrange(key, 0, -1, withscores=True):
            for run in re.findall(rb"[0-9a-v]{28}", member):
                if run in entries:
                    entries[run] += (key, member, score)
    copies, copy = defaultdict(int), server.register_script(COPY)
    while count:
        for run, own in entries.items():
            some = min(AT_ONCE, count)
            names = [ids.run_id() for _ in range(some)]
            copy([prefix], [run, len(own) // 3, *own, copies[run] + 1, *names])
            copies[run] += some
            count -= some
            if not count:
                break


class Bells:
    """A dispatcher that keeps the doorbells for whoever executes the nodes next."""

    def __init__(self) -> None:
        """Nothing has rung yet."""
        self.ready: list[Doorbell] = []

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Keep them."""
        self.ready += doorbells

    def call(self, task: str, kwargs: object, task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Call nothing."""
        return False


class Filler:
    """Fills a store with runs."""

    def __init__(
        self, url: str, factories: Mapping[str, Callable[[], Graph]] | None = None
    ) -> None:
        """Publish the graphs; doorbells come back to this process, not to a queue."""
        factories = factories or {name: graphs.FACTORIES[name] for name in ("waiting", "short")}
        self.bells = Bells()
        own = Registry()
        for name, factory in factories.items():
            own.add(name, factory)
        self.store: Store = RedisStore(url, push=False)
        self.engine = Engine(self.store, self.bells, own)
        self.engine.publish(list(factories))

    def add(self, graph: str, count: int) -> None:
        """Execute so many runs of a graph until they have ended or wait."""
        for _ in range(count):
            self.start(graph, None)

    def start(self, graph: str, task: object, **options: Any) -> None:
        """Execute a run until it has ended or waits."""
        self.engine.start(graph, task, **options)
        self.deliver()

    def deliver(self) -> None:
        """Execute the nodes that are ready."""
        while self.bells.ready:
            bell = self.bells.ready.pop()
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
