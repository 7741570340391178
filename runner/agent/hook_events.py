"""Builds hook events from the stored state, and reads back the changes made by callbacks.

Every pass builds an event from the state, so a replay starts from the state before the first
callback ran. Live objects (an exception, a tool selected by a callback) are shown while the process
has them; afterwards their stored form is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from runner import hooks
from runner.agent.config import AgentConfig
from runner.agent.context import AgentResult, AgentView
from runner.agent.conversation import as_messages
from runner.agent.machine.invocation import takes_input
from runner.agent.machine.protocol import FireHook, HookFired
from runner.agent.machine.state import AgentState, CallStage, ToolCall, open_questions
from runner.agent.tools import AgentTool, call_action, replaced_result, whole_arguments
from runner.approvals.digests import Action
from runner.errors import InterruptRaised, UsageError
from runner.records import codec, failures
from runner.records.asking import Asker
from runner.records.codec import JSON, JSONObject
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Address, answers_from, is_answers

Fields = dict[str, Any]

EVENT_TYPES: dict[str, type[hooks.AgentEvent]] = {
    "before_invocation": hooks.BeforeInvocationEvent,
    "after_invocation": hooks.AfterInvocationEvent,
    "message_added": hooks.MessageAddedEvent,
    "before_model_call": hooks.BeforeModelCallEvent,
    "after_model_call": hooks.AfterModelCallEvent,
    "before_tools": hooks.BeforeToolsEvent,
    "after_tools": hooks.AfterToolsEvent,
    "before_tool_call": hooks.BeforeToolCallEvent,
    "after_tool_call": hooks.AfterToolCallEvent,
}


class HookEvents:
    """The hook events of one execution, and the live objects that can't be stored."""

    def __init__(
        self,
        config: AgentConfig,
        view: AgentView,
        address: Address,
        invocation_state: JSONObject,
        result: Callable[[], AgentResult],
    ) -> None:
        self._config = config
        self._view = view
        self._result = result
        self._address = address
        self._invocation_state = invocation_state
        self._selected_tools: dict[tuple[str, int], Any] = {}
        self._exceptions: list[tuple[ErrorRecord, BaseException]] = []

    # -- live objects -----------------------------------------------------------------------------

    def remember(self, record: ErrorRecord, error: BaseException) -> None:
        """Keep a live exception beside its record."""
        self._exceptions.append((record, error))

    def exception(self, record: ErrorRecord | None) -> BaseException | None:
        """Return the live exception of a record, or the restored one."""
        if record is None:
            return None
        return next(
            (error for candidate, error in self._exceptions if candidate == record), None
        ) or failures.restore(record)

    def tool_for(self, key: str, attempt: int, name: str) -> AgentTool:
        """Return the tool to run: the one selected by a callback, or the agent's own."""
        tool: AgentTool = self._selected_tools.get((key, attempt)) or self._config.tools[name]
        return tool

    # -- state to event ---------------------------------------------------------------------------

    def callbacks(self, command: FireHook) -> list[hooks.Callback]:
        return self._config.hooks.callbacks_for(EVENT_TYPES[command.event])

    def event(
        self, command: FireHook, state: AgentState, messages: list[JSON]
    ) -> hooks.AgentEvent:
        """Build an event from copies that callbacks may change."""
        event = EVENT_TYPES[command.event](
            **self._fields(command, state, messages),
            agent=self._view,
            invocation_state=self._invocation_state,
            is_replay=command.replay,
            attempt=command.number,
            asker=Asker(
                self._address,
                command.scope,
                command.number,
                state.questions,
                call=(lambda: self._call_of(event))
                if command.event == "before_tool_call"
                else None,
            ),
        )
        return event

    def _call_of(self, event: Any) -> Action | None:
        """Return the event's call as its tool gets it; a rule's question is bound to that call.

        A call that doesn't fit the tool is cancelled, with a reason for the model; nobody is asked.

        Raises:
            InterruptRaised: the call was cancelled.
        """
        tool = event.selected_tool
        use = event.tool_use
        if tool is None:
            return None
        try:
            action = call_action(tool, whole_arguments(tool, use["input"]), self._address.judge)
            action.digest()
        except (ValidationError, UsageError) as error:
            event.cancel_tool = f"Error: {type(error).__name__} - {error}"
            raise InterruptRaised(str(use["name"])) from error
        return action

    def _fields(self, command: FireHook, state: AgentState, messages: list[JSON]) -> Fields:
        match command.event:
            case "before_invocation":
                return {"messages": codec.unpack(state.prompt) if takes_input(state) else []}
            case "after_invocation":
                return {"result": None if state.failure else self._result()}
            case "message_added":
                return {"message": codec.unpack(messages[int(command.key)])}
            case "after_model_call":
                return self._reply(state)
            case "before_tools":
                return {"message": _waiting_uses(state)}
            case "after_tools":
                return {"message": _final_results(state)}
            case "before_tool_call":
                use = _call(state, command).use
                return {
                    "tool_use": codec.unpack(use),
                    "selected_tool": self._config.tools.get(use["name"]),
                }
            case "after_tool_call":
                return self._ended_call(_call(state, command))
        return {}

    def _reply(self, state: AgentState) -> Fields:
        reply = state.reply
        if reply is None or reply.message is None:
            return {"exception": self.exception(reply.exception if reply else None)}
        return {
            "stop_response": hooks.ModelStopResponse(
                codec.unpack(reply.message), reply.stop_reason
            )
        }

    def _ended_call(self, call: ToolCall) -> Fields:
        snapshot = call.snapshot
        selection = call.selection
        if snapshot is None or selection is None:
            raise UsageError(f"call {call.id} has no stored end; its document is damaged.")
        default_tool = (
            self._config.tools.get(selection.tool or "") if selection.registered else None
        )
        return {
            "tool_use": codec.unpack(selection.use),
            "selected_tool": self._selected_tools.get((call.id, call.attempt), default_tool),
            "result": codec.unpack(snapshot.result),
            "exception": self.exception(snapshot.exception),
            "cancel_message": snapshot.cancel_message,
            "duration": snapshot.duration,
        }

    # -- event to changes -------------------------------------------------------------------------

    def without_callbacks(self, command: FireHook, state: AgentState) -> HookFired:
        """Return the outcome of an event without callbacks: all defaults, and the call's own tool."""
        if command.event != "before_tool_call":
            return HookFired(command.event, command.key)
        name = _call(state, command).use.get("name")
        tool = name if name in self._config.tools else None
        return HookFired(
            command.event, command.key, {"tool": tool, "registered": tool is not None}
        )

    def changes(
        self, command: FireHook, event: hooks.AgentEvent, state: AgentState
    ) -> JSONObject:
        """Return the changes made by callbacks, checked and packed.

        Raises:
            UsageError: an attribute has a value that can't be used.
        """
        match event:
            case hooks.BeforeInvocationEvent():
                return {"messages": as_messages(event.messages), "cancel": event.cancel}
            case hooks.AfterInvocationEvent():
                return _resume(event.resume, state)
            case hooks.BeforeToolCallEvent():
                return self._selection(command, event)
            case hooks.AfterToolCallEvent():
                return {
                    "result": replaced_result(event.result, str(event.tool_use["name"])),
                    "retry": event.retry,
                    "retry_cancelled": event.retry_cancelled,
                }
            case hooks.AfterToolsEvent():
                return {"end_turn": codec.pack(event.end_turn, "end_turn")}
        return {name: codec.pack(getattr(event, name), name) for name in event.writable}

    def _selection(self, command: FireHook, event: hooks.BeforeToolCallEvent) -> JSONObject:
        tool = event.selected_tool
        if tool is not None and not isinstance(tool, AgentTool):
            raise UsageError(f"a callback selected {tool!r}, which isn't a tool.")
        use = codec.pack({**event.tool_use, "toolUseId": command.key}, "tool_use")
        name = None if tool is None else tool.tool_name
        is_registered = tool is not None and self._config.tools.get(tool.tool_name) is tool
        if tool is not None and not is_registered:
            self._selected_tools[command.key, command.number] = tool
        return {
            "tool_use": use,
            "tool": name,
            "registered": is_registered,
            "cancel_tool": event.cancel_tool,
        }


def _resume(resume: Any, state: AgentState) -> JSONObject:
    if resume is None:
        return {}
    waiting = open_questions(state)
    if not is_answers(resume):
        if waiting:
            raise UsageError(
                "a callback set `resume` to a new input while the agent waits for answers."
            )
        return {"prompt": as_messages(resume)}
    answers = {answer.interrupt_id: answer.response for answer in answers_from(resume)}
    unknown = answers.keys() - {question.id for question in waiting}
    if unknown:
        raise UsageError(f"a callback answered {sorted(unknown)}, which aren't open questions.")
    return {"answers": answers}


def _call(state: AgentState, command: FireHook) -> ToolCall:
    return next(call for call in state.calls if call.id == command.key)


def _waiting_uses(state: AgentState) -> JSONObject:
    waiting = [call.use for call in state.calls if call.stage is CallStage.WAITING]
    return {"role": "assistant", "content": [{"toolUse": codec.unpack(use)} for use in waiting]}


def _final_results(state: AgentState) -> JSONObject:
    results = [call.result for call in state.calls if call.stage is CallStage.DONE]
    return {
        "role": "user",
        "content": [{"toolResult": codec.unpack(result)} for result in results],
    }
