"""requirements/install, which makes the environments of `make`, with programs that note their arguments."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTES = """#!/bin/sh
echo "$*" >>"$PWD/calls"
case "$*" in *"${FAILS:-nothing fails}"*) exit 1 ;; esac
case "$1 $2" in
  "venv "* | "-m venv") for each; do :; done; mkdir -p "$each/bin"; cp "$0" "$each/bin/python" ;;
esac
"""
"""A program that notes its arguments, fails where FAILS is among them, and makes environments of itself."""


@pytest.fixture
def install(tmp_path):
    """Run the script in an empty folder, in which `uv` and `python3` only note how they are called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("uv", "python3"):
        (programs / name).write_text(NOTES)
        (programs / name).chmod(0o755)
    for name in ("sh", "mkdir", "cp", "touch", "ls", "sort"):
        (programs / name).symlink_to(shutil.which(name))

    def run(*arguments, **environment):
        return subprocess.run(
            [ROOT / "requirements" / "install", *arguments],
            cwd=tmp_path,
            env={"PATH": str(programs), "HOME": str(tmp_path)} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    ("versions", "with_uv", "options"),
    [
        ("pinned", True, "--no-deps --require-hashes --requirement requirements/dev.txt"),
        ("run", True, "--no-deps --require-hashes --requirement requirements/run.txt"),
        ("run", False, "--no-deps --require-hashes --requirement requirements/run.txt"),
        ("newest", True, "--upgrade --editable .[audit,server]"),
        ("lowest", True, "--upgrade --resolution lowest-direct --editable .[dev,embedded]"),
    ],
)
def test_an_environment_has_the_versions_that_are_asked_for(
    install, tmp_path, versions, with_uv, options
):
    """An environment is made, gets the versions and then this project, and its stamp comes last."""
    without = {} if with_uv else {"UV": ""}

    done = install(".venv-it", versions, EXTRAS="audit,server", **without)

    calls = (tmp_path / "calls").read_text().splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert any("venv" in call.split() and call.endswith(" .venv-it") for call in calls)
    assert calls[-2].endswith(f" {options}")
    assert calls[-1].endswith("--no-deps --no-build-isolation --editable .")
    assert (tmp_path / ".venv-it" / ".installed").exists()


@pytest.mark.full
@pytest.mark.parametrize("environment", [{}, {"UV": ""}])
@pytest.mark.parametrize("cut", ["--require-hashes", "--no-build-isolation"])
def test_what_was_cut_short_is_installed_again(install, tmp_path, environment, cut):
    """No stamp is left by an installation that failed, so that make repeats it."""
    failed = install(".venv-it", "run", FAILS=cut, **environment)

    assert failed.returncode == 1
    assert not (tmp_path / ".venv-it" / ".installed").exists()
    assert install(".venv-it", "run", **environment).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["pinned", "3.99"], {}, "Python 3.99 is neither on PATH nor among pyenv's versions"),
        (
            ["pinned"],
            {"UV": "", "FAILS": "sys.version_info"},
            "python3 is not Python 3.11, 3.12",
        ),
        (
            ["pinned"],
            {"UV": "", "FAILS": "ensurepip"},
            "python3 can't make virtual environments",
        ),
        (["oldest"], {}, "oldest is not pinned, run, newest or lowest"),
    ],
)
def test_a_machine_that_lacks_something_is_told_what(
    install, tmp_path, arguments, environment, message
):
    """Without a Python that will do, nothing is made, and the message says what to do."""
    done = install(".venv-it", *arguments, **environment)

    assert done.returncode in {1, 2}
    assert message in done.stderr
    assert "so nothing was installed." in done.stderr
    assert not (tmp_path / ".venv-it").exists()


def test_a_version_of_pyenv_is_found(install, tmp_path):
    """PY=3.12 is the newest 3.12 of pyenv where none is on PATH."""
    for version in ("3.12.9", "3.12.10", "3.13.0"):
        programs = tmp_path / ".pyenv" / "versions" / version / "bin"
        programs.mkdir(parents=True)
        (programs / "python").write_text(NOTES)
        (programs / "python").chmod(0o755)

    install(".venv-it", "run", "3.12")

    made = (tmp_path / "calls").read_text().splitlines()[1]
    assert (
        made == f"venv --quiet --python {tmp_path}/.pyenv/versions/3.12.10/bin/python .venv-it"
    )
