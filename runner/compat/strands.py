"""Strands' public names bound to this library: a program for Strands runs here with one line more.

Call `install()` before the program imports its names from `strands`. Agents, tools, hooks, graphs
and swarms are this library's from then on; results, states and questions are Strands' own classes,
filled from this library's. See docs/how-to/from-strands.md for the differences that remain.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import runner
from runner import async_loop, hooks
from runner.agent.agent import DirectCalls
from runner.agent.checkpointer import DirectCheckpointer
from runner.agent.config import AgentConfig
from runner.agent.context import UserState
from runner.agent.effects import Emit
from runner.errors import DefinitionError, InterruptRaised, NodeFailed, needs_extra
from runner.execution.functions import NodeContext
from runner.execution.results import GraphResult, NodeResult, graph_result
from runner.records import codec
from runner.records.executors import input_blocks
from runner.records.run import existing
from runner.store.interface import Store
from runner.store.memory.store import MemoryStore

with needs_extra("strands", "runner.compat.strands"):
    import strands
    import strands.agent
    import strands.hooks
    import strands.interrupt
    import strands.models
    import strands.multiagent.graph
    import strands.session
    import strands.tools.executors
    from strands.multiagent.base import MultiAgentBase
    from strands.multiagent.swarm import SwarmResult
    from strands.telemetry.metrics import EventLoopMetrics
    from strands.types.session import SessionAgent

theirs: Any = strands.multiagent.graph

UNUSED = {
    *("callback_handler", "record_direct_tool_call", "load_tools_from_directory", "agent_id"),
    *("trace_attributes", "baggage_attributes", "retry_strategy", "concurrent_invocation_mode"),
}
"""Options of Strands' Agent without an effect; docs/how-to/from-strands.md says what to use."""


class AgentInitializedEvent(hooks.AgentEvent):
    """An agent was made; its callbacks can't ask."""


class MultiAgentInitializedEvent(hooks.GraphEvent):
    """A name for imports: never fired, since a graph is built again by each worker."""


# -- agents -----------------------------------------------------------------------------------------


class CompatAgent(runner.Agent):
    """An agent of this library with the arguments of Strands' Agent."""

    def __init__(
        self,
        model: Any = None,
        messages: Any = None,
        tools: Any = None,
        system_prompt: Any = None,
        structured_output_model: Any = None,
        *,
        name: str | None = None,
        state: Any = None,
        hooks: Any = None,
        session_manager: Any = None,
        conversation_manager: Any = None,
        tool_executor: Any = None,
        **options: Any,
    ) -> None:
        """Make the agent; a model's name, or none, means Bedrock.

        Raises:
            DefinitionError: an option has no counterpart here.
        """
        description = options.pop("description", None)
        unknown = {option for option, value in options.items() if value} - UNUSED
        if unknown:
            raise DefinitionError(
                f"options {sorted(unknown)} of Strands' Agent have no counterpart here: "
                "docs/how-to/from-strands.md says what to use."
            )
        if model is None or isinstance(model, str):
            model_id: dict[str, Any] = {"model_id": model} if model else {}
            model = strands.models.BedrockModel(**model_id)
        sequential = isinstance(tool_executor, strands.tools.executors.SequentialToolExecutor)
        super().__init__(
            name or "Strands Agents",
            model,
            tools or (),
            system_prompt,
            hooks or (),
            state=state if state is None or isinstance(state, Mapping) else state.get(),
            messages=messages,
            description=description,
            tool_executor="sequential" if sequential else "concurrent",
            structured_output_model=structured_output_model,
            conversation_window=getattr(conversation_manager, "window_size", None),
        )
        self.agent_id = options.get("agent_id") or "default"
        self._session_manager = session_manager
        self._direct_calls = CompatCalls(self, session_manager)
        for callback in self.hooks.callbacks_for(AgentInitializedEvent):
            callback(AgentInitializedEvent(agent=self))


class CompatCalls(DirectCalls):
    """Direct calls that return Strands' results, and keep the conversation in its session manager."""

    def __init__(self, agent: CompatAgent, manager: Any) -> None:
        super().__init__(agent, manager.session_id if manager else uuid.uuid4().hex)
        self._manager, self._id = manager, agent.agent_id
        self._stored = manager and manager.session_repository.read_agent(
            manager.session_id, self._id
        )
        if self._stored:
            past = self._stored._internal_state["runner"]  # noqa: SLF001 - its field for such data
            self._document, self._visits = past["document"], past["visit"]
            agent.messages = codec.unpack(past["messages"])
            agent.state = UserState.restored(self._document["user_state"])

    async def invoke(
        self,
        prompt: Any,
        invocation_state: dict[str, Any],
        config: AgentConfig,
        emit: Emit | None = None,
    ) -> Any:
        """Return the result as Strands'."""
        return agent_result(await super().invoke(prompt, invocation_state, config, emit))

    def _remember(self, checkpointer: DirectCheckpointer) -> None:
        super()._remember(checkpointer)
        if self._manager and self._document:
            state = {
                "document": self._document,
                "visit": self._visits,
                "messages": checkpointer.messages,
            }
            agent = SessionAgent(self._id, {}, {}, {"runner": codec.plain(state)})
            repository = self._manager.session_repository
            write = repository.update_agent if self._stored else repository.create_agent
            write(self._manager.session_id, agent)
            self._stored = agent


def agent_result(result: runner.AgentResult) -> strands.agent.AgentResult:
    """Return an agent's result as Strands'."""
    metrics = EventLoopMetrics()
    metrics.accumulated_usage.update(result.metrics.accumulated_usage)  # type: ignore[typeddict-item]
    return strands.agent.AgentResult(
        result.stop_reason,  # type: ignore[arg-type]
        result.message,  # type: ignore[arg-type]
        metrics,
        result.state,
        [question(each) for each in result.interrupts] or None,
        result.structured_output,
    )


def question(interrupt: runner.Interrupt) -> strands.interrupt.Interrupt:
    """Return a question as Strands'."""
    return strands.interrupt.Interrupt(**interrupt.to_dict())


# -- graphs -----------------------------------------------------------------------------------------


SESSIONS: dict[tuple[str, str], Store] = {}
"""Stores of graphs with a session manager, by its folder or bucket and its session; in this process."""

EVENTS = {
    "node.started": ("start", runner.Status.RUNNING),
    "node.completed": ("stop", runner.Status.COMPLETED),
    "node.failed": ("stop", runner.Status.FAILED),
    "interrupt.asked": ("interrupt", runner.Status.WAITING),
}
"""The last word of Strands' event, and the status that the node then had."""

STATUS = {
    runner.Status.COMPLETED: theirs.Status.COMPLETED,
    runner.Status.FAILED: theirs.Status.FAILED,
    runner.Status.WAITING: theirs.Status.INTERRUPTED,
}


class StoppedWithoutError(Exception):
    """An executor's result says that it failed or was cancelled: the node fails, and nothing is raised."""


class CompatGraph(runner.Graph):
    """A graph of this library that is made and called as Strands' graphs, and returns their results."""

    store: Store | None = None

    def __init__(
        self,
        nodes: Mapping[str, Any],
        edges: Collection[Any],
        entry_points: Collection[Any],
        *,
        reset_on_revisit: bool = False,
        hooks: Any = None,
        session_manager: Any = None,
        id: str = "default_graph",  # noqa: A002 - its name in Strands
        plugins: Any = None,
        **bounds: Any,
    ) -> None:
        """Build the graph from what Strands' builder has collected.

        Raises:
            DefinitionError: it can't be a graph of this library.
        """
        if plugins:
            raise DefinitionError("plugins of graphs have no counterpart here: use hooks.")
        builder = runner.GraphBuilder().set_graph_id(id).reset_on_revisit(reset_on_revisit)
        builder.set_hook_providers(hooks or ())
        for name, bound in bounds.items():
            if bound is not None:
                getattr(builder, f"set_{name}")(bound)
        for name, node in nodes.items():
            function = (
                self._function(name, node.executor) if is_foreign(node.executor) else None
            )
            builder.add_node(function or node.executor, name)
            if node in entry_points:
                builder.set_entry_point(name)
        ids = ((edge.from_node.node_id, edge.to_node.node_id, edge) for edge in edges)
        places = list(nodes)
        # A set has no order, but every process must build the same graph.
        for source, target, edge in sorted(ids, key=lambda e: [places.index(n) for n in e[:2]]):
            builder.add_edge(source, target, edge.condition and on_nodes(edge))
        super().__init__(builder.build().definition)
        vars(self).update(bounds, reset_on_revisit=reset_on_revisit)
        self.prepare(nodes, edges, entry_points, session_manager)

    def prepare(
        self,
        nodes: Mapping[str, Any],
        edges: Collection[Any],
        entry_points: Collection[Any],
        manager: Any,
    ) -> None:
        """Keep Strands' views of nodes and edges."""
        self.nodes, self.edges, self.entry_points = nodes, edges, entry_points
        self.state, self._manager = theirs.GraphState(), manager
        self._given_store = self._given_store or CompatGraph.store
        self._foreign_results: dict[str, Any] = {}
        self._foreign_events = deque[dict[str, Any]]()

    def serialize_state(self) -> dict[str, Any]:
        """Return what a session manager stores: the open run."""
        return {"run_id": self._open}

    def deserialize_state(self, payload: Mapping[str, Any]) -> None:
        """Continue the open run that a session manager has stored."""
        if payload["run_id"]:
            self.resume(payload["run_id"])

    def _function(self, name: str, executor: Any) -> Callable[[NodeContext], Any]:
        """Return the function that runs an executor of another class; its questions are the node's."""

        async def run(ctx: NodeContext, blocks: Any) -> Any:
            final, state = None, ctx.invocation_state
            async for event in executor.stream_async(blocks, invocation_state=state):
                self._foreign_events.append(
                    {"type": "multiagent_node_stream", "node_id": name, "event": event}
                )
                if isinstance(event, dict) and "result" in event:
                    final = event["result"]
            if final is None:
                raise ValueError(f"Node '{name}' did not produce a result event")
            return final

        async def node(ctx: NodeContext) -> str:
            visit = ctx._visit  # noqa: SLF001 - blocks keep pictures, which `input_text` leaves out
            final = await run(ctx, input_blocks(visit.task, visit.inputs))
            while questions := getattr(final, "interrupts", None):
                answers = [
                    {"interruptId": each.id, "response": ctx.interrupt(each.name, each.reason)}
                    for each in questions
                ]
                final = await run(ctx, [{"interruptResponse": each} for each in answers])
            self._foreign_results[name] = final
            signal = getattr(executor, "cancel_signal", None)
            is_cancelled = getattr(final, "stop_reason", "") == "cancelled"
            if getattr(final, "status", None) is theirs.Status.FAILED or (
                is_cancelled and (signal is None or signal.is_set())
            ):
                raise StoppedWithoutError(f"{name!r} failed or was cancelled")
            return str(final).strip()

        return node

    def __call__(self, task: Any, invocation_state: Any = None, **kwargs: Any) -> Any:
        """Run the graph, or answer its questions; the error of a failed node is raised."""
        return async_loop.run(self.invoke_async(task, invocation_state, **kwargs))

    async def invoke_async(self, task: Any, invocation_state: Any = None, **kwargs: Any) -> Any:
        """Run like a call, without blocking the event loop."""
        async with aclosing(self.stream_async(task, invocation_state, **kwargs)) as events:
            return [event async for event in events][-1]["result"]

    async def stream_async(
        self, task: Any, invocation_state: Any = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run like a call and yield Strands' events; a node's own ones only for other classes."""
        if manager := self._manager:
            place = str(getattr(manager, "storage_dir", getattr(manager, "bucket", "")))
            session = SESSIONS.setdefault((place, manager.session_id), MemoryStore())
            self._given_store = self._given_store or session
            manager.initialize_multi_agent(self)
        span = theirs.get_tracer().start_multiagent_span(task, "graph")
        state = {**(invocation_state or {}), **kwargs}
        with theirs.trace_api.use_span(span, end_on_exit=True):
            async with aclosing(super().stream_async(task, state)) as items:
                async for item in items:
                    while self._foreign_events:
                        yield self._foreign_events.popleft()
                    if "result" in item:
                        result = self._ended(item["result"], task)
                        yield {"type": "multiagent_result", "result": result}
                    elif item["type"] in EVENTS and item["node_id"] in self.nodes:
                        yield self._event(item)

    def _begin(self, task: object, state: Mapping[str, object] | None) -> Any:
        self._begun = super()._begin(task, state)
        return self._begun

    def _event(self, item: dict[str, Any]) -> dict[str, Any]:
        name, (word, status) = item["node_id"], EVENTS[item["type"]]
        event = {"type": f"multiagent_node_{word}", "node_id": name}
        if word == "start":
            is_graph = isinstance(self.nodes[name].executor, runner.Graph | MultiAgentBase)
            return event | {"node_type": "multiagent" if is_graph else "agent"}
        if status is runner.Status.FAILED:
            error, _, message = item["data"]["error"].partition(": ")
            if error == NodeFailed.__name__:
                return event | {"type": "multiagent_node_cancel", "message": message}
        engine, run_id, _ = self._begun
        snapshot = existing(engine.store.read(run_id), run_id)
        # By now, a loop may have started the node again.
        record = replace(snapshot.nodes[name], visit=item["visit"], status=status)
        snapshot = replace(snapshot, nodes={**snapshot.nodes, name: record})
        node = self._node_result(name, graph_result(engine.store, snapshot).results[name])
        if word == "interrupt":
            return event | {"interrupts": node.interrupts}
        return event | {"node_result": node}

    def _ended(self, result: GraphResult, task: Any) -> Any:
        """Return the result of a call and store the open run, or raise the error of a failed node."""
        converted = self.convert(result, task)
        if self._manager:
            self._manager.sync_multi_agent(self)
        errors = [node.result for node in result.results.values() if node.error]
        if not errors or isinstance(self, runner.Swarm):
            return converted
        if isinstance(errors[0], StoppedWithoutError):
            return converted
        raise RuntimeError(str(errors[0])) if isinstance(errors[0], NodeFailed) else errors[0]

    def convert(self, result: GraphResult, task: Any = "") -> Any:
        """Return a result as Strands', and show it in `state` and in the nodes."""
        results = {
            name: self._node_result(name, node)
            for name, node in result.results.items()
            if name in self.nodes and node.status in STATUS
        }
        usage, latency = Counter(inputTokens=0, outputTokens=0, totalTokens=0), 0
        for name, each in results.items():
            self.nodes[name].execution_status, self.nodes[name].result = each.status, each
            usage.update(each.accumulated_usage)
            latency += each.accumulated_metrics.get("latencyMs", 0)
        by_status = {
            f"{status.value}_nodes": {
                self.nodes[name] for name, each in results.items() if each.status is status
            }
            for status in STATUS.values()
        }
        order = [self.nodes[name] for name in result.execution_order]
        fields: dict[str, Any] = {
            "status": theirs.Status(result.status.value),
            "results": results,
            "accumulated_usage": dict(usage),
            "accumulated_metrics": {"latencyMs": latency},
            "execution_count": len(order),
            "execution_time": result.execution_time,
        }
        shape: dict[str, Any] = {
            "execution_order": order,
            "total_nodes": len(self.nodes),
            "edges": [(edge.from_node, edge.to_node) for edge in self.edges],
            "entry_points": list(self.entry_points),
        }
        self.state = theirs.GraphState(task, **by_status, **fields, **shape)
        fields["interrupts"] = [question(each) for each in result.interrupts]
        if isinstance(self, runner.Swarm):
            return SwarmResult(**fields, node_history=order)
        counts: dict[str, Any] = {name: len(nodes) for name, nodes in by_status.items()}
        return theirs.GraphResult(**fields, **shape, **counts)

    def _node_result(self, name: str, node: NodeResult) -> Any:
        value: Any = node.result
        usage, latency = dict(node.usage), {"latencyMs": node.execution_time}
        if name in self._foreign_results and node.status is not runner.Status.WAITING:
            value = value if node.error else self._foreign_results[name]
            metrics = getattr(value, "metrics", None) or value
            usage = dict(getattr(metrics, "accumulated_usage", usage))
            latency = dict(getattr(metrics, "accumulated_metrics", latency))
        elif isinstance(value, runner.AgentResult):
            value = agent_result(value)
        elif isinstance(value, GraphResult):
            value = self.nodes[name].executor.convert(value)
        questions = [question(each) for each in node.interrupts]
        return theirs.NodeResult(
            value, node.execution_time, STATUS[node.status], usage, latency, 1, questions
        )


def is_foreign(executor: object) -> bool:
    """Return whether an executor runs by its own `stream_async`."""
    method = getattr(executor, "stream_async", None)
    ours = (runner.Agent.stream_async, runner.Graph.stream_async, CompatGraph.stream_async)
    return method is not None and getattr(method, "__func__", None) not in ours


def on_nodes(edge: Any) -> Callable[..., object]:
    """Return an edge's condition as one of this library's; it is shown node objects in place of ids."""

    class NodesView:
        def __init__(self, state: Any) -> None:
            self._state = state

        def __getattr__(self, name: str) -> Any:
            value = getattr(self._state, name)
            if name not in {"completed_nodes", "failed_nodes", "execution_order"}:
                return value
            return type(value)(theirs.GraphNode(node, None) for node in value)

    def condition(state: Any, invocation_state: dict[str, Any]) -> object:
        return edge.should_traverse(NodesView(state), invocation_state=invocation_state)

    return condition


class CompatSwarm(CompatGraph, runner.Swarm):
    """A swarm of this library with the arguments of Strands' Swarm."""

    def __init__(
        self,
        nodes: Sequence[runner.Agent],
        *,
        hooks: Any = None,
        session_manager: Any = None,
        **options: Any,
    ) -> None:
        """Make the swarm.

        Raises:
            ValueError: an agent has a session manager, or the swarm can't be built.
        """
        views = {agent.name: theirs.GraphNode(agent.name, agent) for agent in nodes}
        for agent in nodes:
            theirs._validate_node_executor(agent)  # noqa: SLF001 - as Strands' swarm does
        runner.Swarm.__init__(self, nodes, hooks=hooks or (), **options)
        self.prepare(views, (), (), session_manager)


# -- names -------------------------------------------------------------------------------------------


def bound_names() -> dict[Any, Any]:
    """Return this library's classes and functions by Strands' ones."""
    ours = {
        name: getattr(hooks, name) for name in strands.hooks.__all__ if hasattr(hooks, name)
    }
    ours |= {
        "BeforeMultiAgentInvocationEvent": hooks.BeforeGraphEvent,
        "AfterMultiAgentInvocationEvent": hooks.AfterGraphEvent,
        "BaseHookEvent": hooks.HookEvent,
        "AgentInitializedEvent": AgentInitializedEvent,
        "MultiAgentInitializedEvent": MultiAgentInitializedEvent,
    }
    return {getattr(strands.hooks, name): value for name, value in ours.items()} | {
        strands.Agent: CompatAgent,
        strands.tool: runner.tool,
        strands.ToolContext: runner.ToolContext,
        strands.interrupt.InterruptException: InterruptRaised,
        theirs.Graph: CompatGraph,
        strands.multiagent.Swarm: CompatSwarm,
    }


def install(store: Store | None = None) -> None:
    """Bind Strands' names in all its modules that are loaded; once is enough.

    Graphs that are called in process keep their runs in `store`, or else in memory.
    """
    CompatGraph.store = store
    names = {id(name): ours for name, ours in bound_names().items()}
    for module in [m for n, m in sys.modules.items() if n.partition(".")[0] == "strands"]:
        for name, value in list(vars(module).items()):
            if id(value) in names:
                setattr(module, name, names[id(value)])
