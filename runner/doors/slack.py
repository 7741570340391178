"""The Slack door: an open question is a message with buttons in a channel, and a click on one decides.

A thread of one server process at a time follows the notices: it writes a message for each question that is
asked, and rewrites it when something has changed, at last without buttons. All that it stores is which
message shows which question.

A click counts only if Slack has signed it, now, in our workspace, and the button is one that we made: it has
the question and the digest of what was shown, under our key. Who has clicked is known by the directory, which
is asked for the account, never for a name that Slack's payload has.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError

from runner.approvals.directory import owner_of
from runner.approvals.rules import SERVICE, Principal
from runner.doors import block_kit, flat_forms
from runner.doors.block_kit import MOST_LABEL, MOST_SHOWN, button, escaped, plain
from runner.doors.flat_forms import decision_of
from runner.doors.questions import GOOD, limited, message, page_of
from runner.errors import (
    ConflictError,
    NotFoundError,
    RunnerError,
    StoreError,
    UsageError,
    needs_extra,
)
from runner.operations import decided
from runner.operations.questions import QuestionView, read_question
from runner.records.interrupts import Decision, Interrupt
from runner.records.notices import Notice
from runner.records.shown_text import shown
from runner.store.shared import NoticeReader

with needs_extra("server", "the Slack door"):
    from fastapi import APIRouter, Depends, FastAPI, Request, Response
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse

    from runner.server.access import SIGNED, Person
    from runner.server.deciding import decide, why_barred
    from runner.server.problems import Problem, problem_of
    from runner.server.services import Services

with needs_extra("slack", "the Slack door"):
    from slack_sdk import WebClient
    from slack_sdk.errors import SlackApiError, SlackClientError
    from slack_sdk.signature import SignatureVerifier

log = logging.getLogger(__name__)

Action = Literal["approve", "reject", "answer"]

OPEN = "runner:open"
"""The button that opens the page; Slack tells us of clicks on it, too."""

OF_APP = ("slack_team", "slack_channels", "slack_token", "slack_signing_secret")
NEEDED = (*OF_APP, "server_secret", "server_url", "directory")

TIMEOUT, WRITES_WITHIN = 1, 10
"""Seconds that Slack's API may take: a click makes two calls and is answered within three, no one waits for
a message, and one that is given up may be there all the same."""

GROUP = "door:slack"
"""The consumer group of the notices, and whose turn it is; no webhook has a colon in its id."""

LOOK, PAUSE, MOST_PAUSE = 1.0, 5.0, 300.0
"""Seconds for which new notices are waited for, and after which what failed is tried again, at most."""

BATCH = 100

LEAVES_WITHIN = 3.0
"""Seconds that a server which stops waits for the thread."""

GONE = {
    "message_not_found",
    "channel_not_found",
    "is_archived",
    "cant_update_message",
    "edit_window_closed",
}
"""Errors of Slack after which a message can't be rewritten any more."""

OF_TOKEN = {
    "account_inactive",
    "invalid_auth",
    "missing_scope",
    "not_authed",
    "token_expired",
    "token_revoked",
}
"""Errors of Slack that end when the app has another token or more scopes: until then messages wait."""

PASSING = (StoreError, SlackClientError, OSError, http.client.HTTPException)
"""Errors after which the same is tried again: the store or Slack does not answer, or says so."""


@dataclass(frozen=True, slots=True)
class SlackMessage:
    """The message that shows a question; `id` is the question's, `checksum` that of what it shows."""

    id: str
    channel: str
    ts: str
    checksum: str
    v: int = 1

    kind: ClassVar = "slack_message"
    limit: ClassVar = 100_000

    def document(self) -> dict[str, Any]:
        """Return it as JSON, as it is stored."""
        return asdict(self)

    def due_at(self, now: int) -> None:
        """Return None: it has no timer."""


class Account(BaseModel):
    """Who has clicked; all else that the payload says of them can be chosen by them."""

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
    """A form that was sent; `state` has the inputs by block and action."""

    id: str
    private_metadata: str = ""
    state: dict[str, dict[str, dict[str, dict[str, Any]]]]


class Workspace(BaseModel):
    """The workspace in a payload."""

    id: str


class Payload(BaseModel):
    """The fields of an interaction that are read."""

    type: str
    team: Workspace | None
    user: Account
    trigger_id: str = ""
    container: ClickedMessage = ClickedMessage()
    actions: list[Click] = []
    view: Modal | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """The content of a button: what it does, with which question, and the digest of what was shown."""

    action: Action
    question: str
    digest: str


class SlackDoor:
    """One Slack app in one workspace."""

    def __init__(self, services: Services) -> None:
        """Nothing is connected yet.

        Raises:
            UsageError: a setting is missing, or can't be used.
        """
        settings = self._settings = services.settings
        missing = [name for name in NEEDED if not getattr(settings, name)]
        if missing:
            names = ", ".join(f"RUNNER_{name.upper()}" for name in missing)
            raise UsageError(f"the Slack door needs {names}; see docs/how-to/slack.md.")
        self._services, self._messages = services, services.documents(SlackMessage)
        self._verifier = SignatureVerifier(settings.slack_signing_secret)
        self._api, self._writer = (
            WebClient(settings.slack_token, settings.slack_url, timeout=most, retry_handlers=[])
            for most in (TIMEOUT, WRITES_WITHIN)
        )
        self._key = hashlib.sha256(f"slack\n{settings.server_secret}".encode()).digest()
        pairs = [name.rpartition("=") for name in settings.slack_channels]
        self._channels = {graph.strip(): channel.strip() for graph, _, channel in pairs}

    # Buttons

    def seal(self, intent: Intent) -> str:
        """Write what a button does, so that only this installation can have written it."""
        text = json.dumps([intent.action, intent.question, intent.digest])
        return f"{self._mac(text)}.{text}"

    def _mac(self, text: str) -> str:
        signed = f"{self._settings.slack_team}\n{text}"
        return hmac.new(self._key, signed.encode(), hashlib.sha256).hexdigest()

    def _unsealed(self, value: str) -> Intent:
        mac, _, text = value.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(text).encode()):
            raise Problem(403, "The button is not one of this server. Nothing was done.")
        return Intent(*json.loads(text))

    # Requests of Slack

    def receive(self, body: bytes, timestamp: str, signature: str) -> dict[str, Any]:
        """Do what a request of Slack asks, and return the JSON of the response.

        Raises:
            Problem: it is not from Slack, not of this workspace, or not about a question of this server.
        """
        if not self._is_signed(body, timestamp, signature):
            raise Problem(
                401,
                "The request has no signature of Slack that is valid now. Nothing was done.",
            )
        payload, team = _payload(body), self._settings.slack_team
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
        except (ValueError, TypeError):  # a time that is no number, or text that is not UTF-8
            return False

    def _press(self, payload: Payload, click: Click) -> None:
        intent, container = self._unsealed(click.value), payload.container
        try:
            question = self._question(intent)
            person = self._decider(payload.user, question)
            if self._stored(question.id) is None:
                # The process that wrote it has died before it was stored, or is about to store it.
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

    def _submit(self, user: Account, modal: Modal) -> dict[str, Any]:
        intent = self._unsealed(modal.private_metadata)
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
            fault = problem_of(error).detail
            return {"response_action": "errors", "errors": {"0": fault[:MOST_LABEL]}}
        return {}

    def _decide(
        self, person: Person, question: QuestionView, content: Mapping[str, Any], key: str
    ) -> None:
        """Count a decision, of which one that is repeated has the same key; Problem where it is refused."""
        decision = decision_of(question, content)
        if isinstance(decision, Decision):
            decision = decide(self._services, person, replace(decision, idempotency_key=key))
        if decision.status not in GOOD:
            raise Problem(422, decision.detail or str(decision.status))

    def _question(self, intent: Intent) -> QuestionView:
        interrupt = self._services.client.interrupt(intent.question)
        question = read_question(self._services.store, interrupt)
        if not question.is_open:
            raise Problem(409, f"This is {_sentence(question)} already.")
        if intent.digest != question.digest:
            raise Problem(409, "This has changed since the message was written: open it.")
        if intent.action not in _actions(question):
            raise Problem(403, "This is decided on its page: open it.")
        return question

    def _decider(self, user: Account, question: QuestionView) -> Person:
        person = limited(self._person(user), "decide", self._services.graph_of(question.id))
        if why := why_barred(self._services, person, question):
            raise Problem(403, f"You may not decide this: {why}.")
        return person

    def _person(self, user: Account) -> Person:
        account, team = (
            self._call("users_info", user=user.id)["user"],
            self._settings.slack_team,
        )
        is_ours = account.get("team_id") == team and not account.get("is_stranger")
        if not is_ours or account.get("deleted") or account.get("is_bot"):
            raise Problem(403, "The account is not one of a person in this workspace.")
        is_confirmed = account.get("is_email_confirmed", False)
        email = account.get("profile", {}).get("email", "") if is_confirmed else ""
        name = Principal(user.id, f"https://slack.com/{team}")
        voter = owner_of(name, email, self._settings.directory)
        if voter is None:
            raise Problem(403, "The directory does not know whose account this is.")
        return Person(voter.principal, voter.roles, voter.groups, SERVICE)

    def _call(self, method: str, **arguments: Any) -> Any:
        """Call Slack's API for a click.

        Raises:
            Problem: it did not do that.
        """
        try:
            return getattr(self._api, method)(**arguments)
        except PASSING as error:
            raise Problem(
                503, f"Slack did not answer ({_summary(error)}); try again."
            ) from error

    # Messages

    def show(self, question_id: str) -> None:
        """Make the message of a question show how it stands: write it, rewrite it, or take its buttons away.

        Raises:
            one of PASSING: the store or Slack did not do that.
        """
        interrupt = self._services.store.interrupts([question_id])[0]
        stored = self._stored(question_id)
        if interrupt is None or not (interrupt.is_open or stored):
            return
        blocks, text = self.blocks(interrupt)
        checksum = hashlib.sha256(json.dumps(blocks).encode()).hexdigest()
        if stored is None:
            graph = self._services.graph_of(question_id)
            channel = self._channels.get(graph) or self._channels.get("")
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
            return
        if stored.checksum != checksum:
            channel, ts = stored.channel, stored.ts
            try:
                self._writer.chat_update(channel=channel, ts=ts, text=text, blocks=blocks)
            except SlackApiError as error:
                if _refusal(error) not in GONE:
                    raise
                why = _summary(error)
                log.warning(
                    "slack.gone: The message of %s can't be changed: %s.", question_id, why
                )
        if interrupt.is_open:
            self._messages.replace(stored, replace(stored, checksum=checksum))
        else:
            self._messages.remove(question_id)

    def _note(self, question_id: str, channel: str, ts: str, checksum: str = "") -> None:
        """Store which message shows a question; without a checksum it is rewritten with the next notice."""
        with suppress(ConflictError):  # stored meanwhile
            self._messages.add(SlackMessage(question_id, channel, ts, checksum))

    def _stored(self, question_id: str) -> SlackMessage | None:
        try:
            return self._messages.get(question_id)
        except NotFoundError:
            return None

    def blocks(self, interrupt: Interrupt) -> tuple[list[dict[str, Any]], str]:
        """Return what shows a question, and the text of its notification."""
        question = read_question(self._services.store, interrupt)
        text, title = message(question), f"{shown(question.title):.150}"
        is_whole = len(escaped(text)) <= MOST_SHOWN
        if not is_whole:
            text = f"{shown(question.title):.400}\n\nThis is too long for a message: open it to see all."
        note = f"Digest {question.digest.rpartition(':')[2]:.12}"
        if not question.is_open:
            note = _sentence(question)
        blocks: list[dict[str, Any]] = [
            {"type": "section", "text": plain(text)},
            {"type": "context", "elements": [plain(note, MOST_LABEL)]},
        ]
        if not question.is_open:
            return blocks, escaped(f"{title}: {note}", MOST_SHOWN)
        buttons = [
            button(
                f"runner:{action}",
                action.capitalize(),
                value=self.seal(Intent(action, question.id, question.digest)),
            )
            for action in (_actions(question) if is_whole else ())
        ]
        page = page_of(self._settings.server_url, question.id)
        buttons.append(button(OPEN, "Open", url=page))
        return [*blocks, {"type": "actions", "elements": buttons}], escaped(title)

    # The notices

    def listen(self) -> None:
        """Keep the notices that come from now on until they are shown; StoreError where Redis is away."""
        try:
            self._services.notice_groups.listen(GROUP)
        finally:
            self._services.notice_groups.release()

    def follow(self, stopping: threading.Event) -> None:
        """Show what happens to questions until the process stops, or else wait while another process does."""
        holder, services = secrets.token_hex(8), self._services
        try:
            while not stopping.is_set():
                pause = PAUSE
                try:
                    if services.deliveries.hold(GROUP, holder):
                        self._consume(holder, stopping)
                except PASSING as error:
                    pause = _pause_after(error)
                    log.warning(
                        "slack.failed: %s It is tried again in %g s.", _summary(error), pause
                    )
                except Exception:
                    log.exception(
                        "slack.failed: It is tried again in %g s; please report this.", pause
                    )
                stopping.wait(pause)
            services.deliveries.release(GROUP, holder)
        except StoreError as error:
            log.info("slack.left: %s Another process takes over in some seconds.", error)
        finally:
            services.release(runs=True)

    def _consume(self, holder: str, stopping: threading.Event) -> None:
        deliveries = self._services.deliveries
        self.listen()
        readers = self._services.notice_groups.readers(GROUP)
        try:
            for reader, notices in _batches(readers, stopping):
                for notice in notices:
                    if stopping.is_set() or not deliveries.hold(GROUP, holder):
                        return
                    if notice.kind.startswith("interrupt."):
                        self._show(notice.detail)
                    reader.done([notice])
                if not (notices or deliveries.hold(GROUP, holder)):
                    return
        finally:
            for reader in readers:
                reader.close()

    def _show(self, question_id: str) -> None:
        """Show a question; one that can't be shown is in the log, and holds up no other."""
        try:
            self.show(question_id)
        except PASSING as error:
            if _is_passing(error):
                raise
            log.error(  # noqa: TRY400 - Slack's error says all
                "slack.refused: The question %s is only on its page: %s.",
                question_id,
                _summary(error),
            )
        except Exception:
            log.exception(
                "slack.refused: The question %s is only on its page; please report this.",
                question_id,
            )


def _batches(
    readers: Sequence[NoticeReader], stopping: threading.Event
) -> Iterator[tuple[NoticeReader, Sequence[Notice]]]:
    """Take what a process has left that died with notices in hand, then what is new, until we stop."""
    for reader in readers:
        while notices := reader.take_over(0, BATCH):
            yield reader, notices
    while not stopping.is_set():
        for reader in readers:
            yield reader, reader.read(LOOK / len(readers), BATCH, stopping.is_set)


def _payload(body: bytes) -> Payload:
    try:
        (text,) = parse_qs(body.decode(), strict_parsing=True)["payload"]
        return Payload.model_validate_json(text)
    except (ValueError, KeyError, ValidationError) as error:
        raise Problem(400, "The body is no interaction of Slack. Nothing was done.") from error


def _refusal(error: Exception) -> str:
    """Return Slack's name of what it refuses; "" where it is not Slack's API that has answered."""
    data = error.response.data if isinstance(error, SlackApiError) else None
    name = data.get("error") if isinstance(data, dict) else None
    return name if isinstance(name, str) and name.isidentifier() else ""


def _is_passing(error: Exception) -> bool:
    status = error.response.status_code if isinstance(error, SlackApiError) else 0
    return status == 429 or status >= 500 or _refusal(error) in {"", *OF_TOKEN}


def _summary(error: Exception) -> str:
    return _refusal(error) or f"{type(error).__name__}: {error}"[:300]


def _pause_after(error: Exception) -> float:
    """Return the seconds to wait: as long as Slack asks for, where it does."""
    headers = error.response.headers if isinstance(error, SlackApiError) else {}
    asked = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    return min(max(PAUSE, int(asked)), MOST_PAUSE) if asked.isdecimal() else PAUSE


def _sentence(question: QuestionView) -> str:
    return shown(decided.decision_of(question).sentence)


def _actions(question: QuestionView) -> Sequence[Action]:
    """Return the buttons of a question; none for one that needs its page."""
    form = flat_forms.form(question)
    if form is None:
        return ()
    if question.rule is not None:
        return tuple(form["properties"]["decision"]["enum"])
    return ("answer",) if block_kit.fits(form) else ()


def _modal(question: QuestionView, intent: Intent, sealed: str) -> dict[str, Any]:
    about = {"type": "section", "text": plain(shown(question.title), MOST_SHOWN)}
    return {
        "type": "modal",
        "title": plain(intent.action.capitalize()),
        "submit": plain("Send"),
        "close": plain("Cancel"),
        "private_metadata": sealed,
        "blocks": [about, *block_kit.inputs(_modal_form(question, intent))],
    }


def _modal_form(question: QuestionView, intent: Intent) -> dict[str, Any]:
    form = flat_forms.form(question) or {}
    if intent.action != "reject":
        return form
    return {"properties": {"reason": form["properties"]["reason"]}, "required": []}


# The application


def router(services: Services) -> APIRouter:
    """Return the route of the door; while the application runs, a thread writes its messages."""
    door = SlackDoor(services)

    @asynccontextmanager
    async def following(_: FastAPI) -> AsyncIterator[None]:
        stopping = threading.Event()
        thread = threading.Thread(
            target=door.follow, args=[stopping], name="runner-slack", daemon=True
        )
        with suppress(StoreError):  # the thread tries again
            await run_in_threadpool(door.listen)
        thread.start()
        yield
        stopping.set()
        await run_in_threadpool(thread.join, LEAVES_WITHIN)

    routes = APIRouter(include_in_schema=False, lifespan=following)

    @routes.post("/doors/slack", dependencies=[Depends(SIGNED)])
    async def receive(request: Request) -> Response:
        # The raw body is what Slack has signed: it is read here, and by no parser of forms.
        body, headers = await request.body(), request.headers
        timestamp = headers.get("x-slack-request-timestamp", "")
        signature = headers.get("x-slack-signature", "")
        document = await run_in_threadpool(door.receive, body, timestamp, signature)
        return JSONResponse(document) if document else Response()

    return routes
