"""The memory store and the Redis store are one store: any steps, however odd, give the same.

A machine of random graphs and random requests (stale, doubled and late ones too) drives both with
one clock. After every step the replies, the doorbells and all that is stored are equal, and the
counters of each run are what a recount of its nodes gives.
"""

from __future__ import annotations

from dataclasses import astuple, replace

import hypothesis
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runner.approvals import ballots, voting
from runner.approvals.ballots import OPERATIONS, Ballot, Operation
from runner.approvals.digests import Action
from runner.approvals.rules import DECISIONS, Principal, Rule, Voter
from runner.definition.cycles import reach
from runner.definition.model import (
    AFTER_GRAPH,
    Definition,
    EdgeSpec,
    FailurePolicy,
    Join,
    MapSpec,
    NodeSpec,
    item_id,
    map_of,
)
from runner.definition.topology import topology
from runner.errors import DefinitionError, RunnerError
from runner.limits.fairness import Fairness
from runner.limits.limit import Limit
from runner.limits.setting import LimitPause, LimitSetting
from runner.operations import recovery
from runner.operations.migration_plan import MigrationPlanner, MigrationRequest
from runner.operations.recovery import ForkOptions, plan_fork, plan_retry
from runner.records import codec
from runner.records.checkpoints import Remembered, Saved
from runner.records.interrupts import Address, Decision
from runner.records.listings import InterruptQuery, RunQuery
from runner.records.run import ACTIVE, FINAL, LoopRecord, Status, status_of
from runner.scheduler.changes import CALLBACK_NODE
from runner.store import encoding, requests
from runner.store.interface import Claim, Reply, Request, Settlement, Start, Token
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from tests.properties.machines import play

REQUESTS = {
    kind.verb: kind
    for module in (requests, voting)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Request) and "verb" in vars(kind)
}
"""The kinds of requests, by verb."""

LEASE = 30
SELDOM = st.sampled_from([False] * 9 + [True])
EXAMPLES = hypothesis.settings.default.max_examples // 10
MIGRATIONS = hypothesis.settings.default.max_examples // 5


LIMITS = [
    Limit("one", concurrency=1),
    Limit("two", concurrency=2, by="graph"),
    Limit("own", concurrency=1, rate=1, per=20, by="node"),
    Limit("tenant", concurrency=1, by="tag:tenant"),
    Limit("slow", rate=1, per=7),
]


CALL = Action("runner", "tool", "pay", {"amount": 0})

RULED = [
    {
        "action": CALL,
        "rule": Rule(
            need=2, veto=2, delegate="anyone", escalate=[(5, ["user:eve"]), (30, ["user:fay"])]
        ),
    },
    {
        "action": CALL,
        "rule": Rule(
            stages=[
                Rule(eligible=["group:f"], need=2, weights={"role:cfo": 2}),
                Rule(eligible=["role:cfo"]),
            ],
            exclude=["answered:a"],
            edit="keeps",
            delegate="group",
        ),
    },
    {"rule": Rule(eligible=["group:f"], need=2, veto=None, decisions=["respond", "reject"])},
]

VOTERS = [
    Voter(Principal("ann"), frozenset({"f"}), frozenset({"cfo"})),
    *(Voter(Principal(name), frozenset({"f"})) for name in ("ben", "cid")),
    Voter(Principal("eve")),
    Voter(Principal("bot", kind="agent"), frozenset({"f"})),
]


@st.composite
def graphs(draw, name):
    """Draw a graph: any edges, so joins, dead paths and loops in every shape that can be built.

    Some of their nodes are maps.
    """
    maps = st.builds(
        MapSpec, st.just("function"), st.none(), st.sampled_from([None, 1, 2]), st.booleans()
    )
    names = "abcdef"[: draw(st.integers(1, 6))]
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=9, unique=True
        )
    )
    entries = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    onward = {node: [target for source, target in pairs if source == node] for node in names}
    node_names = sorted(reach(entries, onward)) + draw(st.sampled_from([[], [AFTER_GRAPH]]))
    definition = Definition(
        id=name,
        nodes={
            node: NodeSpec(
                node,
                executor=None,
                kind="function",
                join=draw(st.sampled_from(Join)),
                resume=draw(st.sampled_from(["all", "each"])),
                priority=draw(st.sampled_from([None, 0, 9])),
                map=None if node.startswith("@") else draw(st.none() | st.none() | maps),
                limits=draw(
                    st.sampled_from([(), (), *((limit,) for limit in LIMITS), tuple(LIMITS)])
                ),
            )
            for node in node_names
        },
        edges=tuple(
            EdgeSpec(source, target, on_expire=draw(st.sampled_from([False, False, True])))
            for source, target in pairs
            if source in node_names
        ),
        entries=tuple(entries),
        policy=draw(st.sampled_from(FailurePolicy)),
        max_node_executions=draw(st.sampled_from([None, None, None, 3, 9])),
        execution_timeout=draw(st.sampled_from([None, None, 50.0])),
        fairness=draw(st.sampled_from([None, None, Fairness("tag:tenant", {"x": 3})])),
    )
    try:
        return topology(definition)
    except DefinitionError:
        hypothesis.reject()


def ask(store, name, *arguments, **named):
    """Make a request of a store, by its verb, or call what reads from it or sweeps."""
    kind = REQUESTS.get(name)
    return (
        store.do(kind(*arguments, **named))
        if kind
        else getattr(store, name)(*arguments, **named)
    )


class Agreement(RuleBasedStateMachine):
    """Does everything to two stores, and compares."""

    url = ""

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.server = redis.Redis.from_url(self.url)
        self.server.flushall()
        self.memory = self.redis = None
        self.shapes, self.runs, self.bells, self.tokens, self.questions = [], [], [], [], []
        self.versions = []
        self.handed = []
        self.ends = []
        self.gone = {}
        self.count = 0
        self.last = None
        self.own = {}

    def teardown(self):
        if self.redis:
            self.redis.close()
        self.server.close()

    def nonce(self):
        self.count += 1
        return f"nonce{self.count}"

    def both(self, name, *arguments, **named):
        """Ask both stores, compare their replies, and remember what later steps can use."""
        self.last = (name, arguments, named)
        reply = ask(self.memory, name, *arguments, **named)
        # A token also carries what its own store has read.
        own = [
            self.own.get(part, part) if isinstance(part, Token) else part for part in arguments
        ]
        other = ask(self.redis, name, *own, **named)
        assert comparable(other) == comparable(reply), (
            name,
            comparable(other),
            comparable(reply),
        )
        for part in reply if isinstance(reply, tuple) else [reply]:
            for bell in getattr(part, "doorbells", []):
                (self.ends if bell.node == CALLBACK_NODE else self.bells).append(bell)
        if isinstance(reply, Claim):
            self.own[reply.token] = other.token
            self.tokens += [] if reply.token in self.tokens else [reply.token]
        return reply

    @initialize(first=graphs("first"), second=graphs("second"), later=graphs("first"))
    def publish(self, first, second, later):
        """Publish some graphs and start a run of the first."""
        options = {"clock": self.clock, "lease": LEASE}
        self.memory, self.redis = (
            MemoryStore(**options),
            RedisStore(self.url, push=False, **options),
        )
        self.shapes = [first, second]
        self.versions = [first, second, replace(later, policy=first.policy)]
        self.both("publish", self.shapes)
        self.both("windows", {"first": 1, "second": 1})
        self.start(0, None)

    # -- what engines do ---------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1),
        key=st.sampled_from([None, None, "k"]),
        tenant=st.sampled_from([None, "x", "y"]),
        on_end=st.sampled_from(["", "shop.done"]),
    )
    def start(self, which, key, tenant=None, on_end="shop.done"):
        graph, run_id = self.shapes[which], f"00run{len(self.runs) + len(self.gone)}"
        reply = self.both(
            "start",
            Start(
                run_id,
                graph.graph_id,
                None,
                "t",
                tags={"t": str(which)} | ({"tenant": tenant} if tenant else {}),
                idempotency_key=key,
                on_end=on_end,
            ),
        )
        if reply.word == "started":
            self.runs.append(run_id)

    @rule(data=st.data(), which=st.integers(0, 1))
    def delegate(self, data, which):
        if self.tokens:
            token, run_id = (
                self.pick(data, self.tokens),
                f"00run{len(self.runs) + len(self.gone)}",
            )
            graph = self.shapes[which]
            start = Start(run_id, graph.graph_id, graph.fingerprint, "t", parent=token)
            if self.both("start", start).word == "started":
                self.runs.append(run_id)

    @rule(data=st.data())
    def claim(self, data):
        if self.bells:
            bell = self.pick(data, self.bells)
            self.both("claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce())

    @rule(
        data=st.data(), bits=st.integers(0, 511), failed=st.sampled_from([False] * 4 + [True])
    )
    def claim_and_settle(self, data, bits, failed):
        if self.bells:
            bell = self.pick(data, self.bells)
            claim = self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce()
            )
            if isinstance(claim, Claim):
                self.end(claim.token, bits, failed, None, ())

    @rule(
        data=st.data(),
        items=st.sampled_from([None, [], ["x"], [1, 2], list("abc"), list("abcdefg")]),
    )
    def expand(self, data, items):
        """A map goes over its list, or goes on with the one that it has."""
        tokens = [token for token in self.tokens if self.is_map(token)]
        if tokens:
            self.both("expand", self.pick(data, tokens), items)

    @rule(
        data=st.data(),
        items=st.integers(0, 7),
        bits=st.integers(0, 511),
        failed=st.sampled_from([False] * 4 + [True]),
    )
    def claim_map_and_expand(self, data, items, bits, failed):
        """A map's worker does what it should."""
        bells = [bell for bell in self.bells if self.is_map(bell)]
        if bells:
            bell = self.pick(data, bells)
            claim = self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce()
            )
            if isinstance(claim, Claim) and claim.map is not None and claim.map.has_ended:
                self.end(claim.token, bits, failed or claim.map.stopped, None, ())
            elif isinstance(claim, Claim):
                self.both("expand", claim.token, None if claim.map else list(range(items)))

    @rule(data=st.data(), bits=st.integers(0, 511), failed=st.booleans(), keeps=st.booleans())
    def settle(self, data, bits, failed, keeps):
        if self.tokens:
            self.end(
                self.pick(data, self.tokens),
                bits,
                failed,
                Saved({"v": 1}, 1, ["m"]) if keeps else None,
                (),
            )

    @rule(data=st.data(), bits=st.integers(0, 511), off=st.sampled_from([0, 0, 0, 1]))
    def settle_with_reads(self, data, bits, off):
        if self.tokens:
            token = self.pick(data, self.tokens)
            nodes = [
                name.replace("[]", "[0]") for name in sorted(self.shape_of(token.run_id).nodes)
            ]
            read = [
                name
                for name in data.draw(st.lists(st.sampled_from(nodes), unique=True))
                if name != token.node
            ]
            if token.run_id in self.gone:
                return
            fetched = self.both("fetch", token.run_id, read)
            reads = [
                (name, own.ended[0] + off, str(own.ended[1]))
                for name, (own, _, _) in zip(read, fetched, strict=True)
            ]
            self.end(token, bits, False, None, reads, insist=data.draw(st.booleans()))

    def end(self, token, bits, failed, saved, reads, *, insist=False):
        edges = f"{bits:09b}"[: len(self.shape_of(token.run_id).outgoing.get(token.node, ()))]
        status = Status.FAILED if failed else Status.COMPLETED
        more = (
            None
            if failed or not saved
            else Remembered(f"s{bits % 2}", bits % 3, {"n": bits}, ["gone"])
        )
        entry = {
            "v": 1,
            "edges": edges,
            **({"error": {"type": "builtins:ValueError", "message": "no"}} if failed else {}),
        }
        # Some are so large that the Redis store keeps them apart.
        output = {"by": token.fence, "much": "x" * (70_000 if bits % 7 == 6 else bits)}
        settlement = Settlement(status, edges, output, entry, saved, reads, insist, more)
        self.both("settle", token, settlement, self.nonce())

    @rule(
        data=st.data(),
        name=st.sampled_from(["park", "park", "ask"]),
        names=st.lists(st.sampled_from("xyz"), min_size=1, max_size=2, unique=True),
        lasts=st.sampled_from([None, None, 20.0]),
        keeps=st.booleans(),
        reminds=st.sampled_from(
            [{}, {}, {"remind_every": 10}, {"remind_after": [0.7, 15, 15.1, 60]}]
        ),
        ruled=st.sampled_from([*[{}] * 3, *RULED]),
    )
    def wait(self, data, name, names, lasts, keeps, reminds, ruled):  # noqa: PLR0917 - what is drawn
        if self.tokens:
            token, people = self.pick(data, self.tokens), ["ann"] if lasts and not ruled else []
            self.ask(
                data,
                name,
                token,
                names,
                keeps,
                expires_in=lasts,
                assignees=people,
                **reminds,
                **ruled,
            )

    def ask(self, data, name, token, names, keeps, **options):
        leaving = self.shape_of(token.run_id).outgoing.get(token.node, ())
        routes = tuple(edge.target for edge in leaving if edge.on_expire)
        address = Address(token.run_id, token.node, token.visit, routes=routes)
        ends = [None, "fail", *({"route": target} for target in routes)]
        on_expire = data.draw(st.sampled_from(ends)) if options["expires_in"] else None
        # Some are so large that the Redis store keeps what the next node is given of them apart.
        reason = "x" * 70_000 if on_expire and len(names) > 1 else "why"
        options |= {"on_expire": on_expire, "reasked": data.draw(st.sampled_from([0, 0, 1]))}
        questions = [address.ask(label, reason, scope="function", **options) for label in names]
        self.both(name, token, questions, Saved({"v": 1}, 0, [1, 2]) if keeps else None)
        self.questions += [
            question.id for question in questions if question.id not in self.questions
        ]

    @rule(
        data=st.data(),
        parks=st.sampled_from([True, True, False]),
        seconds=st.sampled_from([20, 20, 51]),
    )
    def claim_and_let_expire(self, data, parks, seconds):
        """The question of a node expires while it waits or is still at work."""
        if self.bells:
            bell = self.pick(data, self.bells)
            claim = self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce()
            )
            if isinstance(claim, Claim):
                self.ask(
                    data,
                    "park" if parks else "ask",
                    claim.token,
                    "xy"[: 1 + parks],
                    False,
                    expires_in=20,
                )
                self.clock.advance(seconds)
                self.both("sweep", 100)

    @rule(data=st.data(), delay=st.sampled_from([0, 700]), counts=st.booleans())
    def retry(self, data, delay, counts):
        if self.tokens:
            self.both(
                "retry", self.pick(data, self.tokens), delay, {"v": 1} if counts else None, None
            )

    @rule(data=st.data())
    def leave(self, data):
        """A worker that shuts down releases a node."""
        if self.tokens:
            self.both("leave", self.pick(data, self.tokens))

    @rule(data=st.data(), work=st.sampled_from(["x", "x", "y"]))
    def hand(self, data, work):
        """Another system is to do the work of a node."""
        if self.tokens:
            token = self.pick(data, self.tokens)
            self.both("hand", token, f"{token.node} {token.visit}.{work}")
            self.handed.append((token, f"{token.node} {token.visit}.{work}"))

    @rule(data=st.data(), timeout=st.sampled_from([0, 700, 40_000]))
    def sent(self, data, timeout):
        if self.handed:
            self.both("sent", *self.pick(data, self.handed), timeout)

    @rule(data=st.data(), size=st.sampled_from([1, 1, 70_000]))
    def report(self, data, size):
        """Another system reports how its work ended, perhaps late or once more."""
        if self.handed:
            token, work = self.pick(data, self.handed)
            self.both(
                "report", token.run_id, token.node, token.visit, work, {"result": "x" * size}
            )

    @rule(
        data=st.data(),
        timeout=st.sampled_from([0, 700]),
        reports=st.booleans(),
        cancels=st.booleans(),
    )
    def claim_and_hand(self, data, timeout, reports, cancels):
        """A node's work is handed out in the usual order."""
        if self.bells:
            bell = self.pick(data, self.bells)
            claim = self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce()
            )
            if isinstance(claim, Claim):
                work = claim.record.handed or f"{bell.node} {bell.visit}.{bell.attempt}"
                self.both("hand", claim.token, work)
                self.both("sent", claim.token, work, timeout)
                self.handed.append((claim.token, work))
                if reports:
                    self.both(
                        "report", bell.run_id, bell.node, bell.visit, work, {"result": None}
                    )
                elif cancels:
                    self.both("cancel", bell.run_id, "enough")

    @rule(data=st.data())
    def hold(self, data):
        if self.tokens and data.draw(st.sampled_from([False, False, True])):
            self.both("hold", self.pick(data, self.tokens))

    @rule(data=st.data(), more=st.booleans())
    def release(self, data, more):
        """A held node goes on, or one that was not held; also one whose child run was."""
        held = [
            (run_id, name)
            for run_id in self.runs
            for name, record in self.memory.read(run_id).nodes.items()
            if record.held
        ]
        if held:
            run_id, name = self.pick(data, held)
            self.both(
                "release",
                run_id,
                [name, *(sorted(self.shape_of(run_id).nodes)[:1] if more else [])],
            )

    @rule(data=st.data(), keep=st.integers(0, 3))
    def save(self, data, keep):
        if self.tokens:
            self.both(
                "save",
                self.pick(data, self.tokens),
                Saved({"v": 1, "keep": keep}, keep, ["one", "two"]),
            )

    @rule(data=st.data(), kind=st.sampled_from(["progress", "agent"]))
    def emit(self, data, kind):
        if self.tokens:
            token = self.pick(data, self.tokens)
            self.both("emit", token.run_id, kind, token.node, token.visit, {"note": "half"})

    @rule(data=st.data())
    def tell(self, data):
        """Note that an end was reported, which may be an older one than the run's last."""
        if self.ends:
            bell = self.pick(data, self.ends)
            self.both("end_reported", bell.run_id, bell.visit)

    # -- what people and time do -------------------------------------------------------------------

    @rule(data=st.data(), many=st.booleans(), nonce=st.sampled_from(["", "", "n"]))
    def answer(self, data, many, nonce):
        if self.questions:
            picked = [self.pick(data, self.questions) for _ in range(1 + many)]
            answers = [Decision(question, {"yes": [question]}, "ann") for question in picked]
            self.both("answer", answers, nonce or self.nonce())

    @rule(data=st.data())
    def answer_what_is_open(self, data):
        questions = self.both("open_interrupts")
        if questions:
            self.both(
                "answer", [Decision(self.pick(data, questions).id, 1, "ann")], self.nonce()
            )

    @rule(
        data=st.data(),
        who=st.sampled_from(VOTERS),
        decision=st.sampled_from(DECISIONS),
        amount=st.integers(0, 2),
    )
    def vote(self, data, who, decision, amount):
        """Vote on what is open, or was: with the effect that a door computes."""
        questions = [
            question
            for question in self.memory.interrupts(self.questions)
            if question is not None
        ]
        ruled = [question for question in questions if question.rule is not None]
        if ruled:
            question = self.pick(data, [one for one in ruled if one.is_open] or ruled)
            response = (
                {"amount": amount} if amount and decision in {"approve", "edit"} else True
            )
            effect = ballots.effect_of(question, decision, response)
            ballot = Ballot(
                question.id, who, decision, response, effect, comment="so", body=self.body(data)
            )
            self.both("vote", ballot, data.draw(st.sampled_from(["n", *[self.nonce()] * 3])))
            self.compare_votes(question)

    @rule(
        data=st.data(),
        who=st.sampled_from(VOTERS),
        to=st.sampled_from(VOTERS),
        kind=st.sampled_from(OPERATIONS),
    )
    def act(self, data, who, to, kind):
        """Do what people do besides voting."""
        questions = [
            question
            for question in self.memory.interrupts(self.questions)
            if question is not None
        ]
        if ruled := [question for question in questions if question.rule is not None]:
            question = self.pick(data, [one for one in ruled if one.is_open] or ruled)
            operation = Operation(
                question.id, kind, who, to, 10_000, "hm", body=self.body(data)
            )
            self.both("act", operation, self.nonce())
            self.compare_votes(question)

    def body(self, data):
        """Return a message that is signed, or not; a signature may come again."""
        jti = data.draw(st.sampled_from([None, None, "1", "2", self.nonce()]))
        now = self.clock.now // 1000
        return {} if jti is None else {"proof": {"jti": jti, "iat": now, "exp": now + 5}}

    def compare_votes(self, question):
        self.both("votes", question.id)
        self.both("standings", [question.id])
        self.both("answerers", question.run_id, question.node_id)

    @rule(data=st.data())
    def cancel(self, data):
        if self.runs and data.draw(st.sampled_from([False, False, False, True])):
            self.both("cancel", data.draw(st.sampled_from(self.runs)), "enough")

    @rule(data=st.data(), reason=st.sampled_from(["", "wrong"]), reask=st.booleans())
    def withdraw(self, data, reason, reask):
        if self.questions:
            self.both("withdraw", self.pick(data, self.questions), reason, reask=reask)

    @rule(data=st.data(), reask=st.booleans())
    def withdraw_what_is_open(self, data, reask):
        questions = self.both("open_interrupts")
        if questions:
            self.both("withdraw", self.pick(data, list(questions)).id, "}", reask=reask)

    @rule(data=st.data(), edited=st.booleans(), late=st.booleans())
    def fork(self, data, edited, late):
        if self.runs:
            source, new = self.pick(data, self.runs), f"00run{len(self.runs) + len(self.gone)}"
            node = data.draw(st.sampled_from(sorted(self.shape_of(source).nodes)))
            try:
                begin = ForkOptions(new, {"n": "1"}, edited, "other")
                forked = plan_fork(self.memory, source, node, None, begin)
                late = late and self.memory.peek(source).is_final
                retried = plan_retry(self.memory, source) if late else []
            except RunnerError:
                return
            if retried:
                self.both("rewrite", retried, self.nonce())
            if self.both("fork", forked).word == "forked":
                self.runs.append(new)

    @rule(data=st.data(), late=st.sampled_from([False, False, True]))
    def retry_what_ended(self, data, late):
        ended = [run_id for run_id in self.runs if self.memory.peek(run_id).is_final]
        if ended:
            try:
                again = plan_retry(self.memory, self.pick(data, ended))
            except RunnerError:
                return
            if late:
                self.both("emit", again[-1].run_id, "agent", "a", 1, None)
            self.both("rewrite", again, self.nonce())

    @rule(data=st.data(), late=st.sampled_from([False, False, False, True]))
    def migrate(self, data, late):
        """A run that waits goes on in another version of its graph, whatever that is."""
        wait = {Status.INTERRUPTED, Status.NEEDS_MIGRATION}
        waiting = [run_id for run_id in self.runs if self.memory.peek(run_id).status in wait]
        if not waiting:
            return
        run_id = self.pick(data, waiting)
        snapshot, old = self.memory.read(run_id), self.shape_of(run_id)
        versions = [shape for shape in self.versions if shape.graph_id == old.graph_id]
        if not versions:
            return
        new = data.draw(st.sampled_from(versions))
        there, here = (
            [name for name in sorted(shape.nodes) if name.isalpha()] for shape in (old, new)
        )
        goes = data.draw(
            st.dictionaries(st.sampled_from(there), st.sampled_from(here), max_size=2)
        )
        drops = [
            name
            for name in there
            if name not in goes and (name not in here or data.draw(SELDOM))
        ]
        held = [
            name for name, record in snapshot.nodes.items() if record.held and not record.child
        ]
        for dropped in (drops, there):
            request = MigrationRequest(
                {name: today for name, today in goes.items() if name not in dropped}, dropped
            )
            documents = self.both("documents", run_id)
            planner = MigrationPlanner(
                snapshot,
                old,
                new,
                request,
                held,
                lambda *at: str(sum(map(len, map(str, at))) % 2),
                documents,
            )
            try:
                moved = planner.migration(snapshot.record.parent_node, snapshot.record.path)
            except RunnerError:
                continue
            self.both("publish", [new])
            if late:
                self.both("emit", run_id, "agent", "a", 1, None)
            self.both("migrate", [moved], self.nonce())
            self.questions += [
                question.id
                for question in (*moved.replacements, *(new for _, new in moved.moved))
            ]
            return

    @rule(data=st.data())
    def remove(self, data):
        """A removed run is gone; the sweeps that follow take the runs inside it."""
        if self.runs and data.draw(SELDOM):
            run_id = self.memory.peek(self.pick(data, self.runs)).root
            self.both("cancel", run_id, "to be removed")
            family = [member for member in self.runs if self.memory.peek(member).root == run_id]
            names = {member: self.memory.peek(member).fingerprint for member in family}
            if self.both("remove", run_id).word == "removed":
                self.both("sweep", 100)
                self.runs = [other for other in self.runs if other not in family]
                self.gone |= names
                assert {self.memory.peek(member) for member in family} == {None}
                patterns = [f"*:r:{member}{more}" for member in family for more in ("", ":*")]
                assert not [key for pattern in patterns for key in self.server.keys(pattern)]

    @rule(
        seconds=st.sampled_from([0.7, 20, LEASE, 31, 61]),
        limit=st.sampled_from([1, 100]),
        renews=st.booleans(),
    )
    def let_time_pass(self, seconds, limit, renews):
        if renews:
            self.both("renew", self.tokens[-4:])
        self.clock.advance(seconds)
        self.both("sweep", limit)

    @rule(
        name=st.sampled_from([limit.name for limit in LIMITS]),
        how=st.sampled_from(["one slot", "slower", "pause", "pause a key", "resume", "reset"]),
    )
    def change_limit(self, name, how):
        """An operator changes a limit, pauses it or one key of it, or ends that."""
        key, until = "tenant:tag:tenant:a", self.clock() + 20_000
        changes = {
            "one slot": lambda setting: replace(setting, concurrency=1),
            "slower": lambda setting: replace(setting, interval=9_000),
            "pause": lambda setting: setting.pause(LimitPause(name, until)),
            "pause a key": lambda setting: setting.pause(LimitPause(key, 0)),
            "resume": lambda setting: setting.resume(name),
            "reset": lambda setting: LimitSetting(setting.id),
        }
        name = "tenant" if how == "pause a key" else name
        self.both("limit", name, changes[how], "limit.set", f"limit:{name}")

    @rule(limit=st.sampled_from([1, 100]))
    def sweep(self, limit):
        self.both("sweep", limit)

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self):
        """The network doubled the last request."""
        name, arguments, named = self.last
        self.both(name, *arguments, **named)

    # -- what must hold ----------------------------------------------------------------------------

    def pick(self, data, items):
        """Prefer what is new, so that runs get on; older ones are stale requests."""
        return items[
            -1 - min(data.draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8])), len(items) - 1)
        ]

    def shape_of(self, run_id):
        record = self.memory.peek(run_id)
        fingerprint = record.fingerprint if record else self.gone[run_id]
        return next(shape for shape in self.versions if shape.fingerprint == fingerprint)

    def is_map(self, at):
        """Whether a doorbell or token is for a map, not for an item of one."""
        shape = self.shape_of(at.run_id).nodes.get(at.node)
        return shape is not None and shape.map is not None

    @invariant()
    def maps_are_what_a_recount_gives(self):
        """A map's counts are those of its items, and one that waits has a reason to."""
        for run_id in self.runs:
            snapshot = self.memory.read(run_id)
            for name, own in snapshot.maps.items():
                items = [snapshot.nodes.get(item_id(name, index)) for index in range(own.total)]
                alive = [item for item in items if item is not None and item.visit == own.visit]
                waiting = [
                    item for item in alive if item.status is Status.WAITING and not item.busy
                ]
                busy = [item for item in alive if item.status is Status.WAITING and item.busy]
                active = [item for item in alive if item.status in ACTIVE]
                assert (own.active, own.waiting) == (len(active) + len(busy), len(waiting))
                if snapshot.nodes[name].items and not snapshot.record.stopping:
                    assert not own.has_ended
                    assert snapshot.nodes[name].busy == (own.stopped or own.next < own.total)

    @invariant()
    def ends_are_told(self):
        """A run whose end is not reported has a timer that rings for it; no other run has one."""
        timers = self.memory._database.timers
        for run_id in self.runs:
            record = self.memory.peek(run_id)
            assert (("callback", run_id, "") in timers) == bool(record.unreported)
            assert record.is_final or not record.unreported

    @invariant()
    def runs_are_equal(self):
        for run_id in self.runs:
            one, other = (
                store.read(run_id, messages=True) for store in (self.memory, self.redis)
            )
            assert replace(other, size=0) == one  # only Redis counts a run's bytes
            assert self.redis.peek(run_id) == one.record
            assert self.redis.events(run_id) == self.memory.events(run_id)
            assert self.redis.children(run_id) == self.memory.children(run_id)
            assert self.inside(run_id) == inside(self.memory._database.runs[run_id])

    def replays(self):
        """Yield the stored form of each run that can be replayed, its replay, and its nodes."""
        for run_id in self.runs:
            snapshot, graph = self.memory.read(run_id), self.shape_of(run_id)
            if snapshot.record.stopping:
                continue
            replayed = recovery.Replay(graph, recovery.history(snapshot)).records()
            nodes = {name: own for name, own in snapshot.nodes.items() if not map_of(name)}
            yield self.memory._database.runs[run_id], replayed, seen(nodes)

    @invariant()
    def a_replay_of_everything_gives_what_is_there(self):
        for run, replayed, nodes in self.replays():
            assert seen(replayed.nodes) == nodes
            assert {
                number: loop for number, loop in replayed.loops.items() if loop != LoopRecord()
            } == {number: loop for number, loop in run.loops.items() if loop != LoopRecord()}
            assert replayed.arrivals == run.arrived

    @invariant()
    def shapes_come_back(self):
        for shape in self.shapes:
            assert self.redis.topology(shape.graph_id, shape.fingerprint) == shape

    @invariant()
    def sessions_are_equal(self):
        for name in ("s0", "s1"):
            assert self.redis.session(name) == self.memory.session(name)

    @invariant()
    def indexes_are_equal(self):
        for status in (
            None,
            *FINAL,
            Status.EXECUTING,
            Status.INTERRUPTED,
            Status.NEEDS_MIGRATION,
        ):
            self.lists_are_equal("runs", RunQuery(status))
        for query in (
            RunQuery(graph="first"),
            RunQuery(tags={"t": "1"}),
            RunQuery(Status.COMPLETED, "first"),
        ):
            self.lists_are_equal("runs", query)
        questions = (
            InterruptQuery(),
            InterruptQuery(graph="first"),
            InterruptQuery(run="00run0"),
            InterruptQuery(name="x", assignee="ann"),
            InterruptQuery(until=self.clock.now - 5_000),
            InterruptQuery(closed=True),
        )
        for query in questions:
            self.lists_are_equal("open_interrupts", query)
        timers = {name: int(at) for name, at in self.zset("timers").items()}
        assert timers == {
            "|".join(timer): at for timer, at in self.memory._database.timers.items()
        }

    def lists_are_equal(self, name, query):
        """Read a listing in pages of two from both stores."""
        cursor = ""
        while cursor is not None:
            page = getattr(self.memory, name)(query, 2, cursor)
            assert getattr(self.redis, name)(query, 2, cursor) == page
            cursor = page.next

    @invariant()
    def limits_are_equal(self):
        places, now = self.memory._database.semaphores, self.clock.now
        names = {limit.name for limit in LIMITS}
        stored = (self.zset(f"rates:{name}").items() for name in names)
        rates = {key: at for keys in stored for key, at in keys if at > now}
        assert rates == {key: at for key, at in places.starts.items() if at > now}
        for kind, entries in (("h", places.holders), ("q", places.waiting)):
            for key, members in entries.items():
                expected = {
                    "|".join(member): at
                    for member, at in members.items()
                    if kind == "q" or at > now
                }
                stored = self.zset(f"limit:{kind}:{key}")
                assert {
                    name: at for name, at in stored.items() if kind == "q" or at > now
                } == expected

    @invariant()
    def limits_hold(self):
        """No limit has more executions than places; who has a place runs, or may begin before it lapses."""
        for key, members in self.memory._database.semaphores.holders.items():
            running = [member for member in members if self.status_of(member) is Status.RUNNING]
            most = next(
                limit.concurrency for limit in LIMITS if key.partition(":")[0] == limit.name
            )
            assert len(running) <= most
            assert all(members[member] == float("inf") for member in running)
            idle = [member for member in members if member not in running]
            for member in idle:
                assert self.status_of(member) is Status.READY
                assert members[member] < float("inf")
        for members in self.memory._database.semaphores.waiting.values():
            for member in members:
                assert self.status_of(member) is Status.READY
                assert ("node", *member) in self.memory._database.timers

    def status_of(self, member):
        return self.memory._database.runs[member[0]].nodes[member[1]].status

    def zset(self, key):
        members = self.server.zrange(f"runner:{{p00}}:{key}", 0, -1, withscores=True)
        return {name.decode(): at for name, at in members}

    @invariant()
    def counters_are_what_a_recount_gives(self):
        for run_id in self.runs:
            snapshot = self.memory.read(run_id)
            nodes = snapshot.nodes.values()
            waiting = [node for node in nodes if node.status is Status.WAITING]
            active = sum(node.status in ACTIVE for node in nodes) + sum(
                node.busy for node in waiting
            )
            idle = sum(not node.busy and not node.held for node in waiting)
            record = snapshot.record
            assert (record.active, record.waiting, record.held) == (
                active,
                idle,
                sum(node.held for node in nodes),
            )
            assert record.is_final == (
                not record.active and not record.waiting and not record.held
            )
            assert record.status is status_of(record)

    def inside(self, run_id):
        """Read what no caller sees: loops and arrivals."""
        loops, arrivals = {}, {}
        for field, value in self.server.hgetall(f"runner:{{p00}}:r:{run_id}").items():
            kind, _, rest = field.decode().partition(":")
            if kind == "l":
                loops[int(rest)] = encoding.load(value)
            elif kind.startswith("a") and rest:
                arrivals[int(kind[1:]), rest] = encoding.load(value)
        return loops, arrivals


def inside(run):
    """Write what no caller sees of a run in memory the way that Redis has it."""
    loops = {}
    for number, loop in run.loops.items():
        fields = {
            "round": loop.round,
            "settled": loop.settled,
            "asked": [list(pair) for pair in loop.asked],
            "taken": [list(pair) for pair in loop.taken],
        }
        loops[number] = {name: value for name, value in fields.items() if value}
    return loops, {place: list(astuple(arrivals)) for place, arrivals in run.arrived.items()}


def seen(nodes):
    """What a replay must reproduce of nodes: all of those that have ended, and the round of the others.

    A visit that was undone leaves a gap in the numbers, which only the next one's end will tell.
    """
    return {
        name: (record.status, record.visit, record.edges, record.stamp, record.via)
        if record.status in {Status.COMPLETED, Status.FAILED}
        else (record.status is Status.SKIPPED, record.stamp)
        for name, record in nodes.items()
        if name != AFTER_GRAPH and record.status is not Status.PENDING
    }


def comparable(value):
    """Make sequences lists and decode large values, so that only what is in them counts."""
    if isinstance(value, tuple):
        return [comparable(part) for part in value]
    if hasattr(value, "doorbells"):
        # In which order a store rings for several nodes at once is its own choice.
        bells = sorted(value.doorbells, key=lambda bell: (bell.run_id, bell.node, bell.visit))
        if isinstance(value, Reply):
            return replace(
                value, doorbells=bells, fired=list(value.fired), receipts=list(value.receipts)
            )
        return replace(
            value,
            doorbells=bells,
            task=codec.read(value.task),
            inputs=[(name, visit, codec.read(output)) for name, visit, output in value.inputs],
            answers=list(value.answers),
            messages=list(value.messages),
            child=value.child
            and replace(
                value.child,
                outputs={at: codec.read(output) for at, output in value.child.outputs.items()},
            ),
        )
    return value


def test_stores_agree(store_server):
    """Whatever requests the two stores get, in whatever order, they reply and store the same."""
    play(Agreement, EXAMPLES, steps=40, url=store_server.url)


INVARIANTS = (
    "maps_are_what_a_recount_gives",
    "runs_are_equal",
    "indexes_are_equal",
    "counters_are_what_a_recount_gives",
)


class Migrations(Agreement):
    """The machine, led to runs that wait, which it seldom meets by chance, and to their migration."""

    def work(self, data, steps):
        """Claim what is rung for, and end it, ask, hold it or expand a list."""
        for _ in range(steps):
            if not self.bells:
                return
            bell = self.bells.pop(0)
            claim = self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce()
            )
            if not isinstance(claim, Claim):
                continue
            if self.is_map(bell) and not (claim.map and claim.map.has_ended):
                self.both("expand", claim.token, None if claim.map else [1, 2, 3])
                continue
            ends = data.draw(
                st.sampled_from(["settle", "settle", "settle", "park", "park", "hold", "fail"])
            )
            bits = data.draw(st.integers(0, 511))
            if ends == "park":
                self.park(data, claim.token)
            elif ends == "hold":
                self.both("hold", claim.token)
            else:
                self.end(claim.token, bits, ends == "fail", None, ())

    def park(self, data, token):
        """Park a visit for one or two answers; it keeps something."""
        names = data.draw(st.sampled_from([["x"], ["x", "y"]]))
        lasts = data.draw(st.sampled_from([None, None, 20.0]))
        reminds = data.draw(st.sampled_from([{}, {"remind_every": 10}]))
        self.ask(data, "park", token, names, keeps=True, expires_in=lasts, **reminds)

    def answer_some(self, data):
        """Answer one of the open questions."""
        questions = list(self.both("open_interrupts"))
        if questions and data.draw(st.booleans()):
            self.both(
                "answer",
                [Decision(data.draw(st.sampled_from(questions)).id, 1, "ann")],
                self.nonce(),
            )

    def hold_all(self):
        """Hold what is rung for, as a worker does whose graph has changed."""
        while self.bells:
            bell = self.bells.pop(0)
            claim = self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce()
            )
            if isinstance(claim, Claim):
                self.both("hold", claim.token)

    def check(self):
        """Check all that must be true of the stores."""
        for name in INVARIANTS:
            getattr(self, name)()
        for run, replayed, nodes in self.replays():
            assert seen(replayed.nodes) == nodes
            assert replayed.arrivals == run.arrived


def test_moved_runs_are_the_same_in_both_stores(store_server):
    """Whatever the two shapes and the request are, the stores agree, and what is there fits the history."""
    kind = type("Machine", (Migrations,), {"url": store_server.url})
    counts = []

    @hypothesis.settings(max_examples=MIGRATIONS, deadline=None)
    @hypothesis.given(graphs("first"), graphs("first"), st.data())
    def migrate(first, later, data):
        machine = kind()
        try:
            machine.publish(first, first, later)
            machine.work(data, 12)
            for _ in range(3):
                machine.answer_some(data)
                machine.hold_all()
                count = machine.count
                machine.migrate(data, late=False)
                counts.append(machine.count - count)
                machine.check()
                machine.work(data, 6)
                machine.let_time_pass(
                    seconds=data.draw(st.sampled_from([0.7, 20])), limit=100, renews=False
                )
                machine.check()
        finally:
            machine.teardown()

    migrate()
    assert any(counts), "no run was moved, so nothing was shown"


class Progress(Migrations):
    """The machine, led to runs that go on: what happens to every node goes by plans in the Redis store."""

    def play(self, data, steps):
        """Claim what is rung for, mostly oldest first, end or park it, and compare after each step."""
        for _ in range(steps):
            if not self.bells:
                self.answer_some(data)
            if not self.bells:
                return
            last = len(self.bells) - 1
            bell = self.bells.pop(data.draw(st.sampled_from([0, 0, 0, min(1, last), last])))
            claim = self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce()
            )
            if isinstance(claim, Claim):
                self.go_on(data, bell, claim)
            for name in INVARIANTS:
                getattr(self, name)()

    def go_on(self, data, bell, claim):
        """Let a worker do with a claimed visit what it may."""
        if self.is_map(bell) and not (claim.map and claim.map.has_ended):
            self.both("expand", claim.token, None if claim.map else [1, 2, 3, 4])
            return
        ends = data.draw(
            st.sampled_from(
                ["settle"] * 9 + ["park", "ask", "fail", "claim", "cancel", "child"]
            )
        )
        if ends == "park":
            self.park(data, claim.token)
            return
        if ends == "child":
            # Of the same graph: what is remembered of its nodes serves runs inside others, too.
            run_id, graph = f"00run{len(self.runs)}", self.shapes[0]
            child = Start(run_id, graph.graph_id, graph.fingerprint, "t", parent=claim.token)
            if self.both("start", child).word == "started":
                self.runs.append(run_id)
            return
        if ends == "ask":
            self.ask(
                data, "ask", claim.token, ["x"], keeps=data.draw(st.booleans()), expires_in=None
            )
            self.answer_some(data)
        elif ends == "claim":
            self.both(
                "claim", bell.run_id, bell.node, bell.visit, bell.attempt, f"nonce{self.count}"
            )
        elif ends == "cancel":
            self.both("cancel", bell.run_id, "enough", self.nonce())
        bits = data.draw(st.sampled_from([511, 511, 511, 0]) | st.integers(0, 511))
        self.end(claim.token, bits, ends == "fail", None, ())
        if data.draw(SELDOM):
            self.repeat()


def test_runs_that_go_on_are_the_same_in_both_stores(store_server):
    """Whatever the graph, the common way through it leaves the same in both stores after each step."""
    kind = type("Machine", (Progress,), {"url": store_server.url})

    @hypothesis.settings(max_examples=MIGRATIONS, deadline=None)
    @hypothesis.given(graphs("first"), st.data())
    def go_on(first, data):
        machine = kind()
        try:
            machine.publish(first, first, first)
            machine.play(data, 30)
        finally:
            machine.teardown()

    go_on()
