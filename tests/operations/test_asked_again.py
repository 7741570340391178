"""Questions that a failure has withdrawn, and that are asked again when the run is retried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner import Agent, Status, ToolContext, tool
from runner.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterNodeCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeNodeCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    MessageAddedEvent,
)
from runner.operations import recovery
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.store.interface import Claim
from runner.store.redis.store import RedisStore
from runner.store.requests import AnswerQuestions, CancelRun
from runner.testing import ScriptedModel
from tests.graphs import Bench, ident, wired


class Amount:
    """What is asked about; it is more when the run is retried."""

    def __init__(self):
        self.now = 10

    def ask(self, asks):
        return asks.interrupt("pay?", reason=self.now)


def agent(amount, event=None):
    """Make an agent whose tool asks, or a hook at one of its events."""

    @tool(name="pay", context=True)
    def pay(tool_context: ToolContext) -> str:
        return amount.ask(tool_context) if event is None else "paid"

    model = ScriptedModel(
        [{"toolUse": {"toolUseId": "t1", "name": "pay", "input": {}}}, "done"]
    )
    made = Agent(name="asks", model=model, tools=[pay])
    if event is not None:
        made.hooks.add_callback(event, lambda fired: amount.ask(fired) and None)
    return made


def caller(amount):
    """Make an agent whose tool is the agent that asks."""
    use = {"toolUse": {"toolUseId": "t2", "name": "asks", "input": {"input": "pay"}}}
    return Agent(
        name="caller", model=ScriptedModel([use, "done"]), tools=[agent(amount).as_tool()]
    )


def with_hook(event):
    """Build a graph with a hook that asks beside a node that fails once."""

    def build(amount):
        def ask(fired):
            if getattr(fired, "node_id", "asks") == "asks":
                amount.ask(fired)

        builder = wired({"asks": ident, "fails": fail_once}).set_hook_providers(
            [_Provider(event, ask)]
        )
        return builder.build()

    return build


class _Provider:
    def __init__(self, event, callback):
        self.event, self.callback = event, callback

    def register_hooks(self, registry, **_):
        registry.add_callback(self.event, self.callback)


def fail_once(ctx):
    if ctx.attempt == 1:
        raise ValueError("no paper")
    return "done"


def beside(node):
    """Build a graph in which a node asks beside one that fails once."""
    return lambda amount: wired({"asks": node(amount), "fails": fail_once}).build()


def inside(amount):
    """Build a graph with a graph in it that asks."""
    return wired({"inner": wired({"deep": amount.ask}).build()}).build()


def mapped(amount):
    builder = wired({"fails": fail_once})
    builder.add_map(amount.ask, "asks", over=lambda ctx: [1, 2])
    return builder.build()


KINDS = {
    "function": beside(lambda amount: amount.ask),
    "nested graphs": beside(inside),
    "map": mapped,
    "tool": beside(agent),
    "agent as tool": beside(caller),
    "before a node": with_hook(BeforeNodeCallEvent),
    "after a node": with_hook(AfterNodeCallEvent),
    **{
        event.__name__: beside(lambda amount, event=event: agent(amount, event))
        for event in (
            BeforeInvocationEvent,
            MessageAddedEvent,
            BeforeModelCallEvent,
            AfterModelCallEvent,
            BeforeToolsEvent,
            BeforeToolCallEvent,
            AfterToolCallEvent,
            AfterToolsEvent,
            AfterInvocationEvent,
        )
    },
}


def withdrawn_and_asked_again(build, in_redis):
    """Fail a run that waits, and retry it when more is to be paid; give both sets of questions."""
    amount = Amount()
    bench = Bench(build(amount), in_redis).start()
    while any(bell.node != "fails" for bell in bench.bells):
        bench.deliver(next(bell.node for bell in bench.bells if bell.node != "fails"))
    old = list(bench.result().interrupts)
    assert {question.reason for question in old} == {10}
    assert bench.finish().status is Status.FAILED
    amount.now = 1_000_000
    recovery.retry(bench.engine, bench.run_id)
    assert bench.finish().status is Status.INTERRUPTED
    return bench, old, list(bench.result().interrupts)


def complete(bench):
    """Answer all that is asked until the run ends: some hooks ask at every call."""
    for _ in "abcdefgh":
        if bench.finish().status is not Status.INTERRUPTED:
            break
        bench.answer(response=True)
    assert bench.result().status is Status.COMPLETED


def answers_to(questions):
    return [Decision(question.id, True) for question in questions]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_withdrawn_question_has_a_new_id_after_a_retry(in_redis, kind):
    """What was judged before the failure is no approval of what the retry asks."""
    bench, old, new = withdrawn_and_asked_again(KINDS[kind], in_redis)
    assert len(old) == len(new) == (2 if kind == "map" else 1)
    assert {question.reason for question in new} == {1_000_000}
    assert not {question.id for question in old} & {question.id for question in new}

    # As they were read before the failure, and as they are read now.
    receipts = bench.store.do(AnswerQuestions(answers_to(old), "judged before")).receipts
    receipts += apply_decisions(bench.engine, answers_to(old))
    assert {receipt.status for receipt in receipts} == {"superseded"}
    assert list(bench.result().interrupts) == new

    complete(bench)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_it_has_another_one_after_each_retry(in_redis, kind):
    """However often a run is cancelled while it waits, no id returns."""
    bench, old, new = withdrawn_and_asked_again(KINDS[kind], in_redis)
    ids = [question.id for question in (*old, *new)]
    for _ in range(2):
        bench.engine.ring(bench.store.do(CancelRun(bench.run_id, "wait")))
        bench.finish_all()
        recovery.retry(bench.engine, bench.run_id)
        bench.finish_all()
        ids += [question.id for question in bench.result().interrupts]
    assert len(set(ids)) == len(ids) == 4 * len(old)

    complete(bench)


def test_an_answer_from_before_the_failure_is_kept(in_redis):
    """Only what was withdrawn is asked again."""

    def ask(ctx):
        amount = ctx.interrupt("how much?")
        return [amount, ctx.interrupt("pay?", reason=amount)]

    bench = Bench(wired({"asks": ask, "fails": fail_once}).build(), in_redis).start()
    bench.deliver("asks")
    bench.answer(7)
    bench.deliver("asks")
    bench.finish()
    recovery.retry(bench.engine, bench.run_id)

    (question,) = bench.finish().interrupts
    assert (question.name, question.reason) == ("pay?", 7)
    bench.answer("yes")
    assert bench.finish().results["asks"].output == [7, "yes"]


class ReusesIds(RedisStore):
    """A store whose claims lack what was withdrawn, so that a retry asks under the old id."""

    def do(self, request):
        reply = super().do(request)
        if not isinstance(reply, Claim):
            return reply
        return replace(
            reply, answers=[answer for answer in reply.answers if answer.status != "withdrawn"]
        )


def test_under_its_old_id_nothing_is_asked(redis_url):
    """The control: where ids return, ten that were judged can't become a million that are paid."""
    bench = Bench(
        KINDS["function"](Amount()), lambda clock: ReusesIds(redis_url, clock=clock, push=False)
    )
    bench.start().deliver("asks")
    bench.finish()
    recovery.retry(bench.engine, bench.run_id)
    assert bench.finish().status is Status.NEEDS_MIGRATION
    assert bench.result().interrupts == []
