"""Plans the migration of one waiting run to another shape of its graph. Pure.

The history of the run is translated to the new shape's node ids and replayed through the run's
transitions (see `recovery.Replay`), so joins, loops and dead paths need no special rules here. A
node whose turn it is in both shapes continues with its data; the plan's outcomes list what happens
to any other node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from runner.definition.model import (
    BEFORE_GRAPH,
    BRACKETS,
    HIDDEN,
    UNDO,
    FailurePolicy,
    Topology,
    map_of,
)
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.immutable import immutable
from runner.operations import recovery
from runner.operations.recovery import SettledVisit
from runner.records import interrupts
from runner.records.checkpoints import NodeDocument, load_document
from runner.records.codec import JSON, JSONMapping, without_empty
from runner.records.interrupts import Address, Interrupt, InterruptStatus, as_asked, digest
from runner.records.listings import grouped
from runner.records.migration import Migration, Renamed
from runner.records.run import (
    FINAL,
    MapRecord,
    NodeRecord,
    Records,
    Status,
    VisitEntry,
    VisitKey,
)
from runner.store.interface import RunSnapshot

WAITS = "waits"
ASKED_AGAIN = "is asked under its new name"
CONTINUES = "continues"
STARTS = "starts"
STARTS_AGAIN = "starts again"
LATER = "comes later"
DROPPED = "dropped"


@immutable
class MigrationRequest:
    """A person's request: the new ids of nodes, and the nodes to remove.

    Nodes of nested graphs are written "outer/inner".
    """

    renames: Mapping[str, str] = field(default_factory=dict)
    drops: Collection[str] = ()

    def outermost(self) -> MigrationRequest:
        """Return the request without the nodes of nested graphs."""
        renames = {
            old_name: new_name
            for old_name, new_name in self.renames.items()
            if "/" not in old_name
        }
        return MigrationRequest(renames, [name for name in self.drops if "/" not in name])

    def check_nested(self, topology: Topology) -> None:
        """Check that each "outer/inner" has an outer node that the graph had.

        Raises:
            NotFoundError: the outer node didn't exist.
        """
        for name in [*self.renames, *self.drops]:
            outer, inner, _ = name.partition("/")
            if inner and outer not in topology.nodes:
                raise NotFoundError(
                    f"graph {topology.graph_id!r} had no node {outer!r}, so {name!r} did not "
                    "exist. Nothing was changed."
                )

    def nested_in(self, node: str, new_node: str) -> MigrationRequest:
        """Return the request for the graph nested in a node, which may have a new id itself.

        Raises:
            UsageError: one of its nodes would move to another graph.
        """
        prefix = f"{node}/"
        new_prefix = f"{new_node}/"
        renames = {
            old_name: new_name
            for old_name, new_name in self.renames.items()
            if old_name.startswith(prefix)
        }
        leaving = [
            f"{old_name}={new_name}"
            for old_name, new_name in renames.items()
            if not new_name.startswith(new_prefix)
        ]
        if leaving:
            raise UsageError(
                f"{', '.join(leaving)}: a node can't move to another graph; nothing was changed. Drop "
                "it, and it starts again there."
            )
        return MigrationRequest(
            {
                old_name.removeprefix(prefix): new_name.removeprefix(new_prefix)
                for old_name, new_name in renames.items()
            },
            [name.removeprefix(prefix) for name in self.drops if name.startswith(prefix)],
        )


@immutable
class NodeOutcome:
    """Plan for a node; `unused` are the ids of its answered questions whose answers don't apply."""

    graph_id: str
    node: str
    today: str
    becomes: str
    reason: str = ""
    unused: tuple[str, ...] = ()


class NodeNames:
    """The ids of a run's nodes in the shape that it began with, and in the new one."""

    def __init__(
        self, snapshot: RunSnapshot, old: Topology, new: Topology, request: MigrationRequest
    ) -> None:
        """Translate from the shape `old`, with which the run began."""
        self._snapshot, self._request = snapshot, request
        self._old, self._new = old, new

    def new_id(self, node: str) -> str:
        """Return a node's id in the new shape; "" if it is gone. Items follow their map."""
        owner = map_of(node)
        if owner:
            new_owner = self.new_id(owner)
            return new_owner and new_owner + node[len(owner) :]
        if node in self._request.drops:
            return ""
        return self._request.renames.get(node, node if node in self._new.nodes else "")

    def started(self) -> list[str]:
        """List the nodes that have had a visit, by their old ids, without the items of maps."""
        with_visit = [
            name for name, record in self._snapshot.nodes.items() if record.visit or record.last
        ]
        with_entry = [node for node, _ in self._snapshot.entries]
        return [name for name in dict.fromkeys([*with_visit, *with_entry]) if not map_of(name)]

    def check(self) -> None:
        """Check that the request names nodes that exist, gives no id twice, and forgets no node.

        Raises:
            NotFoundError: a named node does not exist. UsageError: two nodes would have the same id.
            ConflictError: a node that has run or waits is gone, and the request doesn't mention it.
        """
        self._check_named()
        self._check_unique()
        self._check_complete()

    def _check_named(self) -> None:
        run_id = self._snapshot.record.run_id
        graph = self._new.graph_id
        renames = self._request.renames
        contradictions = sorted(set(renames) & set(self._request.drops))
        if contradictions:
            raise UsageError(
                f"{', '.join(contradictions)} can't be both renamed and dropped; nothing was changed."
            )
        for node in [*renames, *self._request.drops]:
            if node not in self._old.nodes or node.endswith(BRACKETS):
                raise NotFoundError(
                    f"graph {graph!r} had no node {node!r} when run {run_id} began."
                )
        for new_name in renames.values():
            if new_name not in self._new.nodes or new_name.endswith(BRACKETS):
                raise NotFoundError(
                    f"graph {graph!r} has no node {new_name!r} now; nothing was changed."
                )

    def _check_unique(self) -> None:
        # A dropped node keeps its old id, under which its data is stored.
        name_counts = Counter(
            node if node in self._request.drops else self.new_id(node)
            for node in self.started()
        )
        twice = {
            new_name
            for old_name, new_name in self._request.renames.items()
            if old_name != new_name and name_counts[new_name] > 1
        }
        if twice:
            raise UsageError(
                f"{', '.join(sorted(twice))} has run already in run {self._snapshot.record.run_id}, or two "
                "nodes would have that name; nothing was changed."
            )

    def _check_complete(self) -> None:
        lost = []
        for node in self.started():
            if (
                not self.new_id(node)
                and node not in self._request.drops
                and not node.startswith(HIDDEN)
            ):
                status = self._snapshot.node(node).status
                verb = {Status.WAITING: "waits", Status.FAILED: "has failed"}.get(
                    status, "has run"
                )
                lost.append(f"{node} {verb}")
        if lost:
            raise ConflictError(
                f"run {self._snapshot.record.run_id} can't continue with the current graph "
                f"{self._new.graph_id!r}: {', '.join(lost)}, and there is no such node now. Nothing was "
                "changed. Say which node it is now with --map OLD=NEW, or remove it with --drop OLD."
            )


Decide = Callable[[str, int, int], str]
"""Returns whether a new edge would have been taken, "1" or "0", given node, visit and edge index."""


@dataclass
class MigrationPlanner:
    """Plans the migration of one run. `held` are the nodes held because they themselves have changed.

    `documents` are the nodes' stored documents, read only if a node gets a new id.
    """

    snapshot: RunSnapshot
    old: Topology
    new: Topology
    request: MigrationRequest
    held: Collection[str]
    decide: Decide
    documents: JSONMapping = field(default_factory=dict)
    outcomes: list[NodeOutcome] = field(default_factory=list)
    withdrawn: list[tuple[str, int, str]] = field(default_factory=list)
    closed: set[VisitKey] = field(default_factory=set)
    forgets: list[str] = field(default_factory=list)
    stops: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, NodeRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Group the questions by node, because there may be many items of maps."""
        self.names = NodeNames(self.snapshot, self.old, self.new, self.request)
        self.questions = grouped(self.snapshot.interrupts, attrgetter("node_id"))

    def migration(self, parent_node: str, path: str) -> Migration:
        """Plan everything; `parent_node` and `path` are where the run is nested in the new shape.

        Raises:
            NotFoundError: a named node does not exist. UsageError: two nodes would have the same id.
            ConflictError: something can't be migrated; the message says what to do.
        """
        self.names.check()
        past = dict(self._history())
        # Past failures have been handled already: the replay must not stop at them.
        replay = recovery.Replay(replace(self.new, policy=FailurePolicy.CONTINUE), past)
        self._check_reached(past, replay)
        records = self._records(replay.records())
        check_questions(self)
        new_questions, replacements = renamed_questions(self)
        record = self.snapshot.record
        ready = [name for name, node in records.nodes.items() if node.status is Status.READY]
        return Migration(
            run_id=record.run_id,
            events=self.snapshot.events,
            fingerprint=self.new.fingerprint,
            graph_id=self.new.graph_id,
            parent_node=parent_node,
            path=path,
            records=records,
            started=record.started + len([name for name in ready if name not in self.kept]),
            event_data=self._event(),
            undone=undone_entries(self),
            forgets=self.forgets,
            renamed=renamed_nodes(self, new_questions),
            visits=renamed_visits(self, past),
            moved=new_questions,
            withdrawn=self.withdrawn,
            replacements=replacements,
            stops=self.stops,
        )

    # -- the history, with the new shape's ids -------------------------------------------------------

    def _history(self) -> Iterator[tuple[VisitKey, SettledVisit]]:
        if BEFORE_GRAPH in self.new.nodes and BEFORE_GRAPH not in self.old.nodes:
            # The run has begun, so new hooks that come before a run count as called.
            edges = "1" * len(self.new.outgoing[BEFORE_GRAPH])
            yield (BEFORE_GRAPH, 1), SettledVisit(BEFORE_GRAPH, 1, Status.COMPLETED, edges)
        for (node, visit), settled_visit in recovery.history(self.snapshot).items():
            name = self.names.new_id(node)
            if name:
                edges = (
                    self._edges(settled_visit, name)
                    if settled_visit.status is Status.COMPLETED
                    else ""
                )
                reads = tuple(
                    (new_source, number)
                    for source, number in settled_visit.reads
                    if (new_source := self.names.new_id(source))
                )
                yield (name, visit), replace(settled_visit, node=name, edges=edges, reads=reads)

    def _edges(self, settled_visit: SettledVisit, name: str) -> str:
        """Return a bit for each of a completed visit's edges in the new shape: "1" for a taken edge."""
        old_bits: dict[tuple[str, bool], list[str]] = {}
        for position, edge in enumerate(self.old.outgoing[settled_visit.node]):
            target = (self.names.new_id(edge.target), edge.on_expire)
            old_bits.setdefault(target, []).append(settled_visit.edges[position : position + 1])
        targets = [(edge.target, edge.on_expire) for edge in self.new.outgoing[name]]
        for target, bits in old_bits.items():
            # Several edges may lead from one node to another; if fewer are left, the first counts
            # as taken if any was.
            if len(bits) > targets.count(target):
                old_bits[target] = [max(bits)]
        # A node that ended because its question expired was not answered: it takes no new edge.
        is_expired = "expired" in self.snapshot.entries[settled_visit.node, settled_visit.visit]
        edges = ""
        for position, target in enumerate(targets):
            if old_bits.get(target):
                edges += old_bits[target].pop(0)
            else:
                edges += "0" if is_expired else self.decide(name, settled_visit.visit, position)
        return edges

    def _check_reached(
        self, past: Mapping[VisitKey, SettledVisit], replay: recovery.Replay
    ) -> None:
        old_ids = {self.names.new_id(node): node for node in self.names.started()}
        early = sorted(
            {old_ids.get(key[0], key[0]) for key in past if key not in replay.inputs}
        )
        if early:
            raise ConflictError(
                f"run {self.snapshot.record.run_id} can't continue with the current graph "
                f"{self.new.graph_id!r}: {', '.join(early)} ran already, and other nodes come first now. "
                f"Nothing was changed. With --drop {early[0]} it counts as if it had not run, and runs again "
                "when its turn comes."
            )

    # -- records -----------------------------------------------------------------------------------

    def _records(self, replayed_run: Records) -> Records:
        # A node that never started has no data to move, and one that did may have its new id.
        old_ids = {
            name: node for node in self.names.started() if (name := self.names.new_id(node))
        }
        asking = {
            map_of(question.node_id) or question.node_id
            for question in self.snapshot.interrupts
        }
        reused_names = (self.snapshot.nodes.keys() | asking) & self.new.nodes.keys()
        nodes = {}
        for name in sorted({*replayed_run.nodes, *old_ids, *reused_names}):
            record = self._node(old_ids.get(name, ""), name, replayed_run.node(name))
            if record != NodeRecord() or name in replayed_run.nodes:
                nodes[name] = record
        for node in self.names.started():
            if not self.names.new_id(node):
                self._close(node, "", DROPPED)
        maps = {
            name: replace(record, active=0, waiting=0)
            for node, record in self.snapshot.maps.items()
            if (name := self.names.new_id(node))
            and (name in self.kept or _has_ended(nodes[name], record))
        }
        todo = self.snapshot.nodes.get(UNDO, NodeRecord()).via
        renamed_todo = ((self.names.new_id(node), visit) for node, visit in todo)
        via = tuple(key for key in renamed_todo if UNDO + key[0] in self.new.nodes)
        nodes |= {UNDO: NodeRecord(via=via)} if via else {}
        return replace(replayed_run, nodes={**nodes, **dict(self._items(nodes))}, maps=maps)

    def _node(self, node: str, name: str, replayed_node: NodeRecord) -> NodeRecord:
        """Build the record of a node; `node` is its old id, "" if it is new or was dropped."""
        old_record = self.snapshot.node(node or name)
        ready = replayed_node.status is Status.READY
        if node and old_record.status is Status.WAITING:
            reason = self._misfit(node, name) if ready else "other nodes come first"
            if ready and not reason:
                return self._keep(node, name, replayed_node)
            self._close(node, name, STARTS_AGAIN if ready else LATER, reason)
        elif ready:
            self.outcomes.append(NodeOutcome(self.new.graph_id, node, name, STARTS))
        return recovery.following(
            replayed_node, old_record, max(old_record.visit, last_visit(self.snapshot, name))
        )

    def _misfit(self, node: str, name: str) -> str:
        """Return why a waiting node can't use its data; "" if it can."""
        old_node = self.old.nodes[node]
        new_node = self.new.nodes[name]
        if old_node.kind != new_node.kind:
            return f"it was a {old_node.kind} and is a {new_node.kind} now"
        if (old_node.map is None) != (new_node.map is None):
            return "it was a map, or is one now"
        routes = {
            interrupts.route(question)
            for question in self.visit_questions(node)
            if question.is_open
        }
        routes -= {
            "",
            None,
            *(edge.target for edge in self.new.outgoing[name] if edge.on_expire),
        }
        if routes:
            targets = ", ".join(sorted(map(str, routes)))
            return (
                f"its open question leads to {targets} when it expires, and no edge leads there"
            )
        if node in self.request.renames or old_node.version == new_node.version:
            return ""
        return f'its version was "{old_node.version}" and is "{new_node.version}" now'

    def _keep(self, node: str, name: str, replayed_node: NodeRecord) -> NodeRecord:
        """Have a waiting node continue in its visit, with all its data."""
        record = replace(
            self.continued(node, name, replayed_node.stamp), via=replayed_node.via, edges=""
        )
        self.kept[name] = record
        asks_anew = node != name and any(
            question.is_open for question in self.visit_questions(node)
        )
        void = node != name and any(map(_is_void, self.visit_questions(node)))
        outcome = (
            CONTINUES
            if node in self.held and not void
            else (ASKED_AGAIN if asks_anew or void else WAITS)
        )
        reason = "a graph inside" if record.child else ""
        self.outcomes.append(NodeOutcome(self.new.graph_id, node, name, outcome, reason))
        return record

    def continued(self, node: str, name: str, stamp: int) -> NodeRecord:
        """Return the record of a waiting node or item that continues: ready if it was held, else waiting."""
        old_record = self.snapshot.nodes[node]
        ids = {
            question.id: renamed(question, name).id for question in self.visit_questions(node)
        }
        record = replace(
            old_record,
            stamp=stamp,
            questions=tuple(ids.get(key, key) for key in old_record.questions),
        )
        return replace(record, status=Status.READY, held=False) if node in self.held else record

    def visit_questions(self, node: str) -> list[Interrupt]:
        """List the questions of a node's present visit."""
        visit = self.snapshot.nodes[node].visit
        return [
            question for question in self.questions.get(node, ()) if question.visit == visit
        ]

    def _items(self, nodes: Mapping[str, NodeRecord]) -> Iterator[tuple[str, NodeRecord]]:
        """Build the records of items whose map continues or has ended; close other items that wait."""
        for node, item in self.snapshot.nodes.items():
            if not map_of(node):
                continue
            owner = self.names.new_id(map_of(node))
            name = self.names.new_id(node)
            map_record = nodes.get(owner, NodeRecord())
            waits = item.status is Status.WAITING
            if owner in self.kept and item.visit == map_record.visit:
                stamp = map_record.stamp
                yield (
                    name,
                    self.continued(node, name, stamp) if waits else replace(item, stamp=stamp),
                )
            elif name and _has_ended(map_record, item):
                yield name, item
            elif waits:
                self._close(node, name, STARTS_AGAIN if name else DROPPED)

    def _close(self, node: str, name: str, outcome: str, reason: str = "") -> None:
        """Withdraw a node's questions and stop its child run, and delete its data."""
        old_record = self.snapshot.node(node)
        unused_ids = list[str]()
        if old_record.status is Status.WAITING:
            questions = self.visit_questions(node)
            self.withdrawn += [
                (node, old_record.visit, question.id)
                for question in questions
                if question.is_open
            ]
            unused_ids = [
                question.id
                for question in questions
                if question.status is InterruptStatus.ANSWERED
            ]
            self.stops += [(node, old_record.child)] if old_record.child else []
            self.closed.add((node, old_record.visit))
        self.forgets.append(node)
        if old_record.status is Status.WAITING or not node.startswith(HIDDEN):
            self.outcomes.append(
                NodeOutcome(self.new.graph_id, node, name, outcome, reason, tuple(unused_ids))
            )

    def _event(self) -> JSON:
        """Build the data of the event `run.migrated`, without empty fields."""
        data = {
            "from": self.old.fingerprint,
            "map": {node: name for node, name in self.request.renames.items() if node != name},
            "drop": sorted(self.request.drops),
            "unused": [question for outcome in self.outcomes for question in outcome.unused],
        }
        return without_empty(data)


def _has_ended(owner: NodeRecord, item_or_count: NodeRecord | MapRecord) -> bool:
    """Return whether a map has ended, and an item or count isn't of a later round, which is closed."""
    return owner.status in FINAL and item_or_count.visit <= owner.visit


# Questions, documents and entries under the new ids of their nodes.


def renamed(question: Interrupt, name: str) -> Interrupt:
    """Return a question as its node asks it under another id: question id and digest change, too."""
    new_id = Address(question.run_id, name, question.visit).interrupt_id(
        question.scope, question.name, question.number, question.reasked
    )
    new_question = replace(question, id=new_id, node_id=name, replaces=question.id)
    return replace(new_question, digest=digest(new_question))


def _is_void(question: Interrupt) -> bool:
    """Return whether a rule decided a question, so that the decision holds only for the node's old name."""
    return question.rule is not None and question.status in {
        InterruptStatus.ANSWERED,
        InterruptStatus.EXPIRED,
    }


def last_visit(snapshot: RunSnapshot, name: str) -> int:
    """Return the last visit with data stored under an id; a node that starts needs a later visit."""
    visits = [question.visit for question in _asked_under(snapshot, name)]
    return max([0, *visits, *(visit for node, visit in snapshot.entries if node == name)])


def _asked_under(snapshot: RunSnapshot, name: str) -> list[Interrupt]:
    """List the questions that a node with that id, or its items, asked in any shape of the graph."""
    return [
        question
        for question in snapshot.interrupts
        if (map_of(question.node_id) or question.node_id) == name
    ]


def check_questions(planner: MigrationPlanner) -> None:
    """Check that no renamed node takes over the questions of another node.

    A question's id names its node and visit: under the same id an answer would reach another
    question. A node that gets an earlier id back may find its own older questions there.

    Raises:
        ConflictError: a node would.
    """
    for node in sorted(planner.names.started()):
        name = planner.names.new_id(node)
        if name in {"", node}:
            continue
        last_visit_number = planner.snapshot.node(node).visit
        first_visit = last_visit_number if name in planner.kept else last_visit_number + 1
        earlier_ids = set(_earlier_ids(planner.snapshot, node))
        foreign = [
            question.id
            for question in _asked_under(planner.snapshot, name)
            if question.visit >= first_visit
            and question.id not in earlier_ids
            and _may_ask(planner, node + question.node_id[len(name) :])
        ]
        if foreign:
            raise ConflictError(
                f"node {node!r} can't be {name!r} in run {planner.snapshot.record.run_id}: another node of "
                f"that name has asked {foreign[0]}, and answers to it would reach the wrong question. "
                f"Nothing was changed. Give the node another name, or use --drop {node} to start it again."
            )


def _may_ask(planner: MigrationPlanner, node: str) -> bool:
    """Return whether a node may still ask in its present visit: a completed item of a map can't."""
    return not map_of(node) or planner.snapshot.node(node).status is not Status.COMPLETED


def _earlier_ids(snapshot: RunSnapshot, node: str) -> Iterator[str]:
    """Yield the ids that a node's questions had before the node was renamed, once or more often."""
    by_id = {question.id: question for question in snapshot.interrupts}
    ids = set[str]()
    pending = [question.replaces for question in _asked_under(snapshot, node)]
    while pending:
        earlier = pending.pop()
        if earlier in by_id and earlier not in ids:
            ids.add(earlier)
            yield earlier
            pending.append(by_id[earlier].replaces)


def renamed_questions(
    planner: MigrationPlanner,
) -> tuple[list[tuple[str, Interrupt]], list[Interrupt]]:
    """List the closed questions of renamed nodes that continue, and replacements for open ones.

    An open question is withdrawn under its old id: people who know that id must learn the new one.
    Withdrawn questions are moved, too, so that the node's next question gets an id that has never
    been used. Questions decided by a rule are moved as withdrawn and asked again, since their votes
    are for the node's old name. A node that gets its old name back has its questions under their
    old ids, with their content.
    """
    new_questions, replacements = [], []
    for node, record in planner.snapshot.nodes.items():
        name = planner.names.new_id(node)
        if (
            name in {"", node}
            or record.status is not Status.WAITING
            or (node, record.visit) in planner.closed
        ):
            continue
        for question in planner.visit_questions(node):
            new_question = renamed(question, name)
            if question.is_open:
                planner.withdrawn.append((node, question.visit, question.id))
                replacements.append(as_asked(new_question))
            else:
                if _is_void(question):
                    new_question = replace(
                        new_question,
                        status=InterruptStatus.WITHDRAWN,
                        response=None,
                        responder=None,
                        idempotency_key=None,
                        decision="",
                        effect="",
                        used=None,
                    )
                new_questions.append((question.id, new_question))
    return new_questions, replacements


def renamed_nodes(
    planner: MigrationPlanner, new_questions: Sequence[tuple[str, Interrupt]]
) -> list[Renamed]:
    """List the nodes that have a new id, with their documents under that id."""
    rows = []
    items = [node for node in planner.snapshot.nodes if map_of(node)]
    items += [node for node, _ in planner.snapshot.entries if map_of(node)]
    for node in dict.fromkeys([*planner.names.started(), *items]):
        name = planner.names.new_id(node)
        if name in {"", node}:
            continue
        record = planner.snapshot.node(node)
        document = None
        if node not in planner.forgets:
            document = _with_first_name(node, record, planner.documents.get(node))
        questions = [
            new_question.id for _, new_question in new_questions if new_question.node_id == name
        ]
        document = _with_new_ids(planner, node, name, document)
        rows.append(Renamed(node, name, record.visit, document, questions))
    return rows


def _with_first_name(node: str, record: NodeRecord, document: JSON) -> JSON:
    """Note the id under which an unfinished visit began: its idempotency key must not change."""
    if record.status not in {Status.WAITING, Status.FAILED}:
        return document
    node_document = load_document(document) or NodeDocument(record.visit, None, None)
    first_name = node_document.first_name(record.visit) or f"{node}.{record.visit}"
    return replace(node_document, named=first_name).dump()


def _with_new_ids(planner: MigrationPlanner, node: str, name: str, document: JSON) -> JSON:
    """Replace the ids and digests of a node's questions, and its id in stored ones, in its document.

    Only the executor knows the form of its document, so every text that equals one of them is
    replaced. No other text equals one by chance: an id names run, node, visit and question, a
    digest is a hash of them.
    """
    new_texts = {}
    for question in planner.questions.get(node, ()):
        new_question = renamed(question, name)
        new_texts[question.id] = new_question.id
        if question.digest:
            new_texts[question.digest] = new_question.digest

    def rewrite(value: JSON) -> JSON:
        if isinstance(value, str):
            return new_texts.get(value, value)
        if isinstance(value, list):
            return [rewrite(item) for item in value]
        if not isinstance(value, dict):
            return value
        fields = {new_texts.get(key, key): rewrite(item) for key, item in value.items()}
        if "node_id" in value and value.get("id") in new_texts:  # a stored question
            fields["node_id"] = name
        return fields

    return rewrite(document) if new_texts else document


def renamed_visits(
    planner: MigrationPlanner, past: Mapping[VisitKey, SettledVisit]
) -> list[tuple[VisitKey, VisitKey, VisitEntry | None]]:
    """List the visits whose node has a new id, or whose edges or reads differ in the new shape."""
    rows: list[tuple[VisitKey, VisitKey, VisitEntry | None]] = []
    for (node, visit), entry in planner.snapshot.entries.items():
        name = planner.names.new_id(node)
        if not name:
            continue
        new_entry = _entry(planner, name, entry, past.get((name, visit)))
        if name != node or new_entry != entry:
            rows.append(
                ((node, visit), (name, visit), new_entry if new_entry != entry else None)
            )
    return rows


def _entry(
    planner: MigrationPlanner, name: str, entry: VisitEntry, settled_visit: SettledVisit | None
) -> VisitEntry:
    if settled_visit is None or settled_visit.status is not Status.COMPLETED:
        return entry
    new_entry = entry.copy()
    new_entry.pop("edges", None)
    new_entry.pop("reads", None)
    if planner.new.nodes[name].loops:
        new_entry["edges"] = settled_visit.edges
    if settled_visit.reads:
        new_entry["reads"] = [list(read) for read in settled_visit.reads]
    return new_entry


def undone_entries(planner: MigrationPlanner) -> dict[VisitKey, VisitEntry]:
    """List the visits that no longer count, each with its entry marked as undone."""
    return {
        key: {**entry, "undone": True}
        for key, entry in planner.snapshot.entries.items()
        if (key in planner.closed or not planner.names.new_id(key[0]))
        and not entry.get("undone")
    }
