"""Ours beside LangGraph, DBOS, Restate and Temporal: the same jobs in interleaved rounds.

`python -m bench.peers --python build/peers/bin/python [--only dbos] [--rounds 3]`; `make bench-peers`
installs what it needs first. Each peer has a process of its own, which does one job at a time. A peer that
can't be started, or a job that it can't do, stands in the table with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from statistics import median
from threading import Thread
from typing import Any

from rich.console import Console

from bench import results
from bench.grid import Grid, number
from bench.meter import percentiles, tree_cpu
from bench.peers.program import (
    ANSWERS,
    FLOWS,
    LENGTH,
    OUTSTANDING,
    SINGLE,
    STEPS,
    WIDTH,
    flow_jobs,
)
from bench.site import OURS, PATIENCE, Site, site, wait_for
from runner.records.run import Status

FOLDER = Path(__file__).parent
JOBS = {
    "chain": LENGTH,
    "fan": WIDTH + 2,
    "resume": ANSWERS,
    "flow": SINGLE * STEPS,
    "flows": FLOWS,
}
"""What is done in turn, and of how many it is; processor time is measured for each of them."""

TIMES = ("resume", "flow")
"""Jobs that take times; the others have a rate."""
PEERS = {
    "LangGraph, durability async": ("langgraph_postgres.py", "postgres", "async"),
    "LangGraph, durability sync": ("langgraph_postgres.py", "postgres", "sync"),
    "DBOS": ("dbos_postgres.py", "postgres"),
    "Temporal's dev server": ("temporal_dev.py",),
    "Restate": ("restate_server.py",),
}
PATIENT = 180.0
"""Seconds for a start, or for a job."""

LOOK_EVERY = 0.2
"""Seconds between two looks at whether a program that says nothing still runs."""

ROUNDS = 3
GRAPHS = (f"chain{LENGTH}", f"fan{WIDTH}", "asking", "short")


class Unavailable(Exception):
    """A peer that can't be started, or a job that it can't do; says why."""


class Ours:
    """Our side: a worker of threads, and what drives it."""

    def __init__(self, bench: Site) -> None:
        """Take a site that runs."""
        self._bench = bench
        self.versions = {
            "celery": version("celery"),
            "server": bench.version(),
            "commit": results.machine()["commit"],
        }

    def cpu(self) -> float:
        """Return the processor seconds of the worker; the server's stand beside it."""
        return tree_cpu(self._bench.workers[OURS].pid)

    def do(self, job: str) -> dict[str, Any]:
        """Do a job."""
        jobs = {
            "chain": lambda: self._bench.run(f"chain{LENGTH}"),
            "fan": lambda: self._bench.run(f"fan{WIDTH}"),
            "resume": lambda: [self._answer() for _ in range(ANSWERS)],
            **flow_jobs(lambda: self._bench.client.start("short", None).wait(PATIENCE)),
        }
        began = time.perf_counter()
        times = jobs[job]()
        return {"seconds": time.perf_counter() - began, "times": times or []}

    def _answer(self) -> float:
        run = self._bench.client.start("asking", None)
        question = run.wait(PATIENCE).interrupts[0].id
        sent = time.time()
        self._bench.answer(question)
        wait_for(lambda: run.status is Status.COMPLETED, "the answer was used")
        return (run.result().results["ask"].output - sent) * 1000

    def end(self) -> None:
        """Do nothing: the site ends by itself."""


class Peer:
    """The program of a peer, which works on request, and all processes that it starts."""

    def __init__(self, command: list[str], log: Path) -> None:
        """Start it.

        Raises:
            Unavailable: it did not start.
        """
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                cwd=FOLDER,
                start_new_session=True,
            )
        self._lines: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.versions = self._reply()["versions"]
        except BaseException:
            self.end()
            raise

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def _reply(self) -> dict[str, Any]:
        """Return the next line that is a JSON object: libraries and servers write others between them."""
        deadline = time.monotonic() + PATIENT
        while True:
            try:
                line = self._lines.get(timeout=LOOK_EVERY)
            except Empty:
                if self._process.poll() is None:
                    if time.monotonic() < deadline:
                        continue
                    self.end()
                    raise Unavailable(f"no answer within {PATIENT:g} s") from None
                line = ""  # a server that it has started keeps its output open
            if not line:
                said = self._log.read_text(errors="replace").strip().splitlines()
                raise Unavailable(said[-1] if said else "its process has ended")
            with suppress(ValueError):
                reply = json.loads(line)
                if isinstance(reply, dict):
                    if "error" in reply:
                        raise Unavailable(reply["error"])
                    return reply

    def cpu(self) -> float:
        """Return the processor seconds of its process, and of a server that it started."""
        return tree_cpu(self._process.pid)

    def do(self, job: str) -> dict[str, Any]:
        """Do a job.

        Raises:
            Unavailable: it can't; the error says why.
        """
        if self._process.poll() is not None or self._process.stdin is None:
            raise Unavailable("its process has ended")
        self._process.stdin.write(f"{job}\n")
        self._process.stdin.flush()
        return self._reply()

    def end(self) -> None:
        """End its processes, those too whose parent is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join()
        with suppress(BrokenPipeError):
            self._process.communicate()


def _programs() -> Path:
    """Return the folder of Postgres' programs, which Debian keeps off PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found else Path(shutil.which("initdb") or "").parent


def _postgres_version() -> str:
    command = [str(_programs() / "postgres"), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[2]


@contextmanager
def postgres() -> Iterator[str]:
    """Run a private Postgres with its default settings; yield what gives a new database its URL.

    Raises:
        Unavailable: there is none on this machine.
    """
    programs = _programs()
    if not (programs / "initdb").exists():
        raise Unavailable("there is no Postgres: apt install postgresql")
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    with tempfile.TemporaryDirectory() as folder:
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        data = f"{folder}/data"

        def call(program: str, *arguments: str, check: bool = True) -> None:
            command = [str(programs / program), *arguments]
            subprocess.run(
                command, user=user, check=check, stdout=subprocess.DEVNULL, cwd=folder
            )

        call("initdb", "--no-sync", "--pgdata", data, "--auth", "trust", "--username", "bench")
        options = f"-k {folder} -c listen_addresses='' -c max_connections=200"
        try:
            call(
                "pg_ctl",
                "--pgdata",
                data,
                "--wait",
                "--log",
                f"{folder}/log",
                "--options",
                options,
                "start",
            )
            yield f"postgresql://bench@/{{}}?host={folder}"
        finally:
            call("pg_ctl", "--pgdata", data, "--mode", "immediate", "stop", check=False)


def measure(python: str, only: list[str], rounds: int) -> dict[str, Any]:
    """Start all that can be started, and let each do each job in turn."""
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides: dict[str, Ours | Peer] = {
            "ours": Ours(stack.enter_context(site("threads", sides=(OURS,), graphs=GRAPHS)))
        }
        figures["ours"] = {"versions": sides["ours"].versions}
        database = ""
        try:
            database = stack.enter_context(postgres())
        except (Unavailable, OSError, subprocess.CalledProcessError) as error:
            figures["Postgres"] = {"error": str(error)}
        for place, (name, (program, *options)) in enumerate(PEERS.items()):
            if only and not any(word.lower() in name.lower() for word in only):
                continue
            try:
                arguments = [
                    make_database(database, place) if option == "postgres" else option
                    for option in options
                ]
                sides[name] = Peer([python, program, *arguments], folder / f"peer{place}.log")
            except (Unavailable, OSError, subprocess.SubprocessError) as error:
                figures[name] = {"error": str(error)}
                continue
            stack.callback(sides[name].end)
            server = {"Postgres": _postgres_version()} if "postgres" in options else {}
            figures[name] = {"versions": sides[name].versions | server}
        _rounds(sides, figures, rounds)
    return figures


def make_database(url: str, place: int) -> str:
    """Make a database for one peer, and return its URL."""
    if not url:
        raise Unavailable("there is no Postgres: apt install postgresql")
    name = f"peer{place}"
    _ask_postgres(url.format("postgres"), f"CREATE DATABASE {name}")
    return url.format(name)


def database_bytes(url: str) -> int:
    """Return the size of a peer's database."""
    return int(_ask_postgres(url, "SELECT pg_database_size(current_database())"))


def _ask_postgres(url: str, command: str) -> str:
    psql = [shutil.which("psql") or "psql", "--quiet", "--no-align", "--tuples-only", url]
    done = subprocess.run([*psql, "--command", command], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def _rounds(sides: dict[str, Ours | Peer], figures: dict[str, Any], rounds: int) -> None:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for turn in range(rounds + 1):
        for job, nodes in JOBS.items():
            for name, side in sides.items():
                if isinstance(figures[name].get(job), str):
                    continue
                try:
                    cpu = side.cpu()
                    done = side.do(job)
                    done["python_us"] = (side.cpu() - cpu) / nodes * 1e6
                except (Unavailable, OSError) as error:
                    figures[name][job] = str(error)
                    continue
                if turn:  # the first round warms everything up
                    found.setdefault((name, job), []).append(done)
    for (name, job), done in found.items():
        if not isinstance(figures[name].get(job), str):
            figures[name][job] = _sum_up(job, done)


def _sum_up(job: str, done: list[dict[str, Any]]) -> dict[str, float]:
    if job in TIMES:
        return percentiles([time for each in done for time in each["times"]])
    return {
        "rate": median(JOBS[job] / each["seconds"] for each in done),
        "python_us": median(each["python_us"] for each in done),
    }


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each side, with the reason where there is no figure."""
    rows = []
    for name, found in figures.items():
        cells = [_cell(found, job) for job in JOBS]
        versions = ", ".join(
            f"{package} {number}" for package, number in found.get("versions", {}).items()
        )
        rows.append([name, *cells, versions or "-"])
    reasons = [
        f"{name}: {found['error']}" for name, found in figures.items() if "error" in found
    ]
    reasons += [
        f"{name}, {job}: {found[job]}"
        for name, found in figures.items()
        for job in JOBS
        if isinstance(found.get(job), str)
    ]
    note = "Not measured. " + "; ".join(reasons) + "." if reasons else ""
    return [
        Grid(
            "Peers",
            [
                "",
                "chain nodes/s",
                "fan nodes/s",
                "resume ms p50, p95",
                "flow ms p50, p95",
                f"flows/s, {OUTSTANDING} outstanding",
                "versions",
            ],
            rows,
            note,
        )
    ]


def _cell(found: dict[str, Any], job: str) -> str:
    done = found.get(job)
    if not isinstance(done, dict):
        return "not measured"
    if job in TIMES:
        return f"{number(done['p50'])}, {number(done['p95'])}"
    return f"{number(done['rate'])} ({number(done['python_us'])} us)"


def end_all_at_termination() -> None:
    """Make SIGTERM end everything that was started, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def main() -> None:
    """Read the command line, measure, print."""
    end_all_at_termination()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has the peers"
    )
    parser.add_argument("--only", default="", help="parts of their names, with commas between")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    before = results.machine()
    only = [word for word in chosen.only.split(",") if word]
    figures = measure(str(Path(chosen.python).absolute()), only, chosen.rounds)
    results.write("peers", "", figures, before)
    for grid in grids("", figures):
        grid.show(Console(width=180))
        Console(width=180).print(grid.note)


if __name__ == "__main__":
    main()
