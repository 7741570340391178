"""Ids of tool calls, which models write, never tie two calls to one question, answer or key."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runner.agent import Agent, effects, tool
from runner.agent.machine.state import from_document
from runner.agent.models.protocol import own_ids
from runner.agent.models.scripted import ScriptedModel
from runner.errors import CorruptDocument
from runner.hooks import AfterToolCallEvent
from tests.agent.visits import Hooks, Node, done, use

IDS = st.text("a_12.:/%", min_size=1, max_size=6) | st.sampled_from(
    ["a", "a_1_2", "t", "t.2", "t:2", "t/t"]
)
REPLIES = st.lists(st.lists(IDS, min_size=1, max_size=5), min_size=1, max_size=3)


@pytest.mark.full
@given(REPLIES)
@example([["x"], ["a_1_2", "a", "a"]])
@example([["a"], ["a_1_0", "a"], ["a_1_0", "a_1_0_2_0", "a_1_0", "a"]])
def test_every_call_of_a_conversation_has_an_id_of_its_own(replies) -> None:
    """Also where a model writes what makes another id unique; an id that is free stays as it is."""
    used: set[str] = set()
    for index, reply in enumerate(replies):
        before = set(used)
        message = own_ids({"content": [use("t", key) for key in reply]}, used, index)
        ids = [block["toolUse"]["toolUseId"] for block in message["content"]]
        assert len(set(ids)) == len(ids)
        assert not before & set(ids)
        assert (ids[0] == reply[0]) == (reply[0] not in before)


class Calls:
    """An agent and one that it calls as a tool; every call is made twice, and notes its key."""

    def __init__(self, outer: list[str], inner: list[str], *, asks: bool = False) -> None:
        self.keys: Counter[str] = Counter()
        keys = self.keys

        @tool(context=True)
        def pay(tool_context) -> str:
            """Pay."""
            if asks:
                tool_context.interrupt("ok?")
            keys[tool_context.idempotency_key] += 1
            return "paid"

        def again(event) -> None:
            event.retry = event.attempt == 1 and not asks

        def make() -> Agent:
            hooks, replies = (
                [Hooks((AfterToolCallEvent, again))],
                [[use("pay", key) for key in inner], "done"],
            )
            inside = Agent("inside", ScriptedModel(replies), [pay], hooks=hooks)
            calls = [use("pay", key) for key in outer] + [
                use("inside", key, input="go") for key in outer
            ]
            return Agent("a", ScriptedModel([calls, "done"]), [pay, inside], hooks=hooks)

        self.node = Node(make)


@pytest.mark.full
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(IDS, min_size=1, max_size=3), st.lists(IDS, min_size=1, max_size=3))
@example(["t", "t.2", "t:2"], ["t", "2", "t.2"])
def test_every_attempt_of_every_call_has_a_key_of_its_own(outer, inner) -> None:
    """Also in an agent that is a tool, and where ids look like attempts of others."""
    calls = Calls(outer, inner)
    done(calls.node.run())
    assert len(calls.keys) == 2 * len(outer) + 2 * len(outer) * 2 * len(inner)
    assert set(calls.keys.values()) == {1}


@pytest.mark.full
def test_a_separator_that_ids_may_have_lets_keys_collide(monkeypatch) -> None:
    """Control: with a dot before its number, the second attempt of t has the key of the first one of t.2."""
    monkeypatch.setattr(
        effects, "call_name", lambda key, attempt: key if attempt == 1 else f"{key}.{attempt}"
    )
    calls = Calls(["t", "t.2"], ["a"])
    done(calls.node.run())
    assert 2 in calls.keys.values()


@pytest.mark.full
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(IDS, min_size=1, max_size=3), st.lists(IDS, min_size=1, max_size=3))
@example(["t", "t_0_1", "t/tool:2", "t_0_1/tool:t"], ["2", "t"])
def test_every_call_asks_a_question_of_its_own(outer, inner) -> None:
    """Also where the id of a call looks like the way to one in an agent that is a tool."""
    calls = Calls(outer, inner, asks=True)
    calls.node.run()
    assert len(calls.node.open) == len(outer) + len(outer) * len(inner)


def test_a_state_in_which_two_calls_have_one_id_is_refused() -> None:
    """It is not read; the same state with two ids is."""
    calls = Calls(["a", "b"], ["c"], asks=True)
    calls.node.run()
    document = json.loads(calls.node.document or b"")
    assert [call.id for call in from_document(document).calls][:2] == ["a", "b"]
    document["calls"][1]["use"]["toolUseId"] = "a"
    with pytest.raises(CorruptDocument, match="one id"):
        from_document(document)
