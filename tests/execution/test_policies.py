"""A rule for some calls: a function of the call's arguments says who approves it, and is asked twice."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import Agent, GraphBuilder, Status, tool
from runner.approvals import Auth, Principal, Rule
from runner.approvals.policies import CallContext, wants_no_more
from runner.approvals.rules import Tally, Vote, Voter, VoterFacts, cast
from runner.authoring import lint
from runner.definition.registry import compile_graph
from runner.errors import ApprovalMismatch, DefinitionError
from runner.hooks import BeforeToolCallEvent
from runner.records.messages import start_body
from runner.testing import ScriptedModel
from tests.agent.visits import use
from tests.execution import test_effects
from tests.execution.test_effects import DOOR, LOGIN, SIGNED, vote
from tests.execution.test_forged_writes import Shop
from tests.graphs import wired

keys = test_effects.keys

payments: list[tuple] = []


@pytest.fixture(autouse=True)
def nothing_paid():
    """No call was made before the test."""
    payments.clear()


def refund_by(approval):
    """Make a tool of this approval."""

    @tool(approval=approval)
    def refund(order: str, amount: Decimal) -> str:
        """Pay back."""
        payments.append((order, amount))
        return f"paid {amount}"

    return refund


def graph_of(approval, *calls, hooks=()):
    """Build an agent that makes these calls, at the same time, and then ends."""
    uses = [use("refund", f"t{n}") for n, _ in enumerate(calls)]
    for each, (order, amount) in zip(uses, calls, strict=True):
        each["toolUse"]["input"] = {"order": order, "amount": amount}
    builder = GraphBuilder()
    agent = Agent("clerk", ScriptedModel([uses, "done"]), [refund_by(approval)], hooks=hooks)
    builder.add_node(agent, "pay")
    return builder.build()


def above_500(args):
    """Ask two people above 500, one above 100, nobody below."""
    if args["amount"] > 500:
        return Rule(need=2, because="the amount is above 500")
    return Rule(because="the amount is above 100") if args["amount"] > 100 else None


def test_a_rule_may_be_for_some_calls_only(run_graph):
    """Of three calls one needs nobody, one a person, one two: each question says why it was asked."""
    run = run_graph(graph_of(above_500, ("1", 50), ("2", 200), ("3", "900.50")), "go")
    assert payments == [("1", Decimal(50))]
    one, two = sorted(run.interrupts, key=lambda each: each.action["args"]["order"])
    assert [each.rule["need"] for each in (one, two)] == [1, 2]
    assert two.rule["because"] == "the amount is above 500"
    assert two.rule["policy"]["name"].endswith(":above_500")
    assert two.rule["policy"]["hash"].startswith("sha256:")
    assert two.action["args"] == {"order": "3", "amount": "900.50"}
    vote(run, "ana", question=one.id)
    assert (vote(run, "ana", question=two.id), len(payments)) == ("counted", 1)
    assert vote(run, "ben", question=two.id) == "accepted"
    assert run.status is Status.COMPLETED
    assert sorted(payments) == [("1", 50), ("2", 200), ("3", Decimal("900.50"))]


@pytest.mark.parametrize(("signs", "level"), [(True, 2), (False, 0)])
def test_a_policy_is_told_of_the_call(redis_url, keys, signs, level):
    """It sees the tool, the graph, the tags, and the requester, with the level at which that is proven."""
    told = []

    def policy(args, call: CallContext):
        who = call.requester
        told.append((call.tool, call.node_id, call.graph, who.key, who.level, dict(call.tags)))

    shop = Shop(redis_url, policy, signed=True)
    shop.till.model.__init__(shop.till.replies)
    body = start_body("till", "refund 1042", f"human:{LOGIN}|ana", tags={"tenant": "acme"})
    body = DOOR.sign(body, login={"level": 2}) if signs else body
    asked = {"principal": f"human:{LOGIN}|ana", **({"body": body} if signs else {})}
    shop.engine.start("till", "refund 1042", requester=asked, tags={"tenant": "acme"})
    shop.go_on()
    assert len(shop.till.paid) == 1
    assert told == [("refund", "pay", "till", f"human:{LOGIN}|ana", level, {"tenant": "acme"})]


def test_an_edit_that_needs_more_people_asks_them(run_graph):
    """The policy is asked again for the arguments of the edit: one person can't raise 200 to 900 alone."""
    run = run_graph(graph_of(above_500, ("1", 200)), "go")
    more = {"order": "1", "amount": "900"}
    assert vote(run, "ana", "edit", more) == "accepted"
    (again,) = run.interrupts
    assert (payments, again.rule["need"], again.action["args"]) == ([], 2, more)
    assert vote(run, "ana", question=again.id) == "counted"
    assert vote(run, "ben", question=again.id) == "accepted"
    assert payments == [("1", Decimal(900))]


def test_an_edit_that_needs_no_more_runs(run_graph):
    """The control: the same edit downwards is made by who has made it."""
    run = run_graph(graph_of(above_500, ("1", 400)), "go")
    assert vote(run, "ana", "edit", {"order": "1", "amount": "150"}) == "accepted"
    assert payments == [("1", Decimal(150))]


class Changing:
    """A policy whose answer changes after the question was asked."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)

    def __call__(self, args):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("then", [Rule(need=2), ValueError("no limits known")])
def test_a_policy_that_wants_more_before_the_effect_asks_again(run_graph, then):
    """So does one that raises then: the call is not made by what was given before."""
    run = run_graph(graph_of(Changing(Rule(), then), ("1", 200)), "go")
    (asked,) = run.interrupts
    assert vote(run, "ana") == "accepted"
    (again,) = run.interrupts
    assert payments == []
    assert again.id != asked.id
    assert again.action == asked.action
    assert (again.rule["need"] == 2) or "ValueError" in again.rule["because"]


def test_a_rule_that_escalates_is_met_by_its_own_votes(run_graph):
    """A policy returns it anew before the effect, with selectors as they were written."""
    run = run_graph(
        graph_of(lambda args: Rule(escalate=[(60, ["group:lead", "eva"])]), ("1", 200)), "go"
    )
    assert vote(run, "ana") == "accepted"
    assert (run.status, len(payments)) == (Status.COMPLETED, 1)


@pytest.mark.full
@pytest.mark.parametrize(
    "then", [None, Rule(), Rule(eligible=["anyone"], because="other words")]
)
def test_a_policy_that_wants_no_more_lets_the_call_begin(run_graph, then):
    """The control."""
    run = run_graph(graph_of(Changing(Rule(), then), ("1", 200)), "go")
    assert vote(run, "ana") == "accepted"
    assert (run.status, len(payments)) == (Status.COMPLETED, 1)


@pytest.mark.full
@pytest.mark.parametrize("calm", [None, Rule()])
def test_a_rejection_of_the_stricter_question_holds(run_graph, calm):
    """Though the policy wants less by then."""
    run = run_graph(graph_of(Changing(Rule(), Rule(need=2), calm), ("1", 200)), "go")
    vote(run, "ana")
    (again,) = run.interrupts
    vote(run, "ana", "reject", question=again.id, comment="no")
    assert (run.status, payments) == (Status.COMPLETED, [])


@pytest.mark.full
@pytest.mark.parametrize("broken", [ValueError("no limits known"), "yes", 1])
def test_a_policy_that_fails_at_first_fails_the_node(run_graph, broken):
    """Nobody is asked, and nothing is paid."""
    run = run_graph(graph_of(Changing(broken), ("1", 200)), "go")
    assert (run.status, payments, run.interrupts) == (Status.FAILED, [], [])


@pytest.mark.parametrize("exclude", [[], ["answered:pay"]])
def test_signed_votes_hold_by_the_rule_of_a_policy(run_graph, keys, exclude):
    """Two people by signed votes; one of them is not enough, even if the rule excludes the node itself."""
    rule = replace(SIGNED, exclude=exclude)
    policy = lambda args: rule if args["amount"] > 500 else None  # noqa: E731 - as users write it
    run = run_graph(graph_of(policy, ("1", 900)), "go")
    assert vote(run, "ana", signed=True, keys=keys) == "counted"
    assert payments == []
    assert vote(run, "ben", signed=True, keys=keys) == "accepted"
    assert payments == [("1", Decimal(900))]


@pytest.mark.parametrize("excluded", ["requester", "answered:first", "answered:../first"])
def test_no_question_is_asked_that_too_few_may_decide(run_graph, excluded):
    """Ana has asked for the run, or answered before: a rule that needs both fails the node, and says why."""

    def status(need):
        rule = Rule(eligible=["ana", "ben"], need=need, exclude=[excluded])
        nodes = {
            "first": lambda ctx: ctx.interrupt("go?"),
            "pay": lambda ctx: ctx.interrupt("pay?", rule=rule).decision,
        }
        if ".." in excluded:
            nodes["pay"] = wired({"inner": nodes["pay"]}).build()
        run = run_graph(wired(nodes, "first pay").build(), requester="ana")
        return run.answer("yes", responder="ana")

    assert "those who may decide weigh 1 together; ana: who " in str(
        status(2).results["pay"].result
    )
    assert status(1).status == "interrupted"


def test_an_approval_is_not_lost_by_what_was_answered_since(run_graph):
    """Whether enough people are left is checked when a question is asked, not when its node goes on."""
    rule = Rule(eligible=["ana", "ben"], exclude=["answered:pay"])

    def pay(ctx):
        ctx.interrupt("first?")
        return ctx.interrupt("second?", rule=rule).decision

    run = run_graph(wired({"pay": pay}).build())
    run.answer("yes", responder="ana")
    assert run.vote("approve", by="ben").status == "accepted"
    assert run.result.results["pay"].output == "approve"


def test_a_node_may_have_a_policy(run_graph):
    """It sees the task and the inputs; what needs nobody runs at once."""
    ran = []

    def graph():
        builder = GraphBuilder()
        policy = lambda args: Rule() if args["task"] > 500 else None  # noqa: E731 - as users write it
        builder.add_node(lambda ctx: ran.append(ctx.task), "pay", approval=policy)
        return builder.build()

    assert run_graph(graph(), 100).status is Status.COMPLETED
    run = run_graph(graph(), 900)
    assert (ran, run.status) == ([100], Status.INTERRUPTED)
    assert "edit" not in run.interrupts[0].rule["decisions"]
    vote(run, "ana")
    assert (ran, run.status) == ([100, 900], Status.COMPLETED)


@pytest.mark.parametrize(
    "approval",
    [dict, lambda a, b, c: Rule(), "finance", int, 5, Rule(title="{amuont} back")],
)
def test_an_approval_that_can_not_be_used_is_refused_where_it_is_declared(approval):
    """With the tool's name."""
    with pytest.raises(DefinitionError, match="refund"):
        refund_by(approval)


async def _async_policy(args):
    return None


def test_an_async_policy_is_refused():
    """It would never be awaited, and a coroutine is not None."""
    with pytest.raises(DefinitionError, match="async"):
        refund_by(_async_policy)


@pytest.mark.parametrize(
    ("policy", "codes"),
    [(above_500, []), (lambda args: Rule() if args["amuont"] > 5 else None, ["policy-fails"])],
)
def test_graphs_check_runs_policies_on_the_examples_of_the_schema(policy, codes):
    """One that fails for them is a warning."""
    problems = lint.check(compile_graph(graph_of(policy, ("1", 5)).definition))
    assert [problem.code for problem in problems] == codes


# Hooks that ask by a rule.


class Asking:
    """A hook that asks by a rule, and does what was decided."""

    def __init__(self, *, obeys: bool = True, rule: Rule | None = None) -> None:
        self.obeys, self.rule = obeys, rule or Rule()

    def register_hooks(self, registry, **_) -> None:
        registry.add_callback(BeforeToolCallEvent, self.before)

    def before(self, event) -> None:
        approval = event.interrupt("large refund", rule=self.rule)
        if not self.obeys:
            return
        if approval.decision == "edit":
            event.tool_use = {**event.tool_use, "input": approval.response}
        elif not approval.approved:
            event.cancel_tool = "it was not approved"


class Raising:
    """A later hook that changes the amount once it was approved."""

    def __init__(self) -> None:
        self.fired = 0

    def register_hooks(self, registry, **_) -> None:
        registry.add_callback(BeforeToolCallEvent, self.before, order=5)

    def before(self, event) -> None:
        self.fired += 1
        if self.fired > 1:
            event.tool_use = {**event.tool_use, "input": {"order": "1", "amount": 99_999}}


def test_the_question_of_a_hook_is_bound_to_its_call(run_graph):
    """It shows the exact call, and what another hook makes of that later is not made: the node is held."""
    run = run_graph(graph_of(None, ("1", 900), hooks=[Asking(), Raising()]), "go")
    assert run.interrupts[0].action["args"] == {"order": "1", "amount": "900"}
    assert vote(run, "ana") == "accepted"
    assert payments == []
    assert isinstance(run.result.results["pay"].result, ApprovalMismatch)


@pytest.mark.full
@pytest.mark.parametrize(
    ("decision", "response", "paid"),
    [
        ("approve", None, [("1", Decimal(900))]),
        ("edit", {"order": "1", "amount": "20"}, [("1", Decimal(20))]),
        ("reject", None, []),
        ("respond", "paid by mail", []),
    ],
)
@pytest.mark.parametrize("obeys", [True, False])
def test_the_call_is_what_was_decided_on_the_question_of_a_hook(
    run_graph, decision, response, paid, obeys
):
    """Also where the hook does nothing about it: then an edit is held, and a rejected call is not made."""
    run = run_graph(graph_of(None, ("1", 900), hooks=[Asking(obeys=obeys)]), "go")
    assert vote(run, "ana", decision, response) == "accepted"
    assert payments == ([] if decision == "edit" and not obeys else paid)


def test_nobody_is_asked_by_a_hook_about_a_call_that_does_not_fit(run_graph):
    """The model reads why, and the agent goes on."""
    run = run_graph(graph_of(None, ("1", "much"), hooks=[Asking()]), "go")
    assert (run.status, run.interrupts, payments) == (Status.COMPLETED, [], [])


# A decision by one rule satisfies another: never with less.

RULES = st.builds(
    Rule,
    eligible=st.lists(
        st.sampled_from(["group:a", "group:b", "anyone", "user:ana"]), min_size=1, max_size=2
    ).map(lambda each: [*each, "group:c"]),
    need=st.integers(1, 3),
    exclude=st.lists(st.sampled_from(["group:b", "requester"]), max_size=2),
    agents=st.booleans(),
    auth=st.builds(Auth, level=st.integers(0, 2), max_age=st.sampled_from([None, 60, 600])),
    weights=st.sampled_from([{}, {"group:a": 2}]),
    escalate=st.sampled_from([[], [(60, ["lead"])]]),
    veto=st.sampled_from([None, 1, 2]),
    decisions=st.sampled_from(
        [("approve", "reject"), ("approve", "edit", "reject", "respond")]
    ),
)
VOTERS = st.builds(
    Voter,
    st.builds(
        Principal,
        st.sampled_from(["ana", "ben", "eva"]),
        kind=st.sampled_from(["human", "agent"]),
    ),
    groups=st.frozensets(st.sampled_from(["a", "b", "c"])),
    level=st.integers(0, 2),
    login_age=st.sampled_from([None, 30, 300]),
)


def _comes_to(rule: Rule, voters) -> str:
    """Return the decision of these voters, in their order, and after how many of them."""
    tally, seen = Tally(), {}
    for voter, decision in voters:
        facts = VoterFacts(
            requesters=["human:|eva"], original="E", voted_in=seen.get(voter.principal.key)
        )
        effect = "" if decision == "reject" else "E"
        count, taken = cast(
            rule, tally, voter, Vote(voter.principal.key, decision, effect), facts
        )
        if count.word in {"counted", "accepted"}:
            seen[taken.principal] = count.tally.round
        tally = count.tally
        if count.word == "accepted":
            return count.decision
    return ""


@pytest.mark.full
@given(
    RULES,
    RULES,
    st.lists(st.tuples(VOTERS, st.sampled_from(["approve", "reject"])), max_size=5),
)
def test_a_rule_that_wants_no_more_is_met_by_the_same_votes(new, given_, voters):
    """What approves by the rule that was given approves by the new one, where that wants no more."""
    if wants_no_more(new, given_) and _comes_to(given_, voters) == "approve":
        assert _comes_to(new, voters) == "approve"


@given(RULES)
def test_a_rule_wants_no_more_than_itself(rule):
    """Nor with another reason or title; one that needs more does want more."""
    assert wants_no_more(rule, replace(rule, because="other", policy={"name": "f", "hash": ""}))
    assert wants_no_more(rule, Rule.thawed(rule.frozen()))
    assert not wants_no_more(replace(rule, need=rule.need + 1), rule)
