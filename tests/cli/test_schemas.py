from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from runner.cli.schemas import DOCUMENTS, schema

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "cli-schemas"


def file_of(command: str) -> Path:
    return FOLDER / f"{command.replace(' ', '-')}.json"


@pytest.mark.parametrize("command", DOCUMENTS)
def test_the_schema_in_the_reference_is_that_of_the_code(command):
    """Whoever reads the output of a command can rely on the schema in the docs."""
    assert json.loads(file_of(command).read_text(encoding="utf-8")) == schema(command)


def test_the_reference_has_no_other_schemas():
    """Every schema belongs to a command that there is."""
    assert set(FOLDER.glob("*.json")) == {file_of(command) for command in DOCUMENTS}


def test_what_commands_write_fits_their_schemas(cli, waiting):
    """The real output of each command is what its schema says."""
    run, question = waiting
    calls = {
        "dead list": (),
        "graphs list": (),
        "interrupts list": (),
        "interrupts show": (question,),
        "runs list": (),
        "runs show": (run,),
        "workers list": (),
    }
    for command, more in calls.items():
        written = json.loads(cli(*command.split(), *more, "--json").stdout)
        assert jsonschema_rs.is_valid(schema(command), written), command
    given = ("--response", '{"decision": "approve"}', "--responder", "ana", "--json")
    receipt = json.loads(cli("interrupts", "respond", question, *given).stdout)
    assert jsonschema_rs.is_valid(schema("interrupts respond"), receipt)
