"""Errors as values: what is stored of an exception, and how it comes back in another process.

Nothing is ever unpickled or imported because stored data names it. A class that is already
imported comes back as itself, without running its `__init__`; any other comes back as a class of
the same name below the nearest base that is imported, so that `isinstance` checks keep working.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pydantic

from runner import codec
from runner.errors import NodeFailed, UnstorableError

MAX_CHAIN = 8
MAX_TRACEBACK = 16_000  # characters; the end of a traceback says most, so the start is cut


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An exception, stored: `type` is `module:qualname`, `bases` the same for its MRO."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    type: str
    message: str
    bases: list[str] = field(default_factory=list)
    args: list[Any] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    traceback: str = ""
    cause: ErrorRecord | None = None
    context: ErrorRecord | None = None
    suppress_context: bool = False

    @property
    def name(self) -> str:
        """The class name alone, as a traceback's last line shows it."""
        return self.type.rpartition(":")[2].rpartition(".")[2]

    def __str__(self) -> str:
        """Return the line a traceback would end with."""
        return f"{self.name}: {self.message}" if self.message else self.name


def record(error: BaseException, depth: int = 0) -> ErrorRecord:
    """Store an exception: type, message, arguments, attributes, notes, causes and traceback."""
    cls = type(error)
    context = None if error.__cause__ is not None else error.__context__
    return ErrorRecord(
        type=_name(cls),
        message=_text(error),
        bases=[_name(base) for base in cls.__mro__[1:] if issubclass(base, BaseException)],
        args=_arguments(error),
        attributes=_attributes(error),
        notes=[str(note) for note in getattr(error, "__notes__", ())],
        traceback="" if depth else _traceback(error),
        cause=_chained(error.__cause__, depth),
        context=_chained(context, depth),
        suppress_context=error.__suppress_context__,
    )


def _chained(error: BaseException | None, depth: int) -> ErrorRecord | None:
    return record(error, depth + 1) if error is not None and depth < MAX_CHAIN else None


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _text(error: BaseException) -> str:
    """`str()` of a user's exception may itself raise, and may hold text that can't be stored."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception as broken:  # noqa: BLE001 - any error of the user's __str__
        return f"<its message could not be read: {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return "".join(lines).encode("utf-8", "backslashreplace").decode()[-MAX_TRACEBACK:]


def _arguments(error: BaseException) -> list[Any] | None:
    try:
        packed: list[Any] = codec.pack(error.args, "args")
    except UnstorableError:
        return None
    return packed


def _attributes(error: BaseException) -> dict[str, Any]:
    kept = {}
    for key, value in getattr(error, "__dict__", {}).items():
        if key == "__notes__":
            continue
        try:
            kept[key] = codec.pack(value, key)
        except UnstorableError:
            continue
    return kept


def load(stored: Mapping[str, Any]) -> ErrorRecord:
    """Read a record from its stored form, with the records chained to it."""
    chained = {key: load(stored[key]) for key in ("cause", "context") if stored.get(key)}
    return ErrorRecord(**{**stored, **chained})


def restore(stored: ErrorRecord) -> BaseException:
    """Bring a stored exception back, with the marker attribute `restored` set to True."""
    cls = _class(stored)
    error = cls.__new__(cls)
    arguments = (stored.message,) if stored.args is None else tuple(codec.unpack(stored.args))
    error.args = arguments
    error.__dict__.update({key: codec.unpack(value) for key, value in stored.attributes.items()})
    error.__dict__["restored"] = True
    for note in stored.notes:
        error.add_note(note)
    error.__cause__ = restore(stored.cause) if stored.cause else None
    error.__context__ = restore(stored.context) if stored.context else None
    error.__suppress_context__ = stored.suppress_context
    return error


def _class(stored: ErrorRecord) -> type[BaseException]:
    own = _exception_class(stored.type)
    if own is not None and _reads_alike(own, stored):
        return own
    found = (_exception_class(base) for base in stored.bases)
    base = next((cls for cls in found if cls is not None), Exception)
    body = {"__str__": lambda _self: stored.message, "__module__": stored.type.partition(":")[0]}
    return type(stored.name, (base,), body)


def _exception_class(name: str) -> type[BaseException] | None:
    found = codec.imported(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _reads_alike(cls: type[BaseException], stored: ErrorRecord) -> bool:
    """A class whose state could not be stored whole would show another message: check first."""
    try:
        trial = cls.__new__(cls)
        trial.args = (stored.message,) if stored.args is None else tuple(codec.unpack(stored.args))
        trial.__dict__.update({key: codec.unpack(value) for key, value in stored.attributes.items()})
        return str(trial) == stored.message
    except Exception:  # noqa: BLE001 - the user's __new__ or __str__ may raise anything
        return False


def raisable(stored: ErrorRecord) -> BaseException:
    """Return an exception safe to raise: a restored `Exception`, or NodeFailed for anything else."""
    error = restore(stored)
    if isinstance(error, Exception):
        return error
    return NodeFailed(f"the node ended with {stored}; see the run's stored traceback.")
