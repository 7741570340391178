from __future__ import annotations

import pytest

from examples.approvals.graph import refund
from examples.approvals.inbox import ANSWERED, NOTICES, Inbox
from examples.approvals.page import page
from runner import Status

ASKED = {"kind": "interrupt.asked", "detail": "q1", "question": '{"id": "q1", "digest": "sha256:1"}'}


@pytest.fixture
def inbox(redis_url):
    return Inbox(redis_url)


def test_a_small_refund_is_paid_at_once():
    """Nobody is asked about what is below the limit."""
    result = refund()({"order": 1, "amount": 20})

    assert result.status is Status.COMPLETED
    assert result.execution_order == ["look_up", "pay", "letter"]


def test_a_rejected_refund_is_not_paid():
    """A no is an answer: the run completes, and nothing behind the question runs."""
    graph = refund()
    (question,) = graph({"order": 1, "amount": 200}).interrupts
    answer = {"interruptId": question.id, "response": {"decision": "reject", "comment": "no receipt"}}
    result = graph([{"interruptResponse": answer}])

    assert result.status is Status.COMPLETED
    assert result.execution_order == ["look_up", "approve"]


def test_a_notice_that_comes_twice_opens_nothing_again(inbox):
    """Notices come at least once: a repeat of one that was closed changes nothing."""
    inbox.redis.xadd(NOTICES, ASKED)
    assert inbox.follow() == 1
    assert [question["id"] for question in inbox.questions()] == ["q1"]

    inbox.redis.xadd(NOTICES, {"kind": "interrupt.answered", "detail": "q1", "question": ""})
    inbox.redis.xadd(NOTICES, ASKED)
    assert inbox.follow() == 2
    assert list(inbox.questions()) == []
    assert inbox.redis.hexists(ANSWERED, "q1")


def test_what_a_dead_reader_left_is_taken_over(inbox, redis_url):
    """A notice that was read and not applied is not lost with its reader."""
    inbox.redis.xadd(NOTICES, ASKED)
    inbox.redis.xreadgroup("approvals", "gone", {NOTICES: ">"})
    inbox.redis.xclaim(NOTICES, "approvals", "gone", 0, [inbox.redis.xrange(NOTICES)[0][0]], idle=3_600_000)

    other = Inbox(redis_url)
    other.recover()
    assert [question["id"] for question in other.questions()] == ["q1"]


def test_the_page_shows_what_was_asked_and_runs_none_of_it():
    """Text of agents and users is text on the page, whatever it holds."""
    asked = {
        "id": "q1",
        "name": "<script>alert(1)</script>",
        "node_id": "n",
        "run_id": "r",
        "reason": {"note": "</pre><script>"},
        "response_schema": {"properties": {"decision": {"enum": ["approve", "reject"]}}},
    }
    shown = page([asked], {})

    assert "<script>" not in shown
    assert "&quot;decision&quot;: &quot;approve&quot;" in shown
