"""Start runs, watch them and answer their questions, from any program that reaches the store."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from typing import Any, Self

from runner.approvals import granting
from runner.approvals.absences import Absence, absence_body
from runner.approvals.granting import GrantView
from runner.approvals.grants import GrantRecord
from runner.approvals.rules import Principal, Voter
from runner.approvals.votes import (
    Sign,
    absences,
    apply_operation,
    begin_absence,
    end_absence,
    inherited,
    now_of,
    principal_of,
    proven,
    requester_of,
)
from runner.definition.registry import Registry, load, registry
from runner.errors import NotFoundError, ResponseError, UsageError
from runner.execution.engine import Engine
from runner.execution.results import GraphResult, graph_result
from runner.operations import migration, recovery
from runner.operations.answers import apply_decisions, check_run, reassign, withdraw
from runner.operations.interventions import intervene
from runner.operations.migration import MigrationResult
from runner.operations.migration_plan import MigrationRequest
from runner.operations.questions import check_alike
from runner.operations.recovery import remove
from runner.records import codec
from runner.records.checkpoints import Session, session_key
from runner.records.interrupts import Decision, Interrupt, Receipt, answers_from
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary, checked_limit
from runner.records.messages import body_of, key_of, operation_body, start_body
from runner.records.run import Status, existing
from runner.store.interface import Dispatcher, Doorbell, Event, Store

UNCHANGED = object()
"""The default of arguments that a new run otherwise takes from another run."""


STILL_EXECUTES = (
    "run {} still executes after {:g} s; it continues. "
    "`runner doctor` shows whether a worker can run it."
)

WAIT = 5.0
"""Seconds of one blocking read of a run's events; a longer wait is several reads."""

POLL = 0.5
"""Seconds between two looks at a decision that can be taken back."""


class SweeperDispatcher:
    """A Dispatcher for programs without a broker: the store or a worker's next sweep rings."""

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Publish nothing: each doorbell has a timer in the store that is due at once."""

    def call(self, task: str, kwargs: Mapping[str, Any], task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Return False: a worker makes the call."""
        return False


class Run:
    """One run: its state is in the store, this object only names it."""

    def __init__(self, run_id: str, engine: Engine) -> None:
        """Name a run; use `Client.start` or `Client.run` instead."""
        self.id = run_id
        self._engine = engine

    @property
    def status(self) -> Status:
        """The run's status in the store.

        Raises:
            NotFoundError: the run doesn't exist.
        """
        return existing(self._engine.store.peek(self.id), self.id).status

    def result(self) -> GraphResult:
        """Read everything about the run in its present state.

        Raises:
            NotFoundError: the run doesn't exist.
        """
        store = self._engine.store
        return graph_result(store, existing(store.read(self.id), self.id))

    def wait(self, timeout: float | None = None) -> GraphResult:
        """Wait until the run has ended or only people can continue it; `timeout` in seconds.

        Raises:
            TimeoutError: it was still executing then; the run continues.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        result = None
        while result is None:
            remaining = WAIT if ends is None else ends - time.monotonic()
            result = self._settled(min(remaining, WAIT))
            if result is None and remaining <= 0:
                raise TimeoutError(STILL_EXECUTES.format(self.id, timeout))
        return result

    def _settled(self, wait: float) -> GraphResult | None:
        """Return the result if nothing executes and no decision is pending, after at most `wait` seconds."""
        store = self._engine.store
        snapshot = store.read_unless_executing(self.id, max(wait, 0))
        if snapshot is None:
            return None
        result = graph_result(store, snapshot)
        ids = [
            question.id for question in result.interrupts if (question.rule or {}).get("undo")
        ]
        if ids and any(standing.pending for standing in store.standings(ids)):
            time.sleep(min(max(wait, 0), POLL))
            return None
        return result

    def interrupts(self) -> list[Interrupt]:
        """List the run's open questions, including questions of nested graphs."""
        return self.result().interrupts

    def respond(self, responses: Sequence[Mapping[str, object]]) -> list[Receipt]:
        """Answer in the Strands shape; the set is applied whole or not at all.

        Raises:
            ResponseError: the shape isn't `[{"interruptResponse": {...}}]`, or a question is
                another run's.
        """
        answers = answers_from(list(responses))
        check_run(self.id, answers, self._engine.store.peek)
        return apply_decisions(self._engine, answers)

    def events(self, after: str = "", *, follow: bool = False) -> Iterator[Event]:
        """Read the run's events, in order, after a position; with `follow` until the run ends."""
        more_to_come = True
        while more_to_come:
            events, more_to_come = self._next_events(after, follow, WAIT)
            for event in events:
                after = event.position
                yield event

    def _next_events(
        self,
        position: str,
        follow: bool,  # noqa: FBT001 - as in `events`
        wait: float,
    ) -> tuple[Sequence[Event], bool]:
        """Return a page of events, and whether more may come."""
        record = self._engine.store.peek(self.id)
        more_to_come = follow and record is not None and not record.is_final
        events = self._engine.store.events(self.id, position, wait=wait if more_to_come else 0)
        return events, more_to_come or bool(events)

    def cancel(self, reason: str = "cancelled by a caller") -> bool:
        """Cancel the run; False if it had already ended or was stopping.

        Raises:
            NotFoundError: the run doesn't exist.
        """
        return self._engine.cancel(self.id, reason) == "cancelled"

    def retry(self, node: str | None = None, *, by: Principal | str | None = None) -> list[str]:
        """Continue a failed or cancelled run; return the nodes that run again.

        Completed visits stay. Nodes that failed or were cancelled, or only the failed `node`, run
        again in the same visit: with the same idempotency key, so `once()` and an agent's
        conversation continue where they were; withdrawn questions are asked again. Limits of
        executions and of time count from zero. Child runs continue with their parent. `by` is the
        principal who asks for the retry; an event of the run and the audit record it.

        Raises:
            NotFoundError: the run or the node doesn't exist. UsageError: the node has not failed,
                or the run is a child run. ConflictError: the run has not ended, or has completed.
        """
        return recovery.retry(self._engine, self.id, node, by)

    def hold(self, node: str, *, by: Principal | str, reason: str = "") -> bool:
        """Keep a node that hasn't begun, or is between two attempts, from running; False for a repeat.

        A hold is for one visit of the node, and survives workers and deploys. A node that waits for
        people keeps their answers. Timeouts go on. `by` is the operator; an event of the run and
        the audit record them, and the reason.

        Raises:
            NotFoundError: the run or the node doesn't exist. ConflictError: the node runs now, or
                has ended.
        """
        return intervene(self._engine, self.id, node, "hold", by=by, reason=reason)

    def release(self, node: str, *, by: Principal | str, reason: str = "") -> bool:
        """Let a node run that an operator holds; False if it is not held. Raises like `hold`."""
        return intervene(self._engine, self.id, node, "release", by=by, reason=reason)

    def skip(self, node: str, output: object, *, by: Principal | str, reason: str = "") -> bool:
        """Have a node end with an output instead of running; it is held, or could be. False for a repeat.

        A worker holds the node again if the output doesn't fit the function's return type. No hook
        of the node fires, and its open questions are withdrawn. If the node and its run have failed,
        this retries the run with that output. `by` and `reason` are as in `hold`.

        Raises:
            UnstorableError, PayloadTooLarge: the output can't be stored. Otherwise as `hold`.
        """
        return intervene(self._engine, self.id, node, "skip", output, by=by, reason=reason)

    def migrate(
        self,
        mapping: Mapping[str, str] | None = None,
        *,
        drop: Collection[str] = (),
        dry_run: bool = False,
    ) -> MigrationResult:
        """Migrate this waiting run to the graph that the workers have now.

        Completed visits stay; a waiting node that still exists continues in its visit, with its
        questions and answers. `mapping` maps older nodes to the present ones: {"old": "new"}; a
        node mapped to itself keeps its state although its `version` has changed. `drop` names older
        nodes to remove. Nodes of nested graphs are written "outer/inner". With `dry_run` nothing is
        changed.

        Raises:
            NotFoundError: the run or a node doesn't exist. UsageError: the run is a child run, or
                two nodes would have one name. ConflictError: it isn't waiting, or can't be migrated
                this way.
        """
        return migration.migrate(
            self._engine,
            self.id,
            MigrationRequest(dict(mapping or {}), tuple(drop)),
            dry_run=dry_run,
        )

    def remove(self) -> None:
        """Remove this ended run, and all runs nested in it, before their retention is over.

        Its idempotency key may then start another run. The next sweep removes nested runs. Data
        already sent elsewhere is not removed: notices, dead letters, sessions, logs, and copies in
        forks.

        Raises:
            NotFoundError: the run doesn't exist. ConflictError: it has not ended, or its `on_end`
                task is
            still to be called. UsageError: it is nested in another run: remove the outermost run.
        """
        remove(self._engine.store, self.id)

    def fork(
        self,
        node: str,
        *,
        visit: int | None = None,
        input: object = UNCHANGED,  # noqa: A002 - the best name for it
        tags: Mapping[str, str] | None = None,
        by: Principal | str | None = None,
        sign: Sign | None = None,
    ) -> Self:
        """Start a new run that repeats this run from one of its nodes; this run is not changed.

        Every completed visit that does not depend on the given visit of the node (by default the
        latest) is kept, with its result; all others run again. `input` becomes the task of that
        visit: a function's `ctx.task`, an agent's prompt, a graph's task, or a map's list if that
        is the task. `ctx.inputs` stay. The new run has the same task, state and tags, and the tag
        `forked_from`.

        `by` is the principal who forks it: the new run's requester, on behalf of this run's
        requesters, so that rules exclude all of them. It is signed by `sign`, or with
        RUNNER_SIGNING_KEY. If a rule excludes the requester, `by` is required.

        Raises:
            NotFoundError: the run, node or visit doesn't exist. UsageError: the node has not run
                yet.
            UnstorableError: the input can't be stored. ConflictError: too little of the run was recorded.
        """
        new_input = () if input is UNCHANGED else (input,)
        requester = inherited(self._engine, self.id, by, {"fork": self.id, "node": node}, sign)
        run_id = recovery.fork(
            self._engine,
            self.id,
            node,
            visit,
            tags=tags,
            new_input=new_input,
            requester=requester,
        )
        return type(self)(run_id, self._engine)

    def again(
        self,
        *,
        task: object = UNCHANGED,
        invocation_state: Mapping[str, object] | None = None,
        tags: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        by: Principal | str | None = None,
        sign: Sign | None = None,
    ) -> Self:
        """Start a new run of the same graph from its beginning; the defaults are this run's values.

        `by` and `sign` are as with `fork`.

        Raises:
            NotFoundError: the run doesn't exist, or no worker has its graph.
        """
        snapshot = existing(self._engine.store.read(self.id), self.id)
        state: Mapping[str, object] = codec.unpack(snapshot.invocation_state) or {}
        run_id = self._engine.start(
            snapshot.record.graph_id,
            codec.unpack(snapshot.task) if task is UNCHANGED else task,
            invocation_state=state if invocation_state is None else invocation_state,
            tags=snapshot.tags if tags is None else tags,
            idempotency_key=idempotency_key,
            requester=inherited(self._engine, self.id, by, {"again": self.id}, sign),
        )
        return type(self)(run_id, self._engine)


class Client:
    """Starts, finds and answers runs in the store of the settings, or of the given URLs."""

    def __init__(
        self,
        redis_url: str | None = None,
        broker_url: str | None = None,
        *,
        namespace: str | None = None,
        partitions: int | None = None,
        store: Store | None = None,
        dispatcher: Dispatcher | None = None,
        registry: Registry = registry,
    ) -> None:
        """Open the store of these arguments, or by default of the `RUNNER_*` settings."""
        settings = {
            "redis_url": redis_url,
            "broker_url": broker_url,
            "namespace": namespace,
            "partitions": partitions,
        }
        self.engine = Engine(
            store or _open(**codec.without_none(settings)),
            dispatcher or SweeperDispatcher(),
            registry,
        )
        self._loaded = False

    def start(
        self,
        graph_id: str,
        task: object,
        *,
        invocation_state: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
        on_end: str | None = None,
        requester: Principal | str | None = None,
        on_behalf_of: Sequence[Principal | str] = (),
        proof: Mapping[str, object] | None = None,
    ) -> Run:
        """Start a run of a graph that this program, RUNNER_GRAPHS or a worker has registered.

        `on_end` names a Celery task, or `task@queue`, that a worker calls when the run has ended.
        `requester` is the principal who asks for the run, whom a rule may exclude from deciding; if
        it is a bot or a service, `on_behalf_of` names the people it acts for, who are excluded as
        well. `proof` is the signature of `approvals.start_body`. A second start with an
        `idempotency_key` returns the first run, even if its task differs.

        Raises:
            NotFoundError: the graph is unknown. DefinitionError: a module of RUNNER_GRAPHS can't be
            imported.
            UnstorableError: the task can't be stored. UsageError: a tag or `on_end` can't be used.
        """
        self._load_graphs(graph_id)
        options: dict[str, Any] = {
            "idempotency_key": idempotency_key,
            "invocation_state": invocation_state,
            "tags": tags,
            "on_end": on_end,
        }
        if requester is not None:
            principals = [key_of(principal) for principal in on_behalf_of] or None
            body = start_body(graph_id, task, requester, **options, on_behalf_of=principals)
            body = proven(self.engine, body, Principal.read(body["requester"]), proof)
            options["requester"] = requester_of(self.engine, body)
        try:
            run_id = self.engine.start(graph_id, task, **options)
        except NotFoundError as error:
            hint = "set RUNNER_GRAPHS" if self._uses_settings else "add it to the registry"
            raise NotFoundError(f"{error} Or {hint} of this program.") from None
        return Run(run_id, self.engine)

    @property
    def _uses_settings(self) -> bool:
        return self.engine.registry is registry

    def _load_graphs(self, graph_id: str) -> None:
        """Import the modules of RUNNER_GRAPHS, also from the current folder, as a worker does.

        Only a start that needs them imports them: a program that answers questions may lack their
        packages, and a module of graphs may make a Client while it is being imported.
        """
        if self._loaded or not self._uses_settings or registry.find(graph_id) is not None:
            return
        from runner.settings import Settings  # noqa: PLC0415 - as in _open

        folder = os.getcwd()  # noqa: PTH109 - sys.path holds strings
        if folder not in sys.path:
            sys.path.append(folder)
        load(Settings().graphs)
        self._loaded = True

    def run(self, run_id: str) -> Run:
        """Return an existing run.

        Raises:
            NotFoundError: the run doesn't exist.
        """
        run = Run(run_id, self.engine)
        _ = run.status
        return run

    def runs(
        self,
        status: Status | str | None = None,
        *,
        graph: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        text: str = "",
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[RunSummary]:
        """List the runs that match all filters, newest first.

        `since` and `until` limit the time a run began: datetimes, or milliseconds. `text` is
        searched in the values of tags, ignoring case and without an index. To continue, pass the
        page's `next` as `cursor` until it is None; a page may have fewer items than `limit`.

        Raises:
            UsageError: the status, the limit or the cursor can't be used.
        """
        if status and status not in set(Status):
            raise UsageError(
                f"{status!r:.40} isn't a status of a run; there are {', '.join(Status)}."
            )
        if status == Status.HELD:
            status = Status.NEEDS_MIGRATION
        query = RunQuery(
            Status(status) if status else None, graph, tags or {}, _ms(since), _ms(until), text
        )
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
        """List the open questions that match all filters, oldest first.

        `graph` and `run` include questions of nested graphs; `assignee` selects questions assigned
        to that person, and leaves out those that anyone may answer; `older_than` is in seconds.

        Raises:
            UsageError: the limit or the cursor can't be used.
        """
        until = None if older_than is None else round((time.time() - older_than) * 1000)
        query = InterruptQuery(graph, run, name, assignee, until)
        # Lists that are read again share their questions.
        return deepcopy(
            self.engine.store.open_interrupts(query, checked_limit(limit), cursor or "")
        )

    def interrupt(self, interrupt_id: str) -> Interrupt:
        """Read one question, open or not.

        Raises:
            NotFoundError: it was never asked.
        """
        interrupt = self.engine.store.interrupts([interrupt_id])[0]
        if interrupt is None:
            raise NotFoundError(f"no question {interrupt_id!r} was asked.")
        return interrupt

    def respond(
        self,
        interrupt_id: str,
        response: object,
        *,
        responder: str | None = None,
        digest: str | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Answer one question; `digest` ensures that it is the question that was shown.

        An answer to a question that shows a call is rejected: see `vote`, whose "respond" answers
        instead of the call.

        Raises:
            ResponseError: the response is None. UnstorableError: it can't be stored.
        """
        if response is None:
            raise ResponseError(
                f"the answer to {interrupt_id} is None, which is no answer; nothing was applied."
            )
        value: Any = codec.pack(response, "response")
        answer = Decision(interrupt_id, value, responder, idempotency_key, digest)
        return apply_decisions(self.engine, [answer])[0]

    def vote(
        self,
        interrupt_id: str,
        decision: str,
        *,
        by: Principal | str,
        response: object = None,
        digest: str | None = None,
        comment: str = "",
        proof: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        shown_at: int = 0,
    ) -> Receipt:
        """Decide on one question: "approve", "edit", "reject", or "respond", which replaces a call.

        `response` is the answer of "respond", the whole new arguments of "edit", or with "approve"
        the arguments that another person has edited. Only votes for the same arguments add up.
        `proof` is the signature of `approvals.vote_body`, which a rule may require; without it
        RUNNER_SIGNING_KEY signs, if that is set. `shown_at` (ms since 1970) is when you showed the
        question to the person, for the audit. The receipt's status is "accepted" if the vote
        decided, "counted" if others must follow, or says why it doesn't count. A question without a
        rule takes "approve" as true, "reject" as false, and "respond".

        Raises:
            UsageError: `by` isn't a principal. UnstorableError: the response can't be stored.
            DirectoryError: groups can't be looked up now; nothing was counted.
        """
        principal = principal_of(by)
        vote = Decision(
            interrupt_id,
            codec.pack(response, "response"),
            None,
            idempotency_key,
            digest,
            decision,
            comment=comment,
            voter=Voter(principal),
            shown_at=shown_at,
        )
        body = proven(self.engine, body_of(vote, principal.key), principal, proof)
        return apply_decisions(self.engine, [replace(vote, body=body)])[0]

    def respond_all(
        self,
        interrupt_ids: Sequence[str],
        decision: str,
        *,
        by: Principal | str,
        digests: Mapping[str, str],
        response: object = None,
        comment: str = "",
    ) -> list[Receipt]:
        """Decide on the same question of several runs or map items, with one vote and receipt each.

        `digests` has, by id, the digest of each question as it was shown. A refused vote doesn't
        stop the others.

        Raises:
            UsageError: graph, node, name, schema, tool or risk differ, a digest is missing, or a question
                was never asked; nothing was done.
        """
        ids = list(dict.fromkeys(interrupt_ids))
        check_alike(self.engine.store, ids, digests)
        return [
            self.vote(
                name, decision, by=by, response=response, digest=digests[name], comment=comment
            )
            for name in ids
        ]

    def grant(
        self,
        interrupt_id: str,
        *,
        by: Principal | str,
        bounds: Mapping[str, Any],
        uses: int = 1,
        sums: Mapping[str, float] | None = None,
        lifetime: float | None = None,
        requesters: Sequence[str] = (),
        graphs: Sequence[str] = (),
        comment: str = "",
    ) -> Receipt:
        """Grant future calls like the call that a question shows, as far as its rule allows.

        `bounds` is a JSON Schema of the arguments, such as `{"properties": {"amount": {"maximum":
        50}}}`. The grant is for `uses` calls, whose arguments add up to at most `sums`, for
        `lifetime` seconds (by default as long as the rule allows), and for runs of these
        `requesters` (by default all). The receipt is "counted" until enough people have voted with
        `vote_grant`; its `interrupt_id` names the grant.

        Raises:
            NotFoundError: the question doesn't exist. UsageError: a name isn't a principal.
            GrantRefused: the grant can't be made; the error names the field.
            DirectoryError: groups can't be looked up now.
        """
        record = granting.propose(
            self.engine,
            interrupt_id,
            bounds=bounds,
            uses=uses,
            sums=sums,
            lifetime=lifetime,
            requesters=requesters,
            graphs=graphs,
        )
        return self._vote_grant(record, "approve", by, None, comment)

    def vote_grant(
        self,
        grant_id: str,
        decision: str = "approve",
        *,
        by: Principal | str,
        proof: Mapping[str, object] | None = None,
        comment: str = "",
    ) -> Receipt:
        """Vote on a grant that waits for more votes: "approve" or "reject".

        `proof` is the signature of `approvals.vote_body("grant:<id>", decision, by, digest=...)`.

        Raises:
            NotFoundError: the grant doesn't exist.
            UsageError: `by` isn't a principal, or the decision is another.
            DirectoryError: groups can't be looked up now.
        """
        if decision not in {"approve", "reject"}:
            raise UsageError(f"a grant is approved or rejected, not {decision!r:.40}.")
        record = granting.find(self.engine, grant_id)
        return self._vote_grant(record, decision, by, proof, comment)

    def _vote_grant(
        self,
        record: GrantRecord,
        decision: str,
        by: Principal | str,
        proof: Mapping[str, object] | None,
        comment: str,
    ) -> Receipt:
        principal = principal_of(by)
        message = granting.message(record, decision, principal, comment)
        body = proven(self.engine, message, principal, proof)
        return granting.vote(self.engine, record, body, Voter(principal))

    def grants(self) -> list[GrantView]:
        """List all grants, newest first."""
        return granting.list_grants(self.engine)

    def revoke_grant(self, grant_id: str, reason: str, *, by: str = "") -> GrantView:
        """Revoke a grant: no more calls begin by it.

        Raises:
            NotFoundError: the grant doesn't exist. UsageError: the reason is missing.
            ConflictError: it was already revoked.
        """
        return granting.revoke(self.engine, grant_id, reason, by)

    def withdraw_vote(
        self,
        interrupt_id: str,
        *,
        by: Principal | str,
        proof: Mapping[str, object] | None = None,
    ) -> Receipt:
        """Take back your vote on a question that is still open; then you may vote again.

        A vote that others have built on stays: in a stage that was met, or an edit that voided
        votes. `proof` here and below is the signature of `approvals.operation_body`, as with
        `vote`.

        Raises:
            UsageError: `by` isn't a principal.
        """
        return self._do(interrupt_id, "withdraw_vote", by, proof)

    def delegate(
        self,
        interrupt_id: str,
        *,
        to: Principal | str,
        by: Principal | str,
        until: datetime | int | None = None,
        proof: Mapping[str, object] | None = None,
    ) -> Receipt:
        """Delegate your vote, in the open stage, as far as the rule allows.

        From `until` (a time, or ms since 1970) the vote is yours again. Delegating to yourself
        takes the delegation back at once.

        Raises:
            UsageError: a name isn't a principal, or the time is past.
            DirectoryError: groups can't be looked up now.
        """
        return self._do(interrupt_id, "delegate", by, proof, to=to, until=_ms(until))

    def begin_absence(
        self,
        *,
        by: Principal | str,
        to: Principal | str,
        until: datetime | int,
        since: datetime | int | None = None,
        only: Sequence[str] = (),
        proof: Mapping[str, object] | None = None,
    ) -> Absence:
        """Let another person vote in your place for some time, if a rule's `delegate` allows it.

        It replaces an earlier absence of the same person. `until` and `since` (by default now) are
        times, or ms since 1970. `only` limits it to decisions that you may make by these selectors,
        such as "group:finance". `proof` is the signature of `approvals.absence_body`.

        Raises:
            UsageError: a name isn't a principal, an entry of `only` isn't a selector, or the times
                can't be used.
            DirectoryError: groups can't be looked up now.
        """
        begins = _ms(since) if since is not None else now_of(self.engine)
        body = absence_body(
            self.engine.store.namespace,
            by,
            to,
            since=begins or 0,
            until=_ms(until) or 0,
            only=only,
        )
        who = principal_of(by)
        return begin_absence(self.engine, proven(self.engine, body, who, proof), Voter(who))

    def end_absence(self, who: Principal | str, *, by: str = "") -> None:
        """End the absence of a person who is back.

        Raises:
            NotFoundError: they are not away. UsageError: the name isn't a principal's.
        """
        end_absence(self.engine, who, by)

    def absences(self) -> list[Absence]:
        """List present and future absences, by their end."""
        return absences(self.engine)

    def reassign(
        self,
        interrupt_id: str,
        *,
        to: Principal | str,
        reason: str,
        instead_of: Principal | str | None = None,
        until: datetime | int | None = None,
        by: Principal | str | None = None,
    ) -> Receipt:
        """Let another person decide an open question, for example if its assignee has left.

        A question without a rule is withdrawn, and that person is asked. With a rule they may vote
        `until` a time in place of an eligible person (`instead_of`), as far as the rule's
        `delegate` allows. `by` is the operator; events and audit record the reason.

        Raises:
            NotFoundError: it was never asked. ConflictError: it is no longer open.
            UsageError: the reason is missing, the time is past, several people could be replaced,
                `until` is set and the question has no rule, or the rule requires signatures: then
                only the person themselves can let another vote.
            DirectoryError: groups can't be looked up now.
        """
        return reassign(
            self.engine,
            interrupt_id,
            to,
            reason,
            instead_of=instead_of,
            until=_ms(until),
            by=by,
        )

    def claim(
        self,
        interrupt_id: str,
        *,
        by: Principal | str,
        ttl: float = 600,
        proof: Mapping[str, object] | None = None,
    ) -> Receipt:
        """Claim a question for `ttl` seconds; others may still vote.

        Raises:
            UsageError: `by` isn't a principal, or the time can't be used.
        """
        return self._do(interrupt_id, "claim", by, proof, ttl=ttl)

    def release(
        self,
        interrupt_id: str,
        *,
        by: Principal | str,
        proof: Mapping[str, object] | None = None,
    ) -> Receipt:
        """Give up your claim.

        Raises:
            UsageError: `by` isn't a principal.
        """
        return self._do(interrupt_id, "release", by, proof)

    def comment(
        self,
        interrupt_id: str,
        comment: str,
        *,
        by: Principal | str,
        proof: Mapping[str, object] | None = None,
    ) -> Receipt:
        """Comment on a question, in an event of the run and a notice.

        Raises:
            UsageError: `by` isn't a principal, or the text is empty or too long.
        """
        return self._do(interrupt_id, "comment", by, proof, comment=comment)

    def _do(
        self,
        interrupt_id: str,
        operation: str,
        by: Principal | str,
        proof: Mapping[str, object] | None,
        **options: Any,
    ) -> Receipt:
        body = proven(
            self.engine,
            operation_body(interrupt_id, operation, by, **options),
            principal_of(by),
            proof,
        )
        return apply_operation(self.engine, body, Voter(principal_of(by)))

    def withdraw(
        self,
        interrupt_id: str,
        reason: str = "",
        *,
        reask: bool = False,
        by: Principal | str | None = None,
    ) -> None:
        """Withdraw an open question; an answer to it is `superseded` from now on.

        The node that asked continues: `interrupt()` raises InterruptWithdrawn in it, which fails
        the node unless its code catches it. With `reask` it runs again at once and asks a new
        question. `by` is the person who withdraws it; the run's events and the audit record it.

        Raises:
            NotFoundError: it was never asked. ConflictError: it is no longer open.
        """
        withdraw(self.engine, interrupt_id, reason, reask=reask, by=by)

    def session(self, session_id: str, *, graph: str = "") -> Session:
        """Read a session of a graph, or by default a shared one; an unknown session is empty."""
        session = self.engine.store.session(session_key(graph, session_id))
        return Session(codec.unpack(session.messages), codec.unpack(session.state))

    def forget_session(self, session_id: str, *, graph: str = "") -> bool:
        """Delete a session of a graph, or by default a shared session; False if it didn't exist.

        Runs that use it now add to a new session.
        """
        return self.engine.store.forget_session(session_key(graph, session_id))


def _ms(time_: datetime | int | None) -> int | None:
    return round(time_.timestamp() * 1000) if isinstance(time_, datetime) else time_


def _open(**options: Any) -> Store:
    # Imported here because settings and the Redis client take most of a program's start-up time.
    from runner.settings import Settings  # noqa: PLC0415 - see above
    from runner.store.shared import open_store  # noqa: PLC0415 - see above

    return open_store(Settings(**options))
