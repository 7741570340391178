"""A run that goes on in another shape, as arguments of a script: see lua/parts/moves.lua."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from runner import codec
from runner.migrating import Migration, Renamed
from runner.moved import bare
from runner.ports import Token
from runner.store import questions, rewriting, told
from runner.store.layout import dump
from runner.store.link import Argument

JSON = Any


def arguments(move: Migration, put: Callable[[str, bytes], bytes]) -> Iterator[Argument]:
    """Write how a run goes on, and under which names; `put` keeps large values of a run apart."""
    at_hand = Token(move.run_id, "", 0, 0)
    yield from (move.run_id, move.events, move.fingerprint, move.graph_id, move.parent_node, move.path)
    yield from (move.started, dump(move.told))
    yield from rewriting.records(move.records)
    yield len(move.undone)
    for at, entry in move.undone.items():
        yield from (_named(at), dump(entry))
    yield len(move.forgets)
    yield from move.forgets
    yield len(move.renamed)
    for each in move.renamed:
        yield from _renamed(each)
    yield len(move.visits)
    for old, at, told_anew in move.visits:
        yield from (_named(old), _named(at), b"" if told_anew is None else put(move.run_id, dump(told_anew)))
    news: dict[str, JSON] = told.migration(move)
    yield len(move.moved)
    for old_id, new in move.moved:
        yield from (old_id, new.id, new.node_id, new.visit, codec.encode(bare(new)), dump(news[new.id]))
    yield len(move.withdrawn)
    for gone in move.withdrawn:
        yield from gone
    yield len(move.stops)
    yield from (child for _, child in move.stops)
    yield len(move.asked)
    yield from (part for each in move.asked for part in (each.node_id, each.visit))
    yield from questions.question_arguments(
        move.asked, lambda token, value: put(token.run_id, dump(value)), at_hand
    )


def _named(at: tuple[str, int]) -> str:
    return f"{at[0]}.{at[1]}"


def _renamed(each: Renamed) -> Iterator[Argument]:
    decided = dump([each.visit, *each.decided]) if each.decided else b""
    yield from (
        each.node,
        each.today,
        each.visit,
        b"" if each.document is None else dump(each.document),
        decided,
    )
