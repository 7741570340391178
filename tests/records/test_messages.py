from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from runner.errors import UsageError
from runner.records.interrupts import Receipt, ReceiptStatus
from runner.records.messages import AnswerMessage, StartMessage, read, receipt, schemas

SCHEMAS = Path(__file__).parent.parent.parent / "docs" / "reference" / "messages"
ANSWER = {"v": 1, "interrupt_id": "00r.node.1.abc", "response": {"ok": True}}


def body(**changes: object) -> bytes:
    return json.dumps({**ANSWER, **changes}).encode()


def test_an_answer_is_read_with_every_field():
    """A message with all documented fields becomes the answer that it says."""
    message = read(AnswerMessage, body(responder="ann", idempotency_key="k", digest="sha256:1"))

    answer = message.decided("derived", {})

    assert (answer.interrupt_id, answer.response, answer.responder) == (
        "00r.node.1.abc",
        {"ok": True},
        "ann",
    )
    assert (answer.idempotency_key, answer.digest) == ("k", "sha256:1")


def test_an_answer_without_a_key_gets_that_of_its_message():
    """A message that is delivered twice counts once, because its own id is its idempotency key."""
    assert (
        read(AnswerMessage, body()).decided("responses/1-0", {}).idempotency_key
        == "responses/1-0"
    )


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\xff\x00rubbish", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "valid dictionary"),
        (b"{}", "v: Field required"),
        (body(v=2), "v: "),
        (body(v=True), "v: "),
        (body(surprise=1), "surprise: Extra inputs"),
        (body(interrupt_id=""), "interrupt_id"),
        (body(interrupt_id=7), "interrupt_id"),
        (body(reply_to="runner"), "reply_to"),
        (b'{"v":1,"interrupt_id":"a","response":1,"response":2}', "same key twice"),
        (b'{"v":1,"interrupt_id":"a","response":NaN}', "NaN is not JSON"),
        (b'{"v":1,"interrupt_id":"a","response":' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"v":1,"interrupt_id":"a","response":' + b"[" * 100_000, "not valid JSON"),
        (b'{"v":1,"interrupt_id":"a","response":"\\ud800"}', "surrogates"),
    ],
)
def test_what_is_no_answer_is_refused_with_the_reason(sent, reason):
    """A message with anything wrong about it is refused as a whole, and the reason names the place."""
    with pytest.raises(UsageError, match=reason):
        read(AnswerMessage, sent)


def test_null_is_read_and_left_to_the_engine():
    """A null response is a well-formed message: its sender gets a receipt and not silence."""
    assert read(AnswerMessage, body(response=None)).decided("k", {}).response is None


def test_a_start_is_read_with_every_field():
    """A start carries the graph, any JSON task, state, tags and where its receipt goes."""
    sent = {
        "v": 1,
        "graph": "refund",
        "task": [1, None],
        "idempotency_key": "k",
        "invocation_state": {"user": "ann"},
        "tags": {"team": "a"},
        "on_end": "shop.done@shop",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        "reply_to": "runner:replies:mine",
    }

    assert read(StartMessage, json.dumps(sent).encode()).model_dump() == sent


def test_a_receipt_says_what_became_of_which_message():
    """A receipt carries the id of the message, so that its sender can tell several apart."""
    given = Receipt(ReceiptStatus.DUPLICATE, "00r.node.1.abc", "00r", "already answered by ann")

    assert json.loads(receipt("5-0", given).dump()) == {
        "v": 1,
        "status": "duplicate",
        "message_id": "5-0",
        "interrupt_id": "00r.node.1.abc",
        "run_id": "00r",
        "detail": "already answered by ann",
    }


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(schemas()))
def test_the_documented_schemas_are_those_of_the_code(name):
    """Each JSON Schema in the reference is that of the code."""
    assert (SCHEMAS / name).read_text(encoding="utf-8") == schemas()[name]


def test_the_schema_takes_and_refuses_what_the_code_does():
    """A sender that checks its message against the schema finds the same faults as the worker."""
    validator = jsonschema_rs.validator_for(json.loads(schemas()["answer.json"]))

    assert validator.is_valid(ANSWER)
    assert not validator.is_valid({**ANSWER, "v": 2})
    assert not validator.is_valid({**ANSWER, "surprise": 1})
    assert not validator.is_valid({**ANSWER, "reply_to": "runner"})
