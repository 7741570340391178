"""Play many seeds: `python -m tests.simulation --seeds 5000 --from 1`; the first that fails is explained."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable

from runner.dev.embedded import embedded_store
from tests.simulation.history import (
    OPTIONS,
    History,
    Make,
    crowded,
    drawn,
    held,
    in_turns,
    keyed,
    play,
    raced,
    recovered,
    report,
    undone,
    voted,
)
from tests.simulation.on_redis import on_redis
from tests.simulation.world import in_memory

PROGRESS = 100
"""Seeds between two lines that say how far it is."""


def search(
    first: int, count: int, make: Make, store: str, draw: Callable[[int], History]
) -> int:
    """Play seeds until one fails; returns the exit code."""
    began = time.monotonic()
    for number, seed in enumerate(range(first, first + count), 1):
        history = draw(seed)
        history = raced(history) if store.endswith("races") else history
        error = play(history, make).error
        if error:
            command = f"make simulate FROM={seed} SEEDS=1{OPTIONS[draw]}"
            sys.stdout.write(report(history, error, make, f"{command} STORE={store}") + "\n")
            return 1
        if number % PROGRESS == 0 or number == count:
            sys.stdout.write(
                f"{number} seeds, {time.monotonic() - began:.0f} s: every promise held\n"
            )
            sys.stdout.flush()
    return 0


def main() -> int:
    """Read the arguments and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first one")
    parser.add_argument(
        "--store",
        choices=["memory", "redis", "partitions", "races", "partition-races"],
        help="default: memory, or redis for what several runs have in common",
    )
    parser.add_argument(
        "--votes", action="store_true", help="many questions have a rule, and people vote"
    )
    parser.add_argument("--recovery", action="store_true", help="runs are retried and forked")
    parser.add_argument("--fair", action="store_true", help="runs take turns")
    parser.add_argument("--limits", action="store_true", help="most nodes share a limit")
    parser.add_argument(
        "--keys", action="store_true", help="runs of a key exclude or follow each other"
    )
    parser.add_argument("--holds", action="store_true", help="nodes are held and released")
    parser.add_argument("--undos", action="store_true", help="failed runs undo their nodes")
    chosen = parser.parse_args()
    draws = {voted: chosen.votes, recovered: chosen.recovery, in_turns: chosen.fair}
    draws |= {crowded: chosen.limits, keyed: chosen.keys, held: chosen.holds}
    draws[undone] = chosen.undos
    draw = next((draw for draw, is_chosen in draws.items() if is_chosen), drawn)
    of_many_runs = draw in {recovered, in_turns, keyed}
    store = chosen.store or ("redis" if of_many_runs else "memory")
    if of_many_runs and store == "memory":
        parser.error("the memory store keeps one run: choose another --store.")
    logging.disable(logging.CRITICAL)  # planned outages are no news
    if store == "memory":
        return search(chosen.first, chosen.seeds, in_memory, store, draw)
    with embedded_store() as server:
        partitions = 2 if store.startswith("partition") else 1
        make = on_redis(server.url, partitions, races=store.endswith("races"))
        return search(chosen.first, chosen.seeds, make, store, draw)


if __name__ == "__main__":
    sys.exit(main())
