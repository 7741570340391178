"""Servers of a test's own, with any settings: killed, frozen and brought back at will."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import redis

from runner.embedded import find_server
from runner.guard import Guard
from tests.waiting import wait_until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Server:
    """One server on a loopback port that stays the same; its data is in a folder of its own.

    A setting's name is written with `_` for `-`. `options` go behind the configuration's name.
    """

    def __init__(self, folder: Path, *options: str, **settings: object) -> None:
        self.port = free_port()
        self.folder = folder / f"server{self.port}"
        self.folder.mkdir()
        given = {"save": '""', "appendfsync": "always", **settings}
        given |= {"bind": "127.0.0.1", "port": self.port, "dir": self.folder}
        lines = (f"{name.replace('_', '-')} {value}\n" for name, value in given.items())
        self._config, self.log = self.folder / "server.conf", self.folder / "server.log"
        self._config.write_text("".join(lines), encoding="utf-8")
        self._options = options
        self.client = redis.Redis(port=self.port, socket_timeout=5, retry=None)
        self._guard: Guard | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._guard.pid

    @property
    def alive(self) -> bool:
        return self._guard is not None and self._guard.alive()

    def begin(self) -> Server:
        """Start it, without waiting until it answers."""
        if self._guard is not None:
            self._guard.end()
        # A full disk must be an error that the server sees, not a signal that ends it.
        command = ["/bin/sh", "-c", 'trap "" XFSZ; exec "$@"', "server", str(find_server())]
        self._guard = Guard([*command, str(self._config), *self._options], log=self.log)
        return self

    def start(self) -> Server:
        self.begin()
        wait_until(self.answers, f"the server at {self.port} answers; its log is {self.log}", seconds=60)
        return self

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        """End it as a power cut would."""
        self._guard.kill()
        self.client.connection_pool.disconnect()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        self.client.close()
        if self._guard is not None:
            if self._guard.alive():
                self._guard.kill()
            self._guard.end()
