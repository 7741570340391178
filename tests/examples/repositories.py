"""A whole small repository to release: commits, a package, a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tiny"
version = "1.2.3"
requires-python = ">=3.11"
"""
PACKAGES = """
[tool.hatch.build.targets.wheel]
packages = ["tiny"]
"""


def git(root: Path, *arguments: str) -> None:
    """Do something in a repository, as one person whatever this machine's settings say."""
    who = [
        "-c",
        "user.name=Ada",
        "-c",
        "user.email=ada@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)


def make_repository(folder: Path) -> Path:
    """Make the repository `tiny` in a folder."""
    root = folder / "tiny"
    for part in ("tiny", "tests"):
        (root / part).mkdir(parents=True)
    (root / "pyproject.toml").write_text(PYPROJECT + PACKAGES)
    (root / "tiny" / "__init__.py").write_text("")
    (root / "tests" / "test_tiny.py").write_text("def test_tiny():\n    assert True\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "Begin")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "Mend the lock")
    return root
