"""The audit's tree on a real server: whoever seals and signs it, it never becomes another one."""

from __future__ import annotations

import http.server
import json
import threading
from dataclasses import replace

import pytest
import redis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runner.audit.anchors import FileAnchor, anchors, notes
from runner.audit.checkpoint import read
from runner.audit.export import Result
from runner.audit.files import export_lines, verify_file
from runner.audit.head import PAGE
from runner.audit.sealing import Sealing, SealingPolicy, Signer
from runner.errors import StoreError, UsageError
from runner.store.archive.folder import FolderArchive
from runner.store.redis.store import RedisStore
from runner.store.redis.transaction.sets import entry_fields

SIGNER = Signer("runner", Ed25519PrivateKey.from_private_bytes(b"\1" * 32))
OTHER = Signer("runner", Ed25519PrivateKey.from_private_bytes(b"\2" * 32))
KEYS = {"runner": SIGNER.key.public_key()}


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def store(redis_url):
    store = RedisStore(redis_url)
    yield store
    store.close()


@pytest.fixture
def log(store):
    (log,) = store.audit_logs
    return log


@pytest.fixture
def anchor(tmp_path):
    return FileAnchor(str(tmp_path / "checkpoints"))


@pytest.fixture
def at_once(anchor):
    """A policy by which every seal is signed and anchored."""
    return SealingPolicy(SIGNER, [anchor], sign_ms=0)


def append(client, number, run="00run", first=0):
    for n in range(first, first + number):
        entry = {
            "v": 1,
            "at": n,
            "partition": "p00",
            "type": "voted",
            "run": run,
            "run_n": n,
            "actor": "human:|ana",
        }
        client.xadd("runner:{p00}:audit", {"e": json.dumps(entry)})


def seal(log, terms):
    sealed = Sealing(log, terms)
    while sealed.run_once():
        continue
    return sealed


OPEN_RUN = "of the run hold; the end of the run is not among them"


def exported(log, terms, **options):
    return list(export_lines(log, terms, **options))


def verdict(lines, *anchored, keys=KEYS):
    return verify_file(lines, keys, [anchor._path.read_text() for anchor in anchored])


def test_what_was_sealed_holds_without_the_store(client, log, at_once, anchor):
    """Exported entries, all or those of a run, verify with the public key and the anchored checkpoint."""
    append(client, 5, "00one")
    append(client, 3, "00two")
    seal(log, at_once)

    assert log.head().anchored == 8
    assert verdict(exported(log, at_once), anchor).text == "all 8 entries hold"
    assert (
        verdict(exported(log, at_once, run_id="00two"), anchor).text
        == f"all 3 entries {OPEN_RUN}"
    )
    assert (
        verdict(exported(log, at_once), keys={"runner": OTHER.key.public_key()}).result
        is Result.BROKEN
    )


@pytest.mark.full
def test_many_entries_are_sealed_in_steps(client, log, at_once):
    """A step takes at most a thousand, and the tree is the one over all of them."""
    append(client, PAGE + 5)
    sealed = Sealing(log, at_once)

    assert sealed.run_once()
    assert log.head().size == PAGE
    assert not sealed.run_once()
    assert log.head().size == PAGE + 5
    assert verdict(exported(log, at_once)).result is Result.HOLDS


@pytest.mark.full
def test_it_is_signed_when_it_is_time_or_much_was_added(client, log, anchor):
    """A checkpoint is signed after RUNNER_AUDIT_SIGN seconds, or after a thousand entries."""
    terms = SealingPolicy(SIGNER, [anchor], sign_ms=3_600_000)
    append(client, 1)
    seal(log, terms)
    assert log.head().signed == 1  # the first one
    append(client, 1, first=1)
    seal(log, terms)
    assert (log.head().size, log.head().signed) == (2, 1)
    append(client, PAGE, first=2)
    seal(log, terms)
    assert log.head().signed >= PAGE


def test_without_a_key_it_is_sealed_and_nothing_is_exported(client, log):
    """A seal needs no key; an export does, or that a worker has signed."""
    append(client, 2)
    seal(log, SealingPolicy())

    assert log.head().size == 2
    with pytest.raises(UsageError, match="RUNNER_AUDIT_KEY"):
        exported(log, SealingPolicy())


def test_a_seal_with_nothing_to_do_is_one_read(client, log, at_once):
    """Until something comes: then it is sealed as ever, also where another worker has sealed meanwhile."""
    append(client, 2)
    sealing, other = Sealing(log, at_once), Sealing(log, at_once)
    assert not sealing.is_idle()
    sealing.run_once()
    sealing.run_once()
    assert sealing.is_idle()

    append(client, 1, first=2)

    assert not sealing.is_idle()
    other.run_once()
    sealing.run_once()
    assert (sealing.is_idle(), log.head().size) == (True, 3)


def test_what_is_no_entry_does_not_stop_the_seal(client, log, at_once):
    """Somebody's own writes to the stream have a place in the tree, by their hash."""
    append(client, 1)
    for fields in (
        {"e": "no JSON"},
        {"x": "y"},
        {"e": '{"at": 1e999}'},
        {"e": '{"n": 90071992547409930}'},
    ):
        client.xadd("runner:{p00}:audit", fields)
    seal(log, at_once)
    lines = exported(log, at_once)

    assert [json.loads(line)["type"] for line in lines[:4]] == ["voted", *["malformed"] * 3]
    assert verdict(lines).result is Result.HOLDS


# Several workers, crashes, an old head: there is one tree.


@pytest.mark.full
def test_workers_that_seal_together_make_one_tree(client, redis_url, at_once, anchor):
    """Four threads seal while entries come; every checkpoint that was anchored is one of the same tree."""
    stores = [RedisStore(redis_url) for _ in range(4)]
    ends = threading.Event()

    def work(store):
        while not ends.is_set():
            Sealing(store.audit_logs[0], at_once).run_once()

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for first in range(0, 300, 30):
        append(client, 30, first=first)
    ends.set()
    for thread in threads:
        thread.join()
    (log,) = stores[0].audit_logs
    seal(log, at_once)

    assert verdict(exported(log, at_once), anchor).text == "all 300 entries hold"
    assert len(list(notes(anchor._path.read_text()))) > 1
    for store in stores:
        store.close()


def late_seal(log, client, at_once):
    """Have a worker read the head, then wait while others seal, sign and archive; then it writes."""
    append(client, 5)
    late, head = Sealing(log, at_once), log.head()
    rows = log.after(head.last)
    append(client, 5, first=5)
    seal(log, at_once)
    before = log.head()
    late._seal(head, rows)
    return before


def test_a_worker_that_comes_late_changes_nothing(client, log, at_once, anchor):
    """What it has read is not so any more, so that its head is refused."""
    before = late_seal(log, client, at_once)

    assert replace(log.head(), now=0) == replace(before, now=0)
    append(client, 5, first=10)
    assert verdict(exported(log, at_once), anchor).text == "all 15 entries hold"


def test_control_without_the_comparison_a_late_worker_makes_another_tree(
    client, log, at_once, anchor, monkeypatch
):
    """Control: a head that is written without looking goes back, and its leaves are there twice."""

    def blind(head, fields, leaves=(), **_):
        client.hset("runner:{p00}:audit:head", mapping=fields)
        if leaves:
            client.rpush("runner:{p00}:audit:leaves", *leaves)
        return True

    monkeypatch.setattr(log, "change", blind)
    late_seal(log, client, at_once)
    append(client, 5, first=10)

    assert verdict(exported(log, at_once), anchor).result is Result.BROKEN


def test_a_crash_between_reading_and_writing_loses_nothing(
    client, log, at_once, anchor, monkeypatch
):
    """The next worker seals the same entries at the same places, before and after a signature."""
    append(client, 5)
    change, steps = log.change, []

    def dies(*arguments, **named):
        steps.append(arguments)
        if len(steps) % 2:
            raise StoreError("the process ended")
        return change(*arguments, **named)

    monkeypatch.setattr(log, "change", dies)
    for _ in range(12):
        try:
            Sealing(log, at_once).run_once()
        except StoreError:
            continue
    monkeypatch.undo()
    append(client, 1, first=5)

    assert verdict(exported(log, at_once), anchor).text == "all 6 entries hold"


def test_a_lost_reply_does_not_seal_twice(client, log, at_once, anchor, monkeypatch):
    """What was written although the caller got an error is not written again."""
    append(client, 5)
    call = log._call

    def loses(*arguments, **named):
        call(*arguments, **named)
        return call(*arguments, **named)  # as redis-py does after a lost reply

    monkeypatch.setattr(log, "_call", loses)
    for _ in range(6):
        Sealing(log, at_once).run_once()
    monkeypatch.undo()

    assert log.head().size == 5
    assert verdict(exported(log, at_once), anchor).text == "all 5 entries hold"


def test_a_restart_with_an_old_head_makes_the_same_tree(client, log, at_once, anchor):
    """Where the head goes back and the entries are still there, the tree is what it was."""
    append(client, 5)
    seal(log, at_once)
    head, leaves = (
        client.hgetall("runner:{p00}:audit:head"),
        client.lrange("runner:{p00}:audit:leaves", 0, -1),
    )
    append(client, 5, first=5)
    seal(log, at_once)
    client.delete("runner:{p00}:audit:head", "runner:{p00}:audit:leaves")
    client.hset("runner:{p00}:audit:head", mapping=head)
    client.rpush("runner:{p00}:audit:leaves", *leaves)
    append(client, 1, first=10)

    assert verdict(exported(log, at_once), anchor).text == "all 11 entries hold"


@pytest.mark.full
@pytest.mark.parametrize("others", [0, 1, 9])
def test_a_store_that_lost_signed_entries_is_not_signed_again(
    client, log, at_once, anchor, others
):
    """A server that went back, and got fewer or other entries since, is found out by the anchor."""
    append(client, 5)
    seal(log, at_once)
    old = (
        client.dump("runner:{p00}:audit"),
        client.dump("runner:{p00}:audit:head"),
        client.dump("runner:{p00}:audit:leaves"),
    )
    append(client, 5, first=5)
    seal(log, at_once)
    anchored = anchor._path.read_text()
    for key, value in zip(("audit", "audit:head", "audit:leaves"), old, strict=True):
        client.restore("runner:{p00}:" + key, 0, value, replace=True)
    append(client, others, "00other", first=20)
    sealed = seal(log, at_once)

    if others:
        assert "restart" in sealed.problem
        assert "restart" in log.head().problem
    assert anchor._path.read_text() == anchored
    # Control: without the anchor, another tree of the same name is signed.
    append(client, 1, "00other", first=40)
    unanchored = replace(at_once, anchors=())
    assert verdict(exported(log, unanchored)).result is Result.HOLDS
    assert verdict(exported(log, unanchored), anchor).result is not Result.HOLDS


# The store is changed under the tree: an export is found broken at its place.


def tamper(client, place, change):
    """Write the stream again with one entry changed, as somebody who can write Redis may."""
    key = "runner:{p00}:audit"
    rows = client.xrange(key)
    client.delete(key)
    for number, (name, fields) in enumerate(rows):
        for own in change(fields) if number == place else [fields]:
            client.xadd(key, own, id=name)


FORGED = {
    "e": json.dumps(
        {"v": 1, "at": 3, "type": "voted", "run": "00run", "run_n": 3, "actor": "human:|eve"}
    )
}


@pytest.mark.full
@pytest.mark.parametrize("run_id", ["", "00run"])
@pytest.mark.parametrize("change", [lambda _: [FORGED], lambda _: []], ids=["changed", "cut"])
def test_an_entry_that_was_changed_in_the_store_is_found(client, log, at_once, change, run_id):
    """After the seal nothing can be changed: the export names the line of the first entry that is another."""
    append(client, 10)
    seal(log, at_once)
    tamper(client, 3, change)

    found = verdict(exported(log, at_once, run_id=run_id))
    assert (found.result, found.line) == (Result.BROKEN, 4)


def test_before_the_seal_an_entry_can_be_changed(client, log, at_once):
    """The window is what the docs say: who can write Redis can change an entry until it is sealed."""
    append(client, 10)
    tamper(client, 3, lambda _: [FORGED])

    assert verdict(exported(log, at_once)).result is Result.HOLDS


def test_a_store_that_was_sealed_again_with_another_key_is_found(client, log, at_once, anchor):
    """Who has the store, but not the key, can't make a file that holds."""
    append(client, 10)
    seal(log, at_once)
    tamper(client, 3, lambda _: [FORGED])
    client.delete("runner:{p00}:audit:head", "runner:{p00}:audit:leaves")
    forged = exported(log, SealingPolicy(OTHER, sign_ms=0))

    assert verdict(forged).result is Result.BROKEN
    # With the key, too, it is found by what was anchored.
    client.delete("runner:{p00}:audit:head", "runner:{p00}:audit:leaves")
    assert verdict(exported(log, SealingPolicy(SIGNER, sign_ms=0))).result is Result.HOLDS
    found = verdict(exported(log, SealingPolicy(SIGNER, sign_ms=0)), anchor)
    assert found.result is Result.BROKEN
    assert found.text == "a checkpoint that was kept elsewhere has signed other entries"


# Archiving and trimming


def test_old_entries_go_to_the_archive_and_are_exported_from_there(
    client, log, anchor, tmp_path
):
    """Entries older than RUNNER_AUDIT_KEEP are archived, then trimmed; proofs of them still hold."""
    archive = FolderArchive(str(tmp_path / "archive"))
    append(client, 10, "00one")
    kept = SealingPolicy(SIGNER, [anchor], sign_ms=0, archive=archive)
    seal(log, kept)
    assert client.xlen("runner:{p00}:audit") == 10  # they are young
    short = replace(kept, keep_ms=-1_000)
    seal(log, short)
    assert client.xlen("runner:{p00}:audit") == 1
    assert client.llen("runner:{p00}:audit:leaves") == 1
    append(client, 3, "00two")
    seal(log, short)

    assert verdict(exported(log, short), anchor).text == "all 13 entries hold"
    assert (
        verdict(exported(log, short, run_id="00one"), anchor).text
        == f"all 10 entries {OPEN_RUN}"
    )
    with pytest.raises(UsageError, match="RUNNER_ARCHIVE"):
        exported(log, replace(short, archive=None))


def test_entries_of_one_step_are_sealed_and_trimmed_together(client, log, anchor, tmp_path):
    """A step that appends several entries appends them at once, and none of them stays without the others."""
    archive = FolderArchive(str(tmp_path / "archive"))
    append(client, 6)
    together = [fields[b"e"] for _, fields in client.xrange("runner:{p00}:audit")]
    client.delete("runner:{p00}:audit")
    for texts in (together[:3], together[3:]):
        client.execute_command("XADD", "runner:{p00}:audit", "*", *entry_fields(texts))
    assert log.unsealed(log.head())[0] == 2
    kept = SealingPolicy(SIGNER, [anchor], 0, -1_000, archive)
    seal(log, kept)

    assert client.xlen("runner:{p00}:audit") == 1
    assert client.llen("runner:{p00}:audit:leaves") == 3
    assert (log.head().size, log.head().first, log.unsealed(log.head())) == (6, 3, (0, 0))
    assert verdict(exported(log, kept), anchor).text == "all 6 entries hold"


def test_nothing_is_trimmed_that_is_not_archived(client, log, anchor, tmp_path):
    """Without an archive entries stay; where it can't be written they stay, and the problem is noted."""
    append(client, 10)
    seal(log, SealingPolicy(SIGNER, [anchor], sign_ms=0, keep_ms=-1_000))
    assert client.xlen("runner:{p00}:audit") == 10
    place = tmp_path / "file"
    place.write_text("no folder")
    sealed = seal(log, SealingPolicy(SIGNER, [anchor], 0, -1_000, FolderArchive(str(place))))

    assert "can't be written" in sealed.problem
    assert client.xlen("runner:{p00}:audit") == 10


def test_nothing_is_trimmed_before_it_is_signed(client, log, tmp_path):
    """With a key, only what is under a checkpoint may leave the store."""
    terms = SealingPolicy(SIGNER, (), 3_600_000, -1_000, FolderArchive(str(tmp_path)))
    append(client, 5)
    seal(log, terms)
    append(client, 5, first=5)
    seal(log, terms)

    head = log.head()
    assert (head.size, head.signed, head.first) == (10, 5, 5)


# Anchors


class Server(http.server.BaseHTTPRequestHandler):
    """Keeps what it gets; answers as it is told."""

    def do_POST(self):
        self.server.got.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def web():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.got, server.answer = [], 204
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_checkpoints_go_to_a_server_until_it_has_taken_them(client, log, web):
    """A server that is away gets the checkpoint later; meanwhile the problem is noted."""
    terms = SealingPolicy(
        SIGNER, anchors([f"http://127.0.0.1:{web.server_port}/audit"]), sign_ms=0
    )
    web.answer = 503
    append(client, 2)
    assert "503" in seal(log, terms).problem
    assert (log.head().signed, log.head().anchored) == (2, 0)
    web.answer = 204
    Sealing(log, terms).run_once()

    assert (log.head().anchored, log.head().problem) == (2, "")
    assert read(web.got[-1], KEYS).size == 2


@pytest.mark.parametrize("place", ["http://example.com/x", "ftp:x", "file:", "nowhere"])
def test_an_anchor_that_is_none_is_refused(place):
    """A place of an unknown form, or without TLS, is refused before anything is signed."""
    with pytest.raises(UsageError):
        anchors([place])


def test_a_checkpoint_of_somebody_else_stops_the_signing(client, log, at_once, anchor):
    """Where an anchor has another's checkpoint of this tree, that is said, and nothing is signed."""
    append(client, 1)
    Sealing(log, SealingPolicy(OTHER, [anchor], sign_ms=0)).run_once()
    append(client, 1, first=1)
    client.hdel("runner:{p00}:audit:head", "note")
    with pytest.raises(UsageError, match="can't be used"):
        exported(log, at_once)
