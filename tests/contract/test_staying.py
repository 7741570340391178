"""A settle that claims the next node for its worker: which one, and what is left if the worker is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.definition.model import Topology
from runner.definition.policies import Limit
from runner.records.run import Status
from runner.store.interface import Claim, Settlement
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from runner.testing.contract.manual_worker import ManualWorker, rung, shape

COMPLETED = Settlement(Status.COMPLETED, "1", "out", {"v": 1}, stay=True)


@pytest.fixture(params=["memory", "redis"])
def worker(request):
    """A worker by hand on a store of each kind."""
    clock = ManualClock()
    if request.param == "memory":
        yield ManualWorker(MemoryStore(clock, lease=30), clock)
        return
    store = RedisStore(request.getfixturevalue("redis_url"), clock=clock, lease=30, push=False)
    yield ManualWorker(store, clock)
    store.close()


def settle(worker, token, nonce="", **changes):
    return worker.store.settle(token, replace(COMPLETED, **changes), nonce or worker.nonce())


def other(graph: Topology, node: str, **changes) -> Topology:
    """The same graph with one node changed."""
    nodes = {**graph.nodes, node: replace(graph.nodes[node], **changes)}
    return replace(graph, nodes=nodes, fingerprint=f"{graph.fingerprint}{node}")


def test_a_settle_claims_the_node_that_it_makes_ready(worker):
    """The claim is what a claim of its own returns; nothing is rung."""
    run_id, token = worker.begin("a>b")
    reply = settle(worker, token, "n")

    assert (reply.word, rung(reply)) == ("settled", [])
    assert reply.claim == worker.store.claim(run_id, "b", 1, 1, "n")
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


def test_the_last_arrival_claims_a_join(worker):
    """It gets the outputs of all, in edge order."""
    run_id = worker.start("a>c b>c")
    first, last = worker.token(run_id, "b"), worker.token(run_id, "a")

    assert settle(worker, first, output="two").claim is None
    reply = settle(worker, last, output="one")

    assert list(reply.claim.inputs) == [("a", 1, "one"), ("b", 1, "two")]
    assert worker.statuses(run_id) == "executing: a completed, b completed, c running"


def test_two_nodes_are_rung(worker):
    """Which of them should stay, nobody knows: both go to the queue."""
    run_id, token = worker.begin("a>b a>c")
    reply = settle(worker, token, edges="11")

    assert (reply.claim, rung(reply)) == (None, ["b.1.1", "c.1.1"])
    reply = settle(worker, worker.token(run_id, "b"), edges="")
    assert (reply.word, reply.claim) == ("settled", None)


def test_of_two_the_one_that_is_ready_is_claimed(worker):
    """The other one still waits for another arrival."""
    run_id, token = worker.begin("a>b a>d c>d")
    reply = settle(worker, token, edges="11")

    assert reply.claim.token.node == "b"
    assert worker.statuses(run_id) == "executing: a completed, b running, c ready"


@pytest.mark.parametrize(
    "graph",
    [
        other(shape("a>b", name="queue"), "b", queue="gpu"),
        other(shape("a>b", name="priority"), "b", priority=0),
        shape("a>b", name="limits", limits={"b": [Limit("few", concurrency=1)]}),
    ],
    ids=["queue", "priority", "limits"],
)
def test_what_not_each_worker_may_run_at_once_is_rung(worker, graph):
    """Another queue may have other workers, another priority other neighbours; a limit is others', too."""
    _, token = worker.begin(graph)
    reply = settle(worker, token)

    assert (reply.claim, rung(reply)) == (None, ["b.1.1"])


def test_without_the_wish_nothing_is_claimed(worker):
    """A worker that stops, or whose row is long, has the node rung."""
    _, token = worker.begin("a>b")
    reply = settle(worker, token, stay=False)

    assert (reply.claim, rung(reply)) == (None, ["b.1.1"])


def test_a_stale_worker_claims_nothing(worker):
    """One that has lost its lease gets no other node either."""
    run_id, token = worker.begin("a>b")
    worker.sweep(after=31)
    worker.claim(run_id, "a", attempt=2)

    assert settle(worker, token).word == "stale"
    assert worker.statuses(run_id) == "executing: a running"


def test_a_run_that_stops_claims_nothing(worker):
    """A settle in a cancelled run makes no node ready."""
    run_id, token = worker.begin("a>b")
    worker.store.cancel(run_id, "enough", worker.nonce())

    assert settle(worker, token).claim is None
    assert worker.statuses(run_id).startswith("cancelled: a completed")


def test_a_claim_that_is_lost_with_its_worker_is_rung_again(worker):
    """Nobody renews its lease, so it ends, and another worker gets the next attempt."""
    run_id, token = worker.begin("a>b")
    lost = settle(worker, token).claim

    assert worker.sweep(after=31) == ["b.1.2"]
    assert list(worker.claim(run_id, "b", attempt=2).inputs) == [("a", 1, "out")]
    assert settle(worker, lost.token, edges="").word == "stale"


def test_a_claim_that_is_left_is_rung_at_once(worker):
    """A worker that can't start it any more leaves it, and no attempt is counted."""
    run_id, token = worker.begin("a>b")
    claim = settle(worker, token).claim

    reply = worker.store.leave(claim.token)

    assert (reply.word, rung(reply)) == ("left", ["b.1.1"])
    assert isinstance(worker.store.claim(run_id, "b", 1, 1, "again"), Claim)


def test_a_loop_goes_on_in_its_later_rounds(worker):
    """Inside a loop each visit claims the next one with what reaches it in this round."""
    run_id, token = worker.begin("a>b b>a b>c")
    for round_ in (1, 2):
        claim = settle(worker, token, output=f"a{round_}").claim
        assert claim == worker.store.claim(run_id, "b", round_, 1, claim.record.nonce)
        assert list(claim.inputs) == [("a", round_, f"a{round_}")]
        reply = settle(worker, claim.token, edges="10", output=f"b{round_}")
        token = reply.claim.token if reply.claim else worker.token(run_id, "a", round_ + 1)
    assert worker.read(run_id).nodes["a"].visit == 3
