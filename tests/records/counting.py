"""Counting votes from scratch, by the rule's step for one vote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runner.approvals.rules import Count, Rule, Tally, Vote, take


def counts(rule: Rule, votes: Sequence[Vote]) -> Iterator[Count]:
    """Count one vote after the other, up to the one that decides."""
    tally, rounds = Tally(), dict[str, int]()
    for entry in votes:
        count = take(rule, tally, entry, rounds.get(entry.principal))
        yield count
        if count.word == "accepted":
            return
        if count.word == "counted":
            tally = count.tally
            if entry.weight:
                rounds[entry.principal] = tally.round


def recount(rule: Rule, votes: Sequence[Vote]) -> Count:
    """What the last vote got that counts."""
    return [Count("counted", Tally()), *counts(rule, votes)][-1]
