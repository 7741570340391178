"""How a program has a run go on after its end, or begins another one from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Self

from runner import codec
from runner.engine import Engine
from runner.migrations import Migrated
from runner.missing import known
from runner.wishes import Wish

UNCHANGED = object()
"""Stands for what a new run takes over from another one."""


class Steering:
    """The part of a Run that steers it."""

    id: str
    _engine: Engine

    def __init__(self, run_id: str, engine: Engine) -> None:
        """Name a run of an engine's store."""
        self.id, self._engine = run_id, engine

    def retry(self, node: str | None = None) -> list[str]:
        """Let a failed or cancelled run go on; return the nodes that run again.

        What has completed stays and is not run again. Nodes that failed or were cancelled, or the one
        failed node that is named, run again in the same visit: same idempotency key, so `once()` and
        an agent's conversation go on where they were, and withdrawn questions are asked again. A node
        that ran without the output of one that failed runs once more when that has completed. Limits
        of executions and of time count anew. Child runs go on with their parent.

        Raises:
            NotFoundError: there is no such run or node. UsageError: the node has not failed, or the run
                is the child of another. ConflictError: the run has not ended, or has completed.
        """
        return self._engine.retry(self.id, node)

    def migrate(
        self,
        mapping: Mapping[str, str] | None = None,
        *,
        drop: Collection[str] = (),
        dry_run: bool = False,
    ) -> Migrated:
        """Let this run, which waits, go on in the graph that the workers have today.

        What has completed stays and is not run again; a waiting node that is there today, too, goes on in
        its visit, with its questions and answers. `mapping` says which node of today an older one is:
        {"old": "new"}; naming a node as itself says that it can use what it kept though its `version` is
        another. `drop` names older nodes that count no more. Nodes of graphs inside are "outer/inner". An
        edge that is new counts as taken where its source has completed, if it has no condition or that
        holds now. With `dry_run` nothing is changed.

        Raises:
            NotFoundError: there is no such run or node. UsageError: the run is the child of another, or two
                nodes would have one name. ConflictError: it does not wait, or it can't be moved so.
        """
        return self._engine.migrate(self.id, Wish(dict(mapping or {}), tuple(drop)), dry_run=dry_run)

    def remove(self) -> None:
        """Remove this run, which has ended, and all runs inside it before their retention is over.

        Its task, results, questions, answers, messages and events are gone, and its idempotency key may
        begin another run. Runs inside it go with the next sweep. What was told elsewhere stays there:
        notices, dead letters, sessions, logs, and what forks have copied.

        Raises:
            NotFoundError: there is no such run. ConflictError: it has not ended, or must still tell so.
            UsageError: it is inside another run: remove the outermost.
        """
        self._engine.remove(self.id)

    def fork(
        self,
        node: str,
        *,
        visit: int | None = None,
        input: object = UNCHANGED,  # noqa: A002 - that is what it is
        tags: Mapping[str, str] | None = None,
    ) -> Self:
        """Begin a new run in which a node of this one starts again, this run being as it is.

        Every visit that has completed here and does not depend on that one visit (the latest, unless
        named) is kept: it is not run again, its result is copied. The node, all that depends on it and
        all that had not completed start again. `input` is what that visit of the node is given as its
        task: a function as `ctx.task`, an agent as its prompt, a graph as its task, a map as its list
        where that is the task. What it gets from the nodes before it stays: `ctx.inputs`. Without `input`
        the task is the run's. The new run has the same task, state and tags, and the tag `forked_from`. A
        node of which only some visits are kept has forgotten what it remembered of them.

        Raises:
            NotFoundError: there is no such run, node or visit. UsageError: the node has not run yet.
            UnstorableError: the input can't be stored. ConflictError: too little of the run was recorded.
        """
        given = () if input is UNCHANGED else (input,)
        forked = self._engine.fork(self.id, node, visit, tags=tags, given=given)
        return type(self)(forked, self._engine)

    def again(
        self,
        *,
        task: object = UNCHANGED,
        invocation_state: Mapping[str, object] | None = None,
        tags: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """Start a new run of the same graph from its beginning; what is not given is as it was here.

        Raises:
            NotFoundError: the run is gone, or nobody knows its graph.
        """
        found = known(self._engine.store.read(self.id), self.id)
        given: Mapping[str, object] = codec.unpack(found.given) or {}
        started = self._engine.start(
            found.record.graph_id,
            codec.unpack(found.task) if task is UNCHANGED else task,
            invocation_state=given if invocation_state is None else invocation_state,
            tags=found.tags if tags is None else tags,
            idempotency_key=idempotency_key,
        )
        return type(self)(started, self._engine)
