"""Votes at the doors: what each door makes of a decision, and what is refused before anything is counted."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runner import Client, GraphBuilder, Status
from runner.approvals import (
    Action,
    Approval,
    Auth,
    Principal,
    Rule,
    SigningKey,
    operation_body,
    start_body,
    vote_body,
)
from runner.approvals.decision_keys import DecisionKeys
from runner.approvals.proofs import encoded, run_name
from runner.audit.checkpoint import public_bytes
from runner.celery.kombu_fixes import message_of
from runner.celery.messages import MessageHandler
from runner.definition.registry import Registry
from runner.errors import DefinitionError, ResponseError, UsageError
from runner.execution.engine import Engine
from runner.operations.message_handlers import (
    Disposition,
    HandlerResult,
    IncomingMessage,
    handle_answer,
    handle_start,
)
from runner.operations.questions import read_question, vote_for
from runner.operations.views import read_run
from runner.settings import Settings
from runner.store.memory.store import MemoryStore
from tests.graphs import Bench, single, wired

REFUND = Action("runner", "function", "refund", {"order": "7", "amount": "10"})

SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "amount": {"type": "string"}},
    "required": ["order", "amount"],
}

TEAM = Rule(eligible=["ana", "ben", "cid"], need=2)


class People:
    """A directory: a name is in the groups that stand before its dash."""

    def groups(self, principal):
        return principal.sub.split("-")[:-1]

    def roles(self, principal):
        return []


people = People()


class Strangers(People):
    """The directory of another service, which puts everybody into finance."""

    def groups(self, principal):
        return ["finance"]


strangers = Strangers()


class Asking:
    """A graph of one node that asks by a rule, and a client of its store."""

    def __init__(self, graph=None, *, store=MemoryStore, **options):
        self.approvals = []
        self.bench = Bench(graph or single(lambda ctx: self._ask(ctx, options)), store)
        self.bench.engine.directory = f"{__name__}:people"
        registry = self.bench.engine.registry
        self.client = Client(store=self.bench.store, dispatcher=self.bench, registry=registry)
        self.client.engine.directory = self.bench.engine.directory

    def _ask(self, ctx, options):
        self.approvals.append(ctx.interrupt("refund?", {"sum": 10}, **options))
        return "done"

    def start(self, **options):
        """Start a run; return the id of its question."""
        self.bench.run_id = self.bench.engine.start("bench", "task", **options)
        self.bench.finish()
        return self.question

    @property
    def question(self):
        (question,) = self.bench.result().interrupts
        return question.id

    @property
    def shown(self):
        """What a message says of the question: its id and its digest."""
        (question,) = self.bench.result().interrupts
        return {"interrupt_id": question.id, "digest": question.digest}

    def vote(self, who, decision="approve", **options):
        """Vote by the client, and name what became of it."""
        return str(self.client.vote(self.question, decision, by=who, **options).status)

    def finish(self):
        """Run on; return what the node's question returned."""
        self.bench.finish()
        return self.approvals[-1]


def signing(team, public):
    """Have a team know the door's key, at the time of this machine."""
    team.bench.clock.now = time.time_ns() // 1_000_000
    team.client.engine.decision_keys = team.bench.engine.decision_keys = DecisionKeys(public)
    return team


def begin(team, body):
    """Start the run of a message; return how it stands."""
    team.bench.run_id = handle_start(team.bench.engine, sent(body)).receipt.run_id or ""
    return team.bench.finish()


def asking(rule=TEAM, **options):
    """Start a run whose node asks whether to call something."""
    made = Asking(**{"rule": rule, "action": REFUND, "response_schema": SCHEMA, **options})
    made.start()
    return made


def sent(message, number=1):
    """Write a message as it comes from a stream."""
    return IncomingMessage(f"{number}-0", f"responses/{number}-0", json.dumps(message).encode())


def test_the_node_goes_on_with_what_the_votes_came_to():
    """`interrupt()` with a rule returns the decision, once as many have voted as the rule needs."""
    team = asking()

    assert [team.vote("ana"), team.vote("ben", comment="ok")] == ["counted", "accepted"]
    approval = team.finish()
    assert isinstance(approval, Approval)
    assert (approval.decision, approval.response, approval.approved) == ("approve", True, True)
    assert approval.action == REFUND.preimage()


def test_an_edit_is_the_whole_new_arguments():
    """An edit must fit the schema of the arguments; those who agree approve the same arguments."""
    team = asking()
    edit = {"order": "7", "amount": "5"}

    assert team.vote("ana", "edit", response={"amount": "5"}) == "rejected"
    assert team.vote("ana", "edit", response="5") == "rejected"
    assert team.vote("ana", "edit") == "rejected"
    assert [team.vote("ana", "edit", response=edit), team.vote("ben")] == ["counted", "counted"]
    assert team.vote("cid", response=edit) == "accepted"
    approval = team.finish()
    assert (approval.decision, approval.response) == ("edit", edit)


def test_a_rejection_is_a_decision():
    """A rejection does not raise: the node gets it, with what was said."""
    team = asking()

    assert team.vote("ana", "reject", response=True) == "rejected"
    assert team.vote("ana", "reject", comment="too much") == "accepted"
    approval = team.finish()
    assert (approval.decision, approval.approved, approval.response) == (
        "reject",
        False,
        {"rejected": "too much"},
    )


def test_votes_for_different_answers_do_not_add_up():
    """Where nothing is to be called, people respond, and equal responses count together."""
    team = asking(action=None, response_schema={"type": "integer"})

    words = [
        team.vote(who, "respond", response=number) for who, number in (("ana", 1), ("ben", 2))
    ]
    assert words == ["counted", "counted"]
    assert team.vote("cid", "respond", response="one") == "rejected"
    assert team.vote("cid", "edit", response=1) == "rejected"
    assert team.vote("cid", "approve") == "rejected"
    assert team.vote("cid", "respond", response=1) == "accepted"
    assert (team.finish().decision, team.finish().response) == ("respond", 1)


def test_a_vote_on_a_plain_question_is_its_answer():
    """Without a rule "approve" is true and "reject" is false, alone, once, by whom it is assigned to."""
    for decision, response, answer in (
        ("approve", None, True),
        ("reject", None, False),
        ("respond", 5, 5),
    ):
        plain = asking(rule=None, action=None, response_schema=None, assignees=["ana"])
        assert plain.vote("ben", decision, response=response) == "forbidden"
        assert plain.vote("ana", "edit", response=response) == "rejected"
        if response is None:
            refused = plain.client.vote(plain.question, decision, by="ana", response=1.5)
            assert refused.status == "rejected"
            assert f"{decision} with a response doesn't answer it" in refused.detail
        assert plain.vote("ana", decision, response=response) == "accepted"
        assert plain.finish() == answer


def test_an_answer_to_a_rule_is_a_vote():
    """What answers plain questions answers these, too: `respond` is a vote by the responder."""
    team = asking(Rule(eligible=["ana"]), action=None, response_schema=None)

    assert team.client.respond(team.question, "yes").status == "forbidden"
    assert team.client.respond(team.question, "yes", responder="ben").status == "forbidden"
    assert team.client.respond(team.question, "yes", responder="ana").status == "accepted"
    assert (team.finish().decision, team.finish().response) == ("respond", "yes")


def test_an_answer_never_takes_the_place_of_a_call():
    """A question that shows a call is decided: a plain answer by any door is refused, and says how."""
    team = asking(Rule(eligible=["ana"]))
    message = {"v": 1, **team.shown, "response": True, "responder": "ana"}
    block = {"interruptId": team.question, "response": True, "responder": "ana"}

    receipts = [
        handle_answer(team.bench.engine, sent(message)).receipt,
        team.client.respond(team.question, True, responder="ana"),
        *team.client.run(team.bench.run_id).respond([{"interruptResponse": block}]),
    ]

    assert {receipt and str(receipt.status) for receipt in receipts} == {"rejected"}
    assert all(
        "by approve, edit or reject" in receipt.detail for receipt in receipts if receipt
    )
    assert team.bench.store.votes(team.question) == []
    plain = asking(Rule(eligible=["ana"]), action=None, response_schema=None)
    assert plain.client.respond(plain.question, True, responder="ana").status == "accepted"


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "undone"),
    [
        ("tool", "the call is not made"),
        ("node", "the node does not run"),
        ("function", "the action is not approved"),
    ],
)
def test_an_answer_instead_of_a_call_says_so(kind, undone):
    """The decision `respond` has it in each receipt, and afterwards; control: an approval, an answer."""
    action = Action("runner", kind, "refund", REFUND.args)
    team = asking(Rule(eligible=["ana", "ben"], need=2), action=action)

    first = team.client.vote(team.question, "respond", by="ana", response="by hand")
    view = read_question(team.bench.store, team.client.interrupt(team.question))
    last = team.client.vote(team.question, "respond", by="ben", response="by hand")
    assert (first.status, last.status) == ("counted", "accepted")
    assert {first.detail, last.detail} == {f"for an answer instead: {undone}"}
    (decided,) = read_run(team.bench.store, team.bench.run_id).decided
    assert decided.sentence == f"answered by ana, ben, 2 of 2: {undone}"
    assert [variant.decision for variant in view.variants] == ["approve", "respond"]
    assert view.variants[1].changes == ()
    assert vote_for(view, view.variants[1].effect) == ("respond", "by hand")

    for other, decision in ((action, "approve"), (None, "respond")):
        team = asking(Rule(eligible=["ana"]), action=other, response_schema=None)
        response = "by hand" if decision == "respond" else None
        receipt = team.client.vote(team.question, decision, by="ana", response=response)
        (decided,) = read_run(team.bench.store, team.bench.run_id).decided
        assert (receipt.detail, decided.undone) == ("", "")


def test_a_repeated_answer_to_a_rule_gets_the_receipt_of_its_vote():
    """Also after it has decided: the receipt of version 1's message says how many votes there were."""
    team = asking(Rule(eligible=["ana", "ben"], need=2), action=None, response_schema=None)
    shown, receipts = team.shown, []
    for number, who in ((1, "ana"), (2, "ben"), (2, "ben")):
        body = {"v": 1, **shown, "response": "yes", "responder": who}
        receipts.append(handle_answer(team.bench.engine, sent(body, number)).receipt)

    assert [(receipt.status, receipt.have) for receipt in receipts] == [
        ("counted", 1),
        ("accepted", 2),
        ("accepted", 2),
    ]


def test_answers_of_strands_may_be_decisions():
    """An interruptResponse may have a decision and a comment; votes of a set are counted one by one."""
    two = Asking(
        wired(
            {
                name: lambda ctx: (
                    ctx.interrupt("ok?", rule=Rule(eligible=["ana"]), action=REFUND).decision
                )
                for name in ("a", "b")
            }
        ).build()
    )
    two.bench.run_id = two.bench.engine.start("bench", "task")
    two.bench.finish()
    first, second = two.bench.result().interrupts
    run = two.client.run(two.bench.run_id)
    block = {"responder": "ana", "decision": "approve"}

    receipts = run.respond(
        [
            {"interruptResponse": {"interruptId": first.id, **block}},
            {
                "interruptResponse": {
                    "interruptId": second.id,
                    **block,
                    "decision": "reject",
                    "comment": "no",
                }
            },
        ]
    )

    assert [str(receipt.status) for receipt in receipts] == ["accepted", "accepted"]
    two.bench.finish()
    assert {node: result.result for node, result in two.bench.result().results.items()} == {
        "a": "approve",
        "b": "reject",
    }
    with pytest.raises(ResponseError, match="decision"):
        run.respond(
            [{"interruptResponse": {"interruptId": first.id, "response": 1, "decision": 2}}]
        )


def test_a_graph_in_process_is_decided_by_votes():
    """A local graph waits until its rule is met: a vote that is only counted is no error."""
    graph = single(lambda ctx: ctx.interrupt("ok?", rule=TEAM, action=REFUND).decision)
    (question,) = graph("task").interrupts

    def vote(who):
        block = {"interruptId": question.id, "responder": who, "decision": "approve"}
        return graph([{"interruptResponse": block}])

    assert vote("ana").status == "interrupted"
    with pytest.raises(ResponseError, match="forbidden"):
        vote("eve")
    assert vote("ben").results["a"].result == "approve"


def test_messages_of_version_2_are_votes():
    """A message names its decision and who decides; a repeat of it gets its receipt again."""
    team = asking()
    message = {"v": 2, **team.shown, "decision": "approve", "by": "ana", "comment": "ok"}

    first = handle_answer(team.bench.engine, sent(message))
    again = handle_answer(team.bench.engine, sent(message))
    assert (first.receipt.status, first.receipt.have, first.receipt.need) == ("counted", 1, 2)
    assert json.loads(first.receipt.dump())["against"] == 0
    assert again == first
    last = handle_answer(team.bench.engine, sent({**message, "by": "human:|ben"}, 2))
    assert last.receipt.status == "accepted"
    assert team.bench.store.votes(message["interrupt_id"])[0]["body"] == message


def test_messages_of_version_1_are_votes_where_nobody_must_prove_anything():
    """The older message is a response by its responder; a rule that asks for identity forbids it."""
    message = {"v": 1, "response": "yes", "responder": "ana"}
    for level, status in ((0, "accepted"), (1, "forbidden")):
        team = asking(Rule(auth=Auth(level=level)), action=None, response_schema=None)
        verdict = handle_answer(team.bench.engine, sent({**message, **team.shown}))
        assert verdict.receipt.status == status


def test_a_message_without_a_digest_is_no_vote():
    """On a question with a rule it says not what was shown, so it is rejected; without a rule it counts."""
    for rule, status in ((TEAM, "rejected"), (None, "accepted")):
        team = asking(rule, action=None, response_schema=None)
        for message in (
            {"v": 2, "decision": "respond", "response": "yes", "by": "ana"},
            {"v": 1, "response": "yes", "responder": "ana"},
        )[rule is None :]:
            body = {**message, "interrupt_id": team.question}
            receipt = handle_answer(team.bench.engine, sent(body)).receipt
            assert (receipt.status, "digest" in receipt.detail) == (status, rule is not None)


@pytest.mark.parametrize(
    "change", [{"by": ""}, {"by": "a|b"}, {"decision": "maybe"}, {"response_": 1}, {"v": 3}]
)
def test_malformed_votes_are_dead(change):
    """A message that is no vote is not applied to anything."""
    team = asking()
    message = {
        "v": 2,
        "interrupt_id": team.question,
        "decision": "approve",
        "by": "ana",
        **change,
    }

    assert handle_answer(team.bench.engine, sent(message)).disposition is Disposition.DEAD


def test_who_asked_for_a_run_does_not_decide_it():
    """The requester comes with the start, by engine or message; child runs have the same."""
    rule = Rule(exclude=["requester"])
    inner = single(lambda ctx: ctx.interrupt("ok?", rule=rule, action=REFUND).decision)
    nested = Asking(wired({"inner": inner}).build())
    message = {"v": 2, "graph": "bench", "task": "task", "requester": "human:https://login|ana"}
    (question,) = begin(nested, message).interrupts

    assert question.requester == "human:https://login|ana"
    ana = Principal("ana", "https://login", name="Ana")
    assert nested.client.vote(question.id, "approve", by=ana).status == "forbidden"
    assert nested.client.vote(question.id, "approve", by="ana").status == "forbidden"
    assert nested.client.vote(question.id, "approve", by="ben").status == "accepted"

    plain = Asking(rule=rule, action=REFUND)
    plain.start(requester={"principal": "human:|ana"})
    assert [plain.vote("ana"), plain.vote("ben")] == ["forbidden", "accepted"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lookup", "isn't a node of it; .* '../lookup'"),
        ("../look_up", "isn't a node of a graph around it"),
        ("inner", "asks nothing"),
    ],
)
@pytest.mark.parametrize("static", [True, False])
def test_an_exclusion_that_excludes_nobody_is_refused(name, words, static):
    """A typo, or a node that asks nothing itself, is refused when the graph is built, starts or asks."""
    rule = Rule(exclude=[f"answered:{name}"])

    def pay(ctx):
        if not static:
            ctx.interrupt("pay?", rule=rule, action=REFUND)

    builder = wired({"look_up": lambda ctx: 1, "inner": single(lambda ctx: 1)}, "look_up inner")
    builder.add_node(pay, "pay", approval=rule if static else None)
    builder.add_edge("inner", "pay")
    if static and not name.startswith("../"):
        with pytest.raises(DefinitionError, match=words):
            builder.build()
        return
    bench = Bench(builder.build())
    if static:  # what is around this graph is known once it is started
        with pytest.raises(DefinitionError, match=words):
            bench.start()
    else:
        assert re.search(words, str(bench.start().finish().results["pay"].result))


def test_who_answered_a_node_of_the_graph_around_does_not_decide():
    """A rule in a nested graph may name a node outside of it, also one that both graphs have."""
    rule = Rule(exclude=["answered:../look"], need=2)
    asks = {"pay": lambda ctx: ctx.interrupt("pay?", rule=rule, action=REFUND).decision}
    inner = wired({"look": lambda ctx: 1, **asks}, "look pay").build()
    graph = wired(
        {"look": lambda ctx: ctx.interrupt("seen?"), "inner": inner}, "look inner"
    ).build()
    team = Asking(graph)
    team.start()
    team.client.respond(team.question, "yes", responder="ana")
    team.bench.finish()
    assert [team.vote(who) for who in ("ana", "ben", "cid")] == [
        "forbidden",
        "counted",
        "accepted",
    ]
    assert team.bench.finish().status is Status.COMPLETED


def test_who_answered_another_node_does_not_decide():
    """Four eyes: a rule excludes those who answered a node before, with a rule or without."""
    rule = Rule(exclude=["answered:look", "answered:check"])
    graph = wired(
        {
            "look": lambda ctx: ctx.interrupt("seen?"),
            "check": lambda ctx: ctx.interrupt("fine?", rule=Rule(need=2)).decision,
            "pay": lambda ctx: ctx.interrupt("pay?", rule=rule, action=REFUND).decision,
        },
        "look check",
        "check pay",
    ).build()
    team = Asking(graph)
    team.start()
    team.client.respond(team.question, "yes", responder="ana")
    team.bench.finish()
    assert [team.vote("ben"), team.vote("cid")] == ["counted", "accepted"]
    team.bench.finish()

    logins = [f"human:https://idp|{name}" for name in ("ana", "ben")]
    words = [team.vote(who) for who in ("ana", "ben", "cid", *logins, "dan")]
    assert words == ["forbidden"] * 5 + ["accepted"]


@pytest.mark.parametrize("how", ["edit", "withdraw_vote"])
def test_whose_vote_no_longer_counts_votes_again(how):
    """Also if the rule excludes the asking node: that is for its other questions."""
    team = asking(Rule(["ana", "ben"], 2, exclude=["answered:a"]))
    assert team.vote("ana") == "counted"
    options = {}
    if how == "edit":
        options = {"response": {"order": "7", "amount": "6"}}
        assert team.vote("ben", "edit", **options) == "counted"
    else:
        team.client.withdraw_vote(team.question, by="ana")
        assert team.vote("ben") == "counted"
    assert team.vote("ana", **options) == "accepted"


SINCE = Rule(["ana", "ben", "cid"], 2, veto=2, exclude=["answered:look"], delegate="anyone")


def at_once(pay, *edges):
    """Start a run in which `look` asks while others do; return it, and how to vote on `pay?`."""
    nodes = {
        "look": lambda ctx: ctx.interrupt("seen?"),
        "ask": lambda ctx: ctx.interrupt("pay?", rule=SINCE, action={"amount": 10}).decision,
        **pay,
    }
    team = Asking(wired(nodes, *edges).build())
    team.bench.start()
    while team.bench.bells:
        team.bench.deliver()
    ids = {each.name: each.id for each in team.bench.result().interrupts}

    def decide(who, decision="approve"):
        if decision == "look":
            return str(team.client.respond(ids["seen?"], "yes", responder=who).status)
        if decision == "lend":
            to = Principal("eve")
            return str(team.client.delegate(ids["pay?"], to=to, by=who).status)
        more = {"response": {"amount": 5}} if decision == "edit" else {}
        return str(team.client.vote(ids["pay?"], decision, by=who, **more).status)

    return team.bench, decide


@pytest.mark.parametrize(
    ("said", "is_held"),
    [
        ("ana ana:look ben", True),
        ("ana human:https://idp|ana:look ben", True),
        ("ana:edit ana:look ben:edit", True),
        ("ana:lend eve ana:look ben", True),
        ("ana cid:look ben", False),
        ("ana ana:look ben:edit cid:edit", False),
        ("ana:reject ana:look ben cid", False),
        ("ana:reject ana:look ben:reject", False),
    ],
)
def test_the_vote_of_somebody_who_answered_the_other_node_since_does_not_count(said, is_held):
    """Two nodes ask at once: the effect is held if it rests on a person who by now has answered both."""
    bench, decide = at_once({})
    for each in said.split():
        who, _, decision = each.rpartition(":")
        words = decide(who, decision) if who else decide(each)
        assert words in {"counted", "accepted"}
    result = bench.finish()
    (node,) = [node for node in read_run(bench.store, bench.run_id).nodes if node.id == "ask"]
    assert (result.status is Status.COMPLETED, "who answered 'look'" in str(node.error)) == (
        not is_held,
        is_held,
    )


def test_who_answers_between_the_decision_and_the_effect_has_not_decided_it():
    """A node after the one that asked: its use of the decision is the effect."""
    paid = []

    def pay(ctx):
        paid.append(ctx.approved("pay?", rule=SINCE).decision)

    for answered_by in ("cid", "ana"):
        bench, decide = at_once({"pay": pay}, "ask pay")
        assert [decide("ana"), decide("ben")] == ["counted", "accepted"]
        bench.deliver("ask")
        assert decide(answered_by, "look") == "accepted"
        bench.finish()
    assert paid == ["approve"]


def test_an_answer_after_the_effect_has_begun_holds_nothing():
    """The node asks once more after it has paid: it goes on, whoever has answered the other one since."""

    def pay(ctx):
        decision = ctx.interrupt("pay?", rule=SINCE, action={"amount": 10}).decision
        return ctx.interrupt("sent?") and decision

    bench, decide = at_once({"ask": pay})
    assert [decide("ana"), decide("ben")] == ["counted", "accepted"]
    bench.deliver("ask")
    assert decide("ana", "look") == "accepted"
    bench.answer()
    assert bench.finish().results["ask"].output == "approve"


@pytest.mark.parametrize(
    "options",
    [
        {"rule": "two"},
        {"rule": TEAM, "assignees": ["ana"]},
        {"rule": TEAM, "risk": "some"},
        {"risk": "high"},
        {"action": REFUND},
    ],
)
def test_options_of_a_rule_are_checked_where_it_asks(options):
    """What can't be a rule, or needs one, fails the node with the reason."""
    bench = Bench(single(lambda ctx: ctx.interrupt("ok?", **options)))
    bench.start()
    bench.finish()
    failed = bench.result().results["a"]
    assert isinstance(failed.result, UsageError)


def test_a_rule_that_nobody_can_judge_fails_the_node():
    """One that excludes a requester who is not known asks nothing, and says why; so does a calendar."""
    for rule, why in (
        (Rule(exclude=["requester"]), "requester="),
        (Rule(calendar="office"), "add_calendar"),
    ):
        team = Asking(rule=rule, action=REFUND)
        team.bench.run_id = team.bench.engine.start("bench", "task")
        team.bench.finish()

        result = team.bench.result()
        assert not result.interrupts
        assert why in str(result.results["a"].result)


DOOR = SigningKey("door", Ed25519PrivateKey.from_private_bytes(b"d" * 32))


@pytest.fixture
def public(tmp_path):
    """Write the public half of the door's key; return the file."""
    entry = {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": encoded(public_bytes(DOOR.key.public_key())),
        "kid": "door",
    }
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{**entry, "level": 1}]}))
    return str(path)


def operation(team, body, number=1):
    """Send what somebody does to a question as a message; name what became of it."""
    verdict = handle_answer(team.bench.engine, sent(body, number))
    return str(verdict.receipt.status) if verdict.receipt else verdict.disposition


def test_messages_may_do_what_people_do_besides_voting():
    """A claim, a comment, a delegation and a vote taken back come by queues, too; a repeat does nothing."""
    team = asking(replace(TEAM, delegate="anyone"))
    body = {"v": 2, "interrupt_id": team.question, "by": "ana"}

    assert team.vote("ben") == "counted"
    words = [
        operation(team, {**body, "operation": "comment", "comment": "why?"}),
        operation(team, {**body, "operation": "comment", "comment": "why?"}),
        operation(team, {**body, "operation": "claim", "ttl": 60}, 2),
        operation(team, {**body, "operation": "release", "reply_to": "runner:replies:1"}, 3),
        operation(team, {**body, "operation": "withdraw_vote", "by": "ben"}, 4),
        operation(team, {**body, "operation": "delegate", "to": "eve"}, 5),
        operation(team, {**body, "operation": "release", "by": "cid"}, 6),
    ]

    assert words == ["accepted"] * 4 + ["withdrawn_vote", "accepted", "forbidden"]
    events = team.bench.store.events(team.bench.run_id)
    assert [event.kind for event in events].count("interrupt.commented") == 1
    assert [team.vote("eve"), team.vote("ben")] == ["counted", "accepted"]


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "eat"},
        {"ttl": 0},
        {"ttl": None},
        {"ttl": True},
        {"operation": "comment"},
        {"operation": "delegate"},
        {"decision": "approve"},
    ],
)
def test_malformed_operations_are_dead(change):
    """A message that asks for nothing that can be done is not applied."""
    team = asking()
    body = {
        "v": 2,
        "interrupt_id": team.question,
        "by": "ana",
        "operation": "claim",
        "ttl": 60,
        **change,
    }

    assert operation(team, body) == "dead"


def test_a_rule_that_asks_for_identity_takes_signed_operations_alone(public):
    """Whatever is done above level 0 is signed and counts once; what is not leaves its trace."""
    team = asking(Rule(eligible=["ana", "ben"], need=2, delegate="anyone", auth=Auth(level=1)))
    signing(team, public)
    question, digest = team.question, team.client.interrupt(team.question).digest
    operations = {
        "claim": {"ttl": 60.0},
        "comment": {"comment": "why?"},
        "release": {},
        "withdraw_vote": {},
    }

    def vote(who):
        return DOOR.sign(vote_body(question, "approve", who, digest=digest))

    first = vote("ana")
    assert operation(team, first) == "counted"
    words = []
    for number, (kind, more) in enumerate([*operations.items(), ("delegate", {"to": "eve"})]):
        body = operation_body(question, kind, "ana", **more)
        signed = DOOR.sign(body)
        sends = body, {**signed, "comment": "other"}, signed, signed
        words.append(
            [operation(team, send, 10 * number + place) for place, send in enumerate(sends, 2)]
        )
    assert [refused for refused, *_ in words] == ["forbidden"] * 5
    assert [changed for _, changed, *_ in words] == ["forbidden"] * 5
    assert [[done, again] for *_, done, again in words] == [
        *[["accepted"] * 2] * 3,
        ["withdrawn_vote"] * 2,
        ["accepted"] * 2,
    ]
    assert operation(team, first, 90) == "duplicate"  # it was taken back, and counts no more
    events = team.bench.store.events(team.bench.run_id)
    refused = [event.data["decision"] for event in events if event.kind == "interrupt.refused"]
    assert refused == [kind for kind in [*operations, "delegate"] for _ in range(2)]
    assert [
        operation(team, vote(who), 91 + place) for place, who in enumerate(("eve", "ben"))
    ] == [
        "counted",
        "accepted",
    ]


FOUR_EYES = Rule(exclude=["requester"])


def test_a_bot_and_for_whom_it_asks_do_not_decide():
    """Both are excluded, by client and by message; question, run and audit name both."""
    team = asking_for(on_behalf_of=["ana"])
    run = team.client.run(team.bench.run_id)

    question = team.client.interrupt(team.question)
    assert (question.requester, question.on_behalf_of) == ("service:|bot", ["human:|ana"])
    assert "ana for whom that was" in read_question(team.bench.store, question).rule_words
    view = read_run(team.bench.store, run.id)
    assert (view.requester, view.on_behalf_of) == ("service:|bot", ("human:|ana",))
    assert [team.vote(who) for who in ("service:|bot", "ana", "ben")] == [
        "forbidden",
        "forbidden",
        "accepted",
    ]
    message = {
        "v": 2,
        "graph": "bench",
        "task": 1,
        "requester": "service:|bot",
        "on_behalf_of": ["eve"],
    }
    started = handle_start(team.bench.engine, sent(message))
    assert team.bench.store.requester(started.receipt.run_id or "") == {
        "principal": "service:|bot",
        "on_behalf_of": ["human:|eve"],
    }


def asking_for(*, store=MemoryStore, **options):
    """Start a run by a bot, whose node asks with four eyes."""
    team = Asking(store=store, rule=FOUR_EYES, action=REFUND)
    team.bench.run_id = team.client.start(
        "bench", "task", requester="service:|bot", **options
    ).id
    team.bench.finish()
    return team


@pytest.mark.full
@pytest.mark.parametrize("made", ["fork", "again"])
def test_who_makes_a_run_from_another_asks_for_it_too(made, in_redis):
    """Four eyes hold in forks: of the one who forks, and of all who asked for the run before."""
    team = asking_for(store=in_redis, on_behalf_of=["ana"])
    source = team.client.run(team.bench.run_id)

    for by, people in (
        ("ben", {"principal": "human:|ben", "on_behalf_of": ["service:|bot", "human:|ana"]}),
        ("ana", {"principal": "human:|ana", "on_behalf_of": ["service:|bot"]}),
    ):
        run = source.fork("a", by=by) if made == "fork" else source.again(by=by)
        team.bench.run_id = run.id
        team.bench.finish()
        assert team.bench.store.requester(run.id) == people
        assert team.client.interrupt(team.question).on_behalf_of == people["on_behalf_of"]
        excluded = [people["principal"], *people["on_behalf_of"]]
        assert [team.vote(who) for who in [*excluded, "cid"]] == ["forbidden"] * len(
            excluded
        ) + ["accepted"]
    team.bench.run_id = (source.fork("a") if made == "fork" else source.again()).id
    assert "with by=" in str(team.bench.finish().results["a"].result)
    if made == "fork":
        assert (
            team.client.start("bench", "task").fork("a").id
        )  # nobody is known: none is made up


@pytest.mark.full
@pytest.mark.parametrize("made", ["fork", "again"])
def test_a_run_made_by_no_one_known_is_refused_where_rules_exclude_who_asks(made, in_redis):
    """The first requester does not stand for who makes another run; a graph without such a rule takes it."""

    def make(rule, **options):
        builder = GraphBuilder()
        builder.add_node(lambda ctx: 1, "pay", approval=rule)
        team = Asking(builder.build(), store=in_redis)
        run = team.client.start("bench", "task", requester="ana")
        team.bench.run_id = run.id
        team.bench.finish()
        return (run.fork("pay", **options) if made == "fork" else run.again(**options)).id

    with pytest.raises(UsageError, match="nothing was started: pass requester, or by"):
        make(FOUR_EYES)
    assert make(FOUR_EYES, by="ben")
    assert make(Rule())


@pytest.mark.full
@pytest.mark.parametrize(
    ("requester", "rule", "voter", "issuer", "status"),
    [
        # The line of approvals.md: a bot asks for a person, whose login has an issuer.
        ("service:https://chat|bot", {}, "human:https://idp|ana", "", "forbidden"),
        ("service:https://chat|bot", {}, "human:https://idp|ana", "https://idp", "forbidden"),
        ("service:https://chat|bot", {}, "human:https://else|ana", "https://idp", "accepted"),
        ("service:https://chat|bot", {}, "human:https://idp|ben", "", "accepted"),
        ("human:https://idp|eve", {}, "eve", "", "forbidden"),
        ("human:https://idp|eve", {}, "human:https://else|eve", "", "accepted"),
        ("zoe", {"exclude": ["eve"]}, "human:https://idp|eve", "", "forbidden"),
        ("zoe", {"exclude": ["eve"]}, "human:https://idp|ben", "", "accepted"),
        (
            "zoe",
            {"stages": [Rule(exclude=["requester"], auth=Auth(level=1))], "exclude": []},
            "human:https://idp|zoe",
            "",
            "forbidden",
        ),
    ],
)
def test_four_eyes_hold_for_names_without_an_issuer(  # noqa: PLR0917 - pytest passes them by name
    public, requester, rule, voter, issuer, status
):
    """Who is named without an issuer does not decide by a login of that name; what is accepted runs."""
    options = {"exclude": ["requester"], "auth": Auth(level=1), **rule}
    team = Asking(rule=Rule(**options), action=REFUND)
    signing(team, public).bench.engine.plain_issuer = issuer
    begin(team, DOOR.sign(start_body("bench", "task", requester, on_behalf_of=["ana"])))
    shown = team.shown
    vote = DOOR.sign(vote_body(shown["interrupt_id"], "approve", voter, digest=shown["digest"]))
    delegation = operation_body(shown["interrupt_id"], "delegate", voter, to="human:|dan")

    assert operation(team, vote, 2) == status
    if status == "forbidden":
        assert operation(team, DOOR.sign(delegation), 3) == "forbidden"
        assert team.bench.result().interrupts
    else:
        assert team.finish().approved


def test_who_stands_in_for_another_is_no_one_excluded(public):
    """A vote that was delegated to who asked for the run, by another spelling of the name, is refused."""
    rule = Rule(exclude=["requester"], delegate="anyone", auth=Auth(level=1))
    team = Asking(rule=rule, action=REFUND)
    begin(signing(team, public), DOOR.sign(start_body("bench", "task", "ana")))
    shown = team.shown

    for number, (name, status) in enumerate([("ana", "forbidden"), ("cid", "accepted")]):
        to = f"human:https://idp|{name}"
        lent = operation_body(shown["interrupt_id"], "delegate", "ben", to=to)
        vote = vote_body(shown["interrupt_id"], "approve", to, digest=shown["digest"])
        assert operation(team, DOOR.sign(lent), 2 * number + 2) == status
        assert operation(team, DOOR.sign(vote), 2 * number + 3) == status
    assert team.finish().approved


@pytest.mark.parametrize("level", [1, 2])
def test_who_asked_is_known_as_surely_as_who_decides(public, level):
    """A start that was signed at a lower level than the rule's can't be asked about; the control can."""
    rule = Rule(exclude=["requester"], auth=Auth(level=level))
    team = Asking(rule=rule, action=REFUND)
    result = begin(signing(team, public), DOOR.sign(start_body("bench", "task", "human:|ana")))
    assert len(result.interrupts) == (level == 1)
    assert ("proven at level 1" in str(result.results["a"].result)) is (level == 2)


def test_a_signed_start_is_one_run(public):
    """Its id follows from the signature, so a message that comes twice starts it once, by whatever door."""
    team = Asking(rule=FOUR_EYES, action=REFUND)
    signing(team, public)
    message = DOOR.sign(start_body("bench", "task", "human:|ana"))

    ids = []
    for number in (1, 2):
        receipt = handle_start(team.bench.engine, sent(message, number)).receipt
        ids.append(receipt.run_id)
    assert ids == ["00" + run_name(message)] * 2
    other = handle_start(
        team.bench.engine, sent(DOOR.sign(start_body("bench", "task", "human:|ana")), 3)
    ).receipt
    assert other.run_id not in ids
    forged = handle_start(team.bench.engine, sent({**message, "requester": "human:|ben"}, 4))
    assert forged.disposition is Disposition.DEAD


def test_a_level_of_0_needs_no_keys(monkeypatch):
    """A door that signs, and knows no public key, votes and starts as one that does not sign."""
    monkeypatch.setattr(Engine, "signing_key", DOOR)
    for level, words in (0, ["counted", "forbidden", "accepted"]), (1, ["forbidden"] * 3):
        team = Asking(
            rule=Rule(need=2, exclude=["requester"], auth=Auth(level=level)), action=REFUND
        )
        team.client.engine.decision_keys = DecisionKeys("")
        team.bench.run_id = team.client.start("bench", "task", requester="ana").id
        team.bench.finish()
        asked = team.client.interrupt(team.question)

        assert [team.vote(who, digest=asked.digest) for who in ("ben", "ana", "cid")] == words
        assert all("proof" not in vote["body"] for vote in team.bench.store.votes(asked.id))


@pytest.mark.parametrize("door", ["client", "message"])
def test_a_door_says_when_it_has_shown_the_question(door):
    """A service of one's own states it with the vote, signed where it signs; the run's events have it."""
    asked = asking()
    if door == "client":
        asked.vote("ana", shown_at=1_700_000_000_000)
    else:
        body = vote_body(asked.question, "approve", "ana", shown_at=1_700_000_000_000)
        body["digest"] = asked.shown["digest"]
        handle_answer(asked.bench.engine, sent(body))
    asked.vote("ben")

    voted = [
        event.data
        for event in asked.client.run(asked.bench.run_id).events()
        if event.kind == "interrupt.voted"
    ]
    assert [data.get("shown_at") for data in voted] == [1_700_000_000_000, None]


@pytest.mark.parametrize("kind", ["vote", "operation"])
def test_a_service_judges_votes_on_its_own_questions_alone(kind):
    """A worker without the graph leaves a message to one that has it, whose directory knows the people."""
    team = asking(Rule(eligible=["group:finance"]))
    body = {"v": 2, **team.shown, "decision": "approve", "by": "eve"}
    if kind == "operation":
        body = operation_body(team.question, "claim", "human:|eve", ttl=60)
    other = Engine(team.bench.store, team.bench, Registry())
    other.directory = f"{__name__}:strangers"
    settings = Settings(redis_url="redis://unused")

    left = MessageHandler(other, settings, "test").answer(sent(body), None)
    assert left == HandlerResult(Disposition.LEFT)
    result = MessageHandler(team.bench.engine, settings, "test").answer(sent(body), None)
    assert result.receipt.status == "forbidden"
    other.registry.add(
        "bench", lambda: single(lambda ctx: None)
    )  # the control: it has the graph
    result = MessageHandler(other, settings, "test").answer(sent(body, 2), None)
    assert result.receipt.status == "accepted"


@pytest.mark.parametrize("has_graph", [False, True])
def test_a_signed_vote_is_left_to_a_service_with_its_key(public, has_graph):
    """A worker of another service has other keys: it leaves the vote; control: with the graph it refuses."""
    team = asking(Rule(auth=Auth(level=1)))
    signing(team, public)
    signed = DOOR.sign(
        vote_body(team.question, "approve", "ana", digest=str(team.shown["digest"]))
    )
    other, settings = (
        Engine(team.bench.store, team.bench, Registry()),
        Settings(redis_url="redis://unused"),
    )
    if has_graph:
        other.registry.add("bench", lambda: single(lambda ctx: None))

    left = MessageHandler(other, settings, "test").answer(sent(signed), None)
    taken = MessageHandler(team.bench.engine, settings, "test").answer(sent(signed, 2), None)
    words = [result and result.receipt and result.receipt.status for result in (left, taken)]
    assert words == (["forbidden", "accepted"] if has_graph else [None, "accepted"])


def test_a_plain_answer_is_applied_by_any_service():
    """The control: without a rule nobody is judged, and no worker needs the graph."""
    bench = Bench(single(lambda ctx: ctx.interrupt("go?"))).start()
    (question,) = bench.finish().interrupts
    other = Engine(bench.store, bench, Registry())
    message = {"v": 1, "interrupt_id": question.id, "response": "yes"}
    result = handle_answer(other, sent(message))
    assert result.receipt.status == "accepted"


@pytest.mark.full
def test_what_is_signed_comes_through_a_celery_task_as_it_was_signed(public):
    """The task adds nothing to it; delivered twice it counts once, and a change on the way is refused."""
    team = asking(Rule(need=2, auth=Auth(level=1)))
    signing(team, public)
    digest = team.client.interrupt(team.question).digest
    signed = DOOR.sign(vote_body(team.question, "approve", "ana", digest=digest))

    def by_task(body, number):
        text = message_of("runner.respond", f"task {number}", (), body)
        verdict = handle_answer(
            team.bench.engine, IncomingMessage(f"{number}-0", f"responses/{number}-0", text)
        )
        return verdict.receipt.status

    words = [by_task({**signed, "by": "human:|ben"}, 1), by_task(signed, 2), by_task(signed, 3)]
    assert words == ["forbidden", "counted", "counted"]
    (vote,) = team.bench.store.votes(team.question)
    assert vote["body"] == signed
