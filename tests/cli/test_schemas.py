from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
import redis

from runner.cli.program import runner
from runner.store.redis.keys import Keys
from tests.cli.conftest import read
from tests.cli.schemas import DOCUMENTS, schema

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "cli-schemas"

SILENT = {"api", "gate", "keeper", "mcp", "server", "worker"}
"""Commands without a document: logs of a worker, a keeper and a server, protocols of `gate` and `mcp`.

The answers of `api` are in the OpenAPI document.
"""


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif any("--json" in parameter.opts for parameter in command.params):
            yield " ".join((*path, name))


def test_every_command_that_takes_json_has_a_schema():
    """Whoever adds a command writes down what it gives to programs."""
    assert set(commands(runner)) - SILENT == set(DOCUMENTS)


def test_the_reference_has_no_other_schemas():
    """Every schema belongs to a command that there is."""
    assert set(FOLDER.glob("*.json")) == {
        FOLDER / f"{command.replace(' ', '-')}.json" for command in DOCUMENTS
    }


@pytest.mark.full
def test_what_commands_write_fits_their_schemas(cli, waiting, monkeypatch, tmp_path):
    """The real output of each command is what its schema says."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    run, question = waiting
    calls = {
        "config show": (),
        "dead list": (),
        "doctor": (),
        "graphs check": ("--graphs", "shop"),
        "graphs draw": ("shop-refund", "--graphs", "shop"),
        "graphs list": (),
        "init": (str(tmp_path / "shop"),),
        "interrupts list": (),
        "interrupts show": (question,),
        "metrics": (),
        "runs export": (run,),
        "runs list": (),
        "runs show": (run,),
        "run": ("shop-refund",),
        "version": (),
        "workers list": (),
    }
    for command, more in calls.items():
        written = json.loads(cli(*command.split(), *more, "--json").stdout)
        assert jsonschema_rs.is_valid(schema(command), written), command
    answer = ("--response", '{"decision": "approve"}', "--responder", "ana", "--json")
    receipt = json.loads(cli("interrupts", "respond", question, *answer).stdout)
    assert jsonschema_rs.is_valid(schema("interrupts respond"), receipt)


@pytest.mark.full
def test_what_changes_runs_writes_what_its_schema_says(cli, waiting, shop_url):
    """Commands that take back, stop, retry, send again and delete write what their schemas say."""
    broken = cli("run", "shop-print", "--wait").stdout.split("\t")[1]
    with redis.Redis.from_url(shop_url) as client:
        lost = {"run_id": broken, "node": "fail_once", "visit": 1, "reason": "lost"}
        letter = f"node:{client.xadd(Keys().dead, lost).decode()}"
    failed = cli("run", "shop-fail", "--wait").stdout.split("\t")[1]
    calls = [
        ("runs cancel", cli("run", "shop-endless").stdout.strip()),
        ("runs retry", failed),
        ("runs remove", cli("run", "shop-echo", "--wait").stdout.split("\t")[1], "--yes"),
        ("dead replay", letter),
    ]
    for command, *more in calls:
        written = json.loads(cli(*command.split(), *more, "--json").stdout)
        assert jsonschema_rs.is_valid(schema(command), written), command
    waited = read(cli, "run", "shop-refund", "--wait")
    assert waited["nodes"]
    assert jsonschema_rs.is_valid(schema("run"), waited)


@pytest.mark.full
def test_each_line_of_events_is_what_the_schema_says(cli, waiting):
    """`runs watch` writes one document a line."""
    events = cli("runs", "watch", waiting[0], "--json").stdout.splitlines()

    assert events
    assert all(
        jsonschema_rs.is_valid(schema("runs watch"), json.loads(line)) for line in events
    )
