"""One turn of the loop: the messages that come in, the model call, and its reply.

A reply becomes part of the conversation only after its AfterModelCall callbacks are through. A
repeated call is a new attempt of the same turn, so its questions are asked anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner import failures
from runner.agent.batch import new_call
from runner.agent.draft import Draft
from runner.agent.state import Phase, Reply, said, summed
from runner.agent.values import Append, CallModel, Definition, Fired, Redact, Replied, Wait
from runner.errors import MaxTokensReached, StructuredOutputMissing

JSON = Any

DENIED = "model call denied by hook"
FORCE = "You must format the previous response as structured output."
CUT = "The call of tool {name} was cut off by the limit of output tokens and was not made."


def append(draft: Draft, message: dict[str, JSON]) -> None:
    """Add a message to the conversation and tell the callbacks."""
    index = draft.state.length
    draft.add(Append(message))
    draft.put(length=index + 1)
    draft.open_site("message_added", index, 1)


def prompt(draft: Draft) -> None:
    """Take in the next message of the input, or begin the first turn."""
    if draft.state.prompt:
        first, *rest = draft.state.prompt
        draft.put(prompt=rest)
        append(draft, first)
    else:
        begin(draft)


def begin(draft: Draft) -> None:
    """Begin a turn, unless a limit is reached."""
    reached = _limit(draft)
    if reached is not None:
        draft.put(phase=Phase.ENDED)
        draft.conclude(reached)
    else:
        draft.go_on(phase=Phase.BEFORE_MODEL, turn=draft.state.turn + 1, attempt=1, throttled=0, reply=None)


def _limit(draft: Draft) -> str | None:
    limits, state = draft.definition, draft.state
    if limits.max_turns is not None and state.turn - state.first_turn >= limits.max_turns:
        return "limit_turns"
    if _over(state.usage.get("totalTokens", 0), limits.max_total_tokens):
        return "limit_total_tokens"
    if _over(state.usage.get("outputTokens", 0), limits.max_output_tokens):
        return "limit_output_tokens"
    return None


def _over(used: int, limit: int | None) -> bool:
    return limit is not None and used >= limit


def before_model(draft: Draft) -> None:
    """Announce the model call."""
    draft.open_site("before_model_call", draft.state.turn, draft.state.attempt)


def may_call(draft: Draft, happening: Fired) -> None:
    """Call the model, unless a callback gave the reply in its place."""
    if draft.state.cancelled:
        draft.conclude("cancelled")
    elif cancel := happening.changes.get("cancel", False):
        reply = said([{"text": cancel if isinstance(cancel, str) else DENIED}])
        draft.go_on(phase=Phase.AFTER_MODEL, reply=reply)
    else:
        draft.go_on(phase=Phase.MODEL)


def call_model(draft: Draft) -> None:
    """Ask for the model call."""
    draft.add(CallModel(forced=draft.state.forced))


def replied(draft: Draft, happening: Replied) -> None:
    """Keep a reply or an error aside until the callbacks have seen it."""
    state = draft.state
    if happening.redact is not None:
        draft.add(Redact(happening.redact))
    model_state = state.model_state if happening.model_state is None else happening.model_state
    draft.go_on(
        phase=Phase.AFTER_MODEL,
        reply=happening.reply,
        usage=summed(state.usage, happening.usage),
        model_state=model_state,
        window=happening.window,
    )


def after_model(draft: Draft) -> None:
    """Show the reply or the error to the callbacks."""
    draft.open_site("after_model_call", draft.state.turn, draft.state.attempt)


def _reply(draft: Draft) -> Reply:
    assert draft.state.reply is not None, draft.state.phase  # noqa: S101 - these phases have a reply
    return draft.state.reply


def judged(draft: Draft, happening: Fired) -> None:
    """Take the reply, repeat the call, or end in its error."""
    reply = _reply(draft)
    if happening.changes.get("retry"):
        _repeat(draft)
    elif reply.exception is None:
        draft.go_on(phase=Phase.REPLIED)
    elif reply.fault == "throttled" and draft.state.throttled + 1 < draft.definition.model_attempts:
        draft.go_on(phase=Phase.THROTTLED, throttled=draft.state.throttled + 1)
    elif reply.fault == "overflow" and reply.next_window is not None:
        _repeat(draft, window=reply.next_window)
    else:
        draft.put(phase=Phase.BEFORE_MODEL, attempt=draft.state.attempt + 1, reply=None)
        draft.fail(reply.exception)


def _repeat(draft: Draft, **changes: Any) -> None:
    draft.go_on(phase=Phase.BEFORE_MODEL, attempt=draft.state.attempt + 1, reply=None, **changes)


def throttled(draft: Draft) -> None:
    """Wait longer after each refusal."""
    draft.add(Wait(delay(draft.definition, draft.state.throttled)))


def delay(definition: Definition, refusals: int) -> float:
    """Return the seconds to wait after that many refusals in a row."""
    longest: float = min(definition.max_delay, definition.first_delay * 2.0 ** (refusals - 1))
    return longest


def waited(draft: Draft) -> None:
    """Call the model again, unless the wait was given up."""
    if draft.state.phase is Phase.THROTTLED:
        _repeat(draft)


def take(draft: Draft) -> None:
    """Make the reply part of the conversation, with its tool calls as the next batch."""
    reply = _reply(draft)
    message = reply.message or {"role": "assistant", "content": []}
    if reply.stop_reason == "max_tokens":
        message = {**message, "content": [_whole(block) for block in message["content"]]}
    uses = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    wanted = uses if reply.stop_reason == "tool_use" else []
    draft.put(calls=[new_call(use) for use in wanted], reply=replace(reply, message=None))
    append(draft, message)


def _whole(block: dict[str, JSON]) -> dict[str, JSON]:
    if "toolUse" not in block:
        return block
    return {"text": CUT.format(name=block["toolUse"].get("name", ""))}


def taken(draft: Draft) -> None:
    """Run the tools the reply asks for, ask for the structured output, or end."""
    reply = _reply(draft)
    structured = draft.definition.structured
    draft.put(reply=None)
    if reply.stop_reason == "max_tokens":
        draft.put(phase=Phase.BEFORE_MODEL, attempt=draft.state.attempt + 1)
        draft.fail(failures.record(MaxTokensReached()))
    elif draft.state.calls:
        draft.go_on(phase=Phase.TOOLS, round=1, announced=False)
    elif reply.stop_reason == "end_turn" and structured and draft.state.structured is None:
        _force(draft)
    else:
        draft.put(phase=Phase.ENDED)
        draft.conclude(reply.stop_reason)


def _force(draft: Draft) -> None:
    if draft.state.forced:
        draft.put(phase=Phase.BEFORE_MODEL, attempt=draft.state.attempt + 1)
        draft.fail(failures.record(StructuredOutputMissing()))
        return
    message = {"role": "user", "content": [{"text": FORCE}]}
    draft.go_on(phase=Phase.PROMPT, prompt=[message], forced=True)


def results(draft: Draft) -> None:
    """Make the results of the batch part of the conversation, as one message."""
    content = [{"toolResult": call.result} for call in draft.state.calls]
    structured = next((c.structured for c in draft.state.calls if c.structured is not None), None)
    kept = {k: q for k, q in draft.state.questions.items() if q.scope == "before_invocation"}
    draft.put(calls=[], questions=kept, structured=structured)
    append(draft, {"role": "user", "content": content})


def resulted(draft: Draft) -> None:
    """Go on with the next turn, unless the batch ended the invocation."""
    if draft.state.structured is not None:
        draft.put(phase=Phase.ENDED)
        draft.conclude("tool_use")
    elif draft.state.reply is not None:
        draft.go_on(phase=Phase.REPLIED)
    else:
        begin(draft)
