"""Faults planted in the library are found: by the property tests, or by the test that each names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runner
from tests.properties.fast_slice import BROKEN
from tests.properties.faults import FAULTS
from tests.properties.mutations import LUA, MUTATIONS, Mutation

HERE = Path(runner.__file__).parent
ROOT = Path(__file__).parents[2]
EXITS = [("memory", "exits")]
ALL = (*MUTATIONS, *FAULTS)
SAMPLES = (
    MUTATIONS[1],
    next(mutation for mutation in MUTATIONS if mutation.breaks == "an answer wakes nobody"),
    next(
        mutation
        for mutation in MUTATIONS
        if mutation.breaks == "a failed item does not stop its map"
    ),
    FAULTS[0],
    next(fault for fault in FAULTS if fault.breaks == "one signature votes twice"),
)


def copy_of_runner(folder: Path) -> Path:
    """Copy the library, and what is compiled of it, into a folder of its own."""
    shutil.copytree(HERE, folder / "runner")
    return folder


def file_of(mutation: Mutation, library: Path) -> Path:
    """Find the file to change; a text that is not there, or there twice, is an error."""
    path = library / mutation.file
    files = path.rglob("*.py") if path.is_dir() else [path]
    found = [file for file in files for _ in range(file.read_text("utf-8").count(mutation.old))]
    assert len(found) == 1, (
        f"{mutation.file} has {len(found)} times {mutation.old!r}: rewrite it"
    )
    return found[0]


def plant(mutation: Mutation, folder: Path) -> None:
    """Change one line of a copy."""
    file = file_of(mutation, folder / "runner")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def on_copy(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that imports the library from a folder."""
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")
    }
    places = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**inherited, **places},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def slice_of(folder: Path, what: str, url: str = "") -> int:
    """Run the seeded slice on a copy of the library, and say how it ended."""
    ended = on_copy(folder, "-m", "tests.properties.fast_slice", str(folder), what, url)
    assert ended.returncode in (0, BROKEN), ended.stdout + ended.stderr
    return ended.returncode


def outcome_of(folder: Path, *tests: str) -> int:
    """Run tests on a copy of the library, up to the first that fails, and say how they ended."""
    options = ("-x", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    ended = on_copy(folder, "-m", "pytest", *options, *(str(ROOT / test) for test in tests))
    assert ended.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), (
        ended.stdout + ended.stderr
    )
    return ended.returncode


def is_caught(mutation: Mutation, folder: Path, url: str) -> bool:
    """Tell whether a planted fault is noticed."""
    plant(mutation, copy_of_runner(folder))
    if mutation.test:
        return outcome_of(folder, mutation.test) == pytest.ExitCode.TESTS_FAILED
    return (
        slice_of(folder, mutation.slice, url if mutation.file.startswith(LUA) else "") == BROKEN
    )


def name(mutation: Mutation) -> str:
    """Name a mutation in a test's id."""
    return f"{Path(mutation.file).stem}: {mutation.breaks}"


def test_every_mutation_can_be_planted():
    """The text that a mutation changes is there, once."""
    for mutation in ALL:
        assert file_of(mutation, HERE).is_relative_to(HERE)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", SAMPLES, ids=name)
def test_a_planted_fault_is_caught(mutation, tmp_path):
    """Samples of the faults below, quickly."""
    assert is_caught(mutation, tmp_path, "")


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", [other for other in ALL if other not in SAMPLES], ids=name)
def test_every_planted_fault_is_caught(mutation, tmp_path, redis_url):
    """No fault of the list survives the seeded slice."""
    assert is_caught(mutation, tmp_path, redis_url)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("where", "what"),
    [(where, what) for where in ("memory", "redis") for what in ("graphs", "maps")] + EXITS,
)
def test_a_sound_copy_passes(where, what, tmp_path, redis_url):
    """Without a fault the same slices find nothing."""
    assert slice_of(copy_of_runner(tmp_path), what, redis_url if where == "redis" else "") == 0


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.timeout(600)
def test_on_a_sound_copy_the_tests_pass(tmp_path):
    """Without a fault the tests that must find the others find nothing."""
    tests = dict.fromkeys(fault.test for fault in FAULTS)
    assert outcome_of(copy_of_runner(tmp_path), *tests) == pytest.ExitCode.OK
