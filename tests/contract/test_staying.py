"""A settle that claims the next node for its worker: which one, and what is left if the worker is gone."""

from __future__ import annotations

import json
import sys
from collections import deque
from dataclasses import replace
from types import FrameType

import pytest
import redis

from runner.definition.model import MapSpec, Topology, shape_name
from runner.limits.limit import Limit
from runner.operations.recovery import write_retry
from runner.records.run import Status
from runner.store.interface import Claim, Settlement
from runner.store.redis.doorbell_template import DoorbellTemplate
from runner.store.redis.fast.plan_arguments import CHANGED_BY, KnownGraph
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.requests import CancelRun, ClaimVisit, SettleVisit
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, rung, shape
from tests.contract.store.stories import Story, stories, tell

COMPLETED = Settlement(Status.COMPLETED, "1", "out", {"v": 1}, may_continue=True)


@pytest.fixture
def client(redis_url):
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def worker(in_redis):
    """A worker by hand."""
    clock = ManualClock()
    return ManualWorker(in_redis(clock, lease=30), clock)


def settle(worker, token, nonce="", **changes):
    return worker.store.do(
        SettleVisit(token, replace(COMPLETED, **changes), nonce or worker.nonce())
    )


def other(graph: Topology, node: str, **changes) -> Topology:
    """The same graph with one node changed."""
    nodes = {**graph.nodes, node: replace(graph.nodes[node], **changes)}
    return replace(graph, nodes=nodes, fingerprint=f"{graph.fingerprint}{node}")


class Staying(Story):
    """A run whose workers go on with the next node."""

    def stay(self, claimed: str) -> str:
        """Complete a visit with all its edges; name the visit that is claimed with that."""
        word = self.worker.settle(self.claims[claimed].token, may_continue=True)
        claim = self.worker.reply.claim
        if claim:
            self.claims[claim.token.node] = claim
        return claim.token.node if claim else "nothing" if word == "settled" else word


STORIES = {
    "the last arrival claims a join, and gets the outputs of all, in the order of the edges": (
        "a>c b>c",
        """
        claim b
        claim a
        stay b = nothing
        stay a = c
        inputs c = a.1 b.1
        stands = executing: a completed, b completed, c running
        """,
    ),
    "two nodes are rung, since nobody knows which of them should stay": (
        "a>b a>c",
        """
        claim a
        stay a = nothing
        rings = b.1.1 c.1.1
        claim b
        stay b = nothing
        """,
    ),
    "of two the one that is ready is claimed; the other one waits for another arrival": (
        "a>b a>d c>d",
        """
        claim a
        stay a = b
        stands = executing: a completed, b running, c ready
        """,
    ),
    "a node of another queue is rung: that may have other workers": (
        other(shape("a>b", name="queue"), "b", queue="gpu"),
        """
        claim a
        stay a = nothing
        rings = b.1.1
        """,
    ),
    "a node of another priority is rung: that has other neighbours": (
        other(shape("a>b", name="priority"), "b", priority=0),
        """
        claim a
        stay a = nothing
        rings = b.1.1
        """,
    ),
    "a node under a limit is rung: that is others', too": (
        shape("a>b", name="limits", limits={"b": [Limit("few", concurrency=1)]}),
        """
        claim a
        stay a = nothing
        rings = b.1.1
        """,
    ),
    "a worker that stops, or whose row is long, has the node rung": (
        "a>b",
        """
        claim a
        settle a
        rings = b.1.1
        """,
    ),
    "a worker that has lost its lease gets no other node either": (
        "a>b",
        """
        claim a
        sweep 31 = a.1.2
        claim a.1.2
        stay a = stale
        stands = executing: a running
        """,
    ),
    "a settle in a cancelled run makes no node ready": (
        "a>b",
        """
        claim a
        cancel
        stay a = nothing
        stands = cancelled: a completed
        """,
    ),
    "a claim that is lost with its worker is rung again, as the next attempt": (
        "a>b",
        """
        claim a
        stay a = b
        sweep 31 = b.1.2
        claim b.1.2
        inputs b.1.2 = a.1
        stay b = stale
        """,
    ),
    "a claim that its worker can't start any more is left, and rung at once": (
        "a>b",
        """
        claim a
        stay a = b
        leave b
        rings = b.1.1
        claim b
        """,
    ),
}


@stories(STORIES)
def test_a_worker_goes_on_as_its_story_says(worker, graph, story):
    """Which node a settle claims, and which are rung."""
    tell(Staying(worker, graph), story)


def test_a_settle_claims_the_node_that_it_makes_ready(worker):
    """The claim is what a claim of its own returns; nothing is rung."""
    run_id, token = worker.begin("a>b")
    reply = settle(worker, token, "n")

    assert (reply.word, rung(reply)) == ("settled", [])
    assert reply.claim == worker.store.do(ClaimVisit(run_id, "b", 1, 1, "n"))
    assert list(reply.claim.inputs) == [("a", 1, "out")]
    assert worker.statuses(run_id) == "executing: a completed, b running"
    kinds = [(event.kind, event.node) for event in worker.store.events(run_id)]
    assert kinds[-2:] == [("node.completed", "a"), ("node.started", "b")]
    assert settle(worker, reply.claim.token, edges="").word == "settled"
    assert worker.statuses(run_id) == "completed: a completed, b completed"


def test_a_repeat_gets_the_same_claim(worker):
    """A settle whose reply was lost is repeated with its nonce, as long as the node runs."""
    run_id, token = worker.begin("a>b")
    first, before = settle(worker, token, "n"), worker.read(run_id)

    assert settle(worker, token, "n") == first
    assert worker.read(run_id) == before
    settle(worker, first.claim.token, edges="")
    assert settle(worker, token, "n").claim is None


@pytest.mark.full
@pytest.mark.parametrize("is_noted", [True, False])
def test_a_join_after_a_retry_gets_no_undone_output(redis_url, client, is_noted):
    """What a process remembers of a source holds until a retry; control: the run does not say so."""
    graph = shape("f>j a>j j>k m>k", policy="continue")
    one, two = (ManualWorker(RedisStore(redis_url, push=False)) for _ in range(2))
    run_id = one.start(graph)
    one.fail(one.token(run_id, "f"))
    one.run(run_id, "a")
    one.settle(one.token(run_id, "j"), "old")
    one.park(run_id, "m")
    one.store.do(CancelRun(run_id, "enough", one.nonce()))
    write_retry(one.store, run_id)
    two.know(run_id, graph)
    two.settle(two.token(run_id, "f", attempt=2))
    two.settle(two.token(run_id, "j", 2), "new")
    if not is_noted:
        client.hdel(Keys().run(run_id), CHANGED_BY)

    claim = settle(one, one.token(run_id, "m", attempt=2), edges="1", output="m").claim

    inputs = [("j", 2, "new")] if is_noted else [("j", 1, "old")]
    assert list(claim.inputs) == [*inputs, ("m", 1, "m")]
    for worker in (one, two):
        worker.store.close()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_join_reads_its_sources_again_after_a_failover(redis_url, client, is_new):
    """A server that may have lost an output is asked for it; control: the connection is the same."""
    worker = ManualWorker(RedisStore(redis_url, push=False))
    run_id = worker.start("a>c b>c")
    worker.settle(worker.token(run_id, "a"), "lost")
    client.hset(Keys().run(run_id), "o:a.1", '"repeated"')
    if is_new:
        client.client_kill_filter(_type="normal", skipme=True)

    claim = settle(worker, worker.token(run_id, "b")).claim

    assert next(iter(claim.inputs)) == ("a", 1, "repeated" if is_new else "lost")
    worker.store.close()


def test_a_loop_goes_on_in_its_later_rounds(worker):
    """Inside a loop each visit claims the next one with what reaches it in this round."""
    run_id, token = worker.begin("a>b b>a b>c")
    for round_ in (1, 2):
        claim = settle(worker, token, output=f"a{round_}").claim
        assert claim == worker.store.do(ClaimVisit(run_id, "b", round_, 1, claim.record.nonce))
        assert list(claim.inputs) == [("a", round_, f"a{round_}")]
        reply = settle(worker, claim.token, edges="10", output=f"b{round_}")
        token = reply.claim.token if reply.claim else worker.token(run_id, "a", round_ + 1)
    assert worker.read(run_id).nodes["a"].visit == 3


# The next doorbell of the queue, where no node follows: only a store that rings itself can take it.

QUEUE = "runner/g\x06\x163"

BELL = DoorbellTemplate(
    ['{"task":"runner.node","id":"', "id", '","parent_id":', "parent_id", ',"tag":"', "delivery_tag",
     '","q":"', "queue", '","p":', "priority", ',"s":"', "shadow", '","a":"', "argsrepr", '"}'],
    {5: "\x06\x163"},
    "runner/",
)  # fmt: skip


@pytest.fixture
def ringing(redis_url):
    """A worker by hand on a store whose scripts ring."""
    clock = ManualClock()
    store = RedisStore(redis_url, clock=clock, lease=30)
    store.install_doorbell(BELL)
    yield ManualWorker(store, clock)
    store.close()


def rings(client):
    """Name the nodes whose doorbells are in the queue, the oldest first."""
    bells = [json.loads(bell) for bell in reversed(client.lrange(QUEUE, 0, -1))]
    return [".".join(bell["id"].split(".")[1:]) for bell in bells]


def fanned(worker, client, graph="a>b a>c a>d", **options):
    """Begin a run whose first node has made the others ready, and take the doorbell of the next one."""
    run_id, token = worker.begin(graph, **options)
    client.delete(QUEUE)
    settle(worker, token, edges="111", may_continue=False)
    client.rpop(QUEUE)
    return run_id, worker.token(run_id, "b")


def test_a_settle_takes_the_next_doorbell_of_its_queue(ringing, client):
    """The claim is what a claim of its own returns, and the doorbell is gone."""
    run_id, token = fanned(ringing, client)
    reply = settle(ringing, token, "n", edges="")

    assert reply.word == "settled"
    assert replace(reply.claim, rung_by="") == ringing.store.do(
        ClaimVisit(run_id, "c", 1, 1, "n")
    )
    assert reply.claim.rung_by == f"{run_id}.a.1.1"
    assert list(reply.claim.inputs) == [("a", 1, "out")]
    assert rings(client) == ["d.1.1"]
    assert ringing.statuses(run_id) == "executing: a completed, b completed, c running, d ready"
    kinds = [(event.kind, event.node) for event in ringing.store.events(run_id)]
    assert kinds[-2:] == [("node.completed", "b"), ("node.started", "c")]
    last = settle(ringing, reply.claim.token, edges="").claim
    assert settle(ringing, last.token, edges="").claim is None
    assert ringing.read(run_id).record.status is Status.COMPLETED


def test_a_doorbell_that_was_taken_is_lost_with_its_worker(ringing, client):
    """The lease of the claim ends, and the node comes as its next attempt."""
    run_id, token = fanned(ringing, client)
    lost = settle(ringing, token, edges="").claim
    client.delete(QUEUE)

    ringing.sweep(after=31)

    assert "c.1.2" in rings(client)
    assert isinstance(ringing.store.do(ClaimVisit(run_id, "c", 1, 2, "again")), Claim)
    assert settle(ringing, lost.token, edges="").word == "stale"


class Ringing(Staying):
    """A run whose doorbells the scripts put in a queue."""

    def empty(self):
        self.store.connection.client.delete(QUEUE)
        return ""

    def pop(self):
        self.store.connection.client.rpop(QUEUE)
        return ""

    def queue(self):
        return " ".join(rings(self.store.connection.client))


RINGING = {
    "of several that are rung the first is taken": (
        "a>b a>c a>d",
        """
        claim a
        empty
        stay a = b
        queue = c.1.1 d.1.1
        stands = executing: a completed, b running, c ready, d ready
        """,
    ),
    "an item is taken with its value": (
        shape("a", maps={"a": MapSpec("function", None)}),
        """
        claim a
        empty
        expand a one two three
        pop
        claim a[0]
        stay a[0] = a[1]
        task a[1] = two
        queue = a[2].1.1
        """,
    ),
    "of a map with two items at once each slot goes from item to item": (
        shape("a", maps={"a": MapSpec("function", None, 2)}),
        """
        claim a
        expand a one two three four
        empty
        claim a[0]
        stay a[0] = a[2]
        task a[2] = three
        queue
        """,
    ),
    "a join reads what other sources left": (
        "a>c b>c d",
        """
        empty
        run a b
        queue = c.1.1
        claim d
        stay d = c
        inputs c = a.1 b.1
        """,
    ),
    "where nodes have limits no doorbell is taken: the script of claims judges them": (
        shape("a>b a>c a>d", limits={"d": [Limit("few", concurrency=1)]}),
        """
        claim a
        empty
        settle a
        pop
        claim b
        stay b = nothing
        queue = c.1.1 d.1.1
        """,
    ),
    "a worker that stops, or whose row is long, leaves the next one to others": (
        "a>b a>c a>d",
        """
        claim a
        empty
        settle a
        pop
        claim b
        settle b
        queue = c.1.1 d.1.1
        """,
    ),
}


@stories(RINGING)
def test_a_settle_takes_doorbells_as_its_story_says(ringing, graph, story):
    """Which doorbell of the queue a settle takes, and which it leaves."""
    tell(Ringing(ringing, graph), story)


def unwanted(kind, worker, client, run_id):
    """Put something in the queue that a settle has to leave there; return the run that it is for."""
    client.delete(QUEUE)
    match kind:
        case "other run":
            worker.start("a>b a>c a>d")
        case "foreign":
            client.lpush(
                QUEUE,
                json.dumps({"task": "theirs", "id": f"{run_id}.c.1.1"}, separators=(",", ":")),
            )
        case "malformed":
            client.lpush(QUEUE, f'"runner.node" "id":"{run_id}.')
        case "lost lease":
            worker.token(run_id, "c")
            worker.sweep(after=31)
            client.ltrim(QUEUE, 0, 0) if rings(client)[-1] == "c.1.2" else client.ltrim(
                QUEUE, -1, -1
            )
        case "answered":
            (question,) = worker.park(run_id, "c")
            worker.answer(question)
        case "stale":
            worker.run(run_id, "c")
            client.delete(QUEUE)
            client.lpush(
                QUEUE, f'{{"task":"runner.node","id":"{run_id}.c.1.1","parent_id":null}}'
            )


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", ["other run", "foreign", "malformed", "lost lease", "answered", "stale"]
)
def test_what_is_not_a_plain_doorbell_of_the_run_stays_in_the_queue(ringing, client, kind):
    """It is read by what fetches from the queue, as ever."""
    run_id, token = fanned(ringing, client)
    unwanted(kind, ringing, client, run_id)
    before = client.lrange(QUEUE, 0, -1)
    if kind == "lost lease":
        token = ringing.token(run_id, "b", attempt=2)

    reply = settle(ringing, token, edges="")

    assert (reply.word, reply.claim) == ("settled", None)
    assert client.lrange(QUEUE, 0, -1) == before != []


def calls_of_naming(size: int) -> int:
    """Name the next queue of every node of a chain once; count the calls of functions."""
    graph, calls = (
        KnownGraph(shape(" ".join(f"n{number}>n{number + 1}" for number in range(size - 1)))),
        0,
    )

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    shape_name.cache_clear()
    sys.setprofile(count)
    try:
        for node in graph.topology.nodes:
            graph.next_from(node)
    finally:
        sys.setprofile(None)
    return calls


def test_a_large_graph_costs_a_node_no_more():
    """The queue from which a worker goes on is named without a look at all other nodes."""
    assert calls_of_naming(400) <= 4 * calls_of_naming(100)


SIDE, SLOTS, SEQUENCE = 10, 8, 8
"""Layers of a lattice, slots of a worker, and nodes in sequence on a slot before it fetches again."""


def commands_of_lattice(worker, client, *, may_continue):
    """Run a lattice on slots in turn; return the commands for each node, a fetched doorbell among them."""
    edges = [
        f"n{layer}.{source % SIDE}>n{layer + 1}.{target}"
        for layer in range(SIDE - 1)
        for target in range(SIDE)
        for source in (target, target + 1)
    ]
    graph = shape(" ".join(edges))
    client.delete(QUEUE)
    run_id = worker.start(graph)
    client.config_resetstat()
    slots, fetched = deque([(None, 0)] * SLOTS), 0
    while not worker.store.peek(run_id).is_final:
        claim, row = slots.popleft()
        if claim is not None:
            bits = "1" * len(graph.outgoing[claim.token.node])
            goes_on = may_continue and row < SEQUENCE
            claim, row = (
                settle(worker, claim.token, edges=bits, may_continue=goes_on).claim,
                row + 1,
            )
        elif bell := client.rpop(QUEUE):
            fetched, row = fetched + 1, 1
            claim = worker.claim(
                run_id, json.loads(bell)["id"].split(".", 1)[1].rsplit(".", 2)[0]
            )
        slots.append((claim, row))
    return (fetched + client.info("commandstats")["cmdstat_evalsha"]["calls"]) / SIDE**2


@pytest.mark.full
def test_a_node_of_a_lattice_takes_little_more_than_a_command(ringing, client):
    """A settle that makes two ready claims one; control: without claims each is fetched, too."""
    assert commands_of_lattice(ringing, client, may_continue=True) <= 1.4
    assert commands_of_lattice(ringing, client, may_continue=False) >= 3
