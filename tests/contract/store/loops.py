"""The contract of loops: what a round forgets, and what loops around and inside one another wait for."""

from __future__ import annotations

from tests.contract.store.stories import Story, stories, tell

STORIES = {
    "in each round a join of all waits for all of its edges, whatever came in the last one": (
        "a>b a>c b>d c>d d>a d>e",
        """
        run a b c
        claim d
        settle d 10
        run a.2 b.2
        claim d.2 = stale
        run c.2
        claim d.2
        settle d.2 01
        rings = e.1.1
        """,
    ),
    "an inner loop begins no round of its own when the loop around it begins one": (
        "a>b b>b b>a b>c",
        """
        run a
        claim b
        settle b 110
        rings = a.2.1
        run a.2
        rings = b.2.1
        claim b.2
        settle b.2 001
        rings = c.1.1
        """,
    ),
    "a loop that ends later adds no dead arrival to that of its exit: a join behind it still waits": (
        "s>a s>x a>b b>a b>d x>d",
        """
        run s a
        claim b
        settle b 11
        run a.2
        claim b.2
        settle b.2 00
        rings
        run x
        rings = d.1.1
        """,
    ),
    "rounds of an inner loop count once for the loop around it, which ends after its last node": (
        "a>b b>b b>c c>a c>d",
        """
        run a
        claim b
        settle b 10
        rings = b.2.1
        claim b.2
        settle b.2 01
        rings = c.1.1
        claim d = stale
        claim c
        settle c 10
        rings = a.2.1
        """,
    ),
}


class LoopContract:
    """Which nodes run again, and what leaves a loop."""

    @stories(STORIES)
    def test_a_loop_goes_on_as_its_story_says(self, worker, graph, story):
        """Rounds, exits and loops in loops."""
        tell(Story(worker, graph), story)
