"""The digests of the mail door: one message about all that waits for a person, at set times."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from runner.approvals import Action, Rule
from runner.doors import mail_digest, notice_thread
from runner.doors.mail import MailDoor
from runner.doors.mail_digest import AHEAD, APART, MailDigest
from runner.doors.notice_thread import Unavailable
from runner.errors import UsageError
from tests.doors.conftest import asking
from tests.doors.mailbox import link_of, texts_of, token_of
from tests.doors.test_mail import ANA, BEN, approve, following, mailbox, people, serving, site
from tests.waiting import wait_until

pytestmark = pytest.mark.full

__all__ = ["mailbox", "site"]

HOUR = 3_600_000


def paying(amount, currency="EUR", **options):
    """Make a graph that asks whether to pay an amount."""
    action = Action("runner", "function", "pay", {"amount": amount, "currency": currency})
    rule = Rule(eligible=["ana", "ben"], title="Pay {amount:money}")
    return asking(rule=rule, action=action, **options)


MORE = {
    "pay": paying(1200.5),
    "dollars": paying(90, "USD"),
    "in_six_hours": paying(80, expires_in=6 * 3600.0, remind_after=[3600.0]),
    "half_an_hour_later": paying(85, expires_in=6.5 * 3600.0),
    "in_three_hours": paying(70, expires_in=3 * 3600.0),
}


@pytest.fixture
def desk(site, monkeypatch):
    """The site with digests at nine in Berlin for all, and for ben at nine in New York."""
    monkeypatch.setattr(mail_digest, "LOOKS_EVERY", 0.0)
    for name, build in MORE.items():
        site.registry.add(name, build)
    site.client.engine.publish([*MORE])
    times = ["0 9 * * * Europe/Berlin", f"{BEN}=0 9 * * * America/New_York"]
    site.settings.mail_digests = times
    site.door = MailDoor(site.app.state.services)
    return site


def ask(site, *graphs):
    """Ask the questions of graphs, as the thread of the door hears of them."""
    questions = [site.start(graph).interrupts()[0] for graph in graphs]
    assert all(site.door.handle(question.id, lambda: True) for question in questions)
    return questions


def stored(site):
    """Return when the digests are due, by address."""
    documents = site.app.state.services.documents(MailDigest)
    return {digest.id: digest.due for digest in documents.all()}


def nine_in(zone, after):
    """Return the first time after a moment at which it is nine in a zone, in ms."""
    zone = ZoneInfo(zone)
    for at in range(after // 60_000 * 60_000 + 60_000, after + 26 * HOUR, 60_000):
        local = datetime.fromtimestamp(at / 1000, zone)
        if (local.hour, local.minute) == (9, 0):
            return at
    raise AssertionError


def nine_in_berlin(after):
    """Return the first time after a moment at which it is nine in Berlin, in ms."""
    return nine_in("Europe/Berlin", after)


def let_pass(site, address, due=None):
    """Go on to when a digest of a person is due: set its time to one that has come."""
    zone = "America/New_York" if address == BEN else "Europe/Berlin"
    at = due or nine_in(zone, stored_now(site) - 25 * HOUR)
    documents = site.app.state.services.documents(MailDigest)
    documents.change(address, lambda digest: MailDigest(address, at))
    return at


def stored_now(site):
    """Return the store's time."""
    return site.app.state.services.documents(MailDigest).now()


def look(site, door=None):
    """Let a door look once for digests that are due."""
    (door or site.door).digests.send_due(lambda: True)


def test_a_digest_lists_all_that_waits(desk, mailbox):
    """It begins with how much waits, then has the sums, each question with its link, and the inbox."""
    ask(desk, "pay", "in_six_hours", "pay", "dollars")
    look(desk)
    assert mailbox.mails == []
    let_pass(desk, ANA)
    look(desk)
    look(desk)

    (mail,) = mailbox.mails
    text, page = texts_of(mail)
    assert mail["to"] == ANA
    assert mail["subject"].startswith("4 questions wait for you; the first is due at 20")
    assert mail["subject"][-4:].strip() in {"CET", "CEST"}
    assert text.startswith(f"{mail['subject']}.\r\n\r\nIn all 2,481.00 EUR, 90.00 USD.")
    assert text.index("> Pay 80.00 EUR (due at ") < text.index(
        "> Pay 1,200.50 EUR\r\nDecide: https"
    )
    assert text.index("> Pay 90.00 USD") < text.index("https://runner.example/inbox?tab=mine")
    assert page.startswith(
        f"<p><b>{mail['subject']}.</b> In all 2,481.00 EUR, 90.00 USD.</p><table"
    )
    assert page.count("<tr>") == 5
    assert "<data" not in page
    assert "replies are not read" in mail["reply-to"]


def test_a_link_of_a_digest_decides(desk, mailbox):
    """As one of a message of its own; the next digest lists the rest, and none is sent if nothing waits."""
    first, second = ask(desk, "pay", "pay")
    for number, question in enumerate((first, second)):
        let_pass(desk, ANA)
        look(desk)
        assert approve(desk, token_of(mailbox.mails[-1])).status_code == 200
        assert desk.client.interrupt(question.id).status == "answered"
        assert len(mailbox.mails) == number + 1
    assert mailbox.mails[-1]["subject"] == "1 question waits for you"
    let_pass(desk, ANA)
    look(desk)

    assert mailbox.receivers == [ANA, ANA]
    assert [*stored(desk)] == [BEN]  # ana's is made again with her next question


def test_a_digest_is_sent_at_the_time_of_the_person(desk):
    """At nine in the zone of all, unless the person has other times; or four hours before an end."""
    before = stored_now(desk)
    ask(desk, "pay")
    now = stored_now(desk)
    assert nine_in_berlin(before) <= stored(desk)[ANA] <= nine_in_berlin(now)
    times = {nine_in("America/New_York", at) for at in (before, now)}
    assert stored(desk)[BEN] in times

    (question,) = ask(desk, "in_six_hours")
    early = desk.client.interrupt(question.id).ends_at - AHEAD
    assert stored(desk)[ANA] == min(early, nine_in_berlin(now))


def test_before_an_end_a_digest_is_sent_once(desk, mailbox, monkeypatch):
    """Not again for questions that expire within an hour of it."""
    first, second = ask(desk, "in_six_hours", "half_an_hour_later")
    monkeypatch.setattr(mail_digest, "AHEAD", 6 * HOUR)
    let_pass(desk, ANA, stored_now(desk) - 1)
    look(desk)
    assert len(mailbox.mails) == 1
    assert stored(desk)[ANA] == nine_in_berlin(stored_now(desk))
    monkeypatch.setattr(mail_digest, "AHEAD", 4 * HOUR)
    let_pass(desk, ANA, stored_now(desk) - 1)
    look(desk)

    assert len(mailbox.mails) == 1  # it is early, and nine has not come
    ends = [desk.client.interrupt(question.id).ends_at for question in (first, second)]
    assert stored(desk)[ANA] == min(ends[0] - AHEAD, nine_in_berlin(stored_now(desk)))
    assert ends[1] - ends[0] < APART


def test_a_digest_that_is_not_sent_holds_no_other_up(desk, mailbox, monkeypatch):
    """Not sent, as its question was decided: the next question's digest is due within the hour."""
    first, second = ask(desk, "in_six_hours", "half_an_hour_later")
    ends = [desk.client.interrupt(question.id).ends_at for question in (first, second)]
    desk.client.vote(first.id, "approve", by="ana")
    monkeypatch.setattr(mail_digest, "AHEAD", ends[0] - stored_now(desk))
    let_pass(desk, ANA, stored_now(desk))
    look(desk)

    assert mailbox.mails == []
    assert stored_now(desk) < ends[1] - mail_digest.AHEAD < stored_now(desk) + APART
    assert stored(desk)[ANA] == min(
        ends[1] - mail_digest.AHEAD, nine_in_berlin(stored_now(desk))
    )


def test_high_risk_and_little_time_are_messages_of_their_own(desk, mailbox):
    """At once; a reminder of a question that a digest lists is the next digest."""
    ask(desk, "risky", "in_three_hours")
    assert [mail["subject"] for mail in mailbox.to(ANA)] == ["refund", "Pay 70.00 EUR"]
    assert stored(desk) == {}
    (question,) = ask(desk, "in_six_hours")
    desk.door.handle(question.id, lambda: True, 1)
    assert len(mailbox.to(ANA)) == 2
    let_pass(desk, ANA)
    look(desk)
    assert mailbox.mails[-1]["subject"].startswith("3 questions wait for you")


def test_a_person_without_times_gets_messages(desk, mailbox):
    """If only some people have digests, the others have a message for each question."""
    desk.settings.mail_digests = [f"{BEN}=0 9 * * 1-5 Europe/Berlin"]
    desk.door = MailDoor(desk.app.state.services)
    ask(desk, "pay")

    assert mailbox.receivers == [ANA]
    assert [*stored(desk)] == [BEN]


@pytest.mark.parametrize(
    "fault", [("rcpt", "450 later"), (".", "451 later"), (".", ""), ("ehlo", "")]
)
def test_a_digest_that_is_not_sent_is_sent_later(desk, mailbox, fault):
    """By another process, too; as the same message, so that a mail program shows it once."""
    ask(desk, "pay")
    due = let_pass(desk, ANA)
    mailbox.faults.append(fault)
    with suppress(Unavailable):
        look(desk)
    assert stored(desk)[ANA] == due
    sent = len(mailbox.mails)
    look(desk, MailDoor(serving(desk)[0].state.services))
    look(desk)

    assert not mailbox.faults
    assert len(mailbox.mails) == sent + 1
    assert len({mail["message-id"] for mail in mailbox.mails}) == 1
    assert stored(desk)[ANA] > due


def test_a_refused_digest_is_sent_at_its_next_time(desk, mailbox, caplog):
    """A mailbox that isn't there holds nobody up, and its questions are listed again the next time."""
    ask(desk, "pay")
    for address in (ANA, BEN):
        let_pass(desk, address)
    mailbox.faults.append(("rcpt", "550 no such user"))
    look(desk)
    assert mailbox.receivers == [BEN]
    assert "mail.refused: 550" in caplog.text
    let_pass(desk, ANA)
    look(desk)
    assert mailbox.receivers == [BEN, ANA]


def test_an_error_of_the_directory_delays_a_digest(desk, mailbox, monkeypatch, caplog):
    """It is sent when the directory answers; a person whom it doesn't know any more gets none."""
    ask(desk, "pay")
    let_pass(desk, ANA)
    with monkeypatch.context() as patch:
        patch.setattr(people, "person", lambda account, email: {}[email])
        look(desk)
    assert (mailbox.mails, "The digest is sent later" in caplog.text) == ([], True)
    with monkeypatch.context() as patch:
        patch.setattr(people, "names", {BEN: "ben"})
        let_pass(desk, BEN)
        look(desk)
    assert mailbox.receivers == [BEN]
    assert [*stored(desk)] == [BEN]


def test_who_has_no_more_digests_is_sent_the_last_one(desk, mailbox):
    """So that no question that waits in it is lost; then a message each, as before."""
    ask(desk, "pay")
    desk.settings.mail_digests = []
    desk.door = MailDoor(desk.app.state.services)
    let_pass(desk, ANA)
    look(desk)
    ask(desk, "pay")

    assert [mail["subject"] for mail in mailbox.to(ANA)] == [
        "1 question waits for you",
        "Pay 1,200.50 EUR",
    ]
    assert [*stored(desk)] == [BEN]


def test_a_role_of_a_graph_is_heeded(desk, mailbox, monkeypatch):
    """A digest lists the questions of the graphs in which a person may decide."""
    monkeypatch.setattr(
        people, "roles", lambda principal: ["approver:dollars", "approver:rule"]
    )
    ask(desk, "pay", "dollars", "rule")
    let_pass(desk, ANA)
    look(desk)

    (mail,) = mailbox.mails
    assert mail["subject"] == "2 questions wait for you"
    assert "Pay" in texts_of(mail)[0]
    assert "EUR" not in texts_of(mail)[0]


def test_what_agents_write_in_a_digest_is_text(desk, mailbox):
    """A title is one quoted line, and begins no element."""
    title = '<a href="https://evil.example">Decide</a>\u2028Decide: https://evil.example/'
    desk.registry.add(
        "odd",
        asking(
            rule=Rule(eligible=["ana"], title="{what}"),
            action=Action("a", "function", "b", {"what": title}),
        ),
    )
    desk.client.engine.publish(["odd"])
    ask(desk, "odd")
    let_pass(desk, ANA)
    look(desk)
    (mail,) = mailbox.mails

    assert link_of(mail).startswith("https://runner.example/")
    assert texts_of(mail)[1].count("<a ") == 2  # the question's and the inbox's


def test_the_thread_of_the_door_sends_digests(desk, mailbox, monkeypatch):
    """Between the notices, by the process that has the lock."""
    monkeypatch.setattr(notice_thread, "PAUSE", 0.01)
    doors = [MailDoor(serving(desk)[0].state.services) for _ in range(2)]
    with following(*doors):
        desk.start("pay")
        wait_until(lambda: {ANA, BEN} == stored(desk).keys(), "the digests are noted")
        let_pass(desk, ANA)
        wait_until(lambda: stored(desk)[ANA] > stored_now(desk), "the digest is sent")
        let_pass(desk, ANA)
        wait_until(lambda: stored(desk)[ANA] > stored_now(desk), "the next one is sent")
    assert len(mailbox.to(ANA)) == 2


@pytest.mark.parametrize(
    "times",
    ["9:00", "", "0 9 * * *", "0 9 * * * Mars/Base", "0 9 * * 1 2 UTC", "61 9 * * * UTC"],
)
def test_times_that_can_not_be_used_are_named(site, times):
    """With an example of times that can."""
    site.settings.mail_digests = [f"{ANA}={times}"]
    with pytest.raises(UsageError, match=r"RUNNER_MAIL_DIGESTS=.*0 9 \* \* 1-5 Europe/Berlin"):
        MailDoor(site.app.state.services)
