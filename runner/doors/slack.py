"""The Slack door: an open question is a message with buttons in a channel, and a click decides.

A thread in one server process at a time follows the notices: it writes a message for each new
question and rewrites it after changes, finally without buttons. It stores only which message shows
which question.

A click counts only if Slack has just signed it, it comes from our workspace, and we made the
button, which contains the question and the shown digest under our key. The directory identifies the
person by account, never by a name in Slack's payload.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qs

from pydantic import BaseModel

from runner.approvals.directory import addresses_of
from runner.approvals.rules import Principal
from runner.doors import block_kit, flat_forms
from runner.doors.block_kit import MOST_LABEL, MOST_SHOWN, button, escaped, plain
from runner.doors.flat_forms import decision_of
from runner.doors.notice_thread import NoticeThread, Unavailable
from runner.doors.questions import (
    GOOD,
    check_settings,
    decider,
    deciders,
    has_voted,
    mac_of,
    message,
    page_of,
    person_of,
    waiting,
    waiting_text,
)
from runner.errors import (
    ConflictError,
    RunnerError,
    StoreError,
    UsageError,
    needs_extra,
)
from runner.immutable import immutable
from runner.operations import decided
from runner.operations.questions import QuestionView, read_question
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Decision, Interrupt
from runner.records.json_form import pretty
from runner.records.listings import Page
from runner.records.shown_text import shown

with needs_extra("server", "the Slack door"):
    from fastapi import APIRouter, Depends, Request, Response
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse
    from starlette.background import BackgroundTask

    from runner.server.access import SIGNED, Person
    from runner.server.auth import same
    from runner.server.browser import MOST_UNKNOWN
    from runner.server.deciding import decide
    from runner.server.problems import Problem, problem_of
    from runner.server.services import Services

with needs_extra("slack", "the Slack door"):
    from slack_sdk import WebClient
    from slack_sdk.errors import SlackApiError, SlackClientError
    from slack_sdk.signature import SignatureVerifier

log = logging.getLogger(__name__)

Action = Literal["approve", "reject", "answer"]

OPEN = "runner:open"
"""The button that opens the page; Slack reports clicks on it, too."""

OF_APP = ("slack_team", "slack_channels", "slack_token", "slack_signing_secret")
NEEDED = (*OF_APP, "server_secret", "server_url", "directory")

TIMEOUT, WRITES_WITHIN = 1, 10
"""Seconds that Slack's API may take: a click makes two calls and must be answered within three; no
one waits for a message, and a message given up may still arrive."""

LOCK_MS = 15_000
"""Ms for which a process holds the lock without renewal: longer than one message may take."""

MOST_SENT = 1_048_576
"""Maximum bytes of a request from Slack: a form returns all fields; a character takes 8 or more."""

MOST_MENTIONED = 20
"""Maximum people whom a message mentions: each is looked up."""

MOST_LISTED = 50
"""Maximum questions in the app's home."""

MOST_PAUSE = 300.0
"""Maximum seconds before a retry after a failure."""

GONE = {
    "message_not_found",
    "channel_not_found",
    "is_archived",
    "cant_update_message",
    "edit_window_closed",
}
"""Slack errors after which a message can no longer be rewritten."""

OF_TOKEN = {
    "account_inactive",
    "invalid_auth",
    "missing_scope",
    "not_authed",
    "token_expired",
    "token_revoked",
}
"""Slack errors that end once the app gets a new token or more scopes; until then messages wait."""

PASSING = (StoreError, SlackClientError, OSError, http.client.HTTPException)
"""Errors that lead to a retry: the store or Slack doesn't answer, or asks for one."""


@immutable
class SlackMessage:
    """The message that shows a question; `id` is the question's, `checksum` covers the content.

    `mentioned` are the addresses of the people who were told of it, and of those whom its last reminder
    told, with its number and a colon before them; the thread has that reminder if these stand alone.
    """

    id: str
    channel: str
    ts: str
    checksum: str
    mentioned: Sequence[str] = ()
    v: int = 1

    kind: ClassVar = "slack_message"
    limit: ClassVar = 100_000

    def due_at(self, now: int) -> None:
        """Return None, because it has no timer."""


@immutable
class Intent:
    """The content of a button: its action, its question, and the shown digest."""

    action: Action
    question: str
    digest: str


class SlackDoor:
    """One Slack app in one workspace."""

    def __init__(self, services: Services) -> None:
        """Check the settings, without connecting.

        Raises:
            UsageError: a setting is missing, or can't be used.
        """
        settings = self._settings = services.settings
        check_settings(settings, NEEDED, "the Slack door", "docs/how-to/slack.md")
        self._services = services
        self._messages = services.documents(SlackMessage)
        self._verifier = SignatureVerifier(settings.slack_signing_secret)
        self._api, self._writer = (
            WebClient(settings.slack_token, settings.slack_url, timeout=most, retry_handlers=[])
            for most in (TIMEOUT, WRITES_WITHIN)
        )
        pairs = [name.rpartition("=") for name in settings.slack_channels]
        self._channels = {graph.strip(): channel.strip() for graph, _, channel in pairs}
        self.notices = NoticeThread(services, "slack", self.handle, retry=0, lock_ms=LOCK_MS)

    # Buttons

    def seal(self, intent: Intent) -> str:
        """Return an intent as a text that only this installation can have written."""
        text = json.dumps([intent.action, intent.question, intent.digest])
        return f"{self._mac(text)}.{text}"

    def _mac(self, text: str) -> str:
        return mac_of(self._settings, "slack", f"{self._settings.slack_team}\n{text}")

    def _unseal(self, value: str) -> Intent:
        mac, _, text = value.partition(".")
        if not same(mac, self._mac(text)):
            raise Problem(403, "The button is not from this server. Nothing was done.")
        return Intent(*json.loads(text))

    # Requests from Slack

    def receive(self, body: bytes, timestamp: str, signature: str) -> JSONObject:
        """Carry out a request from Slack, and return the JSON of the response.

        Raises:
            Problem: the request isn't from Slack, this workspace, or a button of this server.
        """
        if not self._is_signed(body, timestamp, signature):
            raise Problem(
                401,
                "The request has no currently valid signature from Slack. Nothing was done.",
            )
        payload = read_payload(body)
        team = self._settings.slack_team
        if payload.challenge:
            return {"challenge": payload.challenge}
        if payload.team is None or {payload.team.id, payload.user.team_id or team} != {team}:
            raise Problem(403, "The click is from another Slack workspace. Nothing was done.")
        if payload.type == "view_submission" and payload.view is not None:
            return self._submit(payload.user, payload.view)
        for click in payload.actions:
            if payload.type == "block_actions" and click.action_id != OPEN:
                self._press(payload, click)
        return {}

    def _is_signed(self, body: bytes, timestamp: str, signature: str) -> bool:
        try:
            return self._verifier.is_valid(body, timestamp, signature)
        except (
            ValueError,
            TypeError,
            OverflowError,
        ):  # not a number, too large a number, or not UTF-8
            return False

    def _press(self, payload: Payload, click: Click) -> None:
        intent = self._unseal(click.value)
        container = payload.container
        try:
            question = self._question(intent)
            person = self._decider(payload.user, question)
            if self._messages.find(question.id) is None:
                # The process that wrote the message died before storing it, or will store it soon.
                self._note(question.id, container.channel_id, container.message_ts)
            if intent.action == "approve":
                key = f"slack:{container.message_ts}:{click.action_ts}"
                self._decide(person, question, {"decision": "approve"}, key)
            else:
                view = _modal(question, intent, click.value)
                self._call("views_open", trigger_id=payload.trigger_id, view=view)
        except (Problem, RunnerError) as error:
            text = escaped(f"Not done: {problem_of(error).detail}")
            try:
                self._call(
                    "chat_postEphemeral",
                    channel=container.channel_id,
                    user=payload.user.id,
                    text=text,
                )
            except Problem as silence:
                log.info("slack.unheard: %s The click was refused: %s", silence, text)

    def _submit(self, user: Account, modal: Modal) -> JSONObject:
        intent = self._unseal(modal.private_metadata)
        try:
            question = self._question(intent)
            person = self._decider(user, question)
            form = _modal_form(question, intent)
            try:
                content = block_kit.content_of(form, modal.state.get("values", {}))
            except (ValueError, LookupError, TypeError) as error:
                raise Problem(422, "An input has a value that its field can't have.") from error
            if intent.action == "reject":
                content["decision"] = "reject"
            self._decide(person, question, content, f"slack:{modal.id}")
        except (Problem, RunnerError) as error:
            return {
                "response_action": "errors",
                "errors": {"0": problem_of(error).detail[:MOST_LABEL]},
            }
        return {}

    def _decide(
        self, person: Person, question: QuestionView, content: JSONMapping, key: str
    ) -> None:
        """Count a decision; a repeated one has the same key. Raise Problem if it is refused."""
        if content.get("decision") == "reject" and not content.get("reason", "").strip():
            raise Problem(422, "Say why you reject it.")
        decision = decision_of(question, content)
        if isinstance(decision, Decision):
            decision = decide(self._services, person, replace(decision, idempotency_key=key))
        if decision.status not in GOOD:
            raise Problem(422, decision.detail or str(decision.status))

    def _question(self, intent: Intent) -> QuestionView:
        question = self._services.question(intent.question)
        if not question.is_open:
            raise Problem(409, f"This is already {_sentence(question)}.")
        if intent.digest != question.digest:
            raise Problem(409, "This has changed since the message was written: open it.")
        if intent.action not in _actions(question):
            raise Problem(403, "This is decided on its page: open it.")
        return question

    def _decider(self, user: Account, question: QuestionView) -> Person:
        return decider(self._services, question, *self._identify(user), "account")

    def _identify(self, user: Account) -> tuple[Principal, str]:
        account = self._call("users_info", user=user.id)["user"]
        team = self._settings.slack_team
        is_ours = account.get("team_id") == team and not account.get("is_stranger")
        if not is_ours or account.get("deleted") or account.get("is_bot"):
            raise Problem(403, "The account is not one of a person in this workspace.")
        is_confirmed = account.get("is_email_confirmed", False)
        email = account.get("profile", {}).get("email", "") if is_confirmed else ""
        return Principal(user.id, f"https://slack.com/{team}"), email

    def show_home(self, body: bytes) -> None:
        """Show the sender of a request, in the app's home, the questions that wait for them."""
        user = read_payload(body).user
        try:
            person = person_of(self._services, *self._identify(user))
            questions = waiting(self._services, person, MOST_LISTED) if person else Page(())
            inbox = f"{waiting_text(questions)}.", self._settings.page("/inbox?tab=mine")
            pages = [
                (f"{shown(view.title):.150}", page_of(self._settings.server_url, view.id))
                for view in questions
            ]
            blocks = [
                {
                    "type": "section",
                    "text": plain(text),
                    "accessory": button(OPEN, "Open", url=url),
                }
                for text, url in [inbox, *pages[:MOST_LISTED]]
            ]
            self._call(
                "views_publish", user_id=user.id, view={"type": "home", "blocks": blocks}
            )
        except (Problem, RunnerError) as error:
            why = problem_of(error).detail
            log.info("slack.unheard: %s The app's home of %s is as before.", why, user.id)

    def _call(self, method: str, **arguments: Any) -> Any:
        """Call Slack's API for a click.

        Raises:
            Problem: the call failed.
        """
        try:
            return getattr(self._api, method)(**arguments)
        except PASSING as error:
            raise Problem(
                503, f"Slack did not answer ({_summary(error)}); try again."
            ) from error

    # Messages

    def show(self, question_id: str, reminder: int = 0) -> None:
        """Update a question's message to its state: write it, rewrite it, or remove its buttons.

        The thread mentions people once when they may decide, also by an escalation or delegation, and
        again at a reminder of a number until they vote; the decision ends it.

        Raises:
            one of PASSING: the store or Slack failed.
        """
        interrupt = self._services.store.interrupts([question_id])[0]
        stored = self._messages.find(question_id)
        if interrupt is None or not (interrupt.is_open or stored):
            return
        blocks, text = self.blocks(interrupt)
        checksum = hashlib.sha256(json.dumps(blocks).encode()).hexdigest()
        if stored is None:
            channel = self._channels.get(
                self._services.graph_of(question_id)
            ) or self._channels.get("")
            if channel is None:
                return
            reply = self._writer.chat_postMessage(
                channel=channel,
                text=text,
                blocks=blocks,
                unfurl_links=False,
                unfurl_media=False,
            )
            self._note(question_id, reply["channel"], reply["ts"], checksum)
            if (stored := self._messages.find(question_id)) is None:
                return
        if stored.checksum != checksum:
            channel = stored.channel
            ts = stored.ts
            try:
                self._writer.chat_update(channel=channel, ts=ts, text=text, blocks=blocks)
            except SlackApiError as error:
                if _refusal(error) not in GONE:
                    raise
                why = _summary(error)
                log.warning(
                    "slack.gone: The message of %s can't be changed: %s.", question_id, why
                )
            self._messages.change(question_id, partial(replace, checksum=checksum))
        if interrupt.is_open:
            self._mention(interrupt, stored, reminder)
        else:
            self._writer.chat_postMessage(
                channel=stored.channel, thread_ts=stored.ts, text=text
            )
            self._messages.remove(question_id)

    def _mention(self, interrupt: Interrupt, message: SlackMessage, reminder: int) -> None:
        """Mention those who may decide now and weren't notified; with a reminder all who have not voted."""
        question = read_question(self._services.store, interrupt)
        addresses: Sequence[str] = ()
        with suppress(UsageError):  # the directory has none
            addresses = addresses_of(deciders(question), self._settings.directory)
        mark = f"{reminder}:" * bool(reminder)
        is_direct = self._settings.slack_direct
        marks = [note for note in message.mentioned if ":" not in note or note.startswith(mark)]
        mentions = []
        text = f"{escaped(f'{shown(question.title):.150}')} waits for a decision."
        if reminder:
            text = f"Reminder {reminder}: {text}"
        page = page_of(self._settings.server_url, question.id)
        for address in addresses[:MOST_MENTIONED]:
            if mark + address in marks:
                continue
            try:
                account = self._writer.users_lookupByEmail(email=address)["user"]["id"]
                name = Principal(account, f"https://slack.com/{self._settings.slack_team}")
                person = decider(self._services, question, name, address, "account")
                if has_voted(person, question):
                    continue
                if is_direct:
                    self._writer.chat_postMessage(channel=account, text=f"{text} {page}")
            except Problem:  # they may not decide yet
                continue
            except SlackApiError as error:
                # The person isn't here, or the app may not look.
                if _is_passing(error) and _refusal(error) != "missing_scope":
                    raise
                continue
            marks += {address, mark + address}
            if is_direct:
                self._messages.change(question.id, partial(replace, mentioned=marks))
            else:
                mentions.append(f"<@{account}>")
        if mark not in marks if reminder else mentions:
            self._writer.chat_postMessage(
                channel=message.channel,
                thread_ts=message.ts,
                text=f"{' '.join(mentions)} {text}".strip(),
                reply_broadcast=bool(reminder),
            )
            marks = [*marks, mark] if reminder else marks
            self._messages.change(question.id, partial(replace, mentioned=marks))

    def _note(self, question_id: str, channel: str, ts: str, checksum: str = "") -> None:
        """Store which message shows a question; without a checksum the next notice rewrites it."""
        with suppress(ConflictError):  # another process has stored it
            self._messages.add(SlackMessage(question_id, channel, ts, checksum))

    def blocks(self, interrupt: Interrupt) -> tuple[list[JSONObject], str]:
        """Return the blocks that show a question, and the text of its notification."""
        question = read_question(self._services.store, interrupt)
        text = message(question)
        title = f"{shown(question.title):.150}"
        is_whole = len(escaped(text)) <= MOST_SHOWN
        if not is_whole:
            text = f"{shown(question.title):.400}\n\nThis is too long for a message: open it to see all."
        facts = {name: shown(pretty(value)) for name, value in question.args.items()}
        note = f"Digest {question.digest.rpartition(':')[2]:.12}"
        if not question.is_open:
            note = _sentence(question)
        blocks: list[JSONObject] = [
            {
                "type": "section",
                "text": plain(text),
                **(block_kit.facts(facts) if is_whole else {}),
            },
            {"type": "context", "elements": [plain(note, MOST_LABEL)]},
        ]
        if not question.is_open:
            return blocks, escaped(f"{title}: {note}", MOST_SHOWN)
        buttons = [
            button(
                f"runner:{action}",
                action.capitalize(),
                value=self.seal(Intent(action, question.id, question.digest)),
                **(block_kit.approval(title) if action == "approve" else {}),
            )
            for action in (_actions(question) if is_whole else ())
        ]
        buttons.append(
            button(OPEN, "Open", url=page_of(self._settings.server_url, question.id))
        )
        return [*blocks, {"type": "actions", "elements": buttons}], escaped(title)

    def handle(self, question_id: str, _hold: Callable[[], bool], reminder: int = 0) -> bool:
        """Show a question; log one that Slack refuses, so that it doesn't block others.

        Raises:
            Unavailable: Slack or the store failed for now.
            RunnerError: another error of the library.
        """
        try:
            self.show(question_id, reminder)
        except (*PASSING, UsageError) as error:
            if _is_passing(error):
                raise Unavailable(_summary(error), _pause_after(error)) from error
            log.error(  # noqa: TRY400 - Slack's error says enough
                "slack.refused: The question %s can be decided only on its page: %s.",
                question_id,
                _summary(error),
            )
        return True


def _refusal(error: Exception) -> str:
    """Return Slack's name for its refusal, or "" if the answer isn't from Slack's API."""
    data = error.response.data if isinstance(error, SlackApiError) else None
    name = data.get("error") if isinstance(data, dict) else None
    return name if isinstance(name, str) and name.isidentifier() else ""


def _is_passing(error: Exception) -> bool:
    if isinstance(error, RunnerError):
        return isinstance(error, StoreError)
    status = error.response.status_code if isinstance(error, SlackApiError) else 0
    return status == 429 or status >= 500 or _refusal(error) in {"", *OF_TOKEN}


def _summary(error: Exception) -> str:
    return _refusal(error) or f"{type(error).__name__}: {error}"[:300]


def _pause_after(error: Exception) -> float:
    """Return the seconds that Slack asks to wait, or 0 if it asks for none."""
    headers = error.response.headers if isinstance(error, SlackApiError) else {}
    asked = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    return min(int(asked), MOST_PAUSE) if asked.isdecimal() else 0


def _sentence(question: QuestionView) -> str:
    return shown(decided.decision_of(question).sentence)


def _actions(question: QuestionView) -> Sequence[Action]:
    """Return a question's buttons; none if it needs its page."""
    form = flat_forms.form(question)
    if form is None:
        return ()
    if question.rule is not None:
        return tuple(form["properties"]["decision"]["enum"])
    return ("answer",) if block_kit.fits(form) else ()


def _modal(question: QuestionView, intent: Intent, sealed: str) -> JSONObject:
    about = {"type": "section", "text": plain(shown(question.title), MOST_SHOWN)}
    return {
        "type": "modal",
        "title": plain(intent.action.capitalize()),
        "submit": plain("Send"),
        "close": plain("Cancel"),
        "private_metadata": sealed,
        "blocks": [about, *block_kit.inputs(_modal_form(question, intent))],
    }


def _modal_form(question: QuestionView, intent: Intent) -> JSONObject:
    form = flat_forms.form(question) or {}
    if intent.action != "reject":
        return form
    return {"properties": {"reason": form["properties"]["reason"]}, "required": ["reason"]}


# The application


def router(services: Services) -> APIRouter:
    """Return the route of the door; while the application runs, a thread writes its messages."""
    door = SlackDoor(services)
    routes = APIRouter(include_in_schema=False, lifespan=door.notices.lifespan)

    @routes.post("/doors/slack", dependencies=[Depends(SIGNED)])
    async def receive(request: Request) -> Response:
        # Slack has signed the raw body, so it is read here and not by a form parser.
        request.scope[MOST_UNKNOWN] = MOST_SENT
        body = await request.body()
        headers = request.headers
        timestamp = headers.get("x-slack-request-timestamp", "")
        signature = headers.get("x-slack-signature", "")
        document = await run_in_threadpool(door.receive, body, timestamp, signature)
        response = JSONResponse(document) if document else Response()
        if "challenge" not in document:  # Slack waits three seconds for the response
            response.background = BackgroundTask(door.show_home, body)
        return response

    return routes


# -- the requests that Slack sends -----------------------------------------------------------------


class Account(BaseModel):
    """The account that clicked; people can choose everything else the payload says about them."""

    id: str
    team_id: str | None = None


class Click(BaseModel):
    """A click on a button."""

    action_id: str
    action_ts: str = ""
    value: str = ""


class ClickedMessage(BaseModel):
    """The message whose button was clicked."""

    channel_id: str = ""
    message_ts: str = ""


class Modal(BaseModel):
    """A submitted form; `state` has the inputs by block and action."""

    id: str
    private_metadata: str = ""
    state: dict[str, dict[str, dict[str, JSONObject]]]


class Workspace(BaseModel):
    """The workspace in a payload."""

    id: str


class Payload(BaseModel):
    """The fields of a request that the door reads; with a `challenge` Slack checks the door's address."""

    type: str
    challenge: str = ""
    team: Workspace | None
    user: Account
    trigger_id: str = ""
    container: ClickedMessage = ClickedMessage()
    actions: list[Click] = []
    view: Modal | None = None


def read_payload(body: bytes) -> Payload:
    """Read the body of a request from Slack.

    Raises:
        Problem: the body isn't an interaction or an event.
    """
    try:
        if body.startswith(b"{"):
            document = json.loads(body)
            event = document.get("event", document)
            fields = {name: event[name] for name in ("type", "challenge") if name in event}
            user = {"id": event.get("user", "")}
            team = {"id": document.get("team_id", "")}
            return Payload.model_validate({**fields, "user": user, "team": team})
        (text,) = parse_qs(body.decode(), strict_parsing=True)["payload"]
        return Payload.model_validate_json(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Problem(400, "The body isn't a Slack interaction. Nothing was done.") from error
