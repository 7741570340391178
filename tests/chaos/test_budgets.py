"""Workers die between the check of a budget and the call that it was for: no budget is exceeded."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from runner import Status
from runner.cli.program import runner
from runner.execution import ids
from tests.chaos import kill_switch
from tests.chaos.spending_graphs import LIMIT, PERS, TURNS
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.spending_graphs"}
COUNTED = {"model_calls": "model", "tool_calls": "tool", "cost": "tool"}
"""What each budget limits, and the calls that it stops."""

POINTS = [
    "spend.before",
    "spend.after",
    "model.before",
    "model.after",
    "tool.before",
    "tool.after",
]
"""Around the request that reserves a call, and around the calls."""

CASES = [
    (counter, per, point)
    for counter in COUNTED
    for per in PERS
    for point in POINTS
    if per != "invocation" or not point.startswith("spend")  # which makes no request
]


class Spending:
    """A run in which a process dies once."""

    def __init__(self, site, counter: str, per: str, point: str) -> None:
        self.site, self.point, run_id = site, point, ids.run_id()
        if point:
            kill_switch.arm(site, point, run_id)
        site.client.engine.start(
            f"{counter}_{per}", run_id, run_id=run_id, tags={"team": run_id}
        )
        self.run = site.client.run(run_id)

    def has_ended(self) -> bool:
        return self.run.status in {Status.COMPLETED, Status.FAILED}

    def made(self, what: str) -> int:
        return self.site.redis.llen(f"{what}:{self.run.id}")


@pytest.fixture(scope="module")
def runs(databases, fork_server):
    """A run for each case, and one of a worker that reserves nothing, when all have ended."""
    site, control = next(databases), next(databases)
    for place, module in ((site, "kill_points"), (control, "no_reserve")):
        fork_server.add(
            place, module, app=f"tests.chaos.{module}:app", pool="prefork", **GRAPHS
        )
    with fork_server.running(site, control):
        runs = {case: Spending(site, *case) for case in CASES}
        runs["control"] = Spending(control, "model_calls", "run", "")
        wait_until(
            lambda: all(run.has_ended() for run in runs.values()), "all have ended", seconds=240
        )
        yield runs


def sampled(case):
    return pytest.param(
        *case, marks=[pytest.mark.sample] * (case == ("model_calls", "run", "spend.after"))
    )


@pytest.mark.parametrize(("counter", "per", "point"), [sampled(case) for case in CASES])
def test_a_death_exceeds_no_budget(runs, counter, per, point):
    """No more calls begin than it has; only one that was cut off comes again, of a budget per invocation."""
    spent, what = runs[counter, per, point], COUNTED[counter]
    again = per == "invocation" and point == f"{what}.after"
    # The request that dies first is for a call of the model.
    reserved = {f"{what}.before", *(["spend.after"] if what == "model" else [])}
    lost = per != "invocation" and point in reserved

    assert kill_switch.died_at(spent.site, point, spent.run.id)
    assert spent.run.status is Status.FAILED
    assert (
        spent.run.result()
        .results["buy"]
        .result.args[0]
        .startswith("the budget of agent 'buyer' per")
    )
    assert spent.made(what) == LIMIT + again - lost


def test_what_was_spent_is_shown(runs):
    """By the run, and by the metrics."""
    spent = runs["model_calls", "run", "model.after"]
    sums = spent.site.client.engine.store.spent(spent.run.id)
    metrics = (
        CliRunner().invoke(runner, ["metrics"], env={"RUNNER_REDIS_URL": spent.site.url}).stdout
    )

    assert (sums["model_calls"].spent, sums["model_calls"].bound) == (LIMIT, LIMIT)
    assert 'runner_spent_total{counter="model_calls",graph="model_calls_run"}' in metrics


@pytest.mark.sample
def test_without_the_check_it_goes_on(runs):
    """Control: an agent that reserves nothing calls its model until that stops by itself."""
    assert runs["control"].run.status is Status.COMPLETED
    assert runs["control"].made("model") == TURNS > LIMIT
