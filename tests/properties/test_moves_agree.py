"""Runs of random graphs that wait are moved to other random graphs; both stores do the same.

The machine of `test_stores_agree.py` does the work and has the invariants; here it is led to runs that
wait, which it seldom meets by chance.
"""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from runner.interrupts import Answer
from runner.ports import Claim
from runner.run import Status
from tests.properties.test_stores_agree import Agreement, graphs, seen

EXAMPLES = hypothesis.settings.default.max_examples // 5
INVARIANTS = (
    "maps_are_what_a_recount_gives",
    "runs_are_equal",
    "indexes_are_equal",
    "counters_are_what_a_recount_gives",
)


class Led(Agreement):
    """The machine, led to runs that wait."""

    def work(self, data, steps):
        """Let workers claim what is rung for, and end, ask, hold or go over a list."""
        for _ in range(steps):
            if not self.bells:
                return
            bell = self.bells.pop(0)
            claim = self.both("claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce())
            if not isinstance(claim, Claim):
                continue
            if self.is_map(bell) and not (claim.map and claim.map.has_ended):
                self.both("expand", claim.token, None if claim.map else [1, 2, 3])
                continue
            ends = data.draw(st.sampled_from(["settle", "settle", "settle", "park", "park", "hold", "fail"]))
            bits = data.draw(st.integers(0, 511))
            if ends == "park":
                self.park(data, claim.token)
            elif ends == "hold":
                self.both("hold", claim.token)
            else:
                self.end(claim.token, bits, ends == "fail", None, ())

    def park(self, data, token):
        """Let a visit wait for one or two answers; it keeps something."""
        names = data.draw(st.sampled_from([["x"], ["x", "y"]]))
        lasts = data.draw(st.sampled_from([None, None, 20.0]))
        reminds = data.draw(st.sampled_from([{}, {"remind_every": 10}]))
        self.ask(data, "park", token, names, keeps=True, expires_in=lasts, **reminds)

    def answer_some(self, data):
        """Answer one of the open questions."""
        found = list(self.both("open_interrupts"))
        if found and data.draw(st.booleans()):
            self.both("answer", [Answer(data.draw(st.sampled_from(found)).id, 1, "ann")], self.nonce())

    def hold_all(self):
        """Let the worker of today find that what is rung for is an older node."""
        while self.bells:
            bell = self.bells.pop(0)
            claim = self.both("claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce())
            if isinstance(claim, Claim):
                self.both("hold", claim.token)

    def check(self):
        """Hold the stores to all that must be true of them."""
        for name in INVARIANTS:
            getattr(self, name)()
        for kept, replayed, nodes in self.replays():
            # A visit that was given up leaves a gap, which only the next one's end will tell.
            assert without_gaps(seen(replayed.nodes)) == without_gaps(nodes)
            assert replayed.arrivals == kept.arrived


def without_gaps(nodes):
    """Leave the number out of visits that have no end of their own."""
    ended = {Status.COMPLETED, Status.FAILED}
    return {name: found if found[0] in ended else found[-1:] for name, found in nodes.items()}


def test_moved_runs_are_the_same_in_both_stores(store_server):
    """Whatever the two shapes and the wishes are, the stores agree, and what is there fits the history."""
    machine = type("Machine", (Led,), {"url": store_server.url})
    moved = []

    @hypothesis.settings(max_examples=EXAMPLES, deadline=None)
    @hypothesis.given(graphs("first"), graphs("first"), st.data())
    def play(first, later, data):
        led = machine()
        try:
            led.publish(first, first, later)
            led.work(data, 12)
            for _ in range(3):
                led.answer_some(data)
                led.hold_all()
                count = led.count
                led.migrate(data, late=False)
                moved.append(led.count - count)
                led.check()
                led.work(data, 6)
                led.let_time_pass(seconds=data.draw(st.sampled_from([0.7, 20])), limit=100, renews=False)
                led.check()
        finally:
            led.teardown()

    play()
    assert any(moved), "no run was moved, so nothing was shown"
