"""The facts of a release, from their sources: git, pytest, installed packages, a built wheel.

Plain functions that return JSON data and don't depend on graphs. A failure is reported in
the result instead of raised, so that the person who approves the release sees it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

TAIL_LINES = 15
# With these, git ignores the folder that it is given, as in a hook, and pytest mixes two sessions.
FOREIGN_SETTINGS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "PYTEST_", "COV_CORE_")
FIELD = "\x1f"
CLOSING = re.compile(r" in \d+\.\d+s")


def changes(repo: str | Path, limit: int = 20) -> list[dict[str, str]]:
    """List the commits since the last tag, newest first, or the last `limit` if there is no tag.

    If git fails, the only entry has no sha, and its subject has the reason.
    """
    tag = _run(["git", "describe", "--tags", "--abbrev=0"], repo)
    span = [f"{tag.output.strip()}..HEAD"] if tag.code == 0 else []
    form = FIELD.join(("%h", "%an", "%aI", "%s"))
    log = _run(["git", "log", f"--max-count={limit}", f"--format={form}", *span], repo)
    if log.code != 0:
        return [
            {"sha": "", "author": "", "date": "", "subject": f"no changes known: {log.tail}"}
        ]
    rows = (line.split(FIELD) for line in log.output.splitlines() if FIELD in line)
    return [dict(zip(("sha", "author", "date", "subject"), row, strict=True)) for row in rows]


def run_tests(repo: str | Path, seconds: float = 40) -> dict[str, Any]:
    """Run the repository's quick tests (`tests/scheduler` if there is one, otherwise `tests`) and count them.

    Anything that prevents their success counts as a failure, except the time limit: a machine that is slow
    says nothing about the tests, so their numbers are None and `outcome` has the reason.
    """
    root = Path(repo)
    folder = next(
        (name for name in ("tests/scheduler", "tests") if (root / name).is_dir()), None
    )
    if folder is None:
        tail = "there is no tests folder"
        return {"outcome": "no tests", "passed": 0, "failed": 0, "seconds": 0.0, "tail": tail}
    own = root / ".venv" / "bin" / "python"
    python = str(own.absolute()) if own.exists() else sys.executable
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider"]
    done = _run([python, "-m", "pytest", *options, folder], root, seconds)
    duration = round(done.seconds, 2)
    if done.timed_out:
        outcome = f"not known: the time was up after {seconds:g} s"
        return {
            "outcome": outcome,
            "passed": None,
            "failed": None,
            "seconds": duration,
            "tail": done.tail,
        }
    passed, failed, errors = (
        _count(word, done.output) for word in ("passed", "failed", "error")
    )
    broken = done.code not in {0, 5}  # 5: no test was found
    return {
        "outcome": "failed" if broken or failed + errors else "passed",
        "passed": passed,
        "failed": max(failed + errors, int(broken)),
        "seconds": duration,
        "tail": done.tail,
    }


def licences() -> list[dict[str, str]]:
    """List the installed distributions by name, with version and licence."""
    rows = {}
    for distribution in metadata.distributions():
        name = distribution.metadata.get("Name")
        if name:
            row = {
                "name": name,
                "version": distribution.version,
                "licence": _licence(distribution),
            }
            rows.setdefault(
                name.lower(), row
            )  # the first on the path is the one that is imported
    return [rows[name] for name in sorted(rows)]


def wheel_size(repo: str | Path, seconds: float = 120) -> dict[str, Any]:
    """Build the repository's wheel and return its name, its size and its number of files.

    Without a wheel `file` is None and `detail` has the reason.
    """
    root = Path(repo).absolute()
    if not (root / "pyproject.toml").is_file():
        return _no_wheel("there is no pyproject.toml, so there is nothing to build")
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        # Run outside the repository: its folder `build`, if there is one, would be imported instead.
        command = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            folder,
            str(root),
        ]
        done = _run(command, folder, seconds)
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.code != 0 or wheel is None:
            return _no_wheel(done.tail)
        with zipfile.ZipFile(wheel) as archive:
            files = len(archive.namelist())
        return {"file": wheel.name, "bytes": wheel.stat().st_size, "files": files, "detail": ""}


def _no_wheel(detail: str) -> dict[str, Any]:
    return {"file": None, "bytes": 0, "files": 0, "detail": detail}


def _licence(distribution: metadata.Distribution) -> str:
    """Prefer the current metadata field over the older ones."""
    fields = distribution.metadata
    stated = fields.get("License-Expression") or fields.get("License") or ""
    first_line = stated.strip().partition("\n")[0].strip()  # some put the whole text there
    if first_line and first_line.upper() != "UNKNOWN":
        return first_line
    classified = [
        entry.rpartition(" :: ")[2]
        for entry in fields.get_all("Classifier") or ()
        if entry.startswith("License :: ") and entry.count(" :: ") > 1
    ]
    return ", ".join(classified) or "unknown"


def _count(word: str, output: str) -> int:
    """Read pytest's closing line alone: the lines above it may quote anything."""
    closing = next((line for line in reversed(output.splitlines()) if CLOSING.search(line)), "")
    number = re.search(rf"(\d+) {word}", closing)
    return int(number[1]) if number else 0


# The program runs in a process group of its own. The group ends with this process, even on SIGKILL: only this
# process holds the other end of the shell's stdin, so the read returns.
TIED = """
exec 3<&0
(read -r _ <&3; kill -KILL 0) >/dev/null 2>&1 &
"$@" </dev/null 3<&-
code=$?
kill $!
exit $code
"""


@dataclass(frozen=True)
class Finished:
    """The outcome of a program: exit code, output, duration in seconds, and whether its time was up."""

    code: int
    output: str
    seconds: float
    timed_out: bool = False

    @property
    def tail(self) -> str:
        """The last lines of the output."""
        return "\n".join(self.output.strip().splitlines()[-TAIL_LINES:])


def _run(command: list[str], folder: str | Path, seconds: float = 30) -> Finished:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN_SETTINGS)
    }
    started = time.monotonic()
    child_end, own_end = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", TIED, "tied", *command],
            cwd=folder,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=child_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        return _finished(process, seconds, started)
    except OSError as error:
        return Finished(-1, str(error), 0.0)
    finally:
        os.close(child_end)
        os.close(own_end)


def _finished(process: subprocess.Popen[str], seconds: float, started: float) -> Finished:
    timed_out = False
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)  # and the programs that it has started
        output = f"{process.communicate()[0]}\nstopped: it took longer than {seconds:g} s"
    return Finished(process.returncode, output, time.monotonic() - started, timed_out)
