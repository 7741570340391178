"""What every archive promises: a folder, and a real Postgres."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pathlib
import threading
from dataclasses import replace

import pytest

from runner.errors import ArchiveError, UsageError
from runner.execution import ids
from runner.operations.exports import read_export
from runner.records.json_form import document, milliseconds, stamp
from runner.records.listings import SKEW, RunQuery, RunSummary, id_span, merged, position_in
from runner.records.run import Status
from runner.store.archive import open_archive
from runner.store.archive.folder import FolderArchive
from runner.store.archive.interface import archived_run
from runner.store.memory.store import MemoryStore
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker
from tests.contract.test_partitions import partitioned

EVERYTHING = RunQuery()
HOUR = 3_600_000


@pytest.fixture(params=["folder", pytest.param("postgres", marks=pytest.mark.full)])
def place(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "archive")
    import psycopg

    url = request.getfixturevalue("postgres").url
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS runner_runs")
    return url


@pytest.fixture
def archive(place):
    return open_archive(place)


@pytest.fixture
def folder(tmp_path):
    return FolderArchive(str(tmp_path / "archive"))


@pytest.fixture
def made():
    """Make the export of a run: a real one, with the id, start and other values that a test wants."""
    store = MemoryStore(clock=ManualClock())
    worker = ManualWorker(store)
    run_id = worker.start("a")
    worker.run(run_id, "a")
    template = document(read_export(store, run_id))

    def make(**values):
        run_id = values.get("run_id") or ids.run_id()
        return {**template, "runs": [], **values, "run_id": run_id, "root": run_id}

    return make


def write(archive, *exports):
    archive.write([archived_run(export) for export in exports])


def listed(archive, limit=100, query=EVERYTHING):
    """Read all pages and return the ids in order."""
    found, cursor = [], ""
    while True:
        page = archive.runs(query, limit, cursor)
        assert len(page) <= limit
        found += [run.run_id for run in page]
        if page.next is None:
            return found
        cursor = page.next


def at(milliseconds_):
    return stamp(1_795_000_000_000 + milliseconds_)


def test_a_run_comes_back_as_it_was_written(archive, made):
    """What is read equals what was written: numbers, texts of any script, NUL, empty and nested values."""
    texts = ["\x00", "\\u0000", "\\\\", "\\\x00\x00é😀\u2028"]
    odd = {
        "texts": texts,
        "numbers": [1e300, -0.5, 2**63 - 1, 0, 1e16],
        "nothing": [None, {}, [], ""],
    }
    run = made(task=odd, tags={"a": "b", "n\x00": "\x00"}, reason="because\x00")
    write(archive, run, made())

    assert archive.read(run["run_id"]) == run


def test_an_archive_that_nobody_wrote_to_is_empty(archive):
    """Before the first write there is nothing, and no error."""
    assert archive.read(ids.run_id()) is None
    assert archive.read("no id of ours") is None
    assert listed(archive) == []


def test_a_run_inside_another_is_read_by_itself(archive, made):
    """A child run has no line of its own: it is found inside the outermost one, at any depth."""
    innermost = made(parent="00b", parent_node="x")
    inner = made(run_id="00b", parent="00a", parent_node="x", runs=[innermost])
    outer = made(run_id="00a", runs=[made(parent="00a", parent_node="y"), inner])
    write(archive, made(), outer)

    assert archive.read("00b") == inner
    assert archive.read(innermost["run_id"]) == innermost
    by_id = {run.run_id: run for run in archive.runs(EVERYTHING, 10)}
    assert len(by_id) == 5
    assert (by_id["00b"].parent, by_id["00a"].parent) == ("00a", "")
    assert by_id["00b"] == RunSummary(
        run_id="00b",
        graph_id=inner["graph"],
        status=Status.COMPLETED,
        created_at=milliseconds(inner["created_at"]),
        tags={},
        fingerprint=inner["fingerprint"],
        parent="00a",
        archived=True,
    )


def test_writing_a_run_again_replaces_it(archive, made):
    """Writing is at least once: the run is there once, as it was written last."""
    first, other = made(status="failed"), made()
    write(archive, first)
    write(archive, other, first)
    write(archive, {**first, "status": "completed", "reason": "retried"})

    assert archive.read(first["run_id"])["reason"] == "retried"
    assert sorted(listed(archive, 1)) == sorted([first["run_id"], other["run_id"]])
    assert listed(archive, query=RunQuery(Status.FAILED)) == []


def test_runs_are_listed_newest_first_page_by_page(archive, made):
    """Pages of any size list every run once, by start and then by id, over days and files."""
    runs = [made(created_at=at(number // 2 * 7 * HOUR)) for number in range(30)]
    for place_ in range(0, 30, 4):
        write(archive, *runs[::-1][place_ : place_ + 4])
    newest_first = sorted(
        runs, key=lambda run: (run["created_at"], run["run_id"]), reverse=True
    )
    order = [run["run_id"] for run in newest_first]

    for limit in (1, 2, 7, 30, 100):
        assert listed(archive, limit) == order
    page = archive.runs(EVERYTHING, 3)
    assert position_in(page.next) == (milliseconds(newest_first[2]["created_at"]), order[2])


def test_filters_are_those_of_the_store(archive, made):
    """A listing can be of a status, a graph, tags and a span of time, and of all of these at once."""
    runs = [
        made(status=status, graph=graph, tags=tags, created_at=at(number * HOUR))
        for number, (status, graph, tags) in enumerate(
            (status, graph, tags)
            for status in ("completed", "failed", "cancelled")
            for graph in ("one", "two")
            for tags in ({}, {"a": "1"}, {"a": "1", "b": "2"}, {"a": "2"})
        )
    ]
    write(archive, *runs)
    start = milliseconds(at(0))
    queries = [
        RunQuery(Status.FAILED),
        RunQuery(graph="two"),
        RunQuery(tags={"a": "1"}),
        RunQuery(tags={"a": "1", "b": "2"}),
        RunQuery(text="2"),
        RunQuery(since=start + 5 * HOUR, until=start + 9 * HOUR),
        RunQuery(Status.COMPLETED, "one", {"a": "2"}, start, start + 20 * HOUR),
        RunQuery(Status.EXECUTING),
    ]

    summaries = {run["run_id"]: archived_run(run).summaries[0] for run in runs}
    for query in queries:
        expected = [
            run_id for run_id, summary in reversed(summaries.items()) if query.fits(summary)
        ]
        assert listed(archive, 2, query) == expected


@pytest.mark.slow
def test_a_large_run_is_archived(archive, made):
    """A run of 30 MB is written and read like any other."""
    run = made(task=["x" * 1_000_000 + str(number) for number in range(30)])
    write(archive, run)

    assert archive.read(run["run_id"]) == run


@pytest.mark.full
def test_many_writers_share_an_archive(place, made):
    """Workers that write at the same time lose nothing, also when it is the first write of all."""
    runs = [[made() for _ in range(5)] for _ in range(8)]
    problems = []

    def work(own):
        try:
            archive = open_archive(place)
            for run in own:
                write(archive, run)
        except Exception as error:  # noqa: BLE001 - a thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=[own]) for own in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert problems == []
    assert sorted(listed(open_archive(place))) == sorted(
        run["run_id"] for own in runs for run in own
    )


# -- the folder ----


def test_other_programs_can_read_the_folder(folder, made, tmp_path):
    """Every file of runs is gzip with a JSON document a line."""
    runs = [made(), made()]
    write(folder, *runs)

    (file,) = (tmp_path / "archive" / "runs").glob("*/*.jsonl.gz")
    with gzip.open(file) as lines:
        assert [json.loads(line) for line in lines] == runs


@pytest.mark.full
def test_one_run_is_found_without_reading_everything(folder, made, monkeypatch):
    """To read a run, files of the index from about its start are opened, and one file of runs."""
    for day in range(20):
        write(
            folder,
            *(made(created_at=at((day - 40) * 24 * HOUR + number)) for number in range(5)),
        )
    wanted = made()
    wanted = {**wanted, "created_at": start_of(wanted["run_id"])}
    write(folder, wanted)
    opened = []
    read_text, open_gzip = pathlib.Path.read_text, gzip.open
    monkeypatch.setattr(
        pathlib.Path,
        "read_text",
        lambda path, **options: opened.append(path) or read_text(path, **options),
    )
    monkeypatch.setattr(
        gzip, "open", lambda path, mode: opened.append(path) or open_gzip(path, mode)
    )

    assert folder.read(wanted["run_id"]) == wanted
    assert len(opened) == 2


def start_of(run_id):
    """Return the time in an id."""
    return stamp(id_span(run_id)[0] + SKEW)


def test_a_run_is_found_whatever_its_clock_showed(folder, made):
    """A run whose id was made by a wrong clock, or that has another kind of id, is found as well."""
    wrong, foreign = made(created_at=at(0)), made(run_id="order-7")
    write(folder, wrong, foreign)

    assert folder.read(wrong["run_id"]) == wrong
    assert folder.read("order-7") == foreign


def test_a_write_that_was_cut_short_leaves_nothing(folder, made, tmp_path, monkeypatch):
    """A file is there whole or not at all, so a worker that dies while it writes leaves no half of one."""
    run = made()
    monkeypatch.setattr(
        os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(ArchiveError, match=r"can't be written: .*No space left"):
        write(folder, run)
    monkeypatch.undo()

    assert [path for path in (tmp_path / "archive").rglob("*") if path.is_file()] == []
    assert folder.read(run["run_id"]) is None


def test_runs_without_an_index_are_not_listed_and_written_again(folder, made, monkeypatch):
    """A worker that dies between a file of runs and its index leaves a copy that nobody counts."""
    run = made()
    monkeypatch.setattr("runner.store.archive.folder._index_line", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(folder, run)
    monkeypatch.undo()
    assert listed(folder) == []

    write(folder, run)

    assert (listed(folder), folder.read(run["run_id"])) == ([run["run_id"]], run)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: b"?" * len(data), lambda data: b""],
)
def test_a_damaged_file_hides_no_other(folder, made, tmp_path, damage):
    """Reading a run from a damaged file names the file; runs of other files are read as before."""
    first, second = made(), made()
    write(folder, first)
    (file,) = (tmp_path / "archive" / "runs").glob("*/*.gz")
    write(folder, second)
    file.write_bytes(damage(file.read_bytes()))

    with pytest.raises(ArchiveError, match=file.name):
        folder.read(first["run_id"])
    assert folder.read(second["run_id"]) == second
    assert sorted(listed(folder)) == sorted([first["run_id"], second["run_id"]])


def test_a_file_of_runs_that_is_gone_is_named(folder, made, tmp_path):
    """Reading a run whose file somebody has deleted fails with the name of the file."""
    run = made()
    write(folder, run)
    (file,) = (tmp_path / "archive" / "runs").glob("*/*.gz")
    file.unlink()

    with pytest.raises(ArchiveError, match=file.name):
        folder.read(run["run_id"])


def test_a_damaged_index_is_left_out_with_a_warning(folder, made, tmp_path, caplog):
    """Listings go on without a damaged file of the index, and the log names it."""
    first, second = made(), made()
    write(folder, first)
    (file,) = (tmp_path / "archive" / "index").glob("*/*.jsonl")
    write(folder, second)
    file.write_text("{", encoding="utf-8")

    with caplog.at_level(logging.WARNING):
        assert listed(folder) == [second["run_id"]]
    assert file.name in caplog.text


def test_a_folder_that_can_not_be_made_is_an_error(made, tmp_path):
    """Where the folder can't be written the error names it and the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match=r"file/archive can't be written: .*Not a directory"):
        write(FolderArchive(str(tmp_path / "file" / "archive")), made())


@pytest.fixture
def nobody():
    """Be a user without rights; root may read and write everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_a_folder_without_permission_is_an_error(folder, made, tmp_path, request):
    """A folder that this user may not enter or write to is reported, for reading and for writing."""
    run = made()
    write(folder, run)
    (tmp_path / "archive").chmod(0)
    request.getfixturevalue("nobody")

    for access in (
        listed,
        lambda archive: archive.read(run["run_id"]),
        lambda archive: write(archive, run),
    ):
        with pytest.raises(ArchiveError, match="Permission denied"):
            access(folder)


# -- Postgres ----


@pytest.mark.full
def test_a_database_that_is_away_is_an_error_without_the_password(made):
    """The error names the database and the host, and no password."""
    archive = open_archive("postgresql://ann:secret@127.0.0.1:1/runs")

    with pytest.raises(ArchiveError, match="can't be written") as failed:
        write(archive, made())
    assert "secret" not in str(failed.value) + archive.place
    assert archive.place == "Postgres database runs on 127.0.0.1"


def test_a_url_that_can_not_be_read_is_refused_without_its_password():
    """A mistake in the URL is found when the archive is opened, and the error shows nothing of it."""
    with pytest.raises(UsageError, match="RUNNER_ARCHIVE") as failed:
        open_archive("postgresql://ann:secret@host/db?unknown=1")
    assert "secret" not in str(failed.value)


@pytest.mark.full
@pytest.mark.full
def test_columns_can_be_queried(postgres, made):
    """The table has columns for queries of one's own, and the export as JSONB."""
    import psycopg

    run = made(tags={"order": "7"}, task={"amount": 12})
    write(open_archive(postgres.url), run)

    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute(
            "SELECT run_id, graph, status, export #> '{task,amount}' FROM runner_runs "
            "WHERE tags ->> 'order' = '7'"
        ).fetchall()
    assert rows == [(run["run_id"], run["graph"], "completed", 12)]


@pytest.mark.full
def test_a_writer_needs_no_right_to_make_tables(postgres, made):
    """Where the table is there, a user that may only insert, update and select can archive."""
    import psycopg

    archive = open_archive(postgres.url)
    write(archive, made())
    with psycopg.connect(postgres.url) as connection:
        connection.execute("DROP ROLE IF EXISTS clerk")
        connection.execute("CREATE ROLE clerk LOGIN")
        connection.execute("GRANT SELECT, INSERT, UPDATE ON runner_runs TO clerk")
    run = made()
    clerk = open_archive(postgres.url.replace("runner@", "clerk@"))

    write(clerk, run)

    assert clerk.read(run["run_id"]) == run
    with psycopg.connect(postgres.url) as connection:
        connection.execute("REVOKE ALL ON runner_runs FROM clerk")
        connection.execute("DROP ROLE clerk")


@pytest.mark.full
def test_a_batch_is_written_whole_or_not_at_all(postgres, made):
    """Where one run of a batch can't be written, none is: the batch is written again."""
    archive = open_archive(postgres.url)
    good, bad = made(), archived_run(made())
    with pytest.raises(ArchiveError):
        archive.write([archived_run(good), replace(bad, text="{")])

    assert archive.read(good["run_id"]) is None


# -- both at once ----


@pytest.mark.full
def test_a_merged_listing_misses_nothing(made, folder, redis_url, other_url):
    """Pages of a store of two partitions and of an archive become pages of one, each run once, in order."""
    clock = ManualClock()
    store = partitioned([redis_url, other_url], clock)
    worker = ManualWorker(store)
    order = []
    for number in range(24):
        clock.advance(1)
        archived_only = number % 3 == 0
        run_id = f"{number}" if archived_only else worker.start("a", beside=f"{number % 2:02d}")
        if number % 3 < 2:
            write(folder, made(run_id=run_id, created_at=stamp(clock.now)))
        order.insert(0, run_id)

    for limit in (1, 2, 3, 7, 50):
        names, cursor = [], ""
        while cursor is not None:
            pages = [source.runs(EVERYTHING, limit, cursor) for source in (store, folder)]
            page = merged(pages, lambda run: run.position, limit)
            names += [(run.run_id, run.archived) for run in page]
            cursor = page.next
        assert [name for name, _ in names] == order
        assert [name for name, is_archived in names if is_archived] == order[2::3]
    store.close()
