"""Deterministic simulation: whole clusters by seed, with every fault at every step, on the real engine.

A seed that fails prints how to repeat it and the shortest history that fails in the same way;
`make simulate SEEDS=5000 FROM=1` plays as many as you like. See `world.py` for what can happen, and
`watch.py` for what must hold all the while.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

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
ON_REDIS = range(1, 21)
CROWDED = 3
"""A seed in which most nodes share a limit of one."""


# What is drawn, where it is played, and by which seeds.

SMALL_SAMPLE = [
    # Whatever is lost, doubled, late, killed or frozen: no run is lost, and all end as without it. The last
    # three each showed a fault, of the product or of a store with a mechanism taken out.
    *((drawn, "memory", [seed]) for seed in (1, 2, 30, 42, 120)),
    # What runs is what the votes come to, once, whoever votes when. In the second somebody votes again whose
    # edit counted nothing, but voided others.
    *((voted, "memory", [seed]) for seed in (5, 96)),
    # What a run did that fails or is cancelled is undone once, the newest first.
    *((undone, "memory", [seed]) for seed in range(1, 6)),
    # No two nodes under a limit of one are at work, whatever dies between two requests.
    (crowded, "partition-races", [CROWDED]),
    # A key has no more open runs than it may have, the others begin in order, and nothing in a pause.
    *((keyed, "redis", [seed]) for seed in (4, 5)),
]

LARGE_SAMPLE = [
    *((draw, "memory", range(1, 51)) for draw in (drawn, voted)),
    (undone, "redis", range(1, 6)),
    # Runs that are stopped, retried and forked at any time end as others do; a fork changes no other run.
    # In the first what a fork takes over is taken back after it is planned, in the second an item is
    # cancelled at work and starts again when its run is retried.
    *((recovered, "redis", seeds) for seeds in ([182, 224, 1], range(201, 207))),
    # No doorbell waits for ever where keys share a window of one, whatever workers it is lost with.
    (in_turns, "redis", range(1, 11)),
    (in_turns, "races", range(1, 4)),
    (crowded, "partition-races", range(1, 11)),
    (keyed, "redis", range(1, 7)),
    *((keyed, where, range(2, 4)) for where in ("races", "partitions")),
    # What was looked at may have changed when it is written: then it is planned again. In the first others
    # look at a run before its start, sent twice, has a reply.
    (drawn, "races", [70011, *range(1, 21)]),
    *((draw, "races", range(1, 9)) for draw in (voted, recovered)),
]


def share(seeds: Sequence[int]) -> Sequence[int]:
    """Take as many of 100 seeds as hypothesis has examples, at least one."""
    return seeds[: max(1, len(seeds) * settings.default.max_examples // 100)]


def clusters(rows) -> pytest.MarkDecorator:
    ids = [f"{draw.__name__} in {where} from {seeds[0]}" for draw, where, seeds in rows]
    return pytest.mark.parametrize(("draw", "where", "seeds"), rows, ids=ids)


@pytest.mark.full
@clusters(SMALL_SAMPLE)
def test_some_clusters_keep_every_promise(draw, where, seeds, redis_url):
    """Whatever happens to a cluster, all runs end as they should."""
    make = {
        "memory": in_memory,
        "redis": on_redis(redis_url),
        "races": on_redis(redis_url, races=True),
        "partitions": on_redis(redis_url, partitions=2),
        "partition-races": on_redis(redis_url, partitions=2, races=True),
    }[where]
    for seed in seeds:
        history = raced(draw(seed)) if "races" in where else draw(seed)
        error = play(history, make).error
        command = f"make simulate FROM={seed} SEEDS=1{OPTIONS[draw]} STORE={where}"
        assert not error, report(history, error, make, command)


@pytest.mark.slow
@clusters(LARGE_SAMPLE)
def test_many_clusters_keep_every_promise(draw, where, seeds, redis_url):
    """Whatever happens to a cluster, all runs end as they should."""
    test_some_clusters_keep_every_promise(draw, where, share(seeds), redis_url)


@pytest.mark.full
def test_partitions_that_count_alone_are_noticed(redis_url):
    """Control: where each partition counts the limit for itself, two nodes are at work."""

    def alone(setting) -> World:
        world = on_redis(redis_url, partitions=2, races=True)(setting)
        for partition in world.store._partitions:
            partition.limits.home = lambda _: None
        return world

    error = play(raced(crowded(CROWDED)), alone).error
    assert error.startswith("I12: ")


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
def test_the_clocks_of_workers_do_not_matter():
    """Wrong clocks, fast or slow or an hour off, change not one event (F15)."""
    history = drawn(2)
    right = tuple((0.0, 1.0) for _ in history.setting.skews)
    wrong = tuple((3600.0 * (-1) ** number, 1.5) for number in range(len(right)))
    one, other = (
        play(replace(history, setting=replace(history.setting, skews=skews)))
        for skews in (right, wrong)
    )

    assert (one.log, one.events) == (other.log, other.events)


# -- Redis ---------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "seeds", [ON_REDIS[4:6], pytest.param(share(ON_REDIS), marks=pytest.mark.slow)]
)
def test_a_cluster_on_redis_has_the_same_history(seeds, redis_url):
    """The scripts take every step as the reference does: the same seed has the same history."""
    make = on_redis(redis_url)
    for seed in seeds:
        # Whether a settle claims the next node is the store's choice: Redis does not where a look was needed.
        drew = drawn(seed)
        history = replace(drew, setting=replace(drew.setting, stays=False))
        memory, other = play(history), play(history, make)
        assert not other.error, report(
            history, other.error, make, f"make simulate FROM={seed} SEEDS=1 STORE=redis"
        )
        assert (other.log, other.events) == (memory.log, memory.events), f"seed {seed}"


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
    "ManyDelays": 4,
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
    "LongDelay": 28,
    "NoPause": 11,
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


CONTROLS = [
    (sabotage.SABOTEURS, drawn, without, "I1 I2 I3 I4 I5 I6 I8 I9 I11 liveness"),
    # Or a node is held that was approved.
    (sabotage.OF_VOTES, voted, without, "I1 I3 I4 I8 liveness"),
    (sabotage.OF_RECOVERY, recovered, spoilt, "I6 I8 I11"),
    (sabotage.OF_UNDOS, undone, without, "I17"),
    ([sabotage.StartsHeld], held, spoilt, "I16"),
    (sabotage.OF_KEYS, keyed, spoilt, "I13 I14 I15"),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("saboteur", "draw", "make", "broken"),
    [
        pytest.param(saboteur, *how, id=saboteur.__name__)
        for saboteurs, *how in CONTROLS
        for saboteur in saboteurs
    ],
)
def test_a_missing_mechanism_is_noticed(saboteur, draw, make, broken, redis_url):
    """Each mechanism is needed: without it some seed breaks a promise."""
    make = make if make is without else partial(make, url=redis_url)
    _, error = caught(saboteur, draw, make)

    assert error.partition(":")[0] in broken.split()


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
