"""An agent's memory across runs: what an invocation takes from its session, and what it adds.

Pure. An invocation begins with what completed invocations have left and adds its own exchange when
its node completes; two that overlap both add theirs, see docs/decisions/0013-sessions.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner import codec
from runner.agent.memory import begun, unfinished
from runner.agent.state import AgentState, Recalled
from runner.outcomes import Remembered, Saved, Session

JSON = Any


def begin(
    session_id: str, session: Session, visit: int, *, own: AgentState, prompt: list[JSON]
) -> AgentState:
    """Begin an invocation in a session; the state and messages of `own` are what the agent was made with."""
    user = {**own.user, **session.state}
    length = own.length + len(session.messages)
    state = begun(replace(own, user=user, length=length), visit, prompt)
    return replace(state, session=Recalled(session_id, length, user))


def added(state: AgentState, saved: Saved) -> tuple[Saved, Remembered | None]:
    """Return what a completed invocation leaves: in its node, and in its session if it has one."""
    recalled = state.session
    if recalled is None:
        return saved, None
    changed = {key: value for key, value in state.user.items() if not _same(recalled.user, key, value)}
    gone = [key for key in recalled.user if key not in state.user]
    # Calls that the invocation left open get their results here: the next one can't know of them.
    closed = replace(saved, messages=[*saved.messages, *unfinished(state)])
    return closed, Remembered(recalled.id, recalled.first, changed, gone)


def _same(before: dict[str, JSON], key: str, value: JSON) -> bool:
    return key in before and codec.dump_json(before[key]) == codec.dump_json(value)
