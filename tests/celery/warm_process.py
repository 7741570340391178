"""A warm process of the test session, from which workers are forked.

Booting a worker costs more than a second of processor time, nearly all of it imports. They are done once
here; only the app and the graphs that a worker's settings name are imported by the fork.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from celery import concurrency
from celery.__main__ import main as celery_command

ROOT = Path(__file__).parents[2]
KILLED_WITHIN = 10.0
MODULES = (
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
)


class ForkedProcess:
    """A run of `celery`, or of a module's `main`, in a fork of the warm process, as a SupervisedProcess."""

    def __init__(
        self, words: Sequence[str], *, log: Path, environment: Mapping[str, str]
    ) -> None:
        self._sign, for_child = os.pipe()
        request = {
            "words": words,
            "log": str(log.absolute()),
            "folder": str(Path.cwd()),
            "environment": {**os.environ, **environment},
        }
        line = warm_process()
        socket.send_fds(line, [f"{json.dumps(request)}\n".encode()], [for_child])
        os.close(for_child)
        self.pid = int(line.recv(32))

    def alive(self, seconds: float = 0) -> bool:
        """Return whether it still lives after up to `seconds`: it has the other end of the pipe."""
        return self._sign >= 0 and not select.select([self._sign], [], [], seconds)[0]

    def kill(self) -> None:
        if self._sign >= 0:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.alive(KILLED_WITHIN)

    def end(self) -> None:
        if self.alive():
            self.kill()
        if self._sign >= 0:
            os.close(self._sign)
            self._sign = -1


@functools.cache
def warm_process() -> socket.socket:
    """Start the warm process; it ends all its forks when this process has ended, however hard."""
    ours, theirs = socket.socketpair()
    paths = filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],  # a copy of the library on the path comes first
        stdin=theirs,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def main() -> None:
    """Fork a process for each request, until the line is closed."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here stays: forks need not look at it again, nor copy it
    line = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    forks: set[int] = set()
    while True:
        text, descriptors, _, _ = socket.recv_fds(line, 1 << 16, 1)
        if not text:
            break
        while not text.endswith(b"\n"):
            text += line.recv(1 << 16)
        forks -= {pid for pid in forks if os.waitpid(pid, os.WNOHANG)[0]}
        pid = os.fork()
        if not pid:
            line.close()
            become(**json.loads(text))
        forks.add(pid)
        os.close(descriptors[0])
        line.send(str(pid).encode())
    for pid in forks:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def become(words: list[str], log: str, folder: str, environment: dict[str, str]) -> NoReturn:
    """Be the process that was asked for, to its end."""
    os.setsid()
    for output in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), output)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    concurrency.ALIASES["custom"] = environment.get("CELERY_CUSTOM_WORKER_POOL")
    os.chdir(folder)
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys([folder, *paths, *sys.path])
    sys.argv = words
    if words[0] == "celery":
        celery_command()
    else:
        importlib.import_module(words[0]).main(*words[1:])
    raise SystemExit


if __name__ == "__main__":
    main()
