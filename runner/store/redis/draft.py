"""A transaction as it is drafted: what was read of the store, what is checked, and what will be written.

Everything is read through `Draft`, which remembers the texts. What was not read yet is taken for absent and
noted; such a draft is thrown away: all that is missing is read in one request, and the draft is made again
from its beginning. `commit.lua` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.audit.entries import Mode
from runner.definition.model import Topology
from runner.records.codec import JSON
from runner.records.interrupts import Interrupt
from runner.store.encoding import LARGE, dump, topology_of
from runner.store.interface import Doorbell
from runner.store.redis.connection import Argument
from runner.store.redis.keys import run_key, shape_key

Command = tuple[Argument, ...]
"""A command: its name, its key without the prefix, its arguments."""

AT_ONCE = 1_000
"""Fields that one command of a script reads: Lua's stack takes a few thousand arguments."""


KNOWN_SHAPES = 256
"""Shapes of graphs that a process remembers."""


class Topologies:
    """The shapes of graphs that this process has read: one of a fingerprint never changes.

    `latest` are the fingerprints that graphs had when their current ones were last read.
    """

    def __init__(self) -> None:
        self.latest: dict[str, str] = {}
        self._known: dict[str, Topology] = {}

    def get(self, fingerprint: str) -> Topology | None:
        return self._known.get(fingerprint)

    def put(self, fingerprint: str, topology: Topology) -> None:
        if len(self._known) >= KNOWN_SHAPES:
            self._known.clear()
        self._known[fingerprint] = topology


@dataclass(frozen=True, slots=True)
class Settings:
    """What a draft needs to know of its store; times in ms.

    `prefix` is the partition's, `most` returns how many bytes a run may have. `shelve` stores a large value
    of a run apart, and returns a reference to it. `full` are the limits that had no place free when they were
    last asked for one. `audit` is what is audited.
    """

    prefix: str
    lease_ms: int
    retention_ms: int
    most: Callable[[], int]
    push: bool
    shelve: Callable[[str, bytes], bytes]
    topologies: Topologies
    full: set[str] = field(default_factory=set)
    audit: Mode = "approvals"

    @property
    def partition(self) -> str:
        """The name of the partition."""
        return self.prefix.partition("{")[2].partition("}")[0]


UNREAD = {
    "HGETALL": (),
    "HKEYS": (),
    "LRANGE": (),
    "ZRANGE": (),
    "EXISTS": 0,
    "HSTRLEN": 0,
}
"""What a command replies as long as it was not read."""


class Reads:
    """What was read for a transaction: at one moment, or found unchanged since.

    Or what is presumed, without a look: then `now` is 0, and times are counted from the moment of the write.
    """

    def __init__(self) -> None:
        self.now = 0
        self.times = 0
        self.is_presumed = False
        self.written: dict[tuple[str, bytes], bytes] = {}
        self.turns: dict[tuple[str, str], bytes] = {}
        """What a commit has answered of places: (limit, member) -> taken, ahead, own."""
        self.starts: dict[str, int] = {}
        """The times that were reserved under rates."""
        self.rates: dict[str, int] = {}
        """Rates of which a time must be reserved first: limit -> ms between two."""
        self._fields: dict[str, dict[str, bytes | None]] = {}
        self._replies: dict[Command, Any] = {}
        self._missing: dict[str, dict[str, None]] = {}
        self._commands: dict[Command, None] = {}

    @property
    def is_incomplete(self) -> bool:
        """Whether something was asked for that was not read yet."""
        return bool(self._missing or self._commands or self.rates)

    def presume(
        self, fields: Mapping[str, Mapping[str, bytes | None]], replies: Mapping[Command, Any]
    ) -> None:
        """Take fields of hashes, by key, and replies as if they were read; the draft must check them."""
        for key, values in fields.items():
            self._fields.setdefault(key, {}).update(values)
        self._replies.update(replies)
        self.is_presumed = True

    def want(self, key: str, names: Iterable[str]) -> None:
        """Note fields of a hash that will be needed."""
        known = self._fields.get(key, {})
        missing = [name for name in names if name not in known]
        if missing:
            self._missing.setdefault(key, {}).update(dict.fromkeys(missing))

    def ask(self, *command: Argument) -> None:
        """Note a command whose reply will be needed; it only reads."""
        if command not in self._replies:
            self._commands[command] = None

    def field(self, key: str, name: str) -> bytes | None:
        self.want(key, (name,))
        return self._fields.get(key, {}).get(name)

    def reply(self, *command: Argument) -> Any:
        """Return what a command replied that only reads."""
        self.ask(*command)
        return self._replies.get(command, UNREAD.get(str(command[0])))

    def reserved(self, times: Iterable[int]) -> None:
        """Remember the times that were reserved under the rates that asked for one."""
        self.starts |= dict(zip(self.rates, times, strict=True))
        self.rates = {}

    def questions(self) -> tuple[list[Command], list[tuple[str, list[str]]]]:
        """Return the commands that read what is missing, and which hashes the first of them read."""
        hashes = [
            (key, names[first : first + AT_ONCE])
            for key, names in ((key, list(names)) for key, names in self._missing.items())
            for first in range(0, len(names), AT_ONCE)
        ]
        return [*(("HMGET", key, *names) for key, names in hashes), *self._commands], hashes

    def take(self, reply: Sequence[Any], hashes: Sequence[tuple[str, list[str]]]) -> None:
        """Remember the time, and what those commands replied."""
        self.now, self.times = int(reply[0]), self.times + 1
        for (key, names), values in zip(hashes, reply[1:], strict=False):
            self._fields.setdefault(key, {}).update(zip(names, values, strict=True))
        self._replies.update(zip(self._commands, reply[1 + len(hashes) :], strict=True))
        self._missing, self._commands = {}, {}

    def again(self) -> None:
        """Read everything once more, at one moment."""
        self.is_presumed = False
        for key, names in self._fields.items():
            self._missing[key] = dict.fromkeys(names)
        self._commands = dict.fromkeys(self._replies)
        self._fields, self._replies, self.times = {}, {}, 0


@dataclass(slots=True)
class Line:
    """The line of counters of a run (its field `run`), and its new events.

    `was` is a Lua pattern of what it must have been; "" for a run of which only events are written.
    `comes_to` has a letter for each counter that decides the status: small where it is above 0, large where
    it is 0. `more` is what is added to the counters active, waiting, held, failed and started.
    """

    key: str
    was: str = ""
    comes_to: str = ""
    most: int = 0
    more: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    status: str = ""
    stopping: str = ""
    events: list[str] = field(default_factory=list)

    def arguments(self) -> Iterator[Argument]:
        yield from (
            self.key,
            self.was,
            self.comes_to,
            self.most,
            *self.more,
            self.status,
            self.stopping,
        )
        yield len(self.events)
        yield from self.events


@dataclass(frozen=True, slots=True)
class Arrival:
    """Arrivals that are added to those of a field, which stay below a number; 0 for any."""

    key: str
    name: str
    round: int
    arrived: int
    live: int
    below: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether a place of a limit is free for a member ("<run>|<node>") that waits since a time (ms)."""

    key: str
    member: str
    since: int
    concurrency: int
    is_free: bool


class Draft:
    """What one transaction has read, checks and writes. Keys are without the prefix."""

    def __init__(self, reads: Reads, settings: Settings, *, makes_room: bool = False) -> None:
        self.reads, self.settings = reads, settings
        self.guards: dict[str, dict[str, str | bytes]] = {}
        self.forms: dict[tuple[str, str], str] = {}
        self.scores: dict[tuple[str, str], Argument] = {}
        self.new: set[str] = set()
        self.before = 0
        self.lines: dict[str, Line] = {}
        self.arrivals: list[Arrival] = []
        self.makes_room = makes_room
        self.sizes: dict[str, int] = {}
        self.bounded: set[str] = set()
        self.puts: dict[str, dict[str, Argument]] = {}
        self.drops: dict[str, dict[str, None]] = {}
        self.timers: dict[str, int | None] = {}
        self.commands: list[Command] = []
        self.answered: list[Interrupt] = []
        self.left_shapes: list[tuple[str, str]] = []
        self.rung_by = ""
        self.turns: dict[tuple[str, str], Turn] = {}
        self.places: list[tuple[str, int, str]] = []

    # Reading

    def get(self, key: str, name: str) -> bytes | None:
        """Return a field that must not change until the draft is written."""
        if key in self.new or self.writes(key, name):
            return self.peek(key, name)
        value = self.reads.field(key, name)
        self.guards.setdefault(key, {})[name] = value or b""
        return value

    def has(self, key: str) -> bool:
        """Whether there is a key; it may come or go meanwhile, unless that is presumed."""
        is_there = bool(self.reads.reply("EXISTS", key))
        if self.reads.is_presumed:
            self.forms[key, ""] = "." if is_there else "^$"
        return is_there

    def peek(self, key: str, name: str) -> bytes | None:
        """Return a field that may change meanwhile."""
        if name in self.drops.get(key, {}):
            return None
        put = self.puts.get(key, {}).get(name)
        if put is None:
            return None if key in self.new else self.reads.field(key, name)
        return put if isinstance(put, bytes) else str(put).encode()

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        known = self.settings.topologies.get(fingerprint)
        if known is None:
            texts: list[bytes] = self.reads.reply("HGETALL", shape_key(fingerprint))
            fields = dict(zip(texts[::2], texts[1::2], strict=True))
            if b"meta" not in fields:
                return None
            known = topology_of(graph_id, fingerprint, fields)
            self.settings.topologies.put(fingerprint, known)
        return known

    def writes(self, key: str, name: str) -> bool:
        """Whether a field is written or deleted: what is read of it now is not what is stored."""
        return name in self.puts.get(key, {}) or name in self.drops.get(key, {})

    # Writing

    def moment(self, time: int) -> Argument:
        """Write a time (ms) that was planned, in a value that is nothing else."""
        return time if self.reads.now else f"\x01{self.moment_within(time)}"

    def moment_within(self, time: int) -> str:
        """Write a time (ms) as a part of a value, which must begin with character 1 where none is known."""
        return str(time) if self.reads.now else f"\x010:{time}\x01"

    def written(self, run_id: str, value: JSON) -> bytes:
        """Write a value of a run, or a reference to it where it is large: that is stored apart, and once."""
        data = dump(value)
        if len(data) <= LARGE:
            return data
        known = self.reads.written
        if (run_id, data) not in known:
            known[run_id, data] = self.settings.shelve(run_id, data)
        return known[run_id, data]

    def put(self, key: str, name: str, value: Argument) -> None:
        self.drops.get(key, {}).pop(name, None)
        self.puts.setdefault(key, {})[name] = value

    def drop(self, key: str, name: str) -> None:
        self.puts.get(key, {}).pop(name, None)
        self.drops.setdefault(key, {})[name] = None

    def timer(self, member: str, due: int | None) -> None:
        """Set a timer to so many ms of the clock, or drop it."""
        self.timers[member] = due

    def command(self, *command: Argument) -> None:
        self.commands.append(command)

    def grow(self, root: str, size: int) -> None:
        """Add bytes to what a family of runs has, by its root."""
        self.sizes[root] = self.sizes.get(root, 0) + size

    def line(self, run_id: str) -> Line:
        line = self.lines.get(run_id)
        if line is None:
            line = self.lines[run_id] = Line(run_key(run_id))
        return line

    def event_number(self, run_id: str, nth: int = 0) -> str:
        """Return the place of the number of a run's nth new event, in a value that begins with character 1.

        Without `nth` it is the one that comes next.
        """
        line = self.line(run_id)
        return f"\1{list(self.lines).index(run_id) + 1}:{nth or len(line.events) + 1}\1"

    def must_be_before(self, time: int) -> None:
        """Refuse the draft from a time on (ms)."""
        self.before = min(self.before or time, time)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be written."""
        return not (
            self.lines
            or self.arrivals
            or self.sizes
            or any(self.puts.values())
            or any(self.drops.values())
            or self.timers
            or self.commands
            or self.left_shapes
            or self.places
        )

    def arguments(self, doorbells: Sequence[Doorbell]) -> Iterator[Argument]:
        """Write the arguments of `commit.lua`."""
        yield len(self.guards)
        for key, guarded in self.guards.items():
            yield from (key, len(guarded), *guarded, *guarded.values())
        yield len(self.forms)
        for (key, name), form in self.forms.items():
            yield from (key, name, form)
        yield len(self.scores)
        for (key, member), score in self.scores.items():
            yield from (key, member, score)
        yield self.before
        yield len(self.lines)
        for line in self.lines.values():
            yield from line.arguments()
        yield len(self.arrivals)
        for arrival in self.arrivals:
            yield from (
                arrival.key,
                arrival.name,
                arrival.round,
                arrival.arrived,
                arrival.live,
                arrival.below,
            )
        yield len(self.turns)
        for turn in self.turns.values():
            yield from (turn.key, turn.member, turn.since, turn.concurrency, int(turn.is_free))
        sizes = {root: size for root, size in self.sizes.items() if size}
        yield len(sizes)
        for root, size in sizes.items():
            yield from (run_key(root), size, int(root in self.bounded))
        yield from self._writes()
        yield from (self.rung_by, len(doorbells))
        for bell in doorbells:
            yield from (bell.run_id, bell.node, bell.visit, bell.attempt, bell.queue, bell.priority)
            yield bell.graph_id
        yield len(self.places)
        for place in self.places:
            yield from place

    def _writes(self) -> Iterator[Argument]:
        yield "1" if self.makes_room else "0"
        puts = {key: fields for key, fields in self.puts.items() if fields}
        yield len(puts)
        for key, fields in puts.items():
            yield from (key, len(fields))
            yield from (part for pair in fields.items() for part in pair)
        drops = {key: names for key, names in self.drops.items() if names}
        yield len(drops)
        for key, names in drops.items():
            yield from (key, len(names))
            yield from names
        due = {member: ms for member, ms in self.timers.items() if ms is not None}
        yield len(due)
        for member, ms in due.items():
            yield from (self.moment(ms), member)
        gone = [member for member, ms in self.timers.items() if ms is None]
        yield len(gone)
        yield from gone
        yield len(self.commands)
        for command in self.commands:
            yield from (len(command) - 2, *command)
        yield len(self.left_shapes)
        for graph, fingerprint in self.left_shapes:
            yield from (graph, fingerprint)

    def seen_turns(self, values: Sequence[bytes]) -> dict[tuple[str, str], bytes]:
        """Name what `commit.lua` returns of places of limits in place of a change."""
        return dict(zip(self.turns, values, strict=True))
