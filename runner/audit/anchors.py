"""Anchors: places outside the store where signed checkpoints are kept.

Once a checkpoint is anchored, nobody can change, cut or reorder the entries it covers unnoticed.
`file:` appends to a file, which the people who run workers should not be able to change; `https:`
sends each to a server; `log` writes a line to the worker's log.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from runner.errors import ArchiveError, UsageError

log = logging.getLogger(__name__)

TIMEOUT = 5.0
"""Seconds that a server may take to answer."""

CONFLICT = 409
"""Status of a server that has another or a newer checkpoint of the same tree."""

TAIL = 65_536
"""Bytes at a file's end that are searched first for the last checkpoint."""

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class AnchorRefused(ArchiveError):
    """An anchor has another or a newer checkpoint of this tree."""


class Anchor(Protocol):
    """Place where checkpoints are kept. Raises ArchiveError when it can't be reached."""

    name: str

    def write(self, note: str) -> None:
        """Keep a checkpoint; the same one may come twice.

        Raises:
            AnchorRefused: it has a checkpoint that conflicts with this one.
        """

    def last(self, origin: str) -> str:
        """Return the last checkpoint of a tree, "" if it has none or can't be asked."""


class FileAnchor:
    """A file to which checkpoints are appended."""

    def __init__(self, path: str) -> None:
        """Set the file; the first checkpoint creates it."""
        self.name = f"file:{path}"
        self._path = Path(path).expanduser()

    def write(self, note: str) -> None:
        """Append a checkpoint, unless it is the last one of its tree."""
        if self.last(_origin(note)) == note:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(note + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ArchiveError(f"The anchor {self.name} can't be written: {error}.") from error

    def last(self, origin: str) -> str:
        """Return the last checkpoint of a tree."""
        try:
            with self._path.open("rb") as file:
                for offset in dict.fromkeys((max(0, file.seek(0, os.SEEK_END) - TAIL), 0)):
                    file.seek(offset)
                    text = file.read().decode("utf-8", "replace")
                    same = [note for note in notes(text) if _origin(note) == origin]
                    if same:
                        return same[-1]
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise ArchiveError(f"The anchor {self.name} can't be read: {error}.") from error
        return ""


class WebAnchor:
    """A server that gets each checkpoint by POST, as text; it answers 409 to a conflicting one."""

    def __init__(self, url: str) -> None:
        """Set the server's address.

        Raises:
            UsageError: it is another machine, and the address has no TLS.
        """
        address = urlsplit(url)
        if address.scheme != "https" and address.hostname not in LOCAL:
            raise UsageError("an anchor on another machine needs https.")
        self.name = f"{address.scheme}://{address.hostname}"
        self._url = url

    def write(self, note: str) -> None:
        """Send a checkpoint."""
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        request = urllib.request.Request(self._url, note.encode(), headers, method="POST")  # noqa: S310 - the scheme was checked
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT):  # noqa: S310 - as above
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == CONFLICT:
                raise AnchorRefused(
                    f"The anchor {self.name} has another checkpoint of this tree, or a newer one."
                ) from error
            raise ArchiveError(f"The anchor {self.name} answered {error.code}.") from error
        except (OSError, ValueError) as error:
            raise ArchiveError(f"The anchor {self.name} can't be reached: {error}.") from error

    def last(self, origin: str) -> str:  # noqa: ARG002 - as declared
        """Return "": a server is not asked."""
        return ""


class LogAnchor:
    """The log of the worker that signs, which should be sent to another machine."""

    name = "log"

    def write(self, note: str) -> None:
        """Log a checkpoint."""
        log.info("audit.checkpoint: %s", json.dumps(note, ensure_ascii=False))

    def last(self, origin: str) -> str:  # noqa: ARG002 - as declared
        """Return "": a log is not read."""
        return ""


def anchors(targets: Iterable[str]) -> list[Anchor]:
    """Open the anchors that RUNNER_AUDIT_ANCHOR names, without writing.

    Raises:
        UsageError: an anchor has no known form.
    """
    return [_anchor(target) for target in targets]


def _anchor(target: str) -> Anchor:
    if target == "log":
        return LogAnchor()
    if target.startswith("file:") and target != "file:":
        return FileAnchor(target.removeprefix("file:"))
    if target.startswith(("https:", "http:")):
        return WebAnchor(target)
    raise UsageError(
        f"RUNNER_AUDIT_ANCHOR: {target!r:.80} is neither log, file:PATH nor https://…."
    )


def notes(text: str) -> Iterator[str]:
    """Read the checkpoints in a text with any number of them, except an incomplete last one."""
    for body, signatures in itertools.pairwise(text.replace("\r\n", "\n").split("\n\n")):
        lines = [line for line in signatures.splitlines() if line.startswith("— ")]
        head = body.strip("\n")
        if lines and head.count("\n") >= 2 and not head.startswith("— "):
            yield f"{head}\n\n" + "".join(f"{line}\n" for line in lines)


def _origin(note: str) -> str:
    return note.partition("\n")[0]
