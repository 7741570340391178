"""The gate where the calls of frameworks begin: rules for some calls, and documents that somebody wrote over.

An intruder copies what another run of the agent has stored, in which the call was approved without a rule,
into the run whose call two people must approve by signed votes, and changes numbers in it. The control is the
same at level 0.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from runner import GraphBuilder, Status
from runner.approvals import Auth, Rule
from runner.errors import DefinitionError
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from tests.execution import test_forged_writes
from tests.execution.test_effects import vote
from tests.execution.test_forged_writes import WRITES, Shop
from tests.integrations.extras import need

need("agents", "openai-agents")
need("langchain", "langgraph")
need("pydantic_ai", "pydantic-ai")
need("strands", "strands")

import agents  # noqa: E402 - only where the extras are installed
import pydantic_ai  # noqa: E402 - as above
import strands  # noqa: E402 - as above
from langchain.agents import create_agent  # noqa: E402 - as above
from langchain.agents.middleware import HumanInTheLoopMiddleware  # noqa: E402 - as above
from langchain_core.tools import StructuredTool  # noqa: E402 - as above

from runner.integrations.langgraph import LangGraphNode  # noqa: E402 - as above
from runner.integrations.pydantic_ai import PydanticAIAgent  # noqa: E402 - as above
from runner.integrations.strands import StrandsAgent  # noqa: E402 - as above
from tests.integrations import (  # noqa: E402 - as above
    langgraph_graphs,
    openai_sdk_agents,
    pydantic_agents,
    strands_agents,
)

pytestmark = pytest.mark.full

keys = test_forged_writes.keys

AMOUNT = 12_345
"""The amount of the call: a number that nothing else in a document is."""


class Tills:
    """Agents of each framework with a tool that pays; `begins` is called as a payment begins."""

    def __init__(self):
        self.paid = []
        self.begins = lambda: None

    def refund(self):
        def refund(order: str, amount: int) -> str:
            """Pay a refund."""
            self.begins()
            self.paid.append((order, amount))
            return f"paid {amount}"

        return refund

    def batched(self, approval, *amounts, mode="batched"):
        calls = [
            langgraph_graphs.call("refund", f"c{n}", order="7", amount=amount)
            for n, amount in enumerate(amounts)
        ]
        replies = [langgraph_graphs.reply(*calls), langgraph_graphs.reply(content="done")]

        def compiled(checkpointer):
            return create_agent(
                langgraph_graphs.Model(replies=replies),
                [StructuredTool.from_function(self.refund())],
                middleware=[HumanInTheLoopMiddleware({"refund": True}, interrupt_mode=mode)],
                checkpointer=checkpointer,
            )

        return LangGraphNode(compiled, approval=approval, name="pay")

    def per_call(self, approval, *amounts):
        return self.batched(approval, *amounts, mode="per_call")

    def openai(self, approval, *amounts, needs_approval=True):
        calls = [
            openai_sdk_agents.call("refund", f"c{n}", order="7", amount=amount)
            for n, amount in enumerate(amounts)
        ]

        def factory():
            tool = agents.function_tool(self.refund(), needs_approval=needs_approval)
            return openai_sdk_agents.agent(calls, openai_sdk_agents.results, tools=[tool])

        return openai_sdk_agents.node(factory=factory, approval=approval)

    def pydantic(self, approval, *amounts):
        calls = [
            pydantic_agents.call("refund", f"c{n}", order="7", amount=amount)
            for n, amount in enumerate(amounts)
        ]

        def factory():
            built = pydantic_ai.Agent(
                pydantic_agents.scripted(calls, pydantic_agents.results),
                output_type=[str, pydantic_ai.DeferredToolRequests],
            )
            built.tool_plain(self.refund(), requires_approval=not callable(approval))
            return built

        return PydanticAIAgent(factory, approval=approval, name="pay")

    def strands(self, approval, *amounts):
        calls = [
            strands_agents.use("refund", f"c{n}", order="7", amount=amount)
            for n, amount in enumerate(amounts)
        ]
        return StrandsAgent(
            lambda: strands_agents.agent(calls, "done", tools=[strands.tool(self.refund())]),
            approval=approval,
            name="pay",
        )


FRAMEWORKS = ["batched", "per_call", "openai", "pydantic", "strands"]

framework = pytest.mark.parametrize("framework", FRAMEWORKS)


def graph_of(node):
    builder = GraphBuilder()
    builder.add_node(node, "pay")
    return builder.build()


def above_500(args):
    """Ask two people above 5,000, one above 500, nobody below."""
    if args["amount"] > 5_000:
        return Rule(need=2, because="the amount is above 5,000")
    return Rule() if args["amount"] > 500 else None


@framework
def test_a_rule_may_be_for_some_calls_only(run_graph, framework):
    """Of two calls one needs nobody, and of the other the question says why it was asked."""
    tills = Tills()
    run = run_graph(graph_of(getattr(tills, framework)(above_500, 50, 9_000)), "go")
    (question,) = run.interrupts
    assert question.action["args"] == {"order": "7", "amount": 9_000}
    assert question.rule["because"] == "the amount is above 5,000"
    assert question.rule["policy"]["name"].endswith("above_500")
    assert ("7", 9_000) not in tills.paid
    assert vote(run, "ana") == "counted"
    assert vote(run, "ben") == "accepted"
    assert (run.status, sorted(tills.paid)) == (Status.COMPLETED, [("7", 50), ("7", 9_000)])


@framework
@pytest.mark.parametrize("named", [{"refund": Rule()}, {"refund": above_500}])
def test_rules_may_be_by_the_name_of_a_tool(run_graph, framework, named):
    """Each approved call is made once, a rejected one is not, and the agent goes on."""
    tills = Tills()
    run = run_graph(graph_of(getattr(tills, framework)(named, 600, 700)), "go")
    first, second = sorted(run.interrupts, key=lambda each: each.action["args"]["amount"])
    vote(run, "ana", question=first.id)
    vote(run, "ana", "reject", question=second.id, comment="not this one")
    assert (run.status, tills.paid) == (Status.COMPLETED, [("7", 600)])


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "openai"])
def test_an_edit_is_what_runs_and_one_that_needs_more_people_asks_them(run_graph, framework):
    """The policy is asked again for the arguments of the edit; the SDK of OpenAI takes no edits."""
    tills = Tills()
    run = run_graph(graph_of(getattr(tills, framework)(above_500, 600)), "go")
    more = {"order": "7", "amount": 9_000}
    assert vote(run, "ana", "edit", more) == "accepted"
    (again,) = run.interrupts
    assert (tills.paid, again.action["args"], again.rule["need"]) == ([], more, 2)
    less = {"order": "7", "amount": 700}
    assert vote(run, "ana", "edit", less, question=again.id) == "counted"
    assert vote(run, "ben", "approve", less, question=again.id) == "accepted"
    assert (run.status, tills.paid) == (Status.COMPLETED, [("7", 700)])


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "openai"])
def test_an_edit_that_more_people_approve_is_what_runs(run_graph, framework):
    """And not the call as it was proposed, though the last decision is no edit."""
    tills = Tills()
    run = run_graph(graph_of(getattr(tills, framework)(above_500, 600)), "go")
    vote(run, "ana", "edit", {"order": "7", "amount": 9_000})
    (again,) = run.interrupts
    vote(run, "ana", question=again.id)
    assert vote(run, "ben", question=again.id) == "accepted"
    assert (run.status, tills.paid) == (Status.COMPLETED, [("7", 9_000)])


def test_a_policy_that_the_middleware_does_not_ask_holds_the_node(run_graph):
    """A call that needs approval, of a tool that LangChain's middleware lets through, is not made."""
    tills = Tills()

    def compiled(checkpointer):
        replies = [
            langgraph_graphs.reply(
                langgraph_graphs.call("refund", "c0", order="7", amount=600)
            ),
            langgraph_graphs.reply(content="done"),
        ]
        return create_agent(
            langgraph_graphs.Model(replies=replies),
            [StructuredTool.from_function(tills.refund())],
            checkpointer=checkpointer,
        )

    run = run_graph(graph_of(LangGraphNode(compiled, approval=above_500, name="pay")), "go")
    assert (run.status, tills.paid) == (Status.NEEDS_MIGRATION, [])


@pytest.mark.parametrize("approval", [{"refnud": Rule()}, Rule()])
def test_a_rule_that_the_middleware_does_not_ask_by_is_refused(run_graph, approval):
    """A name that it does not have, and a tool about which it asks only sometimes."""
    tills = Tills()

    def compiled(checkpointer):
        config = {"allowed_decisions": ["approve"], "when": lambda request: False}
        return create_agent(
            langgraph_graphs.Model(replies=[langgraph_graphs.reply(content="done")]),
            [StructuredTool.from_function(tills.refund())],
            middleware=[HumanInTheLoopMiddleware({"refund": config})],
            checkpointer=checkpointer,
        )

    run = run_graph(graph_of(LangGraphNode(compiled, approval=approval, name="pay")), "go")
    assert isinstance(run.result.results["pay"].result, DefinitionError)


# Whoever writes to Redis.


class FrameworkShop(Shop):
    """A shop whose clerk is an agent of a framework, and a twin of it without a rule."""

    def __init__(self, url, framework, rule):
        self.tills = Tills()
        super().__init__(url, rule or Rule(), signed=rule is not None)
        make = getattr(self.tills, framework)
        self.twin = graph_of(
            make({"refund": Rule()} if framework == "strands" else None, AMOUNT)
        )
        self.till.graph = graph_of(make(rule or Rule(), AMOUNT))
        self.engine.registry.add("twin", lambda: self.twin)

    def begin(self, graph="till"):
        """Start a run, without running it."""
        return self.engine.start(graph, "refund 7")

    def question(self, run_id):
        """Return the question of a run that waits."""
        return self.store.read(run_id).interrupts[0].id

    def stored(self, run_id):
        """Return what is stored of the agent: the fields of the run and of its messages."""
        found = []
        for key in self.keys_of(run_id):
            fields = self.raw.hgetall(key)
            if key.endswith(b":m"):
                found += [("m", name, value) for name, value in fields.items()]
            else:
                found += [
                    ("r", name, value) for name, value in fields.items() if name == b"k:pay"
                ]
        return found

    def keys_of(self, run_id):
        """Return the hashes of a run and of its messages."""
        found = [*self.raw.scan_iter(f"*:r:{run_id}"), *self.raw.scan_iter(f"*:r:{run_id}:m")]
        return [key for key in found if self.raw.type(key) == b"hash"]

    def of_the_twin(self):
        """Return what the twin stores: as it waits, and as its approved call begins."""
        found = []
        run_id = self.begin("twin")
        self.go_on()
        found.append(self.stored(run_id))
        self.tills.begins = lambda: found.append(self.stored(run_id))
        question = self.store.read(run_id).interrupts[0]
        rule = question.rule is not None
        kind = (question.response_schema or {}).get("anyOf", [{}])[0]
        answer = (
            {"type": "approve"}
            if "properties" in kind and "type" in kind["properties"]
            else True
        )
        decision = {"decision": "approve"} if rule else {}
        apply_decisions(
            self.engine,
            [
                Decision(
                    question.id,
                    None if rule else answer,
                    "eve",
                    digest=question.digest,
                    **decision,
                )
            ],
        )
        self.go_on()
        self.tills.begins = lambda: None
        assert self.tills.paid == [("7", AMOUNT)], "the twin pays without the rule"
        self.tills.paid.clear()
        return found

    def write(self, run_id, documents, chance):
        """Write over what a run has stored, with another amount or the same."""
        key = next(
            each for each in self.raw.scan_iter(f"*:r:{run_id}") if not each.endswith(b":m")
        )
        amount = chance.choice([str(AMOUNT), "99999", "1"]).encode()
        for kind, name, value in documents:
            if kind == "r" and name != b"k:pay":
                continue
            other = value.replace(str(AMOUNT).encode(), amount)
            self.raw.hset(key + (b":m" if kind == "m" else b""), name, other)


MOMENTS = ("first", "asked", "voted", "decided")


def tried(shop, copies, chance):
    """Write something in the life of one question; return what both have approved, and the payments."""
    shop.tills.paid.clear()
    moment, approves = chance.choice(MOMENTS), chance.random() < 0.7
    run_id = shop.begin()
    if moment != "first" or chance.random() < 0.3:
        shop.go_on()
    documents = chance.choice([*copies, shop.stored(run_id)])

    def at(now):
        if moment == now:
            shop.write(run_id, documents, chance)

    at("first")
    shop.go_on()
    at("asked")
    asked = []
    with suppress(Exception):  # a damaged question
        asked = [(each.id, each.action["args"]) for each in shop.store.read(run_id).interrupts]
    with suppress(Exception):
        shop.vote(asked[0][0], "ana")
    at("voted")
    approved = []
    if approves and asked:
        # What they were shown: a call that was written over before anyone was asked is another call.
        approved = [(asked[0][1]["order"], asked[0][1]["amount"])]
        with suppress(Exception):
            shop.vote(asked[0][0], "ben")
    at("decided")
    for _ in range(2):
        shop.go_on()
        shop.engine.sweep()
    shop.go_on()
    return approved, list(shop.tills.paid)


@framework
@pytest.mark.parametrize(
    ("count", "level"),
    [(2, 2), *(pytest.param(WRITES, level, marks=pytest.mark.slow) for level in (2, 3))],
)
def test_no_document_that_was_written_over_has_an_effect(
    redis_url, keys, count, level, framework
):
    """The call is made as two people approved it, once, or not at all."""
    rule = Rule(eligible=["group:finance"], need=2, auth=Auth(level=level))
    shop, chance = FrameworkShop(redis_url, framework, rule), random.Random(level)  # noqa: S311 - to repeat
    copies = shop.of_the_twin()
    for number in range(count):
        approved, paid = tried(shop, copies, chance)
        assert paid in ([], approved), f"change {number}: {paid}, approved {approved}"


@framework
def test_the_approved_call_is_made(redis_url, keys, framework):
    """One control: nobody writes, and two people have it made."""
    rule = Rule(eligible=["group:finance"], need=2, auth=Auth(level=2))
    shop = FrameworkShop(redis_url, framework, rule)
    run_id = shop.begin()
    shop.go_on()
    question = shop.question(run_id)
    for name in ("ana", "ben"):
        shop.vote(question, name)
    shop.go_on()
    assert shop.tills.paid == [("7", AMOUNT)]


@framework
def test_without_the_gate_documents_have_effects(redis_url, framework, monkeypatch):
    """The other control: where the gate lets each call begin, some document that was written over pays."""
    shop, chance = FrameworkShop(redis_url, framework, None), random.Random(3)  # noqa: S311 - to repeat
    copies = shop.of_the_twin()
    monkeypatch.setattr("runner.integrations.framework.CallGate.begin", lambda *_: None)
    outcomes = (tried(shop, copies, chance) for _ in range(60))
    assert any(paid not in ([], approved) for approved, paid in outcomes)
