"""What a graph may declare about turns between keys."""

from __future__ import annotations

import math

import pytest

from runner import Fairness
from runner.errors import DefinitionError
from runner.limits.fairness import LEAST_WEIGHT, MOST_WEIGHT
from tests.simulation.stride_queue import StrideQueue


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, 5e-324, 1e-9, 1001, True, "5"])
def test_a_weight_that_cannot_be_shared_by_is_refused(weight):
    """Neither none, nor one with which keys would stand still; control: its bounds are accepted."""
    with pytest.raises(
        DefinitionError, match=r"the weight of 'x' is a number from 0\.001 to 1000"
    ):
        Fairness("tag:t", {"x": weight})
    Fairness("tag:t", {"x": LEAST_WEIGHT, "y": MOST_WEIGHT})


@pytest.mark.parametrize("by", ["tag:", "t", "graph", None])
def test_only_a_tag_is_a_key(by):
    """Anything else is refused where it is written."""
    with pytest.raises(DefinitionError, match="by is 'tag:<name>'"):
        Fairness(by)


def test_the_least_weight_holds_no_other_up_for_ever():
    """After its turn a key of the least weight leaves all others theirs."""
    fairness, queue = Fairness("tag:t", {"x": LEAST_WEIGHT}), StrideQueue[int]()
    for number in range(4):
        queue.add(fairness.share("x"), number)
        queue.add(fairness.share("a"), number)
        queue.add(fairness.share("b"), number)

    assert [node[0] for node in iter(queue.pop, None)] == [*"abx", *"ab" * 3, *"xxx"]
