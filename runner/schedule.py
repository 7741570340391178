"""Every transition of a run.

Two rules hold this file together. Everything that changes a node's, a loop's or a run's status is
written here and, in the same words, in `store/lua`; a property test holds the two equal. And a
transition looks only at the node, its direct neighbours and the run's counters: its cost does not
grow with the graph.

The life of a node:

    pending -> ready -> running -> completed | failed
                 ^         |-> waiting   (it asked, or a child run or another system works for it)
                 |         |-> retrying  (its policy says again, later)
                 +---------+             (answered, due, child ended, reported, lease lost, its worker left)
    ready -> retrying       a rate gives it a time (see `limits.py`)
    pending -> skipped      every way to it is dead
    ready, waiting, retrying -> cancelled   its run stops
                             -> failed | completed   a question's time is over that says so (see `expiry.py`)

A node that settles sends an arrival, live or dead, along each of its edges. Join `all` is ready
when every edge has arrived and one is live; `any` at the first live one; a node all of whose
edges are dead is skipped, and its own edges die.

Loops. A live back edge only notes that another round is asked. When every node of a loop has
settled, the loop either starts its next round (asked, and no loop around it is asked as well) or
ends. A round begins by growing the loop's number: what carries an older number is forgotten, at
no cost. An edge out of a loop arrives once per run of that loop: live when first taken, dead when
the loop ends without it.

Batches. A graph that runs as Strands runs it (`topology.batches`) knows neither arrivals nor loops.
No node starts before all of its batch have settled; then BATCH becomes ready, its worker asks the
conditions, and `advance` opens the next batch. The run's own counters are those of the batch.

Maps. A map that has its list waits while its items, nodes `M[0]`, `M[1]` …, do its work. As one ends
or waits for a person the next begins; when all have ended the map is ready again, for its worker to
collect what they gave. Items have no edges and count in no loop, and one that fails stops at most its
map.

Counters decide the run's status: `active` above 0 is executing; see `run.status_of`. A run that
stops (a failure under fail_fast, a limit, a cancel) makes nothing ready any more; what waits is
cancelled at once, what runs is recorded, and the last one ends the run. A run with `on_end` rings at
its end for a worker that tells so, and again until that is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runner import expiry, fences, limits, reminders
from runner.actions import (
    END,
    Action,
    Announce,
    Bury,
    Close,
    Conclude,
    Dispatch,
    DropTimer,
    SetTimer,
    StopChild,
    TimerKind,
)
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.graph import AFTER_GRAPH, BATCH, ROOT, EdgeKind, FailurePolicy, InEdge, Join
from runner.interrupts import Interrupt, address_of
from runner.maps import item_id, map_of, shape_name
from runner.migrating import Migration
from runner.outcomes import NextBatch
from runner.run import FINAL, Arrivals, LoopRecord, MapRecord, NodeRecord, Records, Status, status_of

CRASH_BUDGET = 5
"""Leases lost in a row before a node fails into the dead letters."""

DRAIN_LIMIT = 500
"""Nodes cancelled in one step; the rest follow by a timer, so that no step blocks the store."""

MAP_LIMIT = 500
"""Items of a map begun or cancelled in one step; the rest follow by a timer."""

IDLE = frozenset({Status.READY, Status.RETRYING, Status.WAITING})
"""Nodes that are cancelled at once when their run or map stops."""

MAX_RING_MS = 300_000

LOCK_MS = 1_000
"""How long a node whose conditions were refused too often may keep the others from settling."""

LIVE = frozenset({Status.READY, Status.RUNNING, Status.WAITING, Status.RETRYING})
"""Nodes that are neither pending nor settled."""


# -- a run begins ------------------------------------------------------------------------------------


def start(draft: Draft) -> Step:
    """Begin a run: one live arrival at each entry point."""
    draft.add(Announce(EventKind.RUN_STARTED, detail=draft.run.graph_id))
    _set_deadline(draft)
    if draft.topology.batches:
        _open_batch(draft, [(node, ()) for node in draft.topology.entries])
        return _close(draft, "started")
    settled: list[str] = []
    for node in draft.topology.entries:
        _arrive(draft, node, ROOT, live=True, settled=settled)
    return _close(draft, "started")


def _set_deadline(draft: Draft) -> None:
    if draft.topology.timeout_ms:
        draft.add(SetTimer(TimerKind.DEADLINE, "", draft.now + draft.topology.timeout_ms))


def reopen(draft: Draft, records: Records) -> Step:
    """Let an ended run go on with other records, from an empty page: "reopened", or "moved"."""
    if not draft.run.is_final:
        return draft.refuse("moved")
    counted = replace(draft.run, failed=records.failed, started=records.started)
    draft.run = replace(counted, stopping="", reason="", lock="", untold=0)
    draft.add(DropTimer(TimerKind.CALLBACK, ""), Announce(EventKind.RUN_RETRIED))
    _set_deadline(draft)
    _fill(draft, records)
    return _close(draft, "reopened")


def migrate(draft: Draft, move: Migration) -> Step:
    """Let a waiting run go on in another shape, from an empty page: "migrated", or "moved".

    What is decided already was put under its new names before; what was open there is asked anew. The
    time that the run may take is that of the other shape, from now on.
    """
    if draft.before not in {Status.INTERRUPTED, Status.NEEDS_MIGRATION}:
        return draft.refuse("moved")
    counted = replace(draft.run, active=0, waiting=0, held=0, lock="")
    draft.run = replace(counted, failed=move.records.failed, started=move.started)
    draft.add(Announce(EventKind.RUN_MIGRATED, detail=move.fingerprint))
    for _, new in move.moved:
        draft.add(Announce(EventKind.INTERRUPT_MOVED, new.node_id, new.visit, new.id))
    for node, visit, interrupt in move.withdrawn:
        draft.add(*_withdraw(node, visit, [interrupt]))
    for asked in move.asked:
        draft.add(Announce(EventKind.INTERRUPT_ASKED, asked.node_id, asked.visit, asked.id))
    draft.add(*(StopChild(child, node) for node, child in move.stops))
    draft.add(DropTimer(TimerKind.DEADLINE, ""))
    _set_deadline(draft)
    _fill(draft, move.records)
    return _close(draft, "migrated")


def fork(draft: Draft, records: Records, source: str) -> Step:
    """Begin a run from what another has done."""
    draft.run = replace(draft.run, failed=records.failed, started=records.started)
    draft.add(Announce(EventKind.RUN_STARTED, detail=draft.topology.graph_id))
    draft.add(Announce(EventKind.RUN_FORKED, detail=source))
    _set_deadline(draft)
    _fill(draft, records)
    return _close(draft, "forked")


def _fill(draft: Draft, records: Records) -> None:
    """Write all records of a run that has none, and ring for the nodes that are ready."""
    draft.loops, draft.arrived, draft.maps = dict(records.loops), dict(records.arrivals), dict(records.maps)
    for node, record in records.nodes.items():
        if record.status is Status.READY:
            _ring(draft, node, record)
        else:
            draft.put(node, record)


# -- arrivals, loops, readiness ------------------------------------------------------------------------


def _spread(draft: Draft, first: str) -> None:
    """Carry a settled node's arrivals as far as they settle other nodes."""
    todo = [first]
    while todo:
        node = todo.pop(0)
        record = draft.node(node)
        for position, edge in enumerate(draft.topology.outgoing[node]):
            live = record.edges[position : position + 1] == "1"
            if edge.kind is EdgeKind.FORWARD:
                _arrive(draft, edge.target, edge.scope, live=live, settled=todo)
            elif live and edge.kind is EdgeKind.BACK:
                loop = draft.loop(edge.loop)
                draft.loops[edge.loop] = replace(loop, asked=(*loop.asked, (node, record.visit)))
            elif live and edge.kind is EdgeKind.EXIT:
                _leave(draft, node, position, todo)
        for loop_id in draft.topology.nodes[node].loops:
            loop = draft.loop(loop_id)
            draft.loops[loop_id] = replace(loop, settled=loop.settled + 1)
            if loop.settled + 1 == draft.topology.loops[loop_id].size:
                _turn(draft, loop_id, todo)


def _arrive(draft: Draft, node: str, scope: int, *, live: bool, settled: list[str]) -> None:
    """Count one arrival; it may make the node ready, or skip it and so settle it."""
    stamp = draft.round(scope)
    old = draft.arrived.get((scope, node)) or draft.view.arrivals(scope, node)
    if old.stamp != stamp:
        old = Arrivals(stamp)
    draft.arrived[scope, node] = Arrivals(stamp, old.arrived + 1, old.live + live)
    record = draft.node(node)
    if record.status is not Status.PENDING:
        return
    shape = draft.topology.nodes[node]
    arrived, alive = _total(draft, node)
    if arrived >= shape.needs and not alive:
        draft.put(node, replace(record, status=Status.SKIPPED))
        draft.add(Announce(EventKind.NODE_SKIPPED, node, record.visit))
        settled.append(node)
    elif (live and shape.join is Join.ANY) or (arrived >= shape.needs and alive):
        _ready(draft, node, visit=record.visit + 1, attempt=1)


def _total(draft: Draft, node: str) -> tuple[int, int]:
    """Sum a node's arrivals over its scopes, leaving out what belongs to an older round."""
    arrived = alive = 0
    for scope in (*draft.topology.nodes[node].loops, ROOT):
        found = draft.arrived.get((scope, node)) or draft.view.arrivals(scope, node)
        if found.stamp == draft.round(scope):
            arrived, alive = arrived + found.arrived, alive + found.live
    return arrived, alive


def _leave(draft: Draft, node: str, position: int, settled: list[str]) -> None:
    """Take an edge out of a loop: it arrives the first time only."""
    edge = draft.topology.outgoing[node][position]
    loop = draft.loop(edge.loop)
    if any((source, place) == (node, position) for source, place, _ in loop.taken):
        return
    taken = (*loop.taken, (node, position, draft.node(node).visit))
    draft.loops[edge.loop] = replace(loop, taken=taken)
    _arrive(draft, edge.target, edge.scope, live=True, settled=settled)


def _turn(draft: Draft, loop_id: int, settled: list[str]) -> None:
    """Every node of a loop has settled: begin its next round, or end it."""
    shape, loop = draft.topology.loops[loop_id], draft.loop(loop_id)
    if loop.asked and not any(draft.loop(outer).asked for outer in shape.outer):
        _again(draft, loop_id)
        return
    draft.loops[loop_id] = replace(loop, asked=())
    taken = {(source, position) for source, position, _ in loop.taken}
    for source, position in shape.exits:
        if (source, position) not in taken:
            edge = draft.topology.outgoing[source][position]
            _arrive(draft, edge.target, edge.scope, live=False, settled=settled)


def _again(draft: Draft, loop_id: int) -> None:
    """Begin a loop's next round; the loops inside it begin anew, those around it wait for it."""
    shape, loop = draft.topology.loops[loop_id], draft.loop(loop_id)
    draft.loops[loop_id] = LoopRecord(loop.round + 1, taken=loop.taken)
    for inner in shape.inner:
        draft.loops[inner] = LoopRecord(draft.loop(inner).round + 1)
    for outer in shape.outer:
        around = draft.loop(outer)
        draft.loops[outer] = replace(around, settled=around.settled - shape.size)
    record = draft.node(shape.header)
    _ready(draft, shape.header, visit=record.visit + 1, attempt=1, via=loop.asked)


def _ready(
    draft: Draft, node: str, *, visit: int, attempt: int, via: tuple[tuple[str, int], ...] = ()
) -> None:
    """Make a node ready for a new visit, unless the run stops or has used up its executions."""
    if draft.run.stopping:
        return
    limit = draft.topology.limit
    if limit and draft.run.started >= limit:
        _stop(draft, Status.FAILED, f'max_node_executions ({limit}) reached before "{node}"')
        return
    draft.run = replace(draft.run, started=draft.run.started + 1)
    record = draft.node(node)
    _ring(draft, node, replace(record, status=Status.READY, visit=visit, attempt=attempt, via=via, edges=""))


def _ring(draft: Draft, node: str, record: NodeRecord) -> None:
    """Write a ready node and ring its doorbell; the timer rings again should it be lost."""
    shape = draft.shape(node)
    uncounted = record.uncounted if record.attempt > 1 else 0
    ready = replace(record, status=Status.READY, rings=0, busy=False, held=False, items=False)
    draft.put(node, replace(ready, uncounted=uncounted))
    draft.add(
        Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority),
        SetTimer(TimerKind.NODE, node, draft.now + draft.lease_ms),
    )


# -- one execution of a node ---------------------------------------------------------------------------


def claim(draft: Draft, node: str, visit: int, attempt: int, nonce: str) -> Step:
    """Give a ready node to one worker: "claimed", or "stale", or "cancelled" when the run stops.

    "limited" means that it waits for a place, "limited <ms>" that it begins so much later. "revoked
    <reference>" says that its run stopped while another system was at work: that may stop, too.
    """
    record = draft.node(node)
    if (
        record.status is Status.CANCELLED
        and record.handed
        and (record.visit, record.attempt) == (visit, attempt)
    ):
        return draft.refuse(f"revoked {record.handed}")
    if record.status is Status.RUNNING and record.nonce == nonce:
        return draft.refuse("claimed")
    if record.status is Status.RETRYING and record.granted and record.nonce == nonce:
        return draft.refuse("limited")
    if (record.status, record.visit, record.attempt) != (Status.READY, visit, attempt):
        return draft.refuse("stale")
    if _stops(draft, node) and node != AFTER_GRAPH:
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    refused = _limited(draft, node, record, nonce) if draft.shape(node).limits else ""
    if refused:
        return _close(draft, refused)
    claimed = replace(
        draft.node(node),
        status=Status.RUNNING,
        fence=fences.next_fence(record.fence, nonce),
        nonce=nonce,
        unseen=0,
        rings=0,
        granted=False,
    )
    draft.put(node, claimed)
    draft.add(
        SetTimer(TimerKind.NODE, node, draft.now + draft.lease_ms),
        Announce(EventKind.NODE_STARTED, node, visit, str(attempt)),
    )
    return _close(draft, "claimed")


def _limited(draft: Draft, node: str, record: NodeRecord, nonce: str) -> str:
    """Judge a claim by the node's limits: "" lets it begin, else the word of the refusal."""
    shape, said = draft.shape(node).limits, Announce(EventKind.NODE_LIMITED, node, record.visit)
    wait, times = (0, []) if record.granted else limits.reserve(shape, draft.view, draft.now)
    draft.add(*times)
    if wait:
        draft.put(node, replace(record, status=Status.RETRYING, granted=True, nonce=nonce, rings=0))
        draft.add(SetTimer(TimerKind.NODE, node, draft.now + wait), replace(said, detail=str(wait)))
        return f"limited {wait}"
    since = record.since or max(1, draft.now)
    kept_until = draft.now + MAX_RING_MS + draft.lease_ms
    free, places = limits.take(shape, draft.view, node, since, (draft.now, kept_until))
    draft.add(*places)
    if not free and not record.since:
        draft.add(said)
    draft.put(node, replace(record, since=since if places else 0, granted=True))
    return "" if free else "limited"


def pass_on(draft: Draft, node: str) -> Step:
    """Ring a node that waits for a place of a limit: one is kept for it."""
    record = draft.node(node)
    if record.status is not Status.READY:
        return draft.refuse("stale")
    _ring(draft, node, record)
    return _close(draft, "ready")


def holds(record: NodeRecord, visit: int, fence: int) -> bool:
    """Tell whether a worker that claimed with this fence still owns the node."""
    return (record.status, record.visit, record.fence) == (Status.RUNNING, visit, fence)


def _stops(draft: Draft, node: str) -> bool:
    """Tell whether a node must not go on: its run stops, or its map does."""
    owner = map_of(node)
    return bool(draft.run.stopping) or (bool(owner) and draft.map(owner).stopped)


def refusal(record: NodeRecord, visit: int, fence: int, words: Mapping[Status, str]) -> str:
    """Find the word for a worker that doesn't hold the node: "stale", or what a repeat was told first.

    No other worker has claimed since when the fence is still this one, and a lost lease grows it: so
    the status says what the same request did the first time.
    """
    return words.get(record.status, "stale") if (record.visit, record.fence) == (visit, fence) else "stale"


PARKED = {Status.WAITING: "waiting", Status.READY: "ready", Status.CANCELLED: "cancelled"}
PUT_BACK = {Status.RETRYING: "retrying", Status.CANCELLED: "cancelled"}
LEFT = {Status.READY: "left", Status.CANCELLED: "cancelled"}


def ask(draft: Draft, node: str, visit: int, fence: int, interrupts: Sequence[str]) -> Step:
    """Publish questions of a running node, each once; "stopping" withdraws them in the same step."""
    if not holds(draft.node(node), visit, fence):
        return draft.refuse("stale")
    if _publish(draft, node, interrupts):
        return _close(draft, "asked")
    return _close(draft, "stopping")


def _publish(draft: Draft, node: str, interrupts: Sequence[str]) -> bool:
    """Open the questions that are new; one that was withdrawn may be asked again."""
    record = draft.node(node)
    new = [interrupt for interrupt in interrupts if draft.view.standing(interrupt) in {"", "withdrawn"}]
    for interrupt in new:
        draft.add(Announce(EventKind.INTERRUPT_ASKED, node, record.visit, interrupt))
    if _stops(draft, node):
        draft.add(*_withdraw(node, record.visit, new))
        return False
    draft.put(node, replace(record, questions=(*record.questions, *new)))
    return True


def _withdraw(node: str, visit: int, interrupts: Sequence[str]) -> list[Action]:
    actions: list[Action] = []
    for interrupt in interrupts:
        actions.append(Close(interrupt, "withdrawn"))
        actions.append(Announce(EventKind.INTERRUPT_WITHDRAWN, node, visit, interrupt))
    return actions + _quiet(interrupts)


def _quiet(interrupts: Iterable[str]) -> list[Action]:
    """Nothing will happen to these questions by time."""
    kinds = (TimerKind.EXPIRE, TimerKind.REMIND)
    return [DropTimer(kind, interrupt) for interrupt in interrupts for kind in kinds]


def park(draft: Draft, node: str, visit: int, fence: int, interrupts: Sequence[str]) -> Step:
    """Let a running node wait for people: "waiting", or "ready" when an unseen answer suffices.

    `interrupts` are all that the node has open: new ones are asked with this step, others of this
    visit are withdrawn. A node that would wait for nothing is refused: "nothing_open".
    """
    if not holds(draft.node(node), visit, fence):
        return draft.refuse(refusal(draft.node(node), visit, fence, PARKED))
    draft.add(DropTimer(TimerKind.NODE, node))
    if not _publish(draft, node, interrupts):
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    record = draft.node(node)
    draft.add(*_withdraw(node, visit, [each for each in record.questions if each not in interrupts]))
    kept = tuple(each for each in record.questions if each in interrupts)
    if not kept and not record.unseen:
        return draft.refuse("nothing_open")
    parked = replace(record, status=Status.WAITING, questions=kept, crashes=0)
    if _satisfied(draft, node, parked):
        _ring(draft, node, parked)
        return _close(draft, "ready")
    draft.put(node, parked)
    draft.add(Announce(EventKind.NODE_WAITING, node, visit))
    return _close(draft, "waiting")


def _satisfied(draft: Draft, node: str, record: NodeRecord) -> bool:
    return record.unseen > 0 and (draft.shape(node).each or not record.questions)


def answer(draft: Draft, node: str, visit: int, interrupts: Sequence[str]) -> Step:
    """Take the answers to open questions of one node; the caller has checked that each is open."""
    for interrupt in interrupts:
        draft.add(Announce(EventKind.INTERRUPT_ANSWERED, node, visit, interrupt))
    return _resolve(draft, node, visit, interrupts)


def _due_question(draft: Draft, kind: TimerKind, interrupt: str) -> Step:
    asked = draft.view.asked(interrupt)
    if asked is None or draft.view.standing(interrupt) != "open":
        return draft.refuse("stale")
    return _expire(draft, asked) if kind is TimerKind.EXPIRE else _remind(draft, asked)


def _expire(draft: Draft, asked: Interrupt) -> Step:
    """Nobody answered in time: the node goes on and learns so from its own question, or ends with it."""
    interrupt = asked.id
    node, visit, record = asked.node_id, asked.visit, draft.node(asked.node_id)
    ends = expiry.ends_node(asked)
    if ends and _at_work(record):
        # It is let finish what it does. No answer is taken meanwhile; when it waits, it ends.
        draft.add(SetTimer(TimerKind.EXPIRE, interrupt, draft.now + draft.lease_ms))
        return draft.step("later")
    draft.add(Close(interrupt, "expired"), Announce(EventKind.INTERRUPT_EXPIRED, node, visit, interrupt))
    if ends and record.visit == visit and record.status in IDLE:
        return _conclude(draft, asked)
    return _resolve(draft, node, visit, [interrupt])


def _at_work(record: NodeRecord) -> bool:
    """Tell whether somebody works for a node just now: a worker, a child run, its items, another system."""
    return record.status is Status.RUNNING or record.items or record.busy


def _conclude(draft: Draft, asked: Interrupt) -> Step:
    """End the node that asked: it fails, or takes the edges for this case and no other."""
    node, interrupt, record = asked.node_id, asked.id, draft.node(asked.node_id)
    others = [each for each in record.questions if each != interrupt]
    draft.add(*_withdraw(node, record.visit, others), *_quiet([interrupt]), DropTimer(TimerKind.NODE, node))
    ended = replace(record, questions=(), unseen=0)
    if _stops(draft, node):
        draft.put(node, ended)
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    target, leaving = expiry.route(asked), draft.topology.outgoing.get(node, ())
    edges = "".join("01"[edge.on_expire and edge.target == target] for edge in leaving)
    draft.add(Conclude(node, record.visit, interrupt, edges))
    _settle(draft, node, ended, Status.COMPLETED if target else Status.FAILED, edges)
    return _close(draft, "expired")


def _remind(draft: Draft, asked: Interrupt) -> Step:
    """A question waits for long: those who watch are told again, until somebody answers."""
    if asked.is_over(draft.now):
        return draft.refuse("stale")
    draft.add(Announce(EventKind.INTERRUPT_REMINDED, asked.node_id, asked.visit, asked.id))
    again = reminders.following(asked, draft.now)
    if again:
        draft.add(SetTimer(TimerKind.REMIND, asked.id, again))
    return draft.step("reminded")


def withdraw(draft: Draft, interrupt: str, *, reask: bool) -> Step:
    """Take an open question back: its node learns so from it. With `reask` that goes on at once."""
    address = address_of(interrupt)
    if address is None or draft.view.standing(interrupt) != "open":
        return draft.refuse("closed")
    node, visit = address.node_id, address.visit
    draft.add(Close(interrupt, "withdrawn"), Announce(EventKind.INTERRUPT_WITHDRAWN, node, visit, interrupt))
    return _resolve(draft, node, visit, [interrupt], wakes=reask)


def _resolve(draft: Draft, node: str, visit: int, interrupts: Sequence[str], *, wakes: bool = False) -> Step:
    record = draft.node(node)
    left = tuple(interrupt for interrupt in record.questions if interrupt not in interrupts)
    unseen = record.unseen + len(record.questions) - len(left)
    resolved = replace(record, questions=left, unseen=unseen)
    draft.add(*_quiet(interrupts))
    waits = record.status is Status.WAITING and not record.held and not record.items
    if waits and (wakes or _satisfied(draft, node, resolved)):
        draft.add(Announce(EventKind.NODE_RESUMED, node, visit))
        _ring(draft, node, resolved)
    else:
        draft.put(node, resolved)
    return _close(draft, "accepted")


def settle(
    draft: Draft,
    node: str,
    visit: int,
    fence: int,
    *,
    nonce: str,
    status: Status,
    edges: str,
    reads: Sequence[tuple[str, int, str]] = (),
    insist: bool = False,
    alone: bool = False,
) -> Step:
    """End a visit: record the status, spread the arrivals. "settled", "stale", "changed" or "locked".

    `edges` has a bit per outgoing edge. `reads` are the (node, visit, status) of the results that the
    conditions looked at, (node, 0, "") where there was none. "changed" means that one is different now
    and the conditions must be asked again; with `insist` the others wait ("locked") meanwhile. A failure
    that is `alone` ends its branch only.
    """
    record = draft.node(node)
    if record.nonce == nonce and record.status is not Status.RUNNING:
        return draft.refuse("settled")
    if not holds(record, visit, fence):
        return draft.refuse("stale")
    until, _, owner = draft.run.lock.partition(" ")
    own = f"{node}.{visit}.{fence}"
    if owner not in ("", own) and draft.now < int(until):
        return draft.refuse("locked")
    if any(draft.node(read).ended != (seen, word) for read, seen, word in reads):
        if not insist:
            return draft.refuse("changed")
        draft.run = replace(draft.run, lock=f"{draft.now + LOCK_MS} {own}")
        return _close(draft, "changed")
    draft.run = replace(draft.run, lock="")
    draft.add(DropTimer(TimerKind.NODE, node), *_withdraw(node, visit, record.questions))
    _settle(draft, node, replace(record, nonce=nonce, questions=(), unseen=0), status, edges, alone=alone)
    return _close(draft, "settled")


def _settle(
    draft: Draft, node: str, record: NodeRecord, status: Status, edges: str, *, alone: bool = False
) -> None:
    taken = edges if status is Status.COMPLETED else ""
    draft.put(node, replace(record, status=status, edges=taken, crashes=0, busy=False, held=False))
    kind = EventKind.NODE_COMPLETED if status is Status.COMPLETED else EventKind.NODE_FAILED
    draft.add(Announce(kind, node, record.visit))
    owner = map_of(node)
    if owner:
        _count_failure(draft, owner, status)
        return
    if status is Status.FAILED:
        _rewind(draft, node)
        draft.run = replace(draft.run, failed=draft.run.failed + 1)
        if draft.topology.policy is FailurePolicy.FAIL_FAST and not alone:
            _stop(draft, Status.FAILED, f'node "{node}" failed')
    if not draft.run.stopping:
        _spread(draft, node)


def retry(draft: Draft, node: str, visit: int, fence: int, delay_ms: int, *, counts: bool) -> Step:
    """Put a running node back to run again after a delay; `counts` makes it a new attempt."""
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, PUT_BACK))
    draft.add(DropTimer(TimerKind.NODE, node))
    if _stops(draft, node):
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    if counts:
        _rewind(draft, node)
    again = replace(_fresh(record), attempt=record.attempt + 1) if counts else record
    draft.put(node, replace(again, status=Status.RETRYING))
    draft.add(
        SetTimer(TimerKind.NODE, node, draft.now + delay_ms),
        Announce(EventKind.NODE_RETRYING, node, visit, str(delay_ms)),
    )
    return _close(draft, "retrying")


def leave(draft: Draft, node: str, visit: int, fence: int) -> Step:
    """Ring for a running node anew, whose worker leaves: "left", or "cancelled" when its run stops."""
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, LEFT))
    draft.add(Announce(EventKind.NODE_LEFT, node, visit, str(record.attempt)))
    if _stops(draft, node):
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    _ring(draft, node, record)
    return _close(draft, "left")


def hold(draft: Draft, node: str, visit: int, fence: int) -> Step:
    """Set a node aside whose graph has changed under it: the run needs migration."""
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, {Status.WAITING: "held"} if record.held else {}))
    draft.put(node, replace(record, status=Status.WAITING, held=True))
    draft.add(DropTimer(TimerKind.NODE, node), Announce(EventKind.NODE_HELD, node, visit))
    return _close(draft, "held")


def release(draft: Draft, nodes: Sequence[str]) -> Step:
    """Let nodes go on that were set aside: "released", or "stale" when none of them is."""
    held = [node for node in nodes if draft.node(node).held]
    for node in held:
        record = draft.node(node)
        draft.add(Announce(EventKind.NODE_RELEASED, node, record.visit))
        _ring(draft, node, record)
    return _close(draft, "released") if held else draft.refuse("stale")


# -- batches --------------------------------------------------------------------------------------------


def _open_batch(draft: Draft, following: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> None:
    """Make the nodes of a batch ready, each with its inputs; BATCH remembers them until all have settled."""
    begun = []
    for node, inputs in following:
        record = draft.node(node)
        again = replace(_fresh(record), visit=record.visit + 1, attempt=1, via=tuple(inputs), edges="")
        _ring(draft, node, again)
        begun.append((node, again.visit))
    draft.run = replace(draft.run, started=draft.run.started + len(begun))
    draft.put(BATCH, replace(draft.node(BATCH), via=tuple(begun)))


def _end_batch(draft: Draft) -> bool:
    """When every node of a batch has settled, wake the one that opens the next; False at the run's end."""
    if not draft.topology.batches or draft.run.stopping:
        return False
    record = draft.node(BATCH)
    ended = bool(record.via) and record.status in {Status.PENDING, Status.COMPLETED}
    if ended:
        _ring(draft, BATCH, replace(record, visit=record.visit + 1, attempt=1))
    return ended


def advance(draft: Draft, visit: int, fence: int, *, nonce: str, batch: NextBatch) -> Step:
    """Open the batch that follows, or none, and so end the run: "advanced" or "stale"."""
    record = draft.node(BATCH)
    if record.nonce == nonce and record.status is not Status.RUNNING:
        return draft.refuse("advanced")
    if not holds(record, visit, fence):
        return draft.refuse("stale")
    draft.add(DropTimer(TimerKind.NODE, BATCH), Announce(EventKind.NODE_COMPLETED, BATCH, visit))
    draft.put(BATCH, replace(record, status=Status.COMPLETED, nonce=nonce, via=(), crashes=0))
    for node, edges in batch.taken:
        draft.put(node, replace(draft.node(node), edges=edges))
    limit = draft.topology.limit
    if batch.following and batch.reason:
        _stop(draft, Status.FAILED, batch.reason)
    elif batch.following and limit and draft.run.started >= limit:
        _stop(draft, Status.FAILED, f'max_node_executions ({limit}) reached before "{batch.following[0][0]}"')
    elif batch.following and not draft.run.stopping:
        _open_batch(draft, batch.following)
    return _close(draft, "advanced")


# -- child runs ------------------------------------------------------------------------------------------


def delegate(draft: Draft, node: str, visit: int, fence: int, child: str) -> Step:
    """Let a running node wait for the child run that does its work, and for nothing else.

    A question that it left open is withdrawn: an answer would wake the node beside its child.
    """
    record = draft.node(node)
    if record.status is Status.WAITING and record.child == child:
        return draft.refuse("delegated")
    if not holds(record, visit, fence):
        return draft.refuse("stale")
    draft.add(DropTimer(TimerKind.NODE, node))
    if _stops(draft, node):
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    draft.add(*_withdraw(node, visit, record.questions))
    waiting = replace(record, status=Status.WAITING, questions=())
    draft.put(node, replace(waiting, child=child, busy=True, crashes=0))
    return _close(draft, "delegated")


def child_moved(draft: Draft, node: str, child: str, status: Status) -> Step:
    """Follow a child run: its pause is the node's pause, its end makes the node ready."""
    record = draft.node(node)
    if record.child != child or record.status is not Status.WAITING:
        return draft.refuse("stale")
    if status not in FINAL:
        held = status is Status.NEEDS_MIGRATION
        draft.put(node, replace(record, busy=status is Status.EXECUTING, held=held))
    elif _stops(draft, node):
        _cancel_node(draft, node)
    else:
        _ring(draft, node, record)
    return _close(draft, "moved")


# -- work of another system ------------------------------------------------------------------------------


HANDED = {Status.WAITING: "handed", Status.READY: "ready", Status.CANCELLED: "cancelled"}


def hand(draft: Draft, node: str, visit: int, fence: int, reference: str) -> Step:
    """Let a running node wait for another system, which is told next: "handed", or "ready" if it reported.

    Until `sent` says that the system has it, the node is rung after a lease to tell it again.
    """
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, HANDED if record.handed == reference else {}))
    draft.add(DropTimer(TimerKind.NODE, node))
    if _stops(draft, node):
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    handed = replace(_fresh(record), status=Status.WAITING, handed=reference, busy=True, crashes=0)
    if draft.view.reported(reference):
        _ring(draft, node, handed)
        return _close(draft, "ready")
    draft.put(node, handed)
    draft.add(SetTimer(TimerKind.NODE, node, draft.now + draft.lease_ms))
    return _close(draft, "handed")


def sent(draft: Draft, node: str, visit: int, fence: int, reference: str, *, timeout_ms: int) -> Step:
    """Note that another system has the work: with a `timeout_ms` above 0 it must report within that."""
    record = draft.node(node)
    if not record.is_out or (record.visit, record.fence, record.handed) != (visit, fence, reference):
        return draft.refuse("stale")
    draft.put(node, replace(record, sent=True))
    if timeout_ms:
        draft.add(SetTimer(TimerKind.NODE, node, draft.now + timeout_ms))
    else:
        draft.add(DropTimer(TimerKind.NODE, node))
    return _close(draft, "sent")


def report(draft: Draft, node: str, visit: int, reference: str) -> Step:
    """Take what another system says of a node's work: "reported" (a repeat too), or "stale" and not kept."""
    if shape_name(node) not in draft.topology.nodes:
        return draft.refuse("stale")
    record = draft.node(node)
    if (record.visit, record.handed) != (visit, reference):
        return draft.refuse("stale")
    if draft.view.reported(reference):
        return draft.refuse("reported")
    if record.status not in LIVE:
        return draft.refuse("stale")
    if record.is_out:
        _ring(draft, node, record)
    return _close(draft, "reported")


def _fresh(record: NodeRecord) -> NodeRecord:
    """Forget who works for a node: its next execution begins anew."""
    return replace(record, child="", handed="", sent=False, late=False)


# -- maps ------------------------------------------------------------------------------------------------


EXPANDED = {Status.WAITING: "expanded", Status.READY: "expanded", Status.CANCELLED: "cancelled"}


def expand(draft: Draft, node: str, visit: int, fence: int, total: int | None) -> Step:
    """Let a running map wait for its items: "expanded", "cancelled", "no_items" or "stale".

    `total` says how many items there are; without it, or when this visit has items already, the map
    goes on with those.
    """
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, EXPANDED))
    found = draft.map(node)
    if found.visit != visit and total is None:
        return draft.refuse("no_items")
    draft.add(DropTimer(TimerKind.NODE, node))
    if draft.run.stopping:
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    if found.visit != visit:
        draft.add(Announce(EventKind.NODE_EXPANDED, node, visit, str(total)))
    draft.maps[node] = found if found.visit == visit else MapRecord(visit, total or 0)
    draft.put(node, replace(record, status=Status.WAITING, items=True, busy=True, crashes=0))
    return _close(draft, "expanded")


def _move_map(draft: Draft, name: str) -> None:
    """Begin the items of a map that have room, or cancel those of a stopped one; ring it at the end."""
    record = draft.node(name)
    if draft.run.stopping or not record.items:
        return
    more = _drop_items(draft, name) if draft.map(name).stopped else _begin_items(draft, name)
    found = draft.map(name)
    if found.has_ended:
        _ring(draft, name, record)
        return
    if more:
        draft.add(SetTimer(TimerKind.MAP, name, draft.now))
    # Between two steps, no item may be at work although the map is not done: so it counts itself.
    draft.put(name, replace(record, busy=found.stopped or found.next < found.total))


def _begin_items(draft: Draft, name: str) -> bool:
    """Make items ready while there is room; True when one step is too short for all."""
    window = draft.shape(name).map
    for _ in range(MAP_LIMIT):
        found = draft.map(name)
        if found.next >= found.total or (window and 0 < window.window <= found.active):
            return False
        draft.maps[name] = replace(found, next=found.next + 1)
        _begin_item(draft, item_id(name, found.next), found.visit)
    return True


def _begin_item(draft: Draft, item: str, visit: int) -> None:
    """Make an item ready, unless it has completed in this visit: then its map runs again without it."""
    record = draft.node(item)
    if record.visit != visit:
        _ring(draft, item, replace(_fresh(record), visit=visit, attempt=1, crashes=0))
    elif record.status in {Status.FAILED, Status.CANCELLED}:
        again = replace(_fresh(record), attempt=record.attempt + 1, crashes=0, uncounted=record.attempt)
        _ring(draft, item, again)


def _drop_items(draft: Draft, name: str) -> bool:
    """Cancel the idle items of a stopped map; True when one step is too short for all."""
    for _ in range(MAP_LIMIT):
        found = draft.map(name)
        if found.swept >= found.next:
            return False
        draft.maps[name] = replace(found, swept=found.swept + 1)
        item = item_id(name, found.swept)
        if draft.node(item).visit == found.visit and draft.node(item).status in IDLE:
            _drop(draft, item)
    return True


def _count_failure(draft: Draft, owner: str, status: Status) -> None:
    """Count a failed item; it stops its map unless that goes on without it."""
    found, shape = draft.map(owner), draft.shape(owner).map
    if status is Status.FAILED and shape is not None:
        stopped = found.stopped or shape.stops
        draft.maps[owner] = replace(found, failed=found.failed + 1, stopped=stopped)


def _rewind(draft: Draft, node: str) -> None:
    """A map that failed of an item and is tried again begins what has not completed anew."""
    found = draft.map(node)
    if found.stopped:
        draft.maps[node] = MapRecord(found.visit, found.total)


# -- stopping ----------------------------------------------------------------------------------------------


def _close(draft: Draft, reply: str) -> Step:
    """End a transition: maps go on first, a run that would end opens its next batch or fires its event."""
    for name in sorted(draft.maps):
        _move_map(draft, name)
    ends = status_of(draft.run) in FINAL and not _end_batch(draft)
    if ends and AFTER_GRAPH in draft.topology.nodes:
        record = draft.node(AFTER_GRAPH)
        if record.status is Status.PENDING:
            _ring(draft, AFTER_GRAPH, replace(record, visit=record.visit + 1, attempt=1))
    status = status_of(draft.run)
    if draft.run.on_end and status is not draft.before and status in FINAL:
        draft.run = replace(draft.run, ends=draft.run.ends + 1, untold=0)
        _ring_end(draft)
    return draft.step(reply)


def _ring_end(draft: Draft) -> None:
    """Ring for somebody who tells that the run has ended, where its first nodes ring; again if need be."""
    run, shape = draft.run, draft.shape(draft.topology.entries[0])
    wait = min(MAX_RING_MS, draft.lease_ms * 2 ** min(run.untold, 16))
    draft.run = replace(run, untold=run.untold + 1)
    draft.add(
        Dispatch(END, run.ends, 1, shape.queue, shape.priority),
        SetTimer(TimerKind.CALLBACK, "", draft.now + wait),
    )


def told(draft: Draft, end: int) -> Step:
    """Note that a run's end was told: "told", or "stale" when it was another end."""
    if not end or draft.run.ends != end:
        return draft.refuse("stale")
    draft.run = replace(draft.run, untold=0)
    draft.add(DropTimer(TimerKind.CALLBACK, ""))
    return draft.step("told")


def cancel(draft: Draft, reason: str) -> Step:
    """Stop a run because somebody asked for it."""
    if draft.run.is_final or draft.run.stopping:
        return draft.refuse("already")
    _stop(draft, Status.CANCELLED, reason)
    return _close(draft, "cancelled")


def _stop(draft: Draft, status: Status, reason: str) -> None:
    if draft.run.stopping:
        return
    draft.run = replace(draft.run, stopping=status, reason=reason)
    draft.add(Announce(EventKind.RUN_STOPPING, detail=reason))
    _drain(draft)


def drain(draft: Draft) -> Step:
    """Go on with cancelling what a stopping run still has waiting."""
    if draft.run.stopping and not draft.run.is_final:
        _drain(draft)
    return _close(draft, "drained")


def _drain(draft: Draft) -> None:
    names = sorted({*draft.view.live(), *draft.nodes})
    idle = [name for name in names if draft.node(name).status in IDLE]
    for name in idle[:DRAIN_LIMIT]:
        _drop(draft, name)
    if len(idle) > DRAIN_LIMIT:
        draft.add(SetTimer(TimerKind.DRAIN, "", draft.now))


def _drop(draft: Draft, node: str) -> None:
    """Cancel an idle node; one whose child run is at work is cancelled when that has ended."""
    record = draft.node(node)
    if record.child:
        draft.add(StopChild(record.child, node))
    if record.is_out:
        # Whoever hears it tells the other system, if it can: see `claim`.
        shape = draft.shape(node)
        draft.add(Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority))
    if record.items or record.is_out or not record.busy:
        _cancel_node(draft, node)


def _cancel_node(draft: Draft, node: str) -> None:
    record = draft.node(node)
    draft.add(*_withdraw(node, record.visit, record.questions))
    draft.add(DropTimer(TimerKind.NODE, node))
    ended = replace(record, status=Status.CANCELLED, questions=(), unseen=0)
    draft.put(node, replace(ended, busy=False, held=False, items=False))
    draft.add(Announce(EventKind.NODE_CANCELLED, node, record.visit))


# -- what time does --------------------------------------------------------------------------------------


def due(draft: Draft, kind: TimerKind, key: str) -> Step:
    """Do what a timer was set for; one that no longer applies changes nothing."""
    if kind is TimerKind.CALLBACK and draft.run.untold:
        _ring_end(draft)
        return draft.step("rung")
    if draft.run.is_final:
        return draft.refuse("stale")
    match kind:
        case TimerKind.DRAIN:
            return drain(draft)
        case TimerKind.DEADLINE:
            _stop(
                draft, Status.FAILED, f"execution timeout of {draft.topology.timeout_ms / 1000:g} s reached"
            )
            return _close(draft, "stopped")
        case TimerKind.NODE:
            return _due_node(draft, key)
        case TimerKind.EXPIRE | TimerKind.REMIND:
            return _due_question(draft, kind, key)
        case TimerKind.MAP:
            draft.maps[key] = draft.map(key)
            return _close(draft, "advanced")
    return draft.refuse("stale")


def _due_node(draft: Draft, node: str) -> Step:
    """A node's timer: ring again, try again, or its worker is gone."""
    record = draft.node(node)
    match record.status:
        case Status.READY:
            return _ring_again(draft, node, record)
        case Status.RETRYING:
            _ring(draft, node, record)
            return _close(draft, "ready")
        case Status.RUNNING:
            return _lost(draft, node, record)
        case Status.WAITING if record.is_out:
            _ring(draft, node, replace(record, late=record.sent))
            return _close(draft, "ready")
    return draft.refuse("stale")


def _ring_again(draft: Draft, node: str, record: NodeRecord) -> Step:
    shape, rings = draft.shape(node), record.rings + 1
    wait = min(MAX_RING_MS, draft.lease_ms * 2 ** min(rings, 16))
    draft.put(node, replace(record, rings=rings))
    draft.add(
        Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority),
        SetTimer(TimerKind.NODE, node, draft.now + wait),
    )
    return _close(draft, "rung")


def _lost(draft: Draft, node: str, record: NodeRecord) -> Step:
    """A lease ran out: another worker goes on, until the node has used up its crash budget."""
    draft.add(Announce(EventKind.NODE_LOST, node, record.visit, str(record.attempt)))
    lost = replace(
        record,
        attempt=record.attempt + 1,
        fence=record.fence + 1,
        crashes=record.crashes + 1,
        uncounted=record.uncounted + 1,
    )
    if _stops(draft, node):
        _cancel_node(draft, node)
        return _close(draft, "cancelled")
    if lost.crashes >= CRASH_BUDGET:
        draft.add(Bury(node, record.visit), *_withdraw(node, record.visit, record.questions))
        _settle(draft, node, replace(record, questions=(), unseen=0), Status.FAILED, "")
        return _close(draft, "dead")
    _ring(draft, node, lost)
    return _close(draft, "ready")


# -- what a claimed node is told -------------------------------------------------------------------------


def live_inputs(draft: Draft, node: str) -> list[tuple[str, int]]:
    """List the (node, visit) whose outputs reach this visit, in edge order, each once."""
    record = draft.node(node)
    found: dict[tuple[str, int], None] = {}
    for edge in draft.topology.incoming.get(node, ()):
        for arrival in _source(draft, record, edge):
            found[arrival] = None
    return list(found)


def _source(draft: Draft, record: NodeRecord, edge: InEdge) -> list[tuple[str, int]]:
    if edge.kind in {EdgeKind.BACK, EdgeKind.BATCH}:
        return [pair for pair in record.via if pair[0] == edge.source]
    if edge.kind is EdgeKind.EXIT:
        taken = draft.loop(edge.loop).taken
        return [
            (name, visit) for name, place, visit in taken if (name, place) == (edge.source, edge.position)
        ]
    source = draft.node(edge.source)
    live = source.edges[edge.position : edge.position + 1] == "1"
    return [(edge.source, source.visit)] if live else []
