"""Workers that are forked from one warm process, and born again when they die.

Booting a worker costs two seconds of processor time, nearly all of it imports. A nursery pays that
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

from runner.guard import Guard
from tests.processes import is_alive
from tests.tasks.workers import SETTINGS
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
    "tasks.worker",
    "tests.tasks.graphs",
)


@dataclass(frozen=True)
class Birth:
    """What one worker is like; `again` says that another one follows it."""

    name: str
    log: str
    app: str = "tasks.app:app"
    pool: str = "threads"
    slots: int = 4
    again: bool = True
    settings: dict[str, str] = field(default_factory=dict)


class Nursling:
    """A worker of a nursery, as tests know workers: the process that has the place now."""

    def __init__(self, birth: Birth, nursery: Nursery) -> None:
        self.birth, self.log, self._nursery = birth, Path(birth.log), nursery

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

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def wait_ready(self) -> None:
        """Wait until the place has been filled and its first worker takes work."""

        def ready():
            self._nursery.check()
            return "worker.ready:" in self.said() and "ready." in self.said().replace("worker.ready:", "")

        wait_until(ready, f"{self.birth.name} is ready", seconds=60)

    def kill(self) -> None:
        """End the worker and its children as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Leave it to the nursery, which would fill the place again."""


class Nursery:
    """The warm process of a test module."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._births, self._guard = folder, [], None
        self._log = folder / "nursery.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(
        self, site, name: str, *, app="tasks.app:app", pool="threads", slots=4, again=True, **settings
    ):
        """Have a worker for a site, born when the nursery opens."""
        log = self._folder / f"{name}.log"
        given = {"RUNNER_REDIS_URL": site.url, "RUNNER_EVENTS": "false", **SETTINGS, **settings}
        birth = Birth(name, str(log), app, pool, slots, again, given)
        self._births.append(birth)
        site.workers.append(Nursling(birth, self))
        return site.workers[-1]

    def open(self) -> None:
        """Let all be born."""
        register = self._folder / "births.json"
        register.write_text(json.dumps([asdict(birth) for birth in self._births]), encoding="utf-8")
        command = [sys.executable, "-m", "tests.chaos.nursery", str(register)]
        self._log.touch()
        self._guard = Guard(command, log=self._log)

    @contextlib.contextmanager
    def raised(self, *sites) -> Iterator[None]:
        """Let all be born, wait until the workers of these sites take work, and end the sites at last."""
        self.open()
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
        for birth in self._births:
            nursling = Nursling(birth, self)
            if nursling.pids:
                nursling.kill()


def main(register: str) -> None:
    """Have all births, and another one for each that dies, until this process is killed."""
    births = [Birth(**each) for each in json.loads(Path(register).read_text(encoding="utf-8"))]
    for name in {*WARM, *(birth.settings["RUNNER_GRAPHS"] for birth in births)}:
        for module in name.split(","):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is here stays: forks need not look at it again, nor copy it
    line, ours = os.pipe()
    living = {_bear(birth, line, ours): birth for birth in births}
    while living:
        pid, _ = os.wait()
        birth = living.pop(pid)
        if birth.again:
            living[_bear(birth, line, ours)] = birth


def _bear(birth: Birth, line: int, ours: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(ours)
        _live(birth, line)
    except BaseException:  # noqa: BLE001 - a fork of this program must never return into it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _live(birth: Birth, line: int) -> None:
    os.setpgid(0, 0)
    log = os.open(birth.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with Path(birth.log).with_suffix(".pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    os.environ.update(birth.settings)
    _end_with(line)
    os.register_at_fork(after_in_child=lambda: _end_with(line))
    module, _, name = birth.app.partition(":")
    app = getattr(importlib.import_module(module), name)
    pool = ["--pool", birth.pool, "--concurrency", str(birth.slots)]
    app.worker_main(["worker", *pool, "--loglevel", "info", "--hostname", f"{birth.name}@%h"])


def _end_with(line: int) -> None:
    """End this process with the nursery: the other end of the line is open as long as that lives."""

    def watch() -> None:
        os.read(line, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="nursery", daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
