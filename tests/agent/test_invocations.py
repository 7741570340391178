"""Whole invocations: called directly, structured output, limits, cancelling, streams, agents as tools."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pydantic
import pytest

from runner import GraphBuilder
from runner.agent import Agent, AgentResult, ToolContext, run_events, tool
from runner.agent.models.scripted import ScriptedModel
from runner.errors import DefinitionError, ResponseError, UsageError
from runner.hooks import AfterToolCallEvent, BeforeModelCallEvent, BeforeToolCallEvent
from runner.records.outcomes import Interrupted
from tests.agent.visits import Hooks, Killed, Node, done, failed, scripted, use


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a person."""
    return f"person: {tool_context.interrupt('q', reason='why')}"


def asking(**options: Any) -> Agent:
    return Agent("direct", ScriptedModel([use("ask"), "end"]), [ask], **options)


def answer(key: str, response: Any) -> dict[str, Any]:
    return {"interruptResponse": {"interruptId": key, "response": response}}


# -- called directly ---------------------------------------------------------------------------------


def test_an_agent_remembers_over_direct_calls() -> None:
    """Each call adds to the same conversation; usage counts the call alone."""
    agent = Agent("a", ScriptedModel(["one", "two"]))
    assert str(agent("first")) == "one\n"
    second = agent("second")
    assert str(second) == "two\n"
    assert second.usage["totalTokens"] == 15
    assert [m["content"][0]["text"] for m in agent.messages] == [
        "first",
        "one",
        "second",
        "two",
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    "wrong",
    [
        lambda _: "a text",
        lambda _: None,
        lambda _: [{"text": "no answer"}],
        lambda _: [answer("unknown", 1)],
        lambda key: [answer(key, None)],
        lambda key: [answer(key, 1), answer("unknown", 1)],
        lambda key: [answer(key, 1), {"text": "x"}],
    ],
)
def test_answers_that_cannot_be_used_change_nothing(wrong: Any) -> None:
    """Refused as a whole, nothing is applied, and a later correct answer works."""
    agent = asking()
    key = agent("go").interrupts[0].id
    with pytest.raises(ResponseError):
        agent(wrong(key))
    assert len(agent.messages) == 2
    assert agent([answer(key, "late")]).stop_reason == "end_turn"
    assert agent.messages[2]["content"][0]["toolResult"]["content"] == [
        {"text": "person: late"}
    ]


def test_a_tool_called_by_name_may_ask() -> None:
    """The call waits in the agent, whose next answer ends it; until then no tool can be called."""
    agent = Agent("clerk", ScriptedModel(["unused"]), [ask])

    with pytest.raises(UsageError, match="stopped with 'interrupt'"):
        agent.tool.ask()
    with pytest.raises(ResponseError):
        agent.tool.ask()
    (question,) = agent([]).interrupts
    result = agent([answer(question.id, "yes")])

    assert str(result).strip() == "agent.tool.ask was called."
    assert "yes" in str(agent.messages[-2])


def test_the_system_prompt_may_be_replaced() -> None:
    """The next call gets the new one."""
    prompts: list[str | None] = []

    class Listens(ScriptedModel):
        async def stream(self, messages, tool_specs=None, system_prompt=None, **options):  # type: ignore[no-untyped-def]
            prompts.append(system_prompt)
            async for chunk in super().stream(messages):
                yield chunk

    agent = Agent("clerk", Listens(["hi"]), system_prompt="Be brief.")
    agent("one")
    agent.system_prompt = f"{agent.system_prompt} Be kind."
    agent("two")

    assert prompts == ["Be brief.", "Be brief. Be kind."]


def test_answers_are_refused_where_nothing_was_asked() -> None:
    """An answer to a finished agent is an error, so a second delivery can't run anything."""
    agent = asking()
    blocks = [answer(agent("go").interrupts[0].id, 1)]
    agent(blocks)
    with pytest.raises(ResponseError, match="waits for no answers"):
        agent(blocks)


def test_no_answer_leaves_it_waiting() -> None:
    """An empty list answers nothing and runs nothing."""
    agent = asking()
    first = agent("go")
    again = agent([])
    assert [q.id for q in again.interrupts] == [q.id for q in first.interrupts]


def test_a_direct_agent_resumes_at_each_answer() -> None:
    """A tool whose answer is there runs, while the other still waits."""
    agent = Agent("a", ScriptedModel([[use("ask"), use("ask")], "end"]), [ask])
    first, second = agent("go").interrupts
    result = agent([answer(second.id, 2)])
    assert [q.id for q in result.interrupts] == [first.id]
    assert agent([answer(first.id, 1)]).stop_reason == "end_turn"


def test_an_error_of_the_model_is_raised_as_itself() -> None:
    """A direct call raises the live exception, and the agent can be called again."""
    error = ConnectionError("gone")
    agent = Agent("a", ScriptedModel([error]))
    with pytest.raises(ConnectionError) as raised:
        agent("go")
    assert raised.value is error
    with pytest.raises(ConnectionError):
        agent("again")


def test_an_error_in_a_hook_is_raised_and_the_open_calls_get_results_later() -> None:
    """After a failed invocation a new input is taken, and the conversation is still valid."""
    fail = [True]

    def bad(event: AfterToolCallEvent) -> None:
        del event
        if fail:
            fail.pop()
            raise RuntimeError("callback broke")

    @tool
    def work() -> str:
        """Work."""
        return "ok"

    agent = Agent(
        "a",
        ScriptedModel([use("work", "t"), "end"]),
        [work],
        hooks=[Hooks((AfterToolCallEvent, bad))],
    )
    with pytest.raises(RuntimeError, match="callback broke"):
        agent("go")
    assert str(agent("again")) == "end\n"
    assert [m["role"] for m in agent.messages] == ["user", "assistant", "user", "assistant"]
    blocks = agent.messages[2]["content"]
    assert (blocks[0]["toolResult"]["toolUseId"], blocks[1]) == ("t", {"text": "again"})


@pytest.mark.full
@pytest.mark.parametrize("session", [{}, {"session_id": "s"}], ids=["", "session"])
def test_calls_open_in_given_messages_get_results(session: dict[str, str]) -> None:
    """Called directly, as a node, in a session and as a tool; control: other messages get none."""
    first = {"role": "user", "content": [{"text": "hi"}]}
    said = {"role": "assistant", "content": [{"text": "so"}]}
    calls = {"role": "assistant", "content": [{"text": "so"}, use("other", "open")]}
    seen: list[Any] = []

    def made(messages: list[Any]) -> Agent:
        model = ScriptedModel([lambda sent: seen.append(sent) or "end"])  # type: ignore[func-returns-value]
        return Agent("a", model, messages=messages, **session)

    def run_node(agent: Agent) -> None:
        builder = GraphBuilder()
        builder.add_node(agent)
        assert builder.build()("go").status.value == "completed"

    def run_tool(agent: Agent) -> None:
        boss = ScriptedModel([use("a", input="go"), "end"])
        Agent("boss", boss, [agent.as_tool()])("go")

    for call in (lambda agent: agent("go"), run_node, run_tool):
        for messages, opened in ([first, calls], ["open"]), ([first, said], []):
            call(made(messages))
            sent = seen.pop()
            blocks = [
                block for message in sent[len(messages) :] for block in message["content"]
            ]
            results = [block["toolResult"] for block in blocks if "toolResult" in block]
            assert [result["toolUseId"] for result in results] == opened
            assert blocks[-1] == {"text": "go"}


def test_one_invocation_at_a_time() -> None:
    """A second call while one runs is refused, not mixed into it."""
    refused: list[str] = []

    @tool
    def meddle() -> str:
        """Call the agent from inside itself."""
        with pytest.raises(UsageError, match="is running already"):
            agent("inner")
        refused.append("yes")
        return "ok"

    agent = Agent("a", ScriptedModel([use("meddle"), "end"]), [meddle])
    agent("go")
    assert refused == ["yes"]


def test_an_agent_can_be_called_from_inside_an_event_loop() -> None:
    """A sync call inside a running loop uses a thread of its own; `invoke_async` uses the loop."""

    async def both() -> list[str]:
        one = Agent("a", ScriptedModel(["sync"]))("go")
        two = await Agent("b", ScriptedModel(["async"])).invoke_async("go")
        return [str(one), str(two)]

    assert asyncio.run(both()) == ["sync\n", "async\n"]


@pytest.mark.parametrize(
    ("prompt", "first"),
    [
        ("text", [{"text": "text"}]),
        ([{"text": "a"}, {"image": {"format": "png", "source": {"bytes": b"\x01"}}}], None),
        ([{"role": "user", "content": [{"text": "whole"}]}], [{"text": "whole"}]),
    ],
)
def test_a_prompt_is_a_text_blocks_or_messages(prompt: Any, first: Any) -> None:
    """Each of them becomes the first message."""
    agent = Agent("a", ScriptedModel(["end"]))
    agent(prompt)
    assert agent.messages[0] == {"role": "user", "content": first or prompt}


@pytest.mark.parametrize(
    "prompt", [3, b"x", {"text": "x"}, [{"text": "x"}, {"role": "user", "content": []}], [1]]
)
def test_any_other_prompt_is_refused(prompt: Any) -> None:
    """A prompt that is no input is an error that says what is."""
    with pytest.raises(UsageError, match="an agent"):
        Agent("a", ScriptedModel(["end"]))(prompt)


def test_state_is_kept_over_direct_calls() -> None:
    """`agent.state` shows what tools set, and what is set there tools see."""

    @tool(context=True)
    def count(tool_context: ToolContext) -> str:
        """Count."""
        tool_context.agent.state.set("n", tool_context.agent.state.get("n") + 1)
        return "ok"

    agent = Agent(
        "a", ScriptedModel([use("count"), "end", use("count"), "end"]), [count], state={"n": 1}
    )
    assert agent("go").state == {"n": 2}
    agent.state.set("n", 10)
    assert agent("go").state == {"n": 11}
    assert agent.state.get("n") == 11


def test_a_tool_sees_the_callers_invocation_state() -> None:
    """`invocation_state=` reaches tools and callbacks."""
    seen: list[Any] = []

    @tool(context=True)
    def look(tool_context: ToolContext) -> str:
        """Look."""
        seen.append(tool_context.invocation_state["tenant"])
        return "ok"

    def watch(event: BeforeToolCallEvent) -> None:
        seen.append(event.invocation_state["tenant"])

    agent = Agent(
        "a",
        ScriptedModel([use("look"), "end"]),
        [look],
        hooks=[Hooks((BeforeToolCallEvent, watch))],
    )
    agent("go", invocation_state={"tenant": "acme"})
    assert seen == ["acme", "acme"]


# -- structured output -------------------------------------------------------------------------------


class Verdict(pydantic.BaseModel):
    """What was decided."""

    approved: bool
    why: str = ""


def judge(*replies: Any, **options: Any) -> Node:
    return Node(
        lambda: Agent(
            "judge", ScriptedModel(list(replies)), structured_output_model=Verdict, **options
        )
    )


def test_a_model_gives_the_structured_output_through_its_tool() -> None:
    """The checked object is the result, its JSON the output; the loop ends there."""
    node = judge(use("Verdict", approved=True), "never")
    outcome = done(node.run())
    assert outcome.output == {"approved": True, "why": ""}
    result = AgentResult.from_document(outcome.result)
    assert result.structured_output == Verdict(approved=True)
    assert str(result) == '{"approved":true,"why":""}'
    assert len(node.messages) == 3


def test_a_model_that_refuses_twice_fails_the_node() -> None:
    """Without the structured output there is no result to pass on."""
    assert failed(judge("text", "text again").run()).error.name == "StructuredOutputMissing"


def test_the_model_reads_what_is_wrong_with_its_structured_output() -> None:
    """The model reads what is wrong and tries again."""
    node = judge(use("Verdict", approved="perhaps"), use("Verdict", approved=True))
    assert done(node.run()).output["approved"] is True
    assert node.results[0]["status"] == "error"


def test_the_structured_output_can_be_reviewed() -> None:
    """An interrupt before the structured output's tool holds it back like any other call."""

    def gate(event: BeforeToolCallEvent) -> None:
        event.tool_use = {
            **event.tool_use,
            "input": event.interrupt("edit", reason=event.tool_use["input"]),
        }

    node = judge(use("Verdict", approved=False), hooks=[Hooks((BeforeToolCallEvent, gate))])
    node.run()
    assert node.open[0].reason == {"approved": False}
    assert done(node.resume(edit={"approved": True, "why": "edited"})).output == {
        "approved": True,
        "why": "edited",
    }


# -- limits ------------------------------------------------------------------------------------------


@tool
def work() -> str:
    """Work."""
    return "ok"


@pytest.mark.full
@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        ({"turns": 2}, "limit_turns", 2),
        ({"total_tokens": 40}, "limit_total_tokens", 3),
        ({"output_tokens": 5}, "limit_output_tokens", 1),
        ({"turns": 2, "total_tokens": 1}, "limit_total_tokens", 1),
    ],
)
def test_limits_end_the_invocation_between_turns(limits: Any, reason: str, turns: int) -> None:
    """The tools of the last turn have their results, and the reason says which limit it was."""
    node = Node(lambda: Agent("a", ScriptedModel([use("work")]), [work], limits=limits))
    assert done(node.run()).result["stop_reason"] == reason
    assert len(node.results) == turns
    node.next_visit("again")
    done(node.run())
    assert len(node.results) == 2 * turns


def test_limits_hold_over_a_pause() -> None:
    """A resume doesn't count from the start."""
    node = Node(lambda: Agent("a", ScriptedModel([use("ask")]), [ask], max_turns=2))
    node.run()
    node.resume(q=1)
    assert done(node.resume(q=2)).result["stop_reason"] == "limit_turns"


# -- cancelling --------------------------------------------------------------------------------------


def test_a_cancelled_call_ends_before_the_next_call() -> None:
    """`cancel()` lets the running tool end and starts nothing more; a new input is taken afterwards."""
    ran: list[str] = []

    @tool
    def stop() -> str:
        """Cancel from inside."""
        ran.append("stop")
        agent.cancel()
        return "ok"

    agent = Agent(
        "a",
        ScriptedModel([[use("stop"), use("stop")], "end"]),
        [stop],
        tool_executor="sequential",
    )
    result = agent("go")
    assert (result.stop_reason, ran) == ("cancelled", ["stop"])
    assert str(agent("again")) == "end\n"
    assert [r["toolResult"]["status"] for r in agent.messages[2]["content"][:2]] == [
        "success",
        "error",
    ]


def test_cancelled_in_a_stream_the_partial_reply_is_thrown_away() -> None:
    """Nothing of the reply is in the conversation; an empty resume makes the same call again."""
    announced: list[int] = []

    class Slow:
        async def stream(self, *args: Any, **kwargs: Any) -> Any:
            """Yield a chunk, then be cancelled the first time."""
            yield {"contentBlockDelta": {"delta": {"text": "half a"}}}
            if len(announced) == 1:
                agent.cancel()
            yield {"contentBlockDelta": {"delta": {"text": " word"}}}

    def watch(event: BeforeModelCallEvent) -> None:
        announced.append(event.attempt)

    agent = Agent("a", Slow(), hooks=[Hooks((BeforeModelCallEvent, watch))])
    assert agent("go").stop_reason == "cancelled"
    assert [m["role"] for m in agent.messages] == ["user"]
    assert str(agent([])) == "half a word\n"
    assert announced == [1, 1]


def test_cancelled_during_a_replay_the_parked_state_is_intact() -> None:
    """A cancel while an answer takes effect loses neither the question nor the tool's result."""
    ran: list[str] = []

    @tool
    def act() -> str:
        """Act."""
        ran.append("act")
        return "acted"

    def review(event: AfterToolCallEvent) -> None:
        event.interrupt("one")
        agent.cancel()
        event.interrupt("two")

    agent = Agent(
        "a",
        ScriptedModel([use("act"), "end"]),
        [act],
        hooks=[Hooks((AfterToolCallEvent, review))],
    )
    first = agent("go").interrupts[0]
    cancelled = agent([answer(first.id, 1)])
    assert cancelled.stop_reason == "cancelled"
    assert [m["role"] for m in agent.messages] == ["user", "assistant"]
    second = cancelled.interrupts[0]
    result = agent([answer(second.id, 2)])
    if result.stop_reason == "cancelled":
        result = agent([])
    assert result.stop_reason == "end_turn"
    assert ran == ["act"]
    assert len(agent.messages) == 4


# -- options of one call -----------------------------------------------------------------------------


class Reason(pydantic.BaseModel):
    """The reason."""

    text: str


def test_limits_of_one_call_replace_the_agents() -> None:
    """A limit that is given with a call holds for it alone; the others are the agent's."""
    agent = Agent(
        "a", ScriptedModel([use("work"), use("work"), use("work"), "end"]), [work], max_turns=2
    )

    assert agent("go", limits={"turns": 1}).stop_reason == "limit_turns"
    assert len(agent.messages) == 3
    assert agent("go on", limits={"output_tokens": 1}).stop_reason == "limit_output_tokens"
    assert agent("go on").stop_reason == "end_turn"


@pytest.mark.parametrize(
    "limits", [{"turns": 0}, {"turns": True}, {"turns": "3"}, {"seconds": 3}]
)
def test_limits_of_a_call_are_checked(limits: dict[str, Any]) -> None:
    """A limit that could not be one is refused before anything runs."""
    agent = Agent("a", ScriptedModel(["end"]))

    with pytest.raises(
        DefinitionError, match="can't be used: turns, output_tokens and total_tokens are whole"
    ):
        agent("go", limits=limits)
    assert agent.messages == []


def test_the_output_model_of_one_call_replaces_the_agents() -> None:
    """A call may ask for a structured output of its own; the next one has the agent's again."""
    replies = [use("Reason", text="so"), use("Verdict", approved=True)]
    agent = Agent("a", ScriptedModel(replies), structured_output_model=Verdict)

    assert agent("why?", structured_output_model=Reason).structured_output == Reason(text="so")
    assert agent("and?").structured_output == Verdict(approved=True)
    assert list(agent.config.tools) == ["Verdict"]


def test_a_waiting_call_keeps_its_options() -> None:
    """The call that brings the answers goes on with the output model and limits of the first."""
    agent = Agent("a", ScriptedModel([use("ask"), use("Reason", text="so")]), [ask])

    result = agent("why?", structured_output_model=Reason)
    assert result.stop_reason == "interrupt"
    result = agent([answer(result.interrupts[0].id, "yes")])

    assert result.structured_output == Reason(text="so")


# -- code around a call ------------------------------------------------------------------------------


class Logged(Agent):
    async def invoke_async(self, prompt: Any = None, **options: Any) -> AgentResult:
        result = await super().invoke_async(prompt, **options)
        result.stop_reason = "logged"
        return result


class Quiet(Agent):
    """An agent with methods of its own, none of which a node would skip."""

    def say(self) -> str:
        return "nothing"


def test_an_overridden_call_is_used_or_refused() -> None:
    """A direct call runs what a subclass put around it; a node or a tool, which would skip it, is refused."""
    agent = Logged("a", ScriptedModel(["end"]))

    assert agent("go").stop_reason == "logged"
    with pytest.raises(
        DefinitionError, match="agent 'a' overrides invoke_async, which only direct calls use"
    ):
        agent.as_tool()
    with pytest.raises(DefinitionError, match="overrides invoke_async"):
        GraphBuilder().add_node(agent)
    assert GraphBuilder().add_node(Quiet("b", ScriptedModel(["end"]))).kind == "agent"


# -- streams -----------------------------------------------------------------------------------------


def test_a_stream_gives_the_text_as_it_comes_and_the_result_last() -> None:
    """Chunks, text pieces, messages, and one result at the end."""

    async def collect() -> list[dict[str, Any]]:
        agent = Agent("a", ScriptedModel([use("work"), "all is well"]), [work])
        return [event async for event in agent.stream_async("go")]

    events = asyncio.run(collect())
    assert "".join(event["data"] for event in events if "data" in event) == "all is well"
    assert [e["message"]["role"] for e in events if "message" in e] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert [list(event) for event in events[-1:]] == [["result"]]
    assert events[-1]["result"].stop_reason == "end_turn"


def test_a_stream_shows_questions_and_errors() -> None:
    """An interrupt is in the stream, and an error of the model leaves it."""

    async def questions() -> list[Any]:
        return [event async for event in asking().stream_async("go") if "interrupts" in event]

    assert [q.name for event in asyncio.run(questions()) for q in event["interrupts"]] == ["q"]

    async def broken() -> None:
        async for _ in Agent("a", ScriptedModel([OSError("gone")])).stream_async("go"):
            await asyncio.sleep(0)

    with pytest.raises(OSError, match="gone"):
        asyncio.run(broken())


def test_an_agent_is_free_when_its_stream_was_closed() -> None:
    """A stream that is left early ends its invocation; `aclose` returns when the agent can run again."""
    began = threading.Event()

    @tool
    async def endless() -> None:
        """Work for ever."""
        began.set()
        await asyncio.Event().wait()

    async def leave() -> AgentResult:
        agent = Agent("a", ScriptedModel([use("endless"), "second"]), [endless])
        stream = agent.stream_async("go")
        async for _ in stream:
            if began.is_set():
                break
            await asyncio.sleep(0)
        await stream.aclose()
        return await agent.invoke_async("go on")

    assert str(asyncio.run(leave())) == "second\n"


def test_those_who_watch_a_run_read_the_text_of_a_slow_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text comes in pieces and in order; a reply that is quick costs the store nothing."""
    quick = scripted(["one two three"])
    done(quick.run())
    assert quick.emitted == []
    monkeypatch.setattr(run_events, "PIECE", 0)
    slow = scripted(["one two three"])
    done(slow.run())
    assert slow.emitted == [("agent", {"text": text}) for text in ("one", " two", " three")]


def test_those_who_watch_a_run_see_its_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of each call and its progress are written in order, of subagents, too."""

    @tool(context=True)
    def load(tool_context: ToolContext) -> str:
        """Load something."""
        tool_context.progress(0.5, "half")
        return "loaded"

    @tool
    def crash() -> str:
        """Fail."""
        raise OSError

    subagent = Agent("inner", ScriptedModel([use("load", "t2"), "ok"]), [load])
    model = ScriptedModel(
        [use("load", "t1"), use("inner", "t2", input="x"), use("crash", "t3"), "done"]
    )
    node = Node(lambda: Agent("a", model, [load, subagent, crash], tool_executor="sequential"))
    done(node.run())

    half = {"fraction": 0.5, "note": "half"}
    assert node.emitted == [
        ("progress", {**half, "tool": "load"}),
        ("agent", {"tool": "load", "id": "t1", "status": "success"}),
        ("progress", {**half, "tool": "inner/load"}),
        ("agent", {"tool": "inner/load", "id": "t2", "status": "success"}),
        ("agent", {"tool": "inner", "id": "t2", "status": "success"}),
        ("agent", {"tool": "crash", "id": "t3", "status": "error"}),
    ]

    monkeypatch.setattr(run_events, "PIECE", 0)
    gate = threading.Event()

    @tool
    def wait() -> str:
        """Run until its start was written."""
        return str(gate.wait(60))

    slow = scripted([use("wait", "t1"), last_result], wait)
    slow.on_emit = lambda data: gate.set() if data.get("status") == "started" else None
    assert done(slow.run()).output == "True"
    statuses = [data["status"] for _, data in slow.emitted if "tool" in data]
    assert statuses == ["started", "success"]


def last_result(messages: Any) -> str:
    """End with the last tool result."""
    return str(messages[-1]["content"][0]["toolResult"]["content"][0]["text"])


# -- agents as tools ---------------------------------------------------------------------------------


def team(replies: list[Any], tools: list[Any], **options: Any) -> Node:
    """A node whose agent has another agent as its tool."""

    def make() -> Agent:
        helper = Agent("helper", ScriptedModel(replies), tools, description="Helps.")
        return Agent(
            "boss",
            ScriptedModel([use("helper", "h1", input="do it"), "done"]),
            [helper],
            **options,
        )

    return Node(make)


def test_an_agent_can_be_a_tool() -> None:
    """Its text is the result, its usage counts for its caller, and its conversation stays inside."""
    node = team([use("work"), "helped"], [work])
    outcome = done(node.run())
    assert node.texts[0] == "helped"
    assert outcome.usage["totalTokens"] == 60
    assert len(node.messages) == 4


def test_what_a_subagent_asks_is_a_question_of_the_node() -> None:
    """Its questions are the node's, named below the call; no model is asked twice, and usage adds up once."""
    ran: list[str] = []

    @tool(context=True)
    def deep(tool_context: ToolContext) -> str:
        """Ask from deep inside."""
        ran.append(tool_context.idempotency_key)
        return f"{tool_context.interrupt('one')} {tool_context.interrupt('two')}"

    node = team([use("deep", "d1"), "helped"], [deep])
    outcome = node.run()
    assert isinstance(outcome, Interrupted)
    assert outcome.interrupts[0].scope == "tool:h1/tool:d1"
    node.resume(one="A")
    assert node.names == ["two"]
    outcome = done(node.resume(two="B"))
    assert node.texts[0] == "helped"
    assert ran == ["run.node.1/h1/d1"] * 3
    assert outcome.usage["totalTokens"] == 60


def test_a_subagents_finished_tools_survive_a_crash() -> None:
    """A crash in the subagent's second tool runs neither its first tool nor any model again."""
    ran: list[str] = []
    calls: list[str] = []
    deaths = [True]

    @tool
    def first() -> str:
        """Run once."""
        ran.append("first")
        return "1"

    @tool
    def second() -> str:
        """Die once."""
        ran.append("second")
        if deaths:
            deaths.pop()
            node.kill_after = 0
        return "2"

    def think(messages: Any) -> Any:
        calls.append(str(len(messages)))
        return [use("first", "a"), use("second", "b")]

    def make() -> Agent:
        helper = Agent(
            "helper",
            ScriptedModel([think, "helped"]),
            [first, second],
            tool_executor="sequential",
        )
        return Agent("boss", ScriptedModel([use("helper", "h1", input="x"), "done"]), [helper])

    node = Node(make)
    with pytest.raises(Killed):
        node.run()
    node.kill_after = None
    done(node.run())
    assert ran == ["first", "second", "second"]
    assert calls == ["1"]


def test_a_subagent_that_fails_is_an_error_result() -> None:
    """The caller's model reads its error as any tool's."""
    node = team([RuntimeError("no idea")], [])
    done(node.run())
    assert node.texts[0] == "Error: RuntimeError - no idea"


def test_two_calls_of_one_subagent_ask_apart() -> None:
    """The same tool use ids inside two calls of an agent are different questions."""

    def make() -> Agent:
        helper = Agent("helper", ScriptedModel([use("ask", "same"), "helped"]), [ask])
        return Agent(
            "boss",
            ScriptedModel([[use("helper", input="1"), use("helper", input="2")], "done"]),
            [helper],
        )

    node = Node(make)
    node.run()
    one, two = node.open
    assert one.id != two.id
    node.answer_id(one.id, "first")
    node.run()
    assert [q.id for q in node.open] == [two.id]
    node.answer_id(two.id, "second")
    done(node.run())


def test_a_retried_call_of_a_subagent_begins_again_and_asks_again() -> None:
    """The second attempt has a conversation and questions of its own."""

    def again(event: AfterToolCallEvent) -> None:
        event.retry = event.attempt == 1

    node = team(
        [use("ask", "same"), "helped"], [ask], hooks=[Hooks((AfterToolCallEvent, again))]
    )
    node.run()
    first = node.open[0]
    node.resume(q="one")
    second = node.open[0]
    assert second.id != first.id
    done(node.resume(q="two"))
    assert len(node.results) == 1


def test_a_question_of_a_subagent_is_published_while_a_sibling_runs() -> None:
    """It is out before the slow tool beside the subagent has ended."""
    published = threading.Event()

    @tool
    def slow() -> str:
        """End only when the question is out."""
        return "in time" if published.wait(60) else "too late"

    def make() -> Agent:
        helper = Agent("helper", ScriptedModel([use("ask"), "helped"]), [ask])
        script = ScriptedModel([[use("slow", "s"), use("helper", "h", input="x")], "done"])
        return Agent("boss", script, [slow, helper])

    node = Node(make)
    node.on_save = lambda _: published.set() if node.published else None
    node.run()
    done(node.resume(q=1))
    assert node.texts[0] == "in time"
