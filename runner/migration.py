"""Moves one waiting run to another shape of its graph: works out what becomes of each node. Pure.

The history of the run is told in the new shape's words and played through its transitions
(`replay.py`): so joins, loops and dead paths need no rules of their own here. A node whose turn it is
in both shapes goes on with what it has; everything else is said, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner import expiry, replay
from runner.errors import ConflictError
from runner.graph import BEFORE_GRAPH, HIDDEN, FailurePolicy, Topology
from runner.interrupts import Interrupt, InterruptStatus
from runner.maps import map_of
from runner.migrating import At, Migration
from runner.moved import check_names, questions, renamed, restated, undone, used_up, visits
from runner.ports import RunSnapshot
from runner.replay import Settled
from runner.run import FINAL, NodeRecord, Records, Status
from runner.wishes import ANEW, BEGINS, DROPPED, GOES_ON, LATER, RENEWED, WAITS, Fate, Names, Wish

JSON = Any

Decide = Callable[[str, int, int], str]
"""Tells whether a new edge would have been taken: node, visit and the edge's place give "1" or "0"."""


@dataclass
class Move:
    """One run on its way. `held` are the nodes that were set aside themselves."""

    snapshot: RunSnapshot
    old: Topology
    new: Topology
    wish: Wish
    held: Collection[str]
    decide: Decide
    documents: Mapping[str, JSON] = field(default_factory=dict)
    fates: list[Fate] = field(default_factory=list)
    withdrawn: list[tuple[str, int, str]] = field(default_factory=list)
    closed: set[At] = field(default_factory=set)
    forgets: list[str] = field(default_factory=list)
    stops: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, NodeRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Learn the names of the nodes, and what each has asked: items of maps may be many."""
        self.names = Names(self.snapshot, (self.old, self.new), self.wish)
        self.asked: dict[str, list[Interrupt]] = {}
        for each in self.snapshot.interrupts:
            self.asked.setdefault(each.node_id, []).append(each)

    def migration(self, parent_node: str, path: str) -> Migration:
        """Work everything out.

        Raises:
            NotFoundError: a node that was named is not there. UsageError: names meet.
            ConflictError: something can't be moved; the message says what to do.
        """
        self.names.check()
        past = dict(self._past())
        policy = replace(self.new, policy=FailurePolicy.CONTINUE)
        played = replay.Replay(policy, past)
        self._check_reached(past, played)
        records = self._records(played.records())
        check_names(self)
        moved, asked = questions(self)
        record = self.snapshot.record
        began = [name for name, found in records.nodes.items() if found.status is Status.READY]
        return Migration(
            run_id=record.run_id,
            events=self.snapshot.events,
            fingerprint=self.new.fingerprint,
            graph_id=self.new.graph_id,
            parent_node=parent_node,
            path=path,
            records=records,
            started=record.started + len([name for name in began if name not in self.kept]),
            told=self._told(),
            undone=undone(self),
            forgets=self.forgets,
            renamed=renamed(self, moved),
            visits=visits(self, past),
            moved=moved,
            withdrawn=self.withdrawn,
            asked=asked,
            stops=self.stops,
        )

    # -- the past, in today's words ----------------------------------------------------------------

    def _past(self) -> Iterator[tuple[At, Settled]]:
        found = replay.history(self.snapshot, self.old)
        if BEFORE_GRAPH in self.new.nodes and BEFORE_GRAPH not in self.old.nodes:
            # The run has begun: what is to happen before it happens in later runs only.
            bits = "1" * len(self.new.outgoing[BEFORE_GRAPH])
            yield (BEFORE_GRAPH, 1), Settled(BEFORE_GRAPH, 1, Status.COMPLETED, bits)
        for (node, visit), each in found.items():
            name = self.names.today(node)
            if name:
                reads = tuple((read, number) for old, number in each.reads if (read := self.names.today(old)))
                yield (name, visit), replace(each, node=name, edges=self._bits(each, name), reads=reads)

    def _bits(self, each: Settled, name: str) -> str:
        if each.status is not Status.COMPLETED:
            return ""
        before = dict[tuple[str, bool], list[str]]()
        for place, edge in enumerate(self.old.outgoing[each.node]):
            way = (self.names.today(edge.target), edge.on_expire)
            before.setdefault(way, []).append(each.edges[place : place + 1])
        ways = [(edge.target, edge.on_expire) for edge in self.new.outgoing[name]]
        # Several edges may lead from one node to another: where there are fewer now, one stands for all.
        known = {way: bits if len(bits) <= ways.count(way) else [max(bits)] for way, bits in before.items()}
        # Nobody answered a node that ended with its question: no new edge may count that as its word.
        led = "expired" in self.snapshot.entries[each.node, each.visit]
        return "".join(
            known[way].pop(0) if known.get(way) else "0" if led else self.decide(name, each.visit, place)
            for place, way in enumerate(ways)
        )

    def _check_reached(self, past: Mapping[At, Settled], played: replay.Replay) -> None:
        back = {self.names.today(node): node for node in self.names.used()}
        ahead = sorted({back.get(node, node) for node, visit in past if (node, visit) not in played.inputs})
        if ahead:
            raise ConflictError(
                f"run {self.snapshot.record.run_id} can't go on with today's graph {self.new.graph_id!r}: "
                f"{', '.join(ahead)} ran already, and other nodes come first now. Nothing was changed. With "
                f"--drop {ahead[0]} it counts as if it had not run, and runs again when its turn comes."
            )

    # -- records -----------------------------------------------------------------------------------

    def _records(self, played: Records) -> Records:
        back = {
            name: node
            for node in self.snapshot.nodes
            if not map_of(node) and (name := self.names.today(node))
        }
        nodes = {}
        asked = {map_of(each.node_id) or each.node_id for each in self.snapshot.interrupts}
        left = (self.snapshot.nodes.keys() | asked) & self.new.nodes.keys()
        for name in sorted({*played.nodes, *back, *left}):
            found = self._node(back.get(name, ""), name, played.nodes.get(name, NodeRecord()))
            if found.visit or found.fence or name in played.nodes:
                nodes[name] = found
        for node in self.names.used():
            if not self.names.today(node):
                self._close(node, "", DROPPED)
        maps = {
            name: replace(found, active=0, waiting=0)
            for node, found in self.snapshot.maps.items()
            if (name := self.names.today(node)) and (name in self.kept or nodes[name].status in FINAL)
        }
        return replace(played, nodes={**nodes, **dict(self._items(nodes))}, maps=maps)

    def _node(self, node: str, name: str, now: NodeRecord) -> NodeRecord:
        """Give a node of the new shape; `node` is its old name, "" where it had none or was dropped."""
        was = self.snapshot.nodes.get(node or name, NodeRecord())
        before = max(was.visit, used_up(self.snapshot, name))
        if node and was.status is Status.WAITING:
            reason = self._unfit(node, name) if now.status is Status.READY else "other nodes come first"
            if now.status is Status.READY and not reason:
                return self._keep(node, name, now)
            self._close(node, name, ANEW if now.status is Status.READY else LATER, reason)
        elif now.status is Status.READY:
            self.fates.append(Fate(self.new.graph_id, node, name, BEGINS))
        return _following(was, now, before)

    def _unfit(self, node: str, name: str) -> str:
        """Say why a node can't use what it has; "" where it can."""
        was, now = self.old.nodes[node], self.new.nodes[name]
        if was.kind and was.kind != now.kind:
            return f"it was a {was.kind} and is a {now.kind} now"
        if (was.map is None) != (now.map is None):
            return "it was a map, or is one now"
        ways = {edge.target for edge in self.new.outgoing[name] if edge.on_expire}
        routes = {expiry.route(each) for each in self.asked_by(node) if each.is_open} - {"", None, *ways}
        if routes:
            found = ", ".join(sorted(map(str, routes)))
            return f"its open question leads to {found} when it expires, and no edge does"
        if node in self.wish.goes or (was.kind and was.version == now.version):
            return ""
        if not was.kind:
            return "an older version of this library did not store its kind"
        return f'its version was "{was.version}" and is "{now.version}" now'

    def _keep(self, node: str, name: str, now: NodeRecord) -> NodeRecord:
        """Let a node go on with all that it has, in its visit."""
        was = self.snapshot.nodes[node]
        kept = replace(self.going(node, name, now.stamp), via=now.via, edges="")
        self.kept[name] = kept
        renews = any(each.is_open for each in self.asked_by(node)) and node != name
        word = GOES_ON if node in self.held else (RENEWED if renews else WAITS)
        self.fates.append(Fate(self.new.graph_id, node, name, word, was.child and "a graph inside"))
        return kept

    def going(self, node: str, name: str, stamp: int) -> NodeRecord:
        """Give a waiting node, or an item of a map, as it goes on: ready if it was held, else waiting."""
        was = self.snapshot.nodes[node]
        ids = {each.id: restated(each, name).id for each in self.asked_by(node)}
        kept = replace(was, stamp=stamp, questions=tuple(ids.get(each, each) for each in was.questions))
        return replace(kept, status=Status.READY, held=False) if node in self.held else kept

    def asked_by(self, node: str) -> list[Interrupt]:
        """List the questions of the visit in which a node is."""
        visit = self.snapshot.nodes[node].visit
        return [each for each in self.asked.get(node, ()) if each.visit == visit]

    def _items(self, nodes: Mapping[str, NodeRecord]) -> Iterator[tuple[str, NodeRecord]]:
        for node, was in self.snapshot.nodes.items():
            owner = self.names.today(map_of(node)) if map_of(node) else ""
            name, of = owner and self.names.today(node), nodes.get(owner, NodeRecord())
            if owner in self.kept and was.visit == of.visit:
                waits = was.status is Status.WAITING
                yield name, self.going(node, name, of.stamp) if waits else replace(was, stamp=of.stamp)
            elif name and of.status in FINAL:
                yield name, was
            elif map_of(node) and was.status is Status.WAITING:
                self._close(node, name, ANEW if name else DROPPED)

    def _close(self, node: str, name: str, word: str, reason: str = "") -> None:
        """Take back what a node waits for, and forget what it kept."""
        was, unused = self.snapshot.nodes.get(node, NodeRecord()), list[str]()
        if was.status is Status.WAITING:
            mine = self.asked_by(node)
            self.withdrawn += [(node, was.visit, each.id) for each in mine if each.is_open]
            unused = [each.id for each in mine if each.status is InterruptStatus.ANSWERED]
            self.stops += [(node, was.child)] if was.child else []
            self.closed.add((node, was.visit))
        self.forgets.append(node)
        if was.status is Status.WAITING or not node.startswith(HIDDEN):
            self.fates.append(Fate(self.new.graph_id, node, name, word, reason, tuple(unused)))

    def _told(self) -> JSON:
        told = {
            "from": self.old.fingerprint,
            "map": {node: name for node, name in self.wish.goes.items() if node != name},
            "drop": sorted(self.wish.drops),
            "unused": [each for fate in self.fates for each in fate.unused],
        }
        return {key: value for key, value in told.items() if value}


def _following(was: NodeRecord, now: NodeRecord, before: int) -> NodeRecord:
    """Record a node that does not go on with what it has; `before` is the last visit under its name."""
    if now.status is Status.READY:
        return replace(now, visit=max(now.visit, before + 1), attempt=1, fence=was.fence)
    stays = now.status in FINAL or before == was.visit
    if stays and (now.visit, now.status) == (was.visit, was.status):
        return replace(now, attempt=was.attempt, fence=was.fence, nonce=was.nonce, child=was.child)
    visit = now.visit if now.status in FINAL else max(now.visit, before)
    return replace(now, visit=visit, fence=max(was.fence, now.fence), nonce="")
