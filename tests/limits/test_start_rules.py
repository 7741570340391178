"""What a graph may declare about the starts of its runs, and about the turns of its nodes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runner import Concurrency, Debounce, Fairness, graph
from runner.errors import DefinitionError
from runner.limits.concurrency import LONGEST_DEBOUNCE, MOST_RUNS


@pytest.mark.parametrize("by", [None, 5, ["tag:x"], "", "tag:", "input:id", "node"])
@pytest.mark.parametrize("rule", [Concurrency, Debounce])
def test_runs_have_a_key_by_a_tag_or_the_graph(rule: type[Any], by: Any) -> None:
    """Anything else is refused where it is written; control: any text names a tag."""
    with pytest.raises(DefinitionError, match="by is 'graph' or 'tag:<name>'"):
        rule(1, by=by)
    rule(1, by="tag:a:b c ü")


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "5", math.nan, 10**30])
def test_a_bound_of_open_runs_is_a_number_that_a_store_can_count_to(count: Any) -> None:
    """Otherwise it is refused where it is written; control: the largest one."""
    with pytest.raises(DefinitionError, match="a whole number from 1 to"):
        Concurrency(count)
    with pytest.raises(DefinitionError, match="a whole number from 1 to"):
        graph("sync", max_open_runs=count)
    graph("sync", max_open_runs=MOST_RUNS, concurrency=Concurrency(MOST_RUNS))


@pytest.mark.parametrize("number", [0, -1, math.nan, math.inf, 10**400, 1e300, "30", True])
def test_a_debounce_has_times_that_come(number: Any) -> None:
    """`at_most=0` would end it at once; control: a year."""
    with pytest.raises(DefinitionError, match="numbers above 0, up to a year"):
        Debounce(number)
    with pytest.raises(DefinitionError, match="numbers above 0, up to a year"):
        Debounce(30, at_most=number)
    Debounce(LONGEST_DEBOUNCE, at_most=LONGEST_DEBOUNCE)


@pytest.mark.parametrize(
    "declared",
    [
        {"concurrency": 1},
        {"debounce": 30},
        {"fairness": "tag:tenant"},
    ],
)
def test_a_rule_is_an_object(declared: dict[str, Any]) -> None:
    """A number or text in place of one is refused, and names the graph."""
    with pytest.raises(DefinitionError, match=r"graph 'sync': \w+ is a "):
        graph("sync", **declared)


def test_a_flag_and_weights_have_their_types() -> None:
    """A text that reads like no, and a list of keys, are refused where they are written."""
    with pytest.raises(DefinitionError, match="while_waiting is True or False"):
        Concurrency(1, while_waiting="no")  # type: ignore[arg-type] # what is tested
    with pytest.raises(DefinitionError, match="weights are a number for each key"):
        Fairness("tag:tenant", ["gold"])  # type: ignore[arg-type] # what is tested
