"""The soak itself, for seconds: it finds nothing where all is well, and what is lost where it is not."""

from __future__ import annotations

import pytest

from tests.chaos.soak import Tally, report, soak
from tests.chaos.soak_faults import GRAPHS

SEED = 7
SLOW = 150


@pytest.mark.timeout(400)
def test_half_a_minute_of_faults_breaks_no_promise():
    """Mixed load with a fault every two seconds: nothing lost, wrong, doubled or unanswerable."""
    tally, faults = soak(0.4, SEED, drain=SLOW)

    assert tally.faultless, report(tally, faults, 0.4, SEED)
    assert tally.completed + tally.cancelled == tally.accepted > 0
    assert sum(faults.done.values()) >= 3


@pytest.mark.timeout(400)
def test_without_sweeps_it_finds_lost_runs():
    """Control: the same with workers that never sweep, and what was lost stays lost."""
    tally, _ = soak(0.4, SEED, drain=10, RUNNER_GRAPHS=f"{GRAPHS},tests.chaos.no_sweep")

    assert tally.lost
    assert not tally.faultless


def test_memory_that_grows_is_told():
    """The slope and the growth of a memory that grows by a megabyte a minute, and of one that does not."""
    tally = Tally()
    tally.memory["grows"] = [(second, 10 + second / 60) for second in range(600)]
    tally.memory["flat"] = [(second, 10 + second % 2) for second in range(600)]

    assert tally.growing() == ["grows"]
    assert round(tally.slope("grows"), 3) == 1
    assert abs(tally.slope("flat")) < 0.01
