"""Builds hook events from the stored state, and reads back what callbacks changed.

An event is made anew from the state for every pass, so a replay starts from what was before the
first callback ran. Live objects (an exception, a tool that a callback put in place) are shown while
the process has them, else what was stored of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runner import codec, failures, hooks
from runner.agent.passes import takes_input
from runner.agent.prompts import as_messages
from runner.agent.recipe import Recipe
from runner.agent.results import AgentResult, replaced_result
from runner.agent.state import AgentState, Call, CallStage, waits_for
from runner.agent.tools import AgentTool
from runner.agent.values import Fire
from runner.errors import UsageError
from runner.failures import ErrorRecord
from runner.interrupts import answers_from, is_answers

JSON = Any
Fields = dict[str, Any]

TYPES: dict[str, type[hooks.AgentEvent]] = {
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


class Occasions:
    """The events of one execution, with the live objects that can't be stored."""

    def __init__(self, recipe: Recipe, result: Callable[[], AgentResult]) -> None:
        self._recipe = recipe
        self._result = result
        self._selected: dict[tuple[str, int], Any] = {}
        self._raised: list[tuple[ErrorRecord, BaseException]] = []

    # -- live objects -----------------------------------------------------------------------------

    def remember(self, stored: ErrorRecord | None, error: BaseException | None) -> None:
        """Keep a live exception beside its record."""
        if stored is not None and error is not None:
            self._raised.append((stored, error))

    def exception(self, stored: ErrorRecord | None) -> BaseException | None:
        """Return the live exception of a record, else the restored one."""
        if stored is None:
            return None
        found = (error for record, error in self._raised if record == stored)
        return next(found, None) or failures.restore(stored)

    def tool_for(self, key: str, attempt: int, name: str) -> AgentTool:
        """Return the tool that runs: a callback's choice, else the agent's own."""
        chosen: AgentTool = self._selected.get((key, attempt)) or self._recipe.tools[name]
        return chosen

    # -- state to event ---------------------------------------------------------------------------

    def fields(self, request: Fire, state: AgentState, messages: list[JSON]) -> Fields:
        """Return what an event shows, as copies that callbacks may change at will."""
        builders: dict[str, Callable[[], Fields]] = {
            "before_invocation": lambda: {
                "messages": codec.unpack(state.prompt) if takes_input(state) else []
            },
            "after_invocation": lambda: {"result": None if state.failure else self._result()},
            "message_added": lambda: {"message": codec.unpack(messages[int(request.key)])},
            "before_model_call": dict,
            "after_model_call": lambda: self._reply(state),
            "before_tools": lambda: {"message": _uses(state)},
            "after_tools": lambda: {"message": _results(state)},
            "before_tool_call": lambda: self._call(_find(state, request)),
            "after_tool_call": lambda: self._ended_call(_find(state, request)),
        }
        return builders[request.event]()

    def _reply(self, state: AgentState) -> Fields:
        reply = state.reply
        if reply is None or reply.message is None:
            return {"exception": self.exception(reply.exception if reply else None)}
        return {"stop_response": hooks.ModelStopResponse(codec.unpack(reply.message), reply.stop_reason)}

    def _call(self, call: Call) -> Fields:
        return {"tool_use": codec.unpack(call.use), "selected_tool": self._recipe.tools.get(call.use["name"])}

    def _ended_call(self, call: Call) -> Fields:
        snapshot, chosen = call.snapshot, call.chosen
        if snapshot is None or chosen is None:
            raise UsageError(f"call {call.id} has no stored end; its document is damaged.")
        own = self._recipe.tools.get(chosen.tool or "") if chosen.registered else None
        return {
            "tool_use": codec.unpack(chosen.use),
            "selected_tool": self._selected.get((call.id, call.attempt), own),
            "result": codec.unpack(snapshot.result),
            "exception": self.exception(snapshot.exception),
            "cancel_message": snapshot.cancel_message,
            "duration": snapshot.duration,
        }

    # -- event to changes -------------------------------------------------------------------------

    def changes(self, request: Fire, event: hooks.AgentEvent, state: AgentState) -> dict[str, JSON]:
        """Return what callbacks decided, checked and packed.

        Raises:
            UsageError: an attribute was given a value of no use.
        """
        match event:
            case hooks.BeforeInvocationEvent():
                return {"messages": as_messages(event.messages), "cancel": event.cancel}
            case hooks.AfterInvocationEvent():
                return self._resume(event.resume, state)
            case hooks.BeforeToolCallEvent():
                return self._choice(request, event)
            case hooks.AfterToolCallEvent():
                result = replaced_result(event.result, str(event.tool_use["name"]))
                return {"result": result, "retry": event.retry, "retry_cancelled": event.retry_cancelled}
            case hooks.AfterToolsEvent():
                return {"end_turn": codec.pack(event.end_turn, "end_turn")}
        return {name: codec.pack(getattr(event, name), name) for name in event.writable}

    def _choice(self, request: Fire, event: hooks.BeforeToolCallEvent) -> dict[str, JSON]:
        tool = event.selected_tool
        if tool is not None and not isinstance(tool, AgentTool):
            raise UsageError(f"a callback selected {tool!r}, which is no tool.")
        use = codec.pack({**event.tool_use, "toolUseId": request.key}, "tool_use")
        name = None if tool is None else tool.tool_name
        registered = tool is not None and self._recipe.tools.get(tool.tool_name) is tool
        if tool is not None and not registered:
            self._selected[request.key, request.number] = tool
        return {"tool_use": use, "tool": name, "registered": registered, "cancel_tool": event.cancel_tool}

    def _resume(self, resume: Any, state: AgentState) -> dict[str, JSON]:
        if resume is None:
            return {}
        if not is_answers(resume):
            if waits_for(state):
                raise UsageError("a callback set `resume` to a new input while the agent waits for answers.")
            return {"prompt": as_messages(resume)}
        answers = {answer.interrupt_id: answer.response for answer in answers_from(resume)}
        unknown = answers.keys() - {question.id for question in waits_for(state)}
        if unknown:
            raise UsageError(f"a callback answered {sorted(unknown)}, which nobody asked.")
        return {"answers": answers}


def _find(state: AgentState, request: Fire) -> Call:
    return next(call for call in state.calls if call.id == request.key)


def _uses(state: AgentState) -> dict[str, Any]:
    waiting = [call.use for call in state.calls if call.stage is CallStage.WAITING]
    return {"role": "assistant", "content": [{"toolUse": codec.unpack(use)} for use in waiting]}


def _results(state: AgentState) -> dict[str, Any]:
    done = [call.result for call in state.calls if call.stage is CallStage.DONE]
    return {"role": "user", "content": [{"toolResult": codec.unpack(result)} for result in done]}
