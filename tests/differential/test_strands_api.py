"""Names and shapes that programs for Strands use: each test runs on `strands-agents` and here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.integrations.extras import need

need("strands", "strands")

import strands  # noqa: E402 - only where the extra is installed
import strands.hooks  # noqa: E402
import strands.multiagent  # noqa: E402

import runner  # noqa: E402
import runner.hooks  # noqa: E402
from runner.testing import ScriptedModel  # noqa: E402
from tests.differential.sides import Scripted, plain, use  # noqa: E402

SIDES = {
    "strands": SimpleNamespace(
        Agent=lambda **options: strands.Agent(callback_handler=None, **options),
        GraphBuilder=strands.multiagent.GraphBuilder,
        ToolContext=strands.ToolContext,
        hooks=strands.hooks,
        before_graph=strands.hooks.BeforeMultiAgentInvocationEvent,
        model=Scripted,
        tool=strands.tool,
    ),
    "runner": SimpleNamespace(
        Agent=runner.Agent,
        GraphBuilder=runner.GraphBuilder,
        ToolContext=runner.ToolContext,
        hooks=runner.hooks,
        before_graph=runner.hooks.BeforeGraphEvent,
        model=ScriptedModel,
        tool=runner.tool,
    ),
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("default"),  # another library's warnings are not ours to mend
    pytest.mark.parametrize("side", SIDES.values(), ids=SIDES),
]


class Mine(runner.Agent):
    """A class that a type names."""


def listener(kinds: object, fired: list[str]) -> Any:
    """Return a callback whose parameter has these types."""

    def listen(event: Any) -> None:
        fired.append(type(event).__name__)

    listen.__annotations__["event"] = kinds
    return listen


def loop(side: Any, again: Any, **options: Any) -> Any:
    """Build a graph of two agents and an edge back."""
    builder = side.GraphBuilder()
    for name in "ab":
        builder.add_node(side.Agent(name=name, model=side.model([name] * 9), **options), name)
    builder.add_edge("a", "b")
    builder.add_edge("b", "a", again)
    builder.set_entry_point("a")
    builder.set_max_node_executions(9)
    return builder.build()


def add_up(side: Any) -> Any:
    """Return a tool that takes the agent, which no model passes."""

    def add_up(x: int, agent: Any = None) -> str:  # noqa: D417 - no model passes the agent
        """Add the length of the agent's name.

        Not more.

        Args:
            x: A number,
                of any size.

        Returns:
            The sum.

        Example:
            add_up(1)
        """
        return str(x + len(agent.name))

    return side.tool(add_up)


def test_the_annotation_of_a_callback_names_its_events(side: Any) -> None:
    """One type, a union or a subscripted type; in the registry, by `add_hook` and in `hooks=`."""
    fired: list[str] = []
    before, after = side.hooks.BeforeModelCallEvent, side.hooks.AfterToolCallEvent
    agent = side.Agent(
        name="calc",
        model=side.model([use("add_up", "t1", x=1), "done"]),
        tools=[add_up(side)],
        hooks=[listener(before, fired)],
    )
    agent.hooks.add_callback(None, listener(before | after[Mine], fired))
    agent.add_hook(listener(after[Mine], fired))
    agent.add_hook(listener(None, fired), [before, after])

    agent("go")

    assert fired == [
        *["BeforeModelCallEvent"] * 3,
        *["AfterToolCallEvent"] * 3,
        *["BeforeModelCallEvent"] * 3,
    ]


@pytest.mark.parametrize("kinds", [None, int, "NoSuchName"])
def test_an_annotation_that_names_no_event_is_a_value_error(side: Any, kinds: object) -> None:
    """It is raised where the callback is added."""
    registry = side.hooks.HookRegistry()
    union = side.hooks.BeforeModelCallEvent | None
    for wrong in (kinds, union):
        with pytest.raises(ValueError, match=r"event|hint|union"):
            registry.add_callback(None, listener(wrong, []))
    with pytest.raises(ValueError, match="event"):
        registry.add_callback([], listener(None, []))


def test_a_built_graph_takes_hooks(side: Any) -> None:
    """`graph.add_hook` and `graph.hooks` add callbacks for nodes and for the graph."""
    fired: list[str] = []
    graph = loop(side, lambda state: False)
    graph.add_hook(listener(side.hooks.BeforeNodeCallEvent, fired))
    graph.hooks.add_callback(side.before_graph, lambda event: fired.append("begins"))

    graph("go")

    assert fired == ["begins", "BeforeNodeCallEvent", "BeforeNodeCallEvent"]


def test_a_condition_counts_executions(side: Any) -> None:
    """`execution_order` and `execution_count` have each completed visit."""
    seen = []

    def again(state: Any) -> bool:
        nodes = [getattr(node, "node_id", node) for node in state.execution_order]
        seen.append((nodes, state.execution_count))
        return state.execution_count < 4

    loop(side, again)("go")

    assert [each for n, each in enumerate(seen) if each not in seen[:n]] == [
        (["a", "b"], 2),
        (["a", "b", "a", "b"], 4),
    ]


def test_a_tool_takes_the_agent_and_its_docstring_is_sent(side: Any) -> None:
    """The agent is not in the schema, and only the parameters leave the docstring."""
    agent = side.Agent(
        name="calc",
        model=side.model([use("add_up", "t1", x=1), "done"]),
        tools=[add_up(side)],
    )
    agent("go")

    spec = add_up(side).tool_spec
    assert list(spec["inputSchema"]["json"]["properties"]) == ["x"]
    assert spec["description"] == (
        "Add the length of the agent's name.\n\nNot more.\n\nReturns:\n    The sum.\n\n"
        "Example:\n    add_up(1)"
    )
    assert agent.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "5"}]


def test_a_context_may_name_the_agents_class(side: Any) -> None:
    """`ToolContext[Mine]` is the same as `ToolContext`."""

    def name(tool_context: Any) -> str:
        """Say a name."""
        return str(tool_context.agent.name)

    name.__annotations__["tool_context"] = side.ToolContext[Mine]
    agent = side.Agent(
        name="me",
        model=side.model([use("name", "t1"), "done"]),
        tools=[side.tool(context=True)(name)],
    )
    agent("go")

    assert agent.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "me"}]


def test_a_tool_is_called_by_name(side: Any) -> None:
    """The result is returned, and the conversation has the call in four messages."""
    agent = side.Agent(
        name="calc",
        model=side.model(["hello", "unused", "unused", "after it"]),
        tools=[add_up(side)],
        system_prompt="Be brief.",
    )
    result = agent("hi")
    returned = agent.tool.add_up(x=7)

    assert (returned["status"], returned["content"]) == ("success", [{"text": "11"}])
    request, call, answer, end = [plain(message)["content"] for message in agent.messages[2:]]
    assert request[0]["text"] == (
        'agent.tool.add_up direct tool call.\nInput parameters: {"x": 7}\n'
    )
    assert (call[0]["toolUse"]["name"], call[0]["toolUse"]["input"]) == ("add_up", {"x": 7})
    assert answer[0]["toolResult"]["content"] == returned["content"]
    assert end == [{"text": "agent.tool.add_up was called."}]
    assert str(agent("again")).strip() == "after it"

    assert agent.tool_names == ["add_up"]
    with pytest.raises(AttributeError, match="nothing"):
        agent.tool.nothing()
    assert agent.system_prompt == "Be brief."
    assert result.metrics.accumulated_usage["totalTokens"] >= 15
    assert result.metrics.get_summary()["accumulated_usage"] == result.metrics.accumulated_usage


def test_a_question_is_four_fields(side: Any) -> None:
    """`to_dict` gives what a program for Strands writes into its own protocol."""

    def ask(event: Any) -> None:
        event.interrupt("may I", reason={"of": event.node_id})

    graph = loop(side, lambda state: False)
    graph.hooks.add_callback(side.hooks.BeforeNodeCallEvent, ask)
    question = graph("go").interrupts[0]

    assert question.to_dict() == {
        "id": question.id,
        "name": "may I",
        "reason": {"of": "a"},
        "response": None,
    }
