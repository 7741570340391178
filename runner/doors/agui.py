"""The AG-UI agent: to AG-UI clients, graphs are agents, runs their work, open questions interrupts.

It stores only three tags of a run: the thread, and the message and client run that began it, hashed
with the caller. An interrupt's id contains the question's id and the shown digest, like an
elicitation's key in `mcp`. The client's own messages and state show what it has received.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from importlib.metadata import version
from typing import Any, cast

from runner.approvals.rules import plain_name
from runner.doors.approval_forms import agrees, decision_of, schema
from runner.doors.questions import (
    GOOD,
    MOST_ASKED,
    failure,
    message,
    needs_page,
    open_questions,
    page_message,
    page_of,
    permit,
)
from runner.doors.run_progress import RunProgress
from runner.doors.transcript import Transcript
from runner.errors import RunnerError, needs_extra
from runner.immutable import immutable
from runner.operations.decided import VERBS
from runner.operations.questions import QuestionView, read_question
from runner.operations.views import RunView, read_run, with_items
from runner.records.codec import JSONObject
from runner.records.interrupts import Decision, ReceiptStatus, address_of
from runner.records.json_form import stamp
from runner.records.listings import RunSummary
from runner.records.run import FINAL, Status
from runner.records.shown_text import shown
from runner.store.interface import Event

with needs_extra("server", "the AG-UI agent"):
    from fastapi import APIRouter, Request, Response
    from fastapi.concurrency import run_in_threadpool

    from runner.server.access import Person, Seen
    from runner.server.answers import seen_by
    from runner.server.browser import origin_of
    from runner.server.deciding import decide, start_for
    from runner.server.problems import Problem, prefix, problem_of
    from runner.server.services import Services
    from runner.server.streams import COMMENT, Stream, Subscriber

with needs_extra("agui", "the AG-UI agent"):
    from ag_ui import core
    from ag_ui.encoder import EventEncoder

THREAD, MESSAGE, CLIENT_RUN = "agui.thread", "agui.message", "agui.run"
"""Tags of a run: its thread, and the message and client run that began it."""

USAGE = ("inputTokens", "outputTokens", "totalTokens")


class Refusal(Exception):
    """A refusal of an input, with a code for programs."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@immutable
class ShownRun:
    """A run as its caller sees it: the caller's interrupts, and notes on other open questions."""

    view: RunView
    interrupts: dict[str, QuestionView]
    notes: list[JSONObject]


class AgentStream:
    """One request that starts a run or answers its questions, and writes events until it stops."""

    def __init__(
        self,
        services: Services,
        person: Person,
        address: str,
        graph: str,
        body: core.RunAgentInput,
    ) -> None:
        self._services = services
        self._person = person
        self._address = address
        self._graph = graph
        self._body = body
        self._thread = _hash(graph, body.thread_id, person.principal.key)
        user_messages = [item for item in body.messages if isinstance(item, core.UserMessage)]
        self._user = user_messages[-1] if user_messages else None
        self._message = _hash(self._thread, user_messages[-1].id) if user_messages else ""
        self._client_run = _hash(self._thread, "run", body.run_id)
        self._run = RunProgress(services.store, can_read=person.may("read"))
        self._usage: Mapping[str, int] = {}

    async def lines(self) -> AsyncGenerator[str]:
        """Yield the events of the stream, from RUN_STARTED to the outcome."""
        encode = EventEncoder().encode
        yield encode(
            core.RunStartedEvent(
                thread_id=self._body.thread_id,
                run_id=self._body.run_id,
                protocol_version=core.PROTOCOL_VERSION,
            )
        )
        try:
            yield encode(self._state(await run_in_threadpool(self._begin)))
            async with aclosing(self._follow()) as events:
                async for event in events:
                    yield encode(event) if event else ": nothing new\n\n"
        except Refusal as refusal:
            with suppress(RunnerError):  # the refusal is always the last event
                if self._run.id:
                    yield encode(self._state(await run_in_threadpool(self._shown)))
            yield encode(core.RunErrorEvent(message=str(refusal), code=refusal.code))
        except Exception as error:  # noqa: BLE001 - the status is sent already; errors are events
            problem = problem_of(error)
            yield encode(core.RunErrorEvent(message=problem.detail, code=str(problem.status)))

    # Begin

    def _begin(self) -> ShownRun:
        """Start a run, answer the questions of the thread's run, or attach to it; return its state.

        Raises:
            Refusal: the input allows none of these. RunnerError, Problem: as in the API.
        """
        begun = self._newest(CLIENT_RUN, self._client_run)
        message = begun.tags.get(MESSAGE) if begun else self._message
        is_used = begun or _shown_to(self._body.state).get("client_run") == self._body.run_id
        if (is_used and self._body.resume) or self._message not in {"", message}:
            raise Refusal(
                "run_id_used",
                f"The run id {self._body.run_id:.100} was already used in this thread. Nothing was "
                "started or answered. Send this with a new `runId`.",
            )
        newest = self._newest(THREAD, self._thread)
        self._run.id = newest.run_id if newest else ""
        shown_run = self._proceed() if newest else None
        if shown_run is None:
            self._start()
            shown_run = self._shown()
        self._run.transcript = Transcript(self._body.messages, self._run.id)
        return shown_run

    def _newest(self, tag: str, value: str) -> RunSummary | None:
        """Return this caller's newest run with a tag, as anyone may start runs with any tags."""
        caller = self._person.principal.key
        cursor = cast("str | None", "")
        while cursor is not None:
            page = self._services.client.runs(
                graph=self._graph, tags={tag: value}, limit=20, cursor=cursor
            )
            if run := next((run for run in page if run.requester == caller), None):
                return run
            cursor = page.next
        return None

    def _proceed(self) -> ShownRun | None:
        """Answer the thread's run's questions, or follow it; None if a message begins a new run."""
        snapshot = self._run.snapshot(self._run.id)
        self._run.reached = snapshot.events
        shown_run = self._shown()
        self._usage = shown_run.view.usage
        if self._body.resume:
            self._resume(shown_run)
        elif shown_run.interrupts:
            raise Refusal(
                "interrupts_pending",
                f"Run {self._run.id} waits for {len(shown_run.interrupts)} answers from you, and the input "
                "has no `resume`. Nothing was started. Resume each interrupt in the state.",
            )
        elif self._message not in {"", snapshot.tags.get(MESSAGE)}:
            if snapshot.record.status in FINAL:
                return None
            raise Refusal(
                "run_open",
                f"Run {self._run.id} of this thread has not ended: it is {snapshot.record.status.shown}. "
                "Nothing was started. Send the message once it has ended, or begin another thread.",
            )
        return shown_run

    def _start(self) -> None:
        if self._body.resume:
            raise Refusal("unknown", "This thread has no run, so there is nothing to resume.")
        if not self._user:
            raise Refusal("no_message", "There is no user message, so nothing was started.")
        run = start_for(
            self._services,
            self._person,
            self._graph,
            self._task(),
            key=f"agui:{self._message}",
            tags={
                THREAD: self._thread,
                MESSAGE: self._message,
                CLIENT_RUN: self._client_run,
            },
            invocation_state={"agui_thread": self._thread},
        )
        requester = self._services.store.requester(run.id) or {}
        if requester.get("principal") != self._person.principal.key:
            raise Refusal(
                "key_used",
                "Someone else's run has this message's idempotency key. Nothing was started. Send the "
                "message with another id.",
            )
        self._run.id = run.id
        self._run.reached = 0
        self._usage = {}

    def _task(self) -> Any:
        """Return `task` from the forwarded properties, else the text of the last user message."""
        properties = self._body.forwarded_props
        if isinstance(properties, dict) and "task" in properties:
            return properties["task"]
        content = self._user.content if self._user else ""
        if isinstance(content, str):
            return content
        texts = [part.text for part in content if isinstance(part, core.TextPart)]
        if len(texts) < len(content):
            detail = "The message has media; graphs take only text. Nothing was started."
            raise Refusal("unsupported_content", detail)
        return "\n".join(texts)

    # Answers

    def _resume(self, shown_run: ShownRun) -> None:
        """Count the answers, or none of them if one can't be read or is missing."""
        entries = {entry.interrupt_id: entry for entry in self._body.resume or ()}
        if len(entries) > MOST_ASKED:
            detail = f"`resume` has over {MOST_ASKED} interrupts. Nothing was answered."
            raise Refusal("rejected", detail)
        shown_names = _interrupts_of(self._body.state, self._run.id)
        due_names = set(shown_run.interrupts) & (
            shown_run.interrupts.keys() if shown_names is None else shown_names
        )
        if missing := sorted(due_names - entries.keys()):
            raise Refusal(
                "interrupts_uncovered",
                f"`resume` lacks the interrupts {', '.join(missing)}. Nothing was answered; to leave one "
                "open, send it as cancelled.",
            )
        decisions = []
        for name, entry in entries.items():
            question_id, _, digest = name.partition("#")
            question = self._question(question_id)
            if question is None or entry.status == "cancelled" or needs_page(question):
                continue
            if not self._person.may("decide"):
                raise Refusal(
                    "forbidden", "This needs a role that may decide. Nothing was answered."
                )
            # A repeated answer gets its first receipt.
            key = _hash(self._thread, question.id, json.dumps(entry.payload, sort_keys=True))
            decision, fault = decision_of(question, digest, entry.payload, f"agui:{key}")
            if decision is None:
                text = f"{shown(question.title):.200}: {fault}. Nothing was answered."
                raise Refusal("rejected", text)
            decisions.append((question, decision))
        for question, decision in decisions:
            receipt = decide(self._services, self._person, decision)
            is_late = receipt.status is ReceiptStatus.DUPLICATE
            if receipt.status in GOOD or (is_late and self._agrees(decision)):
                continue
            code = "already_answered" if is_late else str(receipt.status)
            text = f"{shown(question.title):.200}: {receipt.detail or receipt.status}"
            raise Refusal(code, text)

    def _agrees(self, decision: Decision) -> bool:
        (question,) = self._services.store.interrupts([decision.interrupt_id])
        return question is not None and agrees(question, decision)

    def _question(self, question_id: str) -> QuestionView | None:
        """Read a question of this run; None for another run's question, whose answer is ignored."""
        address = address_of(question_id)
        record = self._services.store.peek(address.run_id) if address else None
        if record is None or self._run.id not in {record.run_id, record.root}:
            return None
        (interrupt,) = self._services.store.interrupts([question_id])
        return read_question(self._services.store, interrupt) if interrupt else None

    # Events

    async def _follow(self) -> AsyncGenerator[core.BaseEvent | None]:
        """Yield the run's events until it ends or waits for people; None if nothing is new."""
        run, end = self._services.client.run(self._run.id), list[core.BaseEvent]()
        with self._services.hub.subscribed({self._run.id: self._run.reached}) as subscriber:
            while not end:
                while await run_in_threadpool(lambda: run.status) is Status.EXECUTING:
                    heard = await _receive(subscriber)
                    if not heard:
                        yield None
                    for event in await run_in_threadpool(self._run.batch, heard):
                        yield event
                for event in await run_in_threadpool(self._run.late):
                    yield event
                end = await run_in_threadpool(self._end)
        for event in end:
            yield event

    # State

    def _shown(self) -> ShownRun:
        """Read the run, and determine the open questions that its caller may decide."""
        view = read_run(self._services.store, self._run.id)
        person = self._person
        interrupts = dict[str, QuestionView]()
        notes = list[JSONObject]()
        for question, may_decide in open_questions(self._services, person, view):
            if may_decide and len(interrupts) < MOST_ASKED:
                interrupts[f"{question.id}#{question.digest}"] = question
            else:
                title = shown(seen_by(person, question).title)
                votes = {"have": question.have, "need": question.need}
                page = page_of(self._address, question.id)
                note = {"id": question.id, "title": f"{title:.200}", "url": page, **votes}
                if undo := question.undo:
                    voter = plain_name(undo.by)
                    when = stamp(undo.ends_at)
                    note["decided"] = (
                        f"{VERBS[undo.decision]} by {voter}, takes effect at {when}"
                    )
                notes.append(note)
        return ShownRun(seen_by(person, view), interrupts, notes)

    def _state(self, shown_run: ShownRun) -> core.StateSnapshotEvent:
        """Return the application's state, with the run's state in `runner`."""
        view = shown_run.view
        app_state = self._body.state
        self._run.nodes = {
            node.id: {"status": node.status, "visit": node.visit}
            for node in with_items(view.nodes)
        }
        state = {
            "run_id": view.run_id,
            "client_run": self._body.run_id,
            "status": view.status,
            "reason": view.reason or view.frozen,
            "nodes": self._run.nodes,
            "interrupts": [*shown_run.interrupts],
            "questions": shown_run.notes,
        }
        snapshot = {**(app_state if isinstance(app_state, dict) else {}), "runner": state}
        return core.StateSnapshotEvent(snapshot=snapshot)

    def _end(self) -> list[core.BaseEvent]:
        """Return the last events; none if the run is executing again."""
        shown_run = self._shown()
        view = shown_run.view
        status = Status(shown_run.view.status)
        if status is Status.EXECUTING:
            return []
        self._run.forget()
        written = [*self._run.transcript.end_all(), *self._run.conversations(self._run.id)]
        interrupts = [self._interrupt(*item) for item in shown_run.interrupts.items()]
        if isinstance(view.output, str) and view.output not in self._run.transcript.texts:
            written += self._run.transcript.text(f"{self._run.id}/output", view.output)
        written += [*self._run.leave("", interrupts), self._state(shown_run)]
        outcome: Any = core.RunFinishedSuccessOutcome()
        if interrupts:
            outcome = core.RunFinishedInterruptOutcome(interrupts=interrupts)
            messages = [*self._run.transcript.messages.values()]
            written.append(core.MessagesSnapshotEvent(messages=messages))
        elif status is Status.CANCELLED:
            outcome = core.RunFinishedCancelledOutcome()
        usage = self._usage_since(view)
        if status is Status.FAILED:
            return [
                *written,
                core.RunErrorEvent(message=failure(view), code="run_failed", usage=usage),
            ]
        end = core.RunFinishedEvent(
            thread_id=self._body.thread_id,
            run_id=self._body.run_id,
            result=view.output,
            outcome=outcome,
            usage=usage,
        )
        return [*written, end]

    def _usage_since(self, view: RunView) -> list[core.TokenUsage] | None:
        """Return the tokens that models have used since the request began."""
        usage = {name: view.usage.get(name, 0) - self._usage.get(name, 0) for name in USAGE}
        return [core.TokenUsage.model_validate(usage)] if any(usage.values()) else None

    def _interrupt(self, name: str, question: QuestionView) -> core.Interrupt:
        """Return a question as an interrupt with the answer's schema, or a link to its page."""
        page = page_of(self._address, question.id)
        form = None
        text = f"{page_message(question)} {page}"
        use = question.scope.rpartition(":")[2]
        ending = f"/{question.node_id}/{use}"
        call = next(
            (call for call in self._run.transcript.calls if call.endswith(ending)), None
        )
        reason = "runner:page"
        if not needs_page(question):
            text = message(question)
            form = schema(question)
            if call:
                reason = "tool_call"
            elif question.rule is None:
                reason = "input_required"
            else:
                is_edited = "editedArgs" in form["properties"]
                reason = f"runner:{question.name}" if is_edited else "confirmation"
        runner = {
            "digest": question.digest,
            "rule": question.rule_words,
            "have": question.have,
            "need": question.need,
            "url": page,
        }
        return core.Interrupt(
            id=name,
            reason=reason,
            message=text,
            tool_call_id=call,
            response_schema=form,
            expires_at=stamp(question.expires_at),
            metadata={"runner": runner},
            subagent_run_id=question.run_id if question.run_id != self._run.id else None,
        )


async def _receive(subscriber: Subscriber) -> list[Event]:
    """Wait for events, up to `COMMENT` seconds."""
    try:
        heard = [await asyncio.wait_for(subscriber.queue.get(), COMMENT)]
    except TimeoutError:
        return []
    while not subscriber.queue.empty():
        heard.append(subscriber.queue.get_nowait())
    if None in heard:
        raise Problem(
            503, "The client reads too slowly. The run continues; send the message again."
        )
    return [item[1] for item in heard if item is not None]


def _hash(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:32]


def _interrupts_of(state: Any, run_id: str) -> set[str] | None:
    """Return the interrupts in the state that a client sends back, or None if it has none."""
    runner = _shown_to(state)
    names = runner.get("interrupts") if runner.get("run_id") == run_id else None
    if isinstance(names, list):
        return {name for name in names if isinstance(name, str)}
    return None


def _shown_to(state: Any) -> JSONObject:
    """Return the run's part of the state that a client sends back."""
    runner = state.get("runner") if isinstance(state, dict) else None
    return runner if isinstance(runner, dict) else {}


def capabilities(graph: str) -> core.AgentCapabilities:
    """Return the capabilities that a graph declares as an agent."""
    package = "celery-graph-runner"
    return core.AgentCapabilities(
        identity=core.IdentityCapabilities(name=graph, type=package, version=version(package)),
        transport=core.TransportCapabilities(streaming=True, websocket=False),
        tools=core.ToolsCapabilities(supported=True, client_provided=False),
        state=core.StateCapabilities(snapshots=True, deltas=True, persistent_state=True),
        multimodal=core.MultimodalCapabilities(
            input=core.MultimodalInputCapabilities(
                image=False, audio=False, video=False, pdf=False, file=False
            )
        ),
        human_in_the_loop=core.HumanInTheLoopCapabilities(
            supported=True, approvals=True, interrupts=True, approve_with_edits=True
        ),
    )


def router(services: Services) -> APIRouter:
    """Return the routes of the door."""
    routes = APIRouter(prefix="/agui", include_in_schema=False)

    @routes.get("/{graph}/capabilities")
    def show_capabilities(graph: str, _: Seen) -> Response:
        if graph not in services.graphs():
            raise Problem(404, f"No worker has published the graph {graph!r:.80}.")
        return Response(
            capabilities(graph).model_dump_json(by_alias=True), media_type="application/json"
        )

    @routes.post("/{graph}")
    async def run(
        request: Request, graph: str, body: core.RunAgentInput, person: Seen
    ) -> Response:
        if not (body.resume and person.may("decide")):  # a resume starts nothing
            permit(person, "operate", graph)
        agent = AgentStream(services, person, origin_of(request) + prefix(request), graph, body)
        return Stream(request, agent.lines(), services.hub, person)

    return routes
