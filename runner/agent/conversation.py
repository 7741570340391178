"""An agent's conversation: how input becomes messages, and what of the past an invocation begins with.

Pure. In a session an invocation begins with what completed invocations have left and adds its own
exchange when its node completes; two that overlap both add theirs, see docs/decisions/0006-sessions.md.
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
from runner.records.checkpoints import Remembered, Saved, Session
from runner.records.codec import JSON

ROLES = frozenset({"user", "assistant"})
UNFINISHED = "The call was not finished: the invocation that made it ended before."


# -- messages ----------------------------------------------------------------------------------------


def as_messages(prompt: Any) -> list[JSON]:
    """Read a text, content blocks or whole messages as packed messages; None is no message.

    Raises:
        UsageError: it is none of these.
    """
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "content": [{"text": codec.pack(prompt, "prompt")}]}]
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise UsageError(
            f"an agent takes a text, content blocks or messages, not a {type(prompt).__name__}."
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


def redacted_content(message: dict[str, JSON], text: str) -> list[JSON]:
    """Replace the text of a message; results of tools keep their places, because every call needs one."""
    blocks = [block for block in message["content"] if "toolResult" in block]
    if not blocks:
        return [{"text": text}]
    return [
        {"toolResult": {**block["toolResult"], "content": [{"text": text}]}} for block in blocks
    ]


# -- the start of an invocation ----------------------------------------------------------------------


def past_state(
    document: dict[str, JSON] | None, user_state: dict[str, JSON], length: int
) -> AgentState:
    """Return the stored state, or that of an agent without a past; `length` counts its messages.

    Raises:
        CorruptDocument: the stored document can't be read.
    """
    if document is None:
        return new_state(0, user_state, length)
    return replace(from_document(document), length=length)


def begin(past: AgentState, visit: int, prompt: list[JSON]) -> AgentState:
    """Begin a new invocation; calls that the last one left open get a result, as every call must."""
    missing_results = _unfinished_results(past)
    if missing_results and prompt and prompt[0]["role"] == "user":
        # Providers refuse two messages of the user in a row.
        message = {
            "role": "user",
            "content": [*missing_results[0]["content"], *prompt[0]["content"]],
        }
        return new_invocation(past, visit, [message, *prompt[1:]])
    return new_invocation(past, visit, [*missing_results, *prompt])


def begin_in_session(
    past: AgentState, visit: int, prompt: list[JSON], session_id: str, session: Session
) -> AgentState:
    """Begin an invocation in a session; the state and length of `past` are those the agent was made with."""
    user_state = {**past.user_state, **session.state}
    length = past.length + len(session.messages)
    past = replace(past, user_state=user_state, length=length, window=0, calls=[])
    return replace(
        begin(past, visit, prompt), session=SessionStart(session_id, length, user_state)
    )


def _unfinished_results(state: AgentState) -> list[JSON]:
    """Return the message with the results of calls that an invocation left open, if there are any."""
    results = [call.result or error_result(call.id, UNFINISHED) for call in state.calls]
    return (
        [{"role": "user", "content": [{"toolResult": result} for result in results]}]
        if results
        else []
    )


# -- its end -----------------------------------------------------------------------------------------


def with_session(state: AgentState, checkpoint: Saved) -> tuple[Saved, Remembered | None]:
    """Return what a completed invocation leaves in its node, and in its session if it has one."""
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
    # Calls that the invocation left open get their results here: the next one can't know of them.
    closed_checkpoint = replace(
        checkpoint, messages=[*checkpoint.messages, *_unfinished_results(state)]
    )
    return closed_checkpoint, Remembered(start.id, start.length, changes, deletions)
