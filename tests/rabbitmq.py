"""A real RabbitMQ server for tests: private ports and folders, gone with the session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import amqp
import pytest

from runner.dev.supervised_process import SupervisedProcess
from runner.testing.plugin import absent
from tests.ports import free_port
from tests.waiting import wait_until

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Where Debian puts the program itself; the one on PATH gives it to a user of its own."""


def find_program() -> str | None:
    return str(PROGRAM) if PROGRAM.exists() else shutil.which("rabbitmq-server")


class Rabbit:
    """One server; `kill` ends it as a power cut would, `start` brings it back with its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, mapper, peers = free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        (folder / "plugins").write_text("[].\n", encoding="utf-8")
        (folder / "log").touch()
        self._environment = {
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_DIST_PORT": str(peers),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # Two busy-waiting schedulers would take both cores of a small machine.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }
        self.start()

    def start(self) -> None:
        # Erlang writes its crash dumps into the working directory, so the server runs in its own folder.
        # `exec` replaces the shell: the guard's child must be the server itself.
        command = [
            "/bin/sh",
            "-c",
            'cd "$1" && exec "$0"',
            str(find_program()),
            str(self.folder),
        ]
        self._guard = SupervisedProcess(
            command, log=self.folder / "log", environment=self._environment
        )
        wait_until(self._listens, "RabbitMQ listens", seconds=150)

    def _listens(self) -> bool:
        assert self._guard.alive(), (self.folder / "log").read_text(
            encoding="utf-8", errors="replace"
        )
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def control(self, *arguments: str) -> None:
        """Call rabbitmqctl."""
        node = self._environment["RABBITMQ_NODENAME"]
        program = PROGRAM.with_name("rabbitmqctl") if PROGRAM.exists() else "rabbitmqctl"
        subprocess.run(
            [program, "-n", node, *arguments],
            env={**os.environ, **self._environment},
            check=True,
            capture_output=True,
        )

    def kill(self) -> None:
        """End the server and wait until its port is free."""
        pid = (self.folder / "pid").read_text(encoding="utf-8").strip()
        subprocess.run(["kill", "-KILL", pid], check=False)
        self._guard.end()

    def end(self) -> None:
        self.kill()
        # The port mapper is a daemon of Erlang's; it ends when told so, once nothing is registered.
        mapper = {**os.environ, **self._environment}
        if shutil.which("epmd"):
            subprocess.run(
                ["epmd", "-kill"], env=mapper, check=False, capture_output=True, timeout=60
            )


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory):
    """One RabbitMQ; without the program the tests are skipped, and on CI they fail."""
    if find_program() is None:
        absent("there is no RabbitMQ to test with; install one (apt install rabbitmq-server)")
    server = Rabbit(tmp_path_factory.mktemp("rabbit"))
    try:
        yield server
    finally:
        server.end()


@pytest.fixture
def channel(rabbit):
    """A plain AMQP channel, as somebody else's program has it."""
    with amqp.Connection(host=f"127.0.0.1:{rabbit.port}") as connection:
        yield connection.channel()


def listen(channel) -> str:
    """Have a queue of one's own that gets every notice, and name it."""
    channel.exchange_declare("runner.notices", "topic", durable=True, auto_delete=False)
    queue = channel.queue_declare("", exclusive=True).queue
    channel.queue_bind(queue, "runner.notices", "#")
    return queue
