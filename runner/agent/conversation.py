"""An agent's conversation: reading input as messages, and the past that an invocation begins with.

Pure. In a session an invocation begins with the messages of completed invocations and adds its own
when its node completes; overlapping ones both add theirs, see docs/decisions/0006-sessions.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.agent.machine.state import (
    AgentState,
    SessionStart,
    from_document,
    new_invocation,
    new_state,
)
from runner.agent.machine.tool_calls import error_result
from runner.errors import UsageError
from runner.records import codec
from runner.records.checkpoints import Saved, Session, SessionUpdate
from runner.records.codec import JSON, JSONObject

ROLES = frozenset({"user", "assistant"})
UNFINISHED = "The call was not finished: the invocation that made it ended before."


# -- messages ----------------------------------------------------------------------------------------


def as_messages(prompt: Any) -> list[JSON]:
    """Read a text, content blocks or whole messages as packed messages; None gives an empty list.

    Raises:
        UsageError: the prompt is none of these.
    """
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "content": [{"text": codec.pack(prompt, "prompt")}]}]
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise UsageError(
            f"an agent takes a text, content blocks or messages, not {codec.kind_of(prompt)}."
        )
    if all(_is_message(item) for item in prompt):
        messages: list[JSON] = codec.pack([dict(item) for item in prompt], "messages")
        return messages
    if all(isinstance(item, Mapping) and "role" not in item for item in prompt):
        return [{"role": "user", "content": codec.pack(prompt, "prompt")}]
    raise UsageError(
        "an agent's input mixes messages with something else; send either messages or blocks."
    )


def _is_message(item: Any) -> bool:
    return (
        isinstance(item, Mapping)
        and item.get("role") in ROLES
        and isinstance(item.get("content"), list)
    )


def redacted_content(message: JSONObject, text: str) -> list[JSON]:
    """Replace a message's text; tool results keep their places, because every call needs one."""
    blocks = [block for block in message["content"] if "toolResult" in block]
    if not blocks:
        return [{"text": text}]
    return [
        {"toolResult": {**block["toolResult"], "content": [{"text": text}]}} for block in blocks
    ]


# -- the start of an invocation ----------------------------------------------------------------------


def past_state(document: JSONObject | None, user_state: JSONObject, length: int) -> AgentState:
    """Return the stored state, or the state of an agent without a past, with `length` messages.

    Raises:
        CorruptDocument: the stored document can't be read.
    """
    if document is None:
        return new_state(0, user_state, length)
    return replace(from_document(document), length=length)


def begin(
    past: AgentState, visit: int, prompt: list[JSON], messages: Sequence[JSON]
) -> AgentState:
    """Begin a new invocation; calls that the messages leave open get a result, as every call must."""
    missing_results = _unfinished_results(past, messages)
    if missing_results and prompt and prompt[0]["role"] == "user":
        # Providers refuse two user messages in a row.
        message = {
            "role": "user",
            "content": [*missing_results[0]["content"], *prompt[0]["content"]],
        }
        return new_invocation(past, visit, [message, *prompt[1:]])
    return new_invocation(past, visit, [*missing_results, *prompt])


def begin_in_session(
    past: AgentState,
    visit: int,
    prompt: list[JSON],
    key: str,
    session: Session,
    *,
    own: list[JSON],
) -> AgentState:
    """Begin an invocation in a session; `past` has the agent's original state and `own` messages."""
    user_state = {**past.user_state, **session.state}
    length = past.length + len(session.messages)
    past = replace(past, user_state=user_state, length=length, window=0, calls=[])
    return replace(
        begin(past, visit, prompt, [*own, *session.messages]),
        session=SessionStart(key, length, user_state),
    )


def _unfinished_results(state: AgentState, messages: Sequence[JSON] = ()) -> list[JSON]:
    """Return the message with results for the calls that an invocation or messages left open, if any."""
    results = [call.result or error_result(call.id, UNFINISHED) for call in state.calls]
    if not results and messages:
        uses = [block["toolUse"] for block in messages[-1]["content"] if "toolUse" in block]
        results = [error_result(use["toolUseId"], UNFINISHED) for use in uses]
    if results:
        return [{"role": "user", "content": [{"toolResult": result} for result in results]}]
    return []


# -- its end -----------------------------------------------------------------------------------------


def with_session(state: AgentState, checkpoint: Saved) -> tuple[Saved, SessionUpdate | None]:
    """Return the checkpoint that a completed invocation leaves, and its addition to the session."""
    start = state.session
    if start is None:
        return checkpoint, None
    changes = {
        k: v
        for k, v in state.user_state.items()
        if k not in start.user_state
        or codec.dump_json(start.user_state[k]) != codec.dump_json(v)
    }
    deletions = [key for key in start.user_state if key not in state.user_state]
    # Calls left open get their results here, because the next invocation can't know of them.
    closed_checkpoint = replace(
        checkpoint, messages=[*checkpoint.messages, *_unfinished_results(state)]
    )
    return closed_checkpoint, SessionUpdate(start.id, start.length, changes, deletions)
