"""The rules of undos, in plain words: a run of a graph without loops, in which each node runs once.

A stopping run starts nothing more: idle nodes are cancelled, and running ones may end. When nothing is
left at work in a run that failed or was cancelled, the completed nodes are undone one after another,
the last one first. An undo is a node like any other, but it goes on in a stopping run.
"""

from __future__ import annotations

UNDO = "@undo:"
OPEN = ("ready", "running", "waiting")
SETTLED = ("completed", "failed", "skipped")


class Saga:
    """One run. `before` has the nodes that lead to each node, in an order in which they can run."""

    def __init__(self, before: dict[str, list[str]], undoable: set[str], *, fail_fast: bool):
        self.before, self.undoable, self.fail_fast = before, undoable, fail_fast
        self.states = dict.fromkeys(before, "pending")
        self.to_undo: list[str] = []
        self.stopping = ""
        self.advance()

    @property
    def status(self) -> str:
        if "ready" in self.states.values() or "running" in self.states.values():
            return "executing"
        if "waiting" in self.states.values():
            return "interrupted"
        return self.end()

    def end(self) -> str:
        """Say how the run ends when nothing is at work."""
        if "failed" in self.states.values() or self.stopping == "failed":
            return "failed"
        return "cancelled" if self.stopping else "completed"

    def stops(self, node: str) -> bool:
        """Say whether a node that gives its work back is cancelled."""
        return bool(self.stopping) and not node.startswith(UNDO)

    def claim(self, node: str) -> None:
        self.states[node] = "running"

    def give_back(self, node: str) -> None:
        """A worker is lost, or leaves the node."""
        self.put(node, "cancelled" if self.stops(node) else "ready")

    def park(self, node: str) -> None:
        """The node asks a person."""
        self.put(node, "cancelled" if self.stops(node) else "waiting")

    def answer(self, node: str) -> None:
        self.put(node, "ready")

    def complete(self, node: str, *, by_hand: bool = False) -> None:
        if node in self.undoable and not by_hand:
            self.to_undo.append(node)
        self.put(node, "completed")

    def fail(self, node: str) -> None:
        if self.fail_fast:
            self.stop("failed")
        self.put(node, "failed")

    def cancel(self) -> str:
        if self.stopping or self.status not in ("executing", "interrupted"):
            return "already"
        self.stop("cancelled")
        self.advance()
        return "cancelled"

    def stop(self, how: str) -> None:
        if not self.stopping:
            self.stopping = how
            for node, state in self.states.items():
                if state in ("ready", "waiting"):
                    self.states[node] = "cancelled"

    def put(self, node: str, state: str) -> None:
        self.states[node] = state
        self.advance()

    def advance(self) -> None:
        """Begin what can begin: nodes whose earlier ones have ended, then undos."""
        for node, earlier in self.before.items():
            states = [self.states[name] for name in earlier]
            waits = self.states[node] != "pending" or not set(states) <= set(SETTLED)
            if not (waits or self.stopping):
                self.states[node] = (
                    "ready" if "completed" in states or not states else "skipped"
                )
        at_work = any(state in OPEN for state in self.states.values())
        if not at_work and self.to_undo and self.end() != "completed":
            self.stopping = self.stopping or self.end()
            self.states[UNDO + self.to_undo.pop()] = "ready"
