"""The second seed, in process: its five testing strategies; test_strands_names has its example."""

from __future__ import annotations

import pytest

from runner import Agent, Status, ToolContext, tool
from runner.hooks import BeforeToolCallEvent
from runner.testing import ScriptedModel
from tests.graphs import Bench, answer_all, answers, wired


def ends(messages):
    """Reply with the text of the last tool result."""
    return messages[-1]["content"][-1]["toolResult"]["content"][0]["text"]


def calls(name: str, **given):
    return {"toolUse": {"name": name, "input": given}}


@tool(name="weather_tool", context=True)
def weather_tool(tool_context: ToolContext) -> str:
    """Tell the weather."""
    response = tool_context.interrupt("weather_approval", reason="need location")
    return f"Weather in {response}: sunny"


def weather(name: str = "weather") -> Agent:
    return Agent(
        name=name, model=ScriptedModel([calls("weather_tool"), ends]), tools=[weather_tool]
    )


def talker(name: str, text: str) -> Agent:
    return Agent(name=name, model=ScriptedModel([text]))


# -- 1. basic ------------------------------------------------------------------------------------------


def test_one_agent_asks_and_completes():
    """A single agent asks, a person answers, and the agent goes on where it stopped: nothing is repeated."""
    agent = weather()
    graph = wired({"weather_agent": agent}).build()
    first = graph("What is the weather?")

    assert (first.interrupts[0].reason, first.interrupts[0].node_id) == (
        "need location",
        "weather_agent",
    )

    last = graph(answer_all(first, "Seattle"))

    assert last.results["weather_agent"].output == "Weather in Seattle: sunny"
    assert last.usage["totalTokens"] == 30
    assert [message["role"] for message in agent.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]


def test_hooks_on_tools_ask_too():
    """An interrupt raised by a hook before a tool stops and resumes the node like one of the tool itself."""
    done = []

    @tool
    def delete(path: str) -> str:
        """Delete a file."""
        done.append(path)
        return f"deleted {path}"

    def approve(event: BeforeToolCallEvent) -> None:
        if event.interrupt("approval", reason=event.tool_use["input"]) != "yes":
            event.cancel_tool = "not allowed"

    for response, text, deleted in (
        ("yes", "deleted a.txt", ["a.txt"]),
        ("no", "not allowed", ["a.txt"]),
    ):
        agent = Agent(
            name="cleaner",
            model=ScriptedModel([calls("delete", path="a.txt"), ends]),
            tools=[delete],
        )
        agent.hooks.add_callback(BeforeToolCallEvent, approve)
        graph = wired({"cleaner": agent}).build()
        first = graph("Clean up.")

        assert [(interrupt.name, interrupt.reason) for interrupt in first.interrupts] == [
            ("approval", {"path": "a.txt"})
        ]
        assert graph(answer_all(first, response)).results["cleaner"].output == text
        assert done == deleted


# -- 2. parallel ---------------------------------------------------------------------------------------


def test_others_complete_while_one_waits():
    """Nodes beside the one that asks complete, and run on to the ends of their branches, once."""
    nodes = {
        "weather_agent": weather(),
        "time_agent": talker("time", "It is noon."),
        "news_agent": talker("news", "No news."),
        "late_agent": talker("late", "And no more."),
        "summary": lambda ctx: ctx.inputs,
    }
    joined = [f"{name} summary" for name in ("weather_agent", "time_agent", "late_agent")]
    graph = wired(nodes, "news_agent late_agent", *joined).build()
    first = graph("What is new?")

    assert (first.status, first.interrupted_nodes) == (Status.INTERRUPTED, 1)
    assert sorted(first.execution_order) == ["late_agent", "news_agent", "time_agent"]

    last = graph(answer_all(first, "Oslo"))

    assert last.results["summary"].output == {
        "weather_agent": "Weather in Oslo: sunny",
        "time_agent": "It is noon.",
        "late_agent": "And no more.",
    }
    assert last.execution_order[-2:] == ["weather_agent", "summary"]
    assert last.results["time_agent"] == first.results["time_agent"]


# -- 3. several at once --------------------------------------------------------------------------------


def several():
    return wired({name: weather(name) for name in ("north", "south")}).build()


def test_several_agents_ask_at_once():
    """Each of several agents has its own question open, and each gets its own answer."""
    graph = several()
    first = graph("What is the weather?")

    assert sorted(interrupt.node_id for interrupt in first.interrupts) == ["north", "south"]
    assert len({question.id for question in first.interrupts}) == 2

    last = graph(answers(*((each.id, each.node_id.upper()) for each in first.interrupts)))

    assert {node: result.output for node, result in last.results.items()} == {
        "north": "Weather in NORTH: sunny",
        "south": "Weather in SOUTH: sunny",
    }


def test_one_answer_of_two():
    """An answer resumes its own agent only; the other waits as it was."""
    graph = several()
    first = graph("What is the weather?")
    north, south = sorted(first.interrupts, key=lambda each: each.node_id)
    second = graph(answers((south.id, "Rome")))

    assert [interrupt.id for interrupt in second.interrupts] == [north.id]
    assert second.results["south"].output == "Weather in Rome: sunny"
    assert (
        graph(answers((north.id, "Oslo"))).results["north"].output == "Weather in Oslo: sunny"
    )


def test_two_tools_of_one_agent_ask_at_once():
    """One agent may have several questions open; it goes on when all are answered."""
    model = ScriptedModel([[calls("weather_tool"), calls("weather_tool")], "done"])
    graph = wired({"weather": Agent("weather", model, tools=[weather_tool])}).build()
    first = graph("Here and there?")

    assert [interrupt.name for interrupt in first.interrupts] == ["weather_approval"] * 2

    second = graph(answers((first.interrupts[0].id, "Oslo")))

    assert [question.id for question in second.interrupts] == [first.interrupts[1].id]
    assert graph(answer_all(second, "Rome")).results["weather"].output == "done"


# -- 4. reject -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("response", ["no", False])
def test_a_person_says_no(response):
    """A refusal is an answer: the tool learns of it, and the agent goes on with that."""

    @tool(context=True)
    def delete(tool_context: ToolContext) -> str:
        """Delete everything."""
        if tool_context.interrupt("sure?") in {"no", False}:
            return "refused by a person"
        raise AssertionError("deleted although a person said no")

    agent = Agent("cleaner", ScriptedModel([calls("delete"), ends]), tools=[delete])
    graph = wired({"cleaner": agent}).build()
    last = graph(answer_all(graph("Clean up."), response))

    assert last.status is Status.COMPLETED
    assert last.results["cleaner"].output == "refused by a person"


# -- 5. session ----------------------------------------------------------------------------------------


def test_a_question_survives_its_process():
    """What an agent said and asked goes on in an engine that never saw it, with agents built anew."""

    def build():
        return wired({"weather_agent": weather()}).build()

    asking = Bench(build()).start("What is the weather?")
    assert asking.finish().status is Status.INTERRUPTED
    answering = Bench(build(), lambda _: asking.store)
    answering.run_id = asking.run_id
    answering.answer("Seattle")
    result = answering.finish()

    assert result.results["weather_agent"].output == "Weather in Seattle: sunny"
    assert len(asking.store.read(asking.run_id, messages=True).messages["weather_agent"]) == 4
    assert result.usage["totalTokens"] == 30


def test_an_agent_given_to_a_graph_is_a_template():
    """A run leaves the agent object as it was; the next run knows nothing of the one before."""
    graph = several()
    first = graph("What is the weather?")
    graph(answer_all(first, "Oslo"))
    second = graph("What is the weather?")

    assert second.status is Status.INTERRUPTED
    assert {question.id for question in second.interrupts}.isdisjoint(
        interrupt.id for interrupt in first.interrupts
    )
