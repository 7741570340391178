"""DBOS with Postgres, in this process: `dbos_postgres.py URL`. A node is a step of a workflow.

The fan's nodes are steps that one workflow starts together; its join is the step after them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from importlib.metadata import version

from dbos import DBOS, DBOSConfig, SetWorkflowID
from program import ANSWERS, FIRST, LENGTH, STEPS, WIDTH, approval_jobs, flow_jobs, serve

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


@DBOS.workflow()
async def refund() -> float:
    """Wait for a message as a coroutine, then take a step."""
    await DBOS.recv_async("go", timeout_seconds=86_400)
    return moment()


async def begin() -> str:
    """Start a workflow that waits."""
    return (await DBOS.start_workflow_async(refund)).workflow_id


def page() -> list:
    """List the first workflows that have not ended."""
    return DBOS.list_workflows(status="PENDING", name="refund", limit=FIRST)


def decide(workflow: str) -> float:
    """Send the message, and return when the step after it ran."""
    DBOS.send(workflow, True, "go")  # noqa: FBT003 - the message
    return DBOS.retrieve_workflow(workflow).get_result()


def whole(workflow: object, nodes: int) -> None:
    """Run a workflow to its end."""
    count = asyncio.run(fan()) if workflow is fan else workflow()
    if count != nodes:
        raise ValueError(f"{count} steps ran, not {nodes}")


LOOP = asyncio.new_event_loop()
"""The loop of the workflows that wait."""
threading.Thread(target=LOOP.run_forever, daemon=True).start()

DBOS.launch()
serve(
    {"dbos": version("dbos")},
    {
        "chain": lambda: whole(chain, LENGTH),
        "fan": lambda: whole(fan, WIDTH + 2),
        "resume": resume,
        **flow_jobs(lambda: whole(flow, STEPS)),
        **approval_jobs(
            lambda: asyncio.run_coroutine_threadsafe(begin(), LOOP).result(), page, decide
        ),
    },
)
DBOS.destroy()
