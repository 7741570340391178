"""Paths of a JSON Schema: how many subschemas it unfolds to, and how many a value's check visits.

A reference that appears twice unfolds twice: in a chain of definitions, each referring twice to the
next, the number doubles, and a chain of 40 (3 KB) would take a validator hours. So the paths of a
schema are counted when it is accepted, without unfolding it. For a schema that refers to itself
this number is infinite, so its paths are counted for each value instead. A tree schema, which leads
to each child once, takes a few steps per node. A schema that leads to the same child several times,
such as a union of two kinds of node, doubles the steps with each level; a value that would take too
many is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from runner.errors import UsageError
from runner.immutable import immutable

MOST = 10_000
"""The most paths of a schema, and the most steps of the check of a small value."""

FOR_EACH = 10
"""Additional steps that a check may take for each part of the value."""

TOO_MANY = (
    f"it unfolds to more than {MOST:,} subschemas, since it is large, or refers to its definitions again and "
    "again"
)

BASE = "http://schema.invalid/"
"""Default address of a schema, to which relative references are resolved."""

NAMED_BY_ID = frozenset(
    f"http://json-schema.org/draft-0{number}/schema{end}"
    for number in (3, 4)
    for end in ("", "#")
)
"""Drafts whose keyword for a schema's address is `id`; since draft 6 it is `$id`."""

SAME = ""
PROPERTY = "property"
OTHERS = "others"
VALUES = "values"
ITEMS = "items"
KEYS = "keys"

APPLICATORS = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "if", "then", "else"), SAME),
    **dict.fromkeys(("dependentSchemas", "dependencies"), SAME),
    **dict.fromkeys(("items", "prefixItems", "additionalItems"), ITEMS),
    **dict.fromkeys(("unevaluatedItems", "contains"), ITEMS),
    **dict.fromkeys(("patternProperties", "unevaluatedProperties"), VALUES),
    "additionalProperties": OTHERS,
    "propertyNames": KEYS,
}
"""Keywords with subschemas, and the values they apply to: the same value or some children."""

MAPS = frozenset({"dependentSchemas", "dependencies", "patternProperties"})
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
DATA = frozenset({"enum", "const", "default", "examples"})

UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
"""With these, a validator visits each alternative again, to see which parts it has evaluated."""

VISITS = 3
"""Visits of an alternative beside an unevaluated keyword, as measured with jsonschema-rs."""


@immutable
class Edge:
    """A subschema of a schema: the values it applies to, and how often it is visited for each.

    `names` is the property's name, or for "others" the names of the properties to exclude.
    """

    target: int
    applies_to: str
    names: Collection[str] = ()
    visits: int = 1


@immutable
class SchemaPaths:
    """The graph of a schema: edges by node; a node is named by the identity of its JSON object."""

    root: int
    edges: Mapping[int, tuple[Edge, ...]]
    is_recursive: bool

    def refusal(self, value: Any) -> str:
        """Describe why the check of a value would take too long; "" if it would not."""
        if not self.is_recursive:
            return ""
        most = MOST + FOR_EACH * _size(value)
        with suppress(RecursionError):  # a value this deep takes too many steps
            if self._steps(self.root, value, {}) <= most:
                return ""
        return (
            f"nested too deeply for a schema that refers to itself: its check would take more than {most:,} "
            "steps"
        )

    def _steps(self, node: int, value: Any, memo: dict[tuple[int, int], int]) -> int:
        key = node, id(value)
        if key not in memo:
            memo[key] = 1 + sum(
                edge.visits * self._steps(edge.target, child, memo)
                for edge in self.edges[node]
                for child in _children(edge, value)
            )
        return memo[key]


def _size(value: Any) -> int:
    children = value.values() if isinstance(value, Mapping) else value
    return 1 + sum(map(_size, children)) if isinstance(value, (Mapping, list)) else 1


def _children(edge: Edge, value: Any) -> Iterator[Any]:
    if edge.applies_to == SAME:
        yield value
    elif isinstance(value, list) and edge.applies_to == ITEMS:
        yield from value
    elif isinstance(value, Mapping):
        for name, child in value.items():
            match edge.applies_to:
                case "property" if name in edge.names:
                    yield child
                case "others" if name not in edge.names:
                    yield child
                case "values":
                    yield child
                case "keys":
                    yield name


def paths_of(schema: Any) -> SchemaPaths:
    """Return the paths of a schema that was parsed from JSON.

    Raises:
        UsageError: it has too many paths, a reference outside it, or refers to itself for the same
            value.
    """
    addresses = _Addresses(schema)
    edges: dict[int, tuple[Edge, ...]] = {}
    is_recursive = False
    counts = dict[int, int]()
    pending: list[tuple[Any, bool]] = [(schema, False)]
    while pending:
        subschema, is_visited = pending.pop()
        node = id(subschema)
        if is_visited:
            # An edge to a node that is still being visited closes a circle, and counts once.
            counts[node] = 1 + sum(
                edge.visits * counts.get(edge.target, 1) for edge in edges[node]
            )
        elif node in edges:
            is_recursive |= node not in counts
        else:
            branches = list(_edges(subschema, addresses))
            edges[node] = tuple(edge for edge, _ in branches)
            pending += [(subschema, True), *((target, False) for _, target in branches)]
    if counts[id(schema)] > MOST:
        raise UsageError(TOO_MANY)
    same = {
        node: [edge.target for edge in out if edge.applies_to == SAME]
        for node, out in edges.items()
    }
    try:
        TopologicalSorter(same).prepare()
    except CycleError:
        raise UsageError(
            "it refers to itself for the same value, so its check has no end"
        ) from None
    return SchemaPaths(id(schema), edges, is_recursive)


def _edges(schema: Any, addresses: _Addresses) -> Iterator[tuple[Edge, Any]]:
    """Yield the edges of a schema, each with the subschema it leads to."""
    if not isinstance(schema, Mapping):
        return
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    visits = VISITS if UNEVALUATED & schema.keys() else 1
    for name, subschema in properties.items():
        yield Edge(id(subschema), PROPERTY, (name,)), subschema
    for keyword, entry in schema.items():
        if keyword in REFERENCES and isinstance(entry, str):
            subschemas = addresses.targets(schema, keyword, entry)
            values = SAME
        elif keyword in APPLICATORS:
            is_map = keyword in MAPS and isinstance(entry, Mapping)
            subschemas = list(entry.values()) if is_map else [entry]
            subschemas = entry if isinstance(entry, list) else subschemas
            values = APPLICATORS[keyword]
        else:
            continue
        for subschema in subschemas:
            if isinstance(subschema, (Mapping, bool)):
                yield (
                    Edge(id(subschema), values, properties.keys(), 1 if values else visits),
                    subschema,
                )


class _Addresses:
    """Subschemas by the addresses under which references find them."""

    def __init__(self, schema: Any) -> None:
        draft = schema.get("$schema") if isinstance(schema, Mapping) else None
        self._name = "id" if draft in NAMED_BY_ID else "$id"
        self._bases = dict[int, str]()
        self._resources: dict[str, Any] = {BASE: schema}
        self._schema = schema
        pending = [(schema, BASE)]
        while pending:
            entry, base = pending.pop()
            if isinstance(entry, list):
                pending += [(item, base) for item in entry]
            elif isinstance(entry, Mapping):
                base = self._named(entry, base)
                self._bases[id(entry)] = base
                if len(self._bases) > MOST:
                    raise UsageError(TOO_MANY)
                pending += [(item, base) for name, item in entry.items() if name not in DATA]

    def _named(self, entry: Mapping[str, Any], base: str) -> str:
        """Record the names of a subschema; return the base address of its references."""
        name = entry.get(self._name)
        anchors = [entry.get("$anchor"), entry.get("$dynamicAnchor")]
        if isinstance(name, str) and name.startswith("#"):
            anchors.append(name[1:])
        elif isinstance(name, str):
            base = urldefrag(urljoin(base, name)).url
            self._add(base, entry)
        for anchor in anchors:
            if isinstance(anchor, str):
                self._add(f"{base}#{anchor}", entry)
        return base

    def _add(self, address: str, entry: Any) -> None:
        if self._resources.setdefault(address, entry) is not entry:
            raise UsageError(f"it has two subschemas named {address.removeprefix(BASE)!r}")

    def targets(self, schema: Any, keyword: str, reference: str) -> list[Any]:
        """Return the subschemas that a reference may lead to.

        Raises:
            UsageError: it leads to none.
        """
        base = self._bases.get(id(schema), BASE)
        address = base + reference if reference.startswith("#") else urljoin(base, reference)
        url, fragment = urldefrag(address)
        if fragment and not fragment.startswith("/"):
            subschemas = [self._resources.get(address)]
        else:
            subschemas = [at_pointer(self._resources.get(url), unquote(fragment))]
        if keyword == "$dynamicRef":  # the outermost of that name, wherever it is used
            subschemas += [
                entry
                for name, entry in self._resources.items()
                if name.endswith(f"#{fragment}")
            ]
        elif keyword == "$recursiveRef":
            subschemas.append(self._schema)
        subschemas = [entry for entry in subschemas if isinstance(entry, (Mapping, bool))]
        if not subschemas:
            raise UsageError(
                f"it refers to {reference!r}, and references outside it are not followed"
            )
        return list({id(entry): entry for entry in subschemas}.values())


def at_pointer(resource: Any, pointer: str) -> Any:
    """Follow a JSON pointer; None if it leads nowhere."""
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(resource, Mapping):
            resource = resource.get(name)
        elif isinstance(resource, list) and name.isdecimal() and int(name) < len(resource):
            resource = resource[int(name)]
        else:
            return None
    return resource
