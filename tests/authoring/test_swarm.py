"""Swarms in process: refusals, limits, hooks, and a swarm as a node. Against Strands: tests/differential."""

from __future__ import annotations

import pytest

from runner import Agent, GraphBuilder, Status, Swarm, tool
from runner.authoring import lint
from runner.definition.registry import Registry
from runner.errors import DefinitionError
from runner.hooks import BeforeNodeCallEvent
from runner.testing import ScriptedModel
from tests.graphs import answer_all


def hands_over(to: str, **given):
    given = {"agent_name": to, "message": f"for {to}", **given}
    return {"toolUse": {"name": "handoff_to_agent", "input": given}}


def member(name: str, *replies) -> Agent:
    return Agent(name, ScriptedModel([*replies, f"{name} is done"]))


@tool
def handoff_to_agent() -> str:
    """Have the name of the tool of swarms."""
    return ""


@pytest.mark.parametrize(
    ("agents", "entry", "reason"),
    [
        ([], None, "starts with one of its agents"),
        ([member("a")], member("b"), "starts with one of its agents"),
        ([member("a"), member("a")], None, "already exists"),
        ([Agent("a", ScriptedModel(["x"]), [handoff_to_agent])], None, "two tools"),
    ],
)
def test_a_swarm_is_refused(agents, entry, reason):
    """The mistakes that can be seen when the swarm is made are raised there."""
    with pytest.raises(DefinitionError, match=reason):
        Swarm(agents, entry_point=entry)


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "order", "reason"),
    [
        ({"max_handoffs": 3}, "aba", "limit of 3 executions"),
        ({"max_iterations": 2}, "ab", "limit of 2 executions"),
        ({"entry_point": 1, "max_handoffs": 1}, "b", "limit of 1 executions"),
        (
            {
                "repetitive_handoff_detection_window": 4,
                "repetitive_handoff_min_unique_agents": 3,
            },
            "abab",
            "only 2 agents took part in the last 4 hand-offs",
        ),
        ({"execution_timeout": -1.0}, "", "worked for more than -1.0 seconds"),
    ],
)
def test_a_limit_ends_a_swarm(options, order, reason):
    """The run fails before the next agent, and the node that chooses agents says why."""
    agents = [member("a", hands_over("b")), member("b", hands_over("a"))]
    if "entry_point" in options:
        options = {**options, "entry_point": agents[options["entry_point"]]}

    result = Swarm(agents, **options)("go")

    assert (result.status, result.execution_order) == (Status.FAILED, list(order))
    assert reason in str(result.results["@swarm"].result)
    assert {name: node.output for name, node in result.results.items() if name != "@swarm"} == {
        name: f"{name} is done" for name in order
    }


def test_callbacks_see_agents_and_may_ask():
    """The node that chooses agents fires no events; a question holds the agent that is next."""
    seen = []

    def gate(event: BeforeNodeCallEvent):
        seen.append(event.node_id)
        if event.node_id == "b":
            event.interrupt("may b work?")

    swarm = Swarm([member("a", hands_over("b", context={"k": 1})), member("b")], hooks=[gate])
    asked = swarm("go")
    assert asked.execution_order == ["a"]

    result = swarm(answer_all(asked))

    assert seen == ["a", "b", "b"]
    assert (result.status, result.execution_order) == (Status.COMPLETED, ["a", "b"])


def test_a_swarm_can_be_drawn_and_checked():
    """Its agents are drawn, the first one as the start; the hidden node raises no findings."""
    swarm = Swarm([member("a"), member("b")])
    registry = Registry()
    registry.add(swarm.id, lambda: swarm)

    assert lint.check(registry.find(swarm.id)) == []
    assert "@" not in swarm.draw("mermaid")
    assert {word for word in swarm.draw().split() if word in "ab"} == {"a", "b"}


def test_a_swarm_is_a_node():
    """Its output is that of its last agent."""
    builder = GraphBuilder()
    builder.add_node(Swarm([member("a", hands_over("b")), member("b")]), "team")
    builder.add_node(lambda ctx: ctx.inputs, "end")
    builder.add_edge("team", "end")

    result = builder.build()("go")

    assert result.results["end"].output == {"team": "b is done"}
    assert result.results["team"].result.execution_order == ["a", "b"]
