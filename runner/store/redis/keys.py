"""Every key of the Redis store: the data dictionary, and the only place that names keys in Python.

All keys of a partition begin with `runner:{pNN}:`. The braces are Redis Cluster's hash tag, so they
share one slot. Scripts get that prefix as their one key and build the others from it (see
docs/decisions/0003-one-key-scripts.md). `DICTIONARY` lists what each key is; a test checks that no
other key appears.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.records.listings import InterruptQuery, RunQuery, outermost

PARTITION = "p00"

RESPONSES = "runner:responses"

STARTS = "runner:starts"
"""The streams of answers and of runs to begin: one each for all partitions; an entry goes when it was
applied.
"""

DEAD_MESSAGES = "runner:dead"
"""A stream of messages that could not be used, with the reason: one for all partitions."""

FORGOTTEN = "runner:forgotten"
"""A text that lapses in a minute: until then no worker looks for readers of the streams that are gone."""

WORKERS = "runner:workers"
"""A hash: worker and process -> what it is and knows (JSON). A worker that is gone leaves it in a day."""


@dataclass(frozen=True, slots=True)
class Key:
    """One kind of key: a pattern below the prefix, its Redis type, what it holds, how long it stays."""

    pattern: str
    type: str
    holds: str
    stays: str


_ENDED = "until its run has ended, then for the retention; a child's as long as its root's"

DICTIONARY = (
    Key("graphs", "hash", "graph name -> fingerprint of the shape published last", "for ever"),
    Key(
        "g:<fingerprint>",
        "hash",
        "a graph's shape: meta, n:<node>, o:<node> edges out, i:<node> edges in, s:<node> its fast path, "
        "l:<loop>; current, when it is; runs, how many use it",
        "while current or used by a run, then for the retention",
    ),
    Key(
        "r:<run>",
        "hash",
        "v, run (status, counters), of (graph), reason, lock, again, cancel (nonce), parent_node, root, "
        "path, created, ended, task, given, tags, idem, on_end, ends, untold, trace; at the root size "
        "(bytes, with all runs inside); chatter (bytes of long events since older ones had to go); "
        "n:<node>, l:<loop> records; c:<loop> nodes settled in its round; a<scope>:<node> arrivals; o:<node>.<visit> output (JSON), "
        "x:<node>.<visit> place in the order and entry (JSON), large: @<root> <digest>; q:<node> "
        "questions of its visit; w:<question> what time does to it: reminders, how its node ends, what "
        "that leaves, a line each; k:<node> when it keeps a document or has a task of its own, "
        "t:<node>.<visit> (JSON); m:<map> record of its items; h:<reference> how the work of that name "
        "ended, which another system does (JSON); wide makes it a table",
        _ENDED,
    ),
    Key("r:<run>:s", "hash", "<node> -> document that resumes it (JSON)", _ENDED),
    Key("r:<run>:m", "hash", "#<node> -> number of messages, <number>.<node> -> message (JSON)", _ENDED),
    Key("r:<run>:i", "hash", "question's id -> number, asked ms, expires ms, question (JSON)", _ENDED),
    Key("r:<run>:d", "hash", "question's id -> status, ms, nonce, answer (JSON)", _ENDED),
    Key(
        "r:<run>:e", "stream", "events, numbered from 1", _ENDED + "; the last 10,000 or so, fewer long ones"
    ),
    Key("r:<run>:q", "zset", "nodes of a run that stops which are still to be cancelled", _ENDED),
    Key("r:<run>:c", "list", "child runs, oldest first", _ENDED),
    Key("r:<run>:f", "hash", "<map>.<visit>.<index> -> item of a map (JSON)", _ENDED),
    Key("r:<run>:b", "hash", "digest -> large value of the run or of one inside it (JSON)", _ENDED),
    Key("idem:<graph>:<key>", "string", "idempotency key of a start -> run", _ENDED),
    Key(
        "session:m:<session>",
        "list",
        "messages of a session (JSON)",
        "until forgotten: it is the user's data",
    ),
    Key(
        "session:s:<session>",
        "hash",
        "name -> value of a session's state (JSON)",
        "until forgotten: it is the user's data",
    ),
    Key("timers", "zset", "<kind>|<run>|<node, question or nothing> by the ms it is due", "until done"),
    Key("failing", "hash", "member of timers -> how often it failed in a row", "until it succeeds"),
    Key("open", "zset", "open questions by the ms they were asked", "until closed"),
    Key(
        "open:<kind>:<value>",
        "zset",
        "the same, one for each graph (g), family of runs by its root (r), name (n) and assignee (a)",
        "until closed",
    ),
    Key("listed:open", "hash", "question's id -> its listings of that kind (JSON)", "until closed"),
    Key("runs", "zset", "runs by the ms they were created", "a run's entry as long as its keys"),
    Key("runs:<status>", "zset", "the same, one for each status", "a run's entry as long as its keys"),
    Key("runs:g:<graph>", "zset", "the same, one for each graph", "a run's entry as long as its keys"),
    Key("runs:t:<tag>=<value>", "zset", "the same, one for each tag", "a run's entry as long as its keys"),
    Key("listed:runs", "hash", "ended run -> the listings of its graph and tags (JSON)", "until swept"),
    Key(
        "limit:h:<limit>",
        "zset",
        "<run>|<node> that have a place of the limit; those for whom one is kept by the ms it lapses",
        "while a node has one",
    ),
    Key(
        "limit:q:<limit>",
        "zset",
        "<run>|<node> that wait for a place by the ms they asked",
        "while they wait",
    ),
    Key("rates", "zset", "limits with a rate by the ms at which the next execution may begin", "until then"),
    Key(
        "retiring",
        "list",
        "children of ended runs, whose keys must still get their expiry; of removed ones, to be removed",
        "until swept",
    ),
    Key("retired", "zset", "ended runs by the ms at which their keys are gone", "until swept"),
    Key(
        "wake", "list", "one entry while a sweep is asked for: there was nothing to ring with", "until swept"
    ),
    Key("notices", "stream", "what approval services act on", "the last 100,000 or so"),
    Key("dead", "stream", "nodes that used up their crash budget", "the last 10,000 or so"),
    Key("metrics", "hash", "histogram, labels and bucket (JSON) -> measurements in it", "for ever"),
    Key("durable", "string", "what is written to wait for a disk or a replica: the level", "for ever"),
    Key("doorbell", "hash", "the task queue's message as a template, queue suffix by priority", "for ever"),
)


class Keys:
    """The keys of one partition."""

    def __init__(self, partition: str = PARTITION) -> None:
        """Take the partition's name, such as "p00"."""
        self.prefix = f"runner:{{{partition}}}:"
        self.graphs = f"{self.prefix}graphs"
        self.open = f"{self.prefix}open"
        self.notices = f"{self.prefix}notices"
        self.dead = f"{self.prefix}dead"
        self.doorbell = f"{self.prefix}doorbell"
        self.durable = f"{self.prefix}durable"
        self.wake = f"{self.prefix}wake"
        self.failing = f"{self.prefix}failing"
        self.timers = f"{self.prefix}timers"
        self.metrics = f"{self.prefix}metrics"

    def shape(self, fingerprint: str) -> str:
        """Name a graph's shape."""
        return f"{self.prefix}g:{fingerprint}"

    def run(self, run_id: str, part: str = "") -> str:
        """Name a run's hash, or with a `part` such as `:s` another of its keys."""
        return f"{self.prefix}r:{run_id}{part}"

    def session(self, session_id: str) -> tuple[str, str]:
        """Name a session's messages and its state."""
        return f"{self.prefix}session:m:{session_id}", f"{self.prefix}session:s:{session_id}"

    def runs(self, query: RunQuery) -> list[str]:
        """Return the indexes each of which has all runs that match."""
        indexes = [f"{self.prefix}runs"]
        if query.status is not None:
            indexes.append(f"{self.prefix}runs:{query.status}")
        if query.graph is not None:
            indexes.append(f"{self.prefix}runs:g:{query.graph}")
        return indexes + [f"{self.prefix}runs:t:{name}={value}" for name, value in query.tags.items()]

    def questions(self, query: InterruptQuery, root: str) -> list[str]:
        """Return the indexes each of which has all open questions that match."""
        graph = query.graph and outermost(query.graph)
        values = {"g": graph, "r": root or None, "n": query.name, "a": query.assignee}
        named = [f"{self.open}:{kind}:{value}" for kind, value in values.items() if value is not None]
        return [self.open, *named]


def declared(key: str) -> Key | None:
    """Return what a key of a partition is; None for one that is not in the dictionary."""
    _, brace, rest = key.partition("}:")
    for entry in DICTIONARY if brace else ():
        pattern = entry.pattern.replace("<run>", "[^:]+")
        if re.fullmatch(re.sub(r"<\w+>", ".+", pattern), rest):
            return entry
    return None
