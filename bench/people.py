"""Part `people`: votes and pages while 200 people look at an inbox of 2,000 questions, 50 decide; streams."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from bench.grid import Grid, milliseconds, number
from bench.meter import percentiles
from bench.site import OURS, Site, site, wait_for, worker
from runner import Run
from runner.dev.supervised_process import SupervisedProcess
from runner.records.listings import InterruptQuery

POOLS = False

QUESTIONS, READERS, VOTERS = 2_000, 200, 50

LOOK = 3.0
"""Seconds from one look at the inbox to the next."""

LOOKS_FOR = 8.0
"""Seconds for which people only look, before the first vote."""

THINK = 2.0
"""Seconds between what somebody was shown and their vote."""

STREAMS, STREAMS_EACH = 1_000, 5

PROCESSES = 2

MB = 1024


class Connection:
    """A kept connection of one person, which is opened again when it was cut."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1:{port}\r\nX-Forwarded-User: {name}\r\nX-Forwarded-Groups: finance\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(
        self, request: str, headers: str = "", body: str = ""
    ) -> asyncio.StreamReader:
        """Send a request, and return what its answer is read from."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        size = f"Content-Length: {len(body)}\r\n" if body else ""
        writer.write(f"{request} HTTP/1.1\r\n{self._head}{headers}{size}\r\n{body}".encode())
        await writer.drain()
        return reader

    async def send(self, request: str, headers: str = "", body: str = "") -> tuple[int, bytes]:
        """Send a request, and return status and body.

        Raises:
            OSError: there was no answer.
        """
        try:
            reader = await self.open(request, headers, body)
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = re.findall(rb"(?i)content-length: (\d+)", head) or [b"0"]
            return int(head[9:12]), await reader.readexactly(int(length))
        except (OSError, EOFError) as error:
            self.close()
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def vote_on(question: str, digest: str) -> tuple[str, str, str]:
    """Return the request of a vote: its line, headers and body."""
    headers = f'If-Match: "{digest}"\r\nIdempotency-Key: {question}\r\n'
    return (
        f"POST /v1/questions/{question}/votes",
        f"{headers}Content-Type: application/json\r\n",
        '{"decision": "approve"}',
    )


class Crowd:
    """People at a server, and how long they waited."""

    def __init__(self, port: int, questions: list[str]) -> None:
        self.port, self.questions = port, iter(questions)
        self.times: dict[str, list[float]] = {}
        self.refused: Counter[str] = Counter()
        self.acknowledged: dict[str, str] = {}
        self.half = asyncio.Event()
        self.ends, self.seconds = False, 0.0

    async def timed(
        self, kind: str, connection: Connection, *request: str
    ) -> tuple[int, bytes]:
        """Send a request until it is answered, and note how long that took."""
        began = perf_counter()
        while True:
            try:
                status, body = await connection.send(*request)
            except OSError:
                status, body = 0, b""
            if status not in {0, 503}:
                break
            self.refused[f"{kind} {status}"] += 1
            await asyncio.sleep(0.2)
            began = perf_counter()
        self.times.setdefault(kind, []).append((perf_counter() - began) * 1000)
        return status, body

    async def look(self, place: int) -> None:
        """Look at the inbox every few seconds."""
        connection = Connection(self.port, f"reader{place}")
        await asyncio.sleep(LOOK * place / READERS)
        while not self.ends:
            begins = monotonic()
            status, _ = await self.timed(
                "page", connection, "GET /inbox", "Accept: text/html\r\n"
            )
            self.refused[f"page {status}"] += status != 200
            await asyncio.sleep(max(0, begins + LOOK - monotonic()))
        connection.close()

    async def decide(self, place: int, think: float) -> None:
        """Open the next question, think, vote."""
        connection = Connection(self.port, f"voter{place}")
        await asyncio.sleep(think * place / VOTERS)
        for question in self.questions:
            _, body = await self.timed("question", connection, f"GET /v1/questions/{question}")
            await asyncio.sleep(think)
            vote = vote_on(question, json.loads(body)["digest"])
            status, _ = await self.timed("vote", connection, *vote)
            self.refused[f"vote {status}"] += status != 200
            if status == 200:
                self.acknowledged[question] = f"voter{place}"
            if len(self.acknowledged) >= QUESTIONS / 2:
                self.half.set()
        connection.close()

    async def probe(self) -> None:
        """Ask for health twice a second, each time by a new connection, as probes do."""
        while not self.ends:
            connection = Connection(self.port, "")
            await self.timed("health", connection, "GET /healthz")
            connection.close()
            await asyncio.sleep(0.5)

    async def work(self, think: float, kill: Callable[[], None] | None = None) -> None:
        """Look and decide until nothing is open; `kill` is called when half is decided."""
        around = [asyncio.create_task(self.look(place)) for place in range(READERS)]
        around.append(asyncio.create_task(self.probe()))
        began = monotonic()
        await asyncio.sleep(LOOKS_FOR)
        voters = [asyncio.create_task(self.decide(place, think)) for place in range(VOTERS)]
        if kill is not None:
            await self.half.wait()
            await asyncio.to_thread(kill)
        await asyncio.gather(*voters)
        self.seconds = monotonic() - began
        self.ends = True
        await asyncio.gather(*around)


class Server:
    """`runner server` with some processes, which can be killed and started again."""

    def __init__(self, url: str, folder: Path, processes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._log = folder / "server.log"
        options = ["--port", str(self.port), "--workers", str(processes), "--auth", "proxy"]
        self._command = [sys.executable, "-m", "runner.server", *options]
        self._command += ["--role-of", "finance=approver"]
        self._environment = {"RUNNER_REDIS_URL": url, "RUNNER_SERVER_SECRET": "bench"}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        began = self._log.read_text().count("startup complete") if self._log.exists() else 0
        self.process = SupervisedProcess(
            self._command, log=self._log, environment=self._environment
        )
        wait_for(
            lambda: (
                self._log.exists() and self._log.read_text().count("startup complete") > began
            ),
            "the server serves",
        )

    def pids(self) -> list[int]:
        """List its processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [self.process.pid, *map(int, children.read_text().split())]

    def kill(self) -> None:
        """End all of it with SIGKILL."""
        others = self.pids()[1:]
        self.process.kill()
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.end()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def megabytes(self) -> float:
        """Return the resident memory of all of it."""
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids()]
        return sum(int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) for text in statuses) / MB


@contextmanager
def office(processes: int) -> Iterator[tuple[Site, Server]]:
    """Run a store with two workers and a server."""
    with (
        tempfile.TemporaryDirectory() as folder,
        site("threads", sides=(OURS,), graphs=["approval"]) as made,
    ):
        ours = {
            "RUNNER_REDIS_URL": made.urls[OURS],
            "RUNNER_GRAPHS": "bench.graphs",
            "RUNNER_EVENTS": "0",
            "BENCH_GRAPHS": "approval",
        }
        second = worker("runner.celery:app", "threads", 8, Path(folder, "second.log"), ours)
        server = Server(made.urls[OURS], Path(folder), processes)
        try:
            yield made, server
        finally:
            server.kill()
            second.kill()
            second.end()


def asked(made: Site) -> dict[str, Run]:
    """Start runs, and return them by their questions when all are open."""
    client, everything = made.client, [InterruptQuery()]
    store = client.engine.store
    before = sum(store.count_questions(everything))
    runs = [client.start("approval", place) for place in range(QUESTIONS)]
    wait_for(
        lambda: sum(store.count_questions(everything)) == before + QUESTIONS, "all have asked"
    )
    return {run.interrupts()[0].id: run for run in runs}


def work(processes: int, think: float, *, kills: bool) -> dict[str, Any]:
    """Let people look and decide."""
    with office(processes) as (made, server):
        runs = asked(made)
        crowd = Crowd(server.port, list(runs))
        load = os.getloadavg()[0]
        asyncio.run(crowd.work(think, server.restart if kills else None))
        wait_for(
            lambda: all(made.ended(runs[question].id) for question in crowd.acknowledged),
            "what was decided has run",
        )
        store = made.client.engine.store
        wrong = sum(
            [vote["by"] for vote in store.votes(question)] != [f"human:|{name}"]
            for question, name in crowd.acknowledged.items()
        )
    return {
        **{kind: percentiles(times) for kind, times in crowd.times.items()},
        "refused": +crowd.refused,
        "votes": len(crowd.acknowledged),
        "lost or double": wrong,
        "all seconds": crowd.seconds,
        "load": [load, os.getloadavg()[0]],
    }


def listen() -> dict[str, Any]:
    """Open the streams of many people on one process, and tell all of an event."""
    with office(1) as (made, server):
        before = server.megabytes()
        run = made.client.start("approval", 0)
        question = run.wait(60).interrupts[0]

        async def stream(place: int) -> float:
            connection = Connection(server.port, f"reader{place // STREAMS_EACH}")
            reader = await connection.open(
                f"GET /v1/runs/{run.id}/events", "Accept: text/event-stream\r\n"
            )
            await reader.readuntil(b"event: snapshot")
            opened.append(place)
            if len(opened) == STREAMS:
                all_open.set()
            await ready.wait()
            await reader.readuntil(b"event: interrupt.answered")
            connection.close()
            return perf_counter()

        opened: list[int] = []
        all_open, ready = asyncio.Event(), asyncio.Event()

        async def everybody() -> tuple[float, list[float]]:
            streams = [asyncio.create_task(stream(place)) for place in range(STREAMS)]
            await all_open.wait()
            memory = server.megabytes()
            ready.set()
            began = perf_counter()
            vote = vote_on(question.id, question.digest)
            await Connection(server.port, "voter").send(*vote)
            ends = await asyncio.gather(*streams)
            return memory, [(end - began) * 1000 for end in ends]

        memory, times = asyncio.run(everybody())
    return {"before": before, "megabytes": memory, "heard": percentiles(times)}


def run(_pool: str, _rounds: int, _sizes: list[int]) -> dict[str, Any]:
    """Work with pauses, in the middle of which the server is killed; without; on one process; then listen."""
    return {
        "two processes, killed once": work(PROCESSES, THINK, kills=True),
        "two processes": work(PROCESSES, THINK, kills=False),
        "two processes, votes without a pause": work(PROCESSES, 0, kills=False),
        "one process": work(1, THINK, kills=False),
        "streams": listen(),
    }


def grids(_pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show what people waited for."""
    rows = [
        [
            name,
            *(milliseconds(found[kind], "p50", "p95") for kind in ("vote", "health", "page")),
            f"{found['page']['count'] / found['all seconds']:.0f}",
            f"{found['votes']:,}, {found['lost or double']}",
            ", ".join(f"{load:.1f}" for load in found["load"]),
        ]
        for name, found in figures.items()
        if name != "streams"
    ]
    note = (
        f"{READERS} people look at the inbox every {LOOK:g} s, and {VOTERS} open a question and vote "
        f"{THINK:g} s later, until {QUESTIONS:,} are decided; two workers run what was decided. All of it, "
        "these people too, has the same cores. The load is the machine's before and after. Of the votes that "
        "were acknowledged those are lost or double whose question has not just this vote."
    )
    columns = ["ms", "vote", "health", "page", "pages/s", "votes, lost or double", "load"]
    streams = figures["streams"]
    cells = [f"{STREAMS:,}", number(streams["megabytes"]), number(streams["before"])]
    heard = [
        "streams",
        "MB of the process",
        "MB before",
        "ms until all heard an event: p50, p95",
    ]
    return [
        Grid("A full inbox", columns, rows, note),
        Grid("Streams", heard, [[*cells, milliseconds(streams["heard"])]]),
    ]
