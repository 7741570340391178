"""Histories by seed: drawn, played, checked to their end, and made as short as they still fail."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import get_args

from runner.execution.results import GraphResult
from runner.limits.concurrency import Admission, Concurrency, Debounce, WhenFull
from runner.records.run import FINAL, Status
from tests.simulation.plans import CROWDED, FAILING, KEYED, KINDS, RULED, draw
from tests.simulation.virtual import machine
from tests.simulation.watch import Violation, must
from tests.simulation.world import Setting, Step, World, in_memory

FAULTS = (
    "double",
    "old",
    "drop",
    "die",
    "cut",
    "twice",
    "freeze",
    "thaw",
    "stall",
    "late",
    "mixed",
)
RARE = ("leave", "withdraw", "withdraw")
LENGTH = 200
"""Steps of a history at most."""

Make = Callable[[Setting], World]


@dataclass(frozen=True)
class History:
    """What a seed stands for."""

    seed: int
    setting: Setting
    steps: tuple[Step, ...]


def drawn(seed: int, kinds: Sequence[str] = KINDS) -> History:
    """Draw a history: its graph, its cluster, its weather (which faults, how often), and what happens."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, no secret
    plan, count = draw(chance, kinds), chance.choice((1, 2, 2, 3))
    setting = Setting(
        plan,
        runs=chance.choice((1, 2, 3)),
        slots=tuple(chance.choice((1, 2, 3)) for _ in range(count)),
        slow=chance.choice((-1, -1, 0)),
        skews=tuple(
            (chance.uniform(-3600, 3600), chance.uniform(0.5, 2)) for _ in range(count)
        ),
    )
    weights = {
        "work": 30,
        "hurry": 20,
        "flow": 4,
        "deliver": 20,
        "run": 3,
        "again": 6,
        "time": 4,
        "answer": 12,
    }
    weights["sweep"] = chance.choice((0, 3, 10))
    weights["answers"] = 2
    weights |= {fault: chance.choice((0, 0, 1, 4)) for fault in FAULTS}
    weights[chance.choice(FAULTS)] += 12  # each history has a fault of its own
    weights["thaw"] += weights["freeze"]
    weights["cancel"] = chance.choice((0, 0, 0, 1))
    begin = ["again", "flow"] * setting.runs if chance.random() < 0.8 else []
    words = begin + chance.choices(
        list(weights), list(weights.values()), k=chance.randint(20, LENGTH)
    )
    if seed % 4 == 1:  # people who change their minds, and deploys
        words = [chance.choice(RARE) if chance.random() < 0.05 else word for word in words]
    if seed % 4 == 2:
        words = ["unheard", *words]
    return History(seed, setting, tuple((word, chance.randrange(1000)) for word in words))


def voted(seed: int) -> History:
    """Draw a history in which many questions have a rule, and people vote on them all the time."""
    history, chance = drawn(seed, RULED), random.Random(seed)  # noqa: S311 - as above
    words = ("flow", "run", *("vote",) * 5, "late_vote", *("operation",) * 2)
    more = [(step, (chance.choice(words), chance.randrange(1000))) for step in history.steps]
    return replace(history, steps=tuple(itertools.chain.from_iterable(more)))


def recovered(seed: int) -> History:
    """Draw a history in which runs fail or are stopped, and are retried and forked all the time."""
    history, chance = drawn(seed, FAILING), random.Random(seed)  # noqa: S311 - as above
    words = (
        *("flow",) * 8,
        *("run",) * 8,
        "answer",
        "cancel",
        *("retry",) * 2,
        "fork",
        "overtaken",
    )
    more = [(step, (chance.choice(words), chance.randrange(1000))) for step in history.steps]
    return replace(history, steps=tuple(itertools.chain.from_iterable(more)))


def held(seed: int) -> History:
    """Draw a history in which a person holds nodes and releases them, also of runs that are retried."""
    history, chance = drawn(seed, FAILING if seed % 2 else KINDS), random.Random(seed)  # noqa: S311 - as above
    words = (
        *("flow",) * 4,
        *("run",) * 4,
        *("hold",) * 4,
        *("release",) * 2,
        "retry",
        "cancel",
    )
    more = [(step, (chance.choice(words), chance.randrange(1000))) for step in history.steps]
    return replace(history, steps=tuple(itertools.chain.from_iterable(more)))


def undone(seed: int) -> History:
    """Draw a history in which runs fail or are stopped, and what their nodes did is undone."""
    history, chance = drawn(seed, FAILING), random.Random(seed)  # noqa: S311 - as above
    words = (*("flow",) * 5, *("run",) * 5, "answer", "cancel")
    more = [(step, (chance.choice(words), chance.randrange(1000))) for step in history.steps]
    setting = replace(history.setting, plan=replace(history.setting.plan, undos=True))
    return replace(history, setting=setting, steps=tuple(itertools.chain.from_iterable(more)))


def in_turns(seed: int) -> History:
    """Draw a history in which runs share the slots fairly, and one doorbell is rung at a time."""
    history = drawn(seed)
    return replace(history, setting=replace(history.setting, fair=True))


def crowded(seed: int) -> History:
    """Draw a history in which most nodes of several runs share a limit of one, and claims take long."""
    history, chance = drawn(seed, CROWDED), random.Random(seed)  # noqa: S311 - as above
    words = (*("deliver",) * 4, "linger", "run", "hurry", "sweep")
    more = [(step, (chance.choice(words), chance.randrange(1000))) for step in history.steps]
    cluster = {"slots": (3, 3), "skews": ((0.0, 1.0), (0.0, 1.0))}
    setting = replace(history.setting, runs=4, slow=-1, **cluster)
    begin = ("again", 0), ("flow", 0)
    return replace(
        history, setting=setting, steps=(*begin * 4, *itertools.chain.from_iterable(more))
    )


def keyed(seed: int) -> History:
    """Draw a history in which runs of a key exclude or follow each other, and a limit is paused."""
    history, chance = drawn(seed, KEYED), random.Random(seed)  # noqa: S311 - as above
    debounce = Debounce(chance.choice((5, 40)), "tag:key", chance.choice((None, 60)))
    when_full = "queue" if seed % 4 == 0 else chance.choice(get_args(WhenFull))
    concurrency = Concurrency(
        chance.choice((1, 1, 2)), "tag:key", when_full, while_waiting=chance.random() < 0.7
    )
    rules = Admission(
        0, None if seed % 4 == 1 else concurrency, debounce if seed % 4 < 2 else None
    )
    words = (*("again",) * 2, *("flow",) * 3, "run", "answer", "time", "pause", "resume")
    more = [(step, (chance.choice(words), chance.randrange(1000))) for step in history.steps]
    setting = replace(history.setting, runs=chance.choice((3, 4, 6)), rules=rules)
    return replace(history, setting=setting, steps=tuple(itertools.chain.from_iterable(more)))


OPTIONS = {drawn: "", voted: " VOTES=1", recovered: " RECOVERY=1", in_turns: " FAIR=1"}
OPTIONS |= {crowded: " LIMITS=1", keyed: " KEYS=1", held: " HOLDS=1", undone: " UNDOS=1"}
"""What `make simulate` is told to draw such histories."""


def raced(history: History) -> History:
    """Let others often come in between two calls of one request."""
    return replace(
        history,
        steps=tuple(
            ("race" if word == "hurry" else word, number) for word, number in history.steps
        ),
    )


@dataclass
class Outcome:
    """How a history went: its log, and what was violated, if anything was."""

    log: list[str]
    events: list[str]
    error: str = ""


def play(
    history: History, make: Make = in_memory, steps: Sequence[Step] | None = None
) -> Outcome:
    """Play a history, or other steps in its setting, and check it."""
    world = make(history.setting)
    outcome = Outcome(world.log, [])
    with machine(world):
        try:
            world.play(history.steps if steps is None else steps)
            world.end()
            results = [world.result(run_id) for run_id in world.watch.keys.values()]
            forks = [
                world.result(run_id)
                for run_id in sorted(world.watch.forks)
                if world.store.peek(run_id)
            ]
        except AssertionError as error:
            outcome.error = str(error)
            return outcome
        except Exception as error:  # noqa: BLE001 - whatever escapes the product's code is a finding
            outcome.error = f"escaped: {type(error).__name__}: {error}"
            return outcome
        outcome.events = world.events()
    rules = history.setting.rules
    replaces = bool(rules and rules.concurrency and rules.concurrency.when_full == "replace")
    cancelled = replaces or any(request.name == "cancel" for request in world.requests)
    try:
        wanted = expected(history.setting)
        compare(results, wanted, world.watch.retried, cancelled=cancelled)
        compare(forks, wanted, world.watch.forks, cancelled=False)
    except Violation as error:
        outcome.error = str(error)
    return outcome


def expected(setting: Setting) -> GraphResult:
    """Give the result of one run of a graph to which nothing happens."""
    world = in_memory(Setting(setting.plan))
    world.looks = 0
    with machine(world):
        world.end()
        return world.result(world.watch.keys["run0"])


def compare(
    results: Sequence[GraphResult],
    wanted: GraphResult,
    again: AbstractSet[str],
    *,
    cancelled: bool,
) -> None:
    """I11: a deterministic graph has one result, whatever happened on the way.

    Runs that did something `again` have other visits, but each node ends as it would have.
    """
    for result in results:
        if cancelled and (result.status is Status.CANCELLED or "@undo:" in result.reason):
            continue  # a cancelled run whose undo failed has failed
        must(result.status in FINAL, "liveness", f"a run is {result.status}")
        if (
            wanted.status is Status.FAILED
            and result.status is Status.FAILED
            and cut_short(wanted)
        ):
            continue  # under fail_fast, how far the other branches come is a matter of time
        summed = statuses if result.run_id in again else summary
        must(
            summed(result) == summed(wanted),
            "I11",
            f"{summed(result)}\nis not the result without faults:\n{summed(wanted)}",
        )


def cut_short(result: GraphResult) -> bool:
    """Tell whether a failure stopped the run."""
    return any(
        node.status is Status.CANCELLED for node in result.results.values()
    ) or "failed" in str(result)


def summary(result: GraphResult) -> tuple:
    """What of a result must not depend on how it came about."""
    nodes = {
        name: (
            node_result.status,
            node_result.visit,
            node_result.output,
            node_result.error and str(node_result.error).partition(" (run ")[0],
        )
        for name, node_result in result.results.items()
    }
    return result.status, sorted(Counter(result.execution_order).items()), nodes


def statuses(result: GraphResult) -> tuple:
    """What of a result must not depend on how often a part of it was done."""
    ends = {name: (node.status, node.output is None) for name, node in result.results.items()}
    return result.status, ends


def kind_of(error: str) -> str:
    """Name what an error violates, so that a shorter history is one of the same fault."""
    return error.partition(":")[0]


def shortest(history: History, error: str, make: Make = in_memory) -> tuple[Step, ...]:
    """Drop steps, many and then few at a time, as long as the history fails in the same way."""
    steps, size = list(history.steps), len(history.steps) // 2
    while size:
        place = 0
        while place < len(steps):
            fewer = steps[:place] + steps[place + size :]
            if kind_of(play(history, make, fewer).error) == kind_of(error):
                steps = fewer
            else:
                place += size
        size //= 2
    return tuple(steps)


def report(history: History, error: str, make: Make = in_memory, command: str = "") -> str:
    """Write what somebody needs to understand a seed that fails."""
    steps = shortest(history, error, make)
    final = play(history, make, steps)
    return "\n".join(
        [
            f"seed {history.seed}: {error}",
            f"again: {command or f'make simulate FROM={history.seed} SEEDS=1'}",
            f"graph: {history.setting}",
            f"shortest history that fails so ({len(steps)} of {len(history.steps)} steps): {list(steps)}",
            f"it says: {final.error}",
            *final.log,
        ]
    )
