"""The loop: what stops, what is stored, and what runs again after an answer or a crash."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from runner.agent import Agent, AgentResult, ToolContext, tool
from runner.agent.models.scripted import ScriptedModel
from runner.errors import LeaseLost, UnstorableError
from runner.hooks import (
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
)
from tests.agent.visits import Hooks, Killed, Node, done, failed, scripted, use
from tests.waiting import wait_until


class Ledger:
    """Tools that write down what they do, and the model calls made."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.keys: list[str] = []
        self.asked_model = 0
        ledger = self

        @tool
        def note(word: str) -> str:
            """Note a word."""
            ledger.ran.append(word)
            return f"noted {word}"

        @tool
        async def later(word: str) -> dict[str, str]:
            """Note a word, asynchronously."""
            ledger.ran.append(word)
            return {"later": word}

        @tool(context=True)
        def ask(word: str, tool_context: ToolContext) -> str:
            """Ask about a word."""
            ledger.ran.append(f"ask {word}")
            ledger.keys.append(tool_context.idempotency_key)
            return f"{word}: {tool_context.interrupt('ask_' + word, reason=word)}"

        @tool
        def boom(word: str = "x") -> str:
            """Fail."""
            ledger.ran.append(f"boom {word}")
            raise RuntimeError(word)

        self.tools = [note, later, ask, boom]

    def model(self, *replies: Any) -> ScriptedModel:
        """A script that counts how often it is asked."""

        def counted(reply: Any) -> Any:
            def say(messages: Any) -> Any:
                del messages
                self.asked_model += 1
                return reply

            return say

        return ScriptedModel([counted(reply) for reply in replies])

    def node(self, *replies: Any, hooks: tuple[Any, ...] = (), **options: Any) -> Node:
        """A node whose agent follows the script."""
        model = self.model(*replies)
        tools = [*self.tools, *options.pop("tools", ())]
        return Node(lambda: Agent("a", model, tools, hooks=[Hooks(*hooks)], **options))


def result_of(node: Node) -> AgentResult:
    return AgentResult.from_document(done(node.outcome).result)


# -- plain turns -------------------------------------------------------------------------------------


def test_the_model_reads_of_an_unknown_tool_and_a_wrong_input() -> None:
    """The model reads what went wrong and goes on."""
    node = Ledger().node([use("nobody"), use("not a name"), use("note", word=[1])], "end")
    done(node.run())
    texts = node.texts
    assert texts[:2] == ["Unknown tool: nobody", "Unknown tool: not a name"]
    assert texts[2].startswith("Error: ValidationError - ")


def test_ids_that_a_provider_uses_twice_are_made_unique() -> None:
    """Two calls never share an id, so they never share an answer."""
    node = Ledger().node(
        [use("ask", "call_0", word="a")], [use("ask", "call_0", word="a")], "end"
    )
    node.run()
    first = node.open[0].id
    node.resume(ask_a="one")
    assert node.open[0].id != first
    done(node.resume(ask_a="two"))
    assert node.texts == ["a: one", "a: two"]
    assert len({r["toolUseId"] for r in node.results}) == 2


# -- a tool that asks --------------------------------------------------------------------------------


def test_a_hook_and_a_tool_may_use_the_same_name_and_a_tool_may_repeat_its_own() -> None:
    """The same name in a callback and in its tool are two questions; twice in one tool call is one."""

    @tool(context=True)
    def ask(tool_context: ToolContext) -> list[Any]:
        """Ask the same twice."""
        return [tool_context.interrupt("go"), tool_context.interrupt("go")]

    hooks = ((BeforeToolCallEvent, lambda event: event.interrupt("go")),)
    node = scripted([use("ask"), "end"], ask, hooks=hooks)
    node.run()
    first = node.open[0]
    node.resume(go="hook")
    assert node.open[0].id != first.id
    done(node.resume(go="tool"))
    assert node.texts[0] == '["tool","tool"]'


def test_a_question_cannot_be_swallowed() -> None:
    """`except Exception` doesn't see it; where a bare `except` does, the question counts all the same."""

    @tool(context=True)
    def careful(tool_context: ToolContext) -> str:
        """Catch every exception."""
        try:
            return str(tool_context.interrupt("careful"))
        except Exception:  # noqa: BLE001 - the point of the test
            return "swallowed"

    @tool(context=True)
    def greedy(tool_context: ToolContext) -> str:
        """Catch everything."""
        try:
            return str(tool_context.interrupt("greedy"))
        except:  # noqa: E722 - the point of the test
            return "swallowed"

    node = scripted([[use("careful"), use("greedy")], "end"], careful, greedy)
    node.run()
    assert sorted(node.names) == ["careful", "greedy"]
    done(node.resume(careful=1, greedy=2))
    assert node.texts == ["1", "2"]


def test_a_question_that_a_tool_may_not_ask_ends_the_invocation() -> None:
    """A refused `interrupt()` never becomes a tool result, not even where the tool catches the error."""

    @tool(context=True)
    def bad(tool_context: ToolContext) -> str:
        """Ask with something that can't be stored."""
        try:
            return str(tool_context.interrupt("q", reason=object()))
        except UnstorableError:
            return "swallowed"

    node = scripted([use("bad"), "end"], bad)
    assert "the reason of interrupt 'q'" in str(failed(node.run()).error)
    assert node.results == []


# -- before and around tools -------------------------------------------------------------------------


def test_a_whole_batch_can_be_refused() -> None:
    """`cancel` of BeforeTools gives every call an error result and runs no tool."""

    def refuse(event: BeforeToolsEvent) -> None:
        event.cancel = True

    ledger = Ledger()
    node = ledger.node(
        [use("note", word="a"), use("note", word="b")],
        "end",
        hooks=((BeforeToolsEvent, refuse),),
    )
    done(node.run())
    assert ledger.ran == []
    assert [r["status"] for r in node.results] == ["error", "error"]


# -- questions while others run ----------------------------------------------------------------------


def test_a_question_is_published_while_a_sibling_still_runs() -> None:
    """The question is out before the slow tool beside it has ended."""
    published = threading.Event()

    @tool
    def slow() -> str:
        """End only when the question is out."""
        return "in time" if published.wait(60) else "too late"

    ledger = Ledger()
    node = ledger.node([use("slow"), use("ask", word="a")], "end", tools=[slow])
    node.on_save = lambda _: published.set() if node.published else None
    node.run()
    assert node.published == ["ask_a"]
    done(node.resume(ask_a=1))
    assert node.texts[0] == "in time"


# -- crashes -----------------------------------------------------------------------------------------


def test_no_tool_starts_before_the_checkpoint_that_names_it_is_stored() -> None:
    """A store that refuses the checkpoint has no tool run behind its back."""
    ledger = Ledger()
    node = ledger.node([use("note", "t1", word="a"), use("note", "t2", word="b")], "end")
    node.kill_after = 0
    with pytest.raises(Killed):
        node.run()
    assert ledger.ran == []
    node.kill_after = None
    done(node.run())
    assert sorted(ledger.ran) == ["a", "b"]
    named = [(call["use"]["toolUseId"], call["stage"]) for call in node.saves[0]["calls"]]
    assert named == [("t1", "before"), ("t2", "before")]


def test_killed_in_a_callback_after_the_tool_the_tool_is_not_run_again() -> None:
    """What a tool returned is stored while the After callbacks still look at it."""
    ledger = Ledger()
    stored = threading.Event()
    deaths = [True]

    def look(event: AfterToolCallEvent) -> None:
        del event
        if deaths:
            assert stored.wait(60)
            deaths.pop()
            node.kill_after = 0

    def saved(document: dict[str, Any]) -> None:
        if document["calls"] and document["calls"][0]["snapshot"]:
            stored.set()

    node = ledger.node([use("note", word="a")], "end", hooks=((AfterToolCallEvent, look),))
    node.on_save = saved
    with pytest.raises(Killed):
        node.run()
    node.kill_after = None
    done(node.run())
    assert ledger.ran == ["a"]


def test_once_a_callback_broke_no_further_tool_starts() -> None:
    """A call that was about to run when another's callback raised runs in the next attempt, once."""
    broke = asyncio.Event()
    fail = [True]

    async def before(event: BeforeToolCallEvent) -> None:
        if event.tool_use["toolUseId"] == "t1" and fail:
            fail.pop()
            broke.set()
            raise RuntimeError("no")
        await broke.wait()

    ledger = Ledger()
    calls = [use("note", "t1", word="1"), use("note", "t2", word="2")]
    node = ledger.node(calls, "end", hooks=((BeforeToolCallEvent, before),))
    failed(node.run())
    assert ledger.ran == []
    done(node.run())
    assert sorted(ledger.ran) == ["1", "2"]


def test_a_lost_lease_stops_before_the_next_call() -> None:
    """LeaseLost leaves execute(), nothing more is called, and what was stored is intact."""
    ledger = Ledger()

    def lost() -> None:
        if ledger.ran:
            raise LeaseLost

    node = ledger.node([use("note", word="a")], [use("note", word="b")], "end")
    node.on_check = lost
    with pytest.raises(LeaseLost):
        node.run()
    assert ledger.ran == ["a"]
    assert ledger.asked_model == 1
    node.on_check = lambda: None
    done(node.run())
    assert ledger.ran == ["a", "b"]


def test_a_tool_can_end_neither_the_worker_nor_the_loop() -> None:
    """SystemExit and StopIteration out of a tool become error results, on 3.11 as well."""

    @tool
    def leave() -> str:
        """Leave the program."""
        raise SystemExit(3)

    @tool
    def stop() -> str:
        """Run out of items."""
        return str(next(iter([])))

    node = scripted([[use("leave"), use("stop")], "end"], leave, stop)
    done(node.run())
    assert node.texts == [
        "Error: SystemExit - 3",
        "Error: RuntimeError - a function raised StopIteration",
    ]


def test_a_cancelled_error_of_the_users_own_making_is_an_error_like_any_other() -> None:
    """A tool, a callback or a model that ends in CancelledError doesn't leave the agent hanging."""

    @tool
    async def gives_up() -> str:
        """Await what was cancelled."""
        raise asyncio.CancelledError

    node = scripted([use("gives_up"), "end"], gives_up)
    done(node.run())
    assert node.texts[0] == "Error: CancelledError - "

    async def callback(event: BeforeModelCallEvent) -> None:
        raise asyncio.CancelledError

    hooked = scripted(["end"], hooks=[(BeforeModelCallEvent, callback)])
    assert failed(hooked.run()).error.name == "CancelledError"
    model = scripted([asyncio.CancelledError()])
    assert failed(model.run()).error.name == "CancelledError"


def test_a_question_without_an_answer_in_time_is_a_rejection() -> None:
    """An expired question raises where it was asked: in a tool that is an error result."""
    node = Ledger().node([use("ask", word="a")], "end")
    node.run()
    node.expire("ask_a")
    done(node.run())
    assert node.texts[0].startswith("Error: InterruptExpired - 'ask_a' was not answered")


def test_a_tool_may_yield_what_it_does_and_its_result_last() -> None:
    """An async generator is a tool, too."""

    @tool
    async def count(upto: int) -> Any:
        """Count."""
        for n in range(upto):
            yield n + 1

    node = scripted([use("count", upto=3), "end"], count)
    done(node.run())
    assert node.texts[0] == "3"


def test_a_model_error_fails_the_node_and_a_retry_goes_on_where_it_was() -> None:
    """The node fails with the model's error; its next attempt repeats the model call alone."""
    ledger = Ledger()
    errors = [ConnectionError("gone")]

    def second(messages: Any) -> Any:
        del messages
        return errors.pop() if errors else "end"

    model = ScriptedModel([use("note", word="a"), second])
    node = Node(lambda: Agent("a", model, ledger.tools))
    outcome = failed(node.run())
    assert str(outcome.error) == "ConnectionError: gone"
    assert outcome.usage["totalTokens"] == 15
    assert done(node.run()).usage["totalTokens"] == 30
    assert ledger.ran == ["a"]


# -- memory ------------------------------------------------------------------------------------------


def test_an_agent_given_to_a_node_is_a_template() -> None:
    """Executions change neither its messages nor its state, and start from both."""

    @tool(context=True)
    def remember(tool_context: ToolContext) -> str:
        """Change the state."""
        tool_context.agent.state.set("seen", tool_context.agent.state.get("start"))
        return "ok"

    first_messages = [
        {"role": "user", "content": [{"text": "before"}]},
        {"role": "assistant", "content": [{"text": "hi"}]},
    ]
    model = ScriptedModel(["unused", use("remember"), "end"])
    agent = Agent("a", model, [remember], state={"start": 1}, messages=first_messages)
    node = Node(lambda: agent)
    done(node.run())
    assert agent.messages == first_messages
    assert agent.state.get() == {"start": 1}
    assert result_of(node).state == {"start": 1, "seen": 1}
    assert [m["role"] for m in node.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


def test_state_that_a_tool_sets_survives_a_pause() -> None:
    """Agent state is part of what is stored; a value that can't be stored is refused where it is set."""

    @tool(context=True)
    def count(tool_context: ToolContext) -> str:
        """Count and ask."""
        state = tool_context.agent.state
        state.set("count", (state.get("count") or 0) + 1)
        with pytest.raises(UnstorableError, match="agent state 'bad'"):
            state.set("bad", object())
        return str(tool_context.interrupt("q"))

    node = scripted([use("count"), "end"], count)
    node.run()
    done(node.resume(q=1))
    assert result_of(node).state == {"count": 2}


# -- hooks -------------------------------------------------------------------------------------------


def test_callbacks_run_in_order_and_only_writable_attributes_change() -> None:
    """Low order first, then as registered; async ones are awaited; anything else is refused."""
    order: list[str] = []

    async def later(event: BeforeModelCallEvent) -> None:
        order.append("async")
        with pytest.raises(AttributeError, match="Property agent is not writable"):
            event.agent = None

    def make() -> Agent:
        agent = Agent("a", ScriptedModel(["end"]))
        agent.hooks.add_callback(BeforeModelCallEvent, lambda _: order.append("late"), order=5)
        agent.hooks.add_callback(BeforeModelCallEvent, later)
        agent.hooks.add_callback(
            BeforeModelCallEvent, lambda _: order.append("early"), order=-1
        )
        return agent

    done(Node(make).run())
    assert order == ["early", "async", "late"]


def test_after_events_reverse_within_one_order_only() -> None:
    """Last registered is first called on the way out, except where `order` says otherwise."""
    order: list[int] = []

    def make() -> Agent:
        agent = Agent("a", ScriptedModel([use("x"), "end"]))
        for number in (1, 2):
            agent.hooks.add_callback(AfterToolsEvent, lambda _, n=number: order.append(n))
        agent.hooks.add_callback(AfterToolsEvent, lambda _: order.append(0), order=-1)
        return agent

    done(Node(make).run())
    assert order == [0, 2, 1]


def test_a_tool_sees_when_its_work_is_no_longer_wanted() -> None:
    """A tool on a thread sees that its execution was stopped because the lease was lost."""
    began, signalled = threading.Event(), threading.Event()

    @tool(context=True)
    def slow(tool_context: ToolContext) -> str:
        """Wait for the signal."""
        began.set()
        if tool_context.cancel_signal.wait(60) and tool_context.cancelled:
            signalled.set()
        return "late"

    @tool(context=True)
    def breaks(tool_context: ToolContext) -> str:
        """Find the lease lost, while the other works."""
        wait_until(began.is_set, "the other tool began")
        node.on_check = lose
        tool_context.check()
        return "never"

    def lose() -> None:
        raise LeaseLost

    node = Ledger().node([use("slow"), use("breaks")], "end", tools=[slow, breaks])
    with pytest.raises(LeaseLost):
        node.run()
    wait_until(signalled.is_set, "the tool saw the signal")
