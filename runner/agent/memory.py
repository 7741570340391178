"""How an execution begins: with no past, with the memory of earlier visits, or where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runner.agent.batch import error_result
from runner.agent.prompts import merged
from runner.agent.state import AgentState, Stage, fresh, invoked, restored

JSON = Any

UNFINISHED = "The call was not finished: the invocation that made it ended before."


def opened(
    document: dict[str, JSON] | None,
    messages: list[JSON],
    visit: int,
    *,
    prompt: Callable[[], list[JSON]],
    user: dict[str, JSON],
) -> AgentState:
    """Return the state to go on from; `prompt` and `user` count where a new invocation begins.

    Raises:
        CorruptDocument: the stored document can't be read.
    """
    past = fresh(0, user, len(messages)) if document is None else restored(document)
    past = replace(past, length=len(messages))
    if document is not None and past.visit == visit:
        return past
    return begun(past, visit, prompt())


def begun(past: AgentState, visit: int, prompt: list[JSON]) -> AgentState:
    """Begin a new invocation; calls that the last one left open get a result, as every call must."""
    return invoked(past, visit, merged(unfinished(past), prompt))


def unfinished(state: AgentState) -> list[JSON]:
    """Return the message with the results of calls that an invocation left open, if there are any."""
    results = [call.result or error_result(call.id, UNFINISHED) for call in state.calls]
    return [{"role": "user", "content": [{"toolResult": result} for result in results]}] if results else []


def is_over(state: AgentState) -> bool:
    """Tell whether the last invocation ended, so that a new input may come."""
    return state.stage is Stage.DONE
