"""The graphs that this process knows, by name, each built once.

A graph inside a graph is named by its path: `refund/review` is the graph at node `review` of
`refund`. So any worker can find the code of a child run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any, Protocol, TypeVar

from runner.approvals.rules import OUTER, Rule, excluded_answerers, excludes_requester
from runner.definition.model import Definition, EdgeSpec, NodeSpec, Topology, map_of
from runner.definition.topology import topology
from runner.errors import DefinitionError, NotFoundError, RunnerError
from runner.immutable import immutable
from runner.limits.concurrency import Admission, Concurrency, Debounce, admission
from runner.limits.fairness import Fairness
from runner.records.run import PATH
from runner.records.validation import similar


class HasDefinition(Protocol):
    """A built graph."""

    @property
    def definition(self) -> Definition:
        """The graph as it was declared."""

    @definition.setter
    def definition(self, definition: Definition) -> None: ...


@immutable
class CompiledGraph:
    """A graph ready to run: its declaration, its topology, and each node's edges.

    `bits` are the edges that a node's end takes, `routes` the nodes that its expired question may lead
    to. Nodes in `conditional` have conditions, which may take fewer edges. `for_requester` is a node that
    has, or whose tool has, a rule that excludes the requester, or "".
    """

    definition: Definition
    topology: Topology
    edges: dict[str, list[EdgeSpec]]
    bits: dict[str, str]
    routes: dict[str, list[str]]
    conditional: set[str]
    for_requester: str = ""

    def node(self, node: str) -> NodeSpec:
        """Return a node's declaration; for an item, its map's executor as a node."""
        nodes = self.definition.nodes
        return nodes.get(node) or nodes[map_of(node)].item()


def compile_graph(definition: Definition) -> CompiledGraph:
    excluding = (
        spec.id
        for spec in definition.nodes.values()
        if any(map(excludes_requester, _rules(spec)))
    )
    by_source = definition.edges_by_source()
    return CompiledGraph(
        definition,
        topology(definition),
        by_source,
        {
            node: "".join("01"[not edge.on_expire] for edge in by_source[node])
            for node in by_source
        },
        {
            node: [edge.target for edge in edges if edge.on_expire]
            for node, edges in by_source.items()
        },
        {edge.source for edge in definition.edges if edge.condition is not None},
        next(excluding, ""),
    )


def _rules(spec: NodeSpec) -> Iterator[Rule]:
    """Yield the rules that approve a node or its tools, or raise its budgets."""
    gates = [
        spec.approval,
        *(getattr(tool, "approval", None) for tool in tools_of(spec.executor)),
        *(budget.rule for budget in _budgets(spec)),
    ]
    return (rule for rule in gates if isinstance(rule, Rule))


def _budgets(spec: NodeSpec) -> Iterator[Any]:
    for agent in (spec.executor, *tools_of(spec.executor)):
        yield from getattr(getattr(agent, "config", None), "budgets", ())


def check_sums(definition: Definition) -> None:
    """Check that agents that share a sum ask to raise it by the same rule: a raise is for them all.

    Raises:
        DefinitionError: they have different rules.
    """
    rules: dict[tuple[str, str], tuple[str, Rule | None]] = {}
    for node in _nodes(definition):
        for budget in _budgets(node):
            if budget.over == "fail" or budget.per == "invocation":
                continue
            for counter in budget.limits:
                first, rule = rules.setdefault((budget.per, counter), (node.id, budget.rule))
                if rule != budget.rule:
                    raise DefinitionError(
                        f"nodes {first!r} and {node.id!r} have a budget of {counter} per {budget.per} with "
                        "different rules, but both may spend a raise. Give both the same rule."
                    )


def _nodes(definition: Definition) -> Iterator[NodeSpec]:
    for node in definition.nodes.values():
        yield node
        if nested := inner(node):
            yield from _nodes(nested)


def check_exclusions(
    rule: Rule, path: str, graphs: Iterable[Definition], *, is_outermost: bool = True
) -> None:
    """Check the nodes whose answerers a rule excludes, in the graph at a path and those around it.

    Raises:
        DefinitionError: the graph that the rule names lacks the node, or the node asks nothing.
    """
    own, *outer_graphs = graphs
    for name in excluded_answerers(rule):
        bare = name.removeprefix(OUTER)
        named = [own] if bare == name else outer_graphs
        node = next((graph.nodes[bare] for graph in named if bare in graph.nodes), None)
        if node is None and bare == name:
            problem = f"isn't a node of it; a node of an outer graph would be {OUTER + name!r}"
        elif node is None and is_outermost:
            problem = "isn't a node of a graph around it"
        elif node is not None and node.approval is None and (inner(node) or node.map):
            problem = "asks nothing itself: the nodes inside it ask"
        else:
            continue
        raise DefinitionError(
            f"a rule in graph {path!r} excludes those who answered {name!r}, which {problem}: no one would "
            "be excluded. Name the node that asks."
        )


def check_rules(
    definition: Definition, path: str, outer_graphs: Sequence[Definition] = ()
) -> None:
    """Check the rules of a graph and the graphs inside it; the graphs around it aren't known yet.

    Raises:
        DefinitionError: a rule excludes the answerers of a node that is missing or asks nothing.
    """
    graphs = (definition, *outer_graphs)
    for node in definition.nodes.values():
        for rule in _rules(node):
            check_exclusions(rule, path, graphs, is_outermost=False)
        if nested := inner(node):
            check_rules(nested, f"{path}{PATH}{node.id}", graphs)


Factory = TypeVar("Factory", bound=Callable[[], HasDefinition])


class Registry:
    """Graphs by name; a factory is called when its graph is first needed."""

    def __init__(self) -> None:
        self._factories: dict[str, Callable[[], HasDefinition]] = {}
        self._admissions: dict[str, Admission | None] = {}
        self._fairness: dict[str, Fairness | None] = {}
        self._plans: dict[str, CompiledGraph] = {}
        self._lock = threading.RLock()

    def add(
        self,
        name: str,
        factory: Callable[[], HasDefinition],
        admission: Admission | None = None,
        fairness: Fairness | None = None,
    ) -> None:
        """Register a factory under a name, with its limits on starts and its fairness.

        Raises:
            DefinitionError: the name is empty, has a "/", or is taken by another factory.
        """
        if not name or PATH in name:
            raise DefinitionError(
                f"a graph's name must be a text without {PATH!r}, not {name!r}."
            )
        with self._lock:
            existing = self._factories.get(name)
            if existing is not None and _place(existing) != _place(factory):
                raise DefinitionError(
                    f"two graphs are named {name!r}: {_place(existing)} and {_place(factory)}."
                )
            self._factories[name], self._admissions[name] = factory, admission
            self._fairness[name] = fairness
            self._plans = {
                path: compile_graph
                for path, compile_graph in self._plans.items()
                if path.split(PATH)[0] != name
            }

    def names(self) -> list[str]:
        """Return the names of the registered graphs, sorted."""
        return sorted(self._factories)

    def find(self, path: str) -> CompiledGraph | None:
        """Return the graph at a path, or None if this process doesn't have it."""
        with self._lock:
            if path in self._plans:
                return self._plans[path]
            definition = self._define(path)
            if definition is None:
                return None
            plan = compile_graph(
                replace(
                    definition,
                    id=path,
                    queue=definition.queue or self._outer_queue(path),
                    admission=self._admissions.get(path),
                    fairness=self._fairness.get(path.split(PATH, maxsplit=1)[0]),
                )
            )
            for rule in itertools.chain(*map(_rules, definition.nodes.values())):
                self._check(rule, definition, path)
            self._plans[path] = plan
            return plan

    def check_exclusions(self, path: str, rule: Rule) -> None:
        """Check the nodes whose answerers a rule in the graph at a path excludes.

        Raises:
            DefinitionError: neither the graph nor one around it has the node, or it asks nothing.
        """
        if excluded_answerers(rule) and (plan := self.find(path)):
            self._check(rule, plan.definition, path)

    def _check(self, rule: Rule, definition: Definition, path: str) -> None:
        check_exclusions(rule, path, itertools.chain([definition], self._outer_graphs(path)))

    def _outer_graphs(self, path: str) -> Iterator[Definition]:
        """Yield the graphs around the graph at a path, the nearest first."""
        while path := path.rpartition(PATH)[0]:
            if outer_graph := self.find(path):
                yield outer_graph.definition

    def get(self, path: str) -> CompiledGraph:
        """Return the graph at a path.

        Raises:
            NotFoundError: this process doesn't have it.
        """
        compile_graph = self.find(path)
        if compile_graph is None:
            names = ", ".join(self.names()) or "none"
            raise NotFoundError(
                f"no graph {path!r} is registered here; known: {names}. "
                f"Name the module that has it in RUNNER_GRAPHS.{similar(path, self.names())}"
            )
        return compile_graph

    def family(self, path: str) -> list[CompiledGraph]:
        """Return a graph and all graphs inside it, outermost first."""
        plans = [self.get(path)]
        for node in plans[0].definition.nodes.values():
            if inner(node) is not None:
                plans += self.family(f"{path}{PATH}{node.id}")
        return plans

    def names_on(self, path: str) -> set[str]:
        """Return the registered names and ids of the graphs on a path that this process has."""
        names: set[str] = set()
        while PATH in path:
            with contextlib.suppress(Exception):  # a graph that can't be built adds no name
                if definition := self._define(path):
                    names |= {definition.name, definition.id}
            path = path.rpartition(PATH)[0]
        return names - {""}

    def everything(self) -> Iterator[CompiledGraph]:
        """Yield all graphs that can be built here, and all graphs inside them."""
        for name in self.names():
            with contextlib.suppress(Exception):  # the error is reported when the graph is run
                yield from self.family(name)

    def _outer_queue(self, path: str) -> str | None:
        """Return the queue of the node that is a nested graph; None for a graph that isn't nested.

        It isn't a queue named after the nested graph, because that is found by its path: only a
        worker with the outermost graph can run it, even if the same graph is also registered by
        itself.
        """
        outer, _, node = path.rpartition(PATH)
        outer_graph = self.find(outer) if outer else None
        return outer_graph.topology.nodes[node].queue if outer_graph else None

    def _define(self, path: str) -> Definition | None:
        outer, _, node_id = path.rpartition(PATH)
        if outer:
            outer_graph = self.find(outer)
            node = outer_graph.definition.nodes.get(node_id) if outer_graph else None
            return inner(node) if node else None
        factory = self._factories.get(path)
        if factory is None:
            return None
        built = _build(path, factory)
        definition = getattr(built, "definition", None)
        if not isinstance(definition, Definition):
            kind = type(built).__name__
            advice = (
                "return builder.build()"
                if kind in ("GraphBuilder", "NoneType")
                else "return a graph"
            )
            raise DefinitionError(
                f"the function {_place(factory)} of graph {path!r} must return a graph, but returned a "
                f"{kind}: {advice}."
            )
        return definition


def tools_of(agent: object) -> Iterator[Any]:
    """Yield the tools of an agent, including the tools of agents among them."""
    tools = getattr(getattr(agent, "config", None), "tools", None) or {}
    for tool in tools.values():
        yield tool
        yield from tools_of(tool)


def inner(node: NodeSpec) -> Definition | None:
    """Return the definition of the graph that a node is, or None."""
    definition = getattr(node.executor, "definition", None)
    return definition if isinstance(definition, Definition) else None


def _place(factory: object) -> str:
    return f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', factory)}"


registry = Registry()
"""The graphs of this process, filled by `@graph("name")` when their modules are imported."""


def graph(
    name: str,
    *,
    max_open_runs: int | None = None,
    concurrency: Concurrency | None = None,
    debounce: Debounce | None = None,
    fairness: Fairness | None = None,
) -> Callable[[Factory], Factory]:
    """Register the factory below under a name: `@graph("refund")` above `def refund() -> Graph`.

    A start is refused while `max_open_runs` of its runs are open. `concurrency` limits the open
    runs for each value of a key; with `debounce` a run begins some time after the last of several
    starts. With `fairness` its nodes, and the nodes of graphs inside it, share their queues' slots
    between keys.

    Raises:
        DefinitionError: the name is taken or a value can't be used.
    """
    if not isinstance(name, str):
        example = getattr(name, "__name__", "refund")
        raise DefinitionError(f"@graph needs the name of the graph: write @graph({example!r}).")
    starts = admission(name, max_open_runs, concurrency, debounce)
    if fairness is not None and not isinstance(fairness, Fairness):
        raise DefinitionError(f"graph {name!r}: fairness is a Fairness, not {fairness!r}.")

    def register(factory: Factory) -> Factory:
        registry.add(name, factory, starts, fairness)

        @functools.wraps(factory)
        def named() -> HasDefinition:
            built = factory()
            if isinstance(getattr(built, "definition", None), Definition):
                built.definition = replace(built.definition, name=name)
            return built

        return named  # type: ignore[return-value] # it is the factory, and names its graphs

    return register


def load(modules: Iterable[str]) -> None:
    """Import the modules that register graphs.

    Raises:
        DefinitionError: a module can't be imported; the message names the file and the line.
    """
    for module in modules:
        try:
            _set_up_django()
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            advice = ""
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(
                f"{error.name}."
            ):
                advice = " Name importable modules, separated by commas."
            # The last of the modules being imported has the fault, or calls the faulty code.
            line = _line_of(error, lambda code: code.co_name == "<module>")
            raise DefinitionError(
                f"the module {module!r} of RUNNER_GRAPHS can't be imported: {_summary(error)}{line}.{advice}"
            ) from error


def _set_up_django() -> None:
    """Set up a Django project as Celery does for its workers: modules of graphs import models."""
    if (
        os.environ.get("DJANGO_SETTINGS_MODULE")
        and importlib.util.find_spec("django")
        and not importlib.import_module("django.apps").apps.loading
    ):
        importlib.import_module("django").setup()


def _build(path: str, factory: Callable[[], HasDefinition]) -> object:
    """Call a factory.

    Raises:
        DefinitionError: it raised an error; the message names the file and the line.
    """
    try:
        return factory()
    except (Exception, SystemExit) as error:
        file = getattr(getattr(factory, "__code__", None), "co_filename", "")
        line = _line_of(error, lambda code: code.co_filename == file)
        raise DefinitionError(
            f"graph {path!r} can't be built: {_summary(error)}{line}."
        ) from error


def _summary(error: BaseException) -> str:
    text = str(error.msg if isinstance(error, SyntaxError) else error).rstrip(".")
    if isinstance(error, (ImportError, RunnerError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line_of(error: BaseException, is_users: Callable[[CodeType], bool]) -> str:
    """Return " (file, line n)" of a syntax error, or of the innermost frame in the user's code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_relative(error.filename)}, line {error.lineno})"
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_users(frame.f_code)
    ]
    return f" ({_relative(frames[-1][0])}, line {frames[-1][1]})" if frames else ""


def _relative(file: str) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return file
