"""Ten thousand answers at once, and more runs than there are slots: others go on, and nothing is stuck."""

from __future__ import annotations

import json
import time

import pytest

from runner import Status
from tests.celery.workers import Site
from tests.chaos.flood_graphs import ASKED
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.graphs,tests.chaos.flood_graphs"}
TIMES = 50
"""So often each question is answered: ten thousand messages, of which two hundred count."""
SLOTS = 4
SLOW = 150
QUICK = 30
"""Seconds in which a run of another graph must end while the flood goes on, on a slow machine."""


@pytest.fixture
def site(empty_site):
    """One worker with few slots."""
    empty_site.ready(1, slots=SLOTS, **GRAPHS)
    return empty_site


def all_questions(site: Site, run) -> list[str]:
    questions, cursor = [], None
    while True:
        page = site.client.interrupts(run=run.id, limit=500, cursor=cursor)
        questions += [question.id for question in page]
        if not page.next:
            return questions
        cursor = page.next


@pytest.mark.timeout(400)
def test_ten_thousand_answers_at_once_hold_up_nobody_else(site):
    """Every question takes one answer; runs of a graph with its own queue end in between, each soon."""
    run = site.client.start("asks_many", "go")
    wait_until(lambda: run.status is Status.INTERRUPTED, "all have asked", seconds=SLOW)
    questions = all_questions(site, run)
    assert len(questions) == ASKED
    with site.redis.pipeline(transaction=False) as pipe:
        for number in range(TIMES):
            for question in questions:
                body = {"v": 1, "interrupt_id": question, "response": number}
                pipe.xadd("runner:responses", {"body": json.dumps(body)})
        pipe.execute()

    slowest = 0.0
    while run.status is not Status.COMPLETED:
        began = time.monotonic()
        assert site.client.start("urgent", "go").wait(SLOW).status is Status.COMPLETED
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < QUICK
    assert run.result().results["count"].output == ASKED
    wait_until(
        lambda: not site.redis.xlen("runner:responses"),
        "every message was let go",
        seconds=SLOW,
    )
    answered = [site.client.interrupt(question) for question in questions]
    assert {(question.status, question.response) for question in answered} == {("answered", 0)}
    assert site.workers[0].alive
