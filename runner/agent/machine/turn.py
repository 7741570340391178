"""One turn of the loop: the incoming messages, the model call, and its reply.

A reply joins the conversation only after its AfterModelCall callbacks have run. A repeated call is
a new attempt of the same turn, so its questions are asked again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.agent.machine.protocol import (
    AppendMessage,
    CallModel,
    HookFired,
    ModelReplied,
    RedactMessage,
    Wait,
)
from runner.agent.machine.state import ModelReply, Phase, add_usage, callback_reply
from runner.agent.machine.tool_calls import new_call
from runner.agent.machine.transition import Transition
from runner.errors import MaxTokensReached, StructuredOutputMissing
from runner.records import failures
from runner.records.budgets import QUESTION
from runner.records.codec import JSONObject

DENIED = "model call denied by hook"
FORCE = "You must format the previous response as structured output."
CUT = "The call of tool {name} was cut off by the limit of output tokens and was not made."


def _append(transition: Transition, message: JSONObject) -> None:
    """Add a message to the conversation and fire MessageAdded."""
    index = transition.state.length
    transition.add(AppendMessage(message))
    transition.put(length=index + 1)
    transition.fire_hook("message_added", index, 1)


def next_message(transition: Transition) -> None:
    """Add the next message of the input, or begin the first turn."""
    if transition.state.prompt:
        message, *remaining = transition.state.prompt
        transition.put(prompt=remaining)
        _append(transition, message)
    else:
        _begin(transition)


def _begin(transition: Transition) -> None:
    """Begin a turn, unless a limit is reached."""
    limit = _limit_reached(transition)
    if limit is not None:
        transition.put(phase=Phase.ENDED)
        transition.close_pass(limit)
    else:
        turn = transition.state.turn + 1
        transition.go_on(
            phase=Phase.BEFORE_MODEL, turn=turn, attempt=1, throttled=0, reply=None
        )


def _limit_reached(transition: Transition) -> str | None:
    limits = transition.definition
    state = transition.state
    if limits.max_turns is not None and state.turn - state.first_turn >= limits.max_turns:
        return "limit_turns"
    if (
        limits.max_total_tokens is not None
        and state.usage.get("totalTokens", 0) >= limits.max_total_tokens
    ):
        return "limit_total_tokens"
    output_tokens = state.usage.get("outputTokens", 0)
    if limits.max_output_tokens is not None and output_tokens >= limits.max_output_tokens:
        return "limit_output_tokens"
    return None


def before_model(transition: Transition) -> None:
    transition.fire_hook("before_model_call", transition.state.turn, transition.state.attempt)


def before_model_fired(transition: Transition, event: HookFired) -> None:
    """Call the model, unless a callback cancelled the call; its text then becomes the reply."""
    if transition.state.cancelled:
        transition.close_pass("cancelled")
    elif cancel := event.changes.get("cancel", False):
        reply = callback_reply([{"text": cancel if isinstance(cancel, str) else DENIED}])
        transition.go_on(phase=Phase.AFTER_MODEL, reply=reply)
    else:
        transition.go_on(phase=Phase.MODEL)


def call_model(transition: Transition) -> None:
    transition.add(CallModel(forced=transition.state.forced))


def model_replied(transition: Transition, event: ModelReplied) -> None:
    """Keep a reply or an error beside the conversation until the callbacks have run."""
    state = transition.state
    if event.redact is not None:
        transition.add(RedactMessage(event.redact))
    transition.go_on(
        phase=Phase.AFTER_MODEL,
        reply=event.reply,
        usage=add_usage(state.usage, event.usage),
        model_state=state.model_state if event.model_state is None else event.model_state,
        window=event.window,
    )


def after_model(transition: Transition) -> None:
    transition.fire_hook("after_model_call", transition.state.turn, transition.state.attempt)


def _reply(transition: Transition) -> ModelReply:
    assert transition.state.reply is not None, transition.state.phase  # noqa: S101 - these phases have a reply
    return transition.state.reply


def after_model_fired(transition: Transition, event: HookFired) -> None:
    """Use the reply, repeat the call, or end with its error."""
    state = transition.state
    reply = _reply(transition)
    if event.changes.get("retry"):
        _repeat(transition)
    elif reply.exception is None:
        transition.go_on(phase=Phase.REPLIED)
    elif (
        reply.fault == "throttled"
        and state.throttled + 1 < transition.definition.model_attempts
    ):
        transition.go_on(phase=Phase.THROTTLED, throttled=state.throttled + 1)
    elif reply.fault == "overflow" and reply.next_window is not None:
        _repeat(transition, window=reply.next_window)
    else:
        transition.put(phase=Phase.BEFORE_MODEL, attempt=state.attempt + 1, reply=None)
        transition.fail(reply.exception)


def _repeat(transition: Transition, **changes: Any) -> None:
    attempt = transition.state.attempt + 1
    transition.go_on(phase=Phase.BEFORE_MODEL, attempt=attempt, reply=None, **changes)


def throttled(transition: Transition) -> None:
    """Wait, longer after each refusal."""
    limits = transition.definition
    transition.add(
        Wait(
            min(limits.max_delay, limits.first_delay * 2.0 ** (transition.state.throttled - 1))
        )
    )


def waited(transition: Transition) -> None:
    """Call the model again, unless the invocation was cancelled meanwhile."""
    if transition.state.phase is Phase.THROTTLED:
        _repeat(transition)


def append_reply(transition: Transition) -> None:
    """Make the reply part of the conversation and keep its tool calls."""
    reply = _reply(transition)
    message = reply.message or {"role": "assistant", "content": []}
    if reply.stop_reason == "max_tokens":
        message = {
            **message,
            "content": [_without_cut_call(block) for block in message["content"]],
        }
    uses = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    calls = [new_call(use) for use in uses] if reply.stop_reason == "tool_use" else []
    transition.put(calls=calls, reply=replace(reply, message=None))
    _append(transition, message)


def _without_cut_call(block: JSONObject) -> JSONObject:
    if "toolUse" not in block:
        return block
    return {"text": CUT.format(name=block["toolUse"].get("name", ""))}


def reply_added(transition: Transition) -> None:
    """Run the tools called by the reply, ask for the structured output, or end."""
    reply = _reply(transition)
    output_name = transition.definition.structured
    transition.put(reply=None)
    if reply.stop_reason == "max_tokens":
        transition.put(phase=Phase.BEFORE_MODEL, attempt=transition.state.attempt + 1)
        transition.fail(failures.record(MaxTokensReached()))
    elif transition.state.calls:
        transition.go_on(phase=Phase.TOOLS, round=1, announced=False)
    elif (
        reply.stop_reason == "end_turn" and output_name and transition.state.structured is None
    ):
        _force_structured(transition)
    else:
        transition.put(phase=Phase.ENDED)
        transition.close_pass(reply.stop_reason)


def _force_structured(transition: Transition) -> None:
    if transition.state.forced:
        transition.put(phase=Phase.BEFORE_MODEL, attempt=transition.state.attempt + 1)
        transition.fail(failures.record(StructuredOutputMissing()))
        return
    message = {"role": "user", "content": [{"text": FORCE}]}
    transition.go_on(phase=Phase.PROMPT, prompt=[message], forced=True)


def append_results(transition: Transition) -> None:
    """Make the results of the tool calls part of the conversation, as one message."""
    state = transition.state
    content = [{"toolResult": call.result} for call in state.calls]
    output = next((c.structured for c in state.calls if c.structured is not None), None)
    questions = {
        k: q
        for k, q in state.questions.items()
        if q.scope == "before_invocation" or q.name.startswith(QUESTION)
    }
    transition.put(calls=[], questions=questions, structured=output)
    _append(transition, {"role": "user", "content": content})


def results_added(transition: Transition) -> None:
    """Begin the next turn, unless the tool calls ended the invocation."""
    if transition.state.structured is not None:
        transition.put(phase=Phase.ENDED)
        transition.close_pass("tool_use")
    elif transition.state.reply is not None:
        transition.go_on(phase=Phase.REPLIED)
    else:
        _begin(transition)
