"""Faults planted in the scheduler and in the scripts are found by the property tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runner
from tests.properties.fast_slice import BROKEN
from tests.properties.mutations import LUA, MUTATIONS, Mutation

HERE = Path(runner.__file__).parent
ROOT = Path(__file__).parents[2]
EXITS = [("memory", "exits")]
SAMPLES = (
    MUTATIONS[1],
    next(mutation for mutation in MUTATIONS if mutation.breaks == "an answer wakes nobody"),
    next(
        mutation
        for mutation in MUTATIONS
        if mutation.breaks == "a failed item does not stop its map"
    ),
)


def copy_of_runner(folder: Path) -> Path:
    """Copy the library into a folder of its own."""
    shutil.copytree(HERE, folder / "runner", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def plant(mutation: Mutation, folder: Path) -> None:
    """Change one place of a copy; a text that is not there, or there twice, is an error."""
    path = folder / "runner" / mutation.file
    text = path.read_text(encoding="utf-8")
    count = text.count(mutation.old)
    assert count == 1, (
        f"{mutation.file} has {count} times {mutation.old!r}: write the mutation anew"
    )
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def slice_of(folder: Path, what: str, url: str = "") -> int:
    """Run the seeded slice on a copy of the library, and say how it ended."""
    command = [sys.executable, "-m", "tests.properties.fast_slice", str(folder), what, url]
    places = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode in (0, BROKEN), ended.stdout + ended.stderr
    return ended.returncode


def is_caught(mutation: Mutation, folder: Path, url: str) -> bool:
    """Tell whether the slice notices a planted fault."""
    plant(mutation, copy_of_runner(folder))
    return slice_of(folder, mutation.slice, url if mutation.file.startswith(LUA) else "") == BROKEN


def name(mutation: Mutation) -> str:
    """Name a mutation in a test's id."""
    return f"{Path(mutation.file).stem}: {mutation.breaks}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=name)
def test_every_mutation_can_be_planted(mutation, tmp_path):
    """The text that a mutation changes is there, once."""
    (tmp_path / "runner" / mutation.file).parent.mkdir(parents=True)
    shutil.copy(HERE / mutation.file, tmp_path / "runner" / mutation.file)

    plant(mutation, tmp_path)


@pytest.mark.parametrize("mutation", SAMPLES, ids=name)
def test_a_planted_fault_is_caught(mutation, tmp_path):
    """Samples of the faults below, quickly."""
    assert is_caught(mutation, tmp_path, "")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutation", [other for other in MUTATIONS if other not in SAMPLES], ids=name
)
def test_every_planted_fault_is_caught(mutation, tmp_path, redis_url):
    """No fault of the list survives the seeded slice."""
    assert is_caught(mutation, tmp_path, redis_url)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("where", "what"),
    [(where, what) for where in ("memory", "redis") for what in ("graphs", "maps")] + EXITS,
)
def test_a_sound_copy_passes(where, what, tmp_path, redis_url):
    """Without a fault the same slices find nothing."""
    assert slice_of(copy_of_runner(tmp_path), what, redis_url if where == "redis" else "") == 0
