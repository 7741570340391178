"""Every error of this library, in one tree, split by whose fault it is.

    RunnerError
    ├── UsageError            the caller's: refused at once, never retried
    │   ├── DefinitionError   the graph or agent is not valid: raised when it is built; also a ValueError
    │   ├── DataMismatch      a value does not match the type that a function declares
    │   ├── UnstorableError   a value can't be stored: raised where it was made
    │   ├── MissingExtra      a package of an extra is not installed; also an ImportError
    │   ├── PayloadTooLarge   a value or its run exceeds a limit: the value was not stored
    │   ├── ResponseError     a set of answers can't be used: none was applied
    │   └── NotFoundError     no such run, graph, node or interrupt
    ├── ConflictError         stale, duplicate or too early: drop the work, nothing has failed
    │   ├── LeaseLost         this worker no longer owns the node
    │   ├── TooManyRuns       the limit of open runs is reached: the start was refused
    │   ├── RunStopped        the run was cancelled while the node ran
    │   │   └── EffectsFrozen an operator has frozen the node's next effect
    │   └── RetryAfter        raised by a node: it is too early, the node continues later
    ├── NodeTimedOut          a node ran longer than its timeout: its failure
    ├── InterruptExpired      the time to answer has passed: raised in the code that asked
    ├── InterruptWithdrawn    an operator withdrew the question: raised in the code that asked
    ├── ModelFault            the model's: its reply can't be used
    │   ├── MaxTokensReached  the reply was cut off
    │   └── StructuredOutputMissing  the model did not produce the structured output
    ├── ApprovalMismatch      the action isn't the approved one: it isn't run, the node is held
    ├── BudgetExceeded        a budget of an agent is used up: the call was not made
    ├── CorruptDocument       a stored document is not valid: it is refused, and left unchanged
    │   └── DamagedRun        it is a run's record: that run can't be used
    ├── NodeFailed            a node failed with an error that can't be raised as itself
    └── StoreError            the environment's: try again
        ├── NotDurable        written, but not yet as RUNNER_DURABILITY requires: repeat it
        ├── ArchiveError      the archive can't be reached or read; nothing left the store
        ├── DirectoryError    the directory of groups could not be asked; no vote was counted
        └── BrokerError       the queue could not be reached; the sweeper sends again

`InterruptRaised` isn't an error: `interrupt()` raises it to leave user code. It derives from
BaseException so that `except Exception` in a tool or function can't swallow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


class RunnerError(Exception):
    """Something went wrong in the runner."""

    def __init__(self, message: str | None = None) -> None:
        """Use the class docstring as the default message."""
        super().__init__(message or (type(self).__doc__ or "").strip())


class UsageError(RunnerError):
    """The request can't be carried out as it is; correct it and try again."""


class GrantRefused(UsageError):
    """A grant can't be made as it is; `field` names the wrong field, as in "bounds.amount"."""

    def __init__(self, field: str, problem: str) -> None:
        """Build the message from the field and its problem."""
        super().__init__(f"{field}: {problem}. No grant was made.")
        self.field = field


class DefinitionError(UsageError, ValueError):
    """The graph or agent is not valid; nothing was built."""


class DataMismatch(UsageError):
    """A value doesn't match a function's declared type; retried only if `retry_on` names this."""


class UnstorableError(UsageError):
    """A value can't be stored; use JSON data, bytes or pydantic models."""


class MissingExtra(UsageError, ImportError):
    """A required package is not installed; it comes with an extra."""


class PayloadTooLarge(UsageError):
    """A value exceeds a limit, or makes its run exceed one; it was not stored."""


class ResponseError(UsageError):
    """The answers can't be used; none was applied and every question stays as it was."""


class NotFoundError(UsageError):
    """This store doesn't have the run, graph, node or interrupt."""


class ConflictError(RunnerError):
    """This was already done elsewhere; the work was dropped and nothing changed."""


class TooManyRuns(ConflictError):
    """The limit of open runs is reached; nothing was started."""


class LeaseLost(ConflictError):
    """This worker no longer owns the node; its result is refused and another worker continues."""


class RunStopped(ConflictError):
    """The run was cancelled; the rest of this node's work is not done."""


class EffectsFrozen(RunStopped):
    """An operator has frozen the graph or the tool; the node waits until the thaw."""


LONGEST_WAIT = 7 * 86_400.0
"""The most seconds that a node may ask to wait."""


class RetryAfter(ConflictError):
    """Raised by a node's code, or its agent's tools or model, to continue the node after `seconds`.

    Nothing has failed: no attempt is counted, and the node holds no worker, lease or slot of a
    limit while it waits. It continues as after a crash: a function from its top, an agent from its
    last checkpoint. With the name of a `limit` of the node, the limit's key pauses: until then no
    other node with this key starts. `reason` is shown to people who watch the run. UsageError: the
    seconds are negative, over a week or not a number.
    """

    def __init__(self, seconds: float, limit: str | None = None, *, reason: str = "") -> None:
        """Refuse seconds that a node can't wait."""
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not (is_number and 0 <= seconds <= LONGEST_WAIT):
            raise UsageError(
                f"RetryAfter takes 0 to {LONGEST_WAIT:,.0f} seconds (a week), not {seconds!r:.40}."
            )
        self.seconds = seconds
        self.limit = limit
        self.reason = reason or "the node asked for it"
        super().__init__(f"The node goes on in {seconds:g} s: {self.reason}.")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle it with all its arguments, for another process."""
        return partial(type(self), self.seconds, self.limit, reason=self.reason), ()


class NodeTimedOut(RunnerError):
    """The node ran longer than its timeout, so it has failed; a late result is refused."""


class InterruptExpired(RunnerError):
    """The question was not answered in time, so it counts as rejected."""


class InterruptWithdrawn(RunnerError):
    """The question was withdrawn before it was answered."""


class ModelFault(RunnerError):
    """The model's reply can't be used; the conversation up to it is kept."""


class MaxTokensReached(ModelFault):
    """The model reached its limit of output tokens; raise the limit or ask for less."""


class StructuredOutputMissing(ModelFault):
    """The model was asked twice for the structured output and did not produce it."""


class ApprovalMismatch(RunnerError):
    """The effect differs from the approved one; it was not run, and its node is held."""


class BudgetExceeded(RunnerError):
    """A budget of the agent is used up, and it was not raised; the call was not made."""


class CorruptDocument(RunnerError):
    """A stored document is damaged or has an unknown form; it was left unchanged."""


class DamagedRun(CorruptDocument):
    """The record of a run can't be read in the store; it was left unchanged."""


class NodeFailed(RunnerError):
    """A node failed with an error that can't be raised as itself in this process."""


class StoreError(RunnerError):
    """The store could not be reached or refused the write; try again with the same idempotency key."""

    passing: bool = True
    """True if the error may pass by itself: the store is down, starting, or out of memory."""


class NotDurable(StoreError):
    """The request was written, but a crash may still lose it; repeat it with the same idempotency key."""


class ArchiveError(StoreError):
    """The archive could not be reached or read; runs that aren't in it stay in the store."""


class DirectoryError(StoreError):
    """The directory could not say which groups a person is in; no vote was counted."""


class BrokerError(StoreError):
    """The queue could not be reached; the sweeper dispatches the node again when it is back."""


class InterruptRaised(BaseException):
    """Leaves user code because a question was asked; caught in one place, never by users."""


@contextmanager
def needs_extra(
    name: str, purpose: str, package: str = "celery-graph-runner"
) -> Iterator[None]:
    """Import packages of an extra inside the block: if one is missing, the error names the extra.

    Raises:
        MissingExtra: a package is missing, or too old to have an imported name.
    """
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as missing:
        raise MissingExtra(
            f"{missing}. For {purpose}, install the extra `{name}`: pip install '{package}[{name}]'."
        ) from missing
