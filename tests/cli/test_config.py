from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(sys.executable).with_name("runner")


@pytest.fixture
def call(tmp_path):
    """Run the program in a folder of its own."""

    def run(*arguments: str, **environment: str):
        known = {
            name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ
        }
        return subprocess.run(
            [RUNNER, *arguments],
            cwd=tmp_path,
            env=known | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_every_setting_has_its_origin(call, tmp_path):
    """One can see which of the places a setting came from, in their order."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.runner]\nlease = 9\nretention = 60\ngraphs = ["a"]\n'
    )
    (tmp_path / ".env").write_text("RUNNER_LEASE=8\nRUNNER_EVENTS=false\n")
    done = call("config", "show", "--json", "--graphs", "b", RUNNER_EVENTS="true")
    settings = json.loads(done.stdout)["settings"]
    shown = {setting["name"]: (setting["value"], setting["origin"]) for setting in settings}

    assert shown["RUNNER_GRAPHS"] == (["b"], "flag")
    assert shown["RUNNER_EVENTS"] == (True, "environment")
    assert shown["RUNNER_LEASE"] == (8.0, ".env")
    assert shown["RUNNER_RETENTION"] == (60.0, "pyproject.toml")
    assert shown["RUNNER_SWEEP_INTERVAL"] == (5.0, "default")


def test_a_mistyped_setting_is_noticed(call):
    """An unknown name is reported with what was probably meant; passwords are not shown."""
    done = call("config", "show", RUNNER_LEESE="3", RUNNER_REDIS_URL="redis://:secret@db/0")

    assert "RUNNER_LEESE (environment) is not a setting; did you mean RUNNER_LEASE?" in done.stderr
    assert "RUNNER_REDIS_URL\tredis://:***@db/0\n" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(call, shell):
    """The script names our program, and the program answers the shell's question."""
    script = call("completion", shell)
    variables = {
        "_RUNNER_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "runner in",
        "COMP_CWORD": "1",
    }

    assert "_RUNNER_COMPLETE" in script.stdout
    if shell != "fish":
        assert "interrupts" in call(**variables).stdout
