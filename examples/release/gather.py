"""The facts of a release, each from the real thing: git, pytest, installed packages, a built wheel.

Plain functions that return JSON data and know nothing of graphs. What can't be found out is said in
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
# Git would look at these before the folder it is pointed at, as in a hook; pytest's would mix two runs.
FOREIGN_SETTINGS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "PYTEST_", "COV_CORE_")
FIELD = "\x1f"
CLOSING = re.compile(r" in \d+\.\d+s")


def changes(repo: str | Path, limit: int = 20) -> list[dict[str, str]]:
    """List the commits since the last tag, newest first, or the last `limit` where there is no tag.

    Where git can't tell, the one entry has no sha, and its subject says why.
    """
    tag = _run(["git", "describe", "--tags", "--abbrev=0"], repo)
    span = [f"{tag.output.strip()}..HEAD"] if tag.code == 0 else []
    form = FIELD.join(("%h", "%an", "%aI", "%s"))
    log = _run(["git", "log", f"--max-count={limit}", f"--format={form}", *span], repo)
    if log.code != 0:
        return [{"sha": "", "author": "", "date": "", "subject": f"no changes known: {log.tail}"}]
    rows = (line.split(FIELD) for line in log.output.splitlines() if FIELD in line)
    return [dict(zip(("sha", "author", "date", "subject"), row, strict=True)) for row in rows]


def run_tests(repo: str | Path, seconds: float = 40) -> dict[str, Any]:
    """Run the repository's quick tests (`tests/core` if there is one, else `tests`) and count them.

    Whatever keeps them from ending well, the time limit included, counts as a failure.
    """
    root = Path(repo)
    folder = next((name for name in ("tests/core", "tests") if (root / name).is_dir()), None)
    if folder is None:
        return {"passed": 0, "failed": 0, "seconds": 0.0, "tail": "there is no tests folder"}
    own = root / ".venv" / "bin" / "python"
    python = str(own.absolute()) if own.exists() else sys.executable
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider"]
    done = _run([python, "-m", "pytest", *options, folder], root, seconds)
    passed, failed, errors = (_count(word, done.output) for word in ("passed", "failed", "error"))
    broken = done.code not in {0, 5}  # 5: no test was found
    return {
        "passed": passed,
        "failed": max(failed + errors, int(broken)),
        "seconds": round(done.seconds, 2),
        "tail": done.tail,
    }


def licences() -> list[dict[str, str]]:
    """List the installed distributions by name, with version and licence."""
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata.get("Name")
        if name:
            row = {"name": name, "version": distribution.version, "licence": _licence(distribution)}
            found.setdefault(name.lower(), row)  # the first on the path is the one that is imported
    return [found[name] for name in sorted(found)]


def wheel_size(repo: str | Path, seconds: float = 120) -> dict[str, Any]:
    """Build the repository's wheel and say its name, its bytes and its number of files.

    Without a wheel `file` is None and `detail` says why.
    """
    root = Path(repo).absolute()
    if not (root / "pyproject.toml").is_file():
        return _no_wheel("there is no pyproject.toml, so there is nothing to build")
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        # Started elsewhere: a folder named `build` in the repository would be imported instead.
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(root)]
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
    """Prefer what packages must declare today over what they could write before."""
    told = distribution.metadata
    stated = told.get("License-Expression") or told.get("License") or ""
    first_line = stated.strip().partition("\n")[0].strip()  # some put the whole text there
    if first_line and first_line.upper() != "UNKNOWN":
        return first_line
    classified = [
        entry.rpartition(" :: ")[2]
        for entry in told.get_all("Classifier") or ()
        if entry.startswith("License :: ") and entry.count(" :: ") > 1
    ]
    return ", ".join(classified) or "unknown"


def _count(word: str, output: str) -> int:
    """Read pytest's closing line alone: the lines above it may quote anything."""
    closing = next((line for line in reversed(output.splitlines()) if CLOSING.search(line)), "")
    found = re.search(rf"(\d+) {word}", closing)
    return int(found[1]) if found else 0


# The program runs in a group of its own, and the group ends when we do, however hard: then the read
# ends, for the other end of the shell's stdin is ours alone.
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
    """A program's end: exit code, output and how many seconds it took."""

    code: int
    output: str
    seconds: float

    @property
    def tail(self) -> str:
        """The last lines, which say how it ended."""
        return "\n".join(self.output.strip().splitlines()[-TAIL_LINES:])


def _run(command: list[str], folder: str | Path, seconds: float = 30) -> Finished:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_SETTINGS)}
    started = time.monotonic()
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", TIED, "tied", *command],
            cwd=folder,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=theirs,
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
        os.close(theirs)
        os.close(ours)


def _finished(process: subprocess.Popen[str], seconds: float, started: float) -> Finished:
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the programs that it has started itself
        output = f"{process.communicate()[0]}\nstopped: it took longer than {seconds:g} s"
    return Finished(process.returncode, output, time.monotonic() - started)
