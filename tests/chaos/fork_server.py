"""Workers that are forked from one warm process, and started again when they die.

Booting a worker costs two seconds of processor time, nearly all of it imports. A fork server pays that
once: it forks each of its workers, and forks another one when a worker has ended, as a supervisor of
a real site does. A worker and its children are a process group of their own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from runner.dev.supervised_process import SupervisedProcess
from tests.celery.workers import SETTINGS
from tests.processes import is_alive
from tests.waiting import wait_until

WARM = (
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.worker.consumer",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "runner.agent",
    "runner.celery.application",
    "tests.celery.graphs",
)


@dataclass(frozen=True)
class WorkerSpec:
    """How to start one worker; with `restart` another one takes its place when it has ended."""

    name: str
    log: str
    app: str = "runner.celery:app"
    pool: str = "threads"
    slots: int = 4
    restart: bool = True
    settings: dict[str, str] = field(default_factory=dict)


class ForkedWorker:
    """A worker of the fork server, as tests know workers: the process that has the place now."""

    def __init__(self, spec: WorkerSpec, server: ForkServer) -> None:
        self.spec, self.log, self._server = spec, Path(spec.log), server

    @property
    def pids(self) -> list[int]:
        """All processes that had the place so far, the present one last."""
        pids = self.log.with_suffix(".pids")
        return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []

    @property
    def pid(self) -> int:
        return self.pids[-1]

    @property
    def alive(self) -> bool:
        return is_alive(self.pid)

    def output(self) -> str:
        return (
            self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        )

    def wait_ready(self) -> None:
        """Wait until the place has been filled and its first worker takes work."""

        def ready():
            self._server.check()
            return "worker.ready:" in self.output() and "ready." in self.output().replace(
                "worker.ready:", ""
            )

        wait_until(ready, f"{self.spec.name} is ready", seconds=150)

    def kill(self) -> None:
        """End the worker and its children as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Leave it to the fork server, which would start another one."""


class ForkServer:
    """The warm process of a test module."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._specs, self._guard = folder, [], None
        self._log = folder / "fork_server.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(
        self,
        site,
        name: str,
        *,
        app="runner.celery:app",
        pool="threads",
        slots=4,
        restart=True,
        **settings,
    ):
        """Add a worker for a site; it begins with `start`."""
        log = self._folder / f"{name}.log"
        environment = {
            "RUNNER_REDIS_URL": site.url,
            "RUNNER_EVENTS": "false",
            **SETTINGS,
            **settings,
        }
        spec = WorkerSpec(name, str(log), app, pool, slots, restart, environment)
        self._specs.append(spec)
        site.workers.append(ForkedWorker(spec, self))
        return site.workers[-1]

    def start(self) -> None:
        """Fork all workers."""
        register = self._folder / "specs.json"
        register.write_text(
            json.dumps([asdict(spec) for spec in self._specs]), encoding="utf-8"
        )
        command = [sys.executable, "-m", "tests.chaos.fork_server", str(register)]
        self._log.touch()
        self._guard = SupervisedProcess(command, log=self._log)

    @contextlib.contextmanager
    def running(self, *sites) -> Iterator[None]:
        """Fork all workers, wait until those of these sites take work, and end the sites at last."""
        self.start()
        for site in sites:
            for worker in site.workers:
                worker.wait_ready()
        yield
        for site in sites:
            site.end()

    def check(self) -> None:
        """Fail with its log when it has ended, as it does when a module can't be imported."""
        assert self._guard.alive(), self._log.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        """End all, also those that are frozen."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.end()
        for spec in self._specs:
            worker = ForkedWorker(spec, self)
            if worker.pids:
                worker.kill()


def main(register: str) -> None:
    """Fork all workers, and another one for each that ends, until this process is killed."""
    specs = [
        WorkerSpec(**fields)
        for fields in json.loads(Path(register).read_text(encoding="utf-8"))
    ]
    for name in {*WARM, *(spec.settings["RUNNER_GRAPHS"] for spec in specs)}:
        for module in name.split(","):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is here stays: forks need not look at it again, nor copy it
    line, ours = os.pipe()
    running = {_fork(spec, line, ours): spec for spec in specs}
    while running:
        pid, _ = os.wait()
        spec = running.pop(pid)
        if spec.restart:
            running[_fork(spec, line, ours)] = spec


def _fork(spec: WorkerSpec, line: int, ours: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(ours)
        _serve(spec, line)
    except BaseException:  # noqa: BLE001 - a fork of this program must never return into it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve(spec: WorkerSpec, line: int) -> None:
    os.setpgid(0, 0)
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with Path(spec.log).with_suffix(".pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    os.environ.update(spec.settings)
    _end_with(line)
    os.register_at_fork(after_in_child=lambda: _end_with(line))
    module, _, name = spec.app.partition(":")
    app = getattr(importlib.import_module(module), name)
    pool = ["--pool", spec.pool, "--concurrency", str(spec.slots)]
    app.worker_main(["worker", *pool, "--loglevel", "info", "--hostname", f"{spec.name}@%h"])


def _end_with(line: int) -> None:
    """End this process with the fork server: the other end of the line is open as long as that lives."""

    def watch() -> None:
        os.read(line, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-fork-server", daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
