"""The mail door: everyone who may decide a question gets one message, with a link to decide once.

The link contains the question, the shown digest and the person's address, signed with this
installation's key. Opening it shows the question and changes nothing, even if a link scanner opens
it; the form on its page decides. A thread in one server process at a time follows the notices and
sends the messages. Only the people who got a message, and whose link has decided, are stored.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from email.message import EmailMessage
from functools import partial
from html import escape
from textwrap import indent
from typing import Annotated, ClassVar

from runner.approvals.directory import addresses_of
from runner.approvals.rules import Principal, plain_name
from runner.doors import flat_forms
from runner.doors.flat_forms import decision_of
from runner.doors.mail_digest import MAILTO, DigestSender
from runner.doors.mail_server import MailServer, hash_of
from runner.doors.notice_thread import NoticeThread
from runner.doors.questions import (
    GOOD,
    MOST_SHOWN,
    check_settings,
    decider,
    deciders,
    has_voted,
    local_time,
    mac_of,
    message,
    page_message,
    page_of,
)
from runner.errors import (
    ConflictError,
    DirectoryError,
    NotFoundError,
    UsageError,
    needs_extra,
)
from runner.immutable import immutable
from runner.operations import decided
from runner.operations.questions import QuestionView, read_question
from runner.records.codec import JSONMapping
from runner.records.interrupts import InterruptStatus, Receipt
from runner.records.json_form import pretty
from runner.records.shown_text import shown
from runner.settings import DAY

with needs_extra("server", "the mail door"):
    from fastapi import APIRouter, Depends, Request
    from fastapi.responses import HTMLResponse
    from fastapi.routing import APIRoute
    from starlette.datastructures import MutableHeaders, QueryParams
    from starlette.types import Message, Receive, Scope, Send

    from runner.server.access import OPEN, Person, caller
    from runner.server.auth import same
    from runner.server.deciding import decide
    from runner.server.forms import (
        WHOLE,
        SentForm,
        answer_fields,
        answer_of,
        fields_of,
        marked,
        with_json,
    )
    from runner.server.pages.rendering import page
    from runner.server.problems import Problem
    from runner.server.services import Services

log = logging.getLogger(__name__)

NEEDED = ("mail_server", "mail_from", "server_secret", "server_url", "directory")

PATH = "/doors/mail"

BELOW = f"{PATH}/{{rest:path}}"
"""Paths with an extra slash: a redirect would leave the link in the server's log."""

LINK_AGE = 7 * DAY
"""Maximum seconds for which a link can decide."""

MOST_TRIES = 10
"""Attempts to send a message that the mail server neither accepts nor refuses permanently."""

MOST_PEOPLE = 100
"""Maximum number of people who get a message about one question."""

ADDRESS = re.compile(r"[^\s@<>()\[\],;:\\\"]+@[A-Za-z0-9.-]+")
"""A plain address for a header: it can't contain the start of another address, a comment or a line."""

EXPIRED = "expired:"
"""The mark of messages that say that a question has expired; a reminder's mark is its number."""

UNSUBSCRIBE = re.compile(r"|(mailto:|https://)[!-;=?-~]{1,900}")
"""An address for the header List-Unsubscribe, or an empty text."""


@immutable
class MailedQuestion:
    """The people who got a message about a question, and whose link decided, as hashed addresses.

    `id` is the question's id. Messages after the first have a mark and a colon before the address.
    """

    id: str
    sent: Sequence[str] = ()
    used: Sequence[str] = ()
    v: int = 1

    kind: ClassVar = "mailed_question"
    limit: ClassVar = 100_000

    def due_at(self, now: int) -> None:
        """Return None, because it has no timer."""


@immutable
class Link:
    """The content of a link, with the shown digest; `expires_at` is in ms."""

    question: str
    digest: str
    address: str
    expires_at: int


class MailDoor:
    """The messages of one installation, and the actions of their links."""

    def __init__(self, services: Services) -> None:
        """Check the settings, without connecting.

        Raises:
            UsageError: a setting is missing, or can't be used.
        """
        settings = self._settings = services.settings
        check_settings(settings, NEEDED, "the mail door", "docs/how-to/email.md")
        if not _is_address(settings.mail_from):
            raise UsageError(
                f"RUNNER_MAIL_FROM={settings.mail_from!r:.200} isn't a bare address."
            )
        if not UNSUBSCRIBE.fullmatch(settings.mail_unsubscribe):
            raise UsageError(
                f"RUNNER_MAIL_UNSUBSCRIBE={settings.mail_unsubscribe!r:.200} isn't a mailto: or https: URL."
            )
        self._server = MailServer(settings)
        self._services = services
        self._mailed = services.documents(MailedQuestion)
        self._tries: Counter[str] = Counter()
        self.digests = DigestSender(services, self._server, self._link)

    # Links

    def seal(self, link: Link) -> str:
        """Return a link as a signed text, which only this installation can write."""
        text = base64.urlsafe_b64encode(json.dumps(astuple(link)).encode()).decode().rstrip("=")
        return f"{text}.{mac_of(self._settings, 'mail', text)}"

    def _unseal(self, token: str) -> Link:
        text, _, mac = token.partition(".")
        if not same(mac, mac_of(self._settings, "mail", text)):
            raise Problem(403, "The link is not from this server. Open the whole link.")
        return Link(*json.loads(base64.urlsafe_b64decode(f"{text}==")))

    def _open(self, token: str) -> tuple[Link, QuestionView, Person]:
        """Return a link's content, its open question, and the person who may decide it.

        Raises:
            Problem: the link can no longer decide, or never could.
        """
        link = self._unseal(token)
        question = self._services.question(link.question)
        if not question.is_open:
            sentence = shown(decided.decision_of(question).sentence)
            raise Problem(409, f"This question is closed: {sentence}.")
        if time.time() * 1000 > link.expires_at:
            raise Problem(410, "The link is too old. Open the question from your inbox.")
        if link.digest != question.digest or flat_forms.form(question) is None:
            detail = (
                "The question has changed since the link was sent. Open it from your inbox."
            )
            raise Problem(409, detail)
        if hash_of(link.address) in self._read(link.question).used:
            raise Problem(409, "The link was used already. Open the question from your inbox.")
        return link, question, self._decider(link.address, question)

    def _decider(self, address: str, question: QuestionView) -> Person:
        person = decider(
            self._services, question, Principal(address, MAILTO), address, "address"
        )
        if has_voted(person, question):
            raise Problem(409, "You have voted already. Open the question from your inbox.")
        return person

    def page(
        self,
        request: Request,
        viewer: Person | None,
        token: str,
        sent: Mapping[str, str] | None,
    ) -> HTMLResponse:
        """Show a link's question, after deciding it if its form was `sent`; `viewer` is logged in, if given.

        Raises:
            Problem: the link can't decide.
        """
        link, question, person = self._open(token)
        texts = answer_fields(sent or {})
        form = flat_forms.form(question) or {}
        outcome = {} if sent is None else self._count(link, question, person, form, texts)
        problems = outcome if isinstance(outcome, dict) else {}
        receipt = outcome if isinstance(outcome, Receipt) else None
        is_good = receipt is None or receipt.status in GOOD
        fields = fields_of(form, texts)
        if question.rule is None and [*form.get("properties", ())] != [WHOLE]:
            fields = with_json(fields, texts)
        return page(
            request,
            "mailed.html",
            viewer,
            422 if problems else 200 if is_good else 409,
            question=question,
            person_of_link=f"{plain_name(person.principal.key)} ({link.address})",
            fields=marked(fields, problems),
            problems=problems,
            receipt=receipt,
            decided=self._services.question(link.question),
            is_counted=is_good,
        )

    def _count(
        self,
        link: Link,
        question: QuestionView,
        person: Person,
        form: JSONMapping,
        texts: Mapping[str, str],
    ) -> Receipt | dict[str, str]:
        """Count a decision; return its receipt, or the problems with the form's fields."""
        content, problems = answer_of(form, texts)
        if problems:
            return problems
        if (
            question.rule
            and content["decision"] == "reject"
            and not content.get("reason", "").strip()
        ):
            return {"reason": "Say why you reject it."}
        decision = decision_of(question, content)
        if isinstance(decision, Receipt):
            return {"": decision.detail}
        voter = hash_of(link.address)

        def use(mailed: MailedQuestion) -> MailedQuestion:
            if voter in mailed.used:
                raise ConflictError("the link was used already. Nothing was done.")
            return replace(mailed, used=[*mailed.used, voter])

        def give_back(mailed: MailedQuestion) -> MailedQuestion:
            return replace(mailed, used=[person for person in mailed.used if person != voter])

        self._mailed.upsert(MailedQuestion(link.question), use)
        is_refused = False
        try:
            receipt = decide(self._services, person, decision)
            is_refused = receipt.status not in GOOD
        except DirectoryError:
            is_refused = True
            raise
        finally:
            if is_refused:  # any other error may come after the vote was counted
                with suppress(NotFoundError):
                    self._mailed.change(link.question, give_back)
        return receipt

    # Messages

    def handle(self, question_id: str, hold: Callable[[], bool], reminder: int = 0) -> bool:
        """Send the messages due about a question, or a reminder; return False to try again later.

        Raises:
            Unavailable: the mail server is unavailable. RunnerError: the store or the directory is
                unavailable, or a setting can't be used.
        """
        interrupt = self._services.store.interrupts([question_id])[0]
        stored = self._read(question_id)
        has_expired = interrupt is not None and interrupt.status is InterruptStatus.EXPIRED
        if interrupt is None or not (interrupt.is_open or (has_expired and stored.sent)):
            if stored.sent or stored.used:
                self._mailed.remove(question_id)
            return True
        question = read_question(self._services.store, interrupt)
        addresses = addresses_of(deciders(question), self._settings.directory)
        if len(addresses) > MOST_PEOPLE:
            log.warning(
                "mail.cut: %d people may decide %s; %d get a message.",
                len(addresses),
                question_id,
                MOST_PEOPLE,
            )
        is_done = True
        mark = EXPIRED if has_expired else f"{reminder}:" if reminder else ""
        for address in addresses[:MOST_PEOPLE]:
            person = hash_of(address)
            if mark + person in stored.sent or (mark and person not in stored.sent):
                continue
            if not _is_address(address):
                log.error("mail.refused: %.200r isn't an address.", address)
                continue
            try:
                if not has_expired:
                    self._decider(address, question)
            except Problem:
                continue
            if not hold():
                return False
            if self.digests.take(address, question) or self._has_sent(address, question, mark):
                self._mailed.upsert(
                    MailedQuestion(question_id), partial(_with_sent, mark=mark, who=person)
                )
            else:
                is_done = False
        if has_expired and is_done:
            self._mailed.remove(question_id)
        return is_done

    def _read(self, question_id: str) -> MailedQuestion:
        return self._mailed.find(question_id) or MailedQuestion(question_id)

    def _has_sent(self, address: str, question: QuestionView, mark: str) -> bool:
        """Send a message; return False to try again later, True also if it was refused for good."""
        name = f"{question.id} {mark}{hash_of(address)}"
        problem, is_refused = self._server.send(self._message(address, question, mark), address)
        self._tries[name] += 1
        if problem and not is_refused and self._tries[name] < MOST_TRIES:
            log.warning(
                "mail.delayed: %s. The message about %s is retried.", problem, question.id
            )
            return False
        if problem:
            log.error(
                "mail.refused: %s. The question %s can be decided on its page.",
                problem,
                question.id,
            )
        del self._tries[name]
        return True

    def _message(self, address: str, question: QuestionView, mark: str = "") -> EmailMessage:
        """Write the message about a question to a person: the whole question, and a link."""
        text = message(question)
        subject = " ".join(shown(question.title).split())
        if mark == EXPIRED:
            verb = "See it"
            link = page_of(self._settings.server_url, question.id)
            note = "Its time is over, so it can't be decided any more."
        else:
            verb, link, note = self._link(address, question)
        call = question.args or question.reason
        facts = call if isinstance(call, Mapping) else {}
        if len(text) > MOST_SHOWN:
            text = page_message(question)
            facts = {}
        if mark:
            subject = f"{'Expired' if mark == EXPIRED else 'Reminder'}: {subject}"
        # The text is quoted, so that no line looks like the link or this program's words.
        plain = f"{indent(text, '> ', lambda _: True)}\n\n{verb}: {link}\n\n{note}\n"
        rows = "".join(
            f'<tr><th align="left">{escape(shown(name))}</th><td>{escape(shown(pretty(value)))}</td></tr>'
            for name, value in facts.items()
        )
        html = (
            f'<blockquote><p><b>{escape(subject)}</b></p><table border="1" cellpadding="6" '
            f'cellspacing="0">{rows}</table><pre style="white-space:pre-wrap">{escape(text)}</pre>'
            f'</blockquote><p><a href="{escape(link)}">{verb}</a></p><p>{escape(note)}</p>'
        )
        return self._server.compose(address, subject, plain, html, question.id, mark)

    def _link(self, address: str, question: QuestionView) -> tuple[str, str, str]:
        """Return a word for a link by which a person decides a question, the link, and a note about it."""
        opens = page_of(self._settings.server_url, question.id)
        if flat_forms.form(question) is None:
            return "Open it", opens, "It is decided on its page, after a login."
        latest = round((time.time() + LINK_AGE) * 1000)
        expires_at = min(question.expires_at or latest, latest)
        token = self.seal(Link(question.id, question.digest, address, expires_at))
        note = (
            "Keep the link to yourself: anyone who has it can decide in your name, once, until "
            f"{local_time(expires_at, 'UTC')}. After a login: {opens}"
        )
        return "Decide", self._settings.page(f"{PATH}?t={token}"), note


def _is_address(text: str) -> bool:
    is_plain = text.isascii() and "=?" not in text
    return is_plain and len(text) < 255 and bool(ADDRESS.fullmatch(text))


def _with_sent(mailed: MailedQuestion, mark: str, who: str) -> MailedQuestion:
    """Note a message that was sent, and forget earlier reminders."""
    notes = [note for note in mailed.sent if ":" not in note or note.startswith(mark)]
    return replace(mailed, sent=[*notes, mark + who])


# The application


class LinkRoute(APIRoute):
    """A route that removes the token from the request's address, which the server logs.

    The page's requests, for its styles for example, have no referrer with the token: proxies log it.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, even one refused before it reaches the door."""
        scope["link_token"] = QueryParams(scope["query_string"]).get("t", "")
        scope["query_string"] = b""

        async def without_referrer(message: Message) -> None:
            if message["type"] == "http.response.start":
                # "no-referrer" would make the Origin header of the form "null".
                MutableHeaders(scope=message)["referrer-policy"] = "strict-origin"
            await send(message)

        await super().handle(scope, receive, without_referrer)


def _token(request: Request) -> str:
    token: str = request.scope["link_token"]
    return token


Viewer = Annotated[Person | None, Depends(caller)]
Token = Annotated[str, Depends(_token)]


def router(services: Services) -> APIRouter:
    """Return the routes of the door; while the application runs, a thread sends its messages."""
    door = MailDoor(services)
    thread = NoticeThread(services, "mail", door.handle, door.digests.send_due)
    routes = APIRouter(include_in_schema=False, lifespan=thread.lifespan, route_class=LinkRoute)

    @routes.get(BELOW, dependencies=[Depends(OPEN)])
    @routes.get(PATH, dependencies=[Depends(OPEN)])
    def show(request: Request, viewer: Viewer, token: Token) -> HTMLResponse:
        return door.page(request, viewer, token, None)

    @routes.post(BELOW, dependencies=[Depends(OPEN)])
    @routes.post(PATH, dependencies=[Depends(OPEN)])
    def answer(request: Request, viewer: Viewer, token: Token, form: SentForm) -> HTMLResponse:
        return door.page(request, viewer, token, form)

    return routes
