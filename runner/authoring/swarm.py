"""Swarm: agents that hand a task over to each other, as a graph with a loop through a hidden node.

The hidden node `@swarm` decides who is next. Its output, which the run stores, is the swarm's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from runner.agent.agent import Agent
from runner.agent.context import ToolContext
from runner.agent.tools import AgentTool, tool
from runner.authoring.builder import GraphBuilder
from runner.definition.model import HIDDEN, SWARM, Definition, EdgeSpec, NodeSpec
from runner.errors import DefinitionError, NodeFailed
from runner.execution.context import ClaimedVisit
from runner.execution.nodes import KIND, with_events
from runner.hooks import Callback, HookProvider
from runner.immutable import immutable
from runner.local import Graph
from runner.records import codec
from runner.records.executors import Input, as_text, is_blocks
from runner.records.outcomes import Failed, Outcome, Succeeded
from runner.records.run import existing
from runner.store.interface import Store

HANDOFF = "handoff_to_agent"


@immutable
class Router:
    """Chooses the next agent, or fails the run at a limit."""

    entry: str
    max_visits: int
    timeout: float
    window: int
    min_unique: int

    def execute(self, visit: ClaimedVisit) -> Outcome:
        """Add the last agent's hand-off to the state."""
        run_id = visit.address.run_id
        number = visit.address.visit
        snapshot = existing(visit.run_snapshot(), run_id)
        history = [node for node in snapshot.order if not node.startswith(HIDDEN)]
        context: dict[str, Any] = {}
        handoff = {"agent_name": self.entry, "message": ""}
        if number > 1:
            context = codec.unpack(codec.read(snapshot.outputs[SWARM, number - 1]))["context"]
            key = (history[-1], snapshot.nodes[history[-1]].visit)
            handoff = codec.unpack(snapshot.entries[key]["result"]["state"])[HANDOFF]
            if knowledge := handoff["context"]:
                context[history[-1]] = {**context.get(history[-1], {}), **knowledge}
        recent = len(set(history[-self.window :])) if 0 < self.window <= len(history) else None
        seconds = sum(entry.get("ms", 0) for entry in snapshot.entries.values()) / 1000
        problem = ""
        if len(history) >= self.max_visits:
            problem = f"it has reached its limit of {self.max_visits} executions of agents"
        elif seconds > self.timeout:
            problem = f"its agents have worked for more than {self.timeout} seconds"
        elif recent is not None and recent < self.min_unique:
            problem = f"only {recent} agents took part in the last {self.window} hand-offs"
        if problem:
            return Failed.of(NodeFailed(f"the swarm stopped: {problem}."), final=True)
        state = codec.pack({**handoff, "history": history, "context": context}, "the swarm")
        return Succeeded(state, state)


class Swarm(Graph):
    """Agents that hand a task over to each other by a tool, until one ends without a hand-off.

    The run fails at a limit: `max_handoffs` and `max_iterations` bound the executions of agents;
    `execution_timeout` is the time that agents have worked, without waits, `node_timeout` the
    longest execution; of the last `repetitive_handoff_detection_window` executions at least
    `repetitive_handoff_min_unique_agents` must be different agents' (0: not checked).
    """

    def __init__(
        self,
        nodes: Sequence[Agent],
        *,
        entry_point: Agent | None = None,
        max_handoffs: int = 20,
        max_iterations: int = 20,
        execution_timeout: float = 900.0,
        node_timeout: float = 300.0,
        repetitive_handoff_detection_window: int = 0,
        repetitive_handoff_min_unique_agents: int = 0,
        hooks: Sequence[HookProvider | Callback] = (),
        id: str = "default_swarm",  # noqa: A002 - its name in Strands
        store: Store | None = None,
    ) -> None:
        """Give each agent the tool `handoff_to_agent`.

        Raises:
            DefinitionError: two agents have one name, one has a tool of that name, or the entry
                point isn't among them.
        """
        builder = GraphBuilder().set_graph_id(id).set_hook_providers(hooks)
        members = {spec.id: spec for spec in (builder.add_node(a, a.name) for a in nodes)}
        entry = entry_point or next(iter(nodes), None)
        if entry is None or entry not in nodes:
            raise DefinitionError(
                f"a swarm starts with one of its agents {list(members)}: name one as the entry point."
            )
        descriptions = {agent.name: agent.description for agent in nodes}
        for agent in nodes:
            prompt = partial(_prompt, descriptions, agent.name)
            agent._join(handoff_tool(list(members)), prompt)  # noqa: SLF001 - for swarms alone
        router = Router(
            entry.name,
            limit := min(max_handoffs, max_iterations),
            execution_timeout,
            repetitive_handoff_detection_window,
            repetitive_handoff_min_unique_agents,
        )
        definition = Definition(
            id,
            {SWARM: NodeSpec(SWARM, router, KIND), **members},
            tuple(edge for name in members for edge in _edges(name)),
            (SWARM,),
            max_node_executions=2 * limit + 2,
            node_timeout=node_timeout,
            reset_on_revisit=True,
            hooks=tuple(hooks),
        )
        super().__init__(with_events(definition), store)


def _edges(name: str) -> tuple[EdgeSpec, EdgeSpec]:
    """Return the edge to an agent if it is next, and the edge back if it hands over."""
    return (
        EdgeSpec(SWARM, name, lambda state: state.results[SWARM].output["agent_name"] == name),
        EdgeSpec(name, SWARM, lambda state: HANDOFF in state.results[name].result.state, True),  # noqa: FBT003
    )


def handoff_tool(names: Sequence[str]) -> AgentTool:
    """Return the tool by which an agent hands over to one of these."""

    def handoff(  # noqa: D417 - no model gives the context
        agent_name: str,
        message: str,
        tool_context: ToolContext,
        context: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Hand the task over to another agent of the swarm, which knows more about it.

        Args:
            agent_name: Name of the agent that goes on.
            message: Task of that agent, and the reason for the hand-off.
            context: Further data that all agents should know.
        """
        if agent_name not in names:
            text = f"Error: Agent '{agent_name}' not found in swarm"
            return {"status": "error", "content": [{"text": text}]}
        state = tool_context.agent.state
        knowledge = (state.get(HANDOFF) or {"context": {}})["context"] | (context or {})
        state.set(HANDOFF, {"agent_name": agent_name, "message": message, "context": knowledge})
        return {
            "status": "success",
            "content": [{"text": f"Handing off to {agent_name}: {message}"}],
        }

    return tool(name=HANDOFF, context=True)(handoff)


def _prompt(
    descriptions: Mapping[str, str | None], name: str, task: Any, inputs: Sequence[Input]
) -> list[dict[str, Any]]:
    """Build the input of an agent in the form that Strands' swarms give it."""
    state: dict[str, Any] = inputs[0].output
    multimodal = is_blocks(task)
    sections = [f"Handoff Message: {state['message']}"] if state["message"] else []
    sections.append(f"User Request: {'Multi-modal task' if multimodal else as_text(task)}")
    if state["history"]:
        sections.append(f"Previous agents who worked on this: {' → '.join(state['history'])}")
    if state["context"]:
        knowledge = [f"• {agent}: {data}" for agent, data in state["context"].items()]
        sections.append("\n".join(["Shared knowledge from previous agents:", *knowledge]))
    colleagues = [
        f"Agent name: {other}.{f' Agent description: {text}' if text else ''}"
        for other, text in descriptions.items()
        if other != name
    ]
    if colleagues:
        sections.append("\n".join(["Other agents available for collaboration:", *colleagues]))
    sections.append(
        "You have access to swarm coordination tools if you need help from other agents. "
        "If you don't hand off to another agent, the swarm will consider the task complete."
    )
    text = "\n\n".join(sections)
    return [{"text": f"Context:\n{text}\n\n"}, *(task if multimodal else [])]
