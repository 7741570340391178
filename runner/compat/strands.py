"""Strands' public names bound to this library: a program for Strands runs here with one line more.

Call `install()` before the program imports its names from `strands`. Agents, tools, hooks, graphs
and swarms are this library's from then on; results, states and questions are Strands' own classes,
filled from this library's. See docs/how-to/from-strands.md for the differences that remain.
"""

from __future__ import annotations

import inspect
import sys
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import runner
from runner import hooks
from runner.agent.agent import DirectCalls
from runner.agent.checkpointer import DirectCheckpointer
from runner.agent.config import AgentConfig
from runner.agent.context import UserState
from runner.agent.effects import Emit
from runner.definition.model import Definition
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
            options_of_model: dict[str, Any] = {"model_id": model} if model else {}
            model = strands.models.BedrockModel(**options_of_model)
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


# -- nodes of other classes --------------------------------------------------------------------------


class StoppedWithoutError(Exception):
    """An executor's result says that it failed or was cancelled: the node fails, and nothing is raised."""


class ForeignNodes:
    """Executors of other classes as functions: any object with Strands' `stream_async`."""

    def __init__(self) -> None:
        self.executors: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.events = deque[tuple[str, Any]]()

    def function(self, name: str, executor: Any) -> Callable[[NodeContext], Any]:
        """Return the function that runs an executor; its questions are the node's.

        Raises:
            DefinitionError: the executor is a node already.
        """
        if any(executor is other for other in self.executors.values()):
            raise DefinitionError("Duplicate node instance detected; build a second one.")
        self.executors[name] = executor

        async def run(ctx: NodeContext, blocks: Any) -> Any:
            final, state = None, ctx.invocation_state
            async for event in executor.stream_async(blocks, invocation_state=state):
                self.events.append((name, event))
                if isinstance(event, dict) and "result" in event:
                    final = event["result"]
            if final is None:
                raise ValueError(f"Node '{name}' did not produce a result event")
            return final

        async def node(ctx: NodeContext) -> str:
            visit = ctx._visit  # noqa: SLF001 - blocks keep pictures, which `input_text` leaves out
            final = await run(ctx, input_blocks(visit.task, visit.inputs))
            while questions := list(getattr(final, "interrupts", None) or ()):
                responses = [
                    {"interruptId": each.id, "response": ctx.interrupt(each.name, each.reason)}
                    for each in questions
                ]
                final = await run(ctx, [{"interruptResponse": each} for each in responses])
            self.results[name] = final
            status = getattr(final, "status", None)
            signal = getattr(executor, "cancel_signal", None)
            is_cancelled = getattr(final, "stop_reason", "") == "cancelled"
            if status is theirs.Status.FAILED or (
                is_cancelled and (signal is None or signal.is_set())
            ):
                raise StoppedWithoutError(f"{name!r} ended as {status or 'cancelled'}")
            return str(final).strip()

        return node


def is_foreign(executor: object) -> bool:
    """Return whether an executor runs by its own `stream_async`."""
    kind = type(executor)
    if issubclass(kind, runner.Agent):
        overrides = kind.stream_async is not runner.Agent.stream_async
        return overrides or "stream_async" in vars(executor)
    return hasattr(executor, "stream_async") and not issubclass(kind, runner.Graph)


# -- graphs -----------------------------------------------------------------------------------------


SESSIONS: dict[tuple[str, str], Store] = {}
"""Stores of graphs with a session manager, by its folder or bucket and its session; in this process."""

SETTINGS = ("max_node_executions", "execution_timeout", "node_timeout", "reset_on_revisit")

EVENTS = {
    "node.started": "multiagent_node_start",
    "node.completed": "multiagent_node_stop",
    "node.failed": "multiagent_node_stop",
    "interrupt.asked": "multiagent_node_interrupt",
}


class CompatGraph(runner.Graph):
    """A graph of this library that is called as Strands' graphs, and returns their results."""

    def __init__(
        self, definition: Definition, store: Store | None, foreign: ForeignNodes, manager: Any
    ) -> None:
        super().__init__(definition, store)
        self.prepare(foreign, manager)

    def prepare(self, foreign: ForeignNodes, manager: Any) -> None:
        """Make the views of nodes and edges, and continue the session's open run."""
        definition = self.definition
        self._foreign, self._manager = foreign, manager
        self.nodes = {
            name: theirs.GraphNode(name, foreign.executors.get(name, spec.executor))
            for name, spec in definition.nodes.items()
            if name[0] != "@"
        }
        self.edges = {
            theirs.GraphEdge(
                self.nodes[edge.source],
                self.nodes[edge.target],
                getattr(edge.condition, "theirs", None),
            )
            for edge in definition.edges
            if {edge.source, edge.target} <= self.nodes.keys()
        }
        for edge in self.edges:
            edge.to_node.dependencies.add(edge.from_node)
        self.entry_points = {
            self.nodes[name] for name in definition.entries if name in self.nodes
        }
        for setting in SETTINGS:
            setattr(self, setting, getattr(definition, setting))
        self.state = theirs.GraphState()
        self._stored = None
        if manager:
            place = str(getattr(manager, "storage_dir", getattr(manager, "bucket", "")))
            session = (place, manager.session_id)
            self._given_store = self._given_store or SESSIONS.setdefault(session, MemoryStore())
            self._stored = manager.session_repository.read_multi_agent(
                manager.session_id, self.id
            )
            if self._stored and self._stored["run_id"]:
                self.resume(self._stored["run_id"])

    def serialize_state(self) -> dict[str, Any]:
        """Return what a session manager stores: the open run."""
        return {"run_id": self._open}

    def __call__(
        self, task: Any, invocation_state: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """Run the graph, or answer its questions; the error of a failed node is raised."""
        with self._traced(task):
            state = {**(invocation_state or {}), **kwargs}
            return self._converted(super().__call__(task, state), task)

    async def invoke_async(
        self, task: Any, invocation_state: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Any:
        """Run like a call, without blocking the event loop."""
        with self._traced(task):
            state = {**(invocation_state or {}), **kwargs}
            return self._converted(await super().invoke_async(task, state), task)

    async def stream_async(
        self, task: Any, invocation_state: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run like a call and yield Strands' events; a node's own ones only for other classes."""
        state, events = {**(invocation_state or {}), **kwargs}, self._foreign.events
        with self._traced(task):
            async with aclosing(super().stream_async(task, state)) as items:
                async for item in items:
                    while events:
                        name, event = events.popleft()
                        yield {
                            "type": "multiagent_node_stream",
                            "node_id": name,
                            "event": event,
                        }
                    if "result" in item:
                        result = self._converted(item["result"], task)
                        yield {"type": "multiagent_result", "result": result}
                    elif item["type"] in EVENTS and item["node_id"] in self.nodes:
                        yield self._event(item)

    def _event(self, item: dict[str, Any]) -> dict[str, Any]:
        name, kind = item["node_id"], EVENTS[item["type"]]
        event = {"type": kind, "node_id": name}
        if kind == "multiagent_node_start":
            is_graph = isinstance(self.nodes[name].executor, (runner.Graph, MultiAgentBase))
            return event | {"node_type": "multiagent" if is_graph else "agent"}
        if item["type"] == "node.failed":
            error, _, message = item["data"]["error"].partition(": ")
            if error == NodeFailed.__name__:
                return event | {"type": "multiagent_node_cancel", "message": message}
        assert self._engine is not None  # noqa: S101 - it has sent the event
        assert self._open is not None  # noqa: S101 - as above
        store = self._engine.store
        result = graph_result(store, existing(store.read(self._open), self._open))
        node = self._node_result(name, result.results[name])
        if kind == "multiagent_node_interrupt":
            return event | {"interrupts": node.interrupts}
        return event | {"node_result": node}

    @contextmanager
    def _traced(self, task: Any) -> Iterator[None]:
        span = theirs.get_tracer().start_multiagent_span(task, "graph")
        with theirs.trace_api.use_span(span, end_on_exit=True):
            yield
        if self._manager:
            repository = self._manager.session_repository
            write = (
                repository.update_multi_agent if self._stored else repository.create_multi_agent
            )
            write(self._manager.session_id, self)
            self._stored = self.serialize_state()

    def _converted(self, result: GraphResult, task: Any) -> Any:
        converted = self.convert(result, task)
        for node in result.results.values():
            if node.status is runner.Status.FAILED and not isinstance(self, runner.Swarm):
                if isinstance(node.result, StoppedWithoutError):
                    return converted
                error = node.result
                raise RuntimeError(str(error)) if isinstance(error, NodeFailed) else error
        return converted

    def convert(self, result: GraphResult, task: Any = "") -> Any:
        """Return a result as Strands', and show it in `state` and in the nodes."""
        results = {
            name: self._node_result(name, node)
            for name, node in result.results.items()
            if name in self.nodes and node.status in STATUS
        }
        for name, each in results.items():
            self.nodes[name].execution_status, self.nodes[name].result = each.status, each
        usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
        latency = 0
        for each in results.values():
            latency += each.accumulated_metrics.get("latencyMs", 0)
            for key, number in each.accumulated_usage.items():
                usage[key] = usage.get(key, 0) + number
        order = [self.nodes[name] for name in result.execution_order]
        by_status = {
            f"{status.value}_nodes": {
                self.nodes[name] for name, each in results.items() if each.status is status
            }
            for status in STATUS.values()
        }
        fields: dict[str, Any] = {
            "status": theirs.Status(result.status.value),
            "results": results,
            "accumulated_usage": usage,
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
        value, executor = node.result, self.nodes[name].executor
        usage, latency = dict(node.usage), {"latencyMs": node.execution_time}
        if name in self._foreign.results and node.status is not runner.Status.WAITING:
            value = value if isinstance(value, Exception) else self._foreign.results[name]
            metrics = getattr(value, "metrics", None) or value
            usage = dict(getattr(metrics, "accumulated_usage", usage))
            latency = dict(getattr(metrics, "accumulated_metrics", latency))
        elif isinstance(value, runner.AgentResult):
            value = agent_result(value)
        elif isinstance(value, GraphResult):
            value = executor.convert(value)
        return theirs.NodeResult(
            value,
            node.execution_time,
            STATUS[node.status],
            usage,
            latency,
            1,
            [question(each) for each in node.interrupts],
        )


STATUS = {
    runner.Status.COMPLETED: theirs.Status.COMPLETED,
    runner.Status.FAILED: theirs.Status.FAILED,
    runner.Status.WAITING: theirs.Status.INTERRUPTED,
}


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
        runner.Swarm.__init__(self, nodes, hooks=hooks or (), **options)
        self.prepare(ForeignNodes(), session_manager)


class CompatBuilder(runner.GraphBuilder):
    """A builder of this library that takes Strands' kinds of nodes, and returns its views of them."""

    def __init__(self) -> None:
        super().__init__()
        self._foreign, self._manager = ForeignNodes(), None

    def add_node(self, executor: Any, node_id: str | None = None, **options: Any) -> Any:
        """Add a node: an agent, a graph, a swarm, or any object with `stream_async`."""
        name = node_id or getattr(executor, "id", None) or getattr(executor, "name", None)
        name = name or f"node_{len(self._nodes)}"
        if getattr(executor, "_session_manager", None):
            raise DefinitionError("Session persistence is not supported for Graph agents yet.")
        node = self._foreign.function(name, executor) if is_foreign(executor) else executor
        super().add_node(node, name, **options)
        return theirs.GraphNode(name, executor)

    def add_edge(self, source: Any, target: Any, condition: Any = None, **options: Any) -> Any:
        """Join two nodes, given by their ids or by the results of `add_node`."""
        source, target = (getattr(node, "node_id", node) for node in (source, target))
        return super().add_edge(source, target, condition and with_nodes(condition), **options)

    def set_session_manager(self, manager: Any) -> CompatBuilder:
        """Let each new graph of the session take the answers of its open run."""
        self._manager = manager
        return self

    def build(self) -> CompatGraph:
        """Check everything and build the graph."""
        return CompatGraph(
            super().build().definition, self._store, self._foreign, self._manager
        )


def with_nodes(condition: Callable[..., object]) -> Callable[..., object]:
    """Return a condition that shows Strands' node objects to `condition` in place of ids."""

    class NodesView:
        def __init__(self, state: Any) -> None:
            self._state = state

        def __getattr__(self, name: str) -> Any:
            value = getattr(self._state, name)
            if name not in {"completed_nodes", "failed_nodes", "execution_order"}:
                return value
            return type(value)(theirs.GraphNode(node, None) for node in value)

    def view(state: Any) -> object:
        wants_state = "invocation_state" in inspect.signature(condition).parameters
        options = {"invocation_state": state.invocation_state} if wants_state else {}
        return condition(NodesView(state), **options)

    view.theirs = condition  # type: ignore[attr-defined]
    return view


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
        theirs.GraphBuilder: CompatBuilder,
        strands.multiagent.Swarm: CompatSwarm,
    }


def install() -> None:
    """Bind Strands' names in all its modules that are loaded; once is enough."""
    names = {id(name): ours for name, ours in bound_names().items()}
    for module in [m for n, m in sys.modules.items() if n.partition(".")[0] == "strands"]:
        for name, value in list(vars(module).items()):
            if id(value) in names:
                setattr(module, name, names[id(value)])
