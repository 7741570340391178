"""DBOS with Postgres, in this process: `dbos_postgres.py URL`. A node is a step of a workflow.

The fan's nodes are steps that one workflow starts together; its join is the step after them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from importlib.metadata import version

from dbos import DBOS, DBOSConfig, SetWorkflowID
from program import ANSWERS, LENGTH, STEPS, WIDTH, flow_jobs, serve

DBOS(config=DBOSConfig(name="bench", system_database_url=sys.argv[1], log_level="ERROR"))


@DBOS.step()
def step() -> int:
    """Do nothing."""
    return 1


@DBOS.step()
async def parallel() -> int:
    """Do nothing, next to others."""
    return 1


@DBOS.workflow()
def chain() -> int:
    """Take one step after another."""
    return sum(step() for _ in range(LENGTH))


@DBOS.workflow()
def flow() -> int:
    """Take a few steps, one after another."""
    return sum(step() for _ in range(STEPS))


@DBOS.workflow()
async def fan() -> int:
    """Take one step, many together, and one more."""
    first = await parallel()
    branches = await asyncio.gather(*(parallel() for _ in range(WIDTH)))
    return first + sum(branches) + await parallel()


@DBOS.step()
def moment() -> float:
    """Say when it runs."""
    return time.time()


@DBOS.workflow()
def asking() -> float:
    """Wait for a message, then take a step."""
    DBOS.recv("go", timeout_seconds=60)
    return moment()


def resume() -> list[float]:
    """Answer, and take the time until the next step runs."""
    times = []
    for number in range(ANSWERS):
        with SetWorkflowID(f"asking-{time.time_ns()}-{number}"):
            handle = DBOS.start_workflow(asking)
        time.sleep(0.05)  # it waits by then
        sent = time.time()
        DBOS.send(handle.workflow_id, True, "go")  # noqa: FBT003 - the message
        times.append((handle.get_result() - sent) * 1000)
    return times


def whole(workflow: object, nodes: int) -> None:
    """Run a workflow to its end."""
    count = asyncio.run(fan()) if workflow is fan else workflow()
    if count != nodes:
        raise ValueError(f"{count} steps ran, not {nodes}")


DBOS.launch()
serve(
    {"dbos": version("dbos")},
    {
        "chain": lambda: whole(chain, LENGTH),
        "fan": lambda: whole(fan, WIDTH + 2),
        "resume": resume,
        **flow_jobs(lambda: whole(flow, STEPS)),
    },
)
DBOS.destroy()
