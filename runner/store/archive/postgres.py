"""An archive in Postgres: one table with a row for each run; an outermost run's row has the export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.errors import ArchiveError, UsageError, needs_extra
from runner.records import codec
from runner.records.codec import JSONMapping
from runner.records.listings import Page, RunQuery, RunSummary, cut, position_in
from runner.records.run import Status
from runner.store.archive.interface import ArchivedRun, run_inside

with needs_extra("postgres", "an archive in Postgres"):
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types.json import Jsonb

TIMEOUT = 10
"""Seconds to connect; statements have no time limit, since a large run may take long."""

TABLE = """
CREATE TABLE IF NOT EXISTS runner_runs (
  run_id text COLLATE "C" PRIMARY KEY,
  root text NOT NULL,
  parent text NOT NULL,
  graph text NOT NULL,
  status text NOT NULL,
  created_at timestamptz NOT NULL,
  tags jsonb NOT NULL,
  fingerprint text NOT NULL,
  archived_at timestamptz NOT NULL DEFAULT now(),
  export jsonb,
  exact text
);
CREATE INDEX IF NOT EXISTS runner_runs_created ON runner_runs (created_at, run_id);
CREATE INDEX IF NOT EXISTS runner_runs_graph ON runner_runs (graph, created_at);
CREATE INDEX IF NOT EXISTS runner_runs_tags ON runner_runs USING gin (tags jsonb_path_ops);
"""
"""Only an outermost run has an `export`. JSONB refuses NUL in a text: then `export` has U+FFFD in its place,
and `exact` has the original JSON."""

LOCK = 7_402_117
"""The advisory lock under which one worker makes a table: IF NOT EXISTS alone can fail with two."""

WRITE = """
INSERT INTO runner_runs (run_id, root, parent, graph, status, created_at, tags, fingerprint, export, exact)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s)
ON CONFLICT (run_id) DO UPDATE SET
  root = excluded.root, parent = excluded.parent, graph = excluded.graph, status = excluded.status,
  created_at = excluded.created_at, tags = excluded.tags, fingerprint = excluded.fingerprint,
  archived_at = now(), export = excluded.export, exact = excluded.exact
"""

READ = """
SELECT outer_run.export::text, outer_run.exact FROM runner_runs AS run
JOIN runner_runs AS outer_run ON outer_run.run_id = run.root WHERE run.run_id = %s
"""

AUDIT = "runner_audit"

AUDIT_TABLE = """
CREATE TABLE IF NOT EXISTS runner_audit (
  origin text NOT NULL,
  n bigint NOT NULL,
  line text NOT NULL,
  PRIMARY KEY (origin, n)
);
"""
"""Audit entries are stored as text: JSONB would change their bytes, and refuse some texts."""

WRITE_AUDIT = """
INSERT INTO runner_audit (origin, n, line) VALUES (%s, %s, %s) ON CONFLICT (origin, n) DO NOTHING
"""

READ_AUDIT = "SELECT line FROM runner_audit WHERE origin = %s ORDER BY n"

COLUMNS = "run_id, graph, status, created_at, tags, fingerprint, parent"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL in JSON, after an even number of backslashes, since those are escaped pairs."""


class PostgresArchive:
    """Archived runs in a table of a Postgres database, `runner_runs`. Thread-safe."""

    def __init__(self, url: str) -> None:
        """Name the database by its URL, as libpq reads it.

        Raises:
            UsageError: libpq can't read it.
        """
        try:
            options = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UsageError(
                "RUNNER_ARCHIVE isn't a URL that Postgres clients can read."
            ) from error
        where = options.get("host") or "the local server"
        self.place = f"Postgres database {options.get('dbname') or 'of the user'} on {where}"
        self._url = url

    def write(self, runs: Sequence[ArchivedRun]) -> None:
        rows = [row for run in runs for row in _rows(run)]
        with self._session("written") as connection, connection.cursor() as cursor:
            _make_table(cursor)
            cursor.executemany(WRITE, rows)

    def read(self, run_id: str) -> JSONMapping | None:
        with self._session("read") as connection:
            row = (
                connection.execute(READ, [_without_nul(run_id)]).fetchone()
                if _has_table(connection)
                else None
            )
        if row is None:
            return None
        return run_inside(json.loads(row[1] or row[0], parse_int=_number), run_id)

    def runs(self, query: RunQuery, limit: int, cursor: str = "") -> Page[RunSummary]:
        conditions, values = _conditions(query, cursor)
        # The statement is made of constant texts only; users' data are passed as values.
        sql = (
            f"SELECT {COLUMNS} FROM runner_runs WHERE {' AND '.join(conditions)} "  # noqa: S608 - as said above
            "ORDER BY created_at DESC, run_id DESC LIMIT %s"
        )
        with self._session("read") as connection:
            rows = (
                connection.execute(sql, [*values, limit + 1]).fetchall()
                if _has_table(connection)
                else []
            )
        return cut((_summary(row) for row in rows), lambda run: run.position, limit)

    def write_audit(self, origin: str, first_number: int, lines: Sequence[str]) -> None:
        rows = [(origin, n, line) for n, line in enumerate(lines, first_number)]
        with self._session("written") as connection, connection.cursor() as cursor:
            if not _has_table(connection, AUDIT):
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
                cursor.execute(AUDIT_TABLE)
            cursor.executemany(WRITE_AUDIT, rows)

    def read_audit(self, origin: str) -> Iterator[str]:
        with self._session("read") as connection:
            if _has_table(connection, AUDIT):
                with connection.cursor("audit") as cursor:
                    for (line,) in cursor.execute(READ_AUDIT, [origin]):
                        yield line

    @contextmanager
    def _session(self, verb: str) -> Iterator[psycopg.Connection[Any]]:
        """Open a connection with one transaction."""
        try:
            with psycopg.connect(self._url, connect_timeout=TIMEOUT) as connection:
                yield connection
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            raise ArchiveError(
                f"The archive, {self.place}, can't be {verb}: {reason}."
            ) from error


def _make_table(cursor: psycopg.Cursor[Any]) -> None:
    """Make the table if it is missing; otherwise no right to create tables is needed."""
    if not _has_table(cursor.connection):
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        cursor.execute(TABLE)


def _has_table(connection: psycopg.Connection[Any], name: str = "runner_runs") -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
    return bool(row and row[0])


def _rows(run: ArchivedRun) -> Iterator[Sequence[Any]]:
    for summary in run.summaries:
        export = exact = None
        if summary.run_id == run.run_id:
            export = ESCAPED_NUL.sub(r"\1\\ufffd", run.text)
            exact = run.text if export != run.text else None
        yield (
            summary.run_id,
            run.run_id,
            summary.parent,
            summary.graph_id,
            str(summary.status),
            _time(summary.created_at),
            _tags(summary.tags),
            summary.fingerprint,
            export,
            exact,
        )


def _conditions(query: RunQuery, cursor: str) -> tuple[list[str], list[Any]]:
    chosen: list[tuple[str, list[Any]]] = [("true", [])]
    if query.status is not None:
        chosen.append(("status = %s", [str(query.status)]))
    if query.graph is not None:
        chosen.append(("graph = %s", [_without_nul(query.graph)]))
    if query.tags:
        chosen.append(("tags @> %s", [_tags(query.tags)]))
    if query.since is not None:
        chosen.append(("created_at >= %s", [_time(query.since)]))
    if query.until is not None:
        chosen.append(("created_at < %s", [_time(query.until)]))
    if query.text:
        values = (
            "SELECT FROM jsonb_each_text(tags) WHERE position(lower(%s) IN lower(value)) > 0"
        )
        chosen.append((f"EXISTS ({values})", [_without_nul(query.text)]))
    if cursor:
        created_at, run_id = position_in(cursor)
        chosen.append(
            ("(created_at, run_id) < (%s, %s)", [_time(created_at), _without_nul(run_id)])
        )
    return [text for text, _ in chosen], [value for _, values in chosen for value in values]


def _tags(tags: Mapping[str, str]) -> Jsonb:
    return Jsonb({_without_nul(name): _without_nul(value) for name, value in tags.items()})


def _without_nul(text: str) -> str:
    return text.replace("\x00", "\ufffd")


def _time(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def _number(digits: str) -> int | float:
    """Read a number without a point: JSONB writes large floats this way, and stored integers are shorter."""
    number = int(digits)
    return number if abs(number) <= codec.MAX_INTEGER + 1 else float(digits)


def _summary(row: Sequence[Any]) -> RunSummary:
    run_id, graph, status, created_at, tags, fingerprint, parent = row
    created_ms = round((created_at - EPOCH) / timedelta(milliseconds=1))
    return RunSummary(
        run_id, graph, Status(status), created_ms, tags, fingerprint, parent, archived=True
    )
