"""The mail door, with a mail server of the tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import json
import logging
import random
import re
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import asdict, replace

import httpx
import pytest
import redis
from fastapi.testclient import TestClient
from hypothesis import settings

from runner.approvals import Auth, Principal, Rule
from runner.approvals.keys import KeySet
from runner.doors import notice_thread
from runner.doors.flat_forms import form
from runner.doors.mail import PATH, Link, MailDoor
from runner.doors.notice_thread import NoticeThread, Unavailable
from runner.errors import ConflictError, DirectoryError, UsageError
from runner.operations.questions import read_question
from runner.server import create_app
from runner.server.access import Person
from runner.server.deciding import act
from runner.server.problems import Problem
from runner.settings import Settings
from runner.store.redis.keys import Keys
from tests.doors.conftest import ACTION, GRAPHS, asking
from tests.doors.mailbox import Mailbox, texts_of, token_of
from tests.ports import free_port
from tests.server.conftest import Served, Site, browser, tab
from tests.server.test_pages import HTML
from tests.waiting import wait_until

pytestmark = pytest.mark.full

__all__ = ["browser", "tab"]

ANA, BEN = "ana@example.com", "ben@example.com"


class People:
    """Addresses of people: eve may only see, pat decides for another graph."""

    def __init__(self):
        self.names = {f"{name}@example.com": name for name in ("ana", "ben", "eve", "pat")}

    def groups(self, principal):
        """Return no groups."""
        return []

    def roles(self, principal):
        """Return the roles of the server."""
        return {"eve": ["viewer"], "pat": ["approver:other"]}.get(principal.sub, ["approver"])

    def person(self, account, email):
        """Return whose mailbox it is."""
        assert (account.iss, account.sub) == ("mailto", email)
        return Principal(self.names[email]) if email in self.names else None

    def addresses(self, selectors):
        """Return the addresses of those who are named."""
        return [
            address
            for address, name in self.names.items()
            if {f"user:{name}", "anyone"} & {*selectors}
        ]


people = People()

MORE = {
    "marked": asking(
        reason='<script>alert("x")</script>\nDecide: https://evil.example/', assignees=["ana"]
    ),
    "only_ana": asking(rule=Rule(eligible=["ana"]), action=ACTION),
    "pair": asking(
        rule=Rule(eligible=["ana", "ben"], need=2),
        action=ACTION,
        remind_after=[2.0],
        expires_in=4.0,
    ),
    "escalates": asking(rule=Rule(eligible=["ana"], escalate=[(2, ["ben"])]), action=ACTION),
    "lent": asking(rule=Rule(eligible=["ana"], delegate="anyone"), action=ACTION),
    "plain": asking(assignees=["ana"]),
    "service": asking(rule=Rule(eligible=["ana"], auth=Auth(level=1)), action=ACTION),
    "staged": asking(
        rule=Rule(stages=[Rule(eligible=["ana"]), Rule(eligible=["ben"])]), action=ACTION
    ),
}


@pytest.fixture
def mailbox():
    """A mail server that takes everything."""
    with Mailbox() as mailbox:
        yield mailbox


@pytest.fixture
def site(redis_url, mailbox):
    """An application with the door, at which no one is logged in; each test runs the nodes itself."""
    site = Site(redis_url, {**GRAPHS, **MORE})
    values = {
        "mail_server": mailbox.url,
        "mail_from": "runner@example.com",
        "server_secret": "s" * 32,
        "server_url": "https://runner.example",
        "directory": f"{__name__}:people",
    }
    for name, value in values.items():
        setattr(site.settings, name, value)
    site.apps = []
    site.app, site.http = serving(site)
    site.door = MailDoor(site.app.state.services)
    with closing(site.client.engine.store):
        yield site
        for app in site.apps:
            app.state.services.release(runs=True)
            app.state.services._first.close()  # also of the threads of requests


def serving(site):
    """Make a server of the site, and return it with a client."""
    app = create_app(site.settings, auth=lambda request: None, doors=["mail"])
    app.state.services.client = site.client
    site.apps.append(app)
    return app, TestClient(
        app, base_url="https://runner.example", raise_server_exceptions=False
    )


def handle(site, question, reminder=0):
    """Have the door handle a notice of a question, as a process that has its lock."""
    return site.door.handle(question.id, lambda: True, reminder)


def asked(site, mailbox, graph, address=ANA):
    """Ask the question of a graph, and return it with the token of the link to a person."""
    (question,) = site.start(graph).interrupts()
    handle(site, question)
    return question, token_of(mailbox.to(address)[-1])


def sealed(site, question, address=ANA, digest=None, age=-60):
    """Return the token of a link to a person that is over since some seconds."""
    expires_at = round((time.time() - age) * 1000)
    return site.door.seal(Link(question.id, digest or question.digest, address, expires_at))


def send(site, token, origin="https://runner.example", form_token=None, **fields):
    """Send the form of a link's page, as a browser does."""
    token_of_form = site.app.state.form_tokens.issue(None) if form_token is None else form_token
    body = {"form_token": token_of_form, **{f"f.{name}": text for name, text in fields.items()}}
    return site.http.post(PATH, params={"t": token}, data=body, headers={"Origin": origin})


def approve(site, token, **options):
    """Send the form of a link's page with its button Approve."""
    return send(site, token, decision='"approve"', **options)


def state_of(site, question):
    """Return how a question stands, with its votes."""
    votes = site.app.state.services.store.votes(question.id)
    return site.client.interrupt(question.id).status, votes


@contextmanager
def following(*doors):
    """Have doors follow the notices in threads, as servers do; new services each, as in other processes."""
    stopping, threads = threading.Event(), []
    for door in doors:
        notices = NoticeThread(door._services, "mail", door.handle, door.digests.send_due)
        notices.listen()
        threads.append(threading.Thread(target=notices.follow, args=[stopping]))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)


def test_a_link_decides(site, mailbox):
    """Who may decide is sent the whole call and a link; its page shows it, and its button is their vote."""
    with site.http as http:
        run = site.start("rule")
        wait_until(lambda: len(mailbox.mails) == 2, "two messages")
        (question,) = run.interrupts()
        (message,) = mailbox.to(ANA)
        shown = http.get(PATH, params={"t": token_of(message)})
        before = state_of(site, question)
        form_token = re.search(r'name="form_token" value="([^"]+)"', shown.text)[1]
        button = re.search(r'name="f.decision" value="([^"]+approve[^"]+)"', shown.text)[1]
        body = {
            "form_token": form_token,
            "f.decision": html.unescape(button),
            "f.reason": "late",
        }
        reply = http.post(
            str(shown.url), data=body, headers={"Origin": "https://runner.example"}
        )
        site.work()

    for text in (*texts_of(message), shown.text):
        for part in ("order", "120", "a late order"):
            assert part in text
    assert question.digest in shown.text
    assert {mail["To"] for mail in mailbox.mails} == {ANA, BEN}
    assert before == ("open", [])
    assert reply.status_code == 200
    assert "ana (ana@example.com)" in reply.text
    (vote,) = state_of(site, question)[1]
    assert (vote["by"], vote["decision"], vote["comment"]) == ("human:|ana", "approve", "late")
    assert run.result().results["ask"].output == {"said": "approve"}


def test_opening_a_link_changes_nothing(site, mailbox):
    """Scanners of links may open them as often as they want; the form still decides afterwards."""
    question, token = asked(site, mailbox, "rule")
    before = state_of(site, question), site.door._read(question.id)
    for method in ("GET", "HEAD", "OPTIONS", "GET"):
        site.http.request(method, PATH, params={"t": token, "f.decision": '"approve"'})
    after = state_of(site, question), site.door._read(question.id)
    approve(site, token)

    assert before == after
    assert state_of(site, question)[0] == "answered"


def test_a_form_asks_for_an_answer(site, mailbox):
    """A question without a rule is answered by its fields; after what does not fit the link still works."""
    question, token = asked(site, mailbox, "form")
    refused = send(site, token, city="Rome", days="0")
    before = state_of(site, question)[0]
    send(site, token, city="Rome", days="3", way='"car"')
    site.work()

    assert refused.status_code == 422
    assert "Rome" in refused.text
    assert before == "open"
    output = site.output(question.run_id, "ask")
    assert output == {"said": {"city": "Rome", "days": 3, "way": "car"}}


def test_a_link_decides_once(site, mailbox):
    """A link that has decided does nothing more, whatever became of the vote; another person's still does."""
    question, token = asked(site, mailbox, "quorum")
    approve(site, token)
    first = state_of(site, question)[1]
    again = [approve(site, token), send(site, token, decision='"reject"')]
    act(site.app.state.services, Person(Principal("ana")), question.id, "withdraw_vote")
    taken_back = state_of(site, question)
    again += [approve(site, token), site.http.get(PATH, params={"t": token})]
    after = state_of(site, question)
    approve(site, token_of(mailbox.to(BEN)[0]))

    assert len(first) == 1
    assert [reply.status_code for reply in again] == [409] * 4
    assert taken_back == after == ("open", [])
    assert [vote["by"] for vote in state_of(site, question)[1]] == ["human:|ben"]


def test_a_link_counts_once_in_a_race(site, mailbox):
    """Of decisions that were sent by one link at the same time one counts, also where it is taken back."""
    question, token = asked(site, mailbox, "quorum")
    opened = [site.door._open(token) for _ in range(2)]
    sent = form(opened[0][1]), {"decision": '"approve"'}
    receipt = site.door._count(*opened[0], *sent)
    act(site.app.state.services, Person(Principal("ana")), question.id, "withdraw_vote")
    with pytest.raises(ConflictError):
        site.door._count(*opened[1], *sent)

    assert receipt.status == "counted"
    assert state_of(site, question) == ("open", [])


def test_a_refused_vote_uses_no_link(site, mailbox, monkeypatch, tmp_path):
    """Without a key of the server a rule of level 1 counts nothing; with it the link decides, signed."""
    monkeypatch.setenv("RUNNER_DECISION_KEYS", str(tmp_path / "public.json"))
    KeySet(tmp_path / "public.json").make("door", tmp_path / "key.json", level=1)
    question, token = asked(site, mailbox, "service")
    refused = approve(site, token)
    votes = state_of(site, question)[1]
    site.settings.signing_key = str(tmp_path / "key.json")
    replies = [approve(site, token), approve(site, token)]
    site.work()

    assert (refused.status_code, "link was not used" in refused.text) == (409, True)
    assert "decides nothing more" in replies[0].text
    assert ([reply.status_code for reply in replies], votes) == ([200, 409], [])
    assert [vote["level"] for vote in state_of(site, question)[1]] == [1]
    assert site.client.run(question.run_id).result().status == "completed"


def test_an_error_of_the_directory_uses_no_link(site, mailbox, monkeypatch):
    """A vote that was not counted since the directory is away by then is counted when it is back."""
    question, token = asked(site, mailbox, "quorum")
    opened = site.door._open(token)
    sent = form(opened[1]), {"decision": '"approve"'}
    site.door._services.client.engine.directory = f"{__name__}:people"
    monkeypatch.setattr(people, "groups", lambda principal: 1 / 0)
    with pytest.raises(DirectoryError):
        site.door._count(*opened, *sent)
    before = state_of(site, question)
    monkeypatch.undo()

    assert before == ("open", [])
    assert approve(site, token).status_code == 200
    assert approve(site, token).status_code == 409


@pytest.mark.parametrize("graph", ["risky", "sure", "long", "nested", "pattern"])
def test_a_question_for_its_page_has_a_link_to_it(site, mailbox, graph):
    """High risk, a login, or more than a link can show: only the page decides, whatever is sent."""
    question, token = asked(site, mailbox, graph)
    control, _ = asked(site, mailbox, "anyone" if question.rule else "text")
    decision = {"decision": '"approve"'} if question.rule else {"answer": "yes"}
    replies = [send(site, sealed(site, each), **decision) for each in (question, control)]

    assert token == ""
    assert f"https://runner.example/q/{question.id}" in texts_of(mailbox.to(ANA)[0])[0]
    assert [reply.status_code for reply in replies] == [409, 200]
    assert state_of(site, question) == ("open", [])
    assert state_of(site, control)[0] == "answered"


def test_a_link_shows_no_versions(site, mailbox):
    """Where another person has changed the call, what to approve is chosen on the page."""
    question, token = asked(site, mailbox, "quorum")
    before = site.http.get(PATH, params={"t": token}).status_code
    site.client.vote(question.id, "edit", by="ben", response={"order": 7, "amount": 5})

    assert before == 200
    assert approve(site, token).status_code == 409
    assert [vote["by"] for vote in state_of(site, question)[1]] == ["human:|ben"]


def test_who_has_voted_is_not_asked_again(site, mailbox):
    """A person who voted at another door first is sent no message, and their link decides nothing."""
    (question,) = site.start("quorum").interrupts()
    site.client.vote(question.id, "approve", by="ana")
    handle(site, question)
    reply = send(site, sealed(site, question), decision='"reject"')

    assert mailbox.receivers == [BEN]
    assert reply.status_code == 409
    assert [vote["decision"] for vote in state_of(site, question)[1]] == ["approve"]
    assert approve(site, token_of(mailbox.mails[0])).status_code == 200


@pytest.mark.parametrize("name", ["eve", "pat", "new", "ben"])
def test_who_may_not_decide_has_no_link(site, mailbox, monkeypatch, name):
    """Without the role, for another graph, unknown, or not named by the rule: no message, no effect."""
    (question,) = site.start("only_ana" if name == "ben" else "anyone").interrupts()
    address = f"{name}@example.com"
    handle(site, question)
    replies = [approve(site, sealed(site, question, each)) for each in (address, ANA)]

    assert mailbox.to(address) == []
    assert len(mailbox.to(ANA)) == 1
    assert [reply.status_code for reply in replies] == [403, 200]
    assert [vote["by"] for vote in state_of(site, question)[1]] == ["human:|ana"]


def test_the_log_has_no_links(site, mailbox, monkeypatch, caplog):
    """The server's log of requests names the page of a link, and not the link."""
    _, token = asked(site, mailbox, "rule")
    with Served(site.app, free_port()) as served:
        access = logging.getLogger("uvicorn.access")
        monkeypatch.setattr(access, "handlers", [caplog.handler])
        access.setLevel(logging.INFO)
        shown = httpx.get(served.url + PATH, params={"t": token})
        refused = [
            httpx.request(method, served.url + PATH, params={"t": token}, data=form)
            for method, form in (("HEAD", None), ("POST", {"f.decision": "approve"}))
        ]
        with_slash = httpx.get(
            f"{served.url}{PATH}/", params={"t": token}, follow_redirects=True
        )
        httpx.get(f"{served.url}/healthz?t=control")
        wait_until(lambda: "t=control" in caplog.text, "both requests are in the log")

    assert [shown.status_code, *(reply.status_code for reply in refused)] == [200, 405, 403]
    assert with_slash.status_code == 200
    assert f"GET {PATH} HTTP" in caplog.text
    assert token not in caplog.text


def test_no_request_of_a_page_repeats_its_link(site, mailbox):
    """Proxies log the referrer of each request: pages of links, refused ones too, have browsers send none."""
    _, token = asked(site, mailbox, "rule")
    replies = [site.http.get(PATH, params={"t": text}, headers=HTML) for text in (token, "x")]
    replies.append(site.http.post(PATH, params={"t": token}, data={}, headers=HTML))

    assert [reply.status_code for reply in replies] == [200, 403, 422]
    assert {reply.headers["referrer-policy"] for reply in replies} == {"strict-origin"}


def test_the_door_needs_all_its_settings(site):
    """A door that could not send or check something is not opened, and says what is missing."""
    with pytest.raises(UsageError, match=r"RUNNER_MAIL_SERVER, .*, RUNNER_DIRECTORY"):
        create_app(Settings(redis_url=site.settings.redis_url), doors=["mail"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mail_from", "Runner <runner@example.com>"),
        ("mail_server", "mail.example.com"),
        ("mail_server", "smtp://"),
        ("mail_server", "smtp://mail.example.com:99999"),
        ("mail_server", "https://mail.example.com"),
        ("mail_unsubscribe", "people@example.com"),
        ("mail_unsubscribe", "mailto:people@example.com>\r\nBcc: <eve@example.com"),
    ],
)
def test_a_setting_that_can_not_be_used_is_named(site, name, value):
    """The door is not opened with an address or a server of no known form, nor with one of two lines."""
    setattr(site.settings, name, value)
    with pytest.raises(UsageError, match=f"RUNNER_{name.upper()}"):
        MailDoor(site.app.state.services)


def test_an_error_of_the_directory_ends_nothing(site, mailbox, monkeypatch, caplog):
    """A question whose people the directory can't name now is handled again later."""
    monkeypatch.setattr(notice_thread, "PAUSE", 0.01)
    monkeypatch.setattr(notice_thread, "RETRY", 0.01)
    answers, addresses = ["a text", None], people.addresses
    monkeypatch.setattr(
        people, "addresses", lambda names: answers.pop() if answers else addresses(names)
    )
    with following(site.door):
        site.start("others")
        wait_until(lambda: mailbox.receivers, "the message")

    assert answers == []
    assert mailbox.receivers == [BEN]
    assert "mail.failed" in caplog.text


# Messages


@pytest.mark.parametrize("address", ["mailto:people@example.com?subject=no%20more", ""])
def test_a_message_says_where_to_ask_for_no_more(site, mailbox, address):
    """Mail programs offer what List-Unsubscribe names; without the setting there is none."""
    site.settings.mail_unsubscribe = address
    site.door = MailDoor(site.app.state.services)
    (question,) = site.start("only_ana").interrupts()
    assert handle(site, question)

    assert mailbox.mails[0]["List-Unsubscribe"] == (f"<{address}>" if address else None)


def test_what_agents_write_is_text(site, mailbox):
    """Nothing of a question is HTML, or reads as the link in the plain text."""
    _, token = asked(site, mailbox, "marked")
    plain, page = texts_of(mailbox.mails[0])
    shown = site.http.get(PATH, params={"t": token}).text

    (link,) = [line for line in plain.splitlines() if "Decide:" in line and line[0] != ">"]
    assert link.startswith("Decide: https://runner.example/doors/mail?t=")
    assert "\n> Decide: https://evil.example/" in plain
    for text in (page, shown):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


def test_a_title_adds_no_header(site, mailbox):
    """Line ends in a title, plain or encoded, begin no header: no receiver and no text comes of them."""
    (question,) = site.start("only_ana").interrupts()
    view = read_question(site.app.state.services.store, site.client.interrupt(question.id))
    for end in ("\n", "\r\n", "\r", "\x0b", "\x85", "\u2028", "\n\n"):
        title = f"Refund 7{end}Bcc: eve@example.com{end}{end}<p>"
        message = site.door._message(ANA, replace(view, title=title))
        assert site.door._server.send(message, ANA) == ("", False)

    for code in ("q?=0ABcc:_eve@example.com", "q?=0D=0A=0D=0AEvil", "b?Cgo=", "q?=E2=80=AE"):
        title = f"Refund 7 =?utf-8?{code}?= <p>"
        message = site.door._message(ANA, replace(view, title=title))
        assert site.door._server.send(message, ANA) == ("", False)
        assert code in mailbox.mails[-1]["Subject"]

    assert mailbox.receivers == [ANA] * 11
    for message in mailbox.mails:
        assert (message["Bcc"], message["From"]) == (None, "runner@example.com")
        assert message["Subject"].startswith("Refund 7")
        assert message["Subject"].endswith("<p>")
        assert "late order" in texts_of(message)[0]


@pytest.mark.parametrize(
    "address",
    [
        "ana@example.com\r\nBcc: eve@example.com",
        "ana@example.com, eve@example.com",
        "ana@example.com>\r\nRCPT TO:<eve@example.com",
        "<eve@example.com>",
        "eve@example.com (ana)",
        "ana",
        "=?utf-8?q?ana=0A?=@example.com",
        "ána@example.com",
    ],
)
def test_an_address_adds_no_receiver(site, mailbox, monkeypatch, caplog, address):
    """What is no single address is sent nothing and logged; the other people are sent theirs."""
    monkeypatch.setitem(people.names, address, "ana")
    (question,) = site.start("anyone").interrupts()
    assert handle(site, question)

    assert sorted(mailbox.receivers) == [ANA, BEN]
    assert "isn't an address" in caplog.text


def test_a_person_gets_one_message(site, mailbox, monkeypatch):
    """Two servers, a restart and more notices of a question send each person one message about it."""
    monkeypatch.setattr(notice_thread, "PAUSE", 0.01)
    doors = [MailDoor(serving(site)[0].state.services) for _ in range(3)]
    with following(*doors[:2]):
        questions = [site.start("quorum").interrupts()[0] for _ in range(5)]
        site.client.vote(questions[0].id, "approve", by="ana")
        wait_until(lambda: len(mailbox.mails) == 10, "ten messages")
    with following(doors[2]):
        site.client.vote(questions[1].id, "approve", by="ana")
        questions.append(site.start("quorum").interrupts()[0])
        wait_until(lambda: len(mailbox.mails) == 12, "two more")

    counts = Counter(mail["Message-ID"] for mail in mailbox.mails)
    assert {*counts.values()} == {1}
    assert len(counts) == 12


@pytest.mark.parametrize(("graph", "code"), [("escalates", 200), ("lent", 200), ("plain", 422)])
def test_who_may_decide_later_is_sent_a_message_then(site, mailbox, graph, code):
    """By an escalation or a reassignment, with a rule and without (422: an answer is missing)."""
    with following(site.door):
        (question,) = site.start(graph).interrupts()
        wait_until(lambda: mailbox.receivers, "the first message")
        assert mailbox.receivers == [ANA]
        if graph != "escalates":
            site.client.reassign(question.id, to="ben", reason="ana has left", by="ola")
            site.work()
        wait_until(lambda: (site.client.engine.sweep(), mailbox.to(BEN))[1], "the second one")

    assert mailbox.receivers == [ANA, BEN]
    assert approve(site, token_of(mailbox.to(BEN)[0])).status_code == code


@pytest.mark.parametrize("graph", ["lent", "plain"])
def test_who_stands_in_is_sent_a_message(site, mailbox, graph):
    """Beside the person who is away, with a rule and without."""
    site.client.begin_absence(by="ana", to="ben", until=round((time.time() + 60) * 1000))
    asked(site, mailbox, graph)

    assert mailbox.receivers == [ANA, BEN]


def test_a_reminder_and_an_expiry_are_messages_of_one_conversation(site, mailbox):
    """Each once, to the people who have the first message and have not voted, and to nobody else."""
    question, token = asked(site, mailbox, "pair")
    handle(site, question, 1)
    handle(site, question, 1)
    assert mailbox.receivers == [ANA, BEN, ANA, BEN]
    approve(site, token)
    with following(site.door):
        wait_until(
            lambda: (site.client.engine.sweep(), len(mailbox.to(ANA)) > 2)[1], "all are sent"
        )
    first, *reminders, last = mailbox.to(BEN)
    assert [each["subject"] for each in (first, reminders[0], last)] == [
        "refund",
        "Reminder: refund",
        "Expired: refund",
    ]
    assert {each["in-reply-to"] for each in (*reminders, last)} == {first["message-id"]}
    assert len({each["message-id"] for each in mailbox.to(BEN)}) == len(mailbox.to(BEN))
    assert len(mailbox.to(ANA)) == 3  # she is not reminded of what she voted on
    assert f"See it: https://runner.example/q/{question.id}" in texts_of(last)[0]
    assert site.door._read(question.id).sent == ()


def test_a_message_begins_with_the_effect(site, mailbox):
    """Then comes the call, as a table where a program shows one, and the link; replies say what to do."""
    _, token = asked(site, mailbox, "rule")
    mail = mailbox.to(ANA)[0]
    text, page = texts_of(mail)
    assert text.startswith("> refund\r\n")
    assert text.index("> refund {") < text.index("Decide: https://runner.example")
    assert page.startswith("<blockquote><p><b>refund</b></p><table")
    assert '<th align="left">amount</th><td>120</td>' in page
    assert page.index("</table>") < page.index(token)
    assert "replies are not read" in mail["reply-to"]


def test_a_rejection_by_mail_needs_a_reason(site, mailbox):
    """As on the page; what is refused uses no link."""
    question, token = asked(site, mailbox, "rule")
    refused = send(site, token, decision='"reject"')
    assert (refused.status_code, "Say why you reject it" in refused.text) == (422, True)
    assert state_of(site, question) == ("open", [])
    assert send(site, token, decision='"reject"', reason="twice").status_code == 200


def test_a_page_that_is_too_old_says_so_to_people_without_a_login(site, mailbox):
    """A link asks nobody to log in, so neither does its error; control: another page's asks."""
    question, token = asked(site, mailbox, "text")
    site.person = None
    refused = send(site, token, form_token="", answer="yes")
    assert (refused.status_code, "The page is too old. Go back" in refused.text) == (403, True)
    assert "og in" not in refused.json()["detail"]
    assert state_of(site, question) == ("open", [])
    other = site.http.post(
        "/inbox/views", data={"name": "a"}, headers={"Origin": "https://runner.example"}
    )
    assert (other.status_code, "Log in" in other.text) == (401, True)


def test_nothing_is_stored_of_a_closed_question(site, mailbox):
    """While a question is open hashes say who has a link; then nothing does."""
    question, token = asked(site, mailbox, "rule")
    stored = site.door._read(question.id)
    approve(site, token)
    handle(site, question)

    assert len(stored.sent) == 2
    assert "@" not in json.dumps(asdict(stored))
    assert site.door._read(question.id).sent == ()


def test_what_is_stored_of_a_question_stays_readable(site, mailbox, redis_url):
    """Who has a message, and whose link has decided, is read as 0.1.0 has stored it."""
    question, token = asked(site, mailbox, "quorum")
    key = f"{Keys().prefix}mailed_questions"
    with redis.Redis.from_url(redis_url) as admin:
        fields = json.loads(admin.hget(key, question.id)).keys()
        # The hash of ana's address.
        stored = {"id": question.id, "sent": ["8e43ca37701228e74983efdb"], "used": [], "v": 1}
        stored["used"] = stored["sent"]
        admin.hset(key, question.id, json.dumps(stored))
    handle(site, question)

    assert fields == stored.keys()
    assert mailbox.receivers == [ANA, BEN, BEN]
    assert approve(site, token).status_code == 409


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [("ehlo", ""), ("mail", "451 later"), ("rcpt", "450 later"), (".", "451 later"), (".", "")],
)
def test_messages_wait_for_the_mail_server(site, mailbox, monkeypatch, fault):
    """A message that the mail server does not take now is sent later, once."""
    monkeypatch.setattr(notice_thread, "PAUSE", 0.01)
    monkeypatch.setattr(notice_thread, "RETRY", 0.01)
    mailbox.faults.extend([fault, fault])
    with following(site.door):
        (question,) = site.start("others").interrupts()
        wait_until(lambda: site.door._read(question.id).sent, "the message is noted")

    assert not mailbox.faults
    assert mailbox.receivers == [BEN]


def test_what_is_refused_holds_nothing_back(site, mailbox, caplog):
    """A mailbox that is not there is logged, and the next person is sent their message."""
    mailbox.faults.append(("rcpt", "550 no such user"))
    (question,) = site.start("rule").interrupts()

    assert handle(site, question)
    assert mailbox.receivers == [BEN]
    assert "550" in caplog.text
    assert handle(site, question)
    assert len(mailbox.mails) == 1


def test_a_message_is_tried_a_number_of_times(site, mailbox, caplog):
    """One that is never taken is given up after ten attempts, and the log says where the question is."""
    mailbox.faults.extend([("rcpt", "450 later")] * 12)
    (question,) = site.start("others").interrupts()
    tries = [handle(site, question) for _ in range(12)]

    assert tries == [False] * 9 + [True] * 3
    assert len(mailbox.faults) == 2
    assert f"The question {question.id} can be decided on its page." in caplog.text


def test_a_lost_lock_ends_a_round(site, mailbox):
    """A process that has lost its lock sends nothing more."""
    (question,) = site.start("rule").interrupts()

    assert not site.door.handle(question.id, lambda: False)
    assert mailbox.mails == []
    assert handle(site, question)
    assert len(mailbox.mails) == 2


def test_a_password_is_sent_by_tls_only(site, mailbox):
    """A server that offers no TLS gets no password, and no message."""
    site.settings.mail_server = mailbox.url.replace("//", "//user:secret-of-tests@")
    door = MailDoor(site.app.state.services)
    (question,) = site.start("others").interrupts()
    with pytest.raises(Unavailable, match="no TLS"):
        door.handle(question.id, lambda: True)

    assert not any("auth" in command.lower() for command in mailbox.commands)
    assert handle(site, question)
    assert mailbox.receivers == [BEN]


# Attacks


class Attacks:
    """Requests that must have no effect, each made of a good one by chance."""

    def __init__(self, site, question, token, used, seed):
        self.site, self.question, self.token, self.used = site, question, token, used
        self.random = random.Random(seed)  # noqa: S311 - repeatable

    def changed(self, text):
        """Change, insert, remove, or cut at a character."""
        place, kind = self.random.randrange(len(text)), self.random.randrange(4)
        other = chr(self.random.randrange(33, 1000))
        changed = text[:place] + ["", other, other + text[place], ""][kind] + text[place + 1 :]
        changed = text[:place] if kind == 3 else changed
        return changed if changed != text else self.changed(text)

    def forged(self):
        """The link was changed."""
        return {"token": self.changed(self.token)}

    def of_elsewhere(self):
        """The link is of another installation, with the same content."""
        text = self.token.partition(".")[0]
        mac = hmac.new(self.random.randbytes(32), text.encode(), hashlib.sha256).hexdigest()
        return {"token": f"{text}.{mac}"}

    def rewritten(self):
        """The content was exchanged under the seal of the link."""
        text, _, mac = self.token.partition(".")
        content = json.loads(base64.urlsafe_b64decode(f"{text}=="))
        place = self.random.randrange(4)
        content[place] = (
            self.changed(content[place])
            if place < 3
            else content[place] + self.random.randrange(1, 10**9)
        )
        text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
        return {"token": f"{text}.{mac}"}

    def old(self):
        """The link is over."""
        return {"token": sealed(self.site, self.question, age=self.random.uniform(0.001, 1e6))}

    def of_another_digest(self):
        """The question was another when the link was sent."""
        digest = f"sha256:{self.random.randbytes(32).hex()}"
        return {"token": sealed(self.site, self.question, digest=digest)}

    def foreign(self):
        """The link is of a person who may not decide, or of no one."""
        name = self.random.choice(["eve", "pat", "new", self.random.randbytes(4).hex()])
        return {"token": sealed(self.site, self.question, f"{name}@example.com")}

    def replayed(self):
        """The link has decided."""
        return {"token": self.used}

    def of_another_site(self):
        """The form is of a page elsewhere."""
        origin = f"https://{self.random.choice(['evil', 'x.runner', 'runner'])}.example"
        if origin == "https://runner.example":
            return {"token": self.token, "form_token": self.changed("0" * 60)}
        return {"token": self.token, "origin": origin}


KINDS = {
    "forged": 403,
    "of_elsewhere": 403,
    "rewritten": 403,
    "old": 410,
    "of_another_digest": 409,
    "foreign": 403,
    "replayed": 409,
    "of_another_site": 403,
}


@pytest.mark.parametrize(
    "number", [200, pytest.param(20 * settings.default.max_examples, marks=pytest.mark.slow)]
)
def test_links_that_are_not_ours_have_no_effect(site, mailbox, number):
    """Forged, old, replayed, foreign and changed links change nothing; the good link beside them does."""
    question, token = asked(site, mailbox, "quorum")
    used = token_of(mailbox.to(BEN)[0])
    approve(site, used)
    before = state_of(site, question)
    attacks = Attacks(site, question, token, used, seed=number)
    # Of the later ones the store is asked each time.
    for kind in attacks.random.choices([*KINDS], [9, 9, 9, 1, 1, 1, 1, 1], k=number):
        attack = getattr(attacks, kind)() | {
            "decision": attacks.random.choice(['"approve"', '"reject"'])
        }
        if kind == "of_another_site":
            assert send(site, **attack).status_code == 403
            continue
        with pytest.raises(Problem) as refused:  # of the request only the page reads more
            site.door.page(None, None, attack["token"], {"f.decision": attack["decision"]})
        assert refused.value.status == KINDS[kind], kind
    after = state_of(site, question)
    approve(site, token)

    assert after == before
    assert [vote["by"] for vote in before[1]] == ["human:|ben"]
    assert state_of(site, question)[0] == "answered"


def controls(site, question, token):
    """Return by kind a request that would be an attack, where what makes it one is right."""

    def of_elsewhere():
        link = site.door._unseal(token)
        site.settings.server_secret = "o" * 32
        there = MailDoor(site.app.state.services)
        site.app, site.http = serving(site)
        return {"token": there.seal(link)}

    def rewritten():
        return {"token": site.door.seal(site.door._unseal(token))}

    def foreign():
        people.names["eve@example.com"] = "ana"
        return {"token": sealed(site, question, "eve@example.com")}

    return {
        "forged": lambda: {"token": token},
        "of_elsewhere": of_elsewhere,
        "rewritten": rewritten,
        "old": lambda: {"token": sealed(site, question, age=-30)},
        "of_another_digest": lambda: {"token": sealed(site, question, digest=question.digest)},
        "foreign": foreign,
        "replayed": lambda: {"token": token},
        "of_another_site": lambda: {"token": token, "origin": "https://runner.example"},
    }


@pytest.mark.parametrize("kind", [*KINDS])
def test_each_check_stops_nothing_else(site, mailbox, monkeypatch, kind):
    """The same request has its effect where only what the check asks for is as it should be."""
    monkeypatch.setattr(people, "names", dict(people.names))
    other, used = asked(site, mailbox, "rule")
    approve(site, used)
    question, token = asked(site, mailbox, "anyone")
    attack = getattr(Attacks(site, question, token, used, seed=1), kind)()
    reply = approve(site, **attack)
    before = state_of(site, question)
    approve(site, **controls(site, question, token)[kind]())

    assert state_of(site, other)[0] == "answered"
    assert reply.status_code == KINDS[kind]
    assert before == ("open", [])
    assert state_of(site, question)[0] == "answered"
