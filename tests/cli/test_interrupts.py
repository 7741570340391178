from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from runner import Client
from runner.cli.interrupts import _expiry
from runner.cli.run_tree import _question
from runner.operations.exports import question_of
from runner.records.interrupts import Address
from runner.records.json_form import document
from tests.cli.conftest import read

YES = '{"decision": "approve"}'


def agreed(question, *options):
    """The command of a person who agrees, and may."""
    return (
        "interrupts",
        "respond",
        question,
        "--response",
        YES,
        "--responder",
        "ana",
        *options,
    )


def test_open_questions_are_listed_with_whom_they_wait_for(cli, waiting):
    """A line has everything that is needed to answer: id, run, node, name, people, time, reason."""
    run_id, question = waiting

    listed = [line.split("\t") for line in cli("interrupts", "list").stdout.splitlines()]

    mine = next(cells for cells in listed if cells[0] == question)
    assert mine[1:5] == [run_id, "approve", "shop_refund", "ana,ben"]
    assert mine[5].endswith("Z")
    assert json.loads(mine[6]) == {"order": 1042, "amount": 120}


@pytest.mark.full
def test_questions_are_found_by_graph_person_name_and_age(cli, waiting):
    """Filters cut the list; a run that isn't there is an error, and not an empty list."""
    run_id, question = waiting

    def listed(*wanted):
        return [
            line.split("\t")[0]
            for line in cli(
                "interrupts", "list", "--limit", "1000", *wanted
            ).stdout.splitlines()
        ]

    assert question in listed(
        "--graph", "shop-refund", "--assignee", "ana", "--name", "shop_refund"
    )
    cli("run", "shop-refund", "--input", "1", "--wait")
    assert listed("--run", run_id) == [question]
    assert listed("--run", run_id, "--assignee", "zoe") == []
    assert listed("--older-than", "1h") == []
    assert cli("interrupts", "list", "--run", "00none").exit_code == 4
    assert cli("interrupts", "list", "--older-than", "long").exit_code == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "output"), [("shop-desk", "paid 120.0 for 7"), ("shop-count", 12)]
)
def test_the_command_that_a_waiting_run_prints_decides_it(cli, shop_url, name, output):
    """A call is approved by it, as it is shown; a question with a rule and no call is answered."""
    waits = cli("run", name, "--input", "1", "--wait")
    assert waits.exit_code == 3
    command = shlex.split(waits.stderr.partition("To continue: runner ")[2].splitlines()[0])
    words = {"WHO": "ana", "JSON": "12"}
    done = cli(*(words.get(word, word) for word in command))

    assert (done.exit_code, done.stdout.split("\t")[0]) == (0, "accepted")
    (node,) = (
        Client(redis_url=shop_url).run(done.stdout.split("\t")[2]).wait(60).results.values()
    )
    assert output in (node.output, getattr(node.output, "text", str(node.output)))


@pytest.mark.full
def test_a_second_answer_is_a_conflict(cli, waiting):
    """The first answer wins; the second one is told who gave it, and the code is 5."""
    _, question = waiting
    cli(*agreed(question))

    again = cli("interrupts", "respond", question, "--response", YES, "--responder", "ben")

    assert again.exit_code == 5
    assert again.stdout.startswith("duplicate\t")
    assert "ana" in again.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (["--response", '{"decision": "maybe"}', "--responder", "ana"], 2, "rejected"),
        (["--response", "0.1000000000000000001", "--responder", "ana"], 2, ""),
        (["--response", YES, "--responder", "eve"], 6, "forbidden"),
        (["--response", YES], 6, "forbidden"),
        (["--response", YES, "--responder", "ana", "--digest", "sha256:0"], 5, "rejected"),
    ],
)
def test_an_answer_that_is_refused_leaves_the_question_open(cli, waiting, options, code, word):
    """Each reason has its code, and a right answer is still taken afterwards."""
    _, question = waiting

    refused = cli("interrupts", "respond", question, *options)
    accepted = cli(*agreed(question))

    assert (refused.exit_code, refused.stdout.split("\t")[0]) == (code, word)
    assert accepted.exit_code == 0


def test_an_answer_to_no_question_ends_with_4(cli):
    """An id that was never given out is unknown."""
    done = cli("interrupts", "respond", "nothing.at.1.all", "--response", "1")

    assert (done.exit_code, done.stdout.split("\t")[0]) == (4, "unknown")


def test_what_was_shown_can_be_held_to_by_its_digest(cli, waiting):
    """The digest of `show` goes with the answer, and the answer is taken."""
    _, question = waiting
    shown = read(cli, "interrupts", "show", question)

    done = cli(*agreed(question, "--digest", shown["digest"]))

    assert done.exit_code == 0
    assert shown["response_schema"]["required"] == ["decision"]


def test_an_answered_question_shows_its_answer(cli, waiting):
    """Afterwards the question says who answered what, and when."""
    _, question = waiting
    cli(*agreed(question))

    shown = read(cli, "interrupts", "show", question)

    assert (shown["status"], shown["responder"], shown["response"]) == (
        "answered",
        "ana",
        {"decision": "approve"},
    )
    assert shown["answered_at"] >= shown["asked_at"]


def test_a_question_shows_as_lines_of_key_and_value(cli, waiting):
    """Without a terminal each fact is a line, and empty ones are left out."""
    lines = dict(
        line.split("\t", 1)
        for line in cli("interrupts", "show", waiting[1]).stdout.splitlines()
    )

    assert lines["name"] == "shop_refund"
    assert lines["status"] == "open"
    assert "response" not in lines


def test_an_answer_is_written_only_while_the_question_is_open(cli, waiting):
    """A pipe can't be asked field by field, and a closed question takes no answer."""
    _, question = waiting
    assert cli("interrupts", "respond", question).exit_code == 2
    cli(*agreed(question))
    assert cli("interrupts", "respond", question, "--response", YES).exit_code == 5


def test_a_question_shows_when_it_expires():
    """A question shows when it expires, what happens then, and how often people were reminded."""
    interrupt = Address("00run", "a", 1).ask(
        "ok?", scope="function", expires_in=60, on_expire="fail"
    )
    interrupt = replace(interrupt, asked_at=1_700_000_000_000, reminded=2)
    question = question_of(interrupt)
    written = document(question)

    assert (written["on_expire"], written["reminded"]) == ("fail", 2)
    assert written["expires_at"] == "2023-11-14T22:14:20.000Z"
    assert _expiry(question).endswith(": fail\n")
    assert _expiry(replace(question, on_expire={"route": "lead"})).endswith(
        ': {"route": "lead"}\n'
    )
    assert _expiry(question_of(replace(interrupt, expires_in=None))) == ""
    drawn = str(_question(question, interrupt.asked_at + 60_000).renderables[0])
    assert "expires now  reminded 2 times" in drawn
