"""Errors as values: how an exception is stored, and how it is restored in another process.

Stored data never causes an import or unpickling. A class that is already imported is used itself,
without running its code; otherwise a class of the same name is made below the nearest base that
can be made, so that `isinstance` checks keep working. In both cases `str()` and `repr()` return the
same as before.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import field
from types import BuiltinFunctionType, TracebackType, WrapperDescriptorType
from typing import Any

from runner.errors import NodeFailed, UnstorableError
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject

AROUND = frozenset(
    {"runner", "asyncio", "concurrent", "threading", "contextlib", "contextvars"}
)
"""Packages whose frames are between this library and a node's code."""

MAX_CHAIN = 8

MAX_MEMBERS = 16  # of an exception group; the text of the traceback names more

MEMBER_DEPTH = 3  # a group in a group counts as this many links of a chain: groups grow faster

MAX_TRACEBACK = 16_000  # characters; the end of a traceback matters most, so the start is cut

MAX_MESSAGE = 16_000  # characters; an exception may carry the whole body of a reply

MAX_VALUE = 64_000  # bytes of its arguments, or of one attribute; a larger value is left out


@codec.strict
@immutable
class ErrorRecord:
    """A stored exception: `type` is `module:qualname`, `bases` the same for its MRO.

    `shown` is its `repr()`; `members` are the exceptions of a group.
    """

    type: str
    message: str
    bases: list[str] = field(default_factory=list)
    args: list[Any] | None = None
    attributes: JSONObject = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    traceback: str = ""
    cause: ErrorRecord | None = None
    context: ErrorRecord | None = None
    suppress_context: bool = False
    shown: str = ""
    members: list[ErrorRecord] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The class name alone, as a traceback's last line shows it."""
        return self.type.rpartition(":")[2].rpartition(".")[2]

    def __str__(self) -> str:
        """Return the last line of a traceback, and the last note."""
        line = f"{self.name}: {self.message}" if self.message else self.name
        return f"{line} ({self.notes[-1]})" if self.notes else line


def record(error: BaseException, depth: int = 0) -> ErrorRecord:
    """Store an exception: type, message, arguments, attributes, notes, causes and traceback."""
    cls = type(error)
    return ErrorRecord(
        type=_name(cls),
        message=_text(error, str),
        bases=[_name(base) for base in cls.__mro__[1:] if issubclass(base, BaseException)],
        args=_arguments(error),
        attributes=_attributes(error),
        notes=[_short(_storable(str(note))) for note in getattr(error, "__notes__", ())],
        traceback="" if depth else _traceback(error),
        cause=_chained(error.__cause__, depth),
        context=_chained(None if error.__cause__ is not None else error.__context__, depth),
        suppress_context=error.__suppress_context__,
        shown=_text(error, repr),
        members=_members(error, depth + MEMBER_DEPTH),
    )


def _chained(error: BaseException | None, depth: int) -> ErrorRecord | None:
    return record(error, depth + 1) if error is not None and depth < MAX_CHAIN else None


def _members(error: BaseException, depth: int) -> list[ErrorRecord]:
    if not isinstance(error, BaseExceptionGroup) or depth > MAX_CHAIN:
        return []
    return [record(member, depth) for member in error.exceptions[:MAX_MEMBERS]]


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _text(error: BaseException, describe: Callable[[object], str]) -> str:
    """`str()` of a user's exception may itself raise, and may hold text that can't be stored."""
    try:
        return _short(_storable(describe(error)))
    except Exception as broken:  # noqa: BLE001 - any error of the user's __str__
        return f"<its message could not be read: {type(broken).__name__}>"


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _short(text: str) -> str:
    excess = len(text) - MAX_MESSAGE
    return f"{text[:MAX_MESSAGE]} … ({excess:,} characters more)" if excess > 0 else text


def _is_short(json_value: Any) -> bool:
    return len(codec.dump_json(json_value)) <= MAX_VALUE


def own_frames(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the node's code on, without the frames that called it."""
    frames = error.__traceback__
    is_inside = False
    while frames is not None:
        package = str(frames.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        is_inside = is_inside or package == "runner"
        if is_inside and package not in AROUND:
            return frames
        frames = frames.tb_next
    return error.__traceback__


def _traceback(error: BaseException) -> str:
    text = "".join(traceback.format_exception(type(error), error, own_frames(error)))
    return _storable(text)[-MAX_TRACEBACK:]


def _arguments(error: BaseException) -> list[Any] | None:
    arguments: object = error.args
    if isinstance(error, BaseExceptionGroup):
        arguments = (error.message,)
    elif isinstance(error, OSError):
        # The file names of an OSError are not among its args.
        arguments = OSError.__reduce__(error)[1]
    try:
        json_values: list[Any] = codec.pack(arguments, "args")
    except UnstorableError:
        return None
    return json_values if _is_short(json_values) else None


def _attributes(error: BaseException) -> JSONObject:
    attributes = {}
    for key, value in getattr(error, "__dict__", {}).items():
        if key == "__notes__":
            continue
        try:
            json_value = codec.pack(value, key)
        except UnstorableError:
            continue
        if _is_short(json_value):
            attributes[key] = json_value
    return attributes


def load(document: JSONMapping) -> ErrorRecord:
    """Read a record from its stored form, with the records chained to it."""
    chain = {key: load(document[key]) for key in ("cause", "context") if document.get(key)}
    members = [load(member) for member in document.get("members") or ()]
    return ErrorRecord(**{**document, **chain, "members": members})


def restore(record: ErrorRecord) -> BaseException:
    """Restore a stored exception, with the marker attribute `restored` set to True."""
    error = _revive(record)
    error.__dict__["restored"] = True
    for note in record.notes:
        error.add_note(note)
    error.__cause__ = restore(record.cause) if record.cause else None
    error.__context__ = restore(record.context) if record.context else None
    error.__suppress_context__ = record.suppress_context
    return error


def _revive(record: ErrorRecord) -> BaseException:
    """Use the exception's class if `str` and `repr` stay the same, else a stand-in below a base."""
    original_class = _exception_class(record.type)
    if original_class is not None:
        error = _build(original_class, record)
        if error is not None and _reads_alike(error, record):
            return error
    for name in (record.type, *record.bases):
        base = _exception_class(name)
        error = None if base is None else _build(_stand_in(base, record), record)
        if error is not None:
            return error
    return NodeFailed(str(record))


def _stand_in(base: type[BaseException], record: ErrorRecord) -> type[BaseException]:
    body = {
        "__str__": lambda _self: record.message,
        "__repr__": lambda _self: record.shown or f"{record.name}({record.message!r})",
        "__module__": record.type.partition(":")[0],
    }
    return type(record.name, (base,), body)


def _exception_class(name: str) -> type[BaseException] | None:
    cls = codec.imported(name)
    return cls if isinstance(cls, type) and issubclass(cls, BaseException) else None


def _build(cls: type[BaseException], record: ErrorRecord) -> BaseException | None:
    """Create the exception without running a user's class's code; None if that isn't possible."""
    try:
        arguments = (
            (record.message,) if record.args is None else tuple(codec.unpack(record.args))
        )
        if issubclass(cls, BaseExceptionGroup):
            error: BaseException = cls.__new__(
                cls, arguments[0], [restore(member) for member in record.members]
            )
        elif isinstance(cls.__init__, WrapperDescriptorType) and isinstance(
            cls.__new__, BuiltinFunctionType
        ):
            # Constructors of built-in classes set slots that aren't in `__dict__`, such as `errno`.
            error = cls(*arguments)
        else:
            error = _bare(cls)
            error.args = arguments
        error.__dict__.update(
            {key: codec.unpack(value) for key, value in record.attributes.items()}
        )
    except Exception:  # noqa: BLE001 - making a class may raise any error
        return None
    return error


def _bare(cls: type[BaseException]) -> BaseException:
    """Create an empty object of a class without calling a user's `__new__`."""
    makers = (vars(base).get("__new__") for base in cls.__mro__)
    make: Any = next(maker for maker in makers if isinstance(maker, BuiltinFunctionType))
    error: BaseException = make(cls)
    return error


def _reads_alike(error: BaseException, record: ErrorRecord) -> bool:
    """Return whether the texts equal the stored texts: they differ if some state wasn't stored."""
    try:
        return str(error) == record.message and repr(error) == (record.shown or repr(error))
    except Exception:  # noqa: BLE001 - the user's __str__ may raise anything
        return False
