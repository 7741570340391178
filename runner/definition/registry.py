"""The graphs that this process knows, by name, each built once.

A graph inside a graph is named by its path: `refund/review` is the graph at node `review` of
`refund`. So any worker finds the code of a child run.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from runner.definition.model import Definition, EdgeSpec, NodeSpec, Topology, map_of
from runner.definition.topology import topology
from runner.errors import DefinitionError, NotFoundError

PATH = "/"


class HasDefinition(Protocol):
    """A built graph."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph ready to run: its declaration, its topology, and each node's edges."""

    definition: Definition
    topology: Topology
    edges: dict[str, list[EdgeSpec]]

    def node(self, node: str) -> NodeSpec:
        """Return a node's declaration; for an item, its map's executor as a node."""
        owner = self.definition.nodes.get(map_of(node))
        return owner.item() if owner else self.definition.nodes[node]

    def routes(self, node: str) -> list[str]:
        """The nodes to which an expired question of a node may lead."""
        return [edge.target for edge in self.edges.get(node, []) if edge.on_expire]


def plan(definition: Definition) -> Plan:
    """Compute the topology of a definition, and its edges by node."""
    return Plan(definition, topology(definition), definition.edges_by_source())


Factory = TypeVar("Factory", bound=Callable[[], HasDefinition])


class Registry:
    """Graphs by name; a factory is called the first time that its graph is needed."""

    def __init__(self) -> None:
        """Start empty."""
        self._factories: dict[str, Callable[[], HasDefinition]] = {}
        self._plans: dict[str, Plan] = {}
        self._lock = threading.RLock()

    def add(self, name: str, factory: Callable[[], HasDefinition]) -> None:
        """Register a factory under a name.

        Raises:
            DefinitionError: the name is empty, has a "/", or is taken by another factory.
        """
        if not name or PATH in name:
            raise DefinitionError(f"a graph's name must be a text without {PATH!r}, not {name!r}.")
        with self._lock:
            registered = self._factories.get(name)
            if registered is not None and _place(registered) != _place(factory):
                raise DefinitionError(
                    f"two graphs are named {name!r}: {_place(registered)} and {_place(factory)}."
                )
            self._factories[name] = factory
            self._plans = {path: found for path, found in self._plans.items() if path.split(PATH)[0] != name}

    def names(self) -> list[str]:
        """The names of the registered graphs, sorted."""
        return sorted(self._factories)

    def find(self, path: str) -> Plan | None:
        """Return the graph at a path, or None where this process does not have it."""
        with self._lock:
            if path in self._plans:
                return self._plans[path]
            definition = self._define(path)
            if definition is None:
                return None
            self._plans[path] = plan(replace(definition, id=path))
            return self._plans[path]

    def get(self, path: str) -> Plan:
        """Return the graph at a path.

        Raises:
            NotFoundError: this process does not have it.
        """
        plan = self.find(path)
        if plan is None:
            names = ", ".join(self.names()) or "none"
            raise NotFoundError(
                f"no graph {path!r} is registered here; known: {names}. "
                "Name the module that has it in RUNNER_GRAPHS."
            )
        return plan

    def family(self, path: str) -> list[Plan]:
        """Return a graph and all graphs inside it, outermost first."""
        plans = [self.get(path)]
        for node in plans[0].definition.nodes.values():
            if inner(node) is not None:
                plans += self.family(f"{path}{PATH}{node.id}")
        return plans

    def _define(self, path: str) -> Definition | None:
        outer, _, last = path.rpartition(PATH)
        if outer:
            around = self.find(outer)
            node = around.definition.nodes.get(last) if around else None
            return inner(node) if node else None
        factory = self._factories.get(path)
        if factory is None:
            return None
        built = factory()
        definition = getattr(built, "definition", None)
        if not isinstance(definition, Definition):
            kind = type(built).__name__
            advice = "return builder.build()" if kind in ("GraphBuilder", "NoneType") else "return a graph"
            raise DefinitionError(
                f"the function {_place(factory)} of graph {path!r} must return a graph, but returned a "
                f"{kind}: {advice}."
            )
        return definition


def inner(node: NodeSpec) -> Definition | None:
    """Return the definition of the graph that a node is, or None."""
    definition = getattr(node.executor, "definition", None)
    return definition if isinstance(definition, Definition) else None


def _place(factory: object) -> str:
    return f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', factory)}"


registry = Registry()
"""The graphs of this process, filled by `@graph("name")` when their modules are imported."""


def graph(name: str) -> Callable[[Factory], Factory]:
    """Register the factory below under a name: `@graph("refund")` above `def refund() -> Graph`."""

    def register(factory: Factory) -> Factory:
        registry.add(name, factory)
        return factory

    return register


def load(modules: Iterable[str]) -> None:
    """Import the modules that register graphs.

    Raises:
        DefinitionError: a module can't be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise DefinitionError(
                f"the module {module!r} of RUNNER_GRAPHS can't be imported: {error}. "
                "Name importable modules, separated by commas."
            ) from error
