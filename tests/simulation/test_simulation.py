"""Deterministic simulation: whole clusters by seed, with every fault at every step, on the real engine.

A seed that fails prints how to repeat it and the shortest history that fails in the same way;
`make simulate SEEDS=5000 FROM=1` plays as many as you like. See `world.py` for what can happen, and
`watch.py` for what must hold all the while.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runner.operations.recovery import write_retry
from runner.store.redis.fast import fast_path
from runner.store.redis.transaction.sets import Because
from runner.store.requests import EmitEvent
from tests.chaos.test_racing_answers import NO_CHECK, UncheckedScripts
from tests.contract.store.manual_worker import ManualWorker
from tests.simulation import sabotage
from tests.simulation.history import (
    OPTIONS,
    History,
    crowded,
    drawn,
    held,
    in_turns,
    keyed,
    kind_of,
    play,
    raced,
    recovered,
    report,
    shortest,
    undone,
    voted,
)
from tests.simulation.on_redis import on_redis
from tests.simulation.plans import Plan
from tests.simulation.watch import Violation
from tests.simulation.world import Setting, World, in_memory

SEEDS = 200
"""Seeds in which a missing mechanism must show."""
MANY = range(1, 51)
QUICK = range(1, 3)
ON_REDIS = range(1, 21)
RACES = range(1, 21)
VOTED = (5, 96)
"""Seeds with votes; in the second somebody votes again whose edit counted nothing, but voided others."""
UNDONE = range(1, 6)
"""Seeds in which failed runs undo what they did."""
RECOVERED = (1, 182, 224)
"""Seeds with retries and forks; in the second what a fork takes over is taken back after it is planned,
in the third an item is cancelled at work and starts again when its run is retried."""
STARTED_TWICE = 70011
"""A seed with races in which others look at a run before its start, sent twice, has a reply."""
FAIR = range(1, 11)
"""Seeds in which runs take turns."""
KEYED = range(1, 7)
"""Seeds in which runs of a key exclude or follow each other, and a limit is paused."""
REGRESSIONS = (30, 42, 120)
"""Seeds to keep: each showed a fault, of the product or of a store with a mechanism taken out."""


def holds(seed: int, make=in_memory, draw=drawn) -> None:
    history = draw(seed)
    error = play(history, make).error
    command = f"make simulate FROM={seed} SEEDS=1{OPTIONS[draw]}"
    assert not error, report(history, error, make, command)


@pytest.mark.full
@pytest.mark.parametrize("seed", QUICK)
def test_some_clusters_keep_every_promise(seed):
    """Whatever is lost, doubled, late, killed or frozen: no run is lost, and all end as without it."""
    holds(seed)


@pytest.mark.slow
def test_many_clusters_keep_every_promise():
    """Whatever is lost, doubled, late, killed or frozen: no run is lost, and all end as without it."""
    for seed in MANY:
        holds(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_once_failed_holds(seed):
    """A history that showed a fault shows none."""
    holds(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", VOTED)
def test_votes_keep_every_promise(seed):
    """What runs is what the votes come to, once, whoever votes when: and all runs end."""
    holds(seed, draw=voted)


@pytest.mark.full
@pytest.mark.parametrize("seed", UNDONE)
def test_undos_keep_every_promise(seed):
    """Whatever happens to a run that fails or is cancelled: what it did is undone once, the newest first."""
    holds(seed, draw=undone)


@pytest.mark.slow
@pytest.mark.parametrize("seed", UNDONE)
def test_undos_in_redis_keep_every_promise(seed, redis_url):
    """Whatever happens to a run that fails or is cancelled: what it did is undone once, the newest first."""
    holds(seed, on_redis(redis_url), undone)


@pytest.mark.slow
def test_many_votes_keep_every_promise():
    """What runs is what the votes come to, once, whoever votes when: and all runs end."""
    for seed in MANY:
        holds(seed, draw=voted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", RECOVERED)
def test_retries_and_forks_keep_every_promise(seed, redis_url):
    """Runs that are stopped, retried and forked at any time end as others do; a fork changes no other run."""
    holds(seed, on_redis(redis_url), recovered)


@pytest.mark.slow
def test_many_retries_and_forks_keep_every_promise(redis_url):
    """Runs that are stopped, retried and forked at any time end as others do; a fork changes no other run."""
    for seed in range(201, 207):
        holds(seed, on_redis(redis_url), recovered)


@pytest.mark.slow
def test_runs_that_take_turns_keep_every_promise(redis_url):
    """No doorbell waits for ever where keys share a window of one; nor where requests are cut in two."""
    for seed in FAIR:
        holds(seed, on_redis(redis_url), in_turns)
    for seed in FAIR[:3]:
        holds_in_races(seed, redis_url, in_turns)


CROWDED = range(1, 11)
"""Seeds in which most nodes share a limit of one."""


def holds_in_partitions(seed, url) -> None:
    make = on_redis(url, partitions=2, races=True)
    history = raced(crowded(seed))
    error = play(history, make).error
    command = f"make simulate FROM={seed} SEEDS=1{OPTIONS[crowded]} STORE=partition-races"
    assert not error, report(history, error, make, command)


@pytest.mark.full
@pytest.mark.parametrize("seed", CROWDED[2:3])
def test_runs_of_two_partitions_share_a_limit(seed, redis_url):
    """No two nodes under a limit of one are at work, and all runs end, whatever dies between two requests."""
    holds_in_partitions(seed, redis_url)


@pytest.mark.slow
def test_many_runs_of_two_partitions_share_a_limit(redis_url):
    """No two nodes under a limit of one are at work, and all runs end, whatever dies between two requests."""
    for seed in CROWDED:
        holds_in_partitions(seed, redis_url)


@pytest.mark.full
def test_partitions_that_count_alone_are_noticed(redis_url):
    """Control: where each partition counts the limit for itself, two nodes are at work."""

    def alone(setting) -> World:
        world = on_redis(redis_url, partitions=2, races=True)(setting)
        for partition in world.store._partitions:
            partition.limits.home = lambda _: None
        return world

    error = play(raced(crowded(CROWDED[2])), alone).error
    assert error.startswith("I12: ")


@pytest.mark.full
@pytest.mark.parametrize("seed", KEYED[3:5])
def test_runs_of_a_key_keep_every_promise(seed, redis_url):
    """A key has no more open runs than it may have, the others begin in order, and nothing in a pause."""
    holds(seed, on_redis(redis_url), keyed)


@pytest.mark.slow
def test_many_runs_of_a_key_keep_every_promise(redis_url):
    """As above, also in two partitions, and where requests are cut in two."""
    for seed in KEYED:
        holds(seed, on_redis(redis_url), keyed)
    for seed in KEYED[1:3]:
        holds_in_races(seed, redis_url, keyed)
        holds(seed, on_redis(redis_url, partitions=2), keyed)


# -- one seed, one history -----------------------------------------------------------------------------


@pytest.mark.full
def test_a_seed_is_one_history():
    """The same seed gives the same steps, replies and events, byte by byte, in another process too (I10)."""
    mine = play(drawn(3))
    code = (
        "from tests.simulation.history import drawn, play\n"
        "found = play(drawn(3))\n"
        "print(repr((found.log, found.events)))\n"
    )
    root = Path(__file__).parent.parent.parent
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={"PYTHONPATH": str(root), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert outcome.stdout.strip() == repr((mine.log, mine.events))


@pytest.mark.slow
@pytest.mark.parametrize("seed", QUICK[1:])
def test_the_clocks_of_workers_do_not_matter(seed):
    """Wrong clocks, fast or slow or an hour off, change not one event (F15)."""
    history = drawn(seed)
    right = tuple((0.0, 1.0) for _ in history.setting.skews)
    wrong = tuple((3600.0 * (-1) ** number, 1.5) for number in range(len(right)))
    one, other = (
        play(replace(history, setting=replace(history.setting, skews=skews)))
        for skews in (right, wrong)
    )

    assert (one.log, one.events) == (other.log, other.events)


# -- Redis ---------------------------------------------------------------------------------------------


def same_on_redis(seeds, url, draw=drawn) -> None:
    make = on_redis(url)
    for seed in seeds:
        # Whether a settle claims the next node is the store's choice: Redis does not where a look was needed.
        drew = draw(seed)
        history = replace(drew, setting=replace(drew.setting, stays=False))
        memory, other = play(history), play(history, make)
        assert not other.error, report(
            history, other.error, make, f"make simulate FROM={seed} SEEDS=1 STORE=redis"
        )
        assert (other.log, other.events) == (memory.log, memory.events), f"seed {seed}"


@pytest.mark.full
def test_a_cluster_on_redis_has_the_same_history(redis_url):
    """The scripts take every step as the reference does: the same seed has the same history."""
    same_on_redis(ON_REDIS[4:6], redis_url)


@pytest.mark.slow
def test_clusters_on_redis_have_the_same_histories(redis_url):
    """The scripts take every step as the reference does: the same seed has the same history."""
    same_on_redis(ON_REDIS, redis_url)


def holds_in_races(seed, url, draw=drawn) -> None:
    history, make = raced(draw(seed)), on_redis(url, races=True)
    error = play(history, make).error
    assert not error, report(
        history, error, make, f"make simulate FROM={seed} SEEDS=1 STORE=races"
    )


@pytest.mark.slow
def test_whoever_comes_in_between_two_calls_of_a_request_is_seen(redis_url):
    """What was looked at may have changed when it is written: then it is planned again."""
    for seed in (*RACES, STARTED_TWICE):
        holds_in_races(seed, redis_url)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [voted, recovered], ids=["votes", "retries and forks"])
def test_votes_and_forks_that_come_in_between_are_seen(draw, redis_url):
    """As above, with votes, and what they come to is what runs; and with runs that are retried and forked."""
    for seed in RACES[:8]:
        holds_in_races(seed, redis_url, draw)


@pytest.mark.full
def test_without_the_look_at_what_has_changed_a_race_breaks_a_promise(redis_url):
    """Control: where `commit` writes whatever has changed since, some of these histories go wrong."""

    def unchecked(setting) -> World:
        world = on_redis(redis_url, races=True)(setting)
        world.store._scripts = UncheckedScripts(world.store, "commit", NO_CHECK)
        return world

    errors = (play(raced(drawn(seed)), unchecked).error for seed in range(1, 101))
    assert any(error.partition(":")[0] in {"I1", "I2", "I3", "I9"} for error in errors)


@pytest.mark.slow
def test_a_wrong_reason_to_rely_on_a_value_is_found(redis_url):
    """Control: with a question a run's field `v` becomes shorter, so it isn't guarded by a claim's record."""
    with sabotage.replaced(fast_path, "EITHER", Because.GUARDED):
        make = on_redis(redis_url, races=True)
        errors = (play(raced(drawn(seed)), make).error for seed in (40, *range(1, 101)))
        assert any("is GUARDED: it was" in error for error in errors)


# -- controls: with a mechanism taken out, the simulator must complain ------------------------------------

CAUGHT_AT = {
    "AnyFork": 182,
    "SecondRetry": 14,
    "SecondResult": 42,
    "ManyDelays": 8,
    "DeafPark": 35,
    "NoFence": 120,
    "AnySet": 7,
    "TwoClaims": 6,
    "TooLateSettle": 11,
    "EveryGroup": 3,
    "ForgetsVoidVotes": 317,
    "LateVotes": 6,
    "AnyNumber": 2,
    "SleepyKey": 6,
    "LastFirst": 2,
    "LongDelay": 12,
    "NoPause": 4,
    "StartsHeld": 33,
}
"""Where to look first; every seed of the suite is looked at in the end."""


def without(saboteur):
    """Make worlds whose store lacks a mechanism."""

    def make(setting) -> World:
        world = in_memory(setting, saboteur)
        world.store.world = world
        return world

    return make


def spoilt(saboteur, url):
    """Make worlds whose store in Redis lacks a mechanism."""
    make = on_redis(url)

    def made(setting) -> World:
        world = make(setting)
        saboteur.spoil(world.store)
        return world

    return made


def caught(saboteur, draw=drawn, make=without) -> tuple[History, str]:
    """Find a seed that shows the sabotage."""
    for seed in (CAUGHT_AT.get(saboteur.__name__, 1), *range(1, SEEDS + 1)):
        history = draw(seed)
        error = play(history, make(saboteur)).error
        if error:
            return history, error
    raise AssertionError(f"{saboteur.__doc__} Nobody noticed, in {SEEDS} seeds.")


@pytest.mark.slow
@pytest.mark.parametrize("saboteur", sabotage.SABOTEURS, ids=lambda store: store.__name__)
def test_a_missing_mechanism_is_noticed(saboteur):
    """Each mechanism is needed: without it some seed of the suite breaks a promise."""
    _, error = caught(saboteur)

    assert error.partition(":")[0] in {
        "I1",
        "I2",
        "I3",
        "I4",
        "I5",
        "I6",
        "I8",
        "I9",
        "I11",
        "liveness",
    }


@pytest.mark.slow
@pytest.mark.parametrize("saboteur", sabotage.OF_VOTES, ids=lambda store: store.__name__)
def test_a_missing_mechanism_of_votes_is_noticed(saboteur):
    """Without it some seed with votes breaks a promise, or has a node held that was approved."""
    _, error = caught(saboteur, voted)

    assert error.partition(":")[0] in {"I1", "I3", "I4", "I8", "liveness"}


@pytest.mark.full
@pytest.mark.parametrize("saboteur", sabotage.OF_RECOVERY, ids=lambda store: store.__name__)
def test_a_missing_mechanism_of_retries_and_forks_is_noticed(saboteur, redis_url):
    """Without it some seed with retries and forks breaks a promise."""
    _, error = caught(saboteur, recovered, partial(spoilt, url=redis_url))

    assert error.partition(":")[0] in {"I6", "I8", "I11"}


@pytest.mark.full
@pytest.mark.parametrize("saboteur", sabotage.OF_UNDOS, ids=lambda store: store.__name__)
def test_a_missing_mechanism_of_undos_is_noticed(saboteur):
    """Without it some seed with undos breaks the promise of their order, or of all of them."""
    _, error = caught(saboteur, undone)

    assert error.partition(":")[0] == "I17"


@pytest.mark.full
def test_a_hold_that_is_forgotten_is_noticed(redis_url):
    """A node that begins although it was held before its turn breaks a promise within some seeds."""
    _, error = caught(sabotage.StartsHeld, held, partial(spoilt, url=redis_url))

    assert error.partition(":")[0] == "I16"


@pytest.mark.slow
@pytest.mark.parametrize("saboteur", sabotage.OF_KEYS, ids=lambda store: store.__name__)
def test_a_missing_mechanism_of_keys_is_noticed(saboteur, redis_url):
    """Without it some seed with keys breaks a promise."""
    _, error = caught(saboteur, keyed, partial(spoilt, url=redis_url))

    assert error.partition(":")[0] in {"I13", "I14", "I15"}


@pytest.mark.full
def test_a_failing_seed_is_explained():
    """Of a failing history only steps that matter are left, with the seed and the command to repeat it."""
    history, error = caught(sabotage.SilentSettle)
    make = without(sabotage.SilentSettle)
    steps = shortest(history, error, make)
    text = report(history, error, make)

    assert kind_of(play(history, make, steps).error) == kind_of(error)
    assert all(
        kind_of(play(history, make, steps[:number] + steps[number + 1 :]).error)
        != kind_of(error)
        for number in range(len(steps))
    )
    assert len(steps) < len(history.steps) // 2
    assert f"make simulate FROM={history.seed} SEEDS=1" in text


def test_a_visit_may_end_again_for_the_retry_that_repeats_it_only(redis_url):
    """A second result is noticed after the next retry, too; control: the retried visit ends twice."""
    world = on_redis(redis_url)(Setting(Plan(("works",))))
    store, watch, do = world.store, world.watch, world.store.do

    def heard(request):
        reply = do(request)
        watch.judge(request, reply)
        return reply

    store.do, worker = heard, ManualWorker(store, world.clock)
    run_id = worker.start("a>b", idempotency_key="run0")
    worker.fail(worker.token(run_id, "a"))
    watch.look()
    write_retry(store, run_id)
    worker.settle(worker.token(run_id, "a", attempt=2))
    watch.look()
    worker.fail(worker.token(run_id, "b"))
    watch.look()
    write_retry(store, run_id)
    watch.look()

    store.do(EmitEvent(run_id, "node.completed", "a", 1, None))
    with pytest.raises(Violation, match="has two results"):
        watch.look()
