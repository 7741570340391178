"""Who decided what, as everybody can see it afterwards."""

from __future__ import annotations

import html
import re

import pytest
import redis

from runner.approvals import Action, Rule
from runner.operations.exports import read_export
from runner.operations.views import archived_run, read_run
from runner.records.json_form import document
from runner.server.pages import inbox, question_list
from runner.store.archive import interface
from runner.store.archive.folder import FolderArchive
from runner.store.redis.keys import Keys
from tests.graphs import wired
from tests.server.conftest import GRAPHS, Site
from tests.server.test_pages import HTML, send

pytestmark = pytest.mark.full


def pay(ctx):
    rule = Rule(eligible=["ana", "ben", "eva"], need=2)
    action = Action("shop", "function", "pay", {"amount": 7})
    return ctx.interrupt("pay?", rule=rule, action=action).decision


@pytest.fixture
def paid(redis_url):
    """A payment that ana approved as it was, and ben and eva with another amount, beside cora's answer."""
    graph = wired({"pay": pay}).build
    outer = wired({"inner": graph()}).build
    site = Site(redis_url, {**GRAPHS, "pay": graph, "outer": outer})
    plain = site.start("approval")
    site.client.respond(plain.interrupts()[0].id, {"ok": True}, responder="cora")
    site.plain, site.run = plain.id, site.start("pay")
    site.question = site.run.interrupts()[0]
    site.client.vote(site.question.id, "approve", by="ana")
    site.client.vote(
        site.question.id, "edit", by="ben", response={"amount": 5}, comment="too much"
    )
    site.client.vote(site.question.id, "approve", by="eva", response={"amount": 5})
    site.work()
    return site


def test_the_run_says_who_decided(paid):
    """Its page, once, its events and its JSON, with a link; who was overruled is not among them."""
    page, nodes = (
        paid.page(f"/runs/{paid.run.id}?node=pay&tab={tab}") for tab in ("graph", "nodes")
    )
    (decision,) = paid.http.get(f"/v1/runs/{paid.run.id}").json()["decided"]
    said = "approved with changes by ben, eva, 2 of 2"

    assert decision["by"] == ["human:|ben", "human:|eva"]
    assert (decision["decision"], decision["have"], decision["need"]) == ("edit", 2, 2)
    for text in (page, nodes):
        assert text.count(said) == text.count(f'href="/q/{paid.question.id}"') == 1
    addresses = [f"/runs/{paid.run.id}?node=pay", f"/runs/{paid.run.id}?tab=events"]
    assert "ben edit: too much" in paid.page(addresses[1])
    paid.as_role("viewer")
    assert not any("too much" in paid.page(one) for one in addresses)


def test_the_archive_says_who_decided(paid, tmp_path):
    """What the store has no more is read from the run's export; its page has no link to the question then."""
    inner = paid.start("outer")
    paid.client.withdraw(inner.interrupts()[0].id, "no", by="eva")
    paid.work()
    store = paid.client.engine.store
    archive = FolderArchive(str(tmp_path))
    paid.app.state.services.archive = archive
    for run_id in (paid.run.id, paid.plain, inner.id):
        view, export = read_run(store, run_id), document(read_export(store, run_id))
        archive.write([interface.archived_run(export)])
        paid.client.run(run_id).remove()
        assert view.decided
        assert archived_run(archive.read(run_id)).decided == view.decided
    page = paid.page(f"/runs/{paid.run.id}")
    assert "approved with changes by ben, eva, 2 of 2" in page
    assert f"/q/{paid.question.id}" not in page


def test_the_question_says_who_decided(paid):
    """Its own page names all whose votes decided, not only the last; a plain answer's names who gave it."""
    paged = paid.page(f"/q/{paid.question.id}").partition("Outcome")[2]
    plain = next(one for one in read_run(paid.client.engine.store, paid.plain).decided)

    assert "approved with changes by ben, eva, 2 of 2" in paged
    answer = paid.page(f"/q/{plain.id}").partition("Outcome")[2]
    assert "answered by cora" in answer


def test_a_decided_question_is_asked_again_in_a_fork(paid):
    """The link of an operator shows the plan of a new run that begins with the asking node."""
    path = f"/q/{paid.question.id}"
    page = paid.page(path)
    (link,) = re.findall(r'href="([^"]*)">Ask again', page)
    plan = paid.http.get(html.unescape(link), headers=HTML)

    assert (plan.status_code, "Fork from a node" in plan.text) == (200, True)
    assert send(paid, f"/runs/{paid.run.id}/fork", node="pay").status_code == 303
    paid.work()
    (asked,) = paid.client.interrupts(name="pay?")
    assert f"/q/{asked.id}" in paid.page("/inbox")
    assert "Ask again" not in paid.page(f"/q/{asked.id}")
    paid.as_role("decide")
    assert "Ask again" not in paid.page(path)


def test_a_rejection_names_who_rejected(site):
    """And no one who approved before; its colour is that of a failure, at each place."""
    question = site.start("refund", requester="cora").interrupts()[0]
    site.client.engine.directory = "tests.server.test_inbox:FINANCE"
    site.client.vote(question.id, "approve", by="ana")
    site.client.vote(question.id, "reject", by="ben", comment="not this customer")

    (decision,) = read_run(site.client.engine.store, question.run_id).decided
    assert decision.sentence == "rejected by ben"
    assert decision.comments == {"human:|ben": "not this customer"}
    for path in (f"/runs/{question.run_id}", "/inbox?tab=done", f"/q/{question.id}"):
        page = site.page(path)
        assert ('data-state="rejected"' in page, 'data-state="answered"' in page) == (
            True,
            False,
        )


def listed(site, query):
    """The questions of all pages of *Done*, page by page."""
    pages, cursor = [], ""
    while cursor is not None:
        page = site.page(f"/inbox?tab=done&{query}&cursor={cursor}")
        pages.append(re.findall(r'<tr data-row id="q-([^"]+)"', page))
        following = re.search(r'rel="next" href="[^"]*cursor=([^"]+)"', page)
        cursor = following and following[1]
    return pages


@pytest.mark.parametrize("door", ["api", "client"])
def test_who_withdrew_a_question_is_said(paid, door):
    """On the run's page, in its events, the API and *Done* by me; control: nobody known."""
    run, other = paid.start("approval"), paid.start("approval")
    question, reason = run.interrupts()[0].id, "the wrong order"
    {
        "api": lambda: paid.http.post(
            f"/v1/questions/{question}:withdraw", json={"reason": reason}
        ),
        "client": lambda: paid.client.withdraw(question, reason, by="ana"),
    }[door]()
    paid.client.withdraw(other.interrupts()[0].id)

    page = paid.page(f"/runs/{run.id}")
    events = paid.page(f"/runs/{run.id}?tab=events")
    assert "withdrawn by ana" in page
    assert "ana: the wrong order" in events
    history = paid.page(f"/q/{question}")
    assert re.search(r"<b>ana</b> withdrew it +<q>the wrong order</q>", history)
    found = paid.http.get("/v1/questions?status=withdrawn").json()["items"]
    assert [each["withdrawal"].get("by") for each in found] == [None, "human:|ana"]
    assert [one for page in listed(paid, "by=me") for one in page] == [
        question,
        paid.question.id,
    ]


def test_done_lists_what_was_decided_by_page_whatever_else_happened(paid, monkeypatch):
    """Neither notices nor the audit are needed; *By me* has only what one voted on or answered."""
    monkeypatch.setattr(question_list, "ROWS", 2)
    monkeypatch.setattr(inbox, "ROWS", 2)
    plain = paid.start("approval").interrupts()[0]
    paid.client.respond(plain.id, {"ok": True}, responder="ben")
    withdrawn = paid.start("approval").interrupts()[0]
    paid.client.withdraw(withdrawn.id, "not needed")
    still_open = paid.start("approval").interrupts()[0]
    with redis.Redis.from_url(paid.settings.redis_url) as raw:
        keys = Keys(paid.settings.namespace)
        raw.delete(keys.notices, keys.audit)

    pages = listed(paid, "")
    first, second, third, fourth = (name for page in pages for name in page)
    assert (first, second, third) == (withdrawn.id, plain.id, paid.question.id)
    assert still_open.id not in {first, second, third, fourth}
    assert [len(page) for page in pages] == [2, 2]
    for name, expected in {
        "ben": [plain.id, paid.question.id],
        "cora": [fourth],
        "zoe": [],
    }.items():
        paid.as_role("reader", "approver", name=name)
        assert [one for page in listed(paid, "by=me") for one in page] == expected
    assert listed(paid, f"run={paid.run.id}") == [[paid.question.id]]
    assert ">ben, eva</td>" in paid.page(f"/inbox?tab=done&run={paid.run.id}")


def test_the_audit_of_a_run_leads_to_those_inside_it(redis_url):
    """Entries are kept for each run: who reads that of the outer one learns where the decision is."""
    inner = wired({"pay": pay}).build()
    site = Site(redis_url, {"outer": lambda: wired({"inner": inner}).build()})
    run = site.start("outer")
    question = run.interrupts()[0]
    for who in ("ana", "ben"):
        site.client.vote(question.id, "approve", by=who)
    site.work()
    page = site.page(f"/runs/{run.id}?tab=audit")

    (link,) = re.findall(r'href="([^"]+)">pay\?</a> approved by ana, ben, 2 of 2', page)
    audit = site.page(html.unescape(link))
    assert re.search(r"decided <b>approve</b>", audit)
    assert (
        "approved by ana" not in audit.partition('id="audit"')[2]
    )  # control: it has the entries


def test_the_audit_is_read_without_a_key(paid):
    """It says that it is not signed, and who approved; a run that asked no one has nothing there."""
    page = paid.page(f"/runs/{paid.run.id}?tab=audit")
    other = paid.start("echo", 1)

    assert "Not signed" in page
    assert re.search(r"voted <b>edit</b>.*?>ben</td>", page)
    assert re.search(r"decided <b>edit</b>", page)
    assert ">None<" not in page  # what is not sealed has no number yet
    assert "nothing of this run" in paid.page(f"/runs/{other.id}?tab=audit")
