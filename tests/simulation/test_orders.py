"""Small runs in every order that their requests can take: whoever is first, the end is the same, or told."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from runner import Graph, GraphBuilder, RetryPolicy, Status
from runner.records.interrupts import InterruptStatus, ReceiptStatus
from tests.simulation.history import summary
from tests.simulation.on_redis import on_redis
from tests.simulation.orders import MOST, orders
from tests.simulation.plans import answer_to
from tests.simulation.sabotage import LastAnswerWins, TooLateSettle, TwoClaims
from tests.simulation.watch import Violation
from tests.simulation.world import World, in_memory


def names(ctx):
    """Tell who came before."""
    return sorted(ctx.inputs)


def asks(ctx):
    """Ask a person."""
    return ctx.interrupt("one")["say"]


def fails_once(ctx):
    """Fail at the first attempt."""
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return "b"


def nested() -> Graph:
    """Make a graph of one node that asks."""
    builder = GraphBuilder()
    builder.add_node(asks, "x")
    return builder.build()


def diamond(kind: str):
    """Make the factory of a graph: a, then b and c, then d; c waits for a person, in one way or another."""

    @cache  # thousands of worlds are played with one of them, and none changes it
    def build() -> Graph:
        builder = GraphBuilder()
        builder.add_node(names, "a")
        retry = RetryPolicy(3, backoff=1, jitter=0) if kind == "retries" else None
        builder.add_node(fails_once if kind == "retries" else names, "b", retry=retry)
        if kind == "map":
            builder.add_map(asks, "c", over=lambda ctx: [1])
        else:
            builder.add_node(nested() if kind == "nested" else asks, "c")
        builder.add_node(names, "d")
        for edge in ("ab", "ac", "bd", "cd"):
            builder.add_edge(*edge)
        return builder.build()

    return build


def answered(world: World):
    """Two people answer as soon as there is a question, and a sweeper comes when something is due."""
    return [*both(world), *swept(world)]


def both(world: World):
    """Two people answer as soon as there is a question."""
    if not world.questions():
        return []
    return [(f"answer {number}", lambda: sent(world)) for number in "12"]


def sent(world: World):
    """Send one person's answer to whatever is asked."""
    world._answer(world.questions())
    return world.people.actors[-1]


def swept(world: World):
    """A sweeper comes when a node is to be tried again."""
    if all(
        node.status is not Status.RETRYING
        for _, run in world.runs()
        for node in run.nodes.values()
    ):
        return []

    def come():
        world.advance(1_000)
        return world.workers[0].work("sweep", world.workers[0].engine.sweep)

    return [("sweep", come)]


DIAMONDS = [
    # kind, nodes whose messages come twice
    ("asks", "d"),
    ("retries", ""),
    ("nested", ""),
    ("map", ""),
]


def end_alike(kind: str, doubled: str, make=in_memory) -> int:
    """Play all orders of a diamond, and count them."""
    ends: Counter[str] = Counter()
    for world in orders(diamond(kind), answered, doubled=doubled, make=make):
        ends[str(summary(world.result(world.watch.keys["run0"])))] += 1
        receipts = Counter(
            receipt.status for request in world.requests[1:] for receipt in request.reply
        )
        assert receipts == {ReceiptStatus.ACCEPTED: 1, ReceiptStatus.DUPLICATE: 1}
        events = world.store.events(world.watch.keys["run0"])
        where = [(event.kind, event.node) for event in events]
        begun = where.index(("node.started", "d"))
        assert {("node.completed", "b"), ("node.completed", "c")} <= set(where[:begun]), (
            "d waits for both"
        )
    (end,) = ends
    assert answer_to("c", 1, "one")["say"] in end or kind != "asks"
    return sum(ends.values())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "doubled"), DIAMONDS)
def test_every_diamond_ends_alike_in_every_order(kind, doubled):
    """Whatever is doubled or tried again, however deep the question: every order has one end (F28)."""
    assert end_alike(kind, doubled) >= min(100, MOST)


@pytest.mark.slow
def test_a_diamond_on_redis_ends_alike_in_every_order(redis_url):
    """The scripts keep every order, too (F28)."""
    assert end_alike("asks", "", make=on_redis(redis_url)) >= min(100, MOST)


@pytest.mark.full
@pytest.mark.parametrize(("saboteur", "doubled"), [(LastAnswerWins, ""), (TwoClaims, "d")])
def test_some_order_shows_what_is_missing(saboteur, doubled):
    """Without the compare-and-set of an answer or of a claim, some order breaks a promise."""
    with pytest.raises(AssertionError, match=r"I\d|accepted"):
        end_alike("asks", doubled, make=lambda setting: in_memory(setting, saboteur))


# -- a cancel races with the end of a node and with an answer ------------------------------------------------


def cancelled(world: World):
    """Somebody cancels the run at any time, and a person answers when there is a question."""

    def cancel():
        run_id = world.watch.keys["run0"]
        world._send(
            world._ask("cancel", lambda process: process.engine.cancel(run_id, "enough"))
        )
        return world.people.actors[-1]

    return [("cancel", cancel), *both(world)[:1]]


def both_are_told(make=in_memory) -> Counter:
    """Play all orders of a cancel, and count how they end."""
    ends: Counter[tuple] = Counter()
    for world in orders(diamond("asks"), cancelled, make=make):
        result, word = world.result(world.watch.keys["run0"]), world.requests[1].reply
        receipts = [
            receipt.status for request in world.requests[2:] for receipt in request.reply
        ]
        (question,) = world.store.read(world.watch.keys["run0"]).interrupts or (None,)
        kinds = [event.kind for event in world.store.events(world.watch.keys["run0"])]

        assert (
            (word == "cancelled")
            == (result.status is Status.CANCELLED)
            == ("run.stopping" in kinds)
        )
        assert word in {"cancelled", "already"}
        taken = question is not None and question.status is InterruptStatus.ANSWERED
        assert taken == (ReceiptStatus.ACCEPTED in receipts) == ("interrupt.answered" in kinds)
        if taken and word == "cancelled":
            assert kinds.index("interrupt.answered") < kinds.index("run.stopping")
        if word == "already":
            assert result.status is Status.COMPLETED
        assert set(receipts) <= {ReceiptStatus.ACCEPTED, ReceiptStatus.SUPERSEDED}
        ends[word, *receipts] += 1
    return ends


@pytest.mark.slow
def test_a_cancel_and_whoever_it_meets_are_both_told(redis_url):
    """A cancel, the ends of nodes and an answer come in one order, and each hears of it (F29)."""
    ends = both_are_told()

    assert sum(ends.values()) > 50
    assert set(ends) == {
        ("cancelled",),
        ("cancelled", ReceiptStatus.SUPERSEDED),
        ("cancelled", ReceiptStatus.ACCEPTED),
        ("already", ReceiptStatus.ACCEPTED),
    }
    assert both_are_told(on_redis(redis_url)) == ends, "the scripts"


def test_a_node_that_goes_on_after_a_cancel_is_noticed():
    """Where the end of a node forgets that its run stops, some order shows it."""
    with pytest.raises((AssertionError, Violation)):
        both_are_told(lambda setting: in_memory(setting, TooLateSettle))
