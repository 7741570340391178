"""Decisions that can be taken back for some seconds: the pages, the API, and who is asked meanwhile."""

from __future__ import annotations

import html
from datetime import datetime, timedelta

import pytest

from runner.approvals import Action, Rule
from runner.approvals.rules import Principal
from runner.doors.questions import message, needs_page
from runner.operations.questions import read_question
from runner.server.access import Person
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import Served, Site
from tests.server.test_finance_day import look
from tests.server.test_pages import send

pytestmark = pytest.mark.full

UNDO = 1_000


def refund(ctx):
    rule = Rule(eligible=["group:finance"], title="Refund {amount}", undo=ctx.task)
    return ctx.interrupt(
        "refund", rule=rule, action=Action("shop", "function", "refund", {"amount": 9})
    ).decision


@pytest.fixture
def desk(redis_url):
    site = Site(redis_url, {"refunds": lambda: wired({"refund": refund}).build()})
    login(site, "ana")
    return site


def login(site, name):
    site.as_role("reader", "approver", name=name, groups=["finance"])


def asked(site, undo=UNDO):
    run = site.start("refunds", undo)
    (question,) = run.interrupts()
    return run, question


def page_of(site, question):
    return html.unescape(site.page(f"/q/{question.id}"))


def decide(site, question, decision="approve", **fields):
    return send(site, f"/q/{question.id}", digest=question.digest, decision=decision, **fields)


def test_a_decision_is_taken_back_on_its_page(desk):
    """Without a script: the page says until when, and the question is open again."""
    run, question = asked(desk)
    decided = decide(desk, question).text
    assert "Approved.</b> This takes effect at" in decided
    assert "until then you can take it back" in decided
    login(desk, "ben")
    page = page_of(desk, question)
    assert "Approved by ana." in page
    assert "unless they take it back" in page
    assert ("Take it back</button>" in page, "Approve</button>" in page) == (False, False)
    assert decide(desk, question).status_code == 409
    inbox = desk.page("/inbox?tab=all")
    assert "approved by ana" in inbox
    assert question.id not in desk.page("/inbox?tab=mine")

    login(desk, "ana")
    assert "Take it back</button>" in page_of(desk, question)
    send(desk, f"/q/{question.id}/withdraw_vote", digest=question.digest)
    page = page_of(desk, question)
    assert "Approve</button>" in page
    assert ("approved" in page, "withdrawn" in page or "took" in page) == (True, True)
    assert decide(desk, question, "reject", comment="no").status_code == 200
    assert run.status == "interrupted"


def test_the_api_says_until_when(desk):
    """Like the message of other doors, which has no button any more; a late vote is 410."""
    _, question = asked(desk)
    votes, etag = f"/v1/questions/{question.id}/votes", {"If-Match": f'"{question.digest}"'}
    receipt = desk.http.post(votes, json={"decision": "approve"}, headers=etag)
    assert receipt.json()["status"] == "accepted"
    shown = desk.http.get(f"/v1/questions/{question.id}").json()
    undo = shown["undo"]
    assert (shown["status"], undo["decision"], undo["by"]) == ("open", "approve", "human:|ana")
    (vote,) = shown["votes"]
    begin, end = map(datetime.fromisoformat, (vote["at"], undo["ends_at"]))
    assert end - begin == timedelta(seconds=UNDO)
    login(desk, "ben")
    late = desk.http.post(votes, json={"decision": "approve"}, headers=etag)
    assert (late.status_code, "already decided by ana" in late.json()["detail"]) == (410, True)
    store = desk.app.state.services.store
    view = read_question(store, *store.interrupts([question.id]))
    assert "Approved by ana, who can take it back on its page until" in message(view)
    assert needs_page(view)

    (listed,) = desk.http.get("/v1/questions").json()["items"]
    (of_run,) = desk.http.get(f"/v1/runs/{question.run_id}").json()["interrupts"]
    assert listed["undo"] == of_run["undo"] == undo
    page = html.unescape(desk.page(f"/runs/{question.run_id}"))
    assert "approved by ana, takes effect at" in page

    login(desk, "ana")
    back = desk.http.delete(votes, headers=etag)
    assert back.json()["status"] == "withdrawn_vote", back.text
    assert desk.http.get(f"/v1/questions/{question.id}").json()["undo"] is None


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_the_page_counts_down(desk, browser):
    """By a script; both themes and widths have no violation of accessibility rules."""
    _, question = asked(desk)
    desk.app.state.auth = lambda request: Person(
        Principal("ana"), frozenset({"approver", "reader"}), frozenset({"finance"})
    )
    with Served(desk.app, free_port()) as served:
        page = browser.new_page(base_url=served.url)
        page.goto(f"/q/{question.id}")
        page.click("button:text-is('Approve')")
        page.wait_for_selector("[data-left]:has-text(' s')")
        first = page.inner_text("[data-left]")
        page.wait_for_selector(f"[data-left]:not(:text-is({first.strip()!r}))")
        seen = look(page)
        page.click("button:text-is('Take it back')")
        page.wait_for_selector("button:text-is('Approve')")
        page.close()
    assert not seen
