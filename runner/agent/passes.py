"""One pass through the agent: from its start or an answer to its end or the next question.

A pass begins with BeforeInvocation and ends with AfterInvocation, also when it only stops to
wait. Either may ask; then nothing inside moves until that question is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.agent.draft import Draft, fire
from runner.agent.state import AgentState, Phase, Site, Stage, said, woken
from runner.agent.values import Broke, Fired, Started
from runner.asking import answered
from runner.interrupts import Interrupt

DENIED = "invocation denied by hook"


def start(draft: Draft, started: Started) -> None:
    """Begin, go on after answers, or go on after a crash: the stage tells which."""
    was_cancelled = draft.state.cancelled
    draft.put(questions=_merged(draft.state, started.answers), cancelled=False, failure=None)
    match draft.state.stage:
        case Stage.OPENING | Stage.CLOSING:
            _edge(draft)
        case Stage.RUNNING | Stage.FAILING:
            draft.put(stage=Stage.RUNNING)
            body(draft)
        case Stage.STOPPED if was_cancelled or _wakeable(draft.state):
            _next_pass(draft)
        case Stage.STOPPED:
            draft.finish("interrupt")
        case Stage.DONE:
            draft.finish("done")


def _merged(state: AgentState, answers: Mapping[str, Interrupt]) -> dict[str, Interrupt]:
    known = dict(state.questions)
    for key, question in known.items():
        answer = answers.get(key)
        # A withdrawn question may be asked anew in a later attempt: the visit's word counts.
        if answer is not None and (not answered(question) or answer.withdrawal is not None):
            known[key] = answer
    return known


def _wakeable(state: AgentState) -> bool:
    if state.site is not None:
        return woken(state, state.site.asked)
    return any(woken(state, call.asked) for call in state.calls)


def _next_pass(draft: Draft) -> None:
    draft.put(stage=Stage.OPENING, passes=draft.state.passes + 1, edge=None)
    _edge(draft)


def _edge(draft: Draft) -> None:
    site = draft.state.edge
    if site is not None:
        _again(draft, site, edge=True)
    elif draft.state.stage is Stage.OPENING:
        # All passes of one input share a number: what was answered for it isn't asked again.
        draft.open_edge("before_invocation", draft.state.inputs)
    else:
        draft.open_edge("after_invocation", draft.state.passes)


def _again(draft: Draft, site: Site, *, edge: bool) -> None:
    """Replay a site that got an answer or was cut short; one without an answer stays parked."""
    if site.asked and not woken(draft.state, site.asked):
        if edge:
            draft.finish("interrupt")
        else:
            draft.conclude("interrupt")
        return
    site = replace(site, asked=[], replayed=True)
    draft.put(**{"edge" if edge else "site": site})
    draft.add(fire(site))


def body(draft: Draft) -> None:
    """Go on inside the pass, where it stood."""
    if draft.state.site is not None:
        _again(draft, draft.state.site, edge=False)
    else:
        draft.go_on()


def fired(draft: Draft, happening: Fired) -> None:
    """Hear what the callbacks around the pass did."""
    if draft.state.stage is Stage.FAILING:
        # A question has no use here: the invocation has failed already.
        draft.finish("failed")
    elif happening.asked:
        site = draft.state.edge
        assert site is not None, happening  # noqa: S101 - only a site that fires hears Fired
        draft.put(edge=replace(site, asked=draft.note(happening.asked)))
        draft.finish("interrupt")
    elif draft.state.stage is Stage.OPENING:
        draft.put(edge=None, stage=Stage.RUNNING)
        _opened(draft, happening)
    else:
        draft.put(edge=None)
        _closed(draft, happening)


def _opened(draft: Draft, happening: Fired) -> None:
    cancel = happening.changes.get("cancel", False)
    new_input = takes_input(draft.state)
    if new_input and cancel:
        reply = said([{"text": cancel if isinstance(cancel, str) else DENIED}])
        draft.go_on(phase=Phase.REPLIED, reply=reply, prompt=[])
    elif cancel:
        draft.put(cancelled=True)
        draft.conclude("cancelled")
    else:
        if new_input:
            draft.put(prompt=happening.changes.get("messages", draft.state.prompt))
        elif draft.state.phase is Phase.TOOLS and draft.state.site is None:
            draft.put(round=draft.state.round + 1, announced=False)
        body(draft)


def _closed(draft: Draft, happening: Fired) -> None:
    ended = draft.state.phase is Phase.ENDED
    answers: Mapping[str, object] = happening.changes.get("answers") or {}
    if ended and happening.changes.get("prompt"):
        _next_input(draft, happening)
        return
    draft.put(stage=Stage.DONE if ended else Stage.STOPPED)
    known = dict(draft.state.questions)
    for key, response in answers.items():
        known[key] = replace(known[key], response=response)
    draft.put(questions=known)
    if draft.state.stop_reason == "interrupt" and _wakeable(draft.state):
        _next_pass(draft)
    else:
        draft.finish("interrupt" if draft.state.stop_reason == "interrupt" else "done")


def _next_input(draft: Draft, happening: Fired) -> None:
    draft.put(
        phase=Phase.PROMPT,
        prompt=happening.changes["prompt"],
        inputs=draft.state.inputs + 1,
        first_turn=draft.state.turn,
        forced=False,
        structured=None,
    )
    _next_pass(draft)


def takes_input(state: AgentState) -> bool:
    """Tell whether this pass is the one that brings in new messages."""
    return state.phase is Phase.PROMPT and state.site is None and not state.forced


def ended(draft: Draft) -> None:
    """Close a pass that has nothing left to do."""
    draft.conclude(draft.state.stop_reason)


def broke(draft: Draft, happening: Broke) -> None:
    """End in the error of a callback around the pass; a failed invocation keeps its first error."""
    if draft.state.stage is Stage.FAILING:
        draft.finish("failed")
    else:
        draft.fail(happening.error)
