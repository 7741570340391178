"""The tool calls of one reply: what starts, what waits for a person, and when the batch ends.

A call goes waiting -> before -> running -> after -> done. It parks where a question was asked;
only an answer to one of its own questions wakes it. Parked before or in the tool, it begins its
attempt anew, earlier answers known; parked after it, only the After callbacks run again, from the
snapshot. A retry is a new attempt, so its questions are asked anew. Woken calls come before those
that start. Concurrent batches start all calls that wait, sequential ones one at a time, never past
a call that isn't done. Nothing starts before the checkpoint that names it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from runner import failures
from runner.agent.draft import Draft
from runner.agent.state import Call, CallStage, Chosen, Phase, Snapshot, said, summed, woken
from runner.agent.values import Fire, Fired, InnerAsked, InnerSaved, RunTool, Save, ToolAsked, ToolEnded

JSON = Any

CANCELLED = "tool cancelled by user"
BATCH_CANCELLED = "Tool cancelled by hook"
ENDED_EARLY = "Turn ended early by hook after tool execution"


def new_call(use: dict[str, JSON]) -> Call:
    """Make a call that waits for its first attempt."""
    return Call(
        use=use,
        attempt=1,
        stage=CallStage.WAITING,
        asked=[],
        replayed=False,
        chosen=None,
        snapshot=None,
        result=None,
        inner=None,
        structured=None,
    )


def error_result(key: str, text: str) -> dict[str, JSON]:
    """Build the result of a call that went wrong."""
    return {"toolUseId": key, "status": "error", "content": [{"text": text}]}


# -- the batch ---------------------------------------------------------------------------------------


def resume(draft: Draft) -> None:
    """Wake the calls that got an answer, and begin anew what a crash cut short."""
    for call in draft.state.calls:
        if call.asked and not woken(draft.state, call.asked):
            continue
        if call.stage in (CallStage.AFTER, CallStage.BROKEN):
            draft.put_call(call.id, asked=[], replayed=True, stage=CallStage.AFTER)
            _fire_after(draft, call.id)
        elif call.stage in (CallStage.BEFORE, CallStage.RUNNING):
            draft.put_call(call.id, asked=[], replayed=True, stage=CallStage.WAITING)
    advance(draft)


def advance(draft: Draft) -> None:
    """Start what may start; when nothing runs and nothing may start, this round is over."""
    state = draft.state
    if state.site is not None or any(call.active for call in state.calls):
        return
    ready = _ready(draft)
    if state.failure is not None:
        draft.fail(state.failure)
    elif state.cancelled:
        draft.conclude("cancelled")
    elif ready and not state.announced:
        number = max(call.attempt for call in ready)
        draft.open_site("before_tools", state.turn, number)
    elif ready:
        _start(draft, ready)
    elif state.announced or _complete(draft):
        draft.put(phase=Phase.AFTER_TOOLS)
        draft.open_site("after_tools", state.turn, state.round)
    else:
        draft.conclude("interrupt")


def _ready(draft: Draft) -> list[Call]:
    calls = draft.state.calls
    if not draft.definition.sequential:
        return [call for call in calls if call.stage is CallStage.WAITING]
    first = next((call for call in calls if call.stage is not CallStage.DONE), None)
    return [first] if first is not None and first.stage is CallStage.WAITING else []


def _complete(draft: Draft) -> bool:
    return all(call.stage is CallStage.DONE for call in draft.state.calls)


def _start(draft: Draft, ready: Iterable[Call]) -> None:
    draft.add(Save(first=True))
    for call in ready:
        draft.put_call(call.id, stage=CallStage.BEFORE)
        draft.add(Fire("before_tool_call", call.id, call.attempt, replay=call.replayed))


def announced(draft: Draft, happening: Fired) -> None:
    """Start the batch, unless a callback refused all that waits."""
    cancel = happening.changes.get("cancel", False)
    draft.put(announced=True)
    if cancel:
        text = cancel if isinstance(cancel, str) else BATCH_CANCELLED
        for call in draft.state.calls:
            if call.stage is CallStage.WAITING:
                draft.put_call(call.id, stage=CallStage.DONE, result=error_result(call.id, text))
    advance(draft)


def after_tools(draft: Draft) -> None:
    """Fire AfterTools again where a crash cut it short."""
    draft.open_site("after_tools", draft.state.turn, draft.state.round)


def closed(draft: Draft, happening: Fired) -> None:
    """Hand the results over, or wait with what is still open."""
    if not _complete(draft):
        draft.put(phase=Phase.TOOLS)
        draft.conclude("interrupt")
        return
    reply = None
    if end := happening.changes.get("end_turn", False):
        content = end if isinstance(end, list) else [{"text": end if isinstance(end, str) else ENDED_EARLY}]
        reply = said(content)
    draft.go_on(phase=Phase.RESULTS, reply=reply)


# -- one call ----------------------------------------------------------------------------------------


def before_fired(draft: Draft, happening: Fired) -> None:
    """Run the tool that the callbacks left, or end the attempt without one."""
    call = draft.call(happening.key)
    changes = happening.changes
    if happening.asked:
        _park(draft, call.id, draft.note(happening.asked))
        return
    if draft.state.cancelled or draft.state.failure is not None:
        draft.put_call(call.id, stage=CallStage.WAITING, replayed=True)
        advance(draft)
        return
    use = changes.get("tool_use", call.use)
    tool = changes.get("tool")
    draft.put_call(call.id, chosen=Chosen(use, tool, bool(changes.get("registered"))))
    if cancel := changes.get("cancel_tool", False):
        text = cancel if isinstance(cancel, str) else CANCELLED
        snapshot = Snapshot("cancelled", error_result(call.id, text), None, text, None)
        _ended(draft, call.id, snapshot)
    elif tool is None:
        text = f"Unknown tool: {use.get('name')}"
        error = failures.record(LookupError(text))
        _ended(draft, call.id, Snapshot("unknown", error_result(call.id, text), error, None, None))
    else:
        draft.put_call(call.id, stage=CallStage.RUNNING)
        draft.add(RunTool(use, call.attempt, tool, call.replayed, call.inner))


def _park(draft: Draft, key: str, asked: list[str]) -> None:
    draft.put_call(key, asked=asked)
    advance(draft)


def asked(draft: Draft, happening: ToolAsked) -> None:
    """Park a call whose tool asked."""
    draft.put_call(happening.id, inner=happening.inner)
    draft.put(usage=summed(draft.state.usage, happening.usage))
    _park(draft, happening.id, draft.note(happening.questions))


def inner_asked(draft: Draft, happening: InnerAsked) -> None:
    """Show what an agent that serves as a tool asks while it still works."""
    draft.put_call(happening.id, inner=happening.inner)
    draft.note(happening.questions)


def inner_saved(draft: Draft, happening: InnerSaved) -> None:
    """Keep what an agent that serves as a tool wants kept."""
    draft.put_call(happening.id, inner=happening.inner)
    draft.add(Save(first=True))


def ended(draft: Draft, happening: ToolEnded) -> None:
    """Keep what the tool returned or raised, before any callback sees it."""
    draft.put_call(happening.id, structured=happening.structured, inner=happening.inner)
    draft.put(usage=summed(draft.state.usage, happening.usage))
    result = {**happening.result, "toolUseId": happening.id}
    kind: Literal["success", "error"] = "success" if happening.exception is None else "error"
    _ended(draft, happening.id, Snapshot(kind, result, happening.exception, None, happening.duration))


def _ended(draft: Draft, key: str, snapshot: Snapshot) -> None:
    draft.put_call(key, snapshot=snapshot, stage=CallStage.AFTER, replayed=False)
    draft.add(Save(first=False))
    _fire_after(draft, key)


def _fire_after(draft: Draft, key: str) -> None:
    call = draft.call(key)
    draft.add(Fire("after_tool_call", key, call.attempt, replay=call.replayed))


def after_fired(draft: Draft, happening: Fired) -> None:
    """Make the result final, run the call once more, or park it as it is."""
    call = draft.call(happening.key)
    assert call.snapshot is not None, call  # noqa: S101 - a call in this stage has one
    if happening.asked:
        _park(draft, call.id, draft.note(happening.asked))
    elif _repeats(draft, call, happening.changes):
        draft.put_call(call.id, **_next_attempt(call))
        _restart(draft, call.id)
    else:
        result = {**happening.changes.get("result", call.snapshot.result), "toolUseId": call.id}
        draft.put_call(call.id, result=result, stage=CallStage.DONE, snapshot=None, chosen=None)
        draft.add(Save(first=False))
        advance(draft)


def broke(draft: Draft, key: str) -> None:
    """Set a call aside whose callbacks raised; the batch ends when nothing else of it runs."""
    before = draft.call(key).snapshot is None
    draft.put_call(key, replayed=True, stage=CallStage.WAITING if before else CallStage.BROKEN)
    advance(draft)


def _repeats(draft: Draft, call: Call, changes: dict[str, JSON]) -> bool:
    most = draft.definition.tool_attempts
    if draft.state.cancelled or (most is not None and call.attempt >= most):
        return False
    if call.snapshot is not None and call.snapshot.kind == "cancelled":
        return bool(changes.get("retry_cancelled"))
    return bool(changes.get("retry") or changes.get("retry_cancelled"))


def _next_attempt(call: Call) -> dict[str, Any]:
    begun = replace(new_call(call.use), attempt=call.attempt + 1)
    names = ("attempt", "stage", "replayed", "chosen", "snapshot", "inner", "structured")
    return {name: getattr(begun, name) for name in names}


def _restart(draft: Draft, key: str) -> None:
    """Start a retried call beside those that run; in a replay it waits with the others."""
    state = draft.state
    alone = draft.definition.sequential or not state.announced or state.failure is not None
    if alone:
        advance(draft)
    else:
        _start(draft, [draft.call(key)])
