"""Strands' public names bound to this library: a program for Strands runs here with one line more.

Call `install()` before the program imports its names from `strands`. Agents, tools, hooks, graphs
and swarms are this library's from then on; results, states and questions are Strands' own classes,
filled from this library's. See docs/how-to/from-strands.md for the differences that remain.
"""

from __future__ import annotations

import inspect
import sys
import uuid
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import runner
from runner import async_loop, hooks
from runner.agent.agent import DirectCalls
from runner.agent.checkpointer import DirectCheckpointer
from runner.agent.context import UserState
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

SAME = ("messages", "tools", "system_prompt", "structured_output_model", "hooks", "description")
"""Options of Strands' Agent that mean the same here; the first four follow the model in its arguments."""

OTHERS = ("name", "state", "session_manager", "conversation_manager", "tool_executor")

UNUSED = {
    *("callback_handler", "record_direct_tool_call", "load_tools_from_directory", "agent_id"),
    *("trace_attributes", "baggage_attributes", "retry_strategy", "concurrent_invocation_mode"),
}
"""Options of Strands' Agent without an effect; docs/how-to/from-strands.md says what to use."""

BOUNDS = ("max_node_executions", "execution_timeout", "node_timeout")


class AgentInitializedEvent(hooks.AgentEvent):
    """An agent was made; its callbacks can't ask."""


class MultiAgentInitializedEvent(hooks.GraphEvent):
    """A graph was built, by each worker for itself; its callbacks can't ask."""


def fire(event: hooks.HookEvent, registry: hooks.HookRegistry) -> None:
    """Call the callbacks of an event while an object is made.

    Raises:
        DefinitionError: a callback is async.
    """
    for callback in registry.callbacks_for(type(event)):
        if inspect.iscoroutinefunction(callback):
            raise DefinitionError(
                f"a callback of {type(event).__name__} can't be async: make it sync."
            )
        callback(event)


# -- agents -----------------------------------------------------------------------------------------


class CompatAgent(runner.Agent):
    """An agent of this library with the arguments of Strands' Agent."""

    def __init__(self, model: Any = None, *arguments: Any, **options: Any) -> None:
        """Make the agent; a model's name, or none, means Bedrock.

        Raises:
            DefinitionError: an option has no counterpart here.
        """
        options |= dict(zip(SAME[:4], arguments, strict=False))
        chosen = {option: value for option, value in options.items() if value}
        same = {option: chosen.pop(option) for option in SAME if option in chosen}
        name, state, manager, window, executor = (chosen.pop(option, None) for option in OTHERS)
        if unknown := chosen.keys() - UNUSED:
            raise DefinitionError(
                f"options {sorted(unknown)} of Strands' Agent have no counterpart here: "
                "docs/how-to/from-strands.md says what to use."
            )
        if model is None or isinstance(model, str):
            model = strands.models.BedrockModel(**({"model_id": model} if model else {}))  # type: ignore[arg-type]
        is_sequential = isinstance(executor, strands.tools.executors.SequentialToolExecutor)
        super().__init__(
            name or "Strands Agents",
            model,
            state=state if state is None or isinstance(state, Mapping) else state.get(),
            tool_executor="sequential" if is_sequential else "concurrent",
            conversation_window=getattr(window, "window_size", None),
            **same,
        )
        self.agent_id = chosen.get("agent_id", "default")
        self._session_manager, self._direct_calls = manager, CompatCalls(self, manager)
        fire(AgentInitializedEvent(agent=self), self.hooks)

    @property
    def model(self) -> Any:
        """The model provider."""
        return self._config.model


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

    async def invoke(self, *arguments: Any, **options: Any) -> Any:
        """Return the result as Strands'."""
        return agent_result(await super().invoke(*arguments, **options))

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
        [question(interrupt) for interrupt in result.interrupts] or None,
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
        self, nodes: Mapping[str, Any], edges: Any, entry_points: Any, **options: Any
    ) -> None:
        """Build the graph from what Strands' builder has collected.

        Raises:
            DefinitionError: it can't be a graph of this library.
        """
        providers, manager = options.pop("hooks", None), options.pop("session_manager", None)
        if options.pop("plugins", None):
            raise DefinitionError("plugins of graphs have no counterpart here: use hooks.")
        builder = runner.GraphBuilder().set_graph_id(options.get("id") or "default_graph")
        builder.reset_on_revisit(options.get("reset_on_revisit", False))
        builder.set_hook_providers(providers or ())
        for bound in BOUNDS:
            if options.get(bound) is not None:
                getattr(builder, f"set_{bound}")(options[bound])
        for name, node in nodes.items():
            run = self._function(name, node.executor) if is_foreign(node.executor) else None
            builder.add_node(run or node.executor, name)
            if node in entry_points:
                builder.set_entry_point(name)
        places = list(nodes)
        ids = ((edge.from_node.node_id, edge.to_node.node_id, edge) for edge in edges)
        # A set has no order, but every process must build the same graph.
        for source, target, edge in sorted(ids, key=lambda e: [places.index(n) for n in e[:2]]):
            builder.add_edge(source, target, edge.condition and on_nodes(edge))
        super().__init__(builder.build().definition)
        vars(self).update(options)
        self.prepare(nodes, edges, entry_points, manager, providers)

    def prepare(
        self,
        nodes: Mapping[str, Any],
        edges: Any,
        entry_points: Any,
        manager: Any,
        providers: Any,
    ) -> None:
        """Keep Strands' views of nodes and edges, and tell the hooks that the graph is built."""
        self.nodes, self.edges, self.entry_points = nodes, edges, entry_points
        self.state, self._manager = theirs.GraphState(), manager
        self._given_store = self._given_store or CompatGraph.store
        self._foreign_results: dict[str, Any] = {}
        self._foreign_events = deque[dict[str, Any]]()
        registry = hooks.HookRegistry(tuple(providers or ()))
        fire(MultiAgentInitializedEvent(source=self), registry)

    def serialize_state(self) -> dict[str, Any]:
        """Return what a session manager stores: the open run."""
        return {"run_id": self._open}

    def deserialize_state(self, payload: Mapping[str, Any]) -> None:
        """Continue the open run that a session manager has stored."""
        if payload["run_id"]:
            self.resume(payload["run_id"])

    def _function(self, name: str, executor: Any) -> Callable[[NodeContext], Any]:
        """Return the function that runs an executor of another class; its questions are the node's."""

        async def node(ctx: NodeContext) -> str:
            visit = ctx._visit  # noqa: SLF001 - blocks keep pictures, which `input_text` leaves out
            state, final = ctx.invocation_state, None
            blocks: Any = input_blocks(visit.task, visit.inputs)
            while final is None or blocks:
                async for event in executor.stream_async(blocks, invocation_state=state):
                    self._foreign_events.append(
                        {"type": "multiagent_node_stream", "node_id": name, "event": event}
                    )
                    if isinstance(event, dict) and "result" in event:
                        final = event["result"]
                if final is None:
                    raise ValueError(f"Node '{name}' did not produce a result event")
                answers = [
                    {
                        "interruptId": asked.id,
                        "response": ctx.interrupt(asked.name, asked.reason),
                    }
                    for asked in getattr(final, "interrupts", None) or ()
                ]
                blocks = [{"interruptResponse": answer} for answer in answers]
            self._foreign_results[name] = final
            signal = getattr(executor, "cancel_signal", None)
            is_cancelled = getattr(final, "stop_reason", "") == "cancelled"
            if getattr(final, "status", None) is theirs.Status.FAILED or (
                is_cancelled and (signal is None or signal.is_set())
            ):
                raise StoppedWithoutError(f"{name!r} failed or was cancelled")
            return str(final).strip()

        return node

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Run the graph, or answer its questions; the error of a failed node is raised."""
        return async_loop.run(self.invoke_async(*arguments, **options))

    async def invoke_async(self, *arguments: Any, **options: Any) -> Any:
        """Run like a call, without blocking the event loop."""
        async with aclosing(self.stream_async(*arguments, **options)) as events:
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
        error = next((node.result for node in result.results.values() if node.error), None)
        if error is None or isinstance(self, runner.Swarm):
            return converted
        if isinstance(error, StoppedWithoutError):
            return converted
        raise RuntimeError(str(error)) if isinstance(error, NodeFailed) else error

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
        fields["interrupts"] = [question(interrupt) for interrupt in result.interrupts]
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
        questions = [question(interrupt) for interrupt in node.interrupts]
        return theirs.NodeResult(
            value, node.execution_time, STATUS[node.status], usage, latency, 1, questions
        )


def is_foreign(executor: object) -> bool:
    """Return whether an executor runs by its own `stream_async`."""
    method = getattr(executor, "stream_async", None)
    return method is not None and not str(method.__module__).startswith("runner.")


class NodesView:
    """A state in a condition, with node objects in place of ids."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._state, name)
        if name not in {"completed_nodes", "failed_nodes", "execution_order"}:
            return value
        return type(value)(theirs.GraphNode(node, None) for node in value)


def on_nodes(edge: Any) -> Callable[..., object]:
    """Return an edge's condition as one of this library's."""

    def condition(state: Any, invocation_state: dict[str, Any]) -> object:
        return edge.should_traverse(NodesView(state), invocation_state=invocation_state)

    return condition


class CompatSwarm(CompatGraph, runner.Swarm):
    """A swarm of this library with the arguments of Strands' Swarm."""

    def __init__(self, nodes: Sequence[runner.Agent], **options: Any) -> None:
        """Make the swarm.

        Raises:
            ValueError: an agent has a session manager, or the swarm can't be built.
        """
        views = {agent.name: theirs.GraphNode(agent.name, agent) for agent in nodes}
        for agent in nodes:
            theirs._validate_node_executor(agent)  # noqa: SLF001 - as Strands' swarm does
        manager, providers = options.pop("session_manager", None), options.pop("hooks", ())
        runner.Swarm.__init__(self, nodes, hooks=providers or (), **options)
        self.prepare(views, (), (), manager, providers)


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
        "HookEvent": hooks.AgentEvent,
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
