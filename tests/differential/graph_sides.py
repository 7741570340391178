"""The same graph twice: in the released `strands-agents`, and here.

Both get agents with the same scripts, the same conditions and the same callbacks. What either does
is written down in a form that both have; the order of nodes that run side by side is in neither.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import strands.hooks
import strands.multiagent

import runner
import runner.hooks
from runner import async_loop
from tests.differential.sides import Scripted, plain

JSON = Any
EDGES = Sequence[tuple[str, str] | tuple[str, str, Callable[[Any], bool]]]
NODE_EVENTS = ("BeforeNodeCallEvent", "AfterNodeCallEvent")


@dataclass
class Plot:
    """A graph to play: replies of the agent at each node, edges, entry points, settings, callbacks.

    A node whose script is a Plot is a graph of its own. `tools` are functions, `hooks` callbacks by
    the name of their event; a tool is given to every agent.
    """

    nodes: Mapping[str, Any]
    edges: EDGES = ()
    entries: Sequence[str] = ()
    tools: Sequence[Callable[..., Any]] = ()
    hooks: Sequence[tuple[str, Callable[[Any], Any]]] = ()
    limit: int | None = 30
    reset: bool = False


@dataclass
class GraphRecord:
    """What happened in one call of the graph, in a form that both sides have."""

    status: str
    ran: str
    interrupts: list[tuple[str, Any]]
    requests: dict[str, list[JSON]]
    results: dict[str, str]
    fired: list[str]
    counts: tuple[int, int, int] = (0, 0, 0)
    error: str = ""


class GraphSide:
    """One of the two, with its graph."""

    def __init__(self, name: str, plot: Plot) -> None:
        self.name, self.plot = name, plot
        self.home = importlib.import_module(name)
        self.events = importlib.import_module(f"{name}.hooks")
        self.models: dict[str, Scripted] = {}
        self.fired: list[str] = []
        self.asked: list[Any] = []
        self.graph = self._graph(plot, "", hooks=True)

    def _graph(self, plot: Plot, path: str, *, hooks: bool = False) -> Any:
        ours = self.name == "runner"
        builder = runner.GraphBuilder() if ours else strands.multiagent.GraphBuilder()
        for node, script in plot.nodes.items():
            builder.add_node(self._executor(script, path + node), node)
        for source, target, *condition in plot.edges:
            builder.add_edge(source, target, *condition)
        for entry in plot.entries:
            builder.set_entry_point(entry)
        if plot.limit:
            builder.set_max_node_executions(plot.limit)
        if hooks:
            builder.set_hook_providers([self])
        return builder.reset_on_revisit(plot.reset).build()

    def _executor(self, script: Any, path: str) -> Any:
        if isinstance(script, Plot):
            return self._graph(script, f"{path}/")
        options = {"callback_handler": None} if self.name == "strands" else {}
        self.models[path] = Scripted(script)
        tools = [self.home.tool(context="ctx")(tool) for tool in self.plot.tools]
        return self.home.Agent(
            name=path.replace("/", "_"), model=self.models[path], tools=tools, **options
        )

    def register_hooks(self, registry: Any, **_: Any) -> None:
        """Write the events of nodes down, then do what the plot says."""
        for name in NODE_EVENTS:
            kind = getattr(self.events, name)
            registry.add_callback(
                kind,
                lambda event, name=name: self.fired.append(
                    f"{name.removesuffix('NodeCallEvent')} {event.node_id}"
                ),
            )
        for name, callback in self.plot.hooks:
            registry.add_callback(getattr(self.events, name), callback)

    def play(self, task: Any) -> GraphRecord:
        """Call the graph; write down what came of it since the call before."""
        self.fired.clear()
        for model in self.models.values():
            model.requests.clear()
        items, error = async_loop.run(_collected(self.graph, task))
        result = items[-1]["result"] if items and "result" in items[-1] else None
        self.asked = list(result.interrupts) if result is not None else []
        results = result.results if result is not None else self._left()
        return GraphRecord(
            status=str(getattr(result.status, "value", result.status))
            if result is not None
            else "failed",
            ran=_ran(items),
            interrupts=sorted((question.name, question.reason) for question in self.asked),
            requests={
                node: [
                    by_section(without_ends(plain(request[-1]))) for request in model.requests
                ]
                for node, model in self.models.items()
            },
            results={
                node: _shown(node_result.result)
                for node, node_result in sorted(results.items())
                if _ended(node_result)
            },
            fired=sorted(self.fired),
            counts=(0, 0, 0)
            if result is None
            else (result.completed_nodes, result.failed_nodes, result.interrupted_nodes),
            error=error,
        )

    def _left(self) -> Mapping[str, Any]:
        return self.graph.state.results if self.name == "strands" else {}

    def answer(self, **responses: Any) -> GraphRecord:
        """Answer open questions by name."""
        ids = {question.name: question.id for question in self.asked}
        return self.play(
            [
                {"interruptResponse": {"interruptId": ids[name], "response": response}}
                for name, response in responses.items()
            ]
        )


def _shown(result: Any) -> str:
    """Show an agent's result as text; those of graphs have no common form."""
    return "a graph" if hasattr(result, "execution_order") else str(result)


def _ended(node_result: Any) -> bool:
    return str(getattr(node_result.status, "value", node_result.status)) == "completed"


async def _collected(graph: Any, task: Any) -> tuple[list[JSON], str]:
    items: list[JSON] = []
    try:
        async for item in graph.stream_async(task):
            items.append(item)  # noqa: PERF401 - what came before an error counts
    except Exception as raised:  # noqa: BLE001 - an error is an outcome to compare
        return items, f"{type(raised).__name__}: {raised}"
    return items, ""


def _ran(items: Sequence[JSON]) -> str:
    """Write down the nodes that started, sorted; those of a graph inside are not among them.

    Here a node that is a graph starts again when that graph has ended, in the same visit.
    """
    kinds = {"multiagent_node_start", "node.started"}
    starts = [
        item for item in items if item.get("type") in kinds and "/" not in item["node_id"]
    ]
    visits = {(item["node_id"], item.get("visit", place)) for place, item in enumerate(starts)}
    return "".join(sorted(node for node, _ in visits))


def without_ends(message: JSON) -> JSON:
    """Cut the line end with which Strands closes the text of an agent that another one is shown."""
    return {**message, "content": [_without_end(block) for block in message["content"]]}


def _without_end(block: JSON) -> JSON:
    shown = block.get("text", "").startswith("  - Agent: ")
    return {"text": block["text"].removesuffix("\n")} if shown else block


def by_section(message: JSON) -> JSON:
    """Sort the sections of a message by node: Strands gives them in the order of a set."""
    blocks = message["content"]
    head = [
        block for block in blocks if "text" in block and block["text"].startswith("\nFrom ")
    ]
    if not head:
        return message
    first = blocks.index(head[0])
    sections: list[list[JSON]] = []
    for block in blocks[first:]:
        if "text" in block and block["text"].startswith("\nFrom "):
            sections.append([])
        sections[-1].append(block)
    ordered = [
        block
        for section in sorted(sections, key=lambda section_blocks: section_blocks[0]["text"])
        for block in section
    ]
    return {**message, "content": [*blocks[:first], *ordered]}


def both(make: Callable[[], Plot]) -> tuple[GraphSide, GraphSide]:
    """Set a plot on both sides; each has callbacks and lists of its own."""
    return GraphSide("strands", make()), GraphSide("runner", make())
