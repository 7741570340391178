"""Every transition that a run of one node with a question goes through, as requests that may be repeated.

A request that is sent twice with one mark has one nonce, as when the store's own link repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runner.records.checkpoints import Saved
from runner.records.interrupts import Address, Decision
from runner.records.run import Status
from runner.store.interface import Claim, Settlement, Start, Store
from runner.store.requests import (
    AnswerQuestions,
    AskQuestions,
    CancelRun,
    ClaimVisit,
    ParkVisit,
    RetryVisit,
    SaveCheckpoint,
    SettleVisit,
    StartRun,
)
from tests.contract.store.manual_worker import shape

GRAPH = shape("a>b", name="verbs")
SETTLED = Settlement(Status.COMPLETED, "1", "out", {"v": 1, "kind": "function", "ms": 1})

Request = tuple[str, str, Callable[[str], object]]
"""A verb, what it must reply, and how it is sent with a mark."""


class Walk:
    """A run from its start to its end, one request after another."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store, self.run_id = store, run_id
        self.token = None
        self.question = Address(run_id, "a", 1).ask("ok?", scope="function")

    def __iter__(self) -> Iterator[Request]:
        store, asked = self.store, [self.question]
        store.publish([GRAPH])
        start = Start(
            self.run_id, GRAPH.graph_id, GRAPH.fingerprint, "task", idempotency_key=self.run_id
        )
        yield "start", self.run_id, lambda mark: store.do(StartRun(start)).run_id
        yield "claim", "claimed", lambda mark: self._claim(1, f"1{mark}")
        yield (
            "save",
            "saved",
            lambda _: store.do(SaveCheckpoint(self.token, Saved({"v": 1}, 0, ["m"]))).word,
        )
        yield "ask", "asked", lambda _: store.do(AskQuestions(self.token, asked, None)).word
        yield "park", "waiting", lambda _: store.do(ParkVisit(self.token, asked, None)).word
        yield "answer", "accepted", lambda mark: self._answer(f"a{mark}")
        yield "claim", "claimed", lambda mark: self._claim(1, f"2{mark}")
        yield (
            "retry",
            "retrying",
            lambda _: store.do(RetryVisit(self.token, 0, {"v": 1}, None)).word,
        )
        while "a" not in {bell.node for bell in store.sweep().doorbells}:
            continue
        yield "claim", "claimed", lambda mark: self._claim(2, f"3{mark}")
        yield (
            "settle",
            "settled",
            lambda mark: store.do(SettleVisit(self.token, SETTLED, f"e{mark}")).word,
        )
        yield (
            "cancel",
            "cancelled",
            lambda mark: store.do(CancelRun(self.run_id, "enough", f"c{mark}")).word,
        )

    def _claim(self, attempt: int, nonce: str) -> str:
        claim = self.store.do(ClaimVisit(self.run_id, "a", 1, attempt, nonce))
        if not isinstance(claim, Claim):
            return claim.word
        self.token = claim.token
        return "claimed"

    def _answer(self, nonce: str) -> str:
        (receipt,) = self.store.do(
            AnswerQuestions([Decision(self.question.id, "yes")], nonce)
        ).receipts
        return str(receipt.status)


LAST = "cancelled"
"""Where the walk's run stands in the end."""
