"""One invocation, in passes: each runs from the start or an answer to the end or the next question.

A pass begins with BeforeInvocation and ends with AfterInvocation, even if it only stops to wait.
Either may ask; then nothing inside moves until that question is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.agent.machine.protocol import CallbackFailed, HookFired, Started
from runner.agent.machine.state import (
    AgentState,
    HookPoint,
    PassStage,
    Phase,
    any_answered,
    callback_reply,
)
from runner.agent.machine.transition import Transition, fire_command
from runner.records.asking import is_answered
from runner.records.budgets import AWAITED
from runner.records.interrupts import Interrupt, InterruptStatus

DENIED = "invocation denied by hook"


def start(transition: Transition, event: Started) -> None:
    """Begin, or continue after answers or after a crash, as the stage requires."""
    was_cancelled = transition.state.cancelled
    questions = _with_answers(transition.state, event.answers)
    transition.put(questions=questions, cancelled=False, failure=None)
    match transition.state.stage:
        case PassStage.OPENING | PassStage.CLOSING:
            _fire_invocation_hook(transition)
        case PassStage.RUNNING | PassStage.FAILING:
            transition.put(stage=PassStage.RUNNING)
            _go_on_inside(transition)
        case PassStage.STOPPED if was_cancelled or _can_wake(transition.state):
            _next_pass(transition)
        case PassStage.STOPPED:
            transition.finish("interrupt")
        case PassStage.DONE:
            transition.finish("done")


def _with_answers(state: AgentState, answers: Mapping[str, Interrupt]) -> dict[str, Interrupt]:
    questions = _own(state.questions)
    for key, answer in answers.items():
        question = questions.get(key)
        # A withdrawn question may be asked again in a later attempt: then the visit's answer
        # counts. One dropped from the state is restored too, or its id would be reused.
        if question is None:
            is_new = answer.status is InterruptStatus.WITHDRAWN
        else:
            is_new = not is_answered(question) or answer.withdrawal is not None
        if is_new:
            questions[key] = answer
    return questions


def _own(questions: Mapping[str, Interrupt]) -> dict[str, Interrupt]:
    """Leave out placeholders for others' questions, so that calls waiting for them look again."""
    return {key: question for key, question in questions.items() if not key.startswith(AWAITED)}


def _can_wake(state: AgentState) -> bool:
    if state.hook_point is not None:
        return any_answered(state, state.hook_point.question_ids)
    return any(any_answered(state, call.question_ids) for call in state.calls)


def _next_pass(transition: Transition) -> None:
    passes = transition.state.passes + 1
    transition.put(stage=PassStage.OPENING, passes=passes, invocation_hook_point=None)
    _fire_invocation_hook(transition)


def _fire_invocation_hook(transition: Transition) -> None:
    point = transition.state.invocation_hook_point
    if point is not None and _is_parked(transition.state, point):
        transition.finish("interrupt")
    elif point is not None:
        point = replace(point, question_ids=[], replayed=True)
        transition.put(invocation_hook_point=point)
        transition.add(fire_command(point))
    elif transition.state.stage is PassStage.OPENING:
        # All passes of one input share a number, so questions answered for it aren't asked again.
        transition.fire_invocation_hook("before_invocation", transition.state.inputs)
    else:
        transition.fire_invocation_hook("after_invocation", transition.state.passes)


def _is_parked(state: AgentState, point: HookPoint) -> bool:
    """Return whether a point waits for an answer; otherwise it is replayed."""
    return bool(point.question_ids) and not any_answered(state, point.question_ids)


def _go_on_inside(transition: Transition) -> None:
    point = transition.state.hook_point
    if point is None:
        transition.go_on()
    elif _is_parked(transition.state, point):
        transition.close_pass("interrupt")
    else:
        point = replace(point, question_ids=[], replayed=True)
        transition.put(hook_point=point)
        transition.add(fire_command(point))


def hook_fired(transition: Transition, event: HookFired) -> None:
    """Apply the changes or questions of the callbacks around the pass."""
    if transition.state.stage is PassStage.FAILING:
        # Questions are useless here: the invocation has already failed.
        transition.finish("failed")
    elif event.questions:
        point = transition.state.invocation_hook_point
        assert point is not None, event  # noqa: S101 - only a hook point that fires gets HookFired
        point = replace(point, question_ids=transition.record(event.questions))
        transition.put(invocation_hook_point=point)
        transition.finish("interrupt")
    elif transition.state.stage is PassStage.OPENING:
        transition.put(invocation_hook_point=None, stage=PassStage.RUNNING)
        _opened(transition, event)
    else:
        transition.put(invocation_hook_point=None)
        _closed(transition, event)


def _opened(transition: Transition, event: HookFired) -> None:
    cancel = event.changes.get("cancel", False)
    new_input = takes_input(transition.state)
    if new_input and cancel:
        reply = callback_reply([{"text": cancel if isinstance(cancel, str) else DENIED}])
        transition.go_on(phase=Phase.REPLIED, reply=reply, prompt=[])
    elif cancel:
        transition.put(cancelled=True)
        transition.close_pass("cancelled")
    else:
        if new_input:
            transition.put(prompt=event.changes.get("messages", transition.state.prompt))
        elif transition.state.phase is Phase.TOOLS and transition.state.hook_point is None:
            transition.put(round=transition.state.round + 1, announced=False)
        _go_on_inside(transition)


def _closed(transition: Transition, event: HookFired) -> None:
    is_ended = transition.state.phase is Phase.ENDED
    answers: Mapping[str, object] = event.changes.get("answers") or {}
    if is_ended and event.changes.get("prompt"):
        _next_input(transition, event)
        return
    transition.put(stage=PassStage.DONE if is_ended else PassStage.STOPPED)
    questions = dict(transition.state.questions)
    if answers:
        questions = _own(questions)
    for key, response in answers.items():
        questions[key] = replace(questions[key], response=response)
    transition.put(questions=questions)
    if transition.state.stop_reason == "interrupt" and _can_wake(transition.state):
        _next_pass(transition)
    else:
        transition.finish(
            "interrupt" if transition.state.stop_reason == "interrupt" else "done"
        )


def _next_input(transition: Transition, event: HookFired) -> None:
    transition.put(
        phase=Phase.PROMPT,
        prompt=event.changes["prompt"],
        inputs=transition.state.inputs + 1,
        first_turn=transition.state.turn,
        forced=False,
        structured=None,
    )
    _next_pass(transition)


def takes_input(state: AgentState) -> bool:
    """Return whether this pass brings in new messages."""
    return state.phase is Phase.PROMPT and state.hook_point is None and not state.forced


def ended(transition: Transition) -> None:
    """Close a pass with nothing left to do."""
    transition.close_pass(transition.state.stop_reason)


def callback_failed(transition: Transition, event: CallbackFailed) -> None:
    """Fail with the error of a callback around the pass; a failed invocation keeps its error."""
    if transition.state.stage is PassStage.FAILING:
        transition.finish("failed")
    else:
        transition.fail(event.error)
