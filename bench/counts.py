"""Counts of what each step sends to Redis and does there: numbers that are the same on every machine.

`bench/counts.json` has the accepted ones; a test compares. `python -m bench.counts` prints the table, and
`--write` accepts it, on the page of benchmarks, too. The steps are those of a worker: its engine executes
real nodes, the scripts push real doorbells, and every command goes over a connection that counts.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hiredis
import redis
from rich.console import Console

from bench.graphs import AGENTS, FACTORIES, chain, fan, lattice, mapped, noop
from bench.grid import Grid
from runner import Agent, GraphBuilder, NodeContext, tool
from runner.approvals import Rule
from runner.celery.application import make_app
from runner.celery.doorbells import make_template
from runner.client import Run, SweeperDispatcher
from runner.definition.registry import Registry
from runner.dev.embedded import embedded_store
from runner.execution.engine import Engine
from runner.limits.fairness import Fairness
from runner.limits.limit import Limit
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.settings import Settings
from runner.store.addresses import CLIENTS
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import StreamReader
from runner.store.redis.workers import WorkerRegistry
from runner.testing import ScriptedModel

ACCEPTED = Path(__file__).with_name("counts.json")
COLUMNS = {
    "commands": "commands",
    "trips": "round trips",
    "inside": "calls in scripts",
    "bytes": "bytes to Redis",
    "keys": "keys",
}
SCHEME = "counting"
WIDTH = 50
"""Nodes before the join."""

Table = dict[str, dict[str, int]]


class Tally:
    """What this process has sent since the last reset."""

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self.reset()

    def reset(self) -> None:
        """Begin again at nothing."""
        self.trips = self.bytes = 0
        self.commands: Counter[str] = Counter()
        self._reader = hiredis.Reader()

    def add(self, packed: Any) -> None:
        """Count what one write to the socket holds: one round trip, of one command or of a pipeline."""
        data = packed.encode() if isinstance(packed, str) else b"".join(packed)
        self.trips += 1
        self.bytes += len(data)
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            self.commands[command[0].decode().upper()] += 1


TALLY = Tally()


class CountingConnection(redis.UnixDomainSocketConnection):
    """A connection that tells the tally what it sends."""

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - the client's signature
        """Send, and count."""
        TALLY.add(command)
        super().send_packed_command(command, check_health)


def _counting(url: str, **options: Any) -> redis.Redis:
    pool = redis.ConnectionPool(
        connection_class=CountingConnection, path=urlsplit(url).path, **options
    )
    return redis.Redis(connection_pool=pool)


CLIENTS[SCHEME] = _counting


def turned(ctx: NodeContext) -> bool:
    """Take another turn of the loop after the first one only."""
    return ctx.visit == 1


@tool
def look() -> str:
    """Look."""
    return "seen"


def _graphs(width: int) -> Registry:
    registry = Registry()
    registry.add("chain", lambda: chain(3))
    registry.add("turns", lambda: _line("t"), fairness=Fairness("tag:tenant"))
    registry.add("limited", lambda: _line("l", Limit("some", concurrency=9)))
    registry.add("fan", lambda: fan(width))
    registry.add("lattice", lambda: lattice(9))
    registry.add("waiting", FACTORIES["waiting"])
    registry.add("voting", _voting)
    registry.add("loop", _loop)
    registry.add("map", lambda: mapped(AGENTS))
    registry.add("agent", _agent)
    return registry


def _line(name: str, *limits: Limit) -> Any:
    builder = GraphBuilder().set_limits(limits)
    for place in range(3):
        builder.add_node(noop, f"{name}{place}")
    builder.add_edge(f"{name}0", f"{name}1")
    builder.add_edge(f"{name}1", f"{name}2")
    return builder.build()


def _voting() -> Any:
    def ask(ctx: NodeContext) -> str:
        action = {"order": 1042, "amount": 120}
        decision: str = ctx.interrupt(
            "refund", "late", rule=Rule(need=2), action=action
        ).decision
        return decision

    builder = GraphBuilder()
    builder.add_node(ask, "ask")
    return builder.build()


def _loop() -> Any:
    builder = GraphBuilder()
    builder.add_node(noop, "head")
    builder.add_node(turned, "tail")
    builder.add_node(noop, "after")
    builder.add_edge("head", "tail")
    builder.add_edge(
        "tail", "head", condition=lambda state: state.results["tail"].output, back=True
    )
    builder.add_edge("tail", "after", condition=lambda state: not state.results["tail"].output)
    return builder.build()


def _agent() -> Any:
    model = ScriptedModel([{"tool": "look", "input": {}}, "done"])
    builder = GraphBuilder()
    builder.add_node(Agent(name="agent", model=model, tools=[look]), "agent")
    return builder.build()


class Story:
    """What happens on one store, each step counted."""

    def __init__(self, path: str, width: int = WIDTH) -> None:
        """Open the store at a socket, with the template of a doorbell, as the start of a worker does."""
        self._width = width
        self.table: Table = {}
        self._url = f"{SCHEME}://{path}"
        self._server = redis.Redis(unix_socket_path=path)
        self._store = RedisStore(self._url, push=True)
        settings = Settings(redis_url=f"unix://{path}?db=0")
        self._store.install_doorbell(make_template(make_app(settings)))
        self._engine = Engine(self._store, SweeperDispatcher(), _graphs(width))
        self._engine.worker = ""  # a name would count in the bytes, and machines differ
        self._engine.publish(self._engine.registry.names())
        self._stream_reader, self._workers = StreamReader(self._url), WorkerRegistry(self._url)

    def work(self) -> Table:
        """Go through all steps twice, and return the counts of the second time: all is connected then."""
        for _ in range(2):
            self._chain()
            self._wait()
            self._vote()
            self._joins()
            self._shapes()
        return self.table

    def idle(self) -> Table:
        """Do twice what a worker without work does."""
        for _ in range(2):
            with self._counted("idle: read answers and starts"):
                self._stream_reader.read(0.001)
            with self._counted("idle: take over from readers that are gone"):
                self._stream_reader.take_over(1.0)
            with self._counted("idle: sweep"):
                self._engine.sweep(50)
            with self._counted("idle: heartbeat"):
                self._workers.enter(
                    {"name": "worker", "pid": 1, "started": 1}, 1_700_000_000_000
                )
        return self.table

    @contextmanager
    def _counted(self, step: str) -> Iterator[None]:
        self._engine.freezes.refresh()  # so that no step has this look, which comes every few seconds
        keys, before = self._server.dbsize(), self._calls()
        TALLY.reset()
        yield
        calls, sent = self._calls() - before, TALLY.commands
        calls.subtract({"INFO": 1, "DBSIZE": 0})
        self.table[step] = {
            "commands": sent.total(),
            "trips": TALLY.trips,
            "inside": calls.total() - sent.total(),
            "bytes": TALLY.bytes,
            "keys": self._server.dbsize() - keys,
        }

    def _calls(self) -> Counter[str]:
        statistics = self._server.info("commandstats")
        return Counter(
            {
                name.removeprefix("cmdstat_").upper(): row["calls"]
                for name, row in statistics.items()
            }
        )

    def _deliver(self, run: str, node: str, attempt: int = 1) -> None:
        word = self._engine.deliver(run, node, 1, attempt).word
        if word not in {"settled", "waiting", "expanded"}:
            raise ValueError(f"{node} was {word}, so its counts are of something else")

    def _chain(self) -> None:
        with self._counted("start a run"):
            run = self._engine.start("chain", "task")
        with self._counted("a node of a chain"):
            self._deliver(run, "n0")
        self._deliver(run, "n1")
        with self._counted("the last node, and the run's end"):
            self._deliver(run, "n2")
        with self._counted("wait for a run that has ended"):
            Run(run, self._engine).wait()
        for graph, shares in (("turns", "where keys have turns"), ("limited", "under a limit")):
            run = self._engine.start(graph, "task", tags={"tenant": "t"})
            with self._counted(f"a node of a chain, {shares}"):
                self._deliver(run, f"{graph[0]}0")
            self._deliver(run, f"{graph[0]}1")
            self._deliver(run, f"{graph[0]}2")

    def _wait(self) -> None:
        run = self._engine.start("waiting", "task")
        self._deliver(run, "a")
        with self._counted("a node that asks, and waits"):
            self._deliver(run, "ask")
        (asked,) = self._store.open_interrupts(limit=1).items
        with self._counted("an answer"):
            apply_decisions(self._engine, [Decision(asked.id, True)])  # noqa: FBT003 - the answer
        resumes = self._store.read(run).nodes["ask"].attempt
        with self._counted("the node goes on"):
            self._deliver(run, "ask", resumes)
        self._deliver(run, "b")

    def _vote(self) -> None:
        run = self._engine.start("voting", "task")
        with self._counted("a node that asks by a rule"):
            self._deliver(run, "ask")
        (asked,) = self._store.open_interrupts(limit=1).items
        for name, step in (("ana", "a vote that is counted"), ("ben", "a vote that decides")):
            vote = Decision(asked.id, None, name, None, asked.digest, "approve")
            with self._counted(step):
                apply_decisions(self._engine, [vote])
        resumes = self._store.read(run).nodes["ask"].attempt
        with self._counted("the node goes on, by a decision"):
            self._deliver(run, "ask", resumes)

    def _joins(self) -> None:
        run = self._engine.start("fan", "task")
        with self._counted(f"a node with {self._width} after it"):
            self._deliver(run, "first")
        with self._counted(f"a node before a join of {self._width}"):
            self._deliver(run, "n0")
        for place in range(1, self._width - 1):
            self._deliver(run, f"n{place}")
        with self._counted(f"the last node before a join of {self._width}"):
            self._deliver(run, f"n{self._width - 1}")
        with self._counted(f"a join of {self._width}, and the run's end"):
            self._deliver(run, "join")

    def _shapes(self) -> None:
        run = self._engine.start("lattice", "task")
        for place in range(3):
            self._deliver(run, f"n0.{place}")
        with self._counted("a node of a lattice (2 in, 2 out)"):
            self._deliver(run, "n1.1")
        run = self._engine.start("loop", "task")
        self._deliver(run, "head")
        with self._counted("a node that begins a loop's next turn"):
            self._deliver(run, "tail")
        run = self._engine.start("map", "task")
        self._deliver(run, "list")
        with self._counted("a map begins 500 items"):
            self._deliver(run, "map")
        with self._counted("an item of a map"):
            self._deliver(run, "map[0]")
        run = self._engine.start("agent", "task")
        with self._counted("an agent: 2 model calls, 1 tool call"):
            self._deliver(run, "agent")


class TimedStory(Story):
    """Answers and votes in turn, each by the time that the server needs for its scripts."""

    def people(self, rounds: int) -> dict[str, list[float]]:
        """Answer and vote so often, and return the microseconds of each step."""
        self._times: dict[str, list[float]] = {}
        for _ in range(rounds):
            self._wait()
            self._vote()
        return self._times

    @contextmanager
    def _counted(self, step: str) -> Iterator[None]:
        self._engine.freezes.refresh()
        before = self._spent()
        yield
        self._times.setdefault(step, []).append(self._spent() - before)

    def _spent(self) -> float:
        return float(self._server.info("commandstats")["cmdstat_evalsha"]["usec"])


def count() -> Table:
    """Count every step, on stores of its own."""
    with embedded_store() as store, embedded_store() as empty:
        work = Story(urlsplit(store.url).path).work()
        return work | Story(urlsplit(empty.url).path).idle()


def accepted() -> Table:
    """Read the accepted table."""
    table: Table = json.loads(ACCEPTED.read_text())
    return table


def grid(table: Table) -> Grid:
    """Show a table of counts."""
    rows = [
        [step, *(f"{counts[name]:,}" for name in COLUMNS)] for step, counts in table.items()
    ]
    note = "The fetch of a doorbell by Celery (one command) is not in it. `keys` are those that a step adds."
    return Grid("Counts", ["", *COLUMNS.values()], rows, note)


def main() -> None:
    """Count and print; with --write accept the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write",
        action="store_true",
        help="accept these counts",
    )
    table = count()
    if parser.parse_args().write:
        rows = [f"{json.dumps(step)}: {json.dumps(counts)}" for step, counts in table.items()]
        ACCEPTED.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    grid(table).show(Console(width=140))


if __name__ == "__main__":
    main()
