"""Every transition of an agent: `step(definition, state, happening) -> (state, requests)`.

The same shape as the graph's machine: values in, values out; no clock, no client, no model. The
drive performs the requests and tells what happened; between any two steps the state can be stored
and another process can go on.

    opening -> running -> closing -> done | stopped        one pass (passes.py)
    running: prompt -> before_model -> model -> after_model -> replied          (turn.py)
                 ^          |  ^------ throttled, retried -----+    |-> ended
                 |          +---------- results <- tools <----------+           (batch.py)

One rule serves all interrupts. A hook event or a tool is a place that can ask. Where it does, the
machine parks that place and goes on with whatever doesn't depend on it; when nothing is left the
pass closes. An answer wakes only the places that asked for it, and they start from what was
stored before their first callback ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from runner.agent import batch, passes, turn
from runner.agent.draft import Draft
from runner.agent.state import AgentState, Phase, Stage
from runner.agent.values import (
    Broke,
    Cancelled,
    Definition,
    Fired,
    Happening,
    InnerAsked,
    InnerSaved,
    Replied,
    Request,
    Started,
    ToolAsked,
    ToolEnded,
    Waited,
)

EDGES = frozenset({"before_invocation", "after_invocation"})

ENTER: dict[Phase, Callable[[Draft], None]] = {
    Phase.PROMPT: turn.prompt,
    Phase.BEFORE_MODEL: turn.before_model,
    Phase.MODEL: turn.call_model,
    Phase.THROTTLED: turn.throttled,
    Phase.AFTER_MODEL: turn.after_model,
    Phase.REPLIED: turn.take,
    Phase.TOOLS: batch.resume,
    Phase.AFTER_TOOLS: batch.after_tools,
    Phase.RESULTS: turn.results,
    Phase.ENDED: passes.ended,
}

LEAVE: dict[Phase, Callable[[Draft, Fired], None]] = {
    Phase.PROMPT: lambda draft, _: turn.prompt(draft),
    Phase.BEFORE_MODEL: turn.may_call,
    Phase.AFTER_MODEL: turn.judged,
    Phase.REPLIED: lambda draft, _: turn.taken(draft),
    Phase.TOOLS: batch.announced,
    Phase.AFTER_TOOLS: batch.closed,
    Phase.RESULTS: lambda draft, _: turn.resulted(draft),
}


def step(definition: Definition, state: AgentState, happening: Happening) -> tuple[AgentState, list[Request]]:
    """Take one happening into account; the requests are to be carried out in their order."""
    draft = Draft(definition, state)
    _hear(draft, happening)
    while draft.moved:
        draft.moved = False
        ENTER[draft.state.phase](draft)
    return draft.state, draft.requests


def _hear(draft: Draft, happening: Happening) -> None:  # noqa: C901, PLR0912 - one case a happening
    match happening:
        case Started():
            passes.start(draft, happening)
        case Fired():
            _fired(draft, happening)
        case Replied():
            turn.replied(draft, happening)
        case Waited():
            turn.waited(draft)
        case ToolEnded():
            batch.ended(draft, happening)
        case ToolAsked():
            batch.asked(draft, happening)
        case InnerAsked():
            batch.inner_asked(draft, happening)
        case InnerSaved():
            batch.inner_saved(draft, happening)
        case Broke():
            _broke(draft, happening)
        case Cancelled():
            _cancelled(draft)


def _fired(draft: Draft, happening: Fired) -> None:
    if happening.event in EDGES:
        passes.fired(draft, happening)
    elif happening.event == "before_tool_call":
        batch.before_fired(draft, happening)
    elif happening.event == "after_tool_call":
        batch.after_fired(draft, happening)
    elif happening.asked:
        site = draft.state.site
        assert site is not None, happening  # noqa: S101 - only a site that fires hears Fired
        draft.put(site=replace(site, asked=draft.note(happening.asked)))
        draft.conclude("interrupt")
    else:
        draft.put(site=None)
        LEAVE[draft.state.phase](draft, happening)


def _broke(draft: Draft, happening: Broke) -> None:
    """A callback or a tool's question went wrong: what runs may end, nothing more begins."""
    if happening.event in EDGES:
        passes.broke(draft, happening)
    elif draft.state.phase is Phase.TOOLS and draft.state.site is None:
        draft.put(failure=draft.state.failure or happening.error)
        batch.broke(draft, happening.key)
    else:
        draft.fail(happening.error)


def _cancelled(draft: Draft) -> None:
    """Stop before the next model or tool call; what is parked stays as it is."""
    state = draft.state
    draft.put(cancelled=True)
    if state.stage is Stage.RUNNING and state.phase in (Phase.MODEL, Phase.THROTTLED):
        draft.put(phase=Phase.BEFORE_MODEL)
        draft.conclude("cancelled")
