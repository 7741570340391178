"""The read set of a transaction, and the write set of one try, which `lua/commit.lua` validates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from runner.audit.entries import Mode
from runner.definition.model import Topology
from runner.immutable import immutable
from runner.records.codec import JSON, JSONMapping, LazyValue
from runner.store.encoding import LARGE, dump, graph_with, topology_of
from runner.store.interface import Doorbell
from runner.store.redis.connection import Argument, mapping_of
from runner.store.redis.keys import run_key, shape_key

FEWER, NOT_FEWER, FEWER_TOGETHER = "<", ">=", "+<"
"""Values in place of a member in `WriteSet.scores`, which then is a bound: a list has fewer members, or has
not fewer, or several lists together have fewer."""

KNOWN_SHAPES = 256
"""The most shapes of graphs that a process remembers."""


class Topologies:
    """The shapes of graphs that this process has read: the shape of a fingerprint never changes.

    `latest` maps graphs to the fingerprints that were current when last read.
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


@immutable
class StoreSettings:
    """Settings of a store for its transactions; times in ms.

    `prefix` is the partition's prefix, `most` returns the most bytes that a run may have. With `push` the
    scripts ring doorbells. `shelve` stores a large value of a run apart, and returns a reference to it;
    `load` reads values. `full` has the limits that had no free slot when last asked, `input_keys` the values
    of inputs by which limits count. `audit` is the scope of the audit, `max_open_runs` the bound of all
    partitions (0: none), `number` this partition's number. `elsewhere` returns the script call of the
    partition that counts a limit's key, or None for this one; `offer` rings for a node in any partition to
    which a limit offers a slot. Transactions without runs need only the prefix.
    """

    prefix: str
    lease_ms: int = 0
    retention_ms: int = 0
    most: Callable[[], int] = int
    push: bool = False
    shelve: Callable[[str, Any], bytes] = lambda _, data: data
    topologies: Topologies = field(default_factory=Topologies)
    load: Callable[[Sequence[bytes | None]], Sequence[JSON | LazyValue]] = lambda values: values
    full: set[str] = field(default_factory=set)
    input_keys: dict[tuple[str, str, int, str], str | None] = field(default_factory=dict)
    audit: Mode = "approvals"
    max_open_runs: int = 0
    number: int = 0
    partitions: int = 1
    elsewhere: Callable[[str], Callable[..., list[Any]] | None] = lambda _: None
    offer: Callable[[str, str], Sequence[Doorbell]] = lambda *_: ()

    @property
    def partition(self) -> str:
        """The name of the partition."""
        return self.prefix.partition("{")[2].partition("}")[0]


@dataclass(slots=True)
class RunCounters:
    """Changes of a run's counters (its field `run`), and its new events.

    `pattern` is a Lua pattern that the field must match; "" if only events of the run are written.
    `expected_status_counters` has a letter for each counter that decides the new status: lower case if it is
    above 0, upper case if it is 0. `deltas` are added to active, waiting, held, failed and started; the last
    stays within `max_started`, unless that is 0.
    """

    key: str
    number: int
    pattern: str = ""
    expected_status_counters: str = ""
    max_started: int = 0
    deltas: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    status: str = ""
    stopping: str = ""
    events: list[str] = field(default_factory=list)

    def event_number(self, nth: int = 0) -> str:
        """Return a placeholder for the number of the nth new event; a value with it begins with character 1.

        Without `nth` it stands for the next event.
        """
        return f"\1{self.number}:{nth or len(self.events) + 1}\1"


@immutable
class ArrivalCount:
    """Arrivals to add to a field, whose sum must stay below a number; 0 for any."""

    key: str
    name: str
    round: int
    count: int
    live: int
    below: int


@immutable
class LimitPosition:
    """Presumed availability of a limit's slot for a member ("<run>|<node>") that waits since a time (ms)."""

    key: str
    member: str
    since: int
    concurrency: int
    is_free: bool


Command = tuple[Argument, ...]
"""A command: its name, its key without the prefix, its arguments."""

MARKS = {"\1", b"\1"}
"""The first character of a text into which the commit fills numbers or times."""

AHEAD_MS = 100
"""Ms within which a plan on values read in advance must commit: it takes the time of that read as now."""

HASH_CHUNK = 1_000
"""The most fields that one command of a script reads: Lua's stack takes a few thousand arguments."""

ENTRY_CHUNK = 100
"""The most audit entries that are appended at once."""

ABSENT = {
    "HGETALL": (),
    "HKEYS": (),
    "LRANGE": (),
    "ZRANGE": (),
    "EXISTS": 0,
    "HSTRLEN": 0,
}
"""The results of `reply` before a command has been read."""


class ReadSet:
    """Fields and replies; each look reads at one moment.

    `Transactions.run` says why a commit may follow several looks. A speculative read set was not read: its
    `now` is 0, and times count from the moment of the commit. With `has_entries` it knows the number of its
    run's audit entries.
    """

    def __init__(self) -> None:
        self.now = 0
        self.looks = 0
        self.is_speculative = self.has_entries = False
        self.references: dict[tuple[str, bytes | LazyValue], bytes] = {}
        """References to large values that were stored for this request."""
        self.limit_positions: dict[tuple[str, str], bytes] = {}
        """Replies of commits about limits: (limit, member) -> taken, ahead, whether the member has a slot."""
        self.start_times: dict[str, int] = {}
        """The times that were reserved under rates."""
        self.rates: dict[str, int] = {}
        """Rates under which a time must first be reserved: limit -> ms between two times."""
        self.wanted_slots: dict[tuple[str, str], tuple[int, int]] = {}
        """Slots to hold first, which other partitions count: (limit, member) -> since, concurrency."""
        self.held_slots: dict[tuple[str, str], bytes] = {}
        """Slots that were asked for: (limit, member) -> the slot's version, b"" if none was free."""
        self.own_slots: dict[tuple[str, str], bytes] = {}
        """Versions of held slots that no other claim of the visit had, also of earlier tries."""
        self.held_after = 0
        """The time of the look before the first of these was held."""
        self.doorbells: list[Doorbell] = []
        """Doorbells of nodes that were offered slots meanwhile."""
        self._fields: dict[str, dict[str, bytes | None]] = {}
        self._replies: dict[Command, Any] = {}
        self._missing_fields: dict[str, dict[str, None]] = {}
        self._missing_replies: dict[Command, None] = {}

    @property
    def is_incomplete(self) -> bool:
        """Return whether a requested value, time or slot is still missing."""
        return self.lacks_values or bool(self.rates or self.wanted_slots)

    @property
    def lacks_values(self) -> bool:
        """Return whether a requested field or reply was not read yet."""
        return bool(self._missing_fields or self._missing_replies)

    def speculate(
        self, fields: Mapping[str, Mapping[str, bytes | None]], replies: Mapping[Command, Any]
    ) -> None:
        """Take fields of hashes, by key, and replies as if they were read; the commit must validate them."""
        for key, values in fields.items():
            self._fields.setdefault(key, {}).update(values)
        self._replies.update(replies)
        self.is_speculative = True

    def request(self, wants: Iterable[tuple[str, str]], asks: Iterable[Command]) -> None:
        """Note fields (key, name) and commands that will be needed."""
        for key, name in wants:
            if name not in self._fields.get(key, {}):
                self._missing_fields.setdefault(key, {})[name] = None
        for command in asks:
            if command not in self._replies:
                self._missing_replies[command] = None

    def want(self, key: str, names: Iterable[str]) -> None:
        """Note fields of a hash that will be needed."""
        known_fields = self._fields.get(key, {})
        missing = [name for name in names if name not in known_fields]
        if missing:
            self._missing_fields.setdefault(key, {}).update(dict.fromkeys(missing))

    def ask(self, *command: Argument) -> None:
        """Note a command whose reply will be needed; it only reads."""
        if command not in self._replies:
            self._missing_replies[command] = None

    def fields(self, key: str, names: Iterable[str]) -> dict[bytes, bytes]:
        """Return the fields that exist."""
        self.want(key, names)
        known_fields = self._fields.get(key, {})
        return {
            name.encode(): value
            for name in names
            if (value := known_fields.get(name)) is not None
        }

    def field(self, key: str, name: str) -> bytes | None:
        known_fields = self._fields.get(key)
        if known_fields is not None and name in known_fields:
            return known_fields[name]
        self._missing_fields.setdefault(key, {})[name] = None
        return None

    def reply(self, *command: Argument) -> Any:
        """Return the reply of a command that only reads."""
        if command in self._replies:
            return self._replies[command]
        self._missing_replies[command] = None
        return ABSENT.get(str(command[0]))

    def reserve(self, times: Iterable[int]) -> None:
        """Remember the times that were reserved under the requested rates."""
        self.start_times |= dict(zip(self.rates, times, strict=True))
        self.rates = {}

    def missing(self) -> tuple[list[Command], list[tuple[str, list[str]]]]:
        """Return the commands that read missing values, and the hashes that the first of them read."""
        hashes = [
            (key, names[start : start + HASH_CHUNK])
            for key, names in (
                (key, list(names)) for key, names in self._missing_fields.items()
            )
            for start in range(0, len(names), HASH_CHUNK)
        ]
        commands: list[Command] = [("HMGET", key, *names) for key, names in hashes]
        return [*commands, *self._missing_replies], hashes

    def fill(self, reply: Sequence[Any], hashes: Sequence[tuple[str, list[str]]]) -> None:
        """Remember the time, and the replies of those commands."""
        self.now = int(reply[0])
        self.looks = self.looks + 1
        for (key, names), values in zip(hashes, reply[1:], strict=False):
            self._fields.setdefault(key, {}).update(zip(names, values, strict=True))
        self._replies.update(zip(self._missing_replies, reply[1 + len(hashes) :], strict=True))
        self._missing_fields, self._missing_replies = {}, {}

    @property
    def contents(self) -> tuple[object, ...]:
        """All values that were read, to compare them with a later look."""
        return self._fields, self._replies, dict(self.limit_positions)

    def reread_all(self) -> None:
        """Mark everything to be read again, at one moment, and slots to be held again after it."""
        self.is_speculative = False
        self.held_slots = {}
        self.wanted_slots = {}
        self.held_after = 0
        for key, names in self._fields.items():
            self._missing_fields[key] = dict.fromkeys(names)
        self._missing_replies = dict.fromkeys(self._replies)
        self._fields = {}
        self._replies = {}
        self.looks = 0


class Because(Enum):
    """Why a plan may rely on a value that the commit doesn't validate; the simulation checks it."""

    CONSTANT = "it never changes once it is written"
    ADDED = "others only add to it, as the commit does"
    GUARDED = "it changes only with a value that is validated and was read before it or with it"
    EITHER = "the plan is right with the old value as with a new one"


CONSTANT, ADDED, GUARDED, EITHER = Because


class WriteSet:
    """The changes of one try, and the values that they rely on. Keys are without the prefix."""

    def __init__(
        self, read_set: ReadSet, settings: StoreSettings, *, makes_room: bool = False
    ) -> None:
        self.read_set, self.settings = read_set, settings
        # Validated by the commit:
        self.expected: dict[str, dict[str, str | bytes]] = {}
        self.patterns: dict[tuple[str, str], str] = {}
        self.scores: dict[tuple[str, str], Argument] = {}
        is_ahead = read_set.is_speculative and read_set.now
        self.deadline = read_set.now + AHEAD_MS if is_ahead else 0
        self.limit_positions: dict[tuple[str, str], LimitPosition] = {}
        self.bounded_roots: set[str] = set()
        # Known to be new, so their fields are absent and not read:
        self.new_keys: set[str] = set()
        # Written by the commit:
        self.runs: dict[str, RunCounters] = {}
        self.arrivals: list[ArrivalCount] = []
        self.makes_room = makes_room
        self.sizes: dict[str, int] = {}
        self.fields: dict[str, dict[str, Argument | None]] = {}
        """New values of fields by key; None deletes a field."""
        self.timers: dict[str, int | None] = {}
        """Times of the clock (ms) at which timers are due; None drops a timer."""
        self.commands: list[Command] = []
        self.audit_entries: list[bytes] = []
        self.released_shapes: list[tuple[str, str]] = []
        self.rung_by = ""
        self.slots: list[tuple[str, int, str]] = []
        # Done after the commit by partitions that count a limit's key: key, arguments of `lua/slot.lua`.
        self.slots_elsewhere: list[tuple[str, Command]] = []
        self.metrics: dict[str, float] = {}
        # For the caller:
        self.committed_at = 0

    # Reading

    def read(self, key: str, name: str) -> bytes | None:
        """Return a field that must not change until the commit."""
        if key in self.new_keys or name in self.fields.get(key, ()):
            return self.read_unvalidated(key, name, CONSTANT)
        value = self.read_set.field(key, name)
        self.expected.setdefault(key, {})[name] = value or b""
        return value

    def read_document(self, key: str, name: str) -> bytes | None:
        """Return a document with its head; only the first two words, which identify it, are validated.

        A step that writes the document reads it with `read`.
        """
        known = self.expected.get(key, {}).get(name)
        value = self.read(key, name)
        number, blank, later = (value or b"").partition(b" ")
        if known is not None:
            self.expected[key][name] = known
        elif blank and name in self.expected.get(key, ()):
            self.expected[key][name] = b"\2%b %b " % (number, later.partition(b" ")[0])
        return value

    def exists(self, key: str) -> bool:
        """Return whether a key exists; it may come or go before the commit, unless the read is guessed."""
        is_there = bool(self.read_set.reply("EXISTS", key))
        if self.read_set.is_speculative:
            self.patterns[key, ""] = "." if is_there else "^$"
        return is_there

    def read_unvalidated(
        self,
        key: str,
        name: str,
        because: Because,  # noqa: ARG002 - the simulation checks it
    ) -> bytes | None:
        """Return a field that the commit doesn't validate, for a reason."""
        fields = self.fields.get(key)
        if fields is None or name not in fields:
            return None if key in self.new_keys else self.read_set.field(key, name)
        value = fields[name]
        return value if value is None or isinstance(value, bytes) else str(value).encode()

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        topology = self.settings.topologies.get(fingerprint)
        if topology is None:
            texts: list[bytes] = self.read_set.reply("HGETALL", shape_key(fingerprint))
            fields = mapping_of(texts)
            if b"meta" not in fields:
                return None
            topology = topology_of(graph_id, fingerprint, fields)
            self.settings.topologies.put(fingerprint, topology)
        return topology

    def changes_field(self, key: str, name: str) -> bool:
        """Return whether a field is written or deleted, so that its value here isn't the stored one."""
        return key in self.fields and name in self.fields[key]

    # Writing

    def time(self, time: int) -> Argument:
        """Write a planned time (ms) as a whole value."""
        return time if self.read_set.now else f"\x01\x010:{time}\x01"

    def time_within(self, time: int) -> str:
        """Write a time (ms) inside a value, which must begin with character 1 if the time isn't known."""
        return str(time) if self.read_set.now else f"\x010:{time}\x01"

    def dump_with_time(self, document: JSONMapping) -> bytes:
        """Encode an object with its time `at` (ms), in a value as for `time_within`."""
        fields = {key: value for key, value in document.items() if key != "at"}
        time = self.time_within(cast("int", document["at"]))
        return dump(fields)[:-1] + f',"at":{time}}}'.encode()

    def encode(self, run_id: str, data: bytes | LazyValue) -> bytes:
        """Return a run's value, or if it is large a reference to it: it is stored apart, and only once."""
        if isinstance(data, bytes) and len(data) <= LARGE:
            return data
        references = self.read_set.references
        if (run_id, data) not in references:
            references[run_id, data] = self.settings.shelve(run_id, data)
        return references[run_id, data]

    def put(self, key: str, name: str, value: Argument) -> None:
        self.fields.setdefault(key, {})[name] = value

    def drop(self, key: str, name: str) -> None:
        self.fields.setdefault(key, {})[name] = None

    def command(self, *command: Argument) -> None:
        self.commands.append(command)

    def measure(self, increments: Mapping[str, float]) -> None:
        """Add to metrics, if anything else is written."""
        for name, number in increments.items():
            self.metrics[name] = self.metrics.get(name, 0) + number

    def add_size(self, root: str, size: int) -> None:
        """Add bytes to the size of a family of runs, by its root."""
        self.sizes[root] = self.sizes.get(root, 0) + size

    def counters(self, run_id: str) -> RunCounters:
        counters = self.runs.get(run_id)
        if counters is None:
            number = len(self.runs) + 1
            counters = self.runs[run_id] = RunCounters(run_key(run_id), number)
        return counters

    def must_be_before(self, time: int) -> None:
        """Refuse the commit from a time (ms) on."""
        self.deadline = min(self.deadline or time, time)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing would be written."""
        return not (
            self.runs
            or self.arrivals
            or self.sizes
            or self.fields
            or self.timers
            or self.commands
            or self.audit_entries
            or self.released_shapes
            or self.slots
        )

    def arguments(self, doorbells: Sequence[Doorbell]) -> list[Argument]:
        """Return the arguments of `lua/commit.lua`, in the order of its header."""
        arguments = self._validation()
        sizes = {root: size for root, size in self.sizes.items() if size}
        arguments.append(len(sizes))
        for root, size in sizes.items():
            arguments += (run_key(root), size, int(root in self.bounded_roots))
        writes = self._writes()
        marked = (
            str(nth)
            for nth, text in enumerate(writes)
            if not isinstance(text, int) and text[:1] in MARKS
        )
        arguments += (" ".join(marked), *writes)
        arguments += (self.rung_by, len(doorbells))
        for bell in doorbells:
            arguments += (bell.run_id, bell.node, bell.visit, bell.attempt, bell.queue)
            graph = graph_with(bell.share, bell.graph_id) if bell.share else bell.graph_id
            arguments += (bell.priority, graph)
        arguments.append(len(self.slots))
        for slot in self.slots:
            arguments += slot
        return arguments

    def _validation(self) -> list[Argument]:
        arguments: list[Argument] = [len(self.expected)]
        for key, fields in self.expected.items():
            arguments += (key, len(fields), *fields, *fields.values())
        arguments.append(len(self.patterns))
        for (key, name), pattern in self.patterns.items():
            arguments += (key, name, pattern)
        arguments.append(len(self.scores))
        for (key, member), score in self.scores.items():
            arguments += (key, member, score)
        arguments += (self.deadline, len(self.runs))
        for run in self.runs.values():
            arguments += (run.key, run.pattern, run.expected_status_counters, run.max_started)
            arguments += (*run.deltas, run.status, run.stopping, len(run.events))
        arguments.append(len(self.arrivals))
        for arrival in self.arrivals:
            arguments += (arrival.key, arrival.name, arrival.round)
            arguments += (arrival.count, arrival.live, arrival.below)
        arguments.append(len(self.limit_positions))
        for position in self.limit_positions.values():
            arguments += (position.key, position.member, position.since)
            arguments += (position.concurrency, int(position.is_free))
        return arguments

    def _writes(self) -> list[Argument]:
        arguments: list[Argument] = ["1" if self.makes_room else "0"]
        arguments += (event for run in self.runs.values() for event in run.events)
        sets: list[Argument] = []
        deletes: list[Argument] = []
        set_count = delete_count = 0
        for key, fields in self.fields.items():
            values = {name: value for name, value in fields.items() if value is not None}
            if values:
                set_count += 1
                sets += (key, len(values), *(text for pair in values.items() for text in pair))
            if len(values) < len(fields):
                delete_count += 1
                deletes += (key, len(fields) - len(values))
                deletes += (name for name in fields if name not in values)
        arguments += (set_count, *sets, delete_count, *deletes)
        timers = {member: due for member, due in self.timers.items() if due is not None}
        arguments.append(len(timers))
        for member, due in timers.items():
            arguments += (self.time(due), member)
        ended_timers = [member for member in self.timers if member not in timers]
        metrics = self.metrics.items()
        # Most metrics only count, which costs the server a quarter of an addition of fractions.
        additions = [
            (
                "HINCRBY" if isinstance(number, int) else "HINCRBYFLOAT",
                "metrics",
                name,
                str(number),
            )
            for name, number in metrics
        ]
        texts = self.audit_entries
        entries: list[Command] = [
            ("XADD", "audit", "*", *entry_fields(texts[start : start + ENTRY_CHUNK]))
            for start in range(0, len(texts), ENTRY_CHUNK)
        ]
        commands = [*self.commands, *entries, *additions]
        arguments += (len(ended_timers), *ended_timers, len(commands))
        for command in commands:
            arguments += (len(command) - 2, *command)
        arguments.append(len(self.released_shapes))
        for shape in self.released_shapes:
            arguments += shape
        return arguments


def entry_fields(texts: Sequence[bytes]) -> Iterator[str | bytes]:
    """Name the audit entries of a step "e", "e1" and so on; yield names and entries by turns."""
    for nth, text in enumerate(texts):
        yield f"e{nth or ''}"
        yield text
