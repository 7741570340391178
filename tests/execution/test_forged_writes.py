"""Whoever can write to Redis approves nothing: random changes at each point, and never an effect.

People decide by signed votes. Between their votes somebody writes to the run's keys with a raw client: bits,
fields of JSON, votes of their own, a whole decision. A call is made as it was approved, or not at all. The
control is the same without signatures: there the forged votes have effects.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from secrets import token_hex

import pytest
import redis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import settings

from runner.approvals import Auth, Rule, SigningKey
from runner.approvals.decision_keys import DecisionKeys
from runner.approvals.passkeys import signature_request
from runner.approvals.proofs import encoded
from runner.approvals.rules import Principal, Voter
from runner.audit.checkpoint import public_bytes
from runner.definition.registry import Registry
from runner.errors import CorruptDocument, RunnerError
from runner.execution.engine import Engine
from runner.execution.results import graph_result
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.records.messages import vote_body
from runner.records.run import Status
from runner.store.encoding import split_question
from runner.store.redis.store import RedisStore
from tests.execution.test_effects import DOOR, LOGIN, Till
from tests.graphs import single
from tests.passkeys import Device
from tests.waiting import wait_until

pytestmark = pytest.mark.full

OWN = SigningKey("ana", Ed25519PrivateKey.from_private_bytes(b"ana".ljust(32, b"k")))
PASSKEY, RP = Device("https://login.example"), "login.example"


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """The keys of decisions that workers know: one door's, ana's own, and a passkey of ben."""

    def entry(key: SigningKey, **members: object) -> dict:
        public = encoded(public_bytes(key.key.public_key()))
        return {"kty": "OKP", "crv": "Ed25519", "x": public, "kid": key.kid, **members}

    def of(name: str) -> dict:
        return {"level": 3, "principal": f"human:{LOGIN}|{name}", "groups": ["finance"]}

    passkey = {"kid": "ben", "rp_id": RP, "origins": [PASSKEY.origin], **PASSKEY.public()}
    of_people = [entry(OWN, **of("ana")), {**passkey, **of("ben")}]
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [entry(DOOR, level=2), *of_people]}))
    monkeypatch.setenv("RUNNER_DECISION_KEYS", str(path))


EXACT = ("1042", 120)
POINTS = ("question", "rule", "action", "votes", "tally", "decision", "checkpoint", "times")
MOMENTS = ("before", "between", "after")
EXAMPLES = settings.default.max_examples
WRITES = int(os.environ.get("WRITES", EXAMPLES // 5))
"""Changes at each point and level in the slow suite; `make writes` makes 1,000."""


def by_passkey(body: dict) -> dict:
    """What ben's browser makes of a vote."""
    (key,) = (key for key in DecisionKeys().read().values() if key.kid == "ben")
    return PASSKEY.sign(asdict(signature_request(body, key, time.time(), token_hex(8))))


class Shop:
    """A store on a real server with an engine, and a till whose refunds two people approve."""

    def __init__(self, url: str, rule, *, signed: bool) -> None:
        self.store, self.raw, self.signed = RedisStore(url), redis.Redis.from_url(url), signed
        self.level = rule.auth.level if isinstance(rule, Rule) else 2
        self.till = Till(rule)
        registry = Registry()
        registry.add("till", lambda: self.till.graph)
        self.bells: list = []
        self.approved: set[str] = set()
        self.engine = Engine(self.store, self, registry)

    def ring(self, doorbells) -> None:
        self.bells += doorbells

    def call(self, task, kwargs, task_id) -> bool:
        return True

    def go_on(self) -> None:
        """Run what is ready; what is damaged raises, as it does in a worker."""
        while self.bells:
            bell = self.bells.pop(0)
            with suppress(
                Exception
            ):  # whatever a damaged document makes of it, it is no effect
                self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)

    def begin(self) -> tuple[str, str]:
        """Start a run that waits for people; return it and its question."""
        self.till.model.__init__(self.till.replies)
        run_id = self.engine.start("till", "refund 1042")
        self.go_on()
        snapshot = self.store.read(run_id)
        return run_id, snapshot.interrupts[0].id

    def wrong(self) -> list[tuple]:
        """List what was paid of a run that two people have not approved, not as they have, or again.

        What a lost lease delays is paid while later runs go on: each payment is compared with its run.
        """
        runs = Counter(key.partition(".")[0] for _, _, key in self.till.paid)
        return [
            (order, amount, key)
            for order, amount, key in self.till.paid
            if (order, amount) != EXACT
            or key.partition(".")[0] not in self.approved
            or runs[key.partition(".")[0]] > 1
        ]

    def vote(self, interrupt_id: str, name: str) -> None:
        """Approve by the door, which signs for the group finance."""
        (asked,) = self.store.interrupts([interrupt_id])
        by = Principal(name, LOGIN if self.signed else "")
        digest = asked.digest if asked else "unknown"
        body = vote_body(interrupt_id, "approve", by, digest=digest)
        if self.signed:
            login = {"groups": ["finance"], "level": self.level}
            own = self.level == 3
            if own and name == "ben":
                body["proof"] = by_passkey(body)
            else:
                body = OWN.sign(body) if own else DOOR.sign(body, login=login)
        vote = Decision(
            interrupt_id,
            None,
            digest=digest,
            decision="approve",
            voter=Voter(by),
            body=body,
        )
        apply_decisions(self.engine, [vote])


class Intruder:
    """Writes to the keys of a run, as `redis-cli` does."""

    def __init__(
        self, raw: redis.Redis, run_id: str, question: str, chance: random.Random
    ) -> None:
        self.raw, self.chance = raw, chance
        self.key = next(
            key for key in raw.scan_iter(f"*:r:{run_id}") if raw.type(key) == b"hash"
        )
        self.name = question.partition(".")[2]

    def write(self, point: str) -> None:
        """Change something of one kind."""
        getattr(self, point)()

    def question(self) -> None:
        self._json(
            "i:" + self.name, lambda asked: asked.update(reason="refund 1 cent", name="refund")
        )

    def rule(self) -> None:
        change = self.chance.choice(
            [
                {"need": 1},
                {"auth": {"level": 0, "max_age": None, "acr": None}},
                {"eligible": ["anyone"]},
                {"veto": None},
            ]
        )
        self._json("i:" + self.name, lambda asked: asked["rule"].update(change))

    def action(self) -> None:
        def change(asked: dict) -> None:
            action = asked["action"]
            match self.chance.randrange(3):
                case 0:
                    action["args"]["amount"] = 1
                case 1:
                    action["tool_schema"] = "sha256:" + "0" * 64
                case _:
                    action["tool"] = "look_up"

        self._json("i:" + self.name, change)

    def votes(self) -> None:
        """Forge a vote: the one that is there under another name, or changed, or as many as it takes."""
        one = self.raw.hget(self.key, f"v:{self.name}|1")
        vote = (
            json.loads(one)
            if one
            else {"v": 1, "n": 1, "decision": "approve", "weight": 1, "stage": 0}
        )
        vote |= {
            "round": 0,
            "selector": "anyone",
            "comment": "",
            "at": 1,
            "level": 2,
            "name": "",
        }
        vote.setdefault("body", {})
        vote["effect"] = vote.get("effect") or self._effect()
        match self.chance.randrange(3):
            case 0 if one:
                place = self.chance.choice(["weight", "level", "round", "stage", "n"])
                self.raw.hset(self.key, f"v:{self.name}|1", json.dumps({**vote, place: 2}))
            case _:
                number = 2 if one else 1
                by = f"human:{self.chance.choice(['', LOGIN])}|eve"
                body = {**vote["body"], "by": by}
                forged = json.dumps({**vote, "n": number, "by": by, "body": body})
                self.raw.hset(self.key, f"v:{self.name}|{number}", forged)
                self._count(number, vote["effect"])

    def tally(self) -> None:
        self._count(self.chance.choice([0, 1, 2]), self._effect())

    def decision(self) -> None:
        """Write that it is decided, or change what was."""
        there = self.raw.hget(self.key, "d:" + self.name)
        answer = {
            "response": {"order": "1042", "amount": 9},
            "decision": "edit",
            "effect": self._effect(),
        }
        answer |= {"responder": "eve", "idempotency_key": None}
        if there and self.chance.random() < 0.5:
            self._json("d:" + self.name, lambda decided: decided.update(answer))
        else:
            text = json.dumps(answer | {"response": True, "decision": "approve"})
            self.raw.hset(self.key, "d:" + self.name, f"answered 1 nonce {text}")

    def checkpoint(self) -> None:
        """Change what the agent goes on with: the call, or the question that it remembers."""

        def change(document: dict) -> None:
            state = document["executor"]
            match self.chance.randrange(3):
                case 0:
                    state["calls"][0]["use"]["input"]["amount"] = 1200
                case 1:
                    state["calls"][0]["attempt"] = 2
                case _:
                    for question in state["questions"].values():
                        question |= {
                            "status": "answered",
                            "response": True,
                            "decision": "approve",
                        }
                        question["effect"] = self._effect()

        self._json("k:pay", change)

    def times(self) -> None:
        """Change when it was asked or decided, when it ends, or what was done by it."""
        use = {"key": "other", "effect": self._effect(), "at": 1}
        if self.chance.random() < 0.5:
            self._json("d:" + self.name, lambda decided: decided.update(used=use))
        else:
            moment = self.chance.choice([0, 1, 2**40])
            change = {"asked_at": moment, "expires_in": self.chance.choice([None, 0.001, 1e9])}
            self._json("i:" + self.name, lambda asked: asked.update(change))

    def bits(self, point: str) -> None:
        """Flip bits of a field of one kind."""
        letter = {
            "votes": f"v:{self.name}|1",
            "tally": f"v:{self.name}",
            "decision": f"d:{self.name}",
        }
        field = letter.get(point, "k:pay" if point == "checkpoint" else f"i:{self.name}")
        text = bytearray(self.raw.hget(self.key, field) or b"")
        if text:
            text[self.chance.randrange(len(text))] ^= 1 << self.chance.randrange(7)
            self.raw.hset(self.key, field, bytes(text))

    def noise(self, letter: str) -> None:
        """Write random bytes over a field of one kind: all of it, its end, or some in the middle."""
        names = self.names(letter)
        for name in names and [self.chance.choice(names)]:
            text = self.raw.hget(self.key, name)
            start = self.chance.choice([0, self.chance.randrange(len(text))])
            end = self.chance.choice([len(text), start + self.chance.randrange(1, 9)])
            noise = self.chance.randbytes(self.chance.randrange(9))
            self.raw.hset(self.key, name, text[:start] + noise + text[end:])

    def names(self, letter: str) -> list[bytes]:
        """Name the fields of one kind."""
        start = f"{letter}:{self.name}".encode()
        return sorted(name for name in self.raw.hkeys(self.key) if name.startswith(start))

    def _effect(self) -> str:
        from runner.approvals.digests import digest

        text = self._plain("i:" + self.name)
        return digest("action", json.loads(text[text.index(b"{") :]).get("action"))

    def _count(self, number: int, effect: str) -> None:
        """Have the tally say what the forged votes come to."""
        tally = {
            "stage": 0,
            "round": 0,
            "effects": {effect: number},
            "against": 0,
            "settled": "",
        }
        stored = self.raw.hget(self.key, "v:" + self.name)
        standing = json.loads(stored) if stored else {"v": 1}
        standing |= {"tally": tally, "votes": max(number, standing.get("votes", 0))}
        self.raw.hset(self.key, "v:" + self.name, json.dumps(standing))

    def _plain(self, field: str) -> bytes:
        """Read a field as JSON; an empty object where it is damaged."""
        text = self.raw.hget(self.key, field) or b"{}"
        try:
            return b"".join(split_question(text)) if field.startswith("i:") else text
        except CorruptDocument:
            return b"{}"

    def _json(self, field: str, change) -> None:
        text = self._plain(field)
        if b"{" not in text:
            return
        at = text.index(b"{")
        document = json.loads(text[at:])
        try:
            change(document)
        except (KeyError, TypeError, IndexError, AttributeError):
            return
        self.raw.hset(self.key, field, text[:at] + json.dumps(document).encode())


def tried(shop: Shop, chance: random.Random, kind: str = "") -> str:
    """Make one change in the life of one question, and name its point and moment."""
    run_id, question = shop.begin()
    point, moment = kind or chance.choice(POINTS), chance.choice(MOMENTS)
    both = moment == "after" or chance.random() < 0.5
    intruder = Intruder(shop.raw, run_id, question, chance)

    def intrude() -> None:
        intruder.bits(point) if chance.random() < 0.3 else intruder.write(point)

    if moment == "before":
        intrude()
    with suppress(Exception):  # a door that meets damaged data takes no vote
        shop.vote(question, "ana")
    if moment == "between":
        intrude()
    with suppress(Exception):
        if both:
            shop.approved.add(run_id)
            shop.vote(question, "ben")
    if moment == "after":
        intrude()
    shop.go_on()
    shop.engine.sweep()
    shop.go_on()
    return f"{point} {moment}"


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("count", [2, pytest.param(WRITES, marks=pytest.mark.slow)])
def test_no_change_has_an_effect(redis_url, keys, count, point, level):
    """Whatever is written at a point, a call is made as two people approved it, once, or not at all."""
    rule = Rule(eligible=["group:finance"], need=2, auth=Auth(level=level))
    shop, chance = Shop(redis_url, rule, signed=True), random.Random(13 + level)  # noqa: S311 - to repeat
    for number in range(count):
        what = tried(shop, chance, point)
        assert not shop.wrong(), f"change {number}: {what}"


MOST_COMMANDS = 3_000
"""Commands, those inside scripts included, for a question that is damaged, from its start to its end."""


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("letter", ["i", "d", "v"])
@pytest.mark.parametrize("count", [3, pytest.param(15, marks=pytest.mark.slow)])
def test_random_bytes_hold_the_node(redis_url, keys, count, letter, level):
    """Random bytes in a question or its votes are refused at the door, or hold the node, at once."""
    rule = Rule(need=2, auth=Auth(level=level))
    shop, chance = Shop(redis_url, rule, signed=level > 0), random.Random(7 + level)  # noqa: S311 - to repeat
    for number in range(count):
        began = shop.raw.info("stats")["total_commands_processed"]
        run_id, question = shop.begin()
        intruder, moment = Intruder(shop.raw, run_id, question, chance), MOMENTS[number % 3 - 1]
        for point, voter in zip(MOMENTS, ("ana", "ben", None), strict=True):
            if point == moment and number:
                intruder.noise(letter)
            elif point == moment:
                shop.raw.hset(intruder.key, intruder.names(letter)[0], "damage")
            with suppress(RunnerError):
                if voter:
                    shop.vote(question, voter)
        words = [
            shop.engine.deliver(b.run_id, b.node, b.visit, b.attempt).word for b in shop.bells
        ]
        shop.bells.clear()
        ((record, _, _),) = shop.store.fetch(run_id, ["pay"])
        paid = [paid[:2] for paid in shop.till.paid if paid[2].startswith(run_id)]
        assert (words, record.status, record.held, paid) in [
            ([], Status.WAITING, False, []),
            (["held"], Status.WAITING, True, []),
            (["settled"], Status.COMPLETED, False, [EXACT]),
        ], f"number {number}"
        assert record.held or number, "the first was damaged after the decision"
        assert shop.raw.info("stats")["total_commands_processed"] - began < MOST_COMMANDS


@pytest.mark.parametrize("deleted", [True, False])
def test_a_deleted_decision_holds_the_node(redis_url, keys, deleted):
    """A node whose decision is gone is held when it would use it, not tried again; control: it pays."""
    shop = Shop(redis_url, Rule(need=2, auth=Auth(level=1)), signed=True)
    run_id, question = shop.begin()
    for voter in ("ana", "ben"):
        shop.vote(question, voter)
    if deleted:
        intruder = Intruder(shop.raw, run_id, question, random.Random(7))  # noqa: S311 - to repeat
        shop.raw.hdel(intruder.key, *intruder.names("d"))

    (bell,) = shop.bells
    word = shop.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt).word
    assert (word, len(shop.till.paid)) == (("held", 0) if deleted else ("settled", 1))


def test_without_signatures_changes_have_effects(redis_url):
    """The control: the same changes where names are believed as they are written."""
    shop, chance = Shop(redis_url, Rule(need=2), signed=False), random.Random(13)  # noqa: S311 - to repeat

    def has_effect() -> bool:
        tried(shop, chance, "votes")
        return any(key.partition(".")[0] not in shop.approved for _, _, key in shop.wrong())

    assert any(has_effect() for _ in range(120))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_nothing_written_makes_the_approved_call(redis_url, keys, level):
    """The other control: without an intruder two people have their refund made."""
    rule = Rule(eligible=["group:finance"], need=2, auth=Auth(level=level))
    shop = Shop(redis_url, rule, signed=True)
    run_id, question = shop.begin()
    for name in ("ana", "ben"):
        shop.vote(question, name)
    shop.go_on()
    assert [paid[:2] for paid in shop.till.paid] == [EXACT]
    assert graph_result(shop.store, shop.store.read(run_id)).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("said", "written", "end"),
    [
        (None, None, ([], Status.FAILED)),
        (None, {"response": "pay"}, ([], Status.NEEDS_MIGRATION)),
        ({"response": "skip"}, {"response": "pay"}, ([], Status.NEEDS_MIGRATION)),
        ({"response": "skip"}, None, (["skip"], Status.COMPLETED)),
    ],
)
def test_silence_means_what_the_code_says(redis_url, keys, said, written, end):
    """An answer that time gives is signed by nobody: it is the code's, whatever is written to the question.

    The first and the last are the controls: silence rejects, or is the answer that the code names.
    """
    shop = Shop(redis_url, Rule(auth=Auth(level=2)), signed=True)
    done: list[object] = []

    def ask(ctx) -> None:
        options = {"rule": shop.till.refund.approval, "expires_in": 0.001, "on_expire": said}
        done.append(ctx.interrupt("refund", **options).response)

    shop.till.graph = single(ask)
    run_id, question = shop.begin()
    intruder = Intruder(shop.raw, run_id, question, random.Random(1))  # noqa: S311 - it draws nothing
    if written:
        intruder._json("i:" + intruder.name, lambda asked: asked.update(on_expire=written))

    def ended() -> bool:
        shop.engine.sweep()
        shop.go_on()
        return shop.store.read(run_id).record.status not in {Status.INTERRUPTED, Status.RUNNING}

    wait_until(ended, "the question expires")
    assert (done, shop.store.read(run_id).record.status) == end
