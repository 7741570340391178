"""Replay of dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from runner.errors import NotFoundError
from runner.execution.engine import Engine
from runner.immutable import immutable
from runner.operations import recovery
from runner.records.dead_letters import DeadLetter
from runner.store.requests import ReleaseNodes

if TYPE_CHECKING:
    from runner.store.shared import DeadLetters, SharedStore


@immutable
class Replayed:
    """A dead letter and its destination: a position in a stream, or the run of a node."""

    id: str
    sent: str


def replay(
    engine: Engine, letters: DeadLetters, letter: DeadLetter, retried_runs: set[str], by: str
) -> str:
    """Send a message again, or release a held node or retry its outermost run; then delete the letter.

    It returns the message's place in its stream, or the run. `retried_runs` holds the runs already
    retried for other letters; each is retried once. `by` is the acting person, for the audit and
    the run's event.

    Raises:
        NotFoundError: the run is gone. UsageError: the message can't be sent. ConflictError: the run has
            not ended, or has completed.
    """
    position = (
        _retry(engine, letter, retried_runs, by)
        if letter.kind == "node"
        else letters.replay(letter)
    )
    letters.drop(letter.id)
    audit, *_ = cast("SharedStore", engine.store).audit_logs
    audit.note(
        "dead.replayed",
        actor=by,
        outcome={"letter": letter.id, "node": letter.node, "sent": position},
    )
    return position


def _retry(engine: Engine, letter: DeadLetter, retried_runs: set[str], by: str) -> str:
    record = engine.store.peek(letter.run_id)
    if record is None:
        raise NotFoundError(
            f"the run {letter.run_id} of letter {letter.id} no longer exists; nothing was retried. "
            f"Start a new run, then: runner api DELETE /v1/dead/{letter.id}."
        )
    is_released = (
        engine.ring(engine.store.do(ReleaseNodes(letter.run_id, [letter.node]))).word
        == "released"
    )
    root = record.root or record.run_id
    if not is_released and root not in retried_runs:
        recovery.retry(engine, root, None, by)
        retried_runs.add(root)
    return root
