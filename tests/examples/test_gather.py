from __future__ import annotations

from importlib import metadata

import pytest

from examples.release.gather import changes, licences, run_tests, wheel_size
from tests.examples.repositories import PYPROJECT, git

# Most run a test suite of their own.
pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    return tmp_path


def commit(repo, subject: str) -> None:
    git(repo, "commit", "--quiet", "--allow-empty", "--message", subject)


def write_test(repo, text: str, folder: str = "tests") -> None:
    target = repo / folder
    target.mkdir(parents=True, exist_ok=True)
    (target / "test_tiny.py").write_text(text)


def test_changes_are_the_commits_since_the_last_tag(repository):
    """After a tag only what came later is listed, newest first, with author and date."""
    commit(repository, "Old")
    git(repository, "tag", "v1")
    commit(repository, "Mend the lock")
    commit(repository, "Add a key | with: 'signs'")

    found = changes(repository, 10)

    assert [row["subject"] for row in found] == ["Add a key | with: 'signs'", "Mend the lock"]
    assert {row["author"] for row in found} == {"Ada"}
    assert all(row["sha"] and row["date"].count("-") >= 2 for row in found)


def test_changes_are_those_of_the_folder_named(repository, monkeypatch, tmp_path_factory):
    """A GIT_DIR left in the environment, as in a git hook, does not lead to another repository."""
    commit(repository, "Ours")
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("elsewhere")))

    assert [row["subject"] for row in changes(repository)] == ["Ours"]


def test_the_tests_of_a_repository_are_run_and_counted(tmp_path):
    """Passed, failed and broken tests of the repository are counted, and its last lines are kept."""
    write_test(
        tmp_path,
        "import pytest\n"
        "def test_a(): pass\n"
        "def test_b(): pass\n"
        "def test_c(): assert 0\n"
        "def test_d(nothing): pass\n",
    )

    result = run_tests(tmp_path)

    assert (result["passed"], result["failed"]) == (2, 2)
    assert "1 failed, 2 passed, 1 error" in result["tail"]
    assert result["seconds"] > 0


def test_tests_that_take_too_long_are_stopped_and_not_called_failed(tmp_path):
    """At the time limit the tests are ended, with what they started, and it says that the time was up."""
    write_test(tmp_path, "import subprocess\ndef test_a(): subprocess.run(['sleep', '600'])")

    result = run_tests(tmp_path, seconds=1.5)

    assert (result["passed"], result["failed"]) == (None, None)
    assert result["outcome"] == "not known: the time was up after 1.5 s"
    assert "longer than 1.5 s" in result["tail"]


def test_licences_are_those_of_the_installed_distributions():
    """Every installed distribution is listed once, with its version and a licence of one line."""
    found = {row["name"].lower(): row for row in licences()}

    assert found["celery"]["version"] == metadata.version("celery")
    assert found["celery-graph-runner"]["licence"] == "Apache-2.0"
    assert "BSD" in found["click"]["licence"]
    assert all(row["licence"] and "\n" not in row["licence"] for row in found.values())


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        ("License-Expression: MIT\nLicense: old", "MIT"),
        ("License: BSD\n        All rights reserved", "BSD"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", "MIT License"),
        ("Classifier: License :: OSI Approved", "unknown"),
    ],
)
def test_a_licence_is_found_wherever_it_is_declared(tmp_path, monkeypatch, lines, licence):
    """The licence comes from the expression, else the old field, else the classifiers."""
    info = tmp_path / "oddity-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: oddity\nVersion: 1.0\n{lines}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert {row["name"]: row["licence"] for row in licences()}["oddity"] == licence


def test_the_wheel_is_really_built(tmp_path):
    """The wheel's name, bytes and number of files are those of a wheel built from the repository."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "tiny.py").write_text("ANSWER = 42\n")

    result = wheel_size(tmp_path)

    assert result["file"] == "tiny-1.2.3-py3-none-any.whl"
    assert result["bytes"] > 500
    assert result["files"] == 4  # the module, and three files about the wheel
    assert result["detail"] == ""
