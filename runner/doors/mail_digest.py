"""The digests of the mail door: one message lists all questions that wait for a person.

RUNNER_MAIL_DIGESTS says when. A digest is also sent four hours before the first question expires. Only
the time of each person's next digest is stored; its questions are read from their inbox when it is sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from email.message import EmailMessage
from html import escape
from typing import ClassVar

from runner.approvals.rules import Principal
from runner.doors.mail_server import MailServer
from runner.doors.questions import local_time, person_of, waiting, waiting_text
from runner.errors import RunnerError, UsageError, needs_extra
from runner.immutable import immutable
from runner.operations.questions import QuestionView
from runner.records.listings import EVER, Page
from runner.records.shown_text import shown
from runner.schedules.schedule import Schedule, checked, next_time

with needs_extra("server", "the mail door"):
    from runner.server.pages.amounts import sums_of
    from runner.server.services import Services

log = logging.getLogger(__name__)

MAILTO = "mailto"
"""The issuer of an address as an account."""

AHEAD, APART = 4 * 3_600_000, 3_600_000
"""Ms from a digest to the expiry that causes it, and the least ms from any digest to the next such one."""

LOOKS_EVERY = 10.0
"""Seconds between two checks for due digests."""

MOST_WAITING, MOST_ROWS = 500, 50
"""Maximum questions that are counted for a digest, and rows of its table."""


@immutable
class MailDigest:
    """The next digest of a person: `id` is their address, `due` its time in ms."""

    id: str
    due: int
    v: int = 1

    kind: ClassVar = "mail_digest"
    limit: ClassVar = 100_000

    def due_at(self, now: int) -> None:
        """Return None, because it has no timer: the door looks for those that are due."""


class DigestSender:
    """The digests of one installation."""

    def __init__(
        self,
        services: Services,
        server: MailServer,
        link: Callable[[str, QuestionView], tuple[str, str, str]],
    ) -> None:
        """Read the times; `link` makes a person's link to a question, with a word for it and a note.

        Raises:
            UsageError: a time or its zone can't be used.
        """
        self._services = services
        self._server = server
        self._link = link
        self._digests = services.documents(MailDigest)
        self._timetables = dict(map(_timetable, services.settings.mail_digests))
        self._next_look = 0.0

    def _timetable_of(self, address: str) -> Schedule | None:
        return self._timetables.get(address) or self._timetables.get("")

    def take(self, address: str, question: QuestionView) -> bool:
        """Add a question to a person's next digest; return False if it needs its own message.

        It does if it is of high risk or expires too soon, or if the person gets no digests.
        """
        now = self._digests.now()
        timetable = self._timetable_of(address)
        early = (question.expires_at or EVER) - AHEAD
        if timetable is None or question.risk == "high" or early <= now:
            return False
        due = min(next_time(timetable, now), early)
        self._digests.upsert(
            MailDigest(address, due), lambda digest: replace(digest, due=min(digest.due, due))
        )
        return True

    def send_due(self, hold: Callable[[], bool]) -> None:
        """Send the digests that are due; one that could not be sent stays due.

        Raises:
            Unavailable: the mail server is unavailable. StoreError: the store is.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOKS_EVERY
        for digest in self._digests.all():
            if digest.due <= (now := self._digests.now()) and hold():
                try:
                    self._send(digest, now)
                except RunnerError as error:
                    log.warning("mail.delayed: %s The digest is sent later.", error)

    def _send(self, digest: MailDigest, now: int) -> None:
        address = digest.id
        timetable = self._timetable_of(digest.id)
        person = person_of(self._services, Principal(address, MAILTO), address)
        questions = waiting(self._services, person, MOST_WAITING) if person else Page(())
        early = [(question.expires_at or EVER) - AHEAD for question in questions]
        # The question whose expiry is the reason for this digest may be decided by now.
        is_time = timetable is None or next_time(timetable, digest.due - 1) == digest.due
        next_from = now
        if early and (is_time or early[0] <= now):
            next_from += APART
            mail = self._message(digest, questions, timetable.timezone if timetable else "UTC")
            problem, is_refused = self._server.send(mail, address)
            if problem and not is_refused:
                log.warning("mail.delayed: %s. The digest is sent again.", problem)
                return
            if problem:
                log.error("mail.refused: %s. The questions are in the inbox.", problem)
        if timetable is None or not early:
            self._digests.remove(address)
            return
        due = min(next_time(timetable, now), *(at for at in early if at > next_from), EVER)
        self._digests.replace(digest, replace(digest, due=due))

    def _message(
        self, digest: MailDigest, questions: Page[QuestionView], zone: str
    ) -> EmailMessage:
        address = digest.id
        inbox = self._services.settings.page("/inbox?tab=mine")
        summary = waiting_text(questions, zone)
        sums = "" if questions.next else sums_of(questions).striptags()
        total = f"In all {sums}." if sums else ""
        texts, rows = [f"{summary}.", total], ""
        for question in questions.items[:MOST_ROWS]:
            title = f"{' '.join(shown(question.title).split()):.300}"
            verb, link, _ = self._link(address, question)
            due = local_time(question.expires_at, zone) if question.expires_at else ""
            texts.append(f"> {title}{due and f' (due at {due})'}\n{verb}: {link}")
            rows += (
                f"<tr><td>{escape(title)}</td><td>{due}</td>"
                f'<td><a href="{escape(link)}">{verb}</a></td></tr>'
            )
        note = "Keep the links to yourself: anyone who has one can decide in your name, once."
        texts += [f"All of them, after a login: {inbox}", note]
        html = (
            f'<p><b>{summary}.</b> {escape(total)}</p><table border="1" cellpadding="6" cellspacing="0"><tr>'
            f"<th>Question</th><th>Due</th><th></th></tr>{rows}</table>"
            f'<p><a href="{escape(inbox)}">All of them, after a login</a></p><p>{note}</p>'
        )
        text = "\n\n".join(filter(None, texts))
        return self._server.compose(address, summary, f"{text}\n", html, f"digest {digest.due}")


def _timetable(text: str) -> tuple[str, Schedule]:
    """Read an entry of RUNNER_MAIL_DIGESTS: the address, "" for all people, and its times."""
    address, _, times = text.rpartition("=")
    *cron, zone = times.split() or [""]
    try:
        schedule = Schedule("digest", "mail", cron=" ".join(cron), timezone=zone)
        return address.strip(), checked(schedule)
    except UsageError as error:
        raise UsageError(
            f"RUNNER_MAIL_DIGESTS={text!r:.200}: {error} Write times such as 0 9 * * 1-5 Europe/Berlin."
        ) from error
