"""An archive in a folder: gzip files of JSON lines, by day, and an index of small files beside them.

    runs/2026-11-22/1795336800000-5f2c81d09a3b4e76.jsonl.gz              a line for each run
    index/2026-11-20/1795170000000-1795200000000-1795336800000-5f….jsonl   their files and lines
    audit/runner.p00/000000001000-000000001999.jsonl.gz                    entries of the audit, by number

A write makes a file of runs in the folder of its day (UTC), and then an index file for each day on which some
of the runs were started. An index file's name has the start times of its first and last run, and the time of
the write (ms). A file is written under another name and renamed, and never changed: any number of workers on
any number of machines can share a folder, and `zcat runs/*/*.gz` reads everything. If a run was written
twice, the last write counts.
"""

from __future__ import annotations

import gzip
import heapq
import json
import logging
import os
import secrets
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.errors import ArchiveError
from runner.immutable import immutable
from runner.records.codec import JSON, JSONMapping
from runner.records.listings import (
    Page,
    RunQuery,
    RunSummary,
    cursor_of,
    cut,
    id_span,
    position_in,
)
from runner.records.run import Status
from runner.store.archive.interface import ArchivedRun, run_inside

log = logging.getLogger(__name__)

LOOKED_AT = 10_000
"""The most runs that are examined for one page."""

_END = 253_402_300_799_000
"""The last second that has a date, in ms."""

RESTORE = "Restore it from a backup; other files are not affected."


@dataclass(frozen=True, slots=True, order=True)
class IndexFile:
    """An index file: the start times of its last and first run, and its time of writing, in ms."""

    last: int
    first: int
    written: int
    path: Path


@immutable
class IndexEntry:
    """A run in the index: the file and line of its export, and the time of writing (ms)."""

    summary: RunSummary
    file: str
    line: int
    written: int


class FolderArchive:
    """An archive in a folder, which may be on a file system that several machines share."""

    def __init__(self, folder: str) -> None:
        """Name the folder, which the first write makes."""
        self.place = folder
        self._folder = Path(folder).expanduser().absolute()

    def write(self, runs: Sequence[ArchivedRun]) -> None:
        written = time.time_ns() // 1_000_000
        name = f"{written}-{secrets.token_hex(8)}"
        with self._translated("written"):
            file = self._folder / "runs" / _day(written) / f"{name}.jsonl.gz"
            with (
                _new_file(file) as raw,
                gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed_file,
            ):
                for run in runs:
                    compressed_file.write(run.text.encode() + b"\n")
            # The index comes last, so the files that it names exist.
            lines: dict[str, list[tuple[int, str]]] = defaultdict(list)
            for line, run in enumerate(runs):
                for summary in run.summaries:
                    entry = _index_line(summary, str(file.relative_to(self._folder)), line)
                    lines[_day(summary.created_at)].append((summary.created_at, entry))
            for day, entries in lines.items():
                times = [time for time, _ in entries]
                index = self._folder / "index" / day / f"{min(times)}-{max(times)}-{name}.jsonl"
                with _new_file(index) as raw:
                    raw.write("".join(entry for _, entry in entries).encode())

    def read(self, run_id: str) -> JSONMapping | None:
        near = id_span(run_id)
        # The clock may have been wrong when the id was made, so the whole index is searched if the run isn't
        # found near that time.
        entry = (self._find(run_id, *near) if near else None) or self._find(run_id, 0, 2**63)
        return self._load(entry, run_id) if entry is not None else None

    def write_audit(self, origin: str, first_number: int, lines: Sequence[str]) -> None:
        name = f"{first_number:012}-{first_number + len(lines) - 1:012}.jsonl.gz"
        with self._translated("written"):
            file = self._audit(origin) / name
            with (
                _new_file(file) as raw,
                gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed_file,
            ):
                for line in lines:
                    compressed_file.write(line.encode() + b"\n")

    def read_audit(self, origin: str) -> Iterator[str]:
        with self._translated("read"):
            folder = self._audit(origin)
            for path in sorted(folder / name for name in _names(folder) if name[0].isdigit()):
                try:
                    with gzip.open(path, "rt", encoding="utf-8") as lines:
                        yield from (line.rstrip("\n") for line in lines)
                except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
                    raise ArchiveError(
                        f"The archive's file {path} is damaged: {error}. {RESTORE}"
                    ) from error

    def _audit(self, origin: str) -> Path:
        return self._folder / "audit" / origin.replace("/", ".")

    def _find(self, run_id: str, since: int, until: int) -> IndexEntry | None:
        """Find the last written index entry of a run that was started within a time span."""
        text = json.dumps(run_id)
        entries = (
            entry
            for index in self._index_files(since, until)
            for entry in self._entries(index, text)
        )
        same = [entry for entry in entries if entry.summary.run_id == run_id]
        return max(same, key=lambda entry: entry.written, default=None)

    def runs(self, query: RunQuery, limit: int, cursor: str = "") -> Page[RunSummary]:
        cursor_position = position_in(cursor) if cursor else None
        until = query.until if query.until is not None else 2**63
        until = min(until, cursor_position[0] + 1) if cursor_position else until
        items: list[RunSummary] = []
        latest: RunSummary | None = None
        looked_at = 0
        for run in self._newest_first(query.since or 0, until):
            # A run that was written twice comes twice, the newer entry first.
            if (cursor_position and run.position >= cursor_position) or (
                latest and run.position == latest.position
            ):
                continue
            if looked_at >= LOOKED_AT and latest:
                return cut(items, _position, limit, next_cursor=cursor_of(latest.position))
            latest = run
            looked_at = looked_at + 1
            items += [run] if query.fits(run) else []
            if len(items) > limit:
                break
        return cut(items, _position, limit)

    def _newest_first(self, since: int, until: int) -> Iterator[RunSummary]:
        """List the runs in index files; a file is read when the listing reaches its time."""
        heap: list[tuple[int, str, int, int]] = []
        entries: list[IndexEntry] = []

        def rest(next_file: int) -> Iterator[RunSummary]:
            # Times are negated, since a heap yields the smallest first. Ids can't be negated, so runs of the
            # same ms are sorted.
            while heap and -heap[0][0] > next_file:
                same = [heapq.heappop(heap)]
                while heap and heap[0][0] == same[0][0]:
                    same.append(heapq.heappop(heap))
                for *_, index in sorted(
                    same, key=lambda item: (item[1], item[2]), reverse=True
                ):
                    yield entries[index].summary

        for index in self._index_files(since, until):
            yield from rest(index.last)
            for entry in self._entries(index):
                summary = entry.summary
                if since <= summary.created_at < until:
                    item = (-summary.created_at, summary.run_id, entry.written, len(entries))
                    heapq.heappush(heap, item)
                    entries.append(entry)
        yield from rest(-1)

    def _index_files(self, since: int, until: int) -> Iterator[IndexFile]:
        """List the index files with runs in a time span, newest runs first; days are read one by one."""
        with self._translated("read"):
            folder = self._folder / "index"
            first_day = _day(since)
            last_day = _day(min(until, _END))
            for day in sorted(_names(folder), reverse=True):
                if first_day <= day <= last_day:
                    files = filter(None, map(_index_file, (folder / day).glob("*.jsonl")))
                    for file in sorted(files, reverse=True):
                        if file.last >= since and file.first < until:
                            yield file

    def _entries(self, index: IndexFile, text: str = "") -> Iterable[IndexEntry]:
        """Read the lines of an index file that contain a text; skip a damaged file with a warning."""
        try:
            lines = index.path.read_text(encoding="utf-8").splitlines()
            return [_entry(json.loads(line), index.written) for line in lines if text in line]
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "archive.damaged: %s can't be read, so its runs are missing: %r",
                index.path,
                error,
            )
            return []

    def _load(self, entry: IndexEntry, run_id: str) -> JSONMapping:
        path = self._folder / entry.file
        with self._translated("read"):
            try:
                with gzip.open(path, "rb") as lines:
                    for number, line in enumerate(lines):
                        if number == entry.line:
                            export = run_inside(json.loads(line), run_id)
                            if export is not None:
                                return export
            except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, KeyError) as error:
                raise ArchiveError(
                    f"The archive's file {path} is damaged: {error}. {RESTORE}"
                ) from error
        raise ArchiveError(f"The archive's file {path} lacks run {run_id}. {RESTORE}")

    @contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArchiveError(f"The archive {self.place} can't be {verb}: {error}.") from error


def _names(folder: Path) -> list[str]:
    """List a folder that may not exist; from Python 3.14, `is_dir` is also false if access is denied."""
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _day(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(milliseconds / 1000))


def _position(run: RunSummary) -> tuple[int, str]:
    return run.position


def _index_line(run: RunSummary, file: str, line: int) -> str:
    values = [
        run.run_id,
        run.graph_id,
        run.status,
        run.created_at,
        dict(run.tags),
        run.fingerprint,
        run.parent,
    ]
    return json.dumps([*values, file, line]) + "\n"


def _entry(values: Sequence[JSON], written: int) -> IndexEntry:
    run_id, graph, status, created_at, tags, fingerprint, parent, file, line = values
    return IndexEntry(
        RunSummary(
            run_id, graph, Status(status), created_at, tags, fingerprint, parent, archived=True
        ),
        file,
        line,
        written,
    )


def _index_file(path: Path) -> IndexFile | None:
    """Read the name of an index file; None for any other file."""
    first_ms, last_ms, written_ms, *_ = [*path.name.split("-"), "", "", ""]
    if not (first_ms.isdecimal() and last_ms.isdecimal() and written_ms.isdecimal()):
        return None
    return IndexFile(int(last_ms), int(first_ms), int(written_ms), path)


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that exists either complete or not at all, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    try:
        with hidden.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)
    # The name survives a power cut only once the folder is synced.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
