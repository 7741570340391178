"""Every transition of an agent: `step(definition, state, event) -> (state, commands)`.

Like the graph's scheduler, it takes and returns values. The shell carries out the commands and
reports events; between any two steps the state can be stored, and another process can continue.

    opening -> running -> closing -> done | stopped        one pass (invocation.py)
    running: prompt -> before_model -> model -> after_model -> replied          (turn.py)
                 ^          |  ^------ throttled, retried -----+    |-> ended
                 |          +---------- results <- tools <----------+           (tool_calls.py)

One rule covers all interrupts. A hook event or a tool is a place that can ask. When it asks, the
machine parks that place and continues with work that doesn't depend on it; when nothing is left,
the pass closes. An answer wakes only the places that asked for it, and they start from the state
stored before their first callback ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from runner.agent.machine import invocation, tool_calls, turn
from runner.agent.machine.protocol import (
    AgentDefinition,
    ApprovalUsed,
    CallbackFailed,
    Cancelled,
    Command,
    HookFired,
    MachineEvent,
    ModelReplied,
    Started,
    SubagentAsked,
    SubagentSaved,
    ToolAsked,
    ToolEnded,
    Waited,
)
from runner.agent.machine.state import AgentState, PassStage, Phase
from runner.agent.machine.transition import Transition

INVOCATION_HOOKS = frozenset({"before_invocation", "after_invocation"})

ENTER: dict[Phase, Callable[[Transition], None]] = {
    Phase.PROMPT: turn.next_message,
    Phase.BEFORE_MODEL: turn.before_model,
    Phase.MODEL: turn.call_model,
    Phase.THROTTLED: turn.throttled,
    Phase.AFTER_MODEL: turn.after_model,
    Phase.REPLIED: turn.append_reply,
    Phase.TOOLS: tool_calls.resume,
    Phase.AFTER_TOOLS: tool_calls.after_tools,
    Phase.RESULTS: turn.append_results,
    Phase.ENDED: invocation.ended,
}

LEAVE: dict[Phase, Callable[[Transition, HookFired], None]] = {
    Phase.PROMPT: lambda transition, _: turn.next_message(transition),
    Phase.BEFORE_MODEL: turn.before_model_fired,
    Phase.AFTER_MODEL: turn.after_model_fired,
    Phase.REPLIED: lambda transition, _: turn.reply_added(transition),
    Phase.TOOLS: tool_calls.before_tools_fired,
    Phase.AFTER_TOOLS: tool_calls.after_tools_fired,
    Phase.RESULTS: lambda transition, _: turn.results_added(transition),
}


def step(
    definition: AgentDefinition, state: AgentState, event: MachineEvent
) -> tuple[AgentState, list[Command]]:
    """Apply one event and return the new state, with commands to carry out in order."""
    transition = Transition(definition, state)
    _apply(transition, event)
    while transition.moved:
        transition.moved = False
        ENTER[transition.state.phase](transition)
    return transition.state, transition.commands


def _apply(transition: Transition, event: MachineEvent) -> None:
    match event:
        case Started():
            invocation.start(transition, event)
        case HookFired():
            _hook_fired(transition, event)
        case ModelReplied():
            turn.model_replied(transition, event)
        case Waited():
            turn.waited(transition)
        case ToolEnded():
            tool_calls.tool_ended(transition, event)
        case ToolAsked():
            tool_calls.tool_asked(transition, event)
        case SubagentAsked():
            tool_calls.subagent_asked(transition, event)
        case SubagentSaved():
            tool_calls.subagent_saved(transition, event)
        case ApprovalUsed():
            tool_calls.approval_used(transition, event)
        case CallbackFailed():
            _callback_failed(transition, event)
        case Cancelled():
            _cancelled(transition)


def _hook_fired(transition: Transition, event: HookFired) -> None:
    if event.event in INVOCATION_HOOKS:
        invocation.hook_fired(transition, event)
    elif event.event == "before_tool_call":
        tool_calls.before_call_fired(transition, event)
    elif event.event == "after_tool_call":
        tool_calls.after_call_fired(transition, event)
    elif event.questions:
        point = transition.state.hook_point
        assert point is not None, event  # noqa: S101 - only a hook point that fires gets HookFired
        transition.put(
            hook_point=replace(point, question_ids=transition.record(event.questions))
        )
        transition.close_pass("interrupt")
    else:
        transition.put(hook_point=None)
        LEAVE[transition.state.phase](transition, event)


def _callback_failed(transition: Transition, event: CallbackFailed) -> None:
    """Let running calls end, and begin no new ones."""
    if event.event in INVOCATION_HOOKS:
        invocation.callback_failed(transition, event)
    elif transition.state.phase is Phase.TOOLS and transition.state.hook_point is None:
        transition.put(failure=transition.state.failure or event.error)
        tool_calls.callback_failed(transition, event.key)
    else:
        transition.fail(event.error)


def _cancelled(transition: Transition) -> None:
    """Stop before the next model or tool call; parked places stay parked."""
    state = transition.state
    transition.put(cancelled=True)
    if state.stage is PassStage.RUNNING and state.phase in (Phase.MODEL, Phase.THROTTLED):
        transition.put(phase=Phase.BEFORE_MODEL)
        transition.close_pass("cancelled")
