"""The bound of a run's size in the memory store, and what the Redis store would write of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner import schedule
from runner.graph import AFTER_GRAPH
from runner.interrupts import Interrupt
from runner.migrating import Migration
from runner.outcomes import Saved
from runner.ports import Settlement, Start, Token
from runner.run import Status
from runner.store import questions
from runner.store.layout import dump
from runner.store.shelf import Shelf
from runner.store.weights import Weights

JSON = Any


class MemorySizes:
    """The part of the memory store that counts. It refuses what lua/parts/size.lua does."""

    max_run: int
    _shelf: Shelf

    def _holds(self, token: Token) -> bool:
        run = self._shelf.runs.get(token.run_id)
        if run is None:
            return False
        return schedule.holds(self._shelf.draft(run).node(token.node), token.visit, token.fence)

    def _small(self, token: Token | None, value: JSON) -> bytes:
        """Write a value, or a reference to it where it is large and its run is there."""
        data, run = dump(value), self._shelf.runs.get(token.run_id) if token else None
        if run is None:
            return data
        if not (run.record.stopping or run.weights.knows(data)):
            run.weights.room(len(data), self.max_run)
        return run.weights.shelve(data)

    def _room(self, token: Token, more: int, saved: Saved | None = None) -> None:
        """Refuse what a worker wants to write, unless its node must end.

        Raises:
            PayloadTooLarge: its run would have more than it may.
        """
        run = self._shelf.runs.get(token.run_id)
        ends = token.node == AFTER_GRAPH or (run is not None and run.stops(token.node))
        if run is not None and self._holds(token) and not ends:
            kept = run.weights.more(token.run_id, token.node, saved)
            run.weights.room(more + kept, self.max_run)

    def _check_start(self, start: Start, size: int) -> None:
        parent = self._shelf.runs.get(start.parent.run_id) if start.parent else None
        if parent is not None and parent.record.stopping:
            return
        root = start.root or (parent.record.root if parent else start.run_id)
        found = self._shelf.runs.get(root)
        (found.weights if found else Weights(root)).room(size, self.max_run)

    def _weigh_result(self, token: Token, settlement: Settlement) -> tuple[int, int]:
        """Tell the bytes of the entry and of the output that a visit leaves."""
        if settlement.status is not Status.COMPLETED:
            return len(dump(settlement.entry)), 0
        output = self._small(token, settlement.output)
        return len(self._small(token, settlement.entry)), len(output)

    def _weigh_questions(self, token: Token, asked: Sequence[Interrupt]) -> dict[str, tuple[int, int]]:
        """Tell the bytes of questions, with what time does to them."""
        return questions.sizes(asked, self._small, token)

    def _opened(self, token: Token, asked: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Choose the questions that are to be opened."""
        run = self._shelf.runs.get(token.run_id)
        if run is None or not self._holds(token):
            return {}
        return {each: size for each, size in asked.items() if run.standing(each) in {"", "withdrawn"}}

    def _count_questions(self, run_id: str, asked: Mapping[str, tuple[int, int]]) -> None:
        weights = self._shelf.runs[run_id].weights
        for each, (own, by_time) in asked.items():
            weights.put(("q", each), own)
            weights.put(("w", each), by_time)

    def _weigh_move(self, move: Migration) -> dict[str, tuple[int, int]]:
        """Put large values of a migration apart; tell the bytes of the questions that it asks."""
        at = Token(move.run_id, "", 0, 0)
        for _, _, entry in move.visits:
            if entry is not None:
                self._small(at, entry)
        return self._weigh_questions(at, move.asked)
