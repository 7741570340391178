"""Budgets of agents: checked before each call, across nodes and runs, raised by people, kept over crashes."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from decimal import Decimal

import pytest

from runner import Agent, Budget, Price, Status, tool
from runner.agent.budgets import SCHEMA
from runner.agent.models.scripted import ScriptedModel
from runner.approvals import Rule
from runner.errors import BudgetExceeded, DefinitionError
from runner.hooks import BeforeModelCallEvent, BeforeToolCallEvent
from runner.records.budgets import Sum, sums
from runner.records.validation import mismatch
from runner.store.memory.store import MemoryStore
from tests.agent.visits import Hooks, Killed, Node, done, failed, use
from tests.graphs import wired

PRICE = Price(input=3, output=15, cache_read=0.3, calls={"note": 0.01})


class Shop:
    """An agent whose calls are counted where they really happen."""

    def __init__(self, *replies, usage=None, **options):
        self.models, self.tools, self.options = 0, 0, options
        self.replies, self.usage = replies or ("done",), usage
        shop = self

        @tool
        def note(word: str = "x") -> str:
            """Note a word."""
            shop.tools += 1
            return word

        self.note = note

    def agent(self, **options):
        def counted(reply):
            def say(messages):
                del messages
                self.models += 1
                return reply

            return say

        model = ScriptedModel([counted(reply) for reply in self.replies], usage=self.usage)
        return Agent(
            **{
                "name": "writer",
                "model": model,
                "tools": [self.note],
                **self.options,
                **options,
            }
        )

    def node(self, **options):
        return Node(lambda: self.agent(**options))


def run_sums(node):
    """What the node's run has spent."""
    return sums(node.sums[None])


def looping(*budgets, times=9, **options):
    """An agent that calls its tool in each of so many turns; a turn has 15 tokens."""
    return Shop(*([use("note")] * times), "done", budgets=budgets, **options)


@pytest.mark.full
@pytest.mark.parametrize(
    ("budget", "models", "tools"),
    [
        (Budget(model_calls=3), 3, 3),
        (Budget(tool_calls=3), 4, 3),
        (Budget(tokens=45), 3, 3),
        (Budget(tokens=46), 4, 4),
        (Budget(cost=0.03), 3, 2),
        (Budget(per="run", model_calls=3), 3, 3),
        (Budget(per="run", tool_calls=3), 4, 3),
        (Budget(per="run", tokens=45), 3, 3),
        (Budget(per="run", cost=0.03), 3, 2),
        (Budget(per="tag:team", tool_calls=3), 4, 3),
        (Budget(per="tag:other", tool_calls=3), 10, 9),
    ],
)
def test_a_call_over_a_budget_is_not_made(budget, models, tools):
    """The node fails with the budget's words; calls up to the limit were made, and none after it."""
    shop = looping(budget, price=PRICE)
    node = shop.node()
    node.tags = {"team": "red"}
    outcome = node.run()

    assert (shop.models, shop.tools) == (models, tools)
    if budget.per == "tag:other":
        done(outcome)
    else:
        assert failed(outcome).error.name == "BudgetExceeded"
        assert "the budget of agent 'writer' per" in failed(outcome).error.message


def test_without_a_budget_nothing_is_stopped_asked_or_counted():
    """The control: the same agent makes all its calls, makes no request for it, its usage is as before."""
    shop = looping()
    node = shop.node()

    assert done(node.run()).usage == {
        "inputTokens": 100,
        "outputTokens": 50,
        "totalTokens": 150,
    }
    assert (shop.models, shop.tools, node.spendings) == (10, 9, [])


def test_an_invocations_budget_needs_no_store():
    """It is counted in the agent's own state."""
    node = looping(Budget(model_calls=3)).node()
    failed(node.run())

    assert node.spendings == []


def test_usage_counts_calls_and_costs():
    """In millionths, with tools at their price; a reply costs what its kinds of tokens cost, rounded up."""
    usage = {
        "inputTokens": 100,
        "outputTokens": 10,
        "totalTokens": 110,
        "cacheReadInputTokens": 5,
    }
    shop = Shop(use("note"), "done", usage=usage, price=PRICE)
    spent = done(shop.node().run()).usage

    assert (spent["modelCalls"], spent["toolCalls"]) == (2, 1)
    assert spent["costMicros"] == 2 * (300 + 150 + 2) + 10_000
    assert spent["totalTokens"] == 220


@pytest.mark.parametrize("per", ["invocation", "run"])
def test_usage_below_0_gives_nothing_back(per):
    """A provider that counts a reply as less than nothing raises no budget; the control counts what it is."""
    for tokens, spent in ((-1_000, 0), (15, 15)):
        usage = {"inputTokens": tokens, "outputTokens": 0, "totalTokens": tokens}
        node = Shop(usage=usage, budgets=[Budget(per=per, tokens=100)], price=PRICE).node()
        assert done(node.run()).usage["totalTokens"] == spent


@pytest.mark.full
@pytest.mark.parametrize("per", ["invocation", "run"])
@pytest.mark.parametrize("total", [{}, {"totalTokens": 0}, {"totalTokens": 65}])
def test_a_reply_without_a_total_counts_its_input_and_output(per, total):
    """Not all providers send the total: a budget of tokens counts as if they did, as the last one does."""
    usage = {"inputTokens": 60, "outputTokens": 5, **total}
    budgets = [Budget(per=per, tokens=100)]
    shop = Shop(
        *[[use("note", f"t{n}")] for n in range(3)], "done", usage=usage, budgets=budgets
    )

    assert "130 tokens are spent" in str(shop.node().run())
    assert shop.models == 2


@pytest.mark.parametrize(("amount", "fits"), [(1e9, True), (1e9 + 1, False), (1e300, False)])
def test_a_raise_has_a_bound(amount, fits):
    """A number that a sum can't hold is refused when it is answered, not when it is counted."""
    assert (mismatch(SCHEMA, {"raise_by": amount}) == "") is fits


def test_a_person_raises_a_budget_and_the_agent_goes_on():
    """The question says what is spent; the raise holds for the invocation; over it, another is asked."""
    shop = looping(Budget(model_calls=2, over="ask", assignees=["ana"]), times=5)
    node = shop.node()
    node.run()
    [question] = node.open
    assert (question.name, question.assignees) == (
        "budget.writer.invocation.model_calls",
        ["ana"],
    )
    assert question.reason == {
        "budget": "invocation",
        "agent": "writer",
        "counter": "model_calls",
        "spent": 2,
        "limit": 2,
    }
    node.answer(question.name, {"raise_by": 2})
    node.run()
    assert shop.models == 4
    [again] = node.open
    assert (again.name, again.reason["limit"]) == ("budget.writer.invocation.model_calls#2", 4)
    node.answer(again.name, {"raise_by": 100})

    done(node.run())
    assert (shop.models, shop.tools) == (6, 5)


@pytest.mark.full
@pytest.mark.parametrize("per", ["invocation", "run", "tag:team"])
def test_a_person_stops(per):
    """Then the node fails, and says that somebody decided so."""
    shop = looping(Budget(per=per, tool_calls=2, over="ask"))
    node = shop.node()
    node.tags = {"team": "red"}
    node.run()
    [question] = node.open
    outcome = node.resume(**{question.name: "stop"})

    assert "it was decided to stop" in failed(outcome).error.message
    assert shop.tools == 2


def test_a_raise_of_a_run_counts_once_however_often_it_is_read():
    """It is in the store under its question, so a crash after the answer doesn't double it."""
    shop = looping(Budget(per="run", tokens=30, over="ask"), times=5)
    node = shop.node()
    node.run()
    [question] = node.open
    node.answer(question.name, {"raise_by": 30})
    node.kill_after = 0
    with pytest.raises(Killed):
        node.run()
    node.kill_after = None
    node.run()

    assert run_sums(node)["tokens"] == Sum(60, 30, 30)
    assert [question.name for question in node.open] == ["budget.run.tokens#2"]
    node.run()
    assert node.sums[None]["@tokens"] == "run 1 node"  # it still asks


def test_a_crash_forgets_no_spending():
    """What a reply cost is in the run's sum before the reply is stored; a call made again counts again."""
    shop = looping(Budget(per="run", model_calls=50), times=3)
    node = shop.node()
    crashes = 0
    for saves in range(4):
        node.kill_after = saves
        try:
            node.run()
        except Killed:
            crashes += 1
    node.kill_after = None
    done(node.run())

    assert crashes == 4
    # A call that was about to begin is counted, too: the number is never too small.
    assert run_sums(node)["model_calls"].spent >= shop.models > 4
    assert run_sums(node)["tokens"].spent == 15 * shop.models


def test_an_invocations_count_survives_a_crash_with_its_checkpoint():
    """An execution that goes on after a crash has what was stored left of its budget, not all of it."""
    shop = looping(Budget(model_calls=4))
    node = shop.node()
    node.kill_after = 3
    with pytest.raises(Killed):
        node.run()
    made = shop.models
    node.kill_after = None
    failed(node.run())

    assert made < 4 <= shop.models <= 5


def test_parallel_tool_calls_share_what_is_left():
    """Of five calls in one reply two are made; each other one would go over the budget."""
    shop = Shop(
        [use("note", f"t{n}") for n in range(5)], "done", budgets=[Budget(tool_calls=2)]
    )
    outcome = shop.node().run()

    assert failed(outcome).error.name.endswith("BudgetExceeded")
    assert shop.tools <= 2


def test_a_cancelled_call_costs_nothing():
    """A call that another hook has cancelled is not counted, and a question of another hook comes first."""

    def cancel(event):
        event.cancel_tool = "no"

    shop = looping(Budget(tool_calls=1), times=2, hooks=[Hooks((BeforeToolCallEvent, cancel))])
    outcome = done(shop.node().run())

    assert outcome.usage["modelCalls"] == 3
    assert shop.tools == 0


def test_another_hooks_question_reserves_nothing():
    """The call is counted when it is made: after the answer, once."""

    def ask(event):
        event.interrupt("sure?")

    shop = Shop(
        "done",
        budgets=[Budget(per="run", model_calls=1)],
        hooks=[Hooks((BeforeModelCallEvent, ask))],
    )
    node = shop.node()
    node.run()
    assert node.spendings == []

    done(node.resume(**{"sure?": "yes"}))
    assert run_sums(node)["model_calls"] == Sum(1, 1)


def test_an_agent_as_a_tool_spends_its_callers_budget():
    """The calls inside count for the invocation of the agent above, and once for the run."""
    inner = looping(times=5, name="helper")
    outer = Shop(
        use("helper", input="go"),
        "done",
        budgets=[Budget(model_calls=4), Budget(per="run", tokens=900)],
    )
    node = Node(lambda: outer.agent(tools=[inner.agent().as_tool()]))
    outcome = node.run()

    # The inner agent fails over the budget of the outer one, which has no call left to say so.
    assert failed(outcome).error.name.endswith("BudgetExceeded")
    assert outer.models + inner.models == 4
    assert run_sums(node)["tokens"].spent == 60
    assert run_sums(node)["model_calls"].spent == 4


def test_a_question_inside_goes_up_and_its_raise_comes_down():
    """The budget is the outer agent's; the answer raises it for both."""
    inner = looping(times=3, name="helper")
    outer = Shop(use("helper", input="go"), "done", budgets=[Budget(model_calls=2, over="ask")])
    node = Node(lambda: outer.agent(tools=[inner.agent().as_tool()]))
    node.run()
    [question] = node.open
    assert question.name == "budget.writer.invocation.model_calls"

    done(node.resume(**{question.name: {"raise_by": 4}}))
    assert outer.models + inner.models == 6


@pytest.mark.full
def test_nodes_of_a_run_share_its_budget_and_runs_that_of_a_tag():
    """In process, on the store: the second agent is stopped by what the first has spent."""

    def graph(**budget):
        shops = {name: looping(Budget(**budget), times=2, name=name) for name in "ab"}
        agents = {name: shop.agent() for name, shop in shops.items()}
        return wired(agents, "a b").set_store(MemoryStore()).build(), shops.values()

    both, shops = graph(per="run", model_calls=4)
    result = both("go")
    assert (result.status, [shop.models for shop in shops]) == (Status.FAILED, [3, 1])
    with pytest.raises(BudgetExceeded):
        raise result.results["b"].result
    free, shops = graph(per="run", model_calls=6)
    assert free("go").status is Status.COMPLETED


def test_a_direct_call_has_a_budget():
    """All direct calls of one agent object are one run; the error is raised."""
    shop = looping(Budget(per="run", model_calls=5), times=2)
    agent = shop.agent()
    agent("go")

    agent.messages = []
    with pytest.raises(BudgetExceeded, match="5 model calls"):
        agent("again")
    assert shop.models == 5


def test_a_direct_call_asks():
    """As every question of an agent."""
    shop = looping(Budget(model_calls=1, over="ask"), times=1)
    agent = shop.agent()
    result = agent("go")
    [question] = result.interrupts
    answer = {"interruptId": question.id, "response": {"raise_by": 1}}

    assert agent([{"interruptResponse": answer}]).stop_reason == "end_turn"


@pytest.mark.full
def test_runs_at_once_never_pass_a_budget_of_calls():
    """Twenty agents of one run that begin together make as many calls as it allows."""
    store = MemoryStore()
    graph, shops = together(20, store, times=3, over="fail", per="run", model_calls=11)
    result = asyncio.run(graph.invoke_async("go"))

    assert result.status is Status.FAILED
    assert (
        sum(shop.models for shop in shops)
        == store.spent(result.run_id)["model_calls"].spent
        == 11
    )


def together(count, store, *, times=2, over="ask", **budget):
    """A run of so many agents that begin together, each with this budget; and the agents."""
    names = [f"a{number}" for number in range(count)]
    shops = [looping(Budget(over=over, **budget), times=times, name=name) for name in names]
    builder = wired({name: shop.agent() for name, shop in zip(names, shops, strict=True)})
    return builder.set_store(store).set_failure_policy("continue").build(), shops


def respond(graph, question, response):
    """Answer one question of a graph's open run."""
    answer = {"interruptId": question.id, "response": response, "responder": "ana"}
    return graph([{"interruptResponse": answer}])


@pytest.mark.full
def test_agents_over_one_sum_ask_once():
    """Twenty agents over the budget of their run ask one question, whose answer all of them go on with."""
    store = MemoryStore()
    graph, shops = together(20, store, per="run", model_calls=10, assignees=["ana"])
    [question] = graph("go").interrupts
    result = respond(graph, question, {"raise_by": 50})

    assert result.status is Status.COMPLETED
    assert sum(shop.models for shop in shops) == 60
    assert store.spent(result.run_id)["model_calls"] == Sum(60, 10, 50)


@pytest.mark.full
def test_a_raise_that_is_too_small_is_asked_for_again():
    """By one of those that still wait, with what the sum allows by then."""
    graph, shops = together(5, MemoryStore(), per="run", model_calls=3)
    [question] = graph("go").interrupts
    [again] = respond(graph, question, {"raise_by": 4}).interrupts

    assert sum(shop.models for shop in shops) == 7
    assert (again.reason["spent"], again.reason["limit"]) == (7, 7)
    assert respond(graph, again, {"raise_by": 100}).status is Status.COMPLETED


@pytest.mark.full
def test_a_stop_is_for_all_that_wait():
    """One person's decision fails every agent over the sum, and asks nobody else."""
    graph, shops = together(5, MemoryStore(), per="run", model_calls=3)
    [question] = graph("go").interrupts
    result = respond(graph, question, "stop")

    assert (result.status, result.interrupts) == (Status.FAILED, [])
    errors = {str(node.result) for node in result.results.values() if node.status == "failed"}
    assert all("it was decided by ana to stop" in error for error in errors)
    assert sum(shop.models for shop in shops) == 3


def test_agents_with_sums_of_their_own_ask_one_question_each():
    """The control: of budgets per invocation there are as many sums as agents."""
    graph, _ = together(5, MemoryStore(), per="invocation", model_calls=1)

    assert len(graph("go").interrupts) == 5


@pytest.mark.parametrize("per", ["invocation", "run"])
def test_parallel_calls_over_one_sum_ask_once(per):
    """Of five calls in one reply two are made; for the three others one question is asked."""
    budget = Budget(per=per, tool_calls=2, over="ask")
    shop = Shop([use("note", f"t{n}") for n in range(5)], "done", budgets=[budget])
    node = shop.node()
    node.run()
    assert (len(node.open), shop.tools) == (1, 2)

    done(node.resume(**{node.open[0].name: {"raise_by": 3}}))
    assert shop.tools == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs a limit"),
        ({"per": "day", "tokens": 1}, "invocation"),
        ({"per": "tag:", "tokens": 1}, "tag:<name>"),
        ({"tokens": 0}, "above 0"),
        ({"tokens": 1.5}, "above 0"),
        ({"cost": True}, "above 0"),
        ({"tokens": 1, "over": "shrug"}, "fail"),
        ({"tokens": 1, "window": 0}, "longer than 0"),
    ],
)
def test_a_budget_without_meaning_is_refused(options, words):
    """Where it is declared."""
    with pytest.raises(DefinitionError, match=words):
        Budget(**options)


def spender(name, per, rule):
    """An agent that asks to raise a budget."""
    budget = Budget(per=per, model_calls=1, over="ask", rule=rule)
    return Agent(name, ScriptedModel(["done"]), budgets=[budget])


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("per", "is_one"), [("run", True), ("tag:a", True), ("invocation", False)]
)
@pytest.mark.parametrize("other", [Rule(), Rule(need=2), None])
def test_one_sum_has_one_rule(per, is_one, other, inside):
    """No agent may spend what a laxer rule granted another; control: sums of their own."""
    two = spender("two", per, other)
    if inside:
        around = wired({"two": two}).build()
    else:
        around = Agent("outer", ScriptedModel(["done"]), tools=[two.as_tool()])
    builder = wired({"one": spender("one", per, Rule(need=2)), "two": around})
    if is_one and other != Rule(need=2):
        with pytest.raises(
            DefinitionError, match=r"'one' and 'two' have a budget of .* with different rules"
        ):
            builder.build()
    else:
        builder.build()


@pytest.mark.parametrize(("counter", "is_one"), [("tokens", False), ("model_calls", True)])
def test_each_counter_may_have_a_rule_of_its_own(counter, is_one):
    """A raise of one grants nothing of another; control: two limits of one counter."""
    budgets = [
        Budget(per="run", over="ask", rule=Rule(need=need), **{name: 1})
        for need, name in ((1, "model_calls"), (2, counter))
    ]
    builder = wired({"one": Agent("one", ScriptedModel(["done"]), budgets=budgets)})
    with pytest.raises(DefinitionError, match="model_calls") if is_one else nullcontext():
        builder.build()


def test_the_rule_of_a_budget_excludes_nodes_that_are_there():
    """A name that no node has would exclude no one."""
    builder = wired({"one": spender("one", "run", Rule(exclude=["answered:look-up"]))})
    with pytest.raises(DefinitionError, match="'look-up', which isn't a node"):
        builder.build()


def test_an_agent_refuses_a_cost_without_a_price():
    """It could never be counted. Prices are numbers from 0."""
    with pytest.raises(DefinitionError, match="price=Price"):
        looping(Budget(cost=1)).agent()
    with pytest.raises(DefinitionError, match="isn't a Budget"):
        looping("much").agent()
    with pytest.raises(DefinitionError, match="isn't a Price"):
        looping(price=3).agent()
    with pytest.raises(DefinitionError, match="from 0"):
        Price(input=-1)
    with pytest.raises(DefinitionError, match="from 0"):
        Price(input=Decimal(1))
