"""The figures of one part on one pool, with where and when they were taken, as a JSON file each."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path("build/bench")
PACKAGES = ("celery", "kombu", "redis")

Results = dict[tuple[str, str], dict[str, Any]]
"""Part and pool -> its document: `figures`, and `machine`."""


def machine() -> dict[str, Any]:
    """Describe the machine and its load, and the versions of what is measured."""
    from runner.dev.embedded import find_server  # noqa: PLC0415 - not needed to read results

    server = subprocess.run(
        [find_server(), "--version"], capture_output=True, text=True, check=True
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - as on PATH
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "server": " ".join(server.stdout.split()[:3]),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": commit.stdout.strip(),
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }


def _processor() -> str:
    names = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return names[0].partition(": ")[2] if names else platform.processor()


def write(part: str, pool: str, figures: dict[str, Any], before: dict[str, Any]) -> None:
    """Keep the figures of a part; those of an earlier run are replaced."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    document = {"part": part, "pool": pool, "machine": before, "figures": figures}
    name = f"{part}-{pool}.json" if pool else f"{part}.json"
    (FOLDER / name).write_text(json.dumps(document, indent=1) + "\n")


def read() -> Results:
    """Read what was measured so far."""
    documents = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return {(document["part"], document["pool"]): document for document in documents}
