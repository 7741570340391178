"""Carries out the commands of the agent's machine, for one visit of a node.

One task steps the machine; model, tools and callbacks run beside it and report through a queue.
A blocking checkpoint is awaited before anything after it begins; others are written when the
queue is empty, so that results that arrive together share one. No sync code runs on the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from runner.agent.budgets import Meter
from runner.agent.checkpointer import Checkpointer
from runner.agent.config import AgentConfig
from runner.agent.context import AgentResult, AgentView, UserState
from runner.agent.conversation import redacted_content
from runner.agent.effects import Effects, Emit
from runner.agent.hook_events import HookEvents
from runner.agent.machine.protocol import (
    AppendMessage,
    CallModel,
    Cancelled,
    Command,
    Finish,
    FireHook,
    MachineEvent,
    ModelReplied,
    PublishQuestions,
    RecordUse,
    RedactMessage,
    RunTool,
    Started,
    Wait,
    WriteCheckpoint,
)
from runner.agent.machine.state import AgentState, open_questions, to_document
from runner.agent.machine.step import step
from runner.approvals.ballots import Use
from runner.errors import RetryAfter
from runner.immutable import immutable
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.codec import JSON
from runner.records.interrupts import Interrupt


@immutable
class Ending:
    """End of an execution: done, interrupt or failed, with the checkpoint to store."""

    kind: str
    state: AgentState
    result: AgentResult
    saved: Saved
    error: BaseException | None


class Drive:
    """One execution of an agent. `emit` gets stream events; `cancel` stops it before a new call."""

    def __init__(
        self,
        config: AgentConfig,
        checkpointer: Checkpointer,
        state: AgentState,
        messages: list[JSON],
        *,
        stored_count: int,
        cancel: threading.Event | None = None,
        emit: Emit | None = None,
        above: Meter | None = None,
    ) -> None:
        """Start from a state and its conversation; the first `stored_count` messages are stored.

        `above` is the meter of the agent that calls this one.
        """
        self.state = state
        self.messages = list(messages)
        self._config = config
        self._checkpointer = checkpointer
        self._stored = stored_count
        self._cancel = cancel or threading.Event()
        self._emit = emit or (lambda _: None)
        self._user_state = UserState.restored(state.user_state)
        view = AgentView(config.name, self._user_state, lambda: self.messages, self._cancel)
        self._hook_events = HookEvents(
            config, view, checkpointer.address, checkpointer.invocation_state, self._result
        )
        self._meter: Meter | None = None
        if config.budgets or config.price or above:
            self._meter = Meter(
                config.name,
                config.budgets,
                config.price,
                checkpointer,
                state=lambda: self.state,
                above=above,
            )
        self._effects = Effects(
            config, checkpointer, self._hook_events, view, self._emit, self._post, self._meter
        )
        self._reports: asyncio.Queue[MachineEvent | _Posted | _Crashed] = asyncio.Queue()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._unpublished: list[Interrupt] = []
        self._dirty = False
        self._finish: Finish | None = None

    async def run(self) -> Ending:
        """Run until the agent is done, fails or waits.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
            RetryAfter: a tool or the model asked to wait; the calls beside it ended and are stored.
        """
        delays: list[RetryAfter] = []
        try:
            await self._take(Started(self._checkpointer.answers))
            while self._finish is None:
                if self._reports.empty() and (self._dirty or self._unpublished):
                    await self._store()
                if (
                    delays
                    and self._reports.empty()
                    and all(task.done() for task in self._tasks)
                ):
                    raise max(delays, key=lambda delay: delay.seconds)
                report = await self._reports.get()
                if isinstance(report, _Crashed):
                    if not isinstance(report.error, RetryAfter):
                        raise report.error
                    delays.append(report.error)
                    continue
                if isinstance(report, _Posted):
                    await self._take(report.event)
                    if not report.taken.done():
                        report.taken.set_result(None)
                else:
                    await self._take(report)
        finally:
            await self._stop()
        return self._ending(self._finish)

    async def _post(self, event: MachineEvent) -> None:
        """Report an event from inside a tool call; return once the machine has taken it."""
        if self._closed:
            raise asyncio.CancelledError
        acknowledgement = asyncio.get_running_loop().create_future()
        self._reports.put_nowait(_Posted(event, acknowledgement))
        await acknowledgement

    async def _stop(self) -> None:
        self._closed = True
        while not self._reports.empty():
            report = self._reports.get_nowait()
            if isinstance(report, _Posted):
                report.taken.cancel()
        running = [task for task in self._tasks if not task.done()]
        if running:
            # Tools on threads can't be stopped, but they can see the signal.
            self._cancel.set()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _ending(self, finish: Finish) -> Ending:
        error = self._hook_events.exception(
            self.state.failure if finish.kind == "failed" else None
        )
        result = self._result()
        if finish.kind == "interrupt":
            # AfterInvocation may have asked although the invocation already has a stop reason.
            result.stop_reason = "interrupt"
        return Ending(finish.kind, self.state, result, self._saved(), error)

    # -- the machine ------------------------------------------------------------------------------

    async def _take(self, event: MachineEvent) -> None:
        """Step the machine with an event, and with events that its commands return at once."""
        events = deque([event])
        while events and self._finish is None:
            event = events.popleft()
            # A complete reply is kept, but nothing begins after it.
            late = self._cancel.is_set() and not self.state.cancelled
            if late and not isinstance(event, (Started, ModelReplied)):
                events.appendleft(event)
                event = Cancelled()
            state, commands = step(self._config.definition, self.state, event)
            self.state = replace(state, user_state=self._user_state.document())
            for command in commands:
                result = await self._perform(command)
                if result is not None:
                    events.append(result)

    async def _perform(self, command: Command) -> MachineEvent | None:
        """Carry out a command or begin it; return its event if that is known at once."""
        match command:
            case AppendMessage():
                self.messages.append(command.message)
                self._emit({"message": codec.unpack(command.message)})
            case RedactMessage():
                self._redact(command.text)
            case FireHook():
                return self._fire(command)
            case CallModel():
                self._begin(self._effects.call_model(command, self.state, self.messages))
            case RunTool():
                self._begin(self._effects.run_tool(command, self.state))
            case WriteCheckpoint(blocking=True):
                await self._store()
            case WriteCheckpoint():
                self._dirty = True
            case PublishQuestions():
                self._unpublished.extend(command.questions)
                self._emit({"interrupts": command.questions})
            case RecordUse():
                await self._record_use(command.use)
            case Wait():
                self._begin(self._effects.wait(command.seconds))
            case Finish():
                self._finish = command
        return None

    def _fire(self, command: FireHook) -> MachineEvent | None:
        callbacks = self._hook_events.callbacks(command)
        guard = self._meter.guard(command) if self._meter else None
        if guard is not None:
            callbacks = [*callbacks, guard]
        if not callbacks:
            return self._hook_events.without_callbacks(command, self.state)
        try:
            event = self._hook_events.event(command, self.state, self.messages)
        except Exception as error:  # noqa: BLE001 - a state that fits no event ends the invocation
            return self._effects.callback_failed(command, error)
        self._begin(self._effects.run_callbacks(command, event, callbacks, self.state))
        return None

    def _redact(self, text: str) -> None:
        if self.messages and self.messages[-1]["role"] == "user":
            index = len(self.messages) - 1
            message = self.messages[index]
            self.messages[index] = {**message, "content": redacted_content(message, text)}
            self._stored = min(self._stored, index)

    # -- the store --------------------------------------------------------------------------------

    def _saved(self) -> Saved:
        state = replace(self.state, user_state=self._user_state.document())
        return Saved(to_document(state), self._stored, self.messages[self._stored :])

    async def _store(self) -> None:
        checkpoint = self._saved()
        questions = self._unpublished
        self._dirty, self._unpublished = False, []
        if questions:
            await self._checkpointer.ask(questions, checkpoint)
        else:
            await self._checkpointer.save(checkpoint)
        self._stored = checkpoint.keep + len(checkpoint.messages)

    async def _record_use(self, use: Use) -> None:
        if self._unpublished:
            await self._store()
        checkpoint = self._saved()
        self._dirty = False
        await self._checkpointer.use(use, checkpoint)
        self._stored = checkpoint.keep + len(checkpoint.messages)

    # -- effects beside the machine ---------------------------------------------------------------

    def _begin(self, effect: Coroutine[Any, Any, MachineEvent]) -> None:
        task = asyncio.get_running_loop().create_task(self._report(effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report(self, effect: Coroutine[Any, Any, MachineEvent]) -> None:
        try:
            self._reports.put_nowait(await effect)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised where run() is awaited, never lost
            self._reports.put_nowait(_Crashed(error))

    # -- the result -------------------------------------------------------------------------------

    def _result(self) -> AgentResult:
        replies = (
            message for message in reversed(self.messages) if message["role"] == "assistant"
        )
        output = self.state.structured
        if output is not None and self._config.structured is not None:
            output = self._config.structured.model_validate(output)
        return AgentResult(
            stop_reason=self.state.stop_reason,
            message=codec.unpack(next(replies, {"role": "assistant", "content": []})),
            interrupts=open_questions(self.state),
            state=self._user_state.get(),
            usage=dict(self.state.usage),
            structured_output=output,
        )


@immutable
class _Crashed:
    """An effect beside the machine ended in an error that isn't the agent's."""

    error: BaseException


@immutable
class _Posted:
    """An event whose sender waits until the machine has taken it."""

    event: MachineEvent
    taken: asyncio.Future[None]
