"""A real Postgres for tests: a private folder and socket, gone with the session."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from runner.dev.supervised_process import SupervisedProcess
from runner.testing.plugin import absent
from tests.waiting import wait_until

PROGRAMS = ("initdb", "postgres", "pg_isready")


def find_programs() -> Path | None:
    """Find the folder with the programs; Debian has them on no PATH."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    folders += [
        Path(program).resolve().parent for program in [shutil.which("postgres")] if program
    ]
    complete = (
        path for path in reversed(folders) if all((path / name).exists() for name in PROGRAMS)
    )
    return next(complete, None)


class Postgres:
    """One server; `stop` ends it, `start` brings it back with its data."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder, self._programs = folder, programs
        self.url = f"postgresql://runner@/postgres?host={folder}"
        self._log = folder / "log"
        self._log.touch()
        # It refuses to run as root.
        self._user: list[str] = []
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self._user = [
                "setpriv",
                f"--reuid={nobody.pw_uid}",
                f"--regid={nobody.pw_gid}",
                "--clear-groups",
            ]
        data = str(folder / "data")
        make = [
            str(programs / "initdb"),
            "-D",
            data,
            "-U",
            "runner",
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
        ]
        subprocess.run(
            [*self._user, *make], check=True, capture_output=True, timeout=120, cwd="/"
        )
        self.start()

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
        }
        options = [
            part for name, value in settings.items() for part in ("-c", f"{name}={value}")
        ]
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        self._guard = SupervisedProcess([*self._user, *command], log=self._log)
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        wait_until(
            lambda: subprocess.run(ready, check=False).returncode == 0,
            "Postgres accepts connections",
        )

    def stop(self) -> None:
        """End it with all its connections."""
        os.kill(self._guard.pid, signal.SIGINT)
        assert not self._guard.alive(30), self._log.read_text(encoding="utf-8")
        self._guard.end()


@pytest.fixture(scope="session")
def postgres():
    """One Postgres; without the programs the tests are skipped, and on CI they fail."""
    programs = find_programs()
    if programs is None:
        absent("there is no Postgres to test with; install one (apt install postgresql)")
    pytest.importorskip("psycopg")
    # Not below pytest's own folder, which only its user may enter.
    folder = Path(tempfile.mkdtemp(prefix="runner-postgres-"))
    server = Postgres(programs, folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
