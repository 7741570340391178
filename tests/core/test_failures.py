from __future__ import annotations

import json
import subprocess
import sys
import types

import pydantic
import pytest

from runner import codec, failures
from runner.errors import NodeFailed
from runner.failures import ErrorRecord


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
    found = restored(error)

    assert isinstance(found, type(error))
    assert (str(found), repr(found)) == (str(error), repr(error))
    assert type(found).__name__ == type(error).__name__
    assert found.restored is True


def test_the_state_of_an_error_comes_back_without_its_init():
    """Arguments and attributes are put back as they were; no code of the class runs."""
    found = restored(Refused("too much", code=7))

    assert type(found) is Refused
    assert (found.args, found.code, found.details) == (("too much",), 7, {"parts": [1, 2]})


def test_what_python_fills_in_itself_is_filled_in_again():
    """Numbers and file names of operating system errors are there, though they are no attributes."""
    found = restored(FileNotFoundError(2, "No such file", "a.txt"))

    assert (found.errno, found.strerror, found.filename) == (2, "No such file", "a.txt")


def test_the_errors_of_a_group_come_back():
    """A group holds its errors, so that `except*` works on it."""
    found = restored(ExceptionGroup("many", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])]))

    assert found.message == "many"
    assert [repr(each) for each in found.exceptions] == [
        "ValueError('a')",
        "ExceptionGroup('inner', [KeyError('b')])",
    ]
    assert found.subgroup(KeyError) is not None


def test_a_huge_group_is_cut():
    """Only the first errors of a group are kept; its text still tells how many there were."""
    found = restored(ExceptionGroup("many", [ValueError(str(n)) for n in range(50)]))

    assert len(found.exceptions) == failures.MAX_MEMBERS
    assert str(found) == "many (50 sub-exceptions)"


def test_attributes_that_cannot_be_stored_are_left_out():
    """An error with a live object on it is stored without that object, and its text stays."""
    found = restored(Locked(object()))

    assert not hasattr(found, "thing")
    assert isinstance(found, Locked)
    assert str(found) == "locked: object"


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
    found = restored(third.value)

    assert found.__cause__ is None
    assert repr(found.__context__) == "ValueError('second')"
    assert found.__context__.__notes__ == ["seen by the clerk"]
    assert repr(found.__context__.__cause__) == "KeyError('first')"
    assert found.__context__.__suppress_context__ is True


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

    found = failures.restore(record)

    assert isinstance(found, TimeoutError)
    assert (type(found).__name__, type(found).__module__) == ("Late", "elsewhere")
    assert (str(found), repr(found)) == ("slow", "Late('slow')")
    assert "elsewhere" not in sys.modules


def test_nothing_is_called_because_stored_data_names_it():
    """A record that names a function or another class gets an error of that name, nothing more."""
    for name in ("builtins:print", "subprocess:Popen", "os:system", ":", "nowhere"):
        found = failures.restore(ErrorRecord(name, "boom", ["builtins:Exception", "builtins:BaseException"]))
        assert str(found) == "boom"
        assert isinstance(found, Exception)


def test_a_record_without_known_bases_is_still_an_error():
    """A record none of whose classes exists here comes back as the library's own error."""
    found = failures.restore(ErrorRecord("gone:Gone", "boom", ["gone:Base"]))

    assert isinstance(found, NodeFailed)
    assert str(found) == "Gone: boom"


def test_an_error_of_a_library_without_a_constructor_comes_back_below_its_base():
    """An error that only its library can make comes back with its name and text below ValueError."""
    with pytest.raises(pydantic.ValidationError) as caught:
        Amount(amount="many")

    found = failures.restore(stored(caught.value))

    assert isinstance(found, ValueError)
    assert type(found).__name__ == "ValidationError"
    assert str(found) == str(caught.value)


def test_a_record_reads_as_the_last_line_of_a_traceback():
    """The short form is the class name and the message, or the name alone."""
    assert str(failures.record(Ours("slow"))) == "Ours: slow"
    assert str(failures.record(ValueError())) == "ValueError"


def test_only_ordinary_errors_are_raised_again():
    """What would end the process comes back as an ordinary error that tells what it was."""
    assert isinstance(failures.raisable(stored(KeyError("a"))), KeyError)

    ended = failures.raisable(stored(SystemExit(2)))

    assert isinstance(ended, NodeFailed)
    assert "SystemExit: 2" in str(ended)


def test_records_without_the_newer_fields_are_read():
    """A record written before `shown` and `members` existed comes back with its text."""
    old = {"type": "builtins:KeyError", "message": "'a'", "bases": ["builtins:Exception"], "args": ["a"]}

    assert repr(failures.restore(failures.load(old))) == "KeyError('a')"
    assert (
        repr(
            failures.restore(failures.load({"type": "x:Y", "message": "m", "bases": ["builtins:Exception"]}))
        )
        == "Y('m')"
    )
