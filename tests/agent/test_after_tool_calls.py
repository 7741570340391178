"""Interrupts after a tool call: what is asked, what is replayed, and what is not repeated."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runner.agent import Agent, tool
from runner.agent.models.scripted import ScriptedModel
from runner.errors import CorruptDocument
from runner.hooks import (
    AfterInvocationEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
)
from runner.records.outcomes import Interrupted
from tests.agent.visits import Hooks, Node, done, failed, use


class PolicyError(Exception):
    """An error of the user's, with more than a message."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = code


class Scene:
    """Tools that record what they do, and a node that runs an agent with them."""

    def __init__(
        self, *uses: dict[str, Any], hooks: tuple[Any, ...] = (), **options: Any
    ) -> None:
        self.ran: list[str] = []
        self.seen: list[Any] = []
        self.failures = 0
        scene = self

        @tool
        def plain(word: str = "") -> str:
            """Say a word."""
            scene.ran.append(f"plain {word}".strip())
            return f"ok {word}".strip()

        @tool
        def boom(word: str = "") -> str:
            """Fail as often as the scene says."""
            scene.ran.append(f"boom {word}".strip())
            if scene.failures:
                scene.failures -= 1
                raise PolicyError("it broke", 7)
            return "repaired"

        @tool
        def mute() -> str:
            """Fail without a word."""
            scene.ran.append("mute")
            raise ValueError

        tools = [plain, boom, mute]
        script = ScriptedModel([list(uses), "the end"])
        self.node = Node(
            lambda: Agent("scene", script, tools, hooks=[Hooks(*hooks)], **options)
        )


def after(callback: Any) -> tuple[Any, Any]:
    return (AfterToolCallEvent, callback)


def ask(event: AfterToolCallEvent) -> None:
    """Ask about the result and put the answer in its place."""
    answer = event.interrupt("review", reason=event.result)
    event.result = {"status": "success", "content": [{"text": f"person said {answer}"}]}


# -- the four paths ----------------------------------------------------------------------------------


def cancel(event: BeforeToolCallEvent) -> None:
    event.cancel_tool = "policy says no"


PATHS = {
    "success": ([use("plain", word="a")], ()),
    "exception": ([use("boom")], ()),
    "cancelled": ([use("plain")], ((BeforeToolCallEvent, cancel),)),
    "unknown": ([use("nobody")], ()),
}


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("executor", ["concurrent", "sequential"])
def test_every_path_can_ask_and_shows_the_same_event_again(path: str, executor: str) -> None:
    """All four ends of a call ask alike, and the replay shows the same call."""
    seen: list[Any] = []

    def watch(event: AfterToolCallEvent) -> None:
        shown = (
            event.tool_use,
            event.result,
            repr(event.exception),
            event.cancel_message,
            event.selected_tool is None,
            event.duration is None,
        )
        seen.append(shown)
        ask(event)

    uses, hooks = PATHS[path]
    scene = Scene(*uses, hooks=(*hooks, after(watch)), tool_executor=executor)
    scene.failures = 1
    assert isinstance(scene.node.run(), Interrupted)
    ran = list(scene.ran)
    done(scene.node.resume(review="yes"))
    assert scene.ran == ran
    assert seen[0] == seen[1]
    assert scene.node.texts == ["person said yes"]


def test_a_parked_call_has_no_result_anywhere() -> None:
    """A call that waits for its review has no visible result, and its questions are published."""
    partial: list[Any] = []
    hooks = (
        after(lambda event: ask(event) if event.tool_use["input"]["word"] == "b" else None),
        (
            AfterToolsEvent,
            lambda event: partial.append(
                [b["toolResult"]["toolUseId"] for b in event.message["content"]]
            ),
        ),
    )
    scene = Scene(use("plain", "t1", word="a"), use("plain", "t2", word="b"), hooks=hooks)
    scene.node.run()
    assert partial == [["t1"]]
    assert scene.node.results == []
    assert scene.node.names == ["review"]
    done(scene.node.resume(review="fine"))
    assert partial[-1] == ["t1", "t2"]
    assert [r["toolUseId"] for r in scene.node.results] == ["t1", "t2"]


# -- what a snapshot must carry ----------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("part", ["result", "exception", "cancel_message", "kind", "duration"])
def test_a_malformed_snapshot_is_refused(part: str) -> None:
    """A stored snapshot with a part missing is an error that names it, never a guess."""
    scene = Scene(use("plain"), hooks=(after(ask),))
    scene.node.run()
    assert scene.node.document is not None
    document = json.loads(scene.node.document)
    del document["calls"][0]["snapshot"][part]
    scene.node.document = json.dumps(document).encode()
    scene.node.answer("review", "yes")
    with pytest.raises(CorruptDocument, match=part):
        scene.node.run()


@pytest.mark.parametrize(
    "change", [{"v": 2}, {"stranger": 1}, {"calls": None}, {"phase": "elsewhere"}]
)
def test_a_document_of_another_form_is_refused(change: dict[str, Any]) -> None:
    """Another version, an unknown field or an impossible value is an error, never a guess."""
    scene = Scene(use("plain"), hooks=(after(ask),))
    scene.node.run()
    assert scene.node.document is not None
    scene.node.document = json.dumps({**json.loads(scene.node.document), **change}).encode()
    scene.node.answer("review", "yes")
    with pytest.raises(CorruptDocument, match=next(iter(change))):
        scene.node.run()
    assert scene.ran == ["plain"]


def test_interrupt_wins_over_retry_in_the_same_pass() -> None:
    """A `retry` set before the question counts for nothing."""

    def both(event: AfterToolCallEvent) -> None:
        if not event.is_replay:
            event.retry = True
        event.interrupt("stop")

    scene = Scene(use("plain"), hooks=(after(both),))
    scene.node.run()
    done(scene.node.resume(stop="go"))
    assert scene.ran == ["plain"]


# -- replay ------------------------------------------------------------------------------------------


def test_only_newly_answered_calls_are_replayed() -> None:
    """A partial answer replays its own call alone; the other stays parked untouched."""
    shown: list[str] = []

    def review(event: AfterToolCallEvent) -> None:
        word = event.tool_use["input"]["word"]
        shown.append(word)
        event.interrupt(f"review_{word}")

    scene = Scene(use("plain", word="a"), use("plain", word="b"), hooks=(after(review),))
    scene.node.run()
    assert sorted(shown) == ["a", "b"]
    scene.node.resume(review_a=1)
    assert shown[2:] == ["a"]
    assert scene.node.names == ["review_b"]
    done(scene.node.resume(review_b=1))
    assert shown[3:] == ["b"]
    assert sorted(scene.ran) == ["plain a", "plain b"]


def test_an_execution_without_a_new_answer_runs_nothing() -> None:
    """Woken without an answer, the agent asks the same again and no callback runs."""
    shown: list[int] = []

    def review(event: AfterToolCallEvent) -> None:
        shown.append(1)
        event.interrupt("review")

    scene = Scene(use("plain"), hooks=(after(review),))
    first = scene.node.run()
    again = scene.node.run()
    assert isinstance(first, Interrupted)
    assert isinstance(again, Interrupted)
    assert [q.id for q in again.interrupts] == [q.id for q in first.interrupts]
    assert shown == [1]


def test_a_replay_is_marked_as_one() -> None:
    """`is_replay` and `attempt` show a callback which call of it this is."""
    seen: list[tuple[bool, int]] = []

    def review(event: AfterToolCallEvent) -> None:
        seen.append((event.is_replay, event.attempt))
        event.retry = event.interrupt("review") == "again"

    scene = Scene(use("plain"), hooks=(after(review),))
    scene.node.run()
    scene.node.resume(review="again")
    done(scene.node.resume(review="enough"))
    assert seen == [(False, 1), (True, 1), (False, 2), (True, 2)]


def test_a_tool_put_in_place_by_a_callback_is_not_mistaken_for_the_agents_own() -> None:
    """The replay shows the replacement's absence rather than the tool of the same name."""
    shown: list[Any] = []

    @tool(name="plain")
    def stand_in(word: str = "") -> str:
        """Stand in."""
        return f"stand-in {word}"

    def swap(event: BeforeToolCallEvent) -> None:
        event.selected_tool = stand_in

    def review(event: AfterToolCallEvent) -> None:
        shown.append(event.selected_tool)
        event.interrupt("review")

    scene = Scene(use("plain", word="x"), hooks=((BeforeToolCallEvent, swap), after(review)))
    scene.node.run()
    done(scene.node.resume(review=1))
    assert shown == [stand_in, None]
    assert scene.node.texts[0] == "stand-in x"


# -- batches -----------------------------------------------------------------------------------------


def test_a_sequential_batch_stops_at_a_call_that_waits() -> None:
    """Nothing after a call that waits starts, also when it asks again in its replay."""

    def review(event: AfterToolCallEvent) -> None:
        if event.tool_use["input"]["word"] == "a":
            event.interrupt("one")
            event.interrupt("two")

    scene = Scene(
        use("plain", word="a"),
        use("plain", word="b"),
        hooks=(after(review),),
        tool_executor="sequential",
    )
    scene.node.run()
    assert scene.ran == ["plain a"]
    scene.node.resume(one=1)
    assert scene.ran == ["plain a"]
    done(scene.node.resume(two=1))
    assert scene.ran == ["plain a", "plain b"]


def test_before_tools_is_not_fired_for_replays_alone() -> None:
    """A resume that only replays fires no BeforeTools; one with calls left fires it with those."""
    announced: list[list[str]] = []

    def note(event: BeforeToolsEvent) -> None:
        announced.append([block["toolUse"]["toolUseId"] for block in event.message["content"]])

    def review(event: AfterToolCallEvent) -> None:
        if event.tool_use["toolUseId"] == "t1":
            event.interrupt("review")

    hooks = ((BeforeToolsEvent, note), after(review))
    scene = Scene(use("plain", "t1"), use("plain", "t2"), hooks=hooks)
    scene.node.run()
    done(scene.node.resume(review=1))
    assert announced == [["t1", "t2"]]

    announced.clear()
    scene = Scene(
        use("plain", "t1"), use("plain", "t2"), hooks=hooks, tool_executor="sequential"
    )
    scene.node.run()
    done(scene.node.resume(review=1))
    assert announced == [["t1", "t2"], ["t2"]]


def test_cancelling_the_rest_of_a_batch_leaves_parked_calls_alone() -> None:
    """`cancel` of BeforeTools on a resume refuses what hasn't started, never what waits."""

    def refuse(event: BeforeToolsEvent) -> None:
        event.cancel = len(event.message["content"]) == 1 and "enough"

    def review(event: AfterToolCallEvent) -> None:
        if event.tool_use["toolUseId"] == "t1":
            ask(event)

    scene = Scene(
        use("plain", "t1"),
        use("plain", "t2"),
        hooks=((BeforeToolsEvent, refuse), after(review)),
        tool_executor="sequential",
    )
    scene.node.run()
    done(scene.node.resume(review="yes"))
    assert scene.node.texts == [
        "person said yes",
        "enough",
    ]


def test_a_call_retried_in_a_replay_is_announced_with_the_others_before_it_runs() -> None:
    """All replays come first, then one BeforeTools with every call that is to run."""
    lines: list[str] = []

    def note(event: BeforeToolsEvent) -> None:
        lines.append(
            "tools " + " ".join(b["toolUse"]["toolUseId"] for b in event.message["content"])
        )

    def review(event: AfterToolCallEvent) -> None:
        if event.attempt == 1:
            event.interrupt("review_" + event.tool_use["toolUseId"])
            lines.append("after " + event.tool_use["toolUseId"])
            event.retry = True

    hooks = ((BeforeToolsEvent, note), after(review))
    scene = Scene(use("plain", "t1", word="a"), use("plain", "t2", word="b"), hooks=hooks)
    scene.node.run()
    lines.clear()
    done(scene.node.resume(review_t1=1, review_t2=1))
    assert sorted(lines[:2]) == ["after t1", "after t2"]
    assert lines[2:] == ["tools t1 t2"]
    assert sorted(scene.ran) == ["plain a", "plain a", "plain b", "plain b"]


def test_once_a_callback_broke_no_call_is_retried() -> None:
    """A retry that comes after another callback raised waits for the node's next attempt."""
    broke = asyncio.Event()
    fail = [True]

    async def review(event: AfterToolCallEvent) -> None:
        if event.tool_use["toolUseId"] == "t1" and fail:
            fail.pop()
            broke.set()
            raise RuntimeError("no")
        if event.tool_use["toolUseId"] == "t2" and event.attempt == 1:
            await broke.wait()
            event.retry = True

    scene = Scene(
        use("plain", "t1", word="a"), use("plain", "t2", word="b"), hooks=(after(review),)
    )
    failed(scene.node.run())
    assert sorted(scene.ran) == ["plain a", "plain b"]
    done(scene.node.run())
    assert sorted(scene.ran) == ["plain a", "plain b", "plain b"]


# -- retry after a cancel, results, errors -----------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("attribute", ["retry", "retry_cancelled"])
@pytest.mark.parametrize("asks", [False, True])
def test_a_cancelled_call_is_run_only_when_asked_for_explicitly(
    attribute: str, asks: bool
) -> None:
    """`retry` is ignored for a cancelled call, `retry_cancelled` runs it: both ways alike."""

    def policy(event: BeforeToolCallEvent) -> None:
        event.cancel_tool = event.attempt == 1

    def judge(event: AfterToolCallEvent) -> None:
        if event.cancel_message is not None:
            event.interrupt(
                "overrule", reason=event.cancel_message, response=None if asks else "yes"
            )
            setattr(event, attribute, True)

    scene = Scene(use("plain"), hooks=((BeforeToolCallEvent, policy), after(judge)))
    scene.node.run()
    if asks:
        scene.node.resume(overrule=True)
    done(scene.node.outcome)
    explicit = attribute == "retry_cancelled"
    text = "ok" if explicit else "tool cancelled by user"
    assert scene.node.texts == [text]
    assert scene.ran == (["plain"] if explicit else [])


def test_a_result_with_a_foreign_id_gets_the_id_of_its_call() -> None:
    """One result per tool use, always with its id."""

    def forge(event: AfterToolCallEvent) -> None:
        event.result = {"toolUseId": "other", "status": "success", "content": [{"text": "x"}]}

    scene = Scene(use("plain", "t1"), hooks=(after(forge),))
    done(scene.node.run())
    assert [r["toolUseId"] for r in scene.node.results] == ["t1"]


def test_an_error_in_a_replayed_callback_ends_the_invocation() -> None:
    """A callback that raises in a replay fails the agent, too; no result is made of it."""

    def bad(event: AfterToolCallEvent) -> None:
        event.interrupt("first")
        raise RuntimeError("callback broke")

    scene = Scene(use("plain"), hooks=(after(bad),))
    scene.node.run()
    outcome = scene.node.resume(first=1)
    assert str(failed(outcome).error) == "RuntimeError: callback broke"
    assert scene.node.results == []
    assert scene.ran == ["plain"]


def test_a_pass_that_only_waits_also_ends_with_after_invocation() -> None:
    """AfterInvocation fires when the agent stops to wait, with the interrupted result."""
    reasons: list[str] = []
    hooks = (
        (AfterInvocationEvent, lambda event: reasons.append(event.result.stop_reason)),
        after(ask),
    )
    scene = Scene(use("plain"), hooks=hooks)
    scene.node.run()
    done(scene.node.resume(review=1))
    assert reasons == ["interrupt", "end_turn"]


def test_attempts_of_a_call_can_be_bounded() -> None:
    """With `tool_attempts` a callback that always retries gets the last result in the end."""

    def always(event: AfterToolCallEvent) -> None:
        event.retry = True

    scene = Scene(use("boom"), hooks=(after(always),), tool_attempts=3)
    scene.failures = 9
    done(scene.node.run())
    assert scene.ran == ["boom"] * 3
    assert [r["status"] for r in scene.node.results] == ["error"]
