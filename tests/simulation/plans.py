"""Random graphs by seed, with every kind of node, and the ledger of what their code does.

Nodes are deterministic: what one gives depends on its inputs and its visit, never on who came first,
how often it was tried or who answered. So a run under faults must end as one without them.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner import Graph, GraphBuilder, RetryPolicy
from runner.approvals import Rule
from runner.errors import DefinitionError, InterruptRaised
from runner.limits.limit import Limit
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Interrupted, Outcome, Succeeded
from tests.graphs import starts
from tests.simulation.voting import RULES, SHOWN

KINDS = (
    *("works",) * 4,
    *("asks",) * 3,
    "asks in turn",
    "asks both",
    "asks each",
    "asks for a while",
    *("asks early",) * 2,
    "approves",
    "fails",
    "fails once",
    "is a graph",
    "is a map",
    "maps graphs",
    "is limited",
    "kills",
)
FAILING = (*KINDS, *("fails",) * 8)
RULED = (*KINDS, *("is approved",) * 10, *("is approved in time",) * 4)
CROWDED = (*KINDS, *("is limited",) * 20)
KEYED = (*KINDS, *("is limited",) * 6)
UNDOING = ("works", "asks", "fails once", "fails", "works")
"""The kinds of the nodes' undos, by turns."""
CONDITIONS = ("always", "always", "always", "peeks", "never", "odd visits", "even visits")
LIMIT = Limit("one at a time", concurrency=1)
WHILE = 40.0
"""Seconds after which a question of "asks for a while" has the answer that a person would give."""


@dataclass(frozen=True)
class Plan:
    """A graph as plain values: `repeats` are back edges taken until the source's visit of that number."""

    kinds: tuple[str, ...]
    anys: frozenset[int] = frozenset()
    edges: tuple[tuple[int, int, str], ...] = ()
    repeats: tuple[tuple[int, int, int], ...] = ()
    policy: str = "continue"
    undos: bool = False

    @property
    def limited(self) -> set[str]:
        """The nodes that share a limit of one."""
        return {f"n{number}" for number, kind in enumerate(self.kinds) if kind == "is limited"}


def draw(chance: random.Random, kinds: Sequence[str] = KINDS) -> Plan:
    """Draw a graph that can be built."""
    while True:
        size = chance.choice((1, 2, 3, 4, 4, 5, 6, 7))
        pairs = sorted(
            {(chance.randrange(size), chance.randrange(size)) for _ in range(size + 3)}
        )
        plan = Plan(
            kinds=tuple(chance.choice(kinds) for _ in range(size)),
            anys=frozenset(chance.sample(range(size), chance.choice((0, 0, 1)))),
            edges=tuple(
                (low, high, chance.choice(CONDITIONS)) for low, high in pairs if low < high
            ),
            repeats=tuple(
                (high, low, chance.randint(2, 3)) for low, high in pairs if low >= high
            )[:2],
            policy=chance.choice(("continue", "continue", "fail_fast")),
        )
        try:
            build(plan, Ledger())
        except DefinitionError:
            continue
        return plan


def answer_to(node: str, visit: int, name: str) -> dict[str, Any]:
    """What a person says to a question; whoever is asked says the same."""
    text = f"{node} {visit} {name}"
    return {"say": text, "yes": zlib.crc32(text.encode()) % 2 == 0}


class Ledger:
    """What the code of nodes did to the outside, by visit: (run, node, visit)."""

    def __init__(self, stop: Callable[[str], object] = lambda point: None) -> None:
        """`stop` is called where a process may be killed: it doesn't return then."""
        self.stop = stop
        self.starts: Counter[tuple] = Counter()
        self.effects: Counter[tuple] = Counter()
        self.keys: dict[tuple, set[str]] = defaultdict(set)
        self.answerers: dict[tuple, set[str]] = defaultdict(set)
        self.paid: dict[tuple, set[tuple[str, int]]] = defaultdict(set)

    def start(self, ctx: Any) -> None:
        """Note that a visit's code begins."""
        self.begin(visit_of(ctx), ctx.idempotency_key)

    def begin(self, where: tuple[str, str, int], key: str) -> None:
        """Note a start, and with which key."""
        self.starts[where] += 1
        self.keys[where].add(key)
        self.stop("in the node")

    def pay(self, ctx: Any, key: str) -> str:
        """Do something that can be seen from outside, and may be killed before its record."""
        self.effects[(*visit_of(ctx), key)] += 1
        self.stop("behind the effect")
        return "paid"

    def refund(self, ctx: Any, amount: int) -> str:
        """Pay back, and note under which key how much."""
        self.paid[visit_of(ctx)].add((ctx.idempotency_key, amount))
        return self.pay(ctx, "approved")

    def ask(self, ctx: Any, name: str, **options: Any) -> dict[str, Any]:
        """Ask a person, and note who answered."""
        response = ctx.interrupt(name, f"{name} of visit {ctx.visit}?", **options)
        self.answerers[(*visit_of(ctx), name)].add(response.pop("by"))
        return response


def visit_of(ctx: Any) -> tuple[str, str, int]:
    """Name a visit."""
    return ctx.run_id, ctx.node_id, ctx.visit


QUESTIONS = {"asks": ("one",), "asks in turn": ("one", "two"), "approves": ("pay?",)}


def function(kind: str, ledger: Ledger, *, reads: bool = True) -> Callable[[Any], Any]:
    """Make a node's code; its output tells all that it was told."""

    def work(ctx: Any) -> Any:
        ledger.start(ctx)
        if kind == "kills":
            ledger.stop("kills")
        noted = ctx.once("note", lambda: ledger.pay(ctx, "note"))
        answers = [ledger.ask(ctx, name) for name in QUESTIONS.get(kind, ())]
        if kind in ("asks both", "asks each"):
            answers = [
                answer for name in ("one", "two") for answer in together(ledger, ctx, name)
            ]
        if kind == "asks for a while":
            there = {**answer_to(ctx.node_id, ctx.visit, "soon"), "by": "nobody"}
            answers = [ledger.ask(ctx, "soon", expires_in=WHILE, on_expire={"response": there})]
        if kind == "approves" and answers[0]["yes"]:
            answers.append(ctx.once("pay", lambda: ledger.pay(ctx, "approved")))
        if kind == "fails" or (kind == "fails once" and ctx.attempt == 1):
            raise ValueError(ctx.node_id)
        received_bytes = codec.dump_json(sorted(ctx.inputs.items())) if reads else b""
        return [
            ctx.node_id,
            ctx.visit,
            noted,
            answers,
            hashlib.sha256(received_bytes).hexdigest()[:8],
        ]

    return work


def approved(rule: Rule, ledger: Ledger, **options: Any) -> Callable[[Any], Any]:
    """Make the code of a node that does what people decide; its output says nothing of that."""

    def work(ctx: Any) -> Any:
        ledger.start(ctx)
        noted = ctx.once("note", lambda: ledger.pay(ctx, "note"))
        decided = ctx.interrupt("pay", "how much?", rule=rule, action=dict(SHOWN), **options)
        if decided.approved:
            args = decided.response if decided.decision == "edit" else SHOWN
            ctx.once("pay", lambda: ledger.refund(ctx, args["amount"]))
        return [ctx.node_id, ctx.visit, noted]

    return work


def together(ledger: Ledger, ctx: Any, name: str) -> list[dict[str, Any]]:
    """Ask without leaving, so that another question can be asked beside this one."""
    try:
        return [ledger.ask(ctx, name)]
    except InterruptRaised:
        return []


class Early:
    """A node that publishes its questions and works on beside them, as agents do, before it parks."""

    kind = "early"

    def __init__(self, ledger: Ledger, names: tuple[str, ...]) -> None:
        self._ledger, self._names = ledger, names

    def execute(self, visit: Any) -> Outcome:
        """Ask what has no answer; wait for it, or give the answers."""
        where = visit.address
        self._ledger.begin((where.run_id, where.node_id, where.visit), visit.idempotency_key)
        questions = [self._question(visit, name) for name in self._names]
        known = {
            question.name: visit.answers[question.id]
            for question in questions
            if question.id in visit.answers
        }
        saved = Saved({"v": 1, "known": sorted(known)}, 0, sorted(known))
        visit.ask(
            [open_question for open_question in questions if open_question.name not in known],
            saved,
        )
        for _ in "abc":
            self._ledger.stop("beside its questions")
        left = [interrupt for interrupt in questions if interrupt.name not in known]
        if left:
            return Interrupted(left, saved)
        answers = {name: dict(interrupt.response) for name, interrupt in known.items()}
        for name, answer in answers.items():
            self._ledger.answerers[where.run_id, where.node_id, where.visit, name].add(
                answer.pop("by")
            )
        output = [where.node_id, where.visit, [answers[name] for name in sorted(answers)]]
        return Succeeded(output, output)

    def _question(self, visit: Any, name: str) -> Interrupt:
        """Name a question; one that was taken back is asked under another id."""
        return visit.question(name, scope="early")


def inner(ledger: Ledger, depth: int = 1) -> Graph:
    """Make a graph to stand inside another: one that asks, one behind it, perhaps a graph again."""
    builder = GraphBuilder()
    builder.add_node(function("asks", ledger), "x")
    builder.add_node(inner(ledger, depth - 1) if depth else function("works", ledger), "y")
    builder.add_edge("x", "y")
    return builder.build()


def item(ledger: Ledger) -> Callable[[Any], Any]:
    """Make the code of a map's item: every other one asks."""
    asks, works = function("asks", ledger), function("works", ledger)
    return lambda ctx: asks(ctx) if ctx.item_index % 2 else works(ctx)


def add(builder: GraphBuilder, plan: Plan, number: int, ledger: Ledger) -> None:
    """Add a node of a plan."""
    kind, name = plan.kinds[number], f"n{number}"
    join = {"join": "any" if number in plan.anys else "all"}
    # What an any-join is told depends on who came first, so it does not tell.
    code = function(kind, ledger, reads=number not in plan.anys)
    match kind:
        case "is a graph":
            builder.add_node(inner(ledger, number % 2), name, **join)
        case "is a map":
            builder.add_map(
                item(ledger), name, over=lambda ctx: [1, 2, 3], concurrency=2, **join
            )
        case "maps graphs":
            builder.add_map(
                inner(ledger, 0), name, over=lambda ctx: [1, 2], concurrency=1, **join
            )
        case "fails once":
            builder.add_node(code, name, retry=RetryPolicy(9, backoff=1, jitter=0), **join)
        case "is limited":
            builder.add_node(code, name, limits=[LIMIT], **join)
        case "is approved":
            builder.add_node(
                approved(RULES[(number + len(plan.kinds)) % len(RULES)], ledger), name, **join
            )
        case "is approved in time":
            in_time = {"expires_in": WHILE, "on_expire": {"response": "nobody came"}}
            builder.add_node(
                approved(RULES[(number + len(plan.kinds)) % len(RULES)], ledger, **in_time),
                name,
                **join,
            )
        case "asks early":
            names = ("one", "two")[: 1 + number % 2]
            builder.add_node(
                Early(ledger, names), name, resume=("all", "each")[number // 2 % 2], **join
            )
        case "asks each":
            builder.add_node(code, name, resume="each", **join)
        case _:
            builder.add_node(code, name, **join)
    if plan.undos:
        way_back = UNDOING[number % len(UNDOING)]
        retry = RetryPolicy(2, backoff=1, jitter=0)
        builder.add_undo(name, function(way_back, ledger, reads=False), retry=retry)


def build(plan: Plan, ledger: Ledger) -> Graph:
    """Build a plan, as each process does for itself."""
    builder = GraphBuilder().set_failure_policy(plan.policy)
    for number in range(len(plan.kinds)):
        add(builder, plan, number, ledger)
    for low, high, condition in plan.edges:
        builder.add_edge(f"n{low}", f"n{high}", holds(condition))
    for high, low, rounds in plan.repeats:
        builder.add_edge(
            f"n{high}", f"n{low}", lambda state, rounds=rounds: state.visit < rounds, back=True
        )
    names = [f"n{number}" for number in range(len(plan.kinds))]
    edges = [(f"n{low}", f"n{high}") for low, high, _ in plan.edges]
    # An edge back makes neither end an entry point or a node without edges.
    back = [(f"n{end}", f"n{end}") for high, low, _ in plan.repeats for end in (high, low)]
    starts(builder, names, [*edges, *back])
    return builder.build()


def holds(condition: str) -> Callable[[Any], bool] | None:
    """Make an edge's condition."""
    match condition:
        case "never":
            return lambda state: False
        case "peeks":  # reads what may change under it, and holds whatever it finds
            return lambda state: dict(state.results) != {}
        case "odd visits":
            return lambda state: state.visit % 2 == 1
        case "even visits":
            return lambda state: state.visit % 2 == 0
    return None
