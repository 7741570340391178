"""The tool calls of one reply: starting them, parking them for questions, and ending the batch.

A call goes waiting -> before -> running -> after -> done. It is parked where a question was asked;
only an answer to one of its own questions wakes it. If parked before or in the tool, its attempt
starts again with the earlier answers; if parked after it, only the After callbacks run again, from
the snapshot. A retry is a new attempt, so its questions are asked again. Woken calls come before
new ones. A concurrent batch starts all waiting calls; a sequential one starts one at a time, never
past a call that isn't done. Nothing starts before the checkpoint that names it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from runner.agent.machine.protocol import (
    ApprovalUsed,
    FireHook,
    HookFired,
    RecordUse,
    RunTool,
    SubagentAsked,
    SubagentSaved,
    ToolAsked,
    ToolEnded,
    WriteCheckpoint,
)
from runner.agent.machine.state import (
    CallStage,
    Phase,
    Selection,
    Snapshot,
    ToolCall,
    add_usage,
    any_answered,
    callback_reply,
)
from runner.agent.machine.transition import Transition
from runner.approvals.ballots import Use
from runner.records import failures
from runner.records.codec import JSONObject

CANCELLED = "tool cancelled by user"
BATCH_CANCELLED = "Tool cancelled by hook"
ENDED_EARLY = "Turn ended early by hook after tool execution"


def new_call(use: JSONObject) -> ToolCall:
    return ToolCall(
        use=use,
        attempt=1,
        stage=CallStage.WAITING,
        question_ids=[],
        replayed=False,
        selection=None,
        snapshot=None,
        result=None,
        subagent=None,
        structured=None,
    )


def error_result(key: str, text: str) -> JSONObject:
    """Build the result of a failed call."""
    return {"toolUseId": key, "status": "error", "content": [{"text": text}]}


# -- the batch ---------------------------------------------------------------------------------------


def resume(transition: Transition) -> None:
    """Wake answered calls, and restart calls interrupted by a crash."""
    for call in transition.state.calls:
        if call.question_ids and not any_answered(transition.state, call.question_ids):
            continue
        if call.stage in (CallStage.AFTER, CallStage.BROKEN):
            transition.put_call(call.id, question_ids=[], replayed=True, stage=CallStage.AFTER)
            _fire_after(transition, call.id)
        elif call.stage in (CallStage.BEFORE, CallStage.RUNNING):
            transition.put_call(
                call.id, question_ids=[], replayed=True, stage=CallStage.WAITING
            )
    _advance(transition)


def _advance(transition: Transition) -> None:
    """Start the ready calls; if nothing is running or ready, end this round."""
    state = transition.state
    if state.hook_point is not None or any(call.active for call in state.calls):
        return
    ready = _ready(transition)
    if state.failure is not None:
        transition.fail(state.failure)
    elif state.cancelled:
        transition.close_pass("cancelled")
    elif ready and not state.announced:
        transition.fire_hook("before_tools", state.turn, max(call.attempt for call in ready))
    elif ready:
        _start(transition, ready)
    elif state.announced or _is_complete(transition):
        transition.put(phase=Phase.AFTER_TOOLS)
        transition.fire_hook("after_tools", state.turn, state.round)
    else:
        transition.close_pass("interrupt")


def _ready(transition: Transition) -> list[ToolCall]:
    calls = transition.state.calls
    if not transition.definition.sequential:
        return [call for call in calls if call.stage is CallStage.WAITING]
    next_call = next((call for call in calls if call.stage is not CallStage.DONE), None)
    return [next_call] if next_call is not None and next_call.stage is CallStage.WAITING else []


def _is_complete(transition: Transition) -> bool:
    return all(call.stage is CallStage.DONE for call in transition.state.calls)


def _start(transition: Transition, ready: Iterable[ToolCall]) -> None:
    transition.add(WriteCheckpoint(blocking=True))
    for call in ready:
        transition.put_call(call.id, stage=CallStage.BEFORE)
        transition.add(
            FireHook("before_tool_call", call.id, call.attempt, replay=call.replayed)
        )


def before_tools_fired(transition: Transition, event: HookFired) -> None:
    """Start the batch, unless a callback refused all waiting calls."""
    cancel = event.changes.get("cancel", False)
    transition.put(announced=True)
    if cancel:
        text = cancel if isinstance(cancel, str) else BATCH_CANCELLED
        for call in transition.state.calls:
            if call.stage is CallStage.WAITING:
                transition.put_call(
                    call.id, stage=CallStage.DONE, result=error_result(call.id, text)
                )
    _advance(transition)


def after_tools(transition: Transition) -> None:
    """Fire AfterTools again after a crash interrupted it."""
    transition.fire_hook("after_tools", transition.state.turn, transition.state.round)


def after_tools_fired(transition: Transition, event: HookFired) -> None:
    """Continue with the results, or wait for calls that are still open."""
    if not _is_complete(transition):
        transition.put(phase=Phase.TOOLS)
        transition.close_pass("interrupt")
        return
    reply = None
    if end := event.changes.get("end_turn", False):
        reply = callback_reply(
            end
            if isinstance(end, list)
            else [{"text": end if isinstance(end, str) else ENDED_EARLY}]
        )
    transition.go_on(phase=Phase.RESULTS, reply=reply)


# -- one call ----------------------------------------------------------------------------------------


def before_call_fired(transition: Transition, event: HookFired) -> None:
    """Run the tool selected by the callbacks, or end the attempt without running one."""
    call = transition.call(event.key)
    changes = event.changes
    if event.questions:
        _park(transition, call.id, transition.record(event.questions))
        return
    if transition.state.cancelled or transition.state.failure is not None:
        transition.put_call(call.id, stage=CallStage.WAITING, replayed=True)
        _advance(transition)
        return
    use = changes.get("tool_use", call.use)
    tool = changes.get("tool")
    transition.put_call(
        call.id, selection=Selection(use, tool, bool(changes.get("registered")))
    )
    if cancel := changes.get("cancel_tool", False):
        text = cancel if isinstance(cancel, str) else CANCELLED
        snapshot = Snapshot("cancelled", error_result(call.id, text), None, text, None)
        _end_attempt(transition, call.id, snapshot)
    elif tool is None:
        text = f"Unknown tool: {use.get('name')}"
        error = failures.record(LookupError(text))
        _end_attempt(
            transition,
            call.id,
            Snapshot("unknown", error_result(call.id, text), error, None, None),
        )
    else:
        transition.put_call(call.id, stage=CallStage.RUNNING)
        transition.add(RunTool(use, call.attempt, tool, call.replayed, call.subagent))


def _park(transition: Transition, key: str, question_ids: list[str]) -> None:
    transition.put_call(key, question_ids=question_ids)
    _advance(transition)


def tool_asked(transition: Transition, event: ToolAsked) -> None:
    """Park a call whose tool asked."""
    transition.put_call(event.id, subagent=event.subagent)
    transition.put(usage=add_usage(transition.state.usage, event.usage))
    _park(transition, event.id, transition.record(event.questions))


def subagent_asked(transition: Transition, event: SubagentAsked) -> None:
    """Publish the questions of an agent used as a tool while it still works."""
    transition.put_call(event.id, subagent=event.subagent)
    transition.record(event.questions)


def subagent_saved(transition: Transition, event: SubagentSaved) -> None:
    """Store the checkpoint of an agent used as a tool."""
    transition.put_call(event.id, subagent=event.subagent)
    transition.add(WriteCheckpoint(blocking=True))


def approval_used(transition: Transition, event: ApprovalUsed) -> None:
    """Store the use of a call's decision before the call begins."""
    if event.subagent is not None:
        transition.put_call(event.id, subagent=event.subagent)
    questions = transition.state.questions
    use = event.use
    if use.interrupt_id in questions:
        use_record = {"key": use.key, "effect": use.effect}
        question = replace(questions[use.interrupt_id], used=use_record)
        transition.put(questions={**questions, question.id: question})
    transition.add(RecordUse(use))


def tool_ended(transition: Transition, event: ToolEnded) -> None:
    """Keep the tool's result or exception before any callback sees it."""
    transition.put_call(event.id, structured=event.structured, subagent=event.subagent)
    transition.put(usage=add_usage(transition.state.usage, event.usage))
    result = {**event.result, "toolUseId": event.id}
    kind: Literal["success", "error"] = "success" if event.exception is None else "error"
    snapshot = Snapshot(kind, result, event.exception, None, event.duration)
    _end_attempt(transition, event.id, snapshot, event.effect)


def _end_attempt(
    transition: Transition, key: str, snapshot: Snapshot, effect: Use | None = None
) -> None:
    transition.put_call(key, snapshot=snapshot, stage=CallStage.AFTER, replayed=False)
    transition.add(RecordUse(effect) if effect else WriteCheckpoint(blocking=False))
    _fire_after(transition, key)


def _fire_after(transition: Transition, key: str) -> None:
    call = transition.call(key)
    transition.add(FireHook("after_tool_call", key, call.attempt, replay=call.replayed))


def after_call_fired(transition: Transition, event: HookFired) -> None:
    """Make the result final, retry the call, or park it."""
    call = transition.call(event.key)
    assert call.snapshot is not None, call  # noqa: S101 - a call in this stage has a snapshot
    if event.questions:
        _park(transition, call.id, transition.record(event.questions))
    elif _is_repeated(transition, call, event.changes):
        transition.put_call(call.id, **_next_attempt(call))
        _restart(transition, call.id)
    else:
        result = {**event.changes.get("result", call.snapshot.result), "toolUseId": call.id}
        transition.put_call(
            call.id, result=result, stage=CallStage.DONE, snapshot=None, selection=None
        )
        transition.add(WriteCheckpoint(blocking=False))
        _advance(transition)


def callback_failed(transition: Transition, key: str) -> None:
    """Stop a call whose callbacks raised; the batch ends once its other calls have ended."""
    is_before = transition.call(key).snapshot is None
    transition.put_call(
        key, replayed=True, stage=CallStage.WAITING if is_before else CallStage.BROKEN
    )
    _advance(transition)


def _is_repeated(transition: Transition, call: ToolCall, changes: JSONObject) -> bool:
    limit = transition.definition.tool_attempts
    if transition.state.cancelled or (limit is not None and call.attempt >= limit):
        return False
    if call.snapshot is not None and call.snapshot.kind == "cancelled":
        return bool(changes.get("retry_cancelled"))
    return bool(changes.get("retry") or changes.get("retry_cancelled"))


def _next_attempt(call: ToolCall) -> JSONObject:
    fresh = replace(new_call(call.use), attempt=call.attempt + 1)
    names = ("attempt", "stage", "replayed", "selection", "snapshot", "subagent", "structured")
    return {name: getattr(fresh, name) for name in names}


def _restart(transition: Transition, key: str) -> None:
    """Start a retried call beside running ones; in a replay it waits with the others."""
    state = transition.state
    if transition.definition.sequential or not state.announced or state.failure is not None:
        _advance(transition)
    else:
        _start(transition, [transition.call(key)])
