"""Strands' public names bound to this library: a program for Strands runs here with one line more.

Call `install()` before the program imports its names from `strands`. Agents, tools, hooks, graphs
and swarms are this library's from then on; results, states and questions are Strands' own classes,
filled from this library's. See docs/how-to/from-strands.md for the differences that remain.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from functools import partial
from typing import Any

import runner
from runner import async_loop, hooks
from runner.agent.agent import DirectCalls
from runner.agent.context import UserState
from runner.errors import DefinitionError, InterruptRaised, NodeFailed, needs_extra
from runner.execution.functions import NodeContext
from runner.execution.results import GraphResult, NodeResult, graph_result
from runner.records import codec
from runner.records.executors import input_blocks
from runner.store.interface import Store
from runner.store.memory.store import MemoryStore

with needs_extra("strands", "runner.compat.strands"):
    import strands.models
    import strands.multiagent.graph
    import strands.tools.executors
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


class AgentInitializedEvent(hooks.AgentEvent):
    """An agent was made; its callbacks can't ask."""


class MultiAgentInitializedEvent(hooks.GraphEvent):
    """A graph was built, by each worker for itself; its callbacks can't ask."""


def fire(event: hooks.HookEvent, registry: hooks.HookRegistry) -> None:
    """Call the callbacks of an event while an object is made."""
    async_loop.run(hooks.fire(event, registry.callbacks_for(type(event))))


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
        super().__init__(agent, manager and manager.session_id)
        self._sessions = manager and manager.session_repository
        self._id = agent.agent_id
        self._stored = self._sessions and self._sessions.read_agent(self._run_id, self._id)
        if past := getattr(self._stored, "_internal_state", {}).get("runner"):
            self._visits = past["visit"]
            super()._remember(past["document"], past["messages"])
        elif self._stored:  # by Strands
            written = self._sessions.list_messages(self._run_id, self._id)
            agent.messages = [message.to_message() for message in written]
            agent.state = UserState(self._stored.state)

    async def invoke(self, *arguments: Any, **options: Any) -> Any:
        """Return the result as Strands'."""
        return agent_result(await super().invoke(*arguments, **options))

    def _remember(self, document: Any, messages: Any) -> None:
        super()._remember(document, messages)
        if self._sessions and document:
            state = {"document": document, "visit": self._visits, "messages": messages}
            write = self._sessions.update_agent if self._stored else self._sessions.create_agent
            self._stored = SessionAgent(self._id, {}, {}, {"runner": codec.plain(state)})
            write(self._run_id, self._stored)


def agent_result(result: runner.AgentResult) -> Any:
    """Return an agent's result as Strands'."""
    metrics: Any = EventLoopMetrics()
    metrics.accumulated_usage.update(result.metrics.accumulated_usage)
    interrupts = questions(result.interrupts) or None
    output = result.structured_output
    make: Any = strands.agent.AgentResult
    return make(result.stop_reason, result.message, metrics, result.state, interrupts, output)


def questions(interrupts: Iterable[runner.Interrupt]) -> list[strands.interrupt.Interrupt]:
    """Return questions as Strands'."""
    return [strands.interrupt.Interrupt(**question.to_dict()) for question in interrupts]


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


class CompatGraph(runner.Graph):
    """A graph of this library that is made and called as Strands' graphs, and returns their results."""

    store: Store | None = None
    shared = MemoryStore()  # for session managers, unless `install` has named a store
    edges: Any = ()
    entry_points: Any = ()

    def __init__(self, nodes: Any, edges: Any, entry_points: Any, **options: Any) -> None:
        """Build the graph from what Strands' builder has collected.

        Raises:
            DefinitionError: it can't be a graph of this library.
        """
        providers = options.pop("hooks", None)
        manager = options.pop("session_manager", None)
        if options.pop("plugins", None):
            raise DefinitionError("plugins of graphs have no counterpart here: use hooks.")
        options.pop("trace_attributes", None)
        vars(self).update(options, edges=edges, entry_points=entry_points)
        builder = runner.GraphBuilder().set_graph_id(options.pop("id", None) or "default_graph")
        builder.reset_on_revisit(options.pop("reset_on_revisit", False))
        builder.set_hook_providers(providers or ())
        for bound, value in options.items():
            if value is not None:
                getattr(builder, f"set_{bound}")(value)
        for name, node in nodes.items():
            method = getattr(node.executor, "stream_async", None)
            is_ours = str(getattr(method, "__module__", "runner.")).startswith("runner.")
            run = node.executor if is_ours else self._function(name, node)
            task = self._input if isinstance(run, runner.Graph) else None
            builder.add_node(run, name, task=task)
            if node in entry_points:
                builder.set_entry_point(name)
        places = {node: place for place, node in enumerate(nodes.values())}
        # A set has no order, but every process must build the same graph.
        for edge in sorted(edges, key=lambda e: (places[e.from_node], places[e.to_node])):
            condition = edge.condition and partial(self._holds, edge)
            builder.add_edge(edge.from_node.node_id, edge.to_node.node_id, condition)
        super().__init__(builder.build().definition)
        self.prepare(nodes, providers, manager)

    def prepare(self, nodes: Any, providers: Any, manager: Any) -> None:
        """Keep Strands' views of the nodes, and tell the hooks that the graph is built."""
        self.nodes = nodes
        self.state = theirs.GraphState()
        self._manager = manager
        self._given_store = CompatGraph.store or (self.shared if manager else None)
        self._foreign: dict[str, Any] = {}
        self._foreign_events = deque[dict[str, Any]]()
        fire(MultiAgentInitializedEvent(source=self), hooks.HookRegistry(providers or ()))

    def serialize_state(self) -> dict[str, Any]:
        """Return what a session manager stores: the open run."""
        return {"run_id": self._open}

    def deserialize_state(self, payload: Mapping[str, Any]) -> None:
        """Continue the open run that a session manager has stored."""
        if payload["run_id"]:
            self.resume(payload["run_id"])

    def _input(self, ctx: NodeContext) -> list[Any]:
        """Return a node's input as Strands' graphs give it; `input_text` leaves out pictures."""
        return input_blocks(ctx.task, ctx._visit.inputs)  # noqa: SLF001 - only agents get blocks

    def _function(self, name: str, node: Any) -> Callable[[NodeContext], Any]:
        """Return the function that runs an executor of another class; its questions are the node's."""

        async def run(ctx: NodeContext) -> str:
            blocks = self._input(ctx)
            stream = node.executor.stream_async
            final = self._foreign.pop(name, None)
            while blocks:
                final = None
                async for event in stream(blocks, invocation_state=ctx.invocation_state):
                    shown = {"type": "multiagent_node_stream", "node_id": name, "event": event}
                    self._foreign_events.append(shown)
                    if isinstance(event, dict) and "result" in event:
                        final = event["result"]
                if final is None:
                    raise ValueError(f"Node '{name}' did not produce a result event")
                answers = [
                    {"interruptId": ask.id, "response": ctx.interrupt(ask.name, ask.reason)}
                    for ask in getattr(final, "interrupts", None) or ()
                ]
                blocks = [{"interruptResponse": answer} for answer in answers]
            self._foreign[name] = final
            signal = getattr(node.executor, "cancel_signal", None)
            is_stopped = signal is None or signal.is_set()
            end = getattr(final, "status", None) or getattr(final, "stop_reason", "")
            if end is theirs.Status.FAILED or (end == "cancelled" and is_stopped):
                raise RuntimeError(f"{name!r} failed or was cancelled")
            texts = [str(text).strip() for text in theirs.NodeResult(final).get_agent_results()]
            return "\n".join(texts)

        return run

    def _holds(self, edge: Any, state: Any, invocation_state: dict[str, Any]) -> object:
        """Return whether an edge's condition holds in a state of this library."""
        view = self._state(state, "executing", state.task)
        return edge.should_traverse(view, invocation_state=invocation_state)

    def __call__(self, task: Any, invocation_state: Any = None) -> Any:
        """Run the graph, or answer its questions; the error of a failed node is raised."""
        return async_loop.run(self.invoke_async(task, invocation_state))

    async def stream_async(
        self, task: Any, invocation_state: Any = None
    ) -> AsyncGenerator[Any]:
        """Run like a call and yield Strands' events; a node's own ones only for other classes."""
        if self._manager:
            self._manager.initialize_multi_agent(self)
        span = theirs.get_tracer().start_multiagent_span(task, "graph")
        with theirs.trace_api.use_span(span, end_on_exit=True):
            async with aclosing(super().stream_async(task, invocation_state)) as items:
                async for item in items:
                    while self._foreign_events:
                        yield self._foreign_events.popleft()
                    if "result" in item:
                        yield self._ended(item["result"], task)
                    elif item["type"] in EVENTS and item["node_id"] in self.nodes:
                        yield self._event(item)

    def _event(self, item: dict[str, Any]) -> dict[str, Any]:
        name, (word, status) = item["node_id"], EVENTS[item["type"]]
        event = {"type": f"multiagent_node_{word}", "node_id": name}
        if word == "start":
            is_graph = hasattr(self.nodes[name].executor, "serialize_state")
            return event | {"node_type": "multiagent" if is_graph else "agent"}
        if status is runner.Status.FAILED:
            error, _, message = item["data"]["error"].partition(": ")
            if error == NodeFailed.__name__:
                return event | {"type": "multiagent_node_cancel", "message": message}
        engine: Any = self._engine
        snapshot = engine.store.read(self._latest)
        # By now, a loop may have started the node again.
        record = replace(snapshot.nodes[name], visit=item["visit"], status=status)
        snapshot = replace(snapshot, nodes={**snapshot.nodes, name: record})
        node = self.node_result(name, graph_result(engine.store, snapshot).results[name])
        if word == "interrupt":
            return event | {"interrupts": node.interrupts}
        return event | {"node_result": node}

    def _ended(self, result: GraphResult, task: Any) -> dict[str, Any]:
        """Return the last event and store the open run, or raise the error of a failed node."""
        converted = self.convert(result, task)
        if self._manager:
            self._manager.sync_multi_agent(self)
        others = [node for name, node in result.results.items() if name not in self._foreign]
        error = next((node.result for node in others if node.error), None)
        if error is None or isinstance(self, runner.Swarm):
            return {"type": "multiagent_result", "result": converted}
        raise RuntimeError(str(error)) if isinstance(error, NodeFailed) else error

    def convert(self, result: GraphResult, task: Any = "") -> Any:
        """Return a result as Strands', and show it in `state` and in the nodes."""
        state = self._state(result, result.status, task)
        state.execution_time = result.execution_time
        self.state = state
        for name, item in state.results.items():
            self.nodes[name].execution_status = item.status
            self.nodes[name].result = item
        shown: Any = {k: len(v) if isinstance(v, set) else v for k, v in vars(state).items()}
        asked = questions(result.interrupts)
        shown |= {"interrupts": asked, "node_history": state.execution_order}
        kind: Any = SwarmResult if isinstance(self, runner.Swarm) else theirs.GraphResult
        return kind(**{field.name: shown[field.name] for field in fields(kind)})

    def _state(self, run: Any, status: str, task: Any) -> Any:
        """Return the state of a run, or its result, as Strands' state."""
        state = theirs.GraphState(task, theirs.Status(status), total_nodes=len(self.nodes))
        state.edges = [(edge.from_node, edge.to_node) for edge in self.edges]
        state.entry_points = list(self.entry_points)
        state.execution_order = [self.nodes[name] for name in run.execution_order]
        state.execution_count = len(state.execution_order)
        usage = Counter(state.accumulated_usage)
        latency = 0
        for name, node in run.results.items():
            if name in self.nodes and node.status in STATUS:
                result = state.results[name] = self.node_result(name, node)
                getattr(state, f"{result.status.value}_nodes").add(self.nodes[name])
                usage.update(result.accumulated_usage)
                latency += result.accumulated_metrics.get("latencyMs", 0)
        state.accumulated_usage = dict(usage)
        state.accumulated_metrics = {"latencyMs": latency}
        return state

    def node_result(self, name: str, node: NodeResult) -> Any:
        """Return a node's result as Strands'."""
        value: Any = node.result
        usage = dict(node.usage)
        latency = {"latencyMs": node.execution_time}
        if name in self._foreign and node.status is not runner.Status.WAITING:
            value = self._foreign[name]
            metrics = getattr(value, "metrics", None) or value
            usage = dict(getattr(metrics, "accumulated_usage", usage))
            latency = dict(getattr(metrics, "accumulated_metrics", latency))
        elif isinstance(value, runner.AgentResult):
            value = agent_result(value)
        elif isinstance(value, GraphResult):
            value = self.nodes[name].executor.convert(value)
        fields_of_result = (value, node.execution_time, STATUS[node.status], usage, latency, 1)
        return theirs.NodeResult(*fields_of_result, questions(node.interrupts))


class CompatSwarm(CompatGraph, runner.Swarm):
    """A swarm of this library with the arguments of Strands' Swarm."""

    def __init__(self, nodes: Sequence[runner.Agent], **options: Any) -> None:
        """Make the swarm; an agent with a session manager is refused."""
        views = {a.name: theirs.GraphBuilder().add_node(a, a.name) for a in nodes}
        providers = options.pop("hooks", None)
        manager = options.pop("session_manager", None)
        runner.Swarm.__init__(self, nodes, hooks=providers or (), **options)
        self.prepare(views, providers, manager)


NAMES: dict[Any, Any] = {
    getattr(strands.hooks, name): getattr(hooks, name)
    for name in vars(hooks).keys() & strands.hooks.__all__
} | {
    strands.hooks.BeforeMultiAgentInvocationEvent: hooks.BeforeGraphEvent,
    strands.hooks.AfterMultiAgentInvocationEvent: hooks.AfterGraphEvent,
    strands.hooks.BaseHookEvent: hooks.HookEvent,
    strands.hooks.HookEvent: hooks.AgentEvent,
    strands.hooks.AgentInitializedEvent: AgentInitializedEvent,
    strands.hooks.MultiAgentInitializedEvent: MultiAgentInitializedEvent,
    strands.Agent: CompatAgent,
    strands.tool: runner.tool,
    strands.ToolContext: runner.ToolContext,
    strands.interrupt.InterruptException: InterruptRaised,
    theirs.Graph: CompatGraph,
    strands.multiagent.Swarm: CompatSwarm,
}
"""This library's classes and functions by Strands' ones."""


def install(store: Store | None = None) -> None:
    """Bind Strands' names in all its modules that are loaded; once is enough.

    Graphs that are called in process keep their runs in `store`, or else in memory.
    """
    CompatGraph.store = store
    ours = {id(name): value for name, value in NAMES.items()}
    for module in [m for n, m in sys.modules.items() if n.partition(".")[0] == "strands"]:
        for name, value in list(vars(module).items()):
            if id(value) in ours:
                setattr(module, name, ours[id(value)])
