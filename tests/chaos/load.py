"""Programs that start runs and people who answer while faults happen, and what must hold of all they did."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

from runner import Client, Status
from runner.errors import StoreError
from runner.store.redis.store import RedisStore
from tests.celery.workers import LEASE
from tests.waiting import wait_until

GRAPHS = ("chain", "diamond", "question", "loop")
PAUSE = 0.1
"""Seconds between two requests of one thread: the workers of a test must keep up."""


class Load:
    """Two threads, with a key for each request: they repeat it until they are told what became of it.

    `started` and `answered` hold what was acknowledged: the run of each key, the answer to each question.
    """

    def __init__(self, url: str, graphs=GRAPHS, pause: float = PAUSE, **settings) -> None:
        self.client = Client(store=RedisStore(url, lease=LEASE, **settings))
        self.started: dict[str, str] = {}
        self.answered: dict[str, int] = {}
        self.receipts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._graphs, self._pause, self._stop, self._failed = (
            graphs,
            pause,
            threading.Event(),
            [],
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(turn,))
            for turn in (self._begin, self._answer)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        self.close()
        assert not self._failed, self._failed

    def _guarded(self, turn) -> None:
        try:
            while not self._stop.wait(self._pause):
                turn()
        except BaseException as error:  # noqa: BLE001 - raised where the test sees it
            self._failed.append(error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections of the thread that calls."""
        self.client.engine.store.close()

    def _repeat(self, request):
        while True:
            try:
                return request()
            except StoreError as error:
                self.errors[type(error).__name__] += 1
                if self._stop.wait(PAUSE):
                    return None

    def _begin(self) -> None:
        key = f"start{len(self.started)}"
        graph = self._graphs[len(self.started) % len(self._graphs)]
        run = self._repeat(partial(self.client.start, graph, key, idempotency_key=key))
        if run is not None:
            self.started[key] = run.id

    def _answer(self) -> None:
        for question in self._repeat(partial(self.client.interrupts, limit=20)) or ():
            number = len(self.answered)
            respond = partial(
                self.client.respond, question.id, number, idempotency_key=f"answer{number}"
            )
            receipt = self._repeat(respond)
            if receipt is not None:
                self.receipts[receipt.status] += 1
                self.answered[question.id] = number

    def finish(self, seconds: float) -> None:
        """Wait until every run that was acknowledged has completed; what is still asked is answered."""

        def ended():
            for question in self.client.interrupts():
                self.client.respond(question.id, "late")
            status = {
                key: self.client.run(run_id).status for key, run_id in self.started.items()
            }
            return set(status.values()) <= {Status.COMPLETED}

        wait_until(ended, f"all {len(self.started)} runs complete", seconds=seconds)

    def check(self) -> None:
        """Look whether anything was lost, doubled or half done."""
        assert set(self.receipts) <= {"accepted"}, self.receipts
        for run_id in self.started.values():
            consistent(self.client.engine.store, run_id)
        for interrupt_id, number in self.answered.items():
            question = self.client.interrupt(interrupt_id)
            assert (question.status, question.response) == ("answered", number)


def consistent(store, run_id: str) -> None:
    """Check one run that has ended: events without a gap, each visit completed once, counters in step."""
    events = store.events(run_id)
    assert [int(event.position.split("-")[0]) for event in events] == list(
        range(1, len(events) + 1)
    )
    done = Counter(
        (event.node, event.visit) for event in events if event.kind == "node.completed"
    )
    assert set(done.values()) <= {1}, (run_id, done)
    run = store.read(run_id)
    assert (run.record.active, run.record.waiting, run.record.held) == (0, 0, 0)
    assert sorted(run.order) == sorted(node for node, _ in done)
    assert set(run.outputs) >= set(done)
