"""A vote that a receipt takes counts at the effect: what a worker compares, a door has compared before."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runner import Status
from runner.approvals import (
    Action,
    Auth,
    Principal,
    Rule,
    SigningKey,
    ballots,
    judgement,
    operation_body,
    start_body,
    vote_body,
)
from runner.approvals.ballots import SKEW
from runner.approvals.decision_keys import DecisionKeys
from runner.approvals.proofs import LIFETIME, encoded
from runner.approvals.rules import Voter
from runner.approvals.votes import apply_vote
from runner.audit.checkpoint import public_bytes
from runner.operations.message_handlers import IncomingMessage, handle_answer, handle_start
from runner.records.interrupts import Decision
from runner.store.memory.store import MemoryStore
from runner.testing import ManualClock
from tests.graphs import Bench, single

DOOR, STRANGER = (
    SigningKey(name, Ed25519PrivateKey.from_private_bytes(name[:1].encode() * 32))
    for name in ("door", "stranger")
)
ACTION = Action("runner", "function", "refund", {"order": "7", "amount": "10"})
EDIT = {"order": "7", "amount": "5"}
OTHER = {"order": "7", "amount": "6"}
HOUR, DAY = 3600, 86_400


class Desk:
    """A run that asks by a rule of level 1, and a door.

    The store has the time of this machine, as the ids of runs have, or that of a `clock`.
    """

    def __init__(
        self,
        keys,
        *,
        clock=None,
        start=None,
        **rule,
    ):
        self.clock, self.numbers = clock, itertools.count(1)
        self.rule = Rule(**{"auth": Auth(level=1), **rule})
        self.outcome = None
        self.bench = Bench(single(self._ask), self._store)
        self.bench.engine.decision_keys = keys
        start = start or self.signed(start_body("bench", "task", "zoe"))
        receipt = handle_start(self.bench.engine, self._message(start)).receipt
        assert receipt is not None
        self.bench.run_id = receipt.run_id or ""
        self.result = self.bench.finish()

    def _ask(self, ctx):
        self.outcome = ctx.interrupt(
            "refund?", {"sum": 10}, action=ACTION, rule=self.rule, expires_in=float(DAY)
        )
        return "done"

    def _store(self, _):
        if self.clock:
            self.clock.now = time.time_ns() // 1_000_000
        store = MemoryStore(self.clock) if self.clock else MemoryStore()
        store.clock = self.clock
        return store

    def signed(self, body, late=0, key=DOOR):
        """Sign a message by a clock that is late by so many seconds."""
        now = self.clock() / 1000 if self.clock else time.time()
        return key.sign(body, now=now - late)

    @property
    def question(self):
        (question,) = self.bench.store.interrupts([self.result.interrupts[0].id])
        assert question is not None
        return question

    def message(self, who, decision="approve", late=0, **options):
        """What who votes has signed."""
        options = {"digest": self.question.digest, **options}
        return self.signed(vote_body(self.question.id, decision, who, **options), late)

    def vote(self, who, *decision, **options):
        return self.send(self.message(who, *decision, **options))

    def delegate(self, who, to, late=0):
        body = {**operation_body(self.question.id, "delegate", who), "to": to}
        return self.send(self.signed(body, late))

    def send(self, message):
        receipt = handle_answer(self.bench.engine, self._message(message)).receipt
        return str(receipt.status) if receipt else "dead"

    def decide(self, message, **other):
        """Pass a signed vote on as a door in Python does, which may say something else beside it."""
        decision = Decision(
            self.question.id,
            True,
            digest=self.question.digest,
            decision="approve",
            voter=Voter(Principal.read(message["by"])),
            body=message,
        )
        receipt = apply_vote(self.bench.engine, replace(decision, **other), self.question)
        return str(receipt.status)

    def _message(self, message):
        number = next(self.numbers)
        return IncomingMessage(f"{number}-0", f"m/{number}-0", json.dumps(message).encode())

    def goes_on(self):
        """Say if what was decided holds at the effect."""
        return self.bench.finish().status is Status.COMPLETED


Make = Callable[..., Desk]
Step = tuple[Desk, str]

# What a worker would refuse, each refused at the door; the last step of each is a control that decides.


def before_the_run(make):
    desk = make()
    for late in (LIFETIME, SKEW + 5, SKEW - 5):
        yield desk, desk.vote("ana", late=late)


def delegated_before_the_run(make):
    desk = make(eligible=["ana"], delegate="anyone")
    yield desk, desk.delegate("ana", "ben", late=SKEW + 5)
    yield desk, desk.vote("ben")
    assert desk.delegate("ana", "ben") == "accepted"
    yield desk, desk.vote("ben")


def after_the_end(make):
    desk = make(clock=ManualClock())
    desk.clock.advance(DAY)
    yield desk, desk.vote("ana")
    desk = make(clock=ManualClock())
    desk.clock.advance(DAY - 1)
    yield desk, desk.vote("ana")


def before_the_edit(make):
    desk = make(need=2)
    early = desk.message("ana", late=5, response=EDIT)
    assert desk.vote("ben", "edit", response=EDIT) == "counted"
    yield desk, desk.send(early)
    yield desk, desk.vote("ana", response=EDIT)


def edited_before_the_edit(make):
    desk = make(need=2)
    early = desk.message("ana", "edit", late=5, response=OTHER)
    assert desk.vote("ben", "edit", response=EDIT) == "counted"
    yield desk, desk.send(early)
    assert desk.vote("ana", "edit", response=OTHER) == "counted"
    yield desk, desk.vote("ben", response=OTHER)


def before_the_escalation(make):
    desk = make(clock=ManualClock(), eligible=["ana"], escalate=[(HOUR, ["ben"])])
    desk.clock.advance(HOUR + 1)
    yield desk, desk.vote("ben", late=LIFETIME + 2)
    yield desk, desk.vote("ben")


def for_another_question(make):
    other, desk = make(), make()
    yield desk, desk.vote("ana", digest=other.question.digest)
    yield desk, desk.decide(other.message("ana"))
    yield desk, desk.decide(desk.message("ana", digest=other.question.digest))
    yield desk, desk.decide(desk.message("ana"))


def with_another_content(make):
    desk = make()
    yield desk, desk.decide(desk.message("ana", "reject"))
    yield desk, desk.decide(desk.message("ana", response=EDIT))
    yield desk, desk.decide(desk.message("ana", comment="fine"))
    yield desk, desk.decide(desk.message("ana", comment="fine"), comment="fine")


def twice(make):
    desk = make(need=2)
    message = desk.message("ana")
    assert desk.send(message) == "counted"
    assert desk.send(message) == "counted"  # the receipt that it had
    yield desk, desk.vote("ana")
    yield desk, desk.vote("ben")


def by_an_unknown_key(make):
    desk = make()
    body = {part: value for part, value in desk.message("ana").items() if part != "proof"}
    yield desk, desk.send(body)
    yield desk, desk.send(desk.signed(body, key=STRANGER))
    yield desk, desk.send({**desk.signed(body), "comment": "changed"})
    yield desk, desk.send(desk.signed(body))


def in_no_place_of_another(make):
    desk = make(eligible=["ana", "cid"], need=2, delegate="anyone")
    assert desk.vote("ana") == "counted"
    yield desk, desk.delegate("ana", "ben")
    yield desk, desk.vote("ben")
    yield desk, desk.delegate("zoe", "ben")
    assert desk.delegate("cid", "ben") == "accepted"
    yield desk, desk.vote("cid")
    yield desk, desk.vote("ben")


def by_no_rule(make):
    desk = make(eligible=["ana", "zoe"], exclude=["requester"], decisions=["approve"])
    for who, decision in (("eve", "approve"), ("zoe", "approve"), ("ana", "reject")):
        yield desk, desk.vote(who, decision)
    yield desk, desk.vote("ana")


def with_no_requester(make):
    """Known where it would be asked: then there is no question, and nothing to accept."""
    unsigned = start_body("bench", "task", "zoe")
    for desk in (
        make(start=unsigned, exclude=["requester"]),
        make(start=unsigned, exclude=["requester"], keys=DecisionKeys("")),
    ):
        yield desk, "forbidden" if not desk.result.interrupts else "asked"
        assert "proven at level 0" in str(desk.result.results["a"].result)
    desk = make(exclude=["requester"])
    yield desk, desk.vote("ana")


CHECKS = {
    "was signed before its run began": before_the_run,
    "a vote on  does not count": delegated_before_the_run,
    "was signed after the question had expired": after_the_end,
    "was signed before the edit that voided it": before_the_edit,
    "a vote on  was signed for another question": for_another_question,
    "a signature counts twice among the votes on": twice,
    "a vote on  has no proof that holds": by_an_unknown_key,
    "can't count in the place of": in_no_place_of_another,
    "do not come to a decision by the rule in the code": by_no_rule,
    "is stored with another  than was signed": with_another_content,
    "but nothing proves who that is": with_no_requester,
    "but that was signed at level": with_no_requester,
    # Not of a vote: the code has changed since it asked, or someone has written to the store.
    "can't be read as one": "damaged",
    "and no one has decided it": "the question is not answered",
    "is not the one that was decided": "the code asks something else now",
    "is not what its votes came to": "another decision is stored",
    "names another requester than the one who signed the start": "another one is stored",
    "has signed the start of another": "another start is stored",
}
CASES = {
    check.__name__: check
    for check in [*CHECKS.values(), edited_before_the_edit, before_the_escalation]
    if callable(check)
}


@pytest.fixture
def make(tmp_path):
    """Make desks whose workers and doors know the public half of the door's key."""
    entry = {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": encoded(public_bytes(DOOR.key.public_key())),
        "kid": "door",
        "level": 1,
    }
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [entry]}))
    return lambda **options: Desk(**{"keys": DecisionKeys(str(path)), **options})


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_a_door_refuses_what_a_worker_would_refuse(make, name):
    """It is refused in its receipt, and no vote is spent: the same vote as it should be decides."""
    *refused, (desk, last) = CASES[name](make)
    assert refused
    assert {word for _, word in refused} <= {"forbidden", "rejected", "duplicate", "expired"}
    assert last == "accepted"
    assert desk.goes_on()


def test_every_check_of_a_worker_has_its_refusal_at_the_door():
    """A comparison that is added to the judgement of votes is missed in the table above."""
    texts = [*_texts(judgement, "ApprovalMismatch"), *_texts(ballots.mistimed, "return")]
    assert len(texts) > len(CHECKS) - 3
    for text in texts:
        assert any(check in text for check in CHECKS), text


def _texts(subject, where):
    """List the texts of errors of one kind, or those that a function returns, without what is filled in."""
    for node in ast.walk(ast.parse(inspect.getsource(subject))):
        is_error = isinstance(node, ast.Call) and getattr(node.func, "id", "") == where
        if is_error or (where == "return" and isinstance(node, ast.Return)):
            parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            if text := "".join(part for part in parts if isinstance(part, str)):
                yield text


@pytest.mark.full
@pytest.mark.parametrize("to", ["eve", "human:|eve", " eve "])
def test_a_delegation_may_name_a_person_as_people_write_them(make, to):
    """What another program signs is read alike where it comes in and at the effect."""
    desk = make(eligible=["ana"], delegate="anyone")
    assert desk.delegate("ana", to) == "accepted"
    assert desk.vote("eve") == "accepted"
    assert desk.goes_on()


def test_an_edit_just_before_an_escalation_weighs_what_it_did_at_the_door(make):
    """Who may not vote in the first stage yet has no vote there, also where their signature lasts longer."""
    desk = make(
        clock=ManualClock(),
        stages=[Rule(eligible=["ana"]), Rule(eligible=["ben"])],
        escalate=[(HOUR, ["ben"])],
    )
    desk.clock.advance(HOUR - 100)
    words = [desk.vote("ana"), desk.vote("ben", "edit", response=EDIT)]
    words += [desk.vote(who, response=EDIT) for who in ("ana", "ben")]
    assert words == ["counted", "counted", "counted", "accepted"]
    assert desk.goes_on()
    assert desk.outcome.response == EDIT
