"""The AG-UI agent: a graph is an agent of AG-UI clients, a run its work, open questions its interrupts.

It stores nothing but two tags of a run: the thread, and the message that began it, both hashed with the
caller. The id of an interrupt has the question's id and the digest that was shown, as an elicitation's has
in `mcp`. What a client has been sent already is in what it sends: its messages and its state.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runner.approvals.ballots import effect_of
from runner.doors.flat_forms import json_text, message, needs_page, time_text
from runner.errors import needs_extra
from runner.operations.exports import event_of
from runner.operations.questions import QuestionView, read_questions
from runner.operations.views import RunView, read_run, with_items
from runner.records import codec
from runner.records.codec import plain
from runner.records.interrupts import Decision, Receipt, ReceiptStatus, address_of
from runner.records.run import FINAL, EventKind, Status, existing
from runner.records.shown_text import shown
from runner.records.validation import MAX_REASON, violation
from runner.store.interface import Event, RunSnapshot

with needs_extra("server", "the AG-UI agent"):
    from fastapi import APIRouter, Request, Response
    from fastapi.concurrency import run_in_threadpool

    from runner.server.access import Operates, Person, Seen
    from runner.server.api.documents import seen_by
    from runner.server.browser import origin_of
    from runner.server.deciding import decide, start_for, why_barred
    from runner.server.problems import Problem, prefix, problem_of
    from runner.server.services import Services
    from runner.server.streams import COMMENT, Stream, Subscriber

with needs_extra("agui", "the AG-UI agent"):
    from ag_ui import core
    from ag_ui.encoder import EventEncoder

THREAD, MESSAGE = "agui.thread", "agui.message"
"""Tags of a run: its thread, and the message that began it."""

MOST_SHOWN = 8000
"""Characters of a question in an interrupt; a longer one is a link to its page."""

MOST_ASKED = 20
"""Interrupts at the same time; the next ones follow when these are answered."""

USAGE = ("inputTokens", "outputTokens", "totalTokens")

PAGE = "runner:page"
"""The reason of an interrupt that is decided on its page."""

GOOD = {ReceiptStatus.ACCEPTED, ReceiptStatus.COUNTED}

STEP_ENDS = {
    EventKind.NODE_COMPLETED,
    EventKind.NODE_FAILED,
    EventKind.NODE_CANCELLED,
    EventKind.NODE_WAITING,
    EventKind.NODE_RETRYING,
    EventKind.NODE_HELD,
    EventKind.NODE_FROZEN,
    EventKind.NODE_LOST,
    EventKind.NODE_LEFT,
}
"""Events after which a node does not run."""


class Refusal(Exception):
    """An input that is refused, with a code for programs."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run as its caller sees it: the interrupts for them, and notes on other open questions."""

    view: RunView
    interrupts: dict[str, QuestionView]
    others: list[dict[str, str]]


class Transcript:
    """The messages of a thread: those that the client has, and those of one run that it is sent.

    The id of a message begins with that of its run, so that any process knows what a client has of it.
    """

    def __init__(self, messages: Iterable[core.Message], run_id: str) -> None:
        self.messages: dict[str, Any] = {item.id: item for item in messages}
        self.calls: set[str] = set()
        self.texts: set[str] = set()
        self._unmatched: Counter[str] = Counter()
        self._results: set[str] = set()
        self._open: dict[str, tuple[str, str | None]] = {}
        self._read: Counter[str] = Counter()
        for item in self.messages.values():
            if isinstance(item, core.ToolMessage):
                self._results.add(item.tool_call_id)
            elif isinstance(item, core.AssistantMessage) and item.id.startswith(run_id):
                self._add_text(item.content or "")
                self.calls.update(call.id for call in item.tool_calls or ())

    def _add_text(self, text: str) -> None:
        self.texts.add(text)
        self._unmatched[text] += 1

    def piece(self, node: str, name: str, text: str, owner: str | None) -> Iterator[core.BaseEvent]:
        """Write a piece of the text that a node streams, of a message `name` where it begins one."""
        if node not in self._open:
            self._open[node] = name, owner
            self.messages[name] = core.AssistantMessage(id=name, content="")
            yield core.TextMessageStartEvent(
                message_id=name, role="assistant", subagent_run_id=owner
            )
        name, owner = self._open[node]
        self.messages[name].content += text
        yield core.TextMessageContentEvent(message_id=name, delta=text, subagent_run_id=owner)

    def end(self, node: str) -> Iterator[core.BaseEvent]:
        """End the text that a node streams, if it does."""
        if node in self._open:
            name, owner = self._open.pop(node)
            self._add_text(self.messages[name].content)
            yield core.TextMessageEndEvent(message_id=name, subagent_run_id=owner)

    def end_all(self) -> Iterator[core.BaseEvent]:
        """End the texts of all nodes."""
        for node in [*self._open]:
            yield from self.end(node)

    def text(self, name: str, text: str, owner: str | None = None) -> Iterator[core.BaseEvent]:
        """Write a whole text, unless it was streamed or the client has it."""
        if not self._unmatched[text]:
            yield from self.piece(name, name, text, owner)
            yield from self.end(name)
        self._unmatched[text] -= 1

    def stored(
        self, source: str, messages: Sequence[Any], visits: int, owner: str | None
    ) -> Iterator[core.BaseEvent]:
        """Write what is new in the conversation of an agent; `source` is its run and node.

        Each of its visits began with a prompt; what is before these is of a session, or given to the agent.
        """
        prompts = [number for number, item in enumerate(messages) if _is_prompt(item)]
        begun = prompts[-visits] if 0 < visits <= len(prompts) else 0
        for number in range(max(begun, self._read[source]), len(messages)):
            name, item = f"{source}/{number}", messages[number]
            for block in item["content"]:
                if item["role"] == "assistant" and block.get("text"):
                    yield from self.text(name, block["text"], owner)
                elif "toolUse" in block:
                    yield from self._call(source, name, block["toolUse"], owner)
                elif "toolResult" in block:
                    yield from self._result(source, block["toolResult"], owner)
        self._read[source] = len(messages)

    def _call(
        self, source: str, parent: str, use: Mapping[str, Any], owner: str | None
    ) -> Iterator[core.BaseEvent]:
        name, tool = f"{source}/{use['toolUseId']}", use["name"]
        if name in self.calls:
            return  # one that waited for people began in an earlier run of the client
        self.calls.add(name)
        arguments = json.dumps(use["input"], ensure_ascii=False)
        call = core.ToolCall(id=name, function=core.FunctionCall(name=tool, arguments=arguments))
        caller = self.messages.setdefault(parent, core.AssistantMessage(id=parent))
        caller.tool_calls = [*(caller.tool_calls or ()), call]
        yield core.ToolCallStartEvent(
            tool_call_id=name, tool_call_name=tool, parent_message_id=parent, subagent_run_id=owner
        )
        yield core.ToolCallArgsEvent(tool_call_id=name, delta=arguments, subagent_run_id=owner)
        yield core.ToolCallEndEvent(tool_call_id=name, subagent_run_id=owner)

    def _result(
        self, source: str, result: Mapping[str, Any], owner: str | None
    ) -> Iterator[core.BaseEvent]:
        call = f"{source}/{result['toolUseId']}"
        if call in self._results:
            return
        self._results.add(call)
        name, blocks = f"{call}/result", result["content"]
        text = "\n".join(json_text(next(iter(block.values()), "")) for block in blocks)
        self.messages[name] = core.ToolMessage(id=name, content=text, tool_call_id=call)
        yield core.ToolCallResultEvent(
            message_id=name, tool_call_id=call, content=text, role="tool", subagent_run_id=owner
        )


class AgentStream:
    """One request: it starts a run or answers its questions, and writes what happens until it rests."""

    def __init__(
        self,
        services: Services,
        person: Person,
        address: str,
        graph: str,
        body: core.RunAgentInput,
    ) -> None:
        self._services, self._person, self._address = services, person, address
        self._graph, self._body = graph, body
        self._thread = _hash(graph, body.thread_id, person.principal.key)
        said = [item for item in body.messages if isinstance(item, core.UserMessage)]
        self._user = said[-1] if said else None
        self._message = _hash(self._thread, said[-1].id) if said else ""
        self._run_id, self._reached = "", 0
        self._transcript = Transcript((), "")
        self._usage: Mapping[str, int] = {}
        self._steps: dict[str, str | None] = {}
        self._subagents: dict[str, str] = {}
        self._snapshots: dict[str, RunSnapshot] = {}

    async def lines(self) -> AsyncGenerator[str]:
        """Write the events of the stream, the first one RUN_STARTED, the last one how it ended."""
        encode = EventEncoder().encode
        yield encode(
            core.RunStartedEvent(
                thread_id=self._body.thread_id,
                run_id=self._body.run_id,
                protocol_version=core.PROTOCOL_VERSION,
            )
        )
        try:
            await run_in_threadpool(self._begin)
            async with aclosing(self._follow()) as events:
                async for event in events:
                    yield encode(event) if event else ": nothing new\n\n"
        except Refusal as refusal:
            if self._run_id:
                yield encode(self._state(await run_in_threadpool(self._shown)))
            yield encode(core.RunErrorEvent(message=str(refusal), code=refusal.code))
        except Exception as error:  # noqa: BLE001 - the status of the response is sent: any error is an event
            problem = problem_of(error)
            yield encode(core.RunErrorEvent(message=problem.detail, code=str(problem.status)))

    # Begin

    def _begin(self) -> None:
        """Start a run, answer the questions of the thread's run, or attach to it.

        Raises:
            Refusal: the input does not allow any of that. RunnerError, Problem: as the API.
        """
        self._run_id = self._latest()
        if not self._run_id or not self._proceeds(self._run_id):
            self._start()
        self._transcript = Transcript(self._body.messages, self._run_id)

    def _latest(self) -> str:
        """Return the newest run of the thread that its caller has asked for; "" for none."""
        cursor = None
        while True:
            page = self._services.client.runs(
                graph=self._graph, tags={THREAD: self._thread}, limit=1, cursor=cursor
            )
            for run in page:
                requester = self._services.store.requester(run.run_id) or {}
                if requester.get("principal") == self._person.principal.key:
                    return run.run_id
            cursor = page.next
            if not cursor:
                return ""

    def _proceeds(self, run_id: str) -> bool:
        """Say if this is about a run that there is, after its questions were answered."""
        snapshot = self._snapshot(run_id)
        self._reached = snapshot.events
        shown_run = self._shown()
        self._usage = shown_run.view.usage
        if self._body.resume:
            self._resume(shown_run)
            return True
        if shown_run.interrupts:
            raise Refusal(
                "interrupts_pending",
                f"Run {run_id} waits for {len(shown_run.interrupts)} answers of yours, and the input has no "
                "`resume`. Nothing was started. Resume each of the interrupts, which are in the state.",
            )
        if not self._user or snapshot.tags.get(MESSAGE) == self._message:
            return True  # the same message again
        if snapshot.record.status not in FINAL:
            raise Refusal(
                "run_open",
                f"Run {run_id} of this thread has not ended: it is {snapshot.record.status.shown}. Nothing "
                "was started. Send the message when it has, or begin another thread.",
            )
        return False

    def _start(self) -> None:
        if self._body.resume:
            raise Refusal("unknown", "This thread has no run, so there is nothing to resume.")
        if not self._user:
            raise Refusal("no_message", "There is no message of a user, so nothing was started.")
        run = start_for(
            self._services,
            self._person,
            self._graph,
            self._task(),
            key=f"agui:{self._message}",
            tags={THREAD: self._thread, MESSAGE: self._message},
            invocation_state={"agui_thread": self._thread},
        )
        self._run_id, self._reached, self._usage = run.id, 0, {}

    def _task(self) -> Any:
        """Return `task` of the forwarded properties, else the text of the last message of the user."""
        forwarded = self._body.forwarded_props
        if isinstance(forwarded, dict) and "task" in forwarded:
            return forwarded["task"]
        content = self._user.content if self._user else ""
        if isinstance(content, str):
            return content
        texts = [part.text for part in content if isinstance(part, core.TextPart)]
        if len(texts) < len(content):
            detail = "The message has media; graphs take texts. Nothing was started."
            raise Refusal("unsupported_content", detail)
        return "\n".join(texts)

    # Answers

    def _resume(self, shown_run: ShownRun) -> None:
        """Count the answers: none of them where one can't be read, or one is missing."""
        entries = {entry.interrupt_id: entry for entry in self._body.resume or ()}
        emitted = _emitted(self._body.state, self._run_id)
        expected = set(shown_run.interrupts) & (
            shown_run.interrupts.keys() if emitted is None else emitted
        )
        if missing := sorted(expected - entries.keys()):
            raise Refusal(
                "interrupts_uncovered",
                f"`resume` lacks the interrupts {', '.join(missing)}. Nothing was answered; to leave one "
                "open, send it as cancelled.",
            )
        decisions = []
        for name, entry in entries.items():
            question_id, _, digest = name.partition("#")
            question = self._question(question_id)
            if question is None or entry.status == "cancelled" or _is_page(question):
                continue
            decisions.append((question, self._decision(question, digest, entry.payload)))
        for question, decision in decisions:
            receipt = decide(self._services, self._person, decision)
            if receipt.status not in GOOD and not self._agrees(decision, receipt):
                is_late = receipt.status is ReceiptStatus.DUPLICATE
                code = "already_answered" if is_late else str(receipt.status)
                text = f"{shown(question.title):.200}: {receipt.detail or receipt.status}"
                raise Refusal(code, text)

    def _question(self, question_id: str) -> QuestionView | None:
        """Read a question of this run; None for one of another run, of which the answer is ignored."""
        address = address_of(question_id)
        record = self._services.store.peek(address.run_id) if address else None
        if record is None or self._run_id not in {record.run_id, record.root}:
            return None
        found = self._services.store.interrupts([question_id])
        views = read_questions(self._services.store, (item for item in found if item is not None))
        return views[0] if views else None

    def _decision(self, question: QuestionView, digest: str, payload: Any) -> Decision:
        """Return what a person has decided.

        Raises:
            Refusal: the payload does not fit the schema of the interrupt.
        """
        if not self._person.may("decide"):
            raise Refusal("forbidden", "This needs a role that may decide. Nothing was answered.")
        is_free = question.rule is None and question.response_schema is None
        path, fault = violation(_schema(question), payload)
        if fault and not is_free:
            where = ".".join(map(str, path or ()))
            text = f"{shown(question.title):.200}: {where} {fault}. Nothing was answered."
            raise Refusal("rejected", text)
        kind, response, comment = "respond", payload, ""
        if question.rule is not None:
            comment = payload.get("reason", "")
            kind, response = (
                ("reject", None)
                if not payload["approved"]
                else ("edit", payload["editedArgs"])
                if "editedArgs" in payload
                else ("respond", payload["response"])
                if "response" in payload
                else ("approve", None)
            )
        # The same answer again gets its first receipt.
        key = _hash(self._thread, question.id, json.dumps(payload, sort_keys=True))
        return Decision(
            question.id,
            None if response is None else codec.pack(response, "the response"),
            None,
            f"agui:{key}",
            digest,
            kind,
            comment=comment,
        )

    def _agrees(self, decision: Decision, receipt: Receipt) -> bool:
        """Say if the question was answered elsewhere with the same."""
        (question,) = self._services.store.interrupts([decision.interrupt_id])
        if question is None or receipt.status is not ReceiptStatus.DUPLICATE or question.is_open:
            return False
        if question.rule is None:
            return bool(question.response == decision.response)
        response = True if decision.decision == "approve" else decision.response
        effect = effect_of(question, decision.decision, response)
        return (question.decision, question.effect) == (decision.decision, effect)

    # What happens

    async def _follow(self) -> AsyncGenerator[core.BaseEvent | None]:
        """Write the events of the run until only people can go on; None where nothing is new."""
        run, end = self._services.client.run(self._run_id), list[core.BaseEvent]()
        with self._services.hub.subscribed({self._run_id: self._reached}) as subscriber:
            while not end:
                while await run_in_threadpool(lambda: run.status) is Status.EXECUTING:
                    heard = await _heard(subscriber)
                    if not heard:
                        yield None
                    for event in await run_in_threadpool(self._batch, heard):
                        yield event
                for event in await run_in_threadpool(self._late):
                    yield event
                end = await run_in_threadpool(self._end)
        for event in end:
            yield event

    def _late(self) -> list[core.BaseEvent]:
        """Return what has happened by now and was not heard."""
        written = list[core.BaseEvent]()
        while batch := self._services.store.events(self._run_id, str(self._reached)):
            written += self._batch(batch)
        return written

    def _batch(self, events: Iterable[Event]) -> list[core.BaseEvent]:
        """Return the events of the protocol for new ones of the run."""
        self._snapshots.clear()
        written = list[core.BaseEvent]()
        for event in events:
            if int(event.position) > self._reached:
                self._reached = int(event.position)
                written += self._event(event_of(event))
        return written

    def _event(self, event: Event) -> Iterator[core.BaseEvent]:
        node, data = event.node, event.data
        path, _, _ = node.rpartition("/")
        step = f"{node}#{event.visit}" if event.visit > 1 else node
        if event.kind == EventKind.NODE_STARTED and step not in self._steps:
            yield from self._enter(path)
            self._steps[step] = owner = self._subagents.get(path)
            yield core.StepStartedEvent(step_name=step, subagent_run_id=owner)
        elif event.kind == EventKind.AGENT and isinstance(data, dict):
            # The text of a node whose start was not heard would lack its beginning.
            if "text" in data and step in self._steps and self._person.may("read"):
                name = f"{self._run_id}/{event.position}"
                yield from self._transcript.piece(node, name, data["text"], self._steps[step])
            elif "tool" in data:
                yield from self._transcript.end(node)
        elif event.kind in STEP_ENDS:
            yield from self._transcript.end(node)
            yield from self._conversation(self._run_of(path), path, node.removeprefix(f"{path}/"))
            yield from self._leave(node)
            if step in self._steps:
                owner = self._steps.pop(step)
                yield core.StepFinishedEvent(step_name=step, subagent_run_id=owner)

    def _enter(self, path: str) -> Iterator[core.BaseEvent]:
        """Begin the subagent that a graph inside the graph is, and those around it."""
        if not path or path in self._subagents:
            return
        outer, _, name = path.rpartition("/")
        yield from self._enter(outer)
        self._subagents[path] = child = self._run_of(path)
        yield core.SubagentStartedEvent(
            subagent_run_id=child, name=name, parent_subagent_run_id=self._subagents.get(outer)
        )

    def _leave(
        self, path: str, interrupts: Sequence[core.Interrupt] = ()
    ) -> Iterator[core.BaseEvent]:
        """End the subagents of a path and inside it: their steps first, the innermost first."""
        inside = [
            name for name in self._subagents if f"{name}/".startswith(f"{path}/" if path else "")
        ]
        for name in sorted(inside, key=len, reverse=True):
            owner = self._subagents.pop(name)
            yield from self._finish_steps(owner)
            own = [item.id for item in interrupts if item.subagent_run_id == owner]
            outcome: Any = core.SubagentFinishedSuccessOutcome()
            if interrupts:
                outcome = core.SubagentFinishedSuspendedOutcome(interrupt_ids=own)
            yield core.SubagentFinishedEvent(subagent_run_id=owner, outcome=outcome)

    def _finish_steps(self, owner: str | None) -> Iterator[core.BaseEvent]:
        for step in [step for step, its_owner in self._steps.items() if its_owner == owner]:
            del self._steps[step]
            yield core.StepFinishedEvent(step_name=step, subagent_run_id=owner)

    def _run_of(self, path: str) -> str:
        """Return the run of the graph inside the graph that a path names."""
        outer, _, name = path.rpartition("/")
        return self._snapshot(self._run_of(outer)).nodes[name].child if path else self._run_id

    def _conversation(self, run_id: str, path: str, node: str) -> Iterator[core.BaseEvent]:
        """Write what an agent has said and done, now that its events were heard."""
        messages = self._snapshot(run_id).messages.get(node, ())
        if messages and self._person.may("read"):
            source = "/".join(filter(None, (self._run_id, path, node)))
            visits, owner = self._snapshot(run_id).nodes[node].visit, self._subagents.get(path)
            items = [plain(item) for item in messages]
            yield from self._transcript.stored(source, items, visits, owner)

    def _conversations(self, run_id: str, path: str = "") -> Iterator[core.BaseEvent]:
        """Write that of all agents of a run and of those inside it."""
        for node, record in self._snapshot(run_id).nodes.items():
            yield from self._conversation(run_id, path, node)
            if record.child:
                yield from self._conversations(record.child, f"{path}/{node}".lstrip("/"))

    def _snapshot(self, run_id: str) -> RunSnapshot:
        """Read a run, once for all events that were heard together."""
        if run_id not in self._snapshots:
            found = self._services.store.read(run_id, messages=True)
            self._snapshots[run_id] = existing(found, run_id)
        return self._snapshots[run_id]

    # How it stands

    def _shown(self) -> ShownRun:
        """Read the run, and which of its open questions its caller may decide."""
        services, person = self._services, self._person
        view, others = read_run(services.store, self._run_id), list[dict[str, str]]()
        asked = dict[str, QuestionView]()
        found = services.store.interrupts([question.id for question in view.interrupts])
        for question in read_questions(services.store, (item for item in found if item)):
            if not question.is_open:
                continue
            may_decide = person.may("decide") and not why_barred(services, person, question)
            if may_decide and len(asked) < MOST_ASKED:
                asked[f"{question.id}#{question.digest}"] = question
            else:
                title, page = shown(seen_by(person, question).title), self._page(question)
                others.append({"id": question.id, "title": f"{title:.200}", "url": page})
        return ShownRun(seen_by(person, view), asked, others)

    def _page(self, question: QuestionView) -> str:
        return f"{self._address}/q/{quote(question.id)}"

    def _state(self, shown_run: ShownRun) -> core.StateSnapshotEvent:
        """Return the state: that of the application, and the run's in `runner`."""
        view, given = shown_run.view, self._body.state
        nodes = {
            node.id: {"status": node.status, "visit": node.visit} for node in with_items(view.nodes)
        }
        state = {
            "run_id": view.run_id,
            "status": view.status,
            "reason": view.reason,
            "nodes": nodes,
            "interrupts": [*shown_run.interrupts],
            "questions": shown_run.others,
        }
        return core.StateSnapshotEvent(
            snapshot={**(given if isinstance(given, dict) else {}), "runner": state}
        )

    def _end(self) -> list[core.BaseEvent]:
        """Return the last events; none where the run executes again."""
        shown_run = self._shown()
        view, status = shown_run.view, Status(shown_run.view.status)
        if status is Status.EXECUTING:
            return []
        self._snapshots.clear()
        written = [*self._transcript.end_all(), *self._conversations(self._run_id)]
        interrupts = [self._interrupt(*item) for item in shown_run.interrupts.items()]
        if isinstance(view.output, str) and view.output not in self._transcript.texts:
            written += self._transcript.text(f"{self._run_id}/output", view.output)
        written += [*self._leave("", interrupts), *self._finish_steps(None), self._state(shown_run)]
        outcome: Any = core.RunFinishedSuccessOutcome()
        if interrupts:
            outcome = core.RunFinishedInterruptOutcome(interrupts=interrupts)
            messages = [*self._transcript.messages.values()]
            written.append(core.MessagesSnapshotEvent(messages=messages))
        elif status is Status.CANCELLED:
            outcome = core.RunFinishedCancelledOutcome()
        usage = self._usage_since(view)
        if status is Status.FAILED:
            faults = [f"{node.id}: {node.error.summary}" for node in view.nodes if node.error]
            text = "; ".join([f"Run {view.run_id} {status}", view.reason, *faults])
            return [*written, core.RunErrorEvent(message=text, code="run_failed", usage=usage)]
        end = core.RunFinishedEvent(
            thread_id=self._body.thread_id,
            run_id=self._body.run_id,
            result=view.output,
            outcome=outcome,
            usage=usage,
        )
        return [*written, end]

    def _usage_since(self, view: RunView) -> list[core.TokenUsage] | None:
        """Return what models have used since the request began."""
        used = {name: view.usage.get(name, 0) - self._usage.get(name, 0) for name in USAGE}
        return [core.TokenUsage.model_validate(used)] if any(used.values()) else None

    def _interrupt(self, name: str, question: QuestionView) -> core.Interrupt:
        """Return a question as its interrupt: with the schema of the answer, or a link to its page."""
        page, text, call = (
            self._page(question),
            message(question),
            question.scope.rpartition(":")[2],
        )
        calls = [
            item for item in self._transcript.calls if item.endswith(f"/{question.node_id}/{call}")
        ]
        is_page = _is_page(question)
        if is_page:
            reason, text = (
                PAGE,
                f"{shown(question.title):.1000}\n\nThis is decided on its page: {page}",
            )
        elif calls:
            reason = "tool_call"
        elif question.rule is None:
            reason = "input_required"
        else:
            is_edited = "editedArgs" in _schema(question)["properties"]
            reason = f"runner:{question.name}" if is_edited else "confirmation"
        is_inside = question.run_id != self._run_id
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
            tool_call_id=calls[0] if calls else None,
            response_schema=None if is_page else _schema(question),
            expires_at=time_text(question.expires_at) if question.expires_at else None,
            metadata={"runner": runner},
            subagent_run_id=question.run_id if is_inside else None,
        )


async def _heard(subscriber: Subscriber) -> list[Event]:
    """Wait for events, up to `COMMENT` seconds."""
    try:
        heard = [await asyncio.wait_for(subscriber.queue.get(), COMMENT)]
    except TimeoutError:
        return []
    while not subscriber.queue.empty():
        heard.append(subscriber.queue.get_nowait())
    if None in heard:
        raise Problem(503, "The client reads too slowly. The run goes on; send the message again.")
    return [item[1] for item in heard if item is not None]


def _is_prompt(item: Any) -> bool:
    return item["role"] == "user" and any("toolResult" not in block for block in item["content"])


def _hash(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:32]


def _emitted(state: Any, run_id: str) -> set[str] | None:
    """Return the interrupts that a client was sent, by the state that it sends back; None without that."""
    runner = state.get("runner") if isinstance(state, dict) else None
    if not isinstance(runner, dict) or runner.get("run_id") != run_id:
        return None
    return {name for name in runner.get("interrupts") or () if isinstance(name, str)}


def _is_page(question: QuestionView) -> bool:
    return needs_page(question) or len(message(question)) > MOST_SHOWN


def _schema(question: QuestionView) -> dict[str, Any]:
    """Return the schema of the payload that answers a question."""
    answer = dict(question.response_schema or {"type": "string", "title": "Answer"})
    if question.rule is None:
        return answer
    decisions = set(question.rule["decisions"])
    choices = [value for value in (True, False) if value or "reject" in decisions]
    properties: dict[str, Any] = {
        "approved": {"type": "boolean", "enum": choices},
        "reason": {"type": "string", "title": "Reason", "maxLength": MAX_REASON},
    }
    definitions = {"$defs": answer.pop("$defs")} if "$defs" in answer else {}
    if question.action is not None and "edit" in decisions:
        text = "All arguments of the call, instead of those that are proposed."
        properties["editedArgs"] = {"type": "object", **answer, "description": text}
    elif question.action is None and question.response_schema is not None:
        properties["response"] = answer
    return {
        "type": "object",
        "properties": properties,
        "required": ["approved"],
        "additionalProperties": False,
        **definitions,
    }


def capabilities(graph: str) -> core.AgentCapabilities:
    """Return what the agent that is a graph declares."""
    return core.AgentCapabilities(
        identity=core.IdentityCapabilities(name=graph, type="celery-graph-runner"),
        transport=core.TransportCapabilities(streaming=True),
        tools=core.ToolsCapabilities(client_provided=False),
        state=core.StateCapabilities(snapshots=True, deltas=False, persistent_state=True),
        human_in_the_loop=core.HumanInTheLoopCapabilities(
            supported=True, approvals=True, interrupts=True, approve_with_edits=True
        ),
    )


def router(services: Services) -> APIRouter:
    """Return the routes of the door."""
    routes = APIRouter(prefix="/agui", include_in_schema=False)

    @routes.get("/{graph}/capabilities")
    def show_capabilities(graph: str, _: Seen) -> Response:
        return Response(
            capabilities(graph).model_dump_json(by_alias=True), media_type="application/json"
        )

    @routes.post("/{graph}")
    async def run(
        request: Request, graph: str, body: core.RunAgentInput, person: Operates
    ) -> Response:
        address = origin_of(request) + prefix(request)
        agent = AgentStream(services, person, address, graph, body)
        return Stream(request, agent.lines(), services.hub, person)

    return routes
