"""What the doors take and what they refuse, in one table, before anything is stored."""

from __future__ import annotations

import contextlib
import json

import hypothesis
import pytest
from click.testing import CliRunner
from hypothesis import strategies as st

from runner import Client, Status
from runner.celery.kombu_fixes import TEXT, unwrapped
from runner.cli.program import runner
from runner.errors import UnstorableError, UsageError
from runner.operations.answers import apply_decisions
from runner.operations.message_handlers import (
    MAX_EARLY_BYTES,
    Disposition,
    IncomingMessage,
    handle_answer,
    handle_start,
)
from runner.records.codec import MAX_DEPTH
from runner.records.interrupts import Decision, ReceiptStatus
from runner.records.size_limits import LARGE_STATE, MAX_ANSWER, MAX_MESSAGE
from tests.graphs import Bench, single

DEEP = MAX_DEPTH + 1

REFUSED = {
    "a key twice": ('{"a":1,"a":2}', "same key twice"),
    "a key twice inside": ('[{"a":[{"b":1,"b":1}]}]', "same key twice"),
    "not a number": ("NaN", "NaN is not JSON"),
    "infinity": ("[-Infinity]", "Infinity is not JSON"),
    "larger than a float": ("1e999", "larger than any float"),
    "a huge integer": ("9" * 4_301, "too many digits"),
    "65 bits": (str(2**64), "more than 64 bits"),
    "half a pair": ('"\\ud800"', "surrogates not allowed"),
    "half a pair as a key": ('{"\\udfff":1}', "surrogates not allowed"),
    "too deep": ("[" * DEEP + "0" + "]" * DEEP, "deeper than 64 levels"),
    "a bomb": ("[" * 100_000 + "]" * 100_000, "nested too deep"),
    "half a document": ('{"a":', "not valid JSON"),
    "nothing": ("", "not valid JSON"),
    "two documents": ("1 2", "not valid JSON"),
    "a comment": ("1 // one", "not valid JSON"),
}

TAKEN = {
    "an object that kombu reads as a date": '{"__type__":"datetime","__value__":"2026-01-01T00:00:00"}',
    "an object that kombu can't read": '{"__type__":"nobody","__value__":1}',
    "keys that we use ourselves": '{"__model__":"os:system","data":1,"__bytes_encoded__":true}',
    "a large integer": str(2**63 - 1),
    "a whole pair": '"\\ud83d\\ude00"',
    "as deep as may be": "[" * 63 + "0" + "]" * 63,
    "zero": "0",
    "no": "false",
}


@pytest.fixture
def waiting():
    """A run that asks, and its question."""
    bench = Bench(single(lambda ctx: ctx.interrupt("ok?"))).start()
    (question,) = bench.finish().interrupts
    return bench, question


def answer(question, text):
    return f'{{"v":1,"interrupt_id":"{question.id}","response":{text}}}'.encode()


def by_stream(bench, question, text):
    verdict = handle_answer(bench.engine, IncomingMessage("1", "k", answer(question, text)))
    return verdict.disposition, verdict.reason


def by_task(bench, question, text):
    body = f'[[],{{"interrupt_id":"{question.id}","response":{text}}},{{}}]'
    try:
        _, named = unwrapped((), {TEXT: body})
    except UsageError as error:
        return Disposition.DEAD, str(error)
    # What the task puts on the stream is written by us.
    return by_stream(bench, question, json.dumps(named["response"]))


DOORS = {"stream": by_stream, "task": by_task}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", REFUSED)
def test_bad_answers_change_nothing(waiting, door, case):
    """Whatever is wrong with an answer, it is a dead letter with the reason, and the question stays open."""
    bench, question = waiting
    before = bench.store.read(bench.run_id)

    disposition, reason = DOORS[door](bench, question, REFUSED[case][0])

    assert disposition is Disposition.DEAD
    assert REFUSED[case][1] in reason
    assert bench.store.read(bench.run_id) == before


@pytest.mark.full
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", TAKEN)
def test_odd_answers_arrive_as_data(waiting, door, case):
    """What only looks odd is data: it comes out as it went in."""
    bench, question = waiting

    assert DOORS[door](bench, question, TAKEN[case]) == (Disposition.DONE, "")

    assert bench.finish().results["a"].result == json.loads(TAKEN[case])


@pytest.mark.full
@pytest.mark.parametrize("case", REFUSED)
def test_bad_starts_begin_nothing(waiting, case):
    """A start is read as strictly as an answer."""
    bench, _ = waiting
    body = f'{{"v":1,"graph":"bench","task":{REFUSED[case][0]}}}'.encode()

    verdict = handle_start(bench.engine, IncomingMessage("1", "k", body))

    assert verdict.disposition is Disposition.DEAD
    assert REFUSED[case][1] in verdict.reason
    assert len(bench.store.runs()) == 1


@pytest.mark.parametrize("case", sorted(REFUSED.keys() - {"nothing"}))
def test_the_command_line_reads_as_strictly(case):
    """A shell is a door, too: bad JSON is a mistake of usage, before a store is asked."""
    given = ["interrupts", "respond", "00x.a.1.b", "--response", REFUSED[case][0]]

    outcome = CliRunner().invoke(runner, given, env={"RUNNER_REDIS_URL": "redis://127.0.0.1:1"})

    assert outcome.exit_code == 2, outcome.output


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "which JSON has no form for"),
        (10**5_000, "more than 64 bits"),
        ("\ud800", "lone surrogate"),
        ({1: 2}, "keys must be strings"),
        ({"x": {1, 2}}, "is a set"),
        (object(), "is an object"),
    ],
    ids=["nan", "5,000 digits", "surrogate", "key", "set", "object"],
)
def test_python_values_that_are_no_json_are_refused_at_once(waiting, value, reason):
    """`client.respond` raises where the mistake was made; nothing was sent."""
    bench, question = waiting
    client = Client(store=bench.store)

    with pytest.raises(UnstorableError, match=reason):
        client.respond(question.id, value)

    assert bench.result().interrupts


def test_an_answer_has_its_own_limit(waiting):
    """256 KB are enough for what a person says; one more byte is rejected, and the question stays open."""
    bench, question = waiting
    over = Decision(question.id, "x" * (MAX_ANSWER - 1))
    (receipt,) = apply_decisions(bench.engine, [over])
    assert receipt.status is ReceiptStatus.REJECTED
    assert "262,145 bytes, more than an answer may have (262,144)" in receipt.detail

    (receipt,) = apply_decisions(bench.engine, [Decision(question.id, "x" * (MAX_ANSWER - 2))])
    assert receipt.status is ReceiptStatus.ACCEPTED


@pytest.mark.parametrize("said", ["responder", "idempotency_key", "digest"])
@pytest.mark.parametrize(
    "given", ["x" * 1001, "\ud800", 7], ids=["long", "surrogate", "number"]
)
def test_what_comes_with_an_answer_is_short_text(waiting, said, given):
    """An answer with anything else is rejected with the reason, and nothing of it is written."""
    bench, question = waiting

    receipt = Client(store=bench.store).respond(question.id, "yes", **{said: given})

    assert (receipt.status, receipt.detail.partition(" has")[0][:8]) == (
        "rejected",
        f"the {said}"[:8],
    )
    assert bench.result().interrupts == [question]


@pytest.mark.parametrize(
    "given", ["x" * 20_000, "\ud800", 7], ids=["long", "surrogate", "number"]
)
def test_reasons_and_keys_are_short_texts(waiting, given):
    """Who cancels, withdraws or starts with anything else is told, and nothing was changed."""
    bench, question = waiting
    client = Client(store=bench.store, registry=bench.engine.registry)

    for request in (
        lambda: client.run(bench.run_id).cancel(given),
        lambda: client.withdraw(question.id, given),
        lambda: client.start("bench", "task", idempotency_key=given),
    ):
        with pytest.raises(
            UsageError, match=r"characters, more than|lone surrogate|must be a text"
        ):
            request()

    assert bench.result().interrupts == [question]
    assert len(bench.store.runs()) == 1


def test_a_message_that_is_too_large_is_not_even_read(waiting):
    """Its size is looked at first, so that no reader has to take it apart."""
    bench, question = waiting
    body = answer(question, '"' + "x" * MAX_MESSAGE + '"')

    verdict = handle_answer(bench.engine, IncomingMessage("1", "k", body))

    assert (verdict.disposition, verdict.receipt) == (Disposition.DEAD, None)
    assert "It was not read" in verdict.reason
    start = (
        b'{"v":1,"graph":"bench","task":"'
        + b"x" * (MAX_MESSAGE + bench.store.max_bytes)
        + b'"}'
    )
    assert (
        "It was not read" in handle_start(bench.engine, IncomingMessage("1", "k", start)).reason
    )


def test_a_large_answer_does_not_wait_for_its_question(waiting):
    """An early answer is kept when it is small; a large one is told at once that nobody asks."""
    bench, question = waiting
    dispositions = {}
    for size in (1, MAX_EARLY_BYTES):
        body = answer(question, '"' + "x" * size + '"').replace(
            question.id.encode(), question.id.encode() + b"0"
        )
        verdict = handle_answer(bench.engine, IncomingMessage("1", "k", body), lambda _: "kept")
        dispositions[size] = verdict.disposition
    assert dispositions == {1: Disposition.KEPT, MAX_EARLY_BYTES: Disposition.DEAD}
    assert verdict.receipt.status == "unknown"


def test_a_large_checkpoint_is_said_in_the_log_once(caplog):
    """What a node keeps beyond 256 KB costs every checkpoint; the log names the node, once an execution."""

    def keeps(ctx):
        for number in range(3):
            ctx.once(f"k{number}", lambda: "x" * LARGE_STATE)

    assert Bench(single(keeps)).start().finish().status is Status.COMPLETED
    assert [record.message.split(":")[0] for record in caplog.records] == ["state.large"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["__type__", "__value__", "__model__", "data"]) | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.mark.slow
@hypothesis.given(value=VALUES, door=st.sampled_from(sorted(DOORS)))
def test_any_json_arrives_as_it_was_sent(value, door):
    """Whatever JSON a person answers, the code that asked gets exactly that, by every door."""
    hypothesis.assume(value is not None)
    bench = Bench(single(lambda ctx: [ctx.interrupt("ok?")])).start()
    (question,) = bench.finish().interrupts

    assert DOORS[door](bench, question, json.dumps(value)) == (Disposition.DONE, "")

    assert bench.finish().results["a"].result == [value]


@pytest.mark.full
@hypothesis.given(
    st.binary()
    | st.text().map(str.encode)
    | VALUES.map(lambda value: json.dumps(value).encode())
)
def test_no_bytes_break_a_door(body):
    """Whatever comes, a door says what became of it: it raises nothing and stores nothing."""
    bench = Bench(single(lambda ctx: 1))
    for judge in (
        lambda given: handle_answer(bench.engine, given, lambda _: "kept"),
        lambda given: handle_start(bench.engine, given),
    ):
        assert judge(IncomingMessage("1", "k", body)).disposition is Disposition.DEAD
    with contextlib.suppress(UsageError):
        unwrapped((), {TEXT: body.decode("utf-8", "backslashreplace")})
    assert not bench.store.runs()


def test_a_start_message_calls_only_allowed_tasks(waiting):
    """Whoever may start runs must not be able to have any Celery task called."""
    bench, _ = waiting
    body = b'{"v":1,"graph":"bench","task":1,"on_end":"shop.refund"}'
    message = IncomingMessage("1", "k", body)

    refused = handle_start(bench.engine, message, ["shop.done"])
    assert refused.disposition is Disposition.DEAD
    assert refused.receipt.status == "rejected"
    assert len(bench.store.runs()) == 1

    assert handle_start(bench.engine, message, ["shop.refund"]).disposition is Disposition.DONE
