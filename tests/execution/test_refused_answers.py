"""An answer that is accepted and that the code's model refuses is asked for again, with what was wrong."""

from __future__ import annotations

import uuid
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator, field_validator

from runner import Agent, GraphBuilder, RetryPolicy, Status, tool
from runner.approvals import Rule
from runner.errors import ResponseError
from runner.hooks import (
    AfterNodeCallEvent,
    BeforeGraphEvent,
    BeforeNodeCallEvent,
    BeforeToolCallEvent,
)
from runner.operations.answers import apply_decisions, withdraw
from runner.records.interrupts import Decision
from runner.testing import ScriptedModel


class Even(BaseModel):
    """A number that no JSON Schema describes."""

    number: int

    @field_validator("number")
    @classmethod
    def _check(cls, number: int) -> int:
        if number % 2:
            raise ValueError("take an even number")
        return number


def ask(ctx: Any, **options: Any) -> Any:
    return ctx.interrupt(
        "which?", {"order": 7}, response_schema=Even, assignees=["ana"], **options
    )


def in_function(ctx: Any) -> Any:
    return ask(ctx).number


@tool(context=True)
def choose(tool_context: Any) -> str:
    """Ask for a number."""
    return f"it is {ask(tool_context).number}"


@tool
def look() -> str:
    """Look."""
    return "seen"


def agent(called: Any = choose, **options: Any) -> Agent:
    call = {"toolUse": {"toolUseId": "t1", "name": called.tool_name, "input": {}}}
    return Agent("clerk", ScriptedModel([call, "done"]), [called], **options)


def graph_of(node: Any, **options: Any) -> GraphBuilder:
    """Build a graph of one node beside one that asks something else."""
    builder = GraphBuilder()
    builder.add_node(node, "a", **options)
    builder.add_node(lambda ctx: ctx.interrupt("other?"), "b")
    return builder


def hooked(event: type, node: Any = lambda ctx: 1) -> GraphBuilder:
    """Build a graph whose hook asks."""
    builder = graph_of(node)

    class Hook:
        def register_hooks(self, registry: Any) -> None:
            def asks(fired: Any) -> None:
                if getattr(fired, "node_id", "a") == "a":
                    ask(fired)

            registry.add_callback(event, asks)

    builder.set_hook_providers([Hook()])
    return builder


class ToolHook:
    def register_hooks(self, registry: Any) -> None:
        registry.add_callback(BeforeToolCallEvent, ask)


def nested() -> GraphBuilder:
    inner = GraphBuilder()
    inner.add_node(in_function, "deep")
    return graph_of(inner.build())


def mapped() -> GraphBuilder:
    builder = GraphBuilder()
    builder.add_map(in_function, "a", over=lambda ctx: [1])
    builder.add_node(lambda ctx: ctx.interrupt("other?"), "b")
    return builder


KINDS = {
    "function": lambda: graph_of(in_function),
    "function with retries": lambda: graph_of(in_function, retry=RetryPolicy(max_attempts=3)),
    "tool": lambda: graph_of(agent()),
    "hook of a call": lambda: graph_of(agent(look, hooks=[ToolHook()])),
    "hook before a node": lambda: hooked(BeforeNodeCallEvent),
    "hook after a node": lambda: hooked(AfterNodeCallEvent),
    "nested graph": nested,
    "item of a map": mapped,
}


def question_of(run: Any, name: str = "which?") -> Any:
    (question,) = [each for each in run.interrupts if each.name == name]
    return question


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_the_model_refuses_is_asked_for_again(run_graph, kind):
    """The same question with the problem; the others stay, no attempt is used, a right answer goes on."""
    run = run_graph(KINDS[kind]().build())
    first, other = question_of(run), question_of(run, "other?")

    run.answer({"number": 7}, "which?", responder="ana")
    again = question_of(run)
    assert again.reason == {
        "question": {"order": 7},
        "problem": "number: Value error, take an even number, got 7",
    }
    assert (again.replaces, again.response_schema, again.assignees) == (
        first.id,
        first.response_schema,
        ["ana"],
    )
    (answered,) = run.store.interrupts([first.id])
    assert (answered.status, answered.response, answered.responder) == (
        "answered",
        {"number": 7},
        "ana",
    )
    assert question_of(run, "other?") == other
    assert not [event for event in run.events if event.kind in {"node.failed", "node.retrying"}]

    run.answer({"number": 9}, "which?", responder="ana")
    assert "got 9" in question_of(run).reason["problem"]
    run.answer({"number": 8}, "which?", responder="ana")
    run.answer("yes", "other?")
    assert run.status is Status.COMPLETED
    assert run.result.results["a"].attempts == 1


def test_the_hook_of_a_graph_asks_again(run_graph):
    """Before any node begins."""
    run = run_graph(hooked(BeforeGraphEvent).build())
    run.answer({"number": 7}, responder="ana")
    assert "even" in question_of(run).reason["problem"]
    run.answer({"number": 8}, responder="ana")
    run.answer("yes", "other?")
    assert run.status is Status.COMPLETED


def test_votes_for_what_the_model_refuses_are_asked_for_again(run_graph):
    """With a rule as well: whoever has voted votes on the new question."""
    rule = Rule(eligible=["ana", "ben"], need=2)

    def node(ctx):
        return ctx.interrupt("which?", rule=rule, response_schema=Even).response.number

    run = run_graph(graph_of(node).build())

    def vote(number):
        name = question_of(run).id
        votes = [
            Decision(name, {"number": number}, who, decision="respond")
            for who in ("ana", "ben")
        ]
        receipts = [apply_decisions(run._engine, [each])[0].status for each in votes]
        assert receipts == ["counted", "accepted"]
        run.go_on()

    vote(7)
    assert "even" in question_of(run).reason["problem"]
    vote(8)
    run.answer("yes", "other?")
    assert run.result.results["a"].output == 8


def test_a_question_with_a_problem_can_be_withdrawn_and_asked_once_more(run_graph):
    """What was wrong with the last answer is still there."""
    run = run_graph(graph_of(in_function).build())
    run.answer({"number": 7}, "which?", responder="ana")
    withdraw(run._engine, question_of(run).id, "wrong person", reask=True)
    run.go_on()
    assert "got 7" in question_of(run).reason["problem"]
    run.answer({"number": 8}, "which?", responder="ana")
    run.answer("yes", "other?")
    assert run.result.results["a"].output == 8


def test_the_newest_answer_counts_where_the_code_would_take_the_first_now(run_graph):
    """A deploy between the two answers makes none of them another's."""
    limits = {"even": True}

    def check(number: int) -> int:
        if limits["even"] and number % 2:
            raise ValueError("take an even number")
        return number

    class Choice(BaseModel):
        number: Annotated[int, AfterValidator(check)]

    run = run_graph(
        graph_of(lambda ctx: ctx.interrupt("which?", response_schema=Choice).number).build()
    )
    run.answer({"number": 7}, "which?")
    limits["even"] = False
    run.answer({"number": 8}, "which?")
    run.answer("yes", "other?")
    assert run.result.results["a"].output == 8


def test_a_long_value_is_cut_in_what_was_wrong(run_graph):
    """The question stays small, whatever was answered."""

    class Short(BaseModel):
        text: Annotated[str, BeforeValidator(lambda text: int(text) and text)]

    run = run_graph(
        graph_of(lambda ctx: ctx.interrupt("which?", response_schema=Short).text).build()
    )
    run.answer({"text": "x" * 100_000}, "which?")
    assert len(question_of(run).reason["problem"]) < 400


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on_expire": {"response": {"number": 7}}}, "even number"),
        ({"on_expire": {"response": {"number": "x"}}}, "integer"),
        ({"on_expire": {"response": {"number": 8}}}, ""),
    ],
)
def test_the_answer_of_silence_is_one_that_the_model_takes(run_graph, options, problem):
    """It is refused where it is asked, as the code's fault; the control goes on by it."""
    run = run_graph(graph_of(lambda ctx: ask(ctx, expires_in=60, **options).number).build())
    if problem:
        result = run.result.results["a"]
        assert result.status is Status.FAILED
        assert problem in str(result.result)
        return
    run_graph.clock.advance(61)
    run.answer("yes", "other?")
    assert run.result.results["a"].output == 8


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "wrong", "right"),
    [
        ("date", ["28.02.2026", "2026-02-30"], ["2026-02-28"]),
        (
            "date-time",
            ["28.02.2026 10:00", "2026-02-28"],
            ["2026-02-28T10:00", "2026-02-28T10:00:00.5Z"],
        ),
        ("time", ["10", "25:00"], ["10:00", "10:00:00+02:00"]),
        ("duration", ["1h", "PT"], ["PT1H", "-P1DT0.5S"]),
        ("email", ["ana", "a b@c"], ["ana@example.com"]),
        ("uuid", ["x"], [str(uuid.UUID(int=1))]),
        ("ipv4", ["1.2.3"], ["1.2.3.4"]),
        ("uri", ["example"], ["https://example.com/a"]),
        ("regex", [], ["(?P<python>a)"]),
        ("of-ours", [], ["anything"]),
    ],
)
def test_a_format_is_checked_where_the_answer_comes_in(run_graph, form, wrong, right):
    """Nothing wakes up for one that does not have it, and the question stays open."""
    schema = {"type": "string", "format": form}
    for text in right:
        run = run_graph(
            graph_of(lambda ctx: ctx.interrupt("q", response_schema=schema)).build()
        )
        for bad in wrong:
            with pytest.raises(ResponseError, match=f'is not a "{form}"'):
                run.answer(bad, "q")
        run.answer(text, "q")
        assert run.result.results["a"].output == text


def test_a_strict_model_takes_the_json_that_its_schema_describes(run_graph):
    """An answer is JSON, in which a date is a text, whatever a strict model takes in Python."""

    class When(BaseModel, strict=True):
        day: date
        days: tuple[date, ...]

    run = run_graph(
        graph_of(lambda ctx: str(ctx.interrupt("when?", response_schema=When).days[0])).build()
    )
    run.answer({"day": "2026-02-28", "days": ["2026-03-01"]}, "when?")
    assert run.result.results["a"].output == "2026-03-01"


def test_an_agent_that_is_called_directly_asks_again():
    """Without a graph or a store, too."""
    clerk = agent()

    def answer(number: int) -> Any:
        (question,) = result.interrupts
        response = {"interruptId": question.id, "response": {"number": number}}
        return clerk([{"interruptResponse": {**response, "responder": "ana"}}])

    result = clerk("go")
    result = answer(7)
    assert "even" in result.interrupts[0].reason["problem"]
    result = answer(8)
    assert "it is 8" in str(clerk.messages)


def test_a_date_that_is_written_as_elsewhere_is_refused_at_the_door(run_graph):
    """The model's own formats count there, too."""

    class When(BaseModel):
        day: date
        ticket: uuid.UUID

    run = run_graph(
        graph_of(lambda ctx: str(ctx.interrupt("when?", response_schema=When).day)).build()
    )
    ticket = str(uuid.UUID(int=1))
    for answer in (
        {"day": "28.02.2026", "ticket": ticket},
        {"day": "2026-02-28", "ticket": "x"},
    ):
        with pytest.raises(ResponseError, match="rejected"):
            run.answer(answer, "when?")
    run.answer({"day": "2026-02-28", "ticket": ticket}, "when?")
    assert run.result.results["a"].output == "2026-02-28"
