"""Workers die between the vote that decides and the effect: it is done under one key, and the run ends."""

from __future__ import annotations

import json

import pytest

from runner import Status
from runner.records.interrupts import ReceiptStatus
from tests.chaos import kill_switch, refund_graphs
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.refund_graphs"}
APPS = {"children": "kill_points", "by_attempt": "keys_by_attempt", "unmarked": "no_use_mark"}

AT_THE_DOOR = ["vote.before", "vote.after", "done.before", "done.after"]
"""Where a worker dies that takes the vote: around its count, and around the end of its message."""

AT_THE_NODE = [
    "claim.before",
    "claim.after",
    "votes.before",  # the votes are read, to be counted again
    "votes.after",
    "use.before",  # the approval is marked as used, with the checkpoint from which the call begins
    "use.after",
    "effect.before",
    "effect.after",
]
"""Where a child dies that has the node."""

POINTS = AT_THE_DOOR + AT_THE_NODE


class Refund:
    """A run in which one process dies at a point, and the two who approve it."""

    def __init__(self, site, point: str) -> None:
        self.site, self.point = site, point
        self.run = site.client.start("refunding", "go")
        self.question, self.votes = None, 0
        self.replies = f"runner:replies:{self.run.id}"

    def ask(self) -> bool:
        """Cast the first vote when the question is there; tell whether it counts."""
        if self.question is None:
            self.question = next(iter(self.run.interrupts()), None)
            if self.question is not None:
                self.vote("ana")
        return self.question is not None and self.site.redis.xlen(self.replies) == 1

    def decide(self) -> None:
        """Cast the vote that decides, with a death behind it."""
        self.armed = self.question.id
        if self.point in AT_THE_NODE and not self.point.startswith("votes"):
            self.armed = f"{self.run.id}/{refund_graphs.NODE}"
        kill_switch.arm(self.site, self.point, self.armed)
        self.vote("ben")

    def vote(self, name: str) -> None:
        """Send it as any program would."""
        body = {"v": 2, "interrupt_id": self.question.id, "decision": "approve", "by": name}
        self.site.send(
            json.dumps({**body, "digest": self.question.digest, "reply_to": self.replies})
        )

    @property
    def died(self) -> bool:
        return bool(kill_switch.died_at(self.site, self.point, self.armed))

    @property
    def keys(self) -> list[str]:
        return refund_graphs.keys(self.site, self.run)

    def events(self, kind: str) -> list:
        return [event for event in self.run.events() if event.kind == kind]


def play(
    site, points, *, together: bool, until=lambda refund: refund.run.status is Status.COMPLETED
):
    """Play a run for each point, side by side or one after the other; yield while any still goes on."""
    waiting = [Refund(site, point) for point in points]
    wait_until(
        lambda: all(refund.ask() for refund in waiting), "the first votes count", seconds=150
    )
    going = []
    for refund in waiting:
        refund.decide()
        going.append(refund)
        while not together and not (refund.died and until(refund)):
            yield
    while not all(refund.died and until(refund) for refund in going):
        yield
    site.refunds = {refund.point: refund for refund in waiting}


def side_by_side(*plays) -> None:
    """Let all of them come to their ends."""
    left = list(plays)

    def ended():
        left[:] = [each for each in left if next(each, "over") != "over"]
        return not left

    wait_until(ended, "every run ends", seconds=150)


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """All runs, when they have ended."""
    sites = {name: next(databases) for name in ("doors", *APPS)}
    fork_server.add(sites["doors"], "doors", app="tests.chaos.kill_points:app", **GRAPHS)
    for name, module in APPS.items():
        app = f"tests.chaos.{module}:app"
        fork_server.add(sites[name], name, app=app, pool="prefork", **GRAPHS)
    with fork_server.running(*sites.values()):
        held = lambda refund: refund.run.status is Status.NEEDS_MIGRATION  # noqa: E731
        side_by_side(
            play(sites["doors"], AT_THE_DOOR, together=False),
            play(sites["children"], AT_THE_NODE, together=True),
            play(sites["by_attempt"], ["effect.after"], together=True, until=held),
            play(sites["unmarked"], ["effect.after"], together=True),
        )
        yield sites


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[pytest.mark.sample] * (point == "use.after"))
        for point in POINTS
    ],
)
def test_a_death_between_vote_and_effect_leaves_one_key(sites, point):
    """Nobody is asked or counted twice, and what was paid, was paid under one key: the run ends."""
    site = sites["doors" if point in AT_THE_DOOR else "children"]
    refund = site.refunds[point]

    paid = refund.keys
    assert (len(set(paid)), len(paid)) == (1, 2 if point == "effect.after" else 1)
    assert [event.data["key"] for event in refund.events("interrupt.used")] == [paid[0]]
    assert len(refund.events("interrupt.asked")) == 1
    votes = site.client.engine.store.votes(refund.question.id)
    assert [vote["by"] for vote in votes] == ["human:|ana", "human:|ben"]


@pytest.mark.parametrize("point", AT_THE_DOOR)
def test_a_vote_whose_reader_died_is_counted_once(sites, point):
    """The message is read again: its receipt is the one that it had."""
    site = sites["doors"]
    bodies = [
        json.loads(fields[b"body"])
        for _, fields in site.redis.xrange(site.refunds[point].replies)
    ]
    first, *others = [body["status"] for body in bodies]

    assert first == ReceiptStatus.COUNTED
    assert set(others) == {ReceiptStatus.ACCEPTED}


@pytest.mark.sample
def test_an_approval_is_not_used_under_another_key(sites):
    """Were keys made by attempts, the mark would hold the node: the effect has one key all the same."""
    (refund,) = sites["by_attempt"].refunds.values()

    assert len(refund.keys) == 1
    assert "ApprovalMismatch" in refund.events("node.held")[0].data["error"]


@pytest.mark.sample
def test_without_the_mark_there_are_two_keys(sites):
    """Control: the same death where a used approval is as good as new; it is paid twice, under two keys."""
    (refund,) = sites["unmarked"].refunds.values()

    assert len(set(refund.keys)) == 2
