"""How every command ends: the exit codes, and the one place where errors become them.

The codes are part of the public interface; docs/reference/cli.md lists them.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import click

from runner import errors

if TYPE_CHECKING:
    from runner.interrupts import Receipt


class Exit(enum.IntEnum):
    """What a script reads from the exit code."""

    DONE = 0
    RUN_FAILED = 1
    USAGE = 2
    WAITING = 3
    NOT_FOUND = 4
    CONFLICT = 5
    NOT_ALLOWED = 6
    UNREACHABLE = 7
    TIMED_OUT = 8
    FAULT = 70
    STOPPED = 130


class CommandError(Exception):
    """A command can't do what it was asked: one line, one hint, and the code to leave with."""

    def __init__(self, code: Exit, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


HINTS = {
    Exit.NOT_FOUND: "See what there is: `runner runs list`, `interrupts list`, `graphs list` or `dead list`.",
    Exit.UNREACHABLE: "`runner dev` starts a store and a worker here, and says how to reach them.",
    Exit.FAULT: "This is a fault of the program. Repeat with --debug to see where, and report it.",
}

CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (errors.NotFoundError, Exit.NOT_FOUND),
    (errors.UsageError, Exit.USAGE),
    (errors.ConflictError, Exit.CONFLICT),
    (errors.StoreError, Exit.UNREACHABLE),
    (errors.RunnerError, Exit.RUN_FAILED),
    (TimeoutError, Exit.TIMED_OUT),
)


def translated(error: BaseException) -> CommandError:
    """Say in one line what went wrong, with the code that belongs to it."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, click.ClickException):
        return CommandError(Exit.USAGE, error.format_message(), _help_hint(error))
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return CommandError(Exit.STOPPED, "Stopped before the end.")
    if type(error).__module__.startswith("pydantic"):
        return CommandError(Exit.USAGE, f"A setting can't be used: {_settings_line(error)}")
    if isinstance(error, UnicodeEncodeError):
        return CommandError(Exit.USAGE, "An argument holds bytes that are no text in UTF-8.")
    code = next((code for kind, code in CODES if isinstance(error, kind)), Exit.FAULT)
    message = str(error) if code is not Exit.FAULT else f"{type(error).__name__}: {error}"
    return CommandError(code, message, HINTS.get(code, ""))


def _help_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if context is not None else ""


def _settings_line(error: BaseException) -> str:
    """Pydantic's own text has many lines; the first problem is enough to go on."""
    problems = getattr(error, "errors", None)
    if not callable(problems):
        return str(error).partition("\n")[0]
    first = problems(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"]).upper()
    return f"RUNNER_{name}: {first['msg']} (got {first['input']!r})."


def of_run(status: str) -> Exit:
    """Give the code for a run that was waited for."""
    known = {"completed": Exit.DONE, "interrupted": Exit.WAITING, "needs_migration": Exit.WAITING}
    return known.get(status, Exit.RUN_FAILED)


def of_receipt(receipt: Receipt) -> Exit:
    """Give the code for an answer that was sent."""
    return {
        "accepted": Exit.DONE,
        "rejected": Exit.USAGE,
        "unknown": Exit.NOT_FOUND,
        "forbidden": Exit.NOT_ALLOWED,
    }.get(receipt.status, Exit.CONFLICT)
