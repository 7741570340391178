"""Every error of this library, in one tree, split by whose fault it is.

    RunnerError
    ├── UsageError            the caller's: refused at the door, never retried
    │   ├── DefinitionError   the graph or agent is wrong: raised when it is built
    │   ├── DataMismatch      a value does not fit the type that a function declares
    │   ├── UnstorableError   a value can't be stored: raised where it was produced
    │   ├── PayloadTooLarge   a value or its run is larger than it may be: nothing of it was stored
    │   ├── ResponseError     a set of answers can't be used: none of it was applied
    │   └── NotFoundError     no such run, graph, node or interrupt
    ├── ConflictError         stale or duplicate: drop the work, somebody else did it
    │   ├── LeaseLost         this worker no longer owns the node
    │   └── RunStopped        the run was cancelled while the node ran
    ├── NodeTimedOut          a node ran longer than its timeout: its failure
    ├── InterruptExpired      nobody answered in time: raised where the question was asked
    ├── InterruptWithdrawn    somebody took the question back: raised where it was asked
    ├── ModelFault            the model's: its reply can't be used
    │   ├── MaxTokensReached  the reply was cut off
    │   └── StructuredOutputMissing  the structured output was asked for and not given
    ├── CorruptDocument       a stored document is not what it must be: nothing is guessed
    ├── NodeFailed            a node ended in an error that can't be raised as itself
    └── StoreError            the world's: nothing changed, try again
        ├── NotDurable        written, but not yet as safe as RUNNER_DURABILITY asks: repeat it
        └── BrokerError       the queue could not be reached; the sweeper rings again

`InterruptRaised` is not an error: it is how `interrupt()` leaves user code. It derives from
BaseException so that `except Exception` in a tool or function can't swallow it.
"""

from __future__ import annotations


class RunnerError(Exception):
    """Something went wrong in the runner."""

    retryable: bool = False
    http_status: int = 500

    def __init__(self, message: str | None = None) -> None:
        """Use the class docstring where no message is given, so that the two can't drift."""
        super().__init__(message or (type(self).__doc__ or "").strip())


class UsageError(RunnerError):
    """The request can't be carried out as it was made; correct it and try again."""

    http_status = 400


class DefinitionError(UsageError):
    """The graph or agent is not well formed; nothing was built."""


class DataMismatch(UsageError):
    """A value does not fit the type that a function declares; only a policy that names this retries it."""

    http_status = 422


class UnstorableError(UsageError):
    """A value can't be stored; use JSON data, bytes or pydantic models."""

    http_status = 422


class PayloadTooLarge(UsageError):
    """A value is larger than it may be, or makes its run so; nothing of it was stored."""

    http_status = 413


class ResponseError(UsageError):
    """The answers can't be used; none was applied and every question stays as it was."""

    http_status = 409


class NotFoundError(UsageError):
    """There is no such run, graph, node or interrupt in this store."""

    http_status = 404


class ConflictError(RunnerError):
    """Somebody else has already done this; the work was dropped and nothing changed."""

    http_status = 409


class LeaseLost(ConflictError):
    """This worker no longer owns the node; its result is refused and another worker goes on."""


class RunStopped(ConflictError):
    """The run was cancelled; what this node still had to do is not done."""


class NodeTimedOut(RunnerError):
    """The node ran longer than its timeout, so it has failed; a late result is refused."""


class InterruptExpired(RunnerError):
    """Nobody answered the question in time, so it counts as rejected."""


class InterruptWithdrawn(RunnerError):
    """The question was withdrawn before anybody answered it."""


class ModelFault(RunnerError):
    """The model's reply can't be used; the conversation up to it is kept."""


class MaxTokensReached(ModelFault):
    """The model reached its limit of output tokens; raise the limit or ask for less."""


class StructuredOutputMissing(ModelFault):
    """The model was asked twice for the structured output and did not give it."""


class CorruptDocument(RunnerError):
    """A stored document is damaged or of an unknown form; it was left untouched."""


class NodeFailed(RunnerError):
    """A node failed with an error that can't be raised as itself in this process."""


class StoreError(RunnerError):
    """The store could not be reached or refused the write; nothing changed, try again."""

    retryable = True
    http_status = 503
    passing: bool = True
    """Whether it may be over soon: the store is away, starting, or has no room."""


class NotDurable(StoreError):
    """The request was written, but a crash may still lose it; repeat it with the same idempotency key."""


class BrokerError(StoreError):
    """The queue could not be reached; the sweeper rings the node again when it is back."""


class InterruptRaised(BaseException):
    """Leave user code because a question was asked; caught in one place, never by users."""
