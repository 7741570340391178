from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.cli import documents
from runner.cli.exits import Exit

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
LISTED = re.findall(r"<!-- keys: (\w+) -->\n((?:.*\n)*?.*\.)\n", REFERENCE)


@pytest.mark.parametrize(("name", "paragraph"), LISTED, ids=[name for name, _ in LISTED])
def test_the_reference_lists_the_keys_of_every_document(name, paragraph):
    """What docs/reference/cli.md promises for `--json` is what the code writes."""
    document = getattr(documents, name)
    first_sentence = paragraph.split(".\n")[0]

    assert re.findall(r"`(\w+)`", first_sentence) == list(document.__annotations__)


def test_no_document_is_left_out():
    """Every document of `--json` is in the reference."""
    written = {
        name
        for name in vars(documents)
        if name.endswith(("Document", "Line")) and hasattr(getattr(documents, name), "__required_keys__")
    }

    assert written == {name for name, _ in LISTED}


def test_the_reference_lists_the_exit_codes():
    """The table of exit codes is that of the code."""
    section = REFERENCE.split("## Exit codes")[1].split("## ")[0]

    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == sorted(Exit)
