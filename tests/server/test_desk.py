"""A desk that decides many questions a day: whose questions they are, and the way from one to the next."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from html import unescape
from types import SimpleNamespace
from urllib.parse import quote, urlencode

import pytest

from runner.approvals import Action, Rule
from runner.approvals.rules import Principal
from runner.records.interrupts import title_of
from runner.server.access import Person
from runner.server.pages.amounts import amount_of, sums_of
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import Served, Site
from tests.server.test_finance_day import look
from tests.server.test_inbox import name_it, rows
from tests.server.test_pages import HTML, send
from tests.waiting import wait_until


def refund(ctx):
    stages = [Rule(eligible=[name]) for name in ctx.task.get("stages", ())]
    rule = Rule(
        eligible=["anyone" if stages else ctx.task.get("eligible", "group:finance")],
        stages=stages,
        escalate=[(3_600, [ctx.task["escalate"]])] if "escalate" in ctx.task else (),
        need=ctx.task.get("need", 1),
        exclude=["requester"],
        title="Refund {amount} {currency}",
    )
    call = {"amount": 9.5, "currency": "EUR", "iban": "DE89", **ctx.task}
    for name in ("need", "eligible", "escalate", "stages"):
        call.pop(name, None)
    return ctx.interrupt(
        "refund", rule=rule, action=Action("shop", "function", "refund", call)
    ).decision


GRAPHS = {
    "refunds": lambda: wired({"refund": refund}).build(),
    "names": lambda: wired({"name": name_it}).build(),
}


@pytest.fixture
def desk(redis_url):
    site = Site(redis_url, GRAPHS)
    as_person(site, "ana")
    return site


def as_person(site, name):
    site.as_role("reader", "approver", name=name, groups=["finance"])


def asked(site, task=None, requester="cora", graph="refunds", **options):
    (question,) = site.start(graph, task or {}, requester=requester, **options).interrupts()
    return question


def vote(site, question, decision="approve", **fields):
    return send(site, f"/q/{question.id}", digest=question.digest, decision=decision, **fields)


def listed(site, **query):
    reply = site.http.get("/v1/questions", params=query)
    assert reply.status_code == 200, reply.text
    return {item["id"] for item in reply.json()["items"]}


def shown(site, part, **query):
    """The questions of a tab, which the API lists, too."""
    ids = set(rows(site, "&".join([f"tab={part}", *(f"{k}={v}" for k, v in query.items())])))
    assert ids == listed(site, **{part: True, **query})
    return ids


@pytest.mark.full
def test_for_me_is_what_i_may_decide_and_have_not(desk):
    """My own request, another's stage and what I voted on are not in it; a vote that an edit made void is."""
    first, second = (asked(desk, {"need": 2}) for _ in range(2))
    own = asked(desk, requester="ana")
    plain = asked(desk, {"assignees": ["ana"]}, requester="ana", graph="names")
    assert shown(desk, "mine") == {first.id, second.id, plain.id}
    assert shown(desk, "requested") == {own.id, plain.id}
    assert "3</span> for you" in desk.page("/")

    assert "Your vote counts" in vote(desk, first).text
    assert (shown(desk, "mine"), shown(desk, "voted")) == ({second.id, plain.id}, {first.id})
    assert "2</span> for you" in desk.page("/")
    assert "<title>For me (2)" in desk.page("/inbox?tab=mine")
    as_person(desk, "ben")
    assert shown(desk, "mine") == {first.id, second.id, own.id}
    form = {"f.amount": "1.5", "f.currency": "EUR", "f.iban": "DE89", "confirmed": "yes"}
    assert "Your vote counts" in vote(desk, first, "edit", **form).text
    as_person(desk, "ana")
    assert (shown(desk, "mine"), shown(desk, "voted")) == (
        {first.id, second.id, plain.id},
        set(),
    )
    for query in ({"mine": 1, "voted": 1}, {"by": "ana"}, {"voted": 1, "status": "decided"}):
        assert desk.http.get("/v1/questions", params=query).status_code == 422


@pytest.mark.full
def test_what_anyone_may_decide_is_for_me(desk):
    """A rule that names nobody: until I vote; Home and the API count the same."""
    question, voted = (asked(desk, {"need": 2, "eligible": "anyone"}) for _ in range(2))
    later = asked(desk, {"eligible": "user:zoe", "escalate": "anyone"})
    assert "Your vote counts" in vote(desk, voted).text
    assert shown(desk, "mine") == {question.id}
    assert "1</span> for you" in desk.page("/")
    assert shown(desk, "voted") == {voted.id}
    assert later.id in set(rows(desk, "tab=all"))
    (moment,) = desk.http.get(f"/v1/questions/{later.id}").json()["escalates_at"]
    assert moment == later.asked_at + 3_600_000
    assert later.id in listed(desk)


@pytest.mark.full
def test_a_requester_without_a_role_sees_what_they_asked_for(desk):
    """Questions of their runs, without payloads; nothing waits for them."""
    question = asked(desk, {"amount": 4711})
    asked(desk, requester="dan")
    desk.as_role("viewer", name="cora")

    page = desk.page("/inbox?tab=requested")
    assert shown(desk, "requested") == {question.id}
    assert ("4711" in page, shown(desk, "mine"), shown(desk, "voted")) == (False, set(), set())


@pytest.mark.full
def test_done_is_filtered_by_person_date_and_graph(desk):
    """On the page and in the API; a search covers open and decided questions, and runs by their tags."""
    by_ana, by_ben, waits = (
        asked(desk, {"iban": f"DE{number}"}, tags={"customer": f"c{number}-x"})
        for number in (4711, 4711, 4711)
    )
    vote(desk, by_ana)
    as_person(desk, "ben")
    vote(desk, by_ben, "reject", comment="Twice.")
    today = datetime.now(UTC).date()
    yesterday, tomorrow = today - timedelta(1), today + timedelta(1)
    for query, ids in {
        "by=ana": {by_ana.id},
        "by=me": {by_ben.id},
        "by=eva": set(),
        "graph=names": set(),
        "text=twice": set(),
        f"since={yesterday}&until={tomorrow}": {by_ana.id, by_ben.id},
        f"since={tomorrow}": set(),
        f"until={yesterday}": set(),
    }.items():
        assert set(rows(desk, f"tab=done&{query}")) == ids, query
    early = datetime.now(UTC).hour < 12
    zone, offset = ("Etc/GMT%2B12", -12) if early else ("Etc/GMT-14", 14)
    there = datetime.now(timezone(timedelta(hours=offset))).date()
    assert there != today
    for day, ids in ((there, {by_ana.id, by_ben.id}), (today, set())):
        assert set(rows(desk, f"tab=done&since={day}&until={day}&zone={zone}")) == ids
    for wrong in (
        "since=soon",
        "since=2026-11-28&zone=Moon",
        "since=2026-11-28&zone=../x",
        "until=2026-11-28T15:00",
    ):
        assert desk.http.get(f"/inbox?tab=done&{wrong}", headers=HTML).status_code == 422
    soon = datetime.fromtimestamp(time.time() + 60, UTC).isoformat()
    assert listed(desk, status="decided", by="ana", until=soon) == {by_ana.id}
    assert listed(desk, status="decided", since=soon) == set()

    everything = desk.page("/inbox?tab=all&text=4711")
    found = re.findall(r'<tr data-row id="q-([^"]+)"', everything)
    assert (found[0], set(found[1:])) == (waits.id, {by_ana.id, by_ben.id})
    assert everything.count("customer=c4711-x") == 3


@pytest.mark.full
def test_a_decision_leads_to_the_next_question_of_its_list(desk):
    """The receipt says it in words, with the number left; the filter is kept, and nothing else."""
    questions = [asked(desk, {"amount": amount}) for amount in range(1, 4)]
    other = asked(desk, {"assignees": ["ana"]}, graph="names")
    page = desk.page("/inbox?tab=mine&graph=refunds&evil=//evil.example")
    paths = [unescape(path) for path in re.findall(r'<a href="(/q/[^"]+)"', page)]
    assert paths == [f"/q/{one.id}?tab=mine&graph=refunds" for one in questions]

    middle = desk.page(paths[1])
    assert f'href="{paths[0]}" rel="previous"'.replace("&", "&amp;") in middle
    sent = send(desk, paths[1], digest=questions[1].digest, decision="approve").text
    assert "<b>Approved.</b> <code>refund</code> runs." in sent
    (following,) = re.findall(r'class="button" href="([^"]+)"[^>]*>Next: Refund 3 EUR<', sent)
    assert unescape(following) == paths[2]
    assert ">2 left<" in sent
    assert f'href="/inbox?tab=mine&amp;graph=refunds#q-{questions[2].id}">Inbox<' in sent
    sent = send(desk, paths[2], digest=questions[2].digest, decision="approve").text
    (following,) = re.findall(r'class="button" href="([^"]+)"[^>]*>Next: Refund 1 EUR<', sent)
    assert unescape(following) == paths[0]
    sent = send(
        desk, paths[0], digest=questions[0].digest, decision="reject", comment="No."
    ).text
    assert "<b>Rejected.</b> <code>refund</code> does not run." in sent
    assert "Nothing is left of this list" in sent
    assert "Next" not in desk.page(f"/q/{other.id}")


@pytest.mark.full
def test_the_list_of_an_address_is_no_way_out(desk):
    """A tab that doesn't exist is refused, and what a filter says is text; a claim comes back to the list."""
    question = asked(desk)
    path = f"/q/{question.id}"
    assert desk.http.get(f"{path}?tab=//evil.example", headers=HTML).status_code == 422
    page = desk.page(f"{path}?tab=all&tag=%22%3E%3Cscript%3E")
    assert "<script>" not in page
    claimed = desk.http.post(
        f"{path}/claim?tab=all&graph=%0d%0aX-Evil:1&next=//evil.example",
        data=form_of(desk, question),
        headers={**HTML, "sec-fetch-site": "same-origin"},
        follow_redirects=False,
    )
    assert claimed.status_code == 303, claimed.text
    assert claimed.headers["location"] == f"{path}?tab=all&graph=%0D%0AX-Evil%3A1"


def form_of(site, question):
    page = site.page(f"/q/{question.id}")
    return {
        name: re.search(rf'name="{name}" value="([^"]*)"', page)[1]
        for name in ("form_token", "digest", "shown")
        if f'name="{name}"' in page
    }


def cells(text):
    """The texts of a table's rows, by column."""
    rows = re.findall(r"<tr data-row.*?</tr>", text, re.DOTALL)
    found = [re.findall(r'<td data-label="(?!votes)[^>]*>(.*?)</td>', row) for row in rows]
    return [[re.sub("<[^>]*>", "", cell) for cell in row] for row in found]


@pytest.mark.full
def test_equal_questions_are_a_table_with_sums(desk):
    """Arguments that differ are columns, equal ones stand above; a row says why it can't be decided here."""
    calls = (
        (10.1, "EUR", "DE89"),
        (20.2, "EUR", "DE89"),
        (5, "USD", "DE90"),
        (1, "EUR", "DE89"),
    )
    questions = [
        asked(
            desk,
            {"need": 2, "amount": amount, "currency": currency, "iban": iban, "to": "Acme"},
        )
        for amount, currency, iban in calls
    ]
    own = asked(desk, {"need": 2, "to": "Acme"}, requester="ana")
    vote(desk, questions[3])
    ids = [one.id for one in (*questions, own)]
    query = "&".join(f"q={name}" for name in ids)
    text = desk.page(f"/inbox/together?{query}&graph=refunds&tab=all")

    assert cells(text)[:3] == [
        ["10.10", "EUR", "DE89"],
        ["20.20", "EUR", "DE89"],
        ["5.00", "USD differs", "DE90 differs"],
    ]
    assert text.count("Acme") == 1
    assert "<b>3</b> can be decided here: <b>30.30 EUR, 5.00 USD</b> in all" in re.sub(
        "</?data[^>]*>", "", text
    )
    assert re.findall(r'name="pick" value="([^"]+)"', text) == ids[:3]
    assert ("not here: you have voted" in text, "not here: who asked for this" in text) == (
        True,
        True,
    )

    form = {
        "q": ids,
        "digest": [one.digest for one in (*questions, own)],
        "decision": "approve",
    }
    path = "/inbox/together?tab=all&graph=refunds"
    none = send(desk, path, **form)
    assert (none.status_code, "Select at least one" in none.text) == (422, True)
    as_person(desk, "ben")
    vote(desk, questions[0])
    vote(desk, questions[1], "reject", comment="No.")
    as_person(desk, "ana")
    sent = send(desk, path, pick=[*ids[:2], own.id], **form).text
    (result,) = re.findall(r'id="result" data-failed="2"><p>(.*?)</div>', sent, re.DOTALL)
    assert "<b>1 approved</b>, <b>2 not</b>: " in result
    assert 'href="/inbox?tab=all&amp;graph=refunds">Back to the inbox' in result
    votes = [len(desk.client.engine.store.votes(name)) for name in ids]
    assert votes == [2, 1, 0, 1, 0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("decision", "need", "words"),
    [
        ("approve", 1, "<b>Approved.</b> <code>refund</code> runs."),
        ("approve", 2, "<b>Your vote counts.</b> 1 of 2"),
        ("reject", 1, "<b>Rejected.</b> <code>refund</code> does not run."),
    ],
)
def test_a_decision_sent_twice_counts_as_it_did(desk, decision, need, words):
    """As by a double click; another decision, and another person's, is not counted, and the page says so."""
    one, other = (asked(desk, {"need": need}) for _ in range(2))
    for _ in range(2):
        sent = vote(desk, one, decision, comment="So.")
        assert (sent.status_code, words in sent.text) == (200, True)
    opposite = {"approve": "reject", "reject": "approve"}[decision]
    late = vote(desk, one, opposite, comment="No.")
    assert (late.status_code, "<b>Not counted</b>" in late.text) == (409, True)
    form = {"q": [one.id, other.id], "digest": [one.digest, other.digest]}
    for _ in range(2):
        form |= {"pick": [other.id], "decision": decision, "comment": "So."}
        assert 'id="result" data-failed="0"' in send(desk, "/inbox/together", **form).text
    as_person(desk, "ben")
    late = vote(desk, one, opposite, comment="No.")
    assert ("<b>Not counted</b>" in late.text) == (need == 1)
    assert ("already decided by ana" in late.text) == (need == 1)
    assert "<q>No.</q>" in late.text or need == 2


def test_the_result_of_a_run_names_its_questions(desk):
    """As pages do: with the title of the rule, which the arguments fill."""
    question = asked(desk)
    (found,) = desk.client.run(question.run_id).wait(5).interrupts
    assert found.title == title_of(question) != ""


@pytest.mark.full
def test_a_vote_of_an_earlier_stage_is_not_one_of_the_next(redis_url):
    """Who voted in the first stage hears in the second that it does not count."""
    rule = Rule(stages=[Rule(), Rule()])
    action = Action("shop", "function", "refund", {"amount": 9})
    node = {"refund": lambda ctx: ctx.interrupt("refund", rule=rule, action=action)}
    site = Site(redis_url, {"twice": lambda: wired(node).build()})
    as_person(site, "ana")
    question = asked(site, graph="twice")
    first, again = (vote(site, question) for _ in range(2))
    assert "<b>Your vote counts.</b>" in first.text
    assert (again.status_code, "<b>Not counted</b>" in again.text) == (409, True)


@pytest.mark.full
def test_an_answer_sent_twice_counts_as_it_did(desk):
    """Another answer does not."""
    question = asked(desk, {"assignees": ["ana"]}, graph="names")
    for answer, status in (("Fluffy", 200), ("Fluffy", 200), ("Rex", 409)):
        fields = {"digest": question.digest, "f.answer": answer}
        sent = send(desk, f"/q/{question.id}", **fields)
        goes_on = "The node name goes on." in sent.text
        assert (sent.status_code, goes_on) == (status, status == 200)


@pytest.mark.full
def test_any_name_of_a_node_leads_to_its_question(redis_url):
    """From each list and page, and by each of its own forms."""
    name = "pay 50% off? #1 & it's"
    site = Site(redis_url, {"refunds": lambda: wired({name: refund}).build()})
    as_person(site, "ana")
    question = asked(site, requester="cora")
    site.as_role("reader", "approver", "operator", name="ana", groups=["finance"])
    path = f"/q/{quote(question.id)}"
    for page in ("/", "/inbox?tab=all", f"/runs/{question.run_id}", path):
        text = site.http.get(page, headers=HTML).text
        links = re.findall(r'(?:href|action|data-page)="(/q/[^"]+)"', text)
        assert {link.partition("?")[0] for link in links} <= {
            path,
            *(f"{path}/{act}" for act in ("claim", "comment", "reassign")),
        }
        assert links, page
    assert send(site, f"{path}/claim", digest=question.digest).status_code == 303


@pytest.mark.full
def test_a_graph_names_its_runs_by_their_questions(desk):
    """By the open one, else by the last that was decided; who may not read payloads sees the name."""
    first = asked(desk, {"amount": 1})
    vote(desk, first)
    asked(desk, {"amount": 2})

    def names():
        page = desk.http.get("/graphs/refunds", headers=HTML).text
        return re.findall(r'<th scope="row" class="cut" title="([^"]*)"><a href="/runs/', page)

    assert names() == ["Refund 2 EUR", "Refund 1 EUR"]
    desk.as_role("viewer")
    assert names() == ["refund", "refund"]


@pytest.mark.full
def test_a_claim_of_another_person_asks_before_a_decision(desk):
    """What was typed stays; who says so decides nevertheless, and so does who has claimed it."""
    for name, fields in (("ana", {"despite": "human:|cfo"}), ("cfo", {})):
        question = asked(desk)
        as_person(desk, "cfo")
        send(desk, f"/q/{question.id}/claim", digest=question.digest)
        as_person(desk, name)
        page = desk.page(f"/q/{question.id}")
        assert ("cfo works on this" in page) == (name == "ana")
        assert (">Release" in page, ">Claim<" in page) == (name == "cfo", False)
        if name == "ana":
            for wrong in ({}, {"despite": "human:|ben"}):
                refused = vote(desk, question, "reject", comment="too much", **wrong)
                assert (refused.status_code, "too much</textarea>" in refused.text) == (
                    409,
                    True,
                )
            assert desk.client.interrupt(question.id).is_open
        assert vote(desk, question, **fields).status_code == 200
        assert not desk.client.interrupt(question.id).is_open


@pytest.mark.full
def test_a_claim_that_has_lapsed_is_shown_nowhere(desk):
    """The question can be claimed again; until then nobody, not even who had it, is named or asked."""
    question = asked(desk)
    path, api = f"/q/{question.id}", f"/v1/questions/{question.id}"
    as_person(desk, "cfo")
    assert desk.http.post(f"{api}:claim", json={"ttl": 1}).json()["status"] == "accepted"
    assert "claimed by cfo until" in desk.page(path)
    wait_until(lambda: not desk.http.get(api).json()["claim"], "the claim lapses")
    for name in ("cfo", "ana"):
        as_person(desk, name)
        page = desk.page(path)
        assert (">Release" in page, ">Claim<" in page) == (False, True)
        for text in (page, desk.page("/inbox?tab=mine")):
            assert "claimed by" not in text
    assert send(desk, f"{path}/claim", digest=question.digest).status_code == 303
    assert vote(desk, question).status_code == 200
    assert desk.http.get(api).json()["claim"] == ""


@pytest.mark.full
def test_a_plain_question_is_claimed_and_commented(desk):
    """As one with a rule, by who may answer it: on pages, in the API and at the command line."""
    question = asked(desk, {"assignees": ["ana", "cfo"]}, graph="names")
    path, api = f"/q/{question.id}", f"/v1/questions/{question.id}"
    as_person(desk, "cfo")
    assert send(desk, f"{path}/claim", digest=question.digest).status_code == 303
    assert send(desk, f"{path}/comment", comment="With care.").status_code == 303
    as_person(desk, "ben")
    for operation, body in {"claim": {}, "comment": {"comment": "Me, too."}}.items():
        assert desk.http.post(f"{api}:{operation}", json=body).status_code == 403
    assert "Coordinate with others" not in desk.page(path)

    as_person(desk, "ana")
    page = desk.page(path)
    assert "cfo works on this" in page
    assert "One answer by ana, cfo" in page
    assert "<p>With care.</p>" in page
    assert "claimed by cfo" in desk.page("/inbox?tab=mine")
    shown_to_programs = desk.http.get(api).json()
    assert shown_to_programs["claim"] == "human:|cfo"
    assert [item["comment"] for item in shown_to_programs["comments"]] == ["With care."]
    assert desk.http.post(f"{api}:claim").status_code == 409
    fields = {"digest": question.digest, "f.answer": "Fluffy"}
    assert send(desk, path, **fields).status_code == 409
    assert desk.client.interrupt(question.id).is_open
    assert send(desk, path, despite="human:|cfo", **fields).status_code == 200
    assert desk.client.interrupt(question.id).response == "Fluffy"


def test_a_list_shows_who_asked_a_plain_question(desk):
    """In the inbox and the API, as of one with a rule."""
    asked(desk, graph="names", requester="cora")
    assert '<td data-label="from" class="cut">cora</td>' in desk.page("/inbox?tab=all")
    (item,) = desk.http.get("/v1/questions").json()["items"]
    assert item["requester"] == "human:|cora"


def call_back(ctx):
    schema = {
        "type": "object",
        "properties": {"reached": {"type": "boolean"}, "minutes": {"type": "integer"}},
        "required": ["reached"],
    }
    return ctx.interrupt("call back?", ctx.task, response_schema=schema)


@pytest.mark.full
def test_plain_questions_are_answered_together(redis_url):
    """By one answer in the same form, over a table of their reasons; each has its own receipt."""
    desk = Site(redis_url, {"calls": lambda: wired({"call": call_back}).build()})
    as_person(desk, "ana")
    questions = [
        asked(desk, {"customer": number, "amount": 9.5, "desk": "south"}, graph="calls")
        for number in (4711, 4712, 4713)
    ]
    ids = [one.id for one in questions]
    inbox = desk.page("/inbox?tab=all")
    picks = re.findall(r'name="q" value="([^"]+)"', inbox)
    assert picks == ids
    query = "&".join(f"q={name}" for name in ids)
    page = desk.page(f"/inbox/together?{query}")
    assert [cell for cell in ("4711", "4712", "4713") if f">{cell}<" in page] == [
        "4711",
        "4712",
        "4713",
    ]
    assert (page.count("south"), ">Answer <span" in page, ">Approve <span" in page) == (
        1,
        True,
        False,
    )
    assert ("28.50" in page, "Not verified" in page) == (True, True)

    form = {"q": ids, "digest": [one.digest for one in questions], "decision": "respond"}
    wrong = send(desk, "/inbox/together", pick=ids, **form, **{"f.minutes": "soon"})
    assert wrong.status_code == 422
    assert set(re.findall(r'id="p\.(\w+)"', wrong.text)) == {"reached", "minutes"}
    assert 'value="soon"' in wrong.text
    assert all(desk.client.interrupt(name).is_open for name in ids)
    for decision in ("approve", "reject"):
        refused = send(desk, "/inbox/together", pick=ids, **{**form, "decision": decision})
        assert refused.status_code == 422
    as_person(desk, "ben")
    send(desk, f"/q/{ids[2]}/claim", digest=questions[2].digest)
    as_person(desk, "ana")
    page = desk.page(f"/inbox/together?{query}")
    assert "not here: ben works on it" in page
    sent = send(desk, "/inbox/together", pick=ids[:1], **form, **{"f.reached": "true"}).text
    assert "<b>1 answered</b>" in sent
    body = {"decision": "respond", "response": {"reached": False}}
    body["digests"] = {one.id: one.digest for one in questions}
    receipts = desk.http.post("/v1/questions:vote", json=body).json()["items"]
    assert [one["status"] for one in receipts] == ["duplicate", "accepted", "accepted"]
    assert [desk.client.interrupt(name).response["reached"] for name in ids] == [
        True,
        False,
        False,
    ]


def pay_in_words(ctx):
    rule = Rule(eligible=["group:finance"]) if ctx.task["has_rule"] else None
    answer = ctx.interrupt("pay?", ctx.task["reason"], rule=rule)
    return answer.decision if rule else answer


@pytest.mark.full
@pytest.mark.parametrize("has_rule", [False, True])
def test_each_reason_is_shown_where_it_is_decided(redis_url, has_rule):
    """As columns if it is an object, otherwise in its row, whichever question is the first."""
    desk = Site(redis_url, {"pays": lambda: wired({"pay": pay_in_words}).build()})
    as_person(desk, "ana")
    reasons = [{"a": 4711}, "pay the other one", ["pay", "the third"]]
    questions = [
        asked(desk, {"reason": reason, "has_rule": has_rule}, graph="pays")
        for reason in reasons
    ]
    for order in (questions, questions[::-1]):
        query = "&".join(f"q={one.id}" for one in order)
        text = desk.page(f"/inbox/together?{query}")
        found = {
            re.search(r'name="q" value="([^"]+)', row)[1]: row
            for row in re.findall(r"<tr data-row.*?</tr>", text, re.DOTALL)
        }
        object_row, text_row, list_row = (found[one.id] for one in questions)
        assert (">4711<" in object_row, "Why" in object_row) == (True, False)
        assert "pay the other one" in text_row
        assert "the third" in list_row
        assert text.index("Not verified") < text.index("<tbody>")


@pytest.mark.full
def test_a_claim_made_after_the_table_was_opened_counts(desk):
    """The question is not decided with the others, and the result says why; one's own claim is no bar."""
    questions = [asked(desk, {"amount": amount}) for amount in (1, 2, 3)]
    ids = [one.id for one in questions]
    form = {"q": ids, "digest": [one.digest for one in questions], "pick": ids}
    send(desk, f"/q/{ids[2]}/claim", digest=questions[2].digest)
    as_person(desk, "cfo")
    send(desk, f"/q/{ids[1]}/claim", digest=questions[1].digest)
    as_person(desk, "ana")
    none = send(desk, "/inbox/together", decision="reject", **form)
    assert (none.status_code, 'id="result"' in none.text) == (422, False)
    sent = send(desk, "/inbox/together", decision="approve", **form).text
    (result,) = re.findall(r'id="result" data-failed="1"><p>(.*?)</div>', sent, re.DOTALL)
    assert "<b>2 approved</b>, <b>1 not</b>: " in result
    assert "cfo works on it" in result
    assert [desk.client.interrupt(name).is_open for name in ids] == [False, True, False]


@pytest.mark.full
@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_question_that_somebody_changed_is_not_decided_in_a_table(desk, decision):
    """Its table shows only what was proposed: the row says who changed it, also after it was opened."""
    questions = [asked(desk, {"amount": amount, "need": 2}) for amount in (1, 2)]
    ids = [one.id for one in questions]
    as_person(desk, "cfo")
    edit = {"decision": "edit", "confirmed": "yes", "f.amount": "20"}
    vote(desk, questions[1], **edit)
    as_person(desk, "ana")
    assert "not here: somebody changed it: open it" in desk.page(
        f"/inbox/together?{urlencode({'q': ids}, doseq=True)}"
    )
    form = {"q": ids, "digest": [one.digest for one in questions], "pick": ids}
    sent = send(desk, "/inbox/together", decision=decision, comment="no", **form).text
    assert "<b>1 not</b>: " in sent
    assert "somebody changed it: open it" in sent
    assert [vote["by"] for vote in desk.votes(questions[1])] == ["human:|cfo"]


@pytest.mark.full
@pytest.mark.parametrize("said", [["cfo edit"], ["cfo approve", "ben edit"]])
def test_a_change_counts_in_a_table_before_its_stage_has_votes(desk, said):
    """The first stage has approved it, or its editor may vote only in the second."""
    questions = [asked(desk, {"amount": n, "stages": ["cfo", "ben"]}) for n in (1, 2)]
    for name, decision in map(str.split, said):
        as_person(desk, name)
        more = {"confirmed": "yes", "f.amount": "20"} if decision == "edit" else {}
        assert vote(desk, questions[1], decision, **more).status_code == 200
    as_person(desk, "ana")
    ids = [one.id for one in questions]
    table = desk.page(f"/inbox/together?{urlencode({'q': ids}, doseq=True)}")
    assert table.count("somebody changed it: open it") == 1


@pytest.mark.full
def test_the_history_says_what_was_changed(desk):
    """From what to what, by whom, also after another edit has made the first one void."""
    question = asked(desk, {"need": 2, "amount": 48000})
    for name, amount in (("ana", 4800), ("ben", 480)):
        as_person(desk, name)
        form = {"f.amount": str(amount), "f.currency": "EUR", "f.iban": "DE89"}
        assert vote(desk, question, "edit", confirmed="yes", **form).status_code == 200
    page = desk.page(f"/q/{question.id}")
    history = re.sub("</?data[^>]*>", "", page[page.index('id="history"') :])
    found = re.findall(
        r"<b>(\w+)</b>[^<]*<table.*?<del>(.*?)</del>.*?<ins>(.*?)</ins>", history
    )
    assert found == [("ana", "48,000.00", "4,800.00"), ("ben", "48,000.00", "480.00")]


class Asked(SimpleNamespace):
    """What an amount is read from; a plain namespace takes no weak reference."""


@pytest.mark.parametrize(
    ("arguments", "amount"),
    [
        ({"amount": 120, "currency": "EUR"}, (Decimal(120), "EUR")),
        ({"order": 7, "fee": "1.5"}, (Decimal("1.5"), "")),
        ({"fee": "1.5", "refundTotal": 900, "currency": None}, (Decimal(900), "")),
        ({"order": 7, "refundTotal": "41,203.50", "fee": "1.5"}, None),
        ({"total_costs": 0.1, "currency": "E\u202eUR" * 9}, (Decimal("0.1"), r"E\u202eURE\u")),
        ({"coffee": 2, "summary": 3, "subtotals": 4, "costly": 5}, None),
        ({"amount": "1e1000000"}, None),
        ({"amount": "NaN"}, None),
        ({"amount": True}, None),
        ({"amount": ["1"]}, None),
    ],
)
def test_an_amount_is_a_number_whose_name_says_so(arguments, amount):
    """Its currency is shown as any text; what is no number, or has more digits than money, has no sum."""
    for question in ({"args": arguments}, None), (None, arguments):
        action, reason = question
        assert amount_of(Asked(action=action, reason=reason)) == amount


def test_a_sum_says_how_many_questions_are_not_in_it():
    """An amount that is no number is not left out silently; control: questions without any amount."""

    def summed(*amounts):
        asked = [Asked(action=None, reason=reason) for reason in amounts]
        return sums_of(asked).striptags()

    assert summed({"amount": 5}, {"amount": "1.234,50"}, {}) == "5.00, 2 without an amount"
    assert summed({"order": 5}, {}) == ""


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_thirty_equal_refunds_take_three_clicks(desk, browser):
    """The bar counts and sums the selected ones and covers no row; it works without a script."""
    for number in range(30):
        asked(desk, {"amount": 100 + number + 0.5, "iban": "DE90" if number == 7 else "DE89"})
    desk.app.state.auth = lambda request: Person(
        Principal("ana"), frozenset({"approver", "reader"}), frozenset({"finance"})
    )
    with Served(desk.app, free_port()) as served:
        page = browser.new_page(base_url=served.url)
        page.goto("/inbox?tab=mine&graph=refunds")
        seen = look(page)
        page.click("#pick-all")
        bar = page.locator(".sticky")
        assert "Decide 30 together · 3,450.00 EUR" in bar.inner_text()
        page.locator("tbody th a").nth(29).focus()
        last = page.locator("tbody tr").nth(29).bounding_box()
        assert last["y"] + last["height"] <= bar.bounding_box()["y"] + 1
        page.click("text=Decide 30 together")
        page.wait_for_selector("table.together")
        seen += look(page)
        assert page.evaluate("document.documentElement.scrollHeight") < 2500
        assert page.locator("[data-odd]").all_inner_texts() == ["DE90 differs"]
        page.uncheck("tr:has-text('DE90') input[name=pick]")
        assert (
            page.locator("button:has-text('Approve')").inner_text()
            == "Approve 29 · 3,342.50 EUR"
        )
        page.click("text=Approve 29")
        page.wait_for_selector("#result:has-text('29 approved')")
        seen += look(page)
        page.click("#result >> text=Back to the inbox")
        page.wait_for_url("**/inbox?tab=mine&graph=refunds")
        assert page.locator("tbody tr").count() == 1
        page.close()
        plain = browser.new_context(base_url=served.url, java_script_enabled=False).new_page()
        plain.goto("/inbox?tab=mine&graph=refunds")
        plain.check("input[name=q]")
        plain.click("text=Decide the selected together")
        plain.click("text=Approve the selected")
        assert "1 approved" in plain.inner_text("#result")
        plain.context.close()
    assert not seen


def test_an_unknown_filter_is_refused(desk):
    """A misspelt one would list everything."""
    reply = desk.http.get("/v1/questions", params={"grpah": "refunds"})
    assert (reply.status_code, "grpah" in reply.json()["detail"]) == (422, True)
    assert desk.http.get("/v1/runs", params={"stauts": "failed"}).status_code == 422
    assert desk.http.get("/v1/questions", params={"graph": "refunds"}).status_code == 200


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_dates_are_days_of_the_reader(desk, browser):
    """A script adds the zone of the browser to the filter; its address keeps it."""
    vote(desk, asked(desk))
    with Served(desk.app, free_port()) as served:
        context = browser.new_context(base_url=served.url, timezone_id="Pacific/Kiritimati")
        page = context.new_page()
        page.goto("/inbox?tab=done")
        page.click("summary:has-text('Filter')")
        today = page.evaluate("new Intl.DateTimeFormat('sv').format()")
        for name in ("since", "until"):
            page.fill(f"[name={name}]", today)
        assert "Decided from (Pacific/Kiritimati)" in page.inner_text(".filtering")
        page.click("button:text-is('Filter')")
        page.wait_for_url("**zone=Pacific%2FKiritimati*")
        assert page.locator("tbody tr").count() == 1
        context.close()


REFUNDS = 5


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_two_clicks_decide_each_question_of_a_list(desk, browser):
    """Approve and Next; n goes on and p back; the inbox is as it was left, without what was decided."""
    questions = [asked(desk, {"amount": number}) for number in range(REFUNDS)]
    asked(desk, {"assignees": ["ana"]}, graph="names")
    desk.app.state.auth = lambda request: Person(
        Principal("ana"), frozenset({"approver", "reader"}), frozenset({"finance"})
    )
    with Served(desk.app, free_port()) as served:
        page = browser.new_page(base_url=served.url)
        page.goto("/inbox?tab=mine&graph=refunds")
        page.click("tbody th a")
        seen = look(page)
        for left in reversed(range(1, REFUNDS - 1)):
            page.click("button:text-is('Approve')")
            page.wait_for_selector("[data-result=accepted]")
            seen += look(page) if left == 1 else []
            page.click("[data-result] .button:has-text('Next')")
            page.wait_for_selector(f"#way:has-text('{left} left')")
        page.keyboard.press("n")
        page.wait_for_url(f"**/{questions[-1].id}?*")
        page.keyboard.press("p")
        page.wait_for_url(f"**/{questions[-2].id}?*")
        page.keyboard.press("g")
        page.keyboard.press("i")
        page.wait_for_url("**/inbox?tab=mine&graph=refunds*")
        assert page.locator("tbody tr").count() == 2
        page.close()
    assert not seen


@pytest.mark.full
def test_roles_of_one_graph_show_no_question_of_another(desk):
    """The list of a question's page has only its graph for who has roles by graph."""
    secret = asked(desk, {"assignees": ["ana"]}, graph="names")
    question = asked(desk)
    desk.as_role("viewer", "reader:refunds", "approver:refunds", name="ana", groups=["finance"])
    for query in ("tab=all", "tab=all&graph=names", "tab=mine", "tab=requested"):
        page = desk.page(f"/q/{question.id}?{query}")
        assert secret.id not in page, query
    second = asked(desk)
    assert second.id in desk.http.get(f"/q/{question.id}?tab=all&graph=refunds").text
