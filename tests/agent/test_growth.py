"""What an agent computes for a turn, counted in calls of functions: the same after a long conversation."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import pytest

from runner.agent import Agent, tool
from runner.agent.models import protocol
from runner.agent.models.protocol import ProviderMessages
from runner.agent.models.scripted import ScriptedModel
from tests.agent.visits import Node, done, use

TURNS, COUNTED = 400, 50
"""Turns of an agent, and those of its beginning and of its end that are counted."""


class Counting:
    """A model that calls a tool in each turn, and counts the calls of functions of early and of last ones."""

    def __init__(self, turns: int, counted: int) -> None:
        self._turns, self._counted = turns, counted
        self.turn = self._calls = 0
        self.counts: list[int] = []

    def _count(self, _: FrameType, event: str, __: object) -> None:
        self._calls += event in {"call", "c_call"}

    async def stream(self, *_: Any, **options: Any) -> AsyncIterator[Any]:
        """Call the tool again, or end."""
        self.turn += 1
        if self.turn in {self._counted + 2, self._turns}:
            sys.setprofile(None)
            self.counts.append(self._calls)
        if self.turn in {2, self._turns - self._counted}:
            self._calls = 0
            sys.setprofile(self._count)
        reply = (
            use("look", f"t{self.turn}", number=self.turn)
            if self.turn < self._turns
            else "done"
        )
        async for chunk in ScriptedModel([reply]).stream([], **options):
            yield chunk


@tool
async def look(number: int) -> str:
    """Look at something."""
    return f"{number:0200}"


def calls_of_turns(
    size: int | None, turns: int = TURNS, counted: int = COUNTED
) -> tuple[int, int]:
    """Run an agent of many turns; count the calls of its first turns and of its last ones."""
    model = Counting(turns, counted)
    done(Node(lambda: Agent("a", model, tools=[look], conversation_window=size)).run())
    first, last = model.counts
    return first, last


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 10])
def test_a_turn_costs_the_same_in_a_long_conversation(size: int | None) -> None:
    """An agent's last turns make as many calls as its first ones, also where the window is small."""
    first, last = calls_of_turns(size)

    assert last <= first * 1.05


@pytest.mark.slow
def test_to_prepare_all_messages_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: an agent that prepares its whole conversation for each call is no longer flat."""
    read = ProviderMessages.read

    def read_all(conversation: ProviderMessages, messages: list[Any]) -> None:
        conversation.__init__()  # type: ignore[misc] - forgets what it has read
        read(conversation, messages)

    monkeypatch.setattr(ProviderMessages, "read", read_all)
    first, last = calls_of_turns(None, 120, 20)

    assert last > first * 1.5


@pytest.mark.full
def test_a_call_prepares_only_new_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call prepares the input, each later one a reply and its results."""
    prepared: list[int] = []
    model, message = Counting(20, 5), protocol._message

    def counted(entry: dict[str, Any]) -> dict[str, Any]:
        prepared.append(model.turn)
        return message(entry)

    monkeypatch.setattr(protocol, "_message", counted)
    done(Node(lambda: Agent("a", model, tools=[look])).run())

    assert Counter(prepared) == {turn: 2 if turn else 1 for turn in range(20)}


def test_messages_are_as_if_all_were_prepared() -> None:
    """Also after the last message was replaced, a window began, and two messages of the user met."""
    user: list[Any] = [{"role": "user", "content": [{"text": f"u{i}"}]} for i in range(4)]
    reply = {"role": "assistant", "content": [use("look", "t1")]}
    redacted = {"role": "user", "content": [{"text": "[removed]"}]}
    steps: list[tuple[list[Any], int]] = [
        ([user[0]], 0),
        ([user[0], user[1]], 0),
        ([user[0], redacted, reply], 0),
        ([user[0], redacted, reply, user[2], user[3]], 0),
        ([user[0], redacted, reply, user[2], user[3]], 3),
    ]
    conversation, lengths = ProviderMessages(), []
    for messages, start in steps:
        another = ProviderMessages()
        for each in (conversation, another):
            each.read(messages)
        prepared = conversation.prepare(start)
        lengths.append(len(prepared))
        assert prepared == another.prepare(start)
        assert (conversation.tool_use_ids, conversation.cuts) == (
            another.tool_use_ids,
            another.cuts,
        )
    assert lengths == [1, 1, 2, 3, 1]
    assert (conversation.tool_use_ids, conversation.cuts) == ({"t1"}, [1, 3, 4])
