"""Grants against a model that is written from their page alone: random grants, votes, times and calls.

What workers ask where a call begins is asked here for each call, on a real store; the model has to say the
same. Each control takes one check out of the library, which the same calls must find.
"""

from __future__ import annotations
import __future__

import inspect
import json
import random
import textwrap
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import settings

from runner import Agent, GraphBuilder, tool
from runner.approvals import Auth, Rule, SigningKey, granting, grants
from runner.approvals.digests import Action
from runner.approvals.proofs import encoded
from runner.approvals.rules import Grants, Principal, Voter
from runner.approvals.visit_judge import KnownGrants, VisitJudge
from runner.audit.checkpoint import public_bytes
from runner.definition.registry import Registry
from runner.errors import ConflictError, GrantRefused
from runner.execution.engine import Engine
from runner.records.messages import start_body
from runner.records.run import Status
from runner.store.interface import Claim, Token
from runner.store.redis import grants as stored_grants
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock, ScriptedModel
from tests.properties import grant_model as model

LOGIN = "https://login.example"
DOOR, LOST = (
    SigningKey(kid, Ed25519PrivateKey.from_private_bytes(kid.encode().ljust(32, b"k")))
    for kid in ("door", "lost")
)
GRAPHS, PEOPLE, FINANCE = (
    ("till", "shop", "post"),
    ("ana", "ben", "eva", "zoe"),
    ("ana", "ben", "eva"),
)
DAY, RULES = 86_400_000, 24
IN_2100 = 4_102_444_800_000
"""When the stories begin: the server, whose own clock ends what is kept of uses, is behind them."""

NUMBERS = [1, 5, 10, 19.99, 20, 20.0, 30, 50, 50.0, 50.01, 51, 80, 500, 0.1, 0.2, 0, -5]
EXACT = "50.000000000000000001"
TEXTS = ["1", "5", "19.99", "20", "20.00", "50", "50.00", EXACT, "80", "0.1", "-0.5", "1E+1"]
OTHERS = [True, None, [5], "", " 5", *["007", "1_0", "+5", "1e1", "NaN", "Infinity", "five"]]
AMOUNTS = [*NUMBERS, *TEXTS, *OTHERS]
OF_AMOUNTS = [
    *({"maximum": most} for most in (5, 20, 30, 50, 50, 50, 49.99, 50.01, 80)),
    *({"maximum": 50, "minimum": 5}, {"maximum": 80, "exclusiveMaximum": 50}),
    *({"exclusiveMaximum": 20}, {"minimum": 5}, {"exclusiveMinimum": 5, "maximum": 30}),
    *({"enum": values} for values in ([1, 5, 20], [20, 80], ["5", 20.0])),
    *({"const": 20}, {"const": "20"}),
]
CURRENCIES = ["EUR", "EUR", "EUR", "USD", "eur", "EURO", "", 978, None]
OF_CURRENCIES = [
    *({"const": "EUR"}, {"enum": ["EUR", "USD"]}, {"enum": ["EUR", "CHF"]}, {"maxLength": 3}),
    {"enum": ["EUR", None]},
    *({"minLength": 4}, {"pattern": "^E"}, {"pattern": "R$", "maxLength": 3}),
]
ORDERS = [1042, 1042.0, 7, "1042", True]
OF_ORDERS = [{"const": 1042}, {"enum": [7, 1042]}, {"enum": [1042, None]}, {"minimum": 8}]


class People:
    """Who is in which group."""

    def groups(self, principal):
        return ["finance"] if principal.sub in FINANCE else []

    def roles(self, principal):
        return []


TEAM = People()


class Bells:
    """Doorbells that the test answers itself."""

    def __init__(self) -> None:
        self.rung: list = []

    def ring(self, doorbells) -> None:
        self.rung += doorbells

    def call(self, task, kwargs, task_id) -> bool:
        return True


@dataclass(frozen=True)
class Asked:
    """A run: who has asked for it, whether that is signed, and the question of its call, if there is one."""

    id: str
    graph: str
    people: list[str]
    is_proven: bool
    question: str


class Desk:
    """One rule on a store: its runs, who signs for it, and two workers that know its grants."""

    def __init__(
        self, url: str, number: int, path, chance: random.Random, clock: ManualClock
    ) -> None:
        self.level, self.chance, self.path = number % 2 * 2, chance, path
        need, excludes = 1 + number // 2 % 2, number // 4 % 2 == 1
        of_currency: model.Bounds = {"currency": {"enum": ["EUR", "USD"]}}
        widest = [{}, of_currency, of_currency][number // 8]
        if number < 16:
            widest = {"amount": {"maximum": 50}, **widest}
        most = {"sums": {} if number % 3 else {"amount": 400}, "uses": 20, "lifetime": 3600}
        self.rule = model.Rule(
            frozenset(map(self.name, FINANCE)), need, excludes, self.level, widest, **most
        )
        self.clock = clock
        self.code = Rule(
            eligible=["group:finance"],
            need=need,
            exclude=["requester"] if excludes else [],
            auth=Auth(level=self.level),
            grants=Grants({"properties": widest}, **most),
        )
        self.store = RedisStore(url, namespace=f"desk{number}", clock=clock)
        self.bells, registry = Bells(), Registry()
        for name in GRAPHS:
            graph = self._graph(name)
            registry.add(name, lambda graph=graph: graph)
        self.engine = Engine(self.store, self.bells, registry)
        self.engine.directory = f"{__name__}:TEAM"
        self.write_keys()
        self.keys = count()
        self.workers = [KnownGrants(self.store), KnownGrants(self.store)]
        self.runs = [*self._runs()]

    def name(self, person: str) -> str:
        return f"human:{LOGIN if self.level else ''}|{person}"

    def _graph(self, name: str):
        """Build a graph whose agent asks about a refund; that of the post has no such tool."""

        @tool(name="refund" if name != "post" else "send", approval=self.code)
        def refund(order: int, amount: Decimal, currency: str) -> str:
            """Pay a refund."""
            return "paid"

        call = {
            "name": refund.tool_name,
            "input": {"order": 1042, "amount": 20, "currency": "EUR"},
        }
        builder = GraphBuilder()
        replies = [lambda _: {"toolUse": {"toolUseId": "t0", **call}}] * 20
        builder.add_node(Agent("clerk", ScriptedModel(replies), tools=[refund]), "pay")
        return builder.build()

    def _runs(self):
        """Start runs of each graph: of each person, of names without an issuer, proven and not."""
        starts = [([self.name(person)], self.level > 0) for person in PEOPLE]
        starts.append((["service:|bot", self.name("ana")], self.level > 0))
        starts.append(([f"human:{LOGIN if not self.level else ''}|ben"], self.level > 0))
        if self.level and not self.rule.excludes_requester:
            starts.append(([self.name("ben")], False))
        for graph in GRAPHS:
            for people, is_signed in starts:
                named = {"principal": people[0], "on_behalf_of": people[1:]}
                if is_signed:
                    body = start_body(graph, "pay", people[0], on_behalf_of=people[1:] or None)
                    now = self.clock() / 1000
                    named["body"] = DOOR.sign(body, login={"level": 2}, now=now)
                run_id = self.engine.start(graph, "pay", requester=named)
                while self.bells.rung:
                    bell = self.bells.rung.pop(0)
                    self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
                run = self.store.read(run_id)
                assert run.record.status == Status.INTERRUPTED
                yield Asked(run_id, graph, people, is_signed, run.interrupts[0].id)

    def write_keys(self, *, lost_at: float | None = None) -> None:
        """Write the public keys of both doors, that of one of them revoked at a time."""

        def entry(key: SigningKey, **members: object) -> dict:
            public = encoded(public_bytes(key.key.public_key()))
            form = {"kty": "OKP", "crv": "Ed25519", "x": public, "kid": key.kid, "level": 2}
            return form | {name: value for name, value in members.items() if value is not None}

        self.path.write_text(json.dumps({"keys": [entry(DOOR), entry(LOST, revoked=lost_at)]}))

    def may_begin(self, asked: Asked, call: model.Call, code: Rule, worker: KnownGrants) -> str:
        """Return the grant by which a call begins on a worker, or ""."""
        claim = Claim(
            Token(asked.id, "pay", 1, 1),
            asked.graph,
            "",
            "",
            None,
            None,
            None,
            [],
            [],
            None,
            [],
        )
        judge = VisitJudge(
            self.store,
            self.engine.decision_keys,
            claim,
            retry=None,
            check_exclusions=lambda rule: None,
            known_grants=worker,
            plain_issuer=lambda: "",
        )
        action = Action(judge.tenant, "tool", call.tool, call.arguments)
        return judge.use_grant(code, action, call.key)


class Disagreement(AssertionError):
    """The library and the model say something else."""


class Story:
    """One sequence of a desk: what people and agents do at random, on both sides."""

    def __init__(self, desk: Desk, chance: random.Random, seen: Counter) -> None:
        self.desk, self.chance, self.seen = desk, chance, seen
        self.records: dict[str, grants.GrantRecord] = {}
        self.grants: dict[str, model.Grant] = {}
        self.lost: set[tuple[str, str]] = set()
        self.told: list[str] = []
        self.last: tuple[Asked, model.Call, model.Rule, Rule] | None = None
        self.is_lost = False

    def check(self, what: str, real: object, said: object) -> None:
        self.told.append(f"{what}: {real}")
        if real != said:
            raise Disagreement("\n".join([*self.told, f"the model says {said}"]))

    def play(self, calls: int) -> None:
        desk, chance = self.desk, self.chance
        desk.clock.now += 45 * DAY  # the grants of the story before are listed no more
        self.is_lost = False
        desk.write_keys()
        for _ in range(20):
            if len(self.grants) < 3:
                self.propose()
        while calls:
            desk.clock.now += chance.choice([1, 1, 1, 1000])
            step = chance.random()
            if step < 0.1:
                self.propose()
            elif step < 0.2:
                waiting = [n for n, g in self.grants.items() if g.is_waiting(desk.rule)]
                self.vote(chance.choice([*self.grants, *waiting * 3, ""]))
            elif step < 0.22:
                self.revoke()
            elif step < 0.235:
                self.wait()
            elif step < 0.24 and desk.level:
                self.lose_key()
            else:
                self.call()
                calls -= 1
        for view in granting.list_grants(desk.engine):
            if view.id in self.grants:
                grant = self.grants[view.id]
                spent = {name: str(total) for name, total in grant.spent.items()}
                self.check("used", (view.used, view.summed), (len(grant.keys), spent))

    def propose(self) -> None:
        chance, desk = self.chance, self.desk
        asked = chance.choice([run for run in desk.runs if run.graph != "post"])
        bounds = {"amount": chance.choice(OF_AMOUNTS)} if chance.random() < 0.9 else {}
        if chance.random() < 0.6:
            bounds["currency"] = chance.choice(OF_CURRENCIES)
        if chance.random() < 0.3:
            bounds["order"] = chance.choice(OF_ORDERS)
        lifetime = chance.choice([1, 60, 600, 3600, 3600, 3600, 3600, 3600, 3601])
        names = [*map(desk.name, PEOPLE), "ben", "service:|bot", f"human:{LOGIN}|ben"]
        options = {
            "uses": chance.choice([1, 2, 5, 20, 20, 20, 20, 21]),
            "sums": chance.choice(
                [{}] * (not desk.rule.sums)
                + [{"amount": most} for most in (50, 100.5, 400, 400, 401)]
            ),
            "requesters": chance.choice([[], [], chance.sample(names, 2)]),
            "graphs": chance.choice(
                [[asked.graph], ["till", "shop"], ["shop"], ["till", "post"]]
            ),
        }
        named = [name if "|" in name else f"human:|{name}" for name in options["requesters"]]
        grant = model.Grant(
            "refund", options["graphs"], bounds, options["uses"], options["sums"],
            desk.clock(), lifetime * 1000, named, asked.people,
        )  # fmt: skip
        said = grant.is_within(desk.rule) and "post" not in grant.graphs
        try:
            record = granting.propose(
                desk.engine,
                asked.question,
                bounds={"properties": bounds},
                lifetime=lifetime,
                **options,
            )
        except GrantRefused as refusal:
            self.check(f"{bounds} {options} {lifetime} s is refused ({refusal})", False, said)
            return
        name = record.grant.id
        self.check(f"{name} by {asked.people}: {bounds} {options} {lifetime} s", True, said)
        self.records[name], self.grants[name] = record, grant
        self.vote(name, decision="approve")
        if grant.is_waiting(desk.rule) and chance.random() < 0.7:
            self.vote(name, decision="approve")
        if not grant.voters:
            del self.records[name], self.grants[name]  # nobody's vote has stored it

    def vote(self, name: str, decision: str = "") -> None:
        if not name:
            return
        chance, desk = self.chance, self.desk
        record, grant = self.records[name], self.grants[name]
        person = chance.choice(FINANCE if chance.random() < 0.85 else PEOPLE)
        decision = decision or chance.choice(["approve"] * 9 + ["reject"])
        by = Principal(person, LOGIN if desk.level else "")
        body, door = granting.message(record, decision, by), chance.choice([DOOR, DOOR, LOST])
        if desk.level:
            groups = desk_groups(person)
            body = door.sign(
                body, login={"groups": groups, "level": 2}, now=desk.clock() / 1000
            )
        receipt = granting.vote(desk.engine, record, body, Voter(by))
        said = not (desk.level and door is LOST and self.is_lost) and grant.vote(
            desk.rule, by.key, desk.clock(), approve=decision == "approve"
        )
        if said and decision == "approve" and door is LOST and desk.level:
            self.lost.add((name, by.key))
        what = f"{person} votes {decision} for {name} ({receipt.status}: {receipt.detail})"
        self.check(what, receipt.status in {"counted", "accepted"}, said)

    def revoke(self) -> None:
        if not self.grants:
            return
        name = self.chance.choice([*self.grants])
        said = not self.grants[name].is_revoked
        self.grants[name].is_revoked = True
        try:
            granting.revoke(self.desk.engine, name, "why not")
            self.check(f"{name} is revoked", True, said)
        except ConflictError:
            self.check(f"{name} is revoked again", False, said)

    def wait(self) -> None:
        """Go on to the end of a grant, the last moment in it or the first after it, or for some time."""
        clock, ends = self.desk.clock, [g.made + g.lifetime for g in self.grants.values()]
        to_come = [end for end in ends if end > clock()]
        if to_come:
            clock.now = min(to_come) + self.chance.choice([-1, 0, 0, 1])
        clock.now += self.chance.choice([0, 0, 1000])
        self.told.append(f"it is {clock()}")

    def lose_key(self) -> None:
        """Revoke the key of a door: what it has signed holds no more."""
        self.is_lost = True
        self.desk.write_keys(lost_at=self.desk.clock() // 1000)
        self.told.append("a key is revoked")
        for name, by in self.lost:
            if name in self.grants and by in self.grants[name].voters:
                self.grants[name].is_of_revoked_key = True

    def call(self) -> None:
        chance, desk = self.chance, self.desk
        asked, arguments = self.something()
        made = [each for each in self.grants.values() if not each.is_over(desk.clock())]
        for _ in range(chance.choice([0, 10, 40, 40])):  # look for one that is about to fit
            call = model.Call("refund", asked.graph, arguments, [], True, "", desk.clock())
            if any(grant.covers(call) for grant in made):
                break
            asked, arguments = self.something()
        if chance.random() < 0.08:
            del arguments[chance.choice([*arguments])]
        tool_name = chance.choice(["refund"] * 19 + ["send"])
        call = model.Call(
            tool_name, asked.graph, arguments, asked.people, asked.is_proven,
            f"key-{next(desk.keys)}", desk.clock(),
        )  # fmt: skip
        (rule, code), worker = self.rule_now(), chance.choice(desk.workers)
        if (
            self.last and chance.random() < 0.15
        ):  # a crash: once its lease is over it begins again
            asked, repeated, rule, code = self.last
            worker = KnownGrants(desk.store)
            call = replace(repeated, at=desk.clock())
        said = model.may_begin(rule, self.grants, call)
        real = desk.may_begin(asked, call, code, worker)
        self.told.append(f"{call} -> {real!r}")
        self.seen["begun" if real else "asked"] += 1
        if bool(real) != bool(said) or (real and real not in said):
            raise Disagreement("\n".join([*self.told, f"the model says {said}"]))
        if real:
            self.grants[real].use(call)
            is_negative = (model.number(call.arguments.get("amount")) or 0) < 0
            self.last = None if is_negative else (asked, call, rule, code)

    def something(self) -> tuple[Asked, dict[str, Any]]:
        chance = self.chance
        arguments: dict[str, Any] = {
            "order": chance.choice(ORDERS[:2] if chance.random() < 0.8 else ORDERS),
            "amount": chance.choice(AMOUNTS[:10] if chance.random() < 0.5 else AMOUNTS),
            "currency": "EUR" if chance.random() < 0.7 else chance.choice(CURRENCIES),
        }
        return chance.choice(self.desk.runs), arguments

    def rule_now(self) -> tuple[model.Rule, Rule]:
        """Return the rule as the code has it now: now and then a narrower one."""
        rule, code = self.desk.rule, self.desk.code
        change = self.chance.randrange(100)
        if change < 3:
            bounds = {**rule.bounds, "amount": {"maximum": self.chance.choice([20, 49.99])}}
            rule = replace(rule, bounds=bounds)
        elif change < 5:
            rule = replace(rule, uses=self.chance.choice([1, 5, 19]))
        elif change < 7:
            rule = replace(rule, sums={"amount": self.chance.choice([50, 100])})
        elif change < 9:
            rule = replace(rule, lifetime=600)
        elif change < 11:
            rule, code = replace(rule, need=2), replace(code, need=2)
        widest = Grants({"properties": rule.bounds}, rule.uses, rule.sums, rule.lifetime)
        return rule, replace(code, grants=widest)


def desk_groups(person: str) -> list[str]:
    return TEAM.groups(Principal(person))


@pytest.fixture
def play(redis_url, tmp_path, monkeypatch):
    """Plays stories on the desks of 24 rules until they have so many calls; counts what was seen."""
    monkeypatch.setenv("RUNNER_DECISION_KEYS", str(tmp_path / "keys.json"))

    def until(seed: int, calls: int) -> Counter[str]:
        chance, seen = random.Random(seed), Counter[str]()  # noqa: S311 - to repeat
        clock, desks = ManualClock(IN_2100), dict[int, Desk]()
        while seen.total() < calls:
            number = chance.randrange(RULES)
            if number not in desks:
                path = tmp_path / "keys.json"
                desks[number] = Desk(redis_url, number, path, chance, clock)
            Story(desks[number], chance, seen).play(min(calls // 5, 120))
        return seen

    return until


SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("seed", "calls"),
    [
        (0, 300),
        *(
            pytest.param(seed, 25 * settings.default.max_examples, marks=SLOW)
            for seed in (1, 2)
        ),
    ],
)
def test_calls_begin_exactly_as_the_page_says(play, seed, calls):
    """By a grant that holds for them, on any worker; others are asked about, and a use is counted once."""
    seen = play(seed, calls)
    assert seen.total() >= calls
    assert min(seen["begun"], seen["asked"]) > calls / 20, seen


OVER = ("now > record.grant.until", "False")
REVOKED = ("record.revoked is not None", "False")
IN_STORE, IN_WORKER = (stored_grants, "use"), (grants, "judge")
COVERS, ALLOWS = (grants.Grant, "covers"), (grants.Grant, "allows")
SABOTAGE = {
    "bounds": [(COVERS, 'and fits(self.bounds, action["args"])', "")],
    "presence": [
        (
            (grants, "fits"),
            "name in args and _fits(bound, args[name])",
            "_fits(bound, args.get(name))",
        )
    ],
    "graph": [(COVERS, "and outermost(graph_id) in self.graphs", "")],
    "tool": [(COVERS, "self.tool)", 'action["tool"])')],
    "uses": [(ALLOWS, "uses <= self.uses", "True")],
    "sums": [(ALLOWS, "sums[name] <= Decimal(str(most))", "True")],
    "numbers of sums": [(ALLOWS, "name in sums and sums[name]", "sums.get(name, 0)")],
    "repeats": [
        (
            IN_STORE,
            'is not None:\n        return Reply("used")',
            'is not None and False:\n        return Reply("used")',
        )
    ],
    "time": [(IN_STORE, *OVER), ((grants, "is_over"), *OVER)],
    "revoked": [(IN_STORE, *REVOKED), (IN_WORKER, *REVOKED)],
    "requester": [(IN_WORKER, "if grant.requesters and", "if False and")],
    "proof of the requester": [
        (
            IN_WORKER,
            "requester.key not in grant.requesters or requester.level < level",
            "requester.key not in grant.requesters",
        )
    ],
    "four eyes": [
        (IN_WORKER, "(requester.key, *requester.on_behalf_of), answered", "(), answered")
    ],
    "on whose behalf": [
        (IN_WORKER, "(requester.key, *requester.on_behalf_of)", "(requester.key,)")
    ],
    "enough votes": [(IN_WORKER, 'count.word != "accepted"', 'count.word == "forbidden"')],
    "rejections": [(IN_WORKER, 'or count.decision == "reject"', "")],
    "revoked keys": [((grants, "is_over"), "key.revoked is not None", "False")],
    "narrower rule": [(IN_WORKER, "check(grant, rule, None, grant.made_at)", "pass")],
    "late votes": [((granting, "vote"), 'elif count.word == "accepted":', "elif False:")],
}
"""Checks by what they are for: where each one stands, its text, and what takes its place."""
SEEN_AT = {"presence": 47, "numbers of sums": 42, "revoked": 33, "proof of the requester": 10}
"""Seeds that show soon that a check is missing; without an entry the first does."""


def sabotage(monkeypatch, place: tuple[Any, str], old: str, new: str) -> None:
    """Write a function or method with one text in it replaced."""
    owner, name = place
    function = getattr(owner, name)
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
    flags = __future__.annotations.compiler_flag
    code = compile(text.replace(old, new), name, "exec", flags=flags, dont_inherit=True)
    names: dict[str, Any] = {}
    exec(code, function.__globals__, names)  # noqa: S102 - the library's own text
    monkeypatch.setattr(owner, name, names[name])


@pytest.mark.parametrize("check", SABOTAGE)
def test_each_check_is_still_in_the_code(monkeypatch, check):
    """A text that has moved is found here, not by the slow controls."""
    for place, old, new in SABOTAGE[check]:
        sabotage(monkeypatch, place, old, new)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("check", SABOTAGE)
def test_without_a_check_they_disagree(play, monkeypatch, check):
    """The control: each check is one that these stories need."""
    for place, old, new in SABOTAGE[check]:
        sabotage(monkeypatch, place, old, new)
    with pytest.raises(Disagreement):
        play(SEEN_AT.get(check, 1), 20_000)
