"""How the program of a peer is driven: a job's name on a line in, what it took as JSON on a line out.

The programs run in an environment of their own, without this library; this file needs nothing else, too.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

LENGTH, WIDTH, ANSWERS = 100, 500, 40
"""Nodes of the chain, nodes between the first one and the join of the fan, answers of one round."""

STEPS, SINGLE, FLOWS, OUTSTANDING = 3, 100, 320, 16
"""Nodes of a flow, flows of a round one at a time, flows of a round together, how many of these at once."""

Job = Callable[[], object]


def serve(versions: Mapping[str, str], jobs: Mapping[str, Job]) -> None:
    """Say which versions run, then do each job that is asked for; an error is the job's answer."""
    reply({"versions": dict(versions)})
    for line in sys.stdin:
        job = jobs.get(line.strip())
        if job is None:
            reply({"error": f"there is no {line.strip()} of it"})
            continue
        began = perf_counter()
        try:
            times = job()
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


def reply(document: object) -> None:
    """Write one line."""
    sys.__stdout__.write(json.dumps(document) + "\n")  # type: ignore[union-attr] - a program has it
    sys.__stdout__.flush()  # type: ignore[union-attr] - as above
