from __future__ import annotations

import json
import subprocess
import sys
import types

import pydantic
import pytest

from runner.errors import NodeFailed
from runner.records import codec, failures
from runner.records.failures import ErrorRecord


class Amount(pydantic.BaseModel):
    amount: int


class Refused(Exception):
    """Has state of its own and an `__init__` that must not run again."""

    def __init__(self, reason: str, *, code: int) -> None:
        super().__init__(reason)
        self.code = code
        self.details = {"parts": [1, 2]}


class Locked(Exception):
    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __str__(self) -> str:
        return f"locked: {type(self.thing).__name__}"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Demanding(Exception):
    def __new__(cls, code: int):
        """Can't be called without its argument."""
        return super().__new__(cls, code)


class MoreDemanding(Demanding):
    pass


class Ours(TimeoutError):
    pass


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def stored(error: BaseException) -> ErrorRecord:
    """Record an error and bring the record through both of its stored forms."""
    first = codec.encode(failures.record(raised(error)))
    decoded = codec.decode(ErrorRecord, first)
    assert failures.load(codec.load_json(first)) == decoded
    return decoded


def restored(error: BaseException) -> BaseException:
    return failures.restore(stored(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        ValueError(""),
        ValueError("a"),
        ValueError((1, 2)),
        ValueError(b"\xff", 1.5, None),
        KeyError("missing"),
        LookupError("a", "b"),
        OSError(2, "No such file", "a.txt"),
        FileNotFoundError(2, "No such file", "a.txt", None, "b.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad start"),
        StopIteration(5),
        SystemExit(3),
        KeyboardInterrupt(),
        ImportError("no module", name="x"),
        json.JSONDecodeError("bad", "doc", 0),
        subprocess.CalledProcessError(1, ["a"]),
        Refused("too much", code=7),
        AssertionError(object()),
        Locked(object()),
        Demanding(3),
        MoreDemanding(4),
        ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
        BaseExceptionGroup("hard", [SystemExit(1), ValueError("c")]),
        ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("a")])]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_as_itself(error):
    """Type, text and repr of a stored error are exactly those it had, also when it had no message."""
    restored_error = restored(error)

    assert isinstance(restored_error, type(error))
    assert (str(restored_error), repr(restored_error)) == (str(error), repr(error))
    assert type(restored_error).__name__ == type(error).__name__
    assert restored_error.restored is True


def test_the_state_of_an_error_comes_back_without_its_init():
    """Arguments and attributes are put back as they were; no code of the class runs."""
    restored_error = restored(Refused("too much", code=7))

    assert type(restored_error) is Refused
    assert (restored_error.args, restored_error.code, restored_error.details) == (
        ("too much",),
        7,
        {"parts": [1, 2]},
    )


def test_what_python_fills_in_itself_is_filled_in_again():
    """Numbers and file names of operating system errors are there, though they are no attributes."""
    restored_error = restored(FileNotFoundError(2, "No such file", "a.txt"))

    assert (restored_error.errno, restored_error.strerror, restored_error.filename) == (
        2,
        "No such file",
        "a.txt",
    )


def test_a_huge_group_is_cut():
    """Only the first errors of a group are kept; its text still tells how many there were."""
    restored_error = restored(ExceptionGroup("many", [ValueError(str(n)) for n in range(50)]))

    assert len(restored_error.exceptions) == failures.MAX_MEMBERS
    assert str(restored_error) == "many (50 sub-exceptions)"


def test_attributes_that_cannot_be_stored_are_left_out():
    """An error with a live object on it is stored without that object, and its text stays."""
    restored_error = restored(Locked(object()))

    assert not hasattr(restored_error, "thing")
    assert isinstance(restored_error, Locked)
    assert str(restored_error) == "locked: object"


def test_notes_and_causes_come_back():
    """Notes, cause, context and its suppression are part of the story and are kept."""

    def chain():
        try:
            {}["first"]
        except KeyError as first:
            second = ValueError("second")
            second.add_note("seen by the clerk")
            raise second from first

    try:
        chain()
    except ValueError:
        with pytest.raises(Refused) as third:
            raise Refused("third", code=1)  # noqa: B904 - the context is what is tested
    restored_error = restored(third.value)

    assert restored_error.__cause__ is None
    assert repr(restored_error.__context__) == "ValueError('second')"
    assert restored_error.__context__.__notes__ == ["seen by the clerk"]
    assert repr(restored_error.__context__.__cause__) == "KeyError('first')"
    assert restored_error.__context__.__suppress_context__ is True


def test_a_circle_of_contexts_ends():
    """Errors that are each other's context are stored a few links deep."""
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one

    record = failures.record(one)

    depth = 0
    while record is not None:
        record, depth = record.context, depth + 1
    assert depth == failures.MAX_CHAIN + 1


def test_an_error_that_cannot_tell_its_message_is_stored():
    """A class whose text raises can't keep the error from being stored and shown."""
    record = stored(Mute("x"))

    assert record.message == "<its message could not be read: RuntimeError>"
    assert isinstance(failures.restore(record), Mute)
    assert str(failures.restore(record)) == record.message


def test_what_is_long_in_an_error_is_cut():
    """An exception that carries a whole document leaves its beginning; a large attribute is left out."""
    error = ValueError("x" * 1_000_000)
    error.body, error.code = "y" * 1_000_000, 7
    error.add_note("z" * 1_000_000)

    record = stored(error)

    assert record.message == "x" * 16_000 + " … (984,000 characters more)"
    assert record.attributes == {"code": 7}
    assert sum(map(len, (record.shown, *record.notes, record.traceback))) < 50_000
    assert isinstance(failures.restore(record), ValueError)
    assert str(failures.restore(record)) == record.message


def test_text_that_cannot_be_stored_is_written_with_escapes():
    """A lone surrogate in a message or a note is shown escaped, never a reason to lose the error."""
    error = ValueError("\ud800")
    error.add_note("note \udfff")

    record = stored(error)

    assert record.message == "\\ud800"
    assert record.notes == ["note \\udfff"]
    assert isinstance(failures.restore(record), ValueError)


def test_the_traceback_is_kept_as_text():
    """A stored error has the traceback with the place where it was raised, cut at its start."""
    record = stored(ValueError("x" * 20_000))

    assert record.traceback.endswith("x\n")
    assert len(record.traceback) == failures.MAX_TRACEBACK
    assert "in raised" in stored(ValueError("a")).traceback


def test_a_class_of_another_process_comes_back_below_its_nearest_base():
    """An error whose class is not imported here has its name, and `except` of its bases works."""
    module = types.ModuleType("elsewhere")
    sys.modules["elsewhere"] = module
    exec("class Late(TimeoutError): pass", module.__dict__)  # noqa: S102 - a class of a module that goes away
    record = stored(module.Late("slow"))
    del sys.modules["elsewhere"]

    restored_error = failures.restore(record)

    assert isinstance(restored_error, TimeoutError)
    assert (type(restored_error).__name__, type(restored_error).__module__) == (
        "Late",
        "elsewhere",
    )
    assert (str(restored_error), repr(restored_error)) == ("slow", "Late('slow')")
    assert "elsewhere" not in sys.modules


def test_nothing_is_called_because_stored_data_names_it():
    """A record that names a function or another class gets an error of that name, nothing more."""
    for name in ("builtins:print", "subprocess:Popen", "os:system", ":", "nowhere"):
        restored_error = failures.restore(
            ErrorRecord(name, "boom", ["builtins:Exception", "builtins:BaseException"])
        )
        assert str(restored_error) == "boom"
        assert isinstance(restored_error, Exception)


def test_a_record_without_known_bases_is_still_an_error():
    """A record none of whose classes exists here comes back as the library's own error."""
    restored_error = failures.restore(ErrorRecord("gone:Gone", "boom", ["gone:Base"]))

    assert isinstance(restored_error, NodeFailed)
    assert str(restored_error) == "Gone: boom"


def test_an_error_of_a_library_without_a_constructor_comes_back_below_its_base():
    """An error that only its library can make comes back with its name and text below ValueError."""
    with pytest.raises(pydantic.ValidationError) as caught:
        Amount(amount="many")

    restored_error = failures.restore(stored(caught.value))

    assert isinstance(restored_error, ValueError)
    assert type(restored_error).__name__ == "ValidationError"
    assert str(restored_error) == str(caught.value)


def test_a_record_reads_as_the_last_line_of_a_traceback():
    """The short form is the class name and the message, or the name alone."""
    assert str(failures.record(Ours("slow"))) == "Ours: slow"
    assert str(failures.record(ValueError())) == "ValueError"


def test_a_record_may_lack_what_is_not_known():
    """Of an error that no process raised, as of a crash, the store writes no more than its text and bases."""
    old = {
        "type": "builtins:KeyError",
        "message": "'a'",
        "bases": ["builtins:Exception"],
        "args": ["a"],
    }

    assert repr(failures.restore(failures.load(old))) == "KeyError('a')"
    assert (
        repr(
            failures.restore(
                failures.load({"type": "x:Y", "message": "m", "bases": ["builtins:Exception"]})
            )
        )
        == "Y('m')"
    )
