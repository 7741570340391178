from __future__ import annotations

import pytest

from examples.release.graph import release
from runner import Status
from runner.errors import ResponseError
from tests.examples.repositories import make_repository

# Each runs a test suite and builds a wheel.
pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path):
    return make_repository(tmp_path)


def answer(result, response):
    return [
        {"interruptResponse": {"interruptId": result.interrupts[0].id, "response": response}}
    ]


def up_to_approval(repository, out):
    graph = release()
    waiting = graph({"path": str(repository), "out": str(out)})
    return graph, waiting, graph(answer(waiting, "operators"))


def test_every_branch_but_the_drafter_ends_while_the_audience_is_unknown(repository, tmp_path):
    """The question of one branch stops that branch alone; the facts of the others are really gathered."""
    waiting = release()({"path": str(repository), "out": str(tmp_path / "NOTES.md")})

    assert waiting.status is Status.INTERRUPTED
    assert [interrupt.name for interrupt in waiting.interrupts] == ["audience"]
    assert set(waiting.execution_order) == {"begin", "changes", "tests", "licences", "wheel"}
    assert [row["subject"] for row in waiting.results["changes"].output] == [
        "Mend the lock",
        "Begin",
    ]
    assert waiting.results["tests"].output["passed"] == 1
    assert waiting.results["licences"].output["packages"] > 10
    assert waiting.results["wheel"].output["file"] == "tiny-1.2.3-py3-none-any.whl"


def test_edited_notes_are_written_as_edited(repository, tmp_path):
    """An edit replaces the draft."""
    out = tmp_path / "NOTES.md"
    graph, _, asked = up_to_approval(repository, out)

    graph(answer(asked, {"decision": "edit", "notes": "Shorter."}))

    assert out.read_text() == "Shorter.\n"


def test_rejected_notes_are_not_written(repository, tmp_path):
    """After a rejection the last node is skipped and there is no file."""
    out = tmp_path / "NOTES.md"
    graph, _, asked = up_to_approval(repository, out)

    done = graph(answer(asked, {"decision": "reject", "notes": "too long"}))

    assert done.status is Status.COMPLETED
    assert done.results["write"].status is Status.SKIPPED
    assert not out.exists()


def test_what_is_approved_in_the_end_is_written(repository, tmp_path):
    """An approval that is none, or an edit without a text, is refused at the door; a good one is the file."""
    out = tmp_path / "notes" / "NOTES.md"
    graph, _, asked = up_to_approval(repository, out)

    for bad in (
        "yes",
        {"decision": "maybe"},
        {"decision": "edit"},
        {"decision": "edit", "notes": ""},
    ):
        with pytest.raises(ResponseError, match="rejected"):
            graph(answer(asked, bad))
    done = graph(answer(asked, {"decision": "approve"}))

    assert done.status is Status.COMPLETED
    assert (
        out.read_text()
        == "# Release notes\n\nThe notes are for operators.\n\n- Mend the lock\n- Begin\n"
    )
    assert asked.interrupts[0].reason["notes"].strip() == out.read_text().strip()


def test_a_folder_that_is_not_there_fails_the_run_with_its_name(tmp_path):
    """A wrong path ends the run at its first node, in words."""
    failed = release()({"path": str(tmp_path / "nowhere")})

    assert failed.status is Status.FAILED
    assert "nowhere" in failed.results["begin"].error.message
