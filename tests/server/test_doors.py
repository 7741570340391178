"""The exact call at each door: nobody gets another sum paid than two people have approved, at any level."""

from __future__ import annotations

import functools
import json
import uuid

import pytest
from click.testing import CliRunner

from runner.approvals import Auth, Principal, Rule, SigningKey
from runner.approvals.keys import KeySet
from runner.celery.kombu_fixes import message_of
from runner.cli.program import runner
from runner.errors import UsageError
from runner.operations.message_handlers import IncomingMessage, handle_answer
from runner.records.messages import vote_body
from tests.execution.test_effects import Till
from tests.server.conftest import Site
from tests.server.test_pages import send

SHOWN = {"order": "1042", "amount": 120}

EDITS = {
    "a name that reads as another": {"order": "1042", "\u0430mount": 5},
    "a name more": {"order": "1042", "amount": 120, "currency": "EUR"},
    "a name less": {"order": "1042"},
    "a text": {"order": "1042", "amount": "1_0"},
    "a truth": {"order": "1042", "amount": True},
    "a fraction": {"order": "1042", "amount": 120.5},
    "a list": [1042, 120],
    "a number": 120,
}


class Team:
    """Who is in finance, where nothing is signed."""

    def groups(self, principal):
        """Return the groups of a principal."""
        return ["finance"] if principal.sub in {"ana", "ben"} else []

    def roles(self, principal):
        """Return no roles."""
        return []


team = Team()


class Desk:
    """A call that waits for two of finance, and a key for the level of its rule."""

    def __init__(self, url, level, folder, monkeypatch):
        self.url, self.private = url, folder / "private.json"
        KeySet(folder / "public.json").make("door", self.private, level=level or 1)
        monkeypatch.setenv("RUNNER_DECISION_KEYS", str(folder / "public.json"))
        self.key = SigningKey.read(str(self.private)) if level else None
        rule = Rule(eligible=["group:finance"], need=2, auth=Auth(level=level))
        self.till = Till(rule)
        self.site = Site(url, {"till": lambda: self.till.graph})
        self.site.client.engine.directory = f"{__name__}:team"
        self.site.settings.signing_key = str(self.private) if level else ""
        self.site.client.engine.signing_key = self.key
        (self.question,) = self.site.start("till", "refund 1042").interrupts()

    def body(self, name, decision, response, digest):
        """Make the message of a vote, signed for the groups that a directory knows."""
        by = Principal(name)
        body = vote_body(self.question.id, decision, by, response=response, digest=digest)
        login = {"groups": team.groups(by)}
        return self.key.sign(body, login=login) if self.key else body

    def receive(self, body):
        """Take a message from a queue, as a worker does."""
        message = IncomingMessage("1-0", uuid.uuid4().hex, body)
        receipt = handle_answer(self.site.client.engine, message).receipt
        return receipt.status if receipt else "dead"

    def work(self):
        """Run the node, whichever process its doorbell was left to."""
        run_id = self.question.run_id
        node = self.site.client.engine.store.read(run_id).nodes["pay"]
        self.site.client.engine.deliver(run_id, "pay", node.visit, node.attempt)
        self.site.work()


def by_client(desk, name, decision, response, digest):
    vote = functools.partial(desk.site.client.vote, desk.question.id, decision, by=name)
    try:
        return str(vote(response=response, digest=digest).status)
    except UsageError:
        return "error"


def by_stream(desk, name, decision, response, digest):
    body = json.dumps(desk.body(name, decision, response, digest)).encode()
    return desk.receive(body)


def by_task(desk, name, decision, response, digest):
    sent = desk.body(name, decision, response, digest)
    return desk.receive(message_of("runner.respond", uuid.uuid4().hex, (), sent))


def by_command(desk, name, decision, response, digest):
    line = ["interrupts", "vote", desk.question.id, decision, "--by", name]
    line += ["--response", json.dumps(response)] if response is not None else []
    line += ["--digest", digest] if digest else []
    env = {"RUNNER_REDIS_URL": desk.url, "RUNNER_DIRECTORY": f"{__name__}:team"}
    env |= {"RUNNER_SIGNING_KEY": str(desk.private)} if desk.key else {}
    done = CliRunner().invoke(runner, line, env=env)
    return done.stdout.split("\t")[0] or "error"


def by_http(desk, name, decision, response, digest):
    desk.site.as_role("approver", name=name, groups=team.groups(Principal(name)))
    answer = desk.site.http.post(
        f"/v1/questions/{desk.question.id}/votes",
        json={"decision": decision} | ({} if response is None else {"response": response}),
        headers={"If-Match": f'"{digest}"'} if digest else {},
    )
    return answer.json().get("status") if answer.status_code == 200 else "refused"


def by_page(desk, name, decision, response, digest):
    desk.site.as_role("approver", name=name, groups=team.groups(Principal(name)))
    fields = {"decision": decision} if decision else {}
    fields |= {"arguments": json.dumps(response)} if response is not None else {}
    fields |= {"digest": digest} if digest else {}
    send(desk.site, f"/q/{desk.question.id}", confirmed="yes", **fields)
    votes = desk.site.client.engine.store.votes(desk.question.id)
    return "taken" if any(vote["by"] == f"human:|{name}" for vote in votes) else "refused"


DOORS = {
    "client": by_client,
    "stream": by_stream,
    "task": by_task,
    "command": by_command,
    "http": by_http,
    "page": by_page,
}
TAKEN = {"counted", "accepted", "taken"}


@pytest.mark.parametrize("level", [0, pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("door", DOORS)
def test_no_door_takes_another_call_or_another_person(
    redis_url, tmp_path, monkeypatch, door, level
):
    """Edits that do not fit, strangers, one person twice, other digests count nothing; the control pays."""
    desk, vote = Desk(redis_url, level, tmp_path, monkeypatch), DOORS[door]
    digest, other = desk.question.digest, "sha256:" + "0" * 64
    words = {
        case: vote(desk, "ana", kind, edit, digest)
        for case, edit in EDITS.items()
        for kind in (("edit",) if door == "page" else ("edit", "approve"))
    }
    words["a stranger"] = vote(desk, "eve", "approve", None, digest)
    words["a name that reads as another"] = vote(desk, "an\u200ba", "approve", None, digest)
    words["another question"] = vote(desk, "ana", "approve", None, other)
    if level or door in {"http", "page"}:
        words["no question"] = vote(desk, "ana", "approve", None, None)
    desk.work()
    assert not {case: word for case, word in words.items() if word in TAKEN}

    assert vote(desk, "ana", "approve", None, digest) in TAKEN
    if door != "page":
        assert vote(desk, " ana", "approve", None, digest) not in TAKEN
    desk.work()
    assert desk.till.paid == []

    assert vote(desk, "ben", "approve", None, digest) in TAKEN
    desk.work()
    assert [paid[:2] for paid in desk.till.paid] == [(SHOWN["order"], SHOWN["amount"])]
