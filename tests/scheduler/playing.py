"""Plays a graph through the transitions alone, with the decisions of conditions written down."""

from __future__ import annotations

from collections.abc import Callable

from runner.definition.model import Topology
from runner.records.run import Status
from runner.store.interface import Reply, Settlement
from runner.store.memory.store import MemoryStore
from runner.store.requests import ClaimVisit, SettleVisit
from runner.testing import ManualClock
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import failure

LIMIT = 300
"""Visits after which a test has gone wrong: no graph here repeats that often."""


class Play:
    """One run of a graph in which `takes(node, visit)` says which edges are taken, as "101".

    Visits end in the order in which they became ready, unless `choose` picks another one of them.
    """

    def __init__(
        self,
        graph: Topology,
        takes: Callable[[str, int], str],
        *,
        choose: Callable[[int], int] = lambda _: 0,
        fails: frozenset[str] = frozenset(),
    ) -> None:
        self.worker = ManualWorker(MemoryStore(clock=ManualClock()))
        self.graph, self.takes, self.fails = graph, takes, fails
        self.run_id = self.worker.start(graph)
        self.inputs: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self.bells = [(node, 1) for node in self.ready()]
        for _ in range(LIMIT):
            if not self.bells:
                return
            self.visit(*self.bells.pop(choose(len(self.bells))))
        raise AssertionError(f"the run did not end within {LIMIT} visits")

    def ready(self) -> list[str]:
        snapshot = self.worker.read(self.run_id).nodes
        return [name for name, record in snapshot.items() if record.status is Status.READY]

    def visit(self, node: str, visit: int) -> None:
        """Claim a visit, end it as decided, and note which visits are ready now."""
        claim = self.worker.store.do(
            ClaimVisit(self.run_id, node, visit, 1, self.worker.nonce())
        )
        if isinstance(claim, Reply):
            return  # its run has stopped since
        self.inputs[node, visit] = [(name, number) for name, number, _ in claim.inputs]
        status = Status.FAILED if node in self.fails else Status.COMPLETED
        entry = failure() if node in self.fails else {"v": 1}
        settlement = Settlement(status, self.takes(node, visit), f"{node}{visit}", entry)
        reply = self.worker.store.do(SettleVisit(claim.token, settlement, self.worker.nonce()))
        assert reply.word == "settled"
        self.bells += [(bell.node, bell.visit) for bell in reply.doorbells]

    @property
    def order(self) -> str:
        """The completed visits in order, as "a b a"."""
        return " ".join(self.worker.read(self.run_id).order)

    @property
    def end(self) -> str:
        """Where the run and those nodes stand that did not complete, as "completed: c skipped"."""
        snapshot = self.worker.read(self.run_id)
        others = [
            f"{name} {record.status}"
            for name, record in sorted(snapshot.nodes.items())
            if record.status is not Status.COMPLETED
        ]
        return f"{snapshot.record.status}: {', '.join(others)}".rstrip(" :")


def by_visit(**decided: str) -> Callable[[str, int], str]:
    """Write decisions as `b="10 01"`: the edges of each visit; the last ones hold for all later visits."""

    def takes(node: str, visit: int) -> str:
        visits = decided.get(node, "1111").split()
        return visits[min(visit, len(visits)) - 1]

    return takes
