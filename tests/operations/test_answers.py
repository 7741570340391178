from __future__ import annotations

import dataclasses

import pydantic
import pytest

from runner.records import codec, validation
from runner.records.interrupts import (
    Address,
    Decision,
    InterruptStatus,
    ReceiptStatus,
)
from runner.store.receipts import receipts_for

AT = Address("00run", "pay", 1)


class Approved(pydantic.BaseModel):
    approve: bool
    note: str = pydantic.Field(default="", max_length=5)


def question(name, schema=Approved, **fields):
    return dataclasses.replace(AT.ask(name, scope="function", response_schema=schema), **fields)


def answer(asked, response):
    return Decision(asked.id, codec.pack(response, "response"))


def receipts_of(answers, questions):
    return receipts_for(answers, questions, lambda _: "", "nonce", 0)[0]


def refusals(answers, questions):
    """Map the questions whose answers are rejected to the reasons."""
    return {
        receipt.interrupt_id: receipt.detail
        for receipt in receipts_of(answers, questions)
        if receipt.status is ReceiptStatus.REJECTED
    }


@pytest.mark.parametrize(
    "response", [{"approve": True}, {"approve": False, "note": "late"}, Approved(approve=True)]
)
def test_an_answer_that_fits_its_schema_is_taken(response):
    """Data that fits, and an instance of the model that was asked for, pass the door."""
    interrupt = question("ok?")

    assert refusals([answer(interrupt, response)], [interrupt]) == {}


@pytest.mark.parametrize(
    ("response", "says"),
    [
        ("yes", "the answer does not fit"),
        ({}, "approve"),
        ({"approve": "yes"}, "the answer['approve'] does not fit"),
        ({"approve": True, "note": "too long"}, "the answer['note'] does not fit"),
        ({"approve": b"raw"}, "the answer['approve'] does not fit"),
    ],
)
def test_an_answer_that_breaks_its_schema_is_refused_with_the_place(response, says):
    """A bad answer is refused with the place in it and the reason."""
    interrupt = question("ok?")

    refused = refusals([answer(interrupt, response)], [interrupt])

    assert says in refused[interrupt.id]


@pytest.mark.parametrize("response", [False, 0, "", [], "anything"])
def test_without_a_schema_every_value_but_null_is_taken(response):
    """A question without a schema takes any value; null is no answer."""
    interrupt = question("ok?", None)

    assert refusals([answer(interrupt, response)], [interrupt]) == {}
    assert refusals([Decision(interrupt.id, None)], [interrupt]) == {
        interrupt.id: "None (null) is no answer"
    }


def test_a_question_that_is_not_open_is_left_to_its_receipt():
    """Whether a late answer fits says nothing: it gets the receipt of a late answer."""
    interrupt = question("ok?", status=InterruptStatus.ANSWERED, response=True, responder="ann")
    late = answer(interrupt, "no object")

    assert refusals([late, Decision("00gone.x.1.y", "?")], [interrupt, None]) == {}


def test_a_stored_schema_that_cannot_be_used_refuses_answers():
    """A question written with a broken schema refuses with the reason, and no door breaks."""
    interrupt = dataclasses.replace(
        question("ok?", None), response_schema={"$ref": "http://127.0.0.1:9/x"}
    )

    refused = refusals([answer(interrupt, 1)], [interrupt])

    assert "the question's schema can't be used" in refused[interrupt.id]
    assert "not followed" in refused[interrupt.id]


def test_one_bad_answer_refuses_the_whole_set():
    """Each answer of a refused set gets its own receipt: the bad one the reason, a good one why not."""
    good, bad, done = (
        question("good"),
        question("bad"),
        question("done", status=InterruptStatus.ANSWERED, response=1),
    )
    answers = [
        answer(good, {"approve": True}),
        answer(bad, 3),
        answer(done, 3),
        Decision("00gone.x.1.y", 3),
    ]
    found = [good, bad, done, None]

    receipts = receipts_of(answers, found)

    assert [receipt.status for receipt in receipts] == [
        ReceiptStatus.REJECTED,
        ReceiptStatus.REJECTED,
        ReceiptStatus.DUPLICATE,
        ReceiptStatus.UNKNOWN,
    ]
    assert "another answer of the same set was refused" in receipts[0].detail
    assert "does not fit" in receipts[1].detail
    assert [receipt.run_id for receipt in receipts] == ["00run", "00run", "00run", "00gone"]


def test_a_schema_is_worked_out_once():
    """Answers to the same kind of question don't pay for its schema again."""
    validation._compiled.cache_clear()
    for name in ("a", "b", "c"):
        interrupt = question(name)
        refusals([answer(interrupt, {"approve": True})], [interrupt])

    assert validation._compiled.cache_info().misses == 1
