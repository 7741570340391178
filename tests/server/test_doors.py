"""The exact call at each door: nobody gets another sum paid than two people have approved, at any level."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from contextlib import closing
from dataclasses import replace

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from kombu import Message

from runner import AsyncClient, Client
from runner.approvals import Auth, Principal, Rule, SigningKey, proofs
from runner.approvals.keys import KeySet
from runner.audit.checkpoint import public_bytes
from runner.celery.amqp import AmqpMessages, ReceivedMessage
from runner.celery.kombu_fixes import message_of
from runner.cli.program import runner
from runner.errors import UsageError
from runner.operations.message_handlers import IncomingMessage, handle_answer
from runner.records.messages import vote_body
from runner.server import create_app
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


PEOPLE = ("ana", "ben", "eve")


class Desk:
    """A call that waits for two of finance, with the keys of its level: a door's, or people's own."""

    def __init__(self, url, level, folder, monkeypatch, max_age=None):
        self.url, self.level, self.folder = url, level, folder
        self.keys = {}
        for name in {0: (), 3: PEOPLE}.get(level, ("door",)):
            groups = team.groups(Principal(name)) or ["sales"]
            own = {"principal": f"human:|{name}", "groups": groups} if level == 3 else {}
            KeySet(folder / "public.json").make(name, self.path(name), level=level, **own)
            self.keys[name] = SigningKey.read(str(self.path(name)))
        if level:
            monkeypatch.setenv("RUNNER_DECISION_KEYS", str(folder / "public.json"))
        auth = Auth(level=level, max_age=max_age)
        self.till = Till(Rule(eligible=["group:finance"], need=2, auth=auth))
        self.site = Site(url, {"till": lambda: self.till.graph})
        self.engine = self.site.client.engine
        self.engine.directory = f"{__name__}:team"
        self.site.settings.signing_key = str(self.path("door")) if level in {1, 2} else ""
        (self.question,) = self.site.start("till", "refund 1042").interrupts()

    def path(self, name):
        """Where the private key is that signs for a person."""
        return self.folder / f"{name.strip() if self.level == 3 else 'door'}.json"

    def key(self, name):
        """Return the key that signs for a person; None where nothing is signed."""
        plain = name.strip().replace("\u200b", "")
        return self.keys.get(plain) or self.keys.get("door")

    def client(self, name):
        """Return the client of a person, whose process has the key that signs for them."""
        self.engine.signing_key = self.key(name)
        return self.site.client

    def body(self, name, decision, response, digest, *, question=None, now=None, **login):
        """Make the message of a vote, signed for the groups that a directory knows."""
        by, key = Principal(name), self.key(name)
        asked = question or self.question
        body = vote_body(asked.id, decision, by, response=response, digest=digest)
        login = {"groups": team.groups(by), **login}
        return key.sign(body, login=login, now=now) if key else body

    def log_in(self, name, **login):
        """Log a person in to the server."""
        self.site.as_role("approver", name=name, groups=team.groups(Principal(name)))
        self.site.person = replace(self.site.person, **login)

    def votes(self):
        """Return who has a vote that counts."""
        return [vote["by"] for vote in self.engine.store.votes(self.question.id)]

    def work(self):
        """Run the node, whichever process its doorbell was left to."""
        run_id = self.question.run_id
        node = self.engine.store.read(run_id).nodes["pay"]
        self.engine.deliver(run_id, "pay", node.visit, node.attempt)
        self.site.work()
        return [paid[:2] for paid in self.till.paid]


# Doors that take a whole message, with the proof of who sends it.


def send_by_client(desk, body):
    fields = {"response": None, "digest": None, "proof": None, **body}
    asked, decision = fields.pop("interrupt_id"), fields.pop("decision")
    fields.pop("v")
    try:
        return str(desk.site.client.vote(asked, decision, **fields).status)
    except UsageError:
        return "error"


def received(desk, raw):
    receipt = handle_answer(desk.engine, IncomingMessage("1-0", uuid.uuid4().hex, raw)).receipt
    return receipt.status if receipt else "dead"


def send_by_stream(desk, body):
    return received(desk, json.dumps(body).encode())


def send_by_task(desk, body):
    return received(desk, message_of("runner.respond", uuid.uuid4().hex, (), body))


def send_by_amqp(desk, body):
    """What a worker does with a message of RabbitMQ; tests/celery/test_rabbitmq.py has the way there."""
    replies = []
    messages = AmqpMessages(
        desk.engine, desk.site.settings, lambda *sent, **_: replies.append(sent)
    )
    properties = {"message_id": uuid.uuid4().hex, "reply_to": "replies"}
    message = Message(json.dumps(body), properties=properties)
    assert messages.apply(ReceivedMessage(message, "runner.responses"), keep=False)
    exchange, _, reply = replies[0]
    return "dead" if exchange else json.loads(reply)["status"]


def send_by_http(desk, body):
    desk.log_in(body["by"].partition("|")[2])
    ours = {"v", "by", "interrupt_id", "digest"}
    answer = desk.site.http.post(
        f"/v1/questions/{desk.question.id}/votes",
        json={name: value for name, value in body.items() if name not in ours},
        headers={"If-Match": f'"{body["digest"]}"'} if body.get("digest") else {},
    )
    return answer.json().get("status") if answer.status_code == 200 else "refused"


def send_by_page(desk, body):
    desk.log_in(body["by"].partition("|")[2])
    fields = {name: body[name] for name in ("decision", "digest") if body.get(name)}
    fields |= {"arguments": json.dumps(body["response"])} if "response" in body else {}
    fields |= {"proof": json.dumps(body["proof"])} if "proof" in body else {}
    answer = send(desk.site, f"/q/{desk.question.id}", confirmed="yes", **fields)
    voted = body["by"] in desk.votes()
    return "taken" if answer.status_code < 400 and voted else "refused"


SENDERS = {
    "client": send_by_client,
    "stream": send_by_stream,
    "task": send_by_task,
    "amqp": send_by_amqp,
    "http": send_by_http,
    "page": send_by_page,
}


# Doors that sign for who decides, and those that decide several questions.


def by_message(sender):
    """A vote by a door that takes whole messages; the server signs by itself what is no own key's."""

    def vote(desk, name, decision, response, digest):
        body = desk.body(name, decision, response, digest)
        if sender in {send_by_http, send_by_page} and desk.level < 3:
            body.pop("proof", None)
        return sender(desk, body)

    return vote


def by_client(desk, name, decision, response, digest):
    vote = desk.client(name).vote
    try:
        return str(
            vote(desk.question.id, decision, by=name, response=response, digest=digest).status
        )
    except UsageError:
        return "error"


def by_async(desk, name, decision, response, digest):
    client = AsyncClient(
        store=desk.engine.store, dispatcher=desk.site, registry=desk.site.registry
    )
    client.sync.engine.directory = desk.engine.directory
    client.sync.engine.signing_key = desk.key(name)
    vote = client.vote(desk.question.id, decision, by=name, response=response, digest=digest)
    try:
        return str(asyncio.run(vote).status)
    except UsageError:
        return "error"


def by_respond_all(desk, name, decision, response, digest):
    asked, respond_all = desk.question.id, desk.client(name).respond_all
    digests = {asked: digest} if digest else {}
    try:
        (receipt,) = respond_all([asked], decision, by=name, digests=digests, response=response)
    except UsageError:
        return "error"
    return str(receipt.status)


def by_command(desk, name, decision, response, digest):
    line = ["interrupts", "vote", desk.question.id, decision, "--by", name]
    line += ["--digest", digest] if digest else []
    line += ["--response", json.dumps(response)] if response is not None else []
    env = {"RUNNER_REDIS_URL": desk.url, "RUNNER_DIRECTORY": f"{__name__}:team"}
    env |= {"RUNNER_SIGNING_KEY": str(desk.path(name))} if desk.key(name) else {}
    return CliRunner().invoke(runner, line, env=env).stdout.split("\t")[0] or "error"


def by_batch(desk, name, decision, response, digest):
    desk.log_in(name)
    body = {"decision": decision, "digests": {desk.question.id: digest}}
    body |= {} if response is None else {"response": response}
    answer = desk.site.http.post("/v1/questions:vote", json=body)
    return answer.json()["items"][0]["status"] if answer.status_code == 200 else "refused"


def by_together(desk, name, decision, response, digest):
    desk.log_in(name)
    asked = desk.question.id
    fields = {"q": asked, "pick": asked, "digest": digest or "", "decision": decision}
    fields |= {} if response is None else {"arguments": json.dumps(response)}
    answer = send(desk.site, "/inbox/together", **fields)
    voted = f"human:|{name}" in desk.votes()
    return "taken" if answer.status_code == 200 and voted else "refused"


DOORS = {
    "client": by_client,
    "async": by_async,
    "respond_all": by_respond_all,
    "stream": by_message(send_by_stream),
    "task": by_message(send_by_task),
    "amqp": by_message(send_by_amqp),
    "command": by_command,
    "http": by_message(send_by_http),
    "batch": by_batch,
    "page": by_message(send_by_page),
    "together": by_together,
}
TAKEN = {"counted", "accepted", "taken"}
PAGES, BULK = {"page", "together"}, {"respond_all", "batch", "together"}
QUICK = {
    ("client", 0),
    ("respond_all", 2),
    ("stream", 2),
    ("amqp", 3),
    ("batch", 2),
    ("page", 2),
}


def matrix(doors, levels, quick):
    """Each door at level 2, those of each kind of proof at each level; all but the quick ones are slow."""
    cases = [
        (door, level)
        for door in doors
        for level in levels
        if level == 2 or door in {"client", "http", "page", "stream"} or (door, level) in quick
    ]
    return [
        pytest.param(*case, marks=[] if case in quick else pytest.mark.slow) for case in cases
    ]


@pytest.mark.full
@pytest.mark.parametrize(("door", "level"), matrix(DOORS, range(4), QUICK))
def test_no_door_takes_another_call_or_another_person(
    redis_url, tmp_path, monkeypatch, door, level
):
    """Edits that do not fit, strangers, one person twice, other digests count nothing; the control pays."""
    desk, vote = Desk(redis_url, level, tmp_path, monkeypatch), DOORS[door]
    digest, other = desk.question.digest, "sha256:" + "0" * 64
    words = {
        f"{kind}: {case}": vote(desk, "ana", kind, edit, digest)
        for case, edit in EDITS.items()
        for kind in (("edit",) if door in PAGES else ("edit", "approve"))
    }
    words["a stranger"] = vote(desk, "eve", "approve", None, digest)
    words["a name that reads as another"] = vote(desk, "an\u200ba", "approve", None, digest)
    words["another question"] = vote(desk, "ana", "approve", None, other)
    if level or door in {"http", "page"} | BULK:
        words["no question"] = vote(desk, "ana", "approve", None, None)
    assert desk.work() == []
    assert not {case: word for case, word in words.items() if word in TAKEN}

    if level == 3 and door in {"batch", "together"}:
        # What people sign with keys of their own they decide one by one.
        assert vote(desk, "ana", "approve", None, digest) not in TAKEN
        vote = by_client
    assert vote(desk, "ana", "approve", None, digest) in TAKEN
    if door not in PAGES:
        assert vote(desk, " ana", "approve", None, digest) not in TAKEN
    assert desk.work() == []

    assert vote(desk, "ben", "approve", None, digest) in TAKEN
    assert desk.work() == [(SHOWN["order"], SHOWN["amount"])]


def forgeries(desk):
    """Make decisions of which something is not as it was signed, and signatures that nobody may give."""
    asked = desk.question
    (other,) = desk.site.start("till", "refund 1042").interrupts()
    honest = desk.body("ana", "approve", None, asked.digest)
    key, proof = desk.key("ana"), honest["proof"]
    bare = {name: value for name, value in honest.items() if name != "proof"}
    enemy = Ed25519PrivateKey.generate()

    def signed(**changes):
        return {**honest, "proof": {**proof, **changes}}

    public = public_bytes(key.key.public_key())
    mac = {**bare, "proof": {**proof, "alg": "HS256"}}
    secret = proofs.encoded(hmac.digest(public, proofs.signed_bytes(mac), "sha256"))
    elsewhere = desk.body("ana", "approve", None, other.digest, question=other)
    return {
        "another digest": {**honest, "digest": "sha256:" + "0" * 64},
        "other arguments": {**honest, "decision": "edit", "response": {**SHOWN, "amount": 9}},
        "somebody else": {**honest, "by": "human:|ben"},
        "the signature of somebody else": desk.body("ben", "approve", None, asked.digest)
        | {"proof": proof},
        "a question of another run": {
            **elsewhere,
            "interrupt_id": asked.id,
            "digest": asked.digest,
        },
        "an old signature": desk.body(
            "ana", "approve", None, asked.digest, now=time.time() - 3600
        ),
        "one of tomorrow": desk.body(
            "ana", "approve", None, asked.digest, now=time.time() + 86400
        ),
        "a longer life": signed(exp=proof["exp"] + 1),
        "a lower level": signed(level=0),
        "another group": signed(groups=["finance", "board"]),
        "another jti": signed(jti="another"),
        "no signature": signed(alg="none", sig=""),
        "no proof": {**bare, "proof": {"alg": "none"}},
        "a public key as a secret": signed(alg="HS256", sig=secret),
        "a stranger's key": SigningKey(key.kid, enemy).sign(
            bare, login={"groups": ["finance"]}
        ),
        "an unknown key": SigningKey("enemy", enemy).sign(bare, login={"groups": ["finance"]}),
    }


@pytest.mark.full
@pytest.mark.parametrize(("door", "level"), matrix(SENDERS, (1, 2, 3), {("stream", 3)}))
def test_no_door_takes_a_forged_or_a_replayed_signature(
    redis_url, tmp_path, monkeypatch, door, level
):
    """Nothing counts that was not signed as it is, now and for this question; the control pays."""
    desk, sender = Desk(redis_url, level, tmp_path, monkeypatch), SENDERS[door]
    digest = desk.question.digest
    words = {case: sender(desk, body) for case, body in forgeries(desk).items()}
    honest, again, ben = (
        desk.body(name, "approve", None, digest) for name in ("ana", "ana", "ben")
    )
    if door not in {
        "client",
        "page",
    }:  # a client has no more arguments, and a form no more meaning
        bare = {name: value for name, value in honest.items() if name != "proof"}
        words["an unknown field"] = sender(desk, {**honest, "weight": 9})
        signed = desk.key("ana").sign({**bare, "weight": 9}, login={"groups": ["finance"]})
        words["an unknown field that is signed"] = sender(desk, signed)
    assert not {case: word for case, word in words.items() if word in TAKEN}
    assert (desk.votes(), desk.work()) == ([], [])

    assert sender(desk, honest) in TAKEN
    sender(desk, honest)
    assert (desk.votes(), desk.work()) == (["human:|ana"], [])
    assert (
        desk.client("ana").withdraw_vote(desk.question.id, by="ana").status == "withdrawn_vote"
    )
    assert sender(desk, honest) not in TAKEN
    assert sender(desk, ben) in TAKEN
    assert (desk.votes(), desk.work()) == (["human:|ben"], [])

    assert sender(desk, again) in TAKEN
    assert desk.work() == [(SHOWN["order"], SHOWN["amount"])]


@pytest.mark.full
def test_where_signatures_are_not_compared_a_forgery_counts(redis_url, tmp_path, monkeypatch):
    """Control: with a check that holds for all, decisions count that were changed after they were signed."""
    desk = Desk(redis_url, 2, tmp_path, monkeypatch)
    forged = forgeries(desk)
    monkeypatch.setattr(proofs, "_signature_holds", lambda *_: True)

    assert send_by_stream(desk, forged["a question of another run"]) in TAKEN
    assert send_by_stream(desk, forged["the signature of somebody else"]) in TAKEN
    assert desk.work() == [(SHOWN["order"], SHOWN["amount"])]


@pytest.mark.full
@pytest.mark.parametrize(
    "door", ["stream", "http", pytest.param("page", marks=pytest.mark.slow)]
)
def test_an_expired_login_decides_nothing(redis_url, tmp_path, monkeypatch, door):
    """A login that is older than the rule allows counts nowhere; the control has just logged in."""
    desk = Desk(redis_url, 2, tmp_path, monkeypatch, max_age=900)
    now, log_in = time.time(), desk.log_in
    words = []
    for name, age in (("ana", 3600), ("ana", None), ("ana", 60), ("ben", 901), ("ben", 60)):
        login = {} if age is None else {"auth_time": int(now - age)}
        body = desk.body(name, "approve", None, desk.question.digest, **login)
        if door != "stream":
            body.pop("proof")
            login_at = None if age is None else now - age
            monkeypatch.setattr(
                desk, "log_in", lambda who, at=login_at: log_in(who, login_at=at)
            )
        words.append(SENDERS[door](desk, body) in TAKEN)
        assert desk.work() == ([(SHOWN["order"], SHOWN["amount"])] if len(words) == 5 else [])

    assert words == [False, False, True, False, True]


@pytest.mark.full
@pytest.mark.parametrize("level", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_caller_never_names_who_decides(redis_url, tmp_path, monkeypatch, level):
    """What a request says of who decides is refused or counts nothing; control: who is logged in votes."""
    desk = Desk(redis_url, level, tmp_path, monkeypatch)
    asked, digest = desk.question.id, desk.question.digest
    names = {"by": "human:|ben", "responder": "ben", "principal": "human:|ben"}
    tag = {"If-Match": f'"{digest}"'}
    for caller, voters in (("eve", set()), ("ana", {"human:|ana"})):
        desk.log_in(caller)
        for extra in ({"by": "human:|ben"}, {"responder": "ben"}, {"voter": {"sub": "ben"}}):
            for path, body in (
                (f"/v1/questions/{asked}/votes", {"decision": "approve"}),
                ("/v1/questions:vote", {"decision": "approve", "digests": {asked: digest}}),
            ):
                answer = desk.site.http.post(path, json={**body, **extra}, headers=tag)
                assert answer.status_code == 422, (path, extra)
        assert desk.votes() == []
        form = {"decision": "approve", "digest": digest, "confirmed": "yes", **names}
        send(desk.site, f"/q/{asked}", **form)
        send(desk.site, "/inbox/together", q=asked, pick=asked, **form)
        assert set(desk.votes()) == voters
    assert desk.work() == []


def test_the_client_of_the_doors_vouches_as_a_service(redis_url, tmp_path, monkeypatch):
    """A vote by `services.client` has level 1 under a key of level 2, which any other client signs at."""
    desk = Desk(redis_url, 2, tmp_path, monkeypatch)
    monkeypatch.setenv("RUNNER_SIGNING_KEY", str(desk.path("door")))
    monkeypatch.setenv("RUNNER_DIRECTORY", f"{__name__}:team")
    services = create_app(desk.site.settings, auth=lambda request: None).state.services
    with closing(services.store):
        receipts = [
            client.vote(desk.question.id, "approve", by="ana", digest=desk.question.digest)
            for client in (services.client, Client(store=desk.engine.store))
        ]

    assert [receipt.status for receipt in receipts] == ["forbidden", "counted"]
    assert "level 2 is needed" in receipts[0].detail
    assert "this message has 1" in receipts[0].detail
