"""Questions with a rule on the command line: the rule in words, the exact call, and the votes so far."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from runner import Client
from runner.approvals import Rule, digests
from runner.cli.interrupts import _show_list, _show_whole
from runner.cli.output import Output
from runner.cli.run_tree import draw
from runner.errors import UsageError
from runner.operations.questions import check_alike, read_question, read_questions
from runner.operations.views import read_run
from runner.store.redis.store import RedisStore
from tests.cli.conftest import read
from tests.contract.store.manual_worker import ManualWorker
from tests.contract.store.voting import TWO, voting

FOUR_EYES = Rule(
    eligible=["group:finance"], need=2, exclude=["requester"], title="Give back {amount}"
)


@pytest.fixture
def store(fake_store):
    return RedisStore(fake_store.url, push=False)


@pytest.fixture
def people(store):
    people = voting(ManualWorker(store), FOUR_EYES, risk="high")
    people.vote("ana")
    return people


@pytest.fixture
def runner(call, fake_store):
    return lambda *arguments: call(*arguments, url=fake_store.url)


def drawn(show, *arguments):
    output, written = Output(), io.StringIO()
    output.console = Console(file=written, width=200)
    show(output, *arguments)
    return written.getvalue()


@pytest.mark.full
def test_a_pending_decision_is_said_wherever_the_question_is_shown(store, runner):
    """In its list, on its own and in its run, while it can still be taken back."""
    people = voting(ManualWorker(store), Rule(eligible=["ana"], undo=600))
    people.vote("ana")
    view = read_question(store, store.interrupts([people.question.id])[0])
    tree = io.StringIO()
    Console(file=tree, width=200).print(draw(read_run(store, view.run_id), view.asked_at))
    for text in (
        runner("interrupts", "list").stdout,
        drawn(_show_list, [view]),
        drawn(_show_whole, view),
        tree.getvalue(),
    ):
        assert re.search(r"approved by ana, takes effect at 20\d\d-", text), text
    assert read(runner, "runs", "show", view.run_id)["interrupts"][0]["undo"]["by"].endswith(
        "|ana"
    )


def test_a_list_says_how_the_votes_stand(runner, people):
    """As the last column of the questions with a rule, and of no others."""
    _, plain = people.worker.asking("a")
    lines = [line.split("\t") for line in runner("interrupts", "list").stdout.splitlines()]
    rows = {cells[0]: cells for cells in lines}

    assert rows[people.question.id][7:] == ["1 of 2"]
    assert len(rows[plain.id]) == 7


@pytest.mark.full
def test_mine_lists_what_waits_for_me(runner, people, monkeypatch):
    """By the login name, with the groups of the directory."""
    monkeypatch.setenv("RUNNER_DIRECTORY", f"{__name__}:directory")
    _, plain = people.worker.asking("a")
    named = people.worker.asking("a", assignees=["zoe"])[1]

    def listed(name, *options):
        monkeypatch.setenv("LOGNAME", name)
        lines = runner("interrupts", "list", *options).stdout.splitlines()
        return {line.split("\t")[0] for line in lines}

    everything = {people.question.id, plain.id, named.id}
    assert listed("zoe") == everything
    assert (listed("ana", "--mine"), listed("ana", "--voted")) == (set(), {people.question.id})
    assert (listed("ben", "--mine"), listed("ben", "--voted")) == ({people.question.id}, set())
    assert listed("ben", "--requested") == set()
    assert listed("zoe", "--mine") == {named.id}
    monkeypatch.setenv("LOGNAME", "ana")
    assert runner("interrupts", "list", "--mine", "--graph", "x").stdout == ""


def test_a_question_shows_its_rule_its_call_and_its_votes(store, people):
    """In words, whole, with who has voted as what and how sure that is."""
    text = drawn(
        _show_whole,
        read_question(
            store, replace(people.now, requester="human:|cora", on_behalf_of=["human:|dan"])
        ),
    )

    assert "started by cora for dan\n" in text
    assert (
        "two of group finance; not cora who asked for it, dan for whom that was nor programs;"
        in text
    )
    assert "high risk" in text
    assert "the tool refund will run with" in text
    assert '"amount": "10"' in text
    assert "votes  1 of 2" in text
    assert "ana approve, as group finance, level 0," in text
    listed = drawn(_show_list, read_questions(store, [people.now]))
    assert "votes 1 of 2" in listed
    assert text.startswith("Give back 10  open\n")
    assert listed.startswith("Give back 10  asked by a of group finance, ")
    assert ", of group finance\n" in text


@pytest.mark.full
def test_only_a_question_that_names_nobody_is_of_anyone(store, people):
    """In every list and view; control: one without a rule or assignees is."""
    _, plain = people.worker.asking("a")
    for question, of_anyone in ((people.now, False), (plain, True)):
        views = read_questions(store, [question])
        texts = (drawn(_show_list, views), drawn(_show_whole, views[0]))
        assert [("of anyone" in text) for text in texts] == [of_anyone] * 2
        run = drawn(
            lambda output, view: output.show(draw(view, 0)), read_run(store, question.run_id)
        )
        assert ("of anyone" in run) == of_anyone


def test_a_long_call_is_shown_whole(store):
    """An approval is for all of it."""
    from runner.approvals.digests import Action

    long = "x" * 5_000 + " and the end"
    people = voting(
        ManualWorker(store), TWO, action=Action("runner", "tool", "mail", {"text": long})
    )
    text = drawn(_show_whole, read_question(store, people.question))

    assert "".join(text.split()).count("x" * 5_000 + "andtheend") == 1


@pytest.mark.full
def test_the_digests_can_be_computed_again(runner, people):
    """`show --json` alone has each object that is hashed; the question's own digest is that of the first."""
    shown = read(runner, "interrupts", "show", people.question.id)
    lines = runner("interrupts", "show", people.question.id).stdout
    assert ("\nrule_words\t" in lines, "\ndigests\t" in lines) == (True, False)
    question = shown["digests"]["question"]

    assert digests.digest("question", question) == shown["digest"]
    assert digests.digest("action", shown["digests"]["action"]) == question["action"]
    assert digests.digest("policy", shown["digests"]["policy"]) == question["policy"]
    assert shown["rule_words"].startswith("two of group finance")
    assert [(vote["by"], vote["selector"]) for vote in shown["votes"]] == [
        ("human:|ana", "group:finance")
    ]


def test_a_question_without_a_rule_is_read_as_before(store, monkeypatch):
    """The control: nothing is read of votes where there are none."""
    _, asked = ManualWorker(store).asking("a")
    (question,) = store.interrupts([asked.id])
    monkeypatch.setattr(RedisStore, "votes", lambda *_: pytest.fail("votes were read"))

    assert read_question(store, question).rule_words == ""
    assert read_questions(store, [question])[0].need == 0


def test_only_the_same_question_is_decided_for_several_runs(store):
    """Same graph, node, name and schema, each with the digest that was shown."""
    worker = ManualWorker(store)
    first, second = (voting(worker, TWO).question for _ in range(2))
    _, other = worker.asking("b", node="b")
    known = {question.id: question.digest for question in (first, second, other)}

    check_alike(store, [first.id, second.id], known)
    with pytest.raises(UsageError, match="digest of the question"):
        check_alike(store, [first.id, second.id], {first.id: first.digest})
    with pytest.raises(UsageError, match=r"differ in .*node"):
        check_alike(store, [first.id, other.id], known)
    with pytest.raises(UsageError, match="was asked"):
        check_alike(store, [first.id, f"{first.run_id}.a.1.0000000000000000"], known)
    with pytest.raises(UsageError, match="nothing to decide"):
        check_alike(store, [], known)


def vote(runner, question, decision, who, *options):
    """Run the command, with the digest of the question unless there is one; return code and cells."""
    if "--digest" not in options:
        options = ("--digest", question.digest, *options)
    done = runner("interrupts", "vote", question.id, decision, "--by", who, *options)
    return done.exit_code, done.stdout.strip().split("\t"), done.stderr


@pytest.mark.full
def test_votes_are_taken_on_the_command_line(runner, store, monkeypatch):
    """Counted and accepted end with 0, and each way of refusal has the code that an answer has."""
    monkeypatch.setenv("RUNNER_DIRECTORY", f"{__name__}:directory")
    people = voting(ManualWorker(store), FOUR_EYES)
    question = people.question

    code, cells, _ = vote(runner, question, "approve", "ana", "--digest", question.digest)
    assert (code, cells[0], cells[3]) == (0, "counted", "1 of 2")
    assert vote(runner, question, "approve", "ana")[0] == 5
    assert vote(runner, question, "approve", "zoe")[0] == 6
    assert vote(runner, question, "approve", "ben", "--digest", "sha256:0")[0] == 5
    code, cells, _ = vote(runner, question, "approve", "human:|ben", "--comment", "fine")
    assert (code, cells[0]) == (0, "accepted")
    assert vote(runner, question, "reject", "eva")[0] == 5
    assert [taken["comment"] for taken in store.votes(question.id)] == ["", "fine"]


@pytest.mark.full
@pytest.mark.parametrize("missing", ["--responder", "--digest"])
def test_what_a_vote_lacks_is_named_at_once(runner, store, missing):
    """Of an answer to a question with a rule."""
    worker = ManualWorker(store)
    question = voting(worker, Rule(eligible=["ana"]), action=None).question
    options = {"--responder": "ana", "--digest": question.digest, "--response": "true"}
    del options[missing]
    respond = ("interrupts", "respond", question.id)
    written = [part for option in options.items() for part in option]
    refused = runner(*respond, *written)
    assert (refused.exit_code, missing in refused.stderr) == (2, True)
    assert store.votes(question.id) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("edit",), "edit needs --response"),
        (("respond",), "respond needs --response"),
        (("reject", "--response", "1"), "reject has no response"),
        (("shrug",), "shrug"),
    ],
)
def test_a_vote_that_means_nothing_is_wrong_usage(runner, people, arguments, words):
    """Nothing is sent, and the line says what is wrong."""
    code, _, errors = vote(runner, people.question, *arguments[:1], "ana", *arguments[1:])

    assert code == 2
    assert words in errors


class Finance:
    """A directory in which all but one are in finance."""

    def groups(self, principal):
        return [] if principal.sub == "zoe" else ["finance"]

    def roles(self, principal):
        return []


directory = Finance()


@pytest.fixture
def client(store):
    client = Client(store=store)
    client.engine.directory = f"{__name__}:directory"
    return client


def test_the_directory_may_be_in_the_current_folder(runner, store, monkeypatch, tmp_path):
    """As with a worker, whose modules are imported from there."""
    methods = "    groups = lambda self, who: ['finance']\n    roles = lambda self, who: []\n"
    (tmp_path / "staff.py").write_text(f"class Staff:\n{methods}staff = Staff()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(tmp_path)])
    monkeypatch.setenv("RUNNER_DIRECTORY", "staff:staff")
    question = voting(ManualWorker(store), TWO).question

    assert vote(runner, question, "approve", "ana")[1][0] == "counted"


def done(runner, *arguments):
    """Run a command about a question; return its exit code and the status on its line."""
    called = runner("interrupts", *arguments)
    return called.exit_code, called.stdout.split("\t")[0]


@pytest.mark.full
def test_an_approval_has_no_arguments_of_its_own(runner, store, monkeypatch):
    """Others than the call's are refused; control: its own, those of a version, and an edit."""
    monkeypatch.setenv("RUNNER_DIRECTORY", f"{__name__}:directory")
    question = voting(ManualWorker(store), replace(FOUR_EYES, need=3)).question
    edit = json.dumps({"order": "7", "amount": "1"})

    code, _, errors = vote(runner, question, "approve", "ana", "--response", edit)
    assert (code, "vote edit" in errors) == (2, True)
    assert store.votes(question.id) == []

    same = json.dumps(question.action["args"])
    assert vote(runner, question, "approve", "ana", "--response", same)[1][0] == "counted"
    assert vote(runner, question, "edit", "ben", "--response", edit)[1][0] == "counted"
    assert vote(runner, question, "approve", "eva", "--response", edit)[1][3] == "2 of 3"


@pytest.mark.full
def test_a_call_is_decided_and_not_answered(runner, store):
    """`respond` sends nothing and names the vote that approves; control: `vote respond` says what it does."""
    question = voting(ManualWorker(store), Rule(eligible=["ana"])).question
    command = (
        f"runner interrupts vote {question.id} approve --by WHO --digest {question.digest}"
    )

    for options in (
        ("--response", "true"),
        ("--response", "true", "--digest", "x"),
    ):
        refused = runner("interrupts", "respond", question.id, "--responder", "ana", *options)
        assert (refused.exit_code, command in refused.stderr) == (2, True)
        assert "The decision respond answers instead" in refused.stderr
    assert store.votes(question.id) == []

    _, cells, _ = vote(runner, question, "respond", "ana", "--response", "true")
    assert cells[3] == "1 of 1; for an answer instead: the call is not made"
    shown = drawn(_show_whole, read_question(store, store.interrupts([question.id])[0]))
    assert "1 of 1: the call is not made" in shown
