"""Start runs, watch them and answer their questions, from any program that reaches the store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from runner import answers, codec
from runner.engine import Engine
from runner.errors import NotFoundError, ResponseError
from runner.interrupts import Answer, Interrupt, Receipt, answers_from
from runner.listings import InterruptQuery, Page, RunQuery, RunSummary, checked_limit
from runner.missing import known
from runner.outcomes import Session
from runner.ports import Dispatcher, Doorbell, Event, Store
from runner.registry import Registry, registry
from runner.results import GraphResult, graph_result
from runner.run import Status
from runner.steering import Steering

WAIT = 5.0
"""Seconds of one blocking look at a run's events; a longer wait is several of these."""


class LeftToSweeper:
    """A Dispatcher for programs without a broker: the store rings, or the next sweep of any worker."""

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Leave each doorbell to its timer in the store, which is due at once."""

    def call(self, task: str, kwargs: Mapping[str, Any], task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Leave it to a worker."""
        return False


class Run(Steering):
    """One run: its state is in the store, this object only names it."""

    def __init__(self, run_id: str, engine: Engine) -> None:
        """Made by Client.start and Client.run."""
        self.id = run_id
        self._engine = engine

    @property
    def status(self) -> Status:
        """Where the run stands now.

        Raises:
            NotFoundError: there is no such run.
        """
        return known(self._engine.store.peek(self.id), self.id).status

    def result(self) -> GraphResult:
        """Read everything about the run as it stands now.

        Raises:
            NotFoundError: there is no such run.
        """
        store = self._engine.store
        return graph_result(store, known(store.read(self.id), self.id))

    def wait(self, timeout: float | None = None) -> GraphResult:
        """Wait until the run has ended or only people can go on; `timeout` in seconds.

        Raises:
            TimeoutError: it was still executing then; the run goes on.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        after = ""
        while self.status is Status.EXECUTING:
            left = WAIT if ends is None else ends - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"run {self.id} still executes after {timeout:g} s; it goes on.")
            for event in self._engine.store.events(self.id, after, wait=min(left, WAIT)):
                after = event.position
        return self.result()

    def interrupts(self) -> list[Interrupt]:
        """List the run's open questions, those of graphs inside it included."""
        return self.result().interrupts

    def respond(self, responses: Sequence[Mapping[str, object]]) -> list[Receipt]:
        """Answer in the Strands shape; the set is applied whole or not at all.

        Raises:
            ResponseError: the shape is not `[{"interruptResponse": {...}}]`, or a question is of another run.
        """
        given = answers_from(list(responses))
        answers.check_run(self.id, given, self._engine.store.peek)
        return self._engine.answer(given)

    def events(self, after: str = "", *, follow: bool = False) -> Iterator[Event]:
        """Read what happened, in order, after a position; `follow` goes on until the run ends."""
        while True:
            final = self._engine.store.peek(self.id)
            goes_on = follow and final is not None and not final.is_final
            found = self._engine.store.events(self.id, after, wait=WAIT if goes_on else 0)
            for event in found:
                after = event.position
                yield event
            if not found and not goes_on:
                return

    def cancel(self, reason: str = "cancelled by a caller") -> bool:
        """Stop the run; False when it had ended or was stopping already.

        Raises:
            NotFoundError: there is no such run.
        """
        return self._engine.cancel(self.id, reason) == "cancelled"


class Client:
    """The way in for programs: opens the store of the settings, or of the URL given."""

    def __init__(
        self,
        redis_url: str | None = None,
        broker_url: str | None = None,
        *,
        store: Store | None = None,
        dispatcher: Dispatcher | None = None,
        registry: Registry = registry,
    ) -> None:
        """Without arguments the `RUNNER_*` settings decide."""
        given = {"redis_url": redis_url, "broker_url": broker_url}
        self.engine = Engine(
            store or _open(**{key: value for key, value in given.items() if value is not None}),
            dispatcher or LeftToSweeper(),
            registry,
        )

    def start(
        self,
        graph_id: str,
        task: object,
        *,
        invocation_state: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        on_end: str | None = None,
    ) -> Run:
        """Begin a run of a graph that a worker or this program has registered.

        `on_end` names a Celery task, or `task@queue`, that a worker calls when the run has ended.

        Raises:
            NotFoundError: nobody knows the graph. UnstorableError: the task can't be stored.
            UsageError: a tag or `on_end` can't be used.
        """
        started = self.engine.start(
            graph_id,
            task,
            invocation_state=invocation_state,
            idempotency_key=idempotency_key,
            tags=tags,
            on_end=on_end or "",
        )
        return Run(started, self.engine)

    def run(self, run_id: str) -> Run:
        """Name an existing run.

        Raises:
            NotFoundError: there is no such run.
        """
        found = Run(run_id, self.engine)
        _ = found.status
        return found

    def runs(
        self,
        status: Status | str | None = None,
        *,
        graph: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[RunSummary]:
        """List the runs that fit all that is given, newest first.

        `since` and `until` are about when a run began: datetimes, or milliseconds. To read on, give the
        page's `next` as `cursor` until it is None; a page may have fewer items than `limit`.

        Raises:
            UsageError: the limit or the cursor can't be used.
        """
        query = RunQuery(Status(status) if status else None, graph, tags or {}, _ms(since), _ms(until))
        return self.engine.store.runs(query, checked_limit(limit), cursor or "")

    def interrupts(
        self,
        *,
        graph: str | None = None,
        run: str | None = None,
        name: str | None = None,
        assignee: str | None = None,
        older_than: float | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Interrupt]:
        """List the open questions that fit all that is given, oldest first.

        `graph` and `run` take in what the graphs inside them ask; `assignee` takes what is assigned to
        that person, and leaves out what anybody may answer; `older_than` is in seconds. Pages are read
        on as with `runs`.

        Raises:
            UsageError: the limit or the cursor can't be used.
        """
        until = None if older_than is None else round((time.time() - older_than) * 1000)
        query = InterruptQuery(graph, run, name, assignee, until)
        return self.engine.store.open_interrupts(query, checked_limit(limit), cursor or "")

    def interrupt(self, interrupt_id: str) -> Interrupt:
        """Read one question, open or not.

        Raises:
            NotFoundError: it was never asked.
        """
        found = self.engine.store.interrupts([interrupt_id])[0]
        if found is None:
            raise NotFoundError(f"no question {interrupt_id!r} was asked.")
        return found

    def respond(
        self,
        interrupt_id: str,
        response: object,
        *,
        responder: str | None = None,
        digest: str | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Answer one question; `digest` makes sure that it is the one that was shown.

        Raises:
            ResponseError: the response is None. UnstorableError: it can't be stored.
        """
        if response is None:
            raise ResponseError(
                f"the answer to {interrupt_id} is None, which is no answer; nothing was applied."
            )
        packed: Any = codec.pack(response, "response")
        return self.engine.answer([Answer(interrupt_id, packed, responder, idempotency_key, digest)])[0]

    def withdraw(self, interrupt_id: str, reason: str = "", *, reask: bool = False) -> None:
        """Take an open question back; an answer to it is `superseded` from now on.

        The node that asked goes on: `interrupt()` raises InterruptWithdrawn in it, which fails the node
        unless its code catches it. With `reask` it runs on at once and asks anew: a new question with a
        new id, of the same words if the code is the same. An attempt after the failed one asks anew, too.

        Raises:
            NotFoundError: it was never asked. ConflictError: it is not open any more.
        """
        self.engine.withdraw(interrupt_id, reason, reask=reask)

    def session(self, session_id: str) -> Session:
        """Read what runs have left under a session's id: messages and state; one never written is empty."""
        found = self.engine.store.session(session_id)
        return Session(codec.unpack(found.messages), codec.unpack(found.state))

    def forget_session(self, session_id: str) -> bool:
        """Delete a session; False when there was none. Runs that are in it now add to a new one."""
        return self.engine.store.forget_session(session_id)


def _ms(at: datetime | int | None) -> int | None:
    return round(at.timestamp() * 1000) if isinstance(at, datetime) else at


def _open(**given: str) -> Store:
    # Imported here: settings and the Redis client cost most of the start-up time of a program.
    from runner.settings import Settings  # noqa: PLC0415 - see above
    from runner.store import open_store  # noqa: PLC0415 - see above

    settings = Settings(**given)  # type: ignore[arg-type]
    return open_store(
        settings.redis_url,
        lease=settings.lease,
        retention=settings.retention,
        max_bytes=settings.max_result,
        max_state=settings.max_state,
        max_run=settings.max_run,
        durability=settings.durability,
    )
