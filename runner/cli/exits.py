"""The exit codes, and the one place that turns errors into them.

The codes are part of the public interface; docs/reference/cli.md lists them.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import click

from runner import errors

if TYPE_CHECKING:
    from runner.records.interrupts import Receipt


class Exit(enum.IntEnum):
    """The meaning of an exit code, for scripts."""

    DONE = 0
    RUN_FAILED = 1
    USAGE = 2
    WAITING = 3
    NOT_FOUND = 4
    CONFLICT = 5
    NOT_ALLOWED = 6
    UNREACHABLE = 7
    TIMED_OUT = 8
    INTERNAL_ERROR = 70
    STOPPED = 130


class CommandError(Exception):
    """A command failed: a one-line message, an optional hint and the exit code."""

    def __init__(self, code: Exit, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


HINTS = {
    Exit.NOT_FOUND: "List what exists: `runner runs list`, `interrupts list`, `graphs list` or `dead list`.",
    Exit.UNREACHABLE: "`runner dev` starts a store and a worker on this machine and prints its address.",
    Exit.INTERNAL_ERROR: "This is a bug in runner. Repeat with --debug for the traceback, and report it.",
}

CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (errors.NotFoundError, Exit.NOT_FOUND),
    (errors.UsageError, Exit.USAGE),
    (errors.ConflictError, Exit.CONFLICT),
    (errors.StoreError, Exit.UNREACHABLE),
    (errors.RunnerError, Exit.RUN_FAILED),
    (TimeoutError, Exit.TIMED_OUT),
)


def command_error(error: BaseException) -> CommandError:
    """Turn any error into a one-line message with its exit code."""
    if isinstance(error, CommandError):
        return error
    if isinstance(error, click.ClickException):
        return CommandError(
            Exit.USAGE, " ".join(error.format_message().split()), _help_hint(error)
        )
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return CommandError(Exit.STOPPED, "Interrupted before the command finished.")
    if isinstance(error, UnicodeEncodeError):
        return CommandError(Exit.USAGE, "An argument contains bytes that are not valid UTF-8.")
    code = next((code for kind, code in CODES if isinstance(error, kind)), Exit.INTERNAL_ERROR)
    message = f"{type(error).__name__}: {error}" if code is Exit.INTERNAL_ERROR else str(error)
    # If the store can be reached but refuses, starting another one doesn't help.
    hint = (
        ""
        if code is Exit.UNREACHABLE and "could not be reached" not in message
        else HINTS.get(code, "")
    )
    return CommandError(code, message.replace("\n", " "), hint)


MOVED = {
    "again": "`runner api POST /v1/runs/RUN:again`",
    "api": "`GET /v1/keys` of the server that has them",
    "events": "`runner runs watch RUN`, or `runner api GET /v1/runs/RUN/events`",
    "fork": "`runner api POST /v1/runs/RUN:fork`",
    "vote-all": "`runner api POST /v1/questions:vote`",
    "withdraw": "`runner api POST /v1/questions/ID:withdraw`",
}
"""The replacements of removed commands."""


def _help_hint(error: click.ClickException) -> str:
    for name, successor in MOVED.items():
        if error.message.startswith(f"No such command '{name}'"):
            return f"Use {successor}."
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if context is not None else ""


def exit_of_run(status: str) -> Exit:
    """Return the exit code for the status of a run that the command waited for."""
    codes = {"completed": Exit.DONE, "interrupted": Exit.WAITING, "held": Exit.WAITING}
    return codes.get(status, Exit.RUN_FAILED)


def exit_of_receipt(receipt: Receipt) -> Exit:
    """Return the exit code for the receipt of an answer or a vote."""
    return {
        "accepted": Exit.DONE,
        "counted": Exit.DONE,
        "withdrawn_vote": Exit.DONE,
        "rejected": Exit.USAGE,
        "unknown": Exit.NOT_FOUND,
        "forbidden": Exit.NOT_ALLOWED,
    }.get(receipt.status, Exit.CONFLICT)
