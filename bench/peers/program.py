"""How the program of a peer is driven: a job's name on a line in, what it took as JSON on a line out.

The programs run in an environment of their own, without this library; this file needs nothing else, too.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

LENGTH, WIDTH, ANSWERS = 100, 500, 40
"""Nodes of the chain, nodes between the first one and the join of the fan, answers of one round."""

STEPS, SINGLE, FLOWS, OUTSTANDING = 3, 100, 320, 16
"""Nodes of a flow, flows of a round one at a time, flows of a round together, how many of these at once."""

FIRST, LOOKS = 50, 7
"""Questions of a page, and pages whose median counts."""

Job = Callable[..., object]


def serve(versions: Mapping[str, str], jobs: Mapping[str, Job]) -> None:
    """Say which versions run, then do each job that is asked for, with its counts; an error is its answer."""
    reply({"versions": dict(versions)})
    for line in sys.stdin:
        name, *counts = line.split()
        job = jobs.get(name)
        if job is None:
            reply({"error": f"there is no {name} of it"})
            continue
        began = perf_counter()
        try:
            times = job(*map(int, counts))
        except Exception as error:  # noqa: BLE001 - the driver reports whatever it is
            traceback.print_exc()
            reply({"error": f"{type(error).__name__}: {error}"})
        else:
            reply(
                {
                    "seconds": perf_counter() - began,
                    "times": times if isinstance(times, list) else [],
                }
            )


def flow_jobs(flow: Job) -> dict[str, Job]:
    """Return the jobs for flows, each of which `flow` runs to its end: one at a time, and many at once."""

    def single() -> list[float]:
        times = []
        for _ in range(SINGLE):
            began = perf_counter()
            flow()
            times.append((perf_counter() - began) * 1000)
        return times

    def together() -> None:
        with ThreadPoolExecutor(OUTSTANDING) as threads:
            list(threads.map(lambda _: flow(), range(FLOWS)))

    return {"flow": single, "flows": together}


def approval_jobs(
    ask: Callable[[], str], page: Callable[[], object], decide: Callable[[str], float]
) -> dict[str, Job]:
    """Return the jobs for approvals, whose functions belong to the side.

    `ask` starts work that waits for a decision and returns its name, `page` lists the first questions,
    and `decide` decides one and returns when what it allows ran, in seconds since 1970.
    """
    waiting: deque[str] = deque()

    def ask_all(count: int) -> None:
        with ThreadPoolExecutor(OUTSTANDING) as threads:
            waiting.extend(threads.map(lambda _: ask(), range(count)))

    def list_first() -> list[float]:
        times = []
        for _ in range(LOOKS):
            began = perf_counter()
            page()
            times.append((perf_counter() - began) * 1000)
        return times

    def decide_each(count: int) -> list[float]:
        times = []
        for _ in range(count):
            sent = time.time()
            times.append((decide(waiting.popleft()) - sent) * 1000)
        return times

    def decide_together(count: int) -> None:
        names = [waiting.popleft() for _ in range(count)]
        with ThreadPoolExecutor(OUTSTANDING) as threads:
            list(threads.map(decide, names))

    return {
        "ask": ask_all,
        "page": list_first,
        "decide": decide_each,
        "decide_all": decide_together,
    }


def reply(document: object) -> None:
    """Write one line."""
    sys.__stdout__.write(json.dumps(document) + "\n")  # type: ignore[union-attr] - a program has it
    sys.__stdout__.flush()  # type: ignore[union-attr] - as above
