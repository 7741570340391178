from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.cli.program import runner
from runner.settings import SECRETS

RUNNER = Path(sys.executable).with_name("runner")


@pytest.fixture
def call(tmp_path):
    """Run the program in a folder of its own."""

    def run(*arguments: str, **environment: str):
        known = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "PYTHONPATH")
            if name in os.environ
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


@pytest.mark.full
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


@pytest.mark.full
def test_a_mistyped_setting_is_noticed(call):
    """An unknown name is reported with what was probably meant."""
    done = call("config", "show", RUNNER_LEESE="3")

    assert (
        "RUNNER_LEESE (environment) is not a setting. Did you mean 'RUNNER_LEASE'?"
        in done.stderr
    )


SECRET = "f00d8badf00d"
URLS = {
    "redis_url": f"redis://:{SECRET}@db/0",
    "broker_url": f"amqp://app:{SECRET}@mq//",
    "archive": f"postgresql://app:{SECRET}@db/runs",
    "mail_server": f"smtp://app:{SECRET}@mail:587",
}


def shown(name, **environment):
    """Return a setting's value, and all that `config show` writes, as JSON and as text."""
    outputs = [
        CliRunner().invoke(runner, ["config", "show", *form], env=environment).output
        for form in (["--json"], [])
    ]
    values = {one["name"]: one["value"] for one in json.loads(outputs[0])["settings"]}
    return values[f"RUNNER_{name.upper()}"], "".join(outputs)


@pytest.mark.full
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_not_shown(name, tmp_path):
    """Passwords and secret texts are ***, from a file too; control: what is beside them is shown."""
    secret_file = tmp_path / "secret"
    secret_file.write_text(URLS.get(name, SECRET))
    for end, setting in {"": URLS.get(name, SECRET), "_FILE": str(secret_file)}.items():
        value, output = shown(name, **{f"RUNNER_{name.upper()}{end}": setting})

        assert value == URLS.get(name, SECRET).replace(SECRET, "***")
        assert SECRET not in output
        assert "is not a setting" not in output


def test_a_password_in_a_list_is_not_shown():
    """Each URL of a setting that has several is shown without its password."""
    value, output = shown(
        "audit_anchor", RUNNER_AUDIT_ANCHOR=f"log,https://app:{SECRET}@anchor/a"
    )

    assert value == ["log", "https://app:***@anchor/a"]
    assert SECRET not in output


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(call, shell):
    """The script names our program, and the program answers the shell's question."""
    script = call(_RUNNER_COMPLETE=f"{shell}_source")
    variables = {
        "_RUNNER_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "runner in",
        "COMP_CWORD": "1",
    }

    assert "_RUNNER_COMPLETE" in script.stdout
    if shell != "fish":
        assert "interrupts" in call(**variables).stdout
