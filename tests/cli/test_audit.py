"""`runner audit`, as somebody uses it who has the documentation alone: export, tamper, verify."""

from __future__ import annotations

import base64
import functools
import hashlib
import json

import pytest
import redis
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from runner.approvals.rules import Rule
from runner.store.redis.store import RedisStore
from tests.contract.store import ManualWorker
from tests.contract.store.voting import voting

SECRET = "fine by me"


@pytest.fixture
def audit(call, redis_url, tmp_path, monkeypatch):
    """Call `runner audit` on a store with two runs that were approved, with a key and an anchor."""
    monkeypatch.chdir(tmp_path)
    store = RedisStore(redis_url, retention=3600)
    worker = ManualWorker(store)
    ids = []
    for _ in range(2):
        people = voting(worker, Rule(eligible=["group:finance"]))
        people.vote("ana", comment=SECRET)
        ids.append(people.question.run_id)
        worker.settle(worker.claim(ids[-1], "a").token, "paid")
    store.close()
    monkeypatch.setenv("RUNNER_AUDIT_KEY", "audit-key.json")
    monkeypatch.setenv("RUNNER_AUDIT_ANCHOR", "file:checkpoints")
    runner = functools.partial(call, url=redis_url)
    (tmp_path / "audit.pub").write_text(runner("audit", "key", "audit-key.json").stdout)
    audit = functools.partial(runner, "audit")
    return Audit(runner, audit, ids, tmp_path)


class Audit:
    """Somebody with a shell."""

    def __init__(self, runner, audit, ids, folder):
        self.runner, self.audit, self.ids, self.folder = runner, audit, ids, folder

    def export(self, *options):
        """Export to a file; return its lines."""
        assert self.audit("export", "--output", "audit.jsonl", *options).exit_code == 0
        return (self.folder / "audit.jsonl").read_text().splitlines()

    def verify(self, lines, *options, key="audit.pub"):
        """Verify lines; return the exit code, the line that is named, and the words."""
        (self.folder / "file.jsonl").write_text("".join(f"{line}\n" for line in lines))
        done = self.audit("verify", "file.jsonl", "--key", key, *options)
        _, place, words, _ = done.stdout.rstrip("\n").split("\t")
        return done.exit_code, int(place), words


def without_proofs(lines, *places):
    """Cut entries of a run together with their proofs, as somebody does who knows the form."""
    *_, proofs = lines
    parts = json.loads(proofs)
    for place in places:
        del parts["proofs"]["paths"][str(json.loads(lines[place])["n"])]
    return [
        *(line for place, line in enumerate(lines[:-1]) if place not in places),
        json.dumps(parts),
    ]


@pytest.mark.full
def test_what_was_exported_holds(audit):
    """All entries or those of a run, against the anchored checkpoints; the export is an entry, too."""
    whole = audit.export()
    entries = [json.loads(line) for line in whole[:-3]]

    assert audit.verify(whole, "--checkpoint", "checkpoints") == (0, 0, "all 11 entries hold")
    assert entries[-1]["type"] == "exported"
    run = audit.export("--run", audit.ids[0])
    assert audit.verify(run, "--checkpoint", "checkpoints") == (
        0,
        0,
        "all 5 entries of the run hold",
    )


@pytest.mark.full
def test_the_last_entries_of_a_run_can_be_cut_with_their_proofs(audit):
    """What a run's file alone can't show, it says: the end of the run is missing. A whole export shows it."""
    cut = without_proofs(audit.export("--run", audit.ids[1]), 3, 4)

    code, _, words = audit.verify(cut)
    assert (code, words) == (
        0,
        "all 3 entries of the run hold; the end of the run is not among them",
    )


@pytest.mark.full
def test_the_exit_code_says_how_a_file_is(audit):
    """Cut: broken. Older than a checkpoint that was kept elsewhere: incomplete. Not there: wrong usage."""
    *entries, checkpoint, keys, proofs = lines = audit.export()
    audit.export()

    assert audit.verify([*entries[:-2], checkpoint, keys, proofs])[0] == 1
    assert audit.verify(lines, "--checkpoint", "checkpoints") == (
        3,
        0,
        "a checkpoint kept elsewhere has 12 entries, the file has 11",
    )
    assert audit.verify(lines)[0] == 0  # control
    assert audit.audit("verify", "nowhere.jsonl", "--key", "audit.pub").exit_code == 2


@pytest.mark.full
def test_a_removed_run_can_still_be_verified(audit):
    """Its data is gone from the store, and never was in the audit; its entries are in the tree, whole."""
    before = audit.export("--run", audit.ids[0])
    assert audit.runner("runs", "remove", audit.ids[0], "--yes").exit_code == 0
    assert audit.runner("runs", "show", audit.ids[0]).exit_code == 4
    after = audit.export("--run", audit.ids[0])

    assert after[:5] == before[:5]
    assert json.loads(after[5])["type"] == "run.removed"
    assert audit.verify(after, "--checkpoint", "checkpoints") == (
        0,
        0,
        "all 6 entries of the run hold",
    )
    assert audit.verify(audit.export())[0] == 0
    assert SECRET not in "".join(after)


# An export, checked with nothing of this library


def root_by(path, leaf, n, size):
    """Climb from a leaf to the root: RFC 9162, section 2.1.3.2."""
    node, last, value = n, size - 1, leaf
    for part in path:
        if node % 2 or node == last:
            value = hashlib.sha256(b"\1" + part + value).digest()
            while node % 2 == 0 and node:
                node, last = node >> 1, last >> 1
        else:
            value = hashlib.sha256(b"\1" + value + part).digest()
        node, last = node >> 1, last >> 1
    assert last == 0
    return value


def test_an_export_is_verified_by_hand(audit):
    """The signature of its checkpoint, and each entry's way up to the root."""
    *entries, checkpoint, _, proofs = map(json.loads, audit.export("--run", audit.ids[0]))
    _, _, key = (audit.folder / "audit.pub").read_text().strip().split("+", 2)
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key)[1:])

    (note,) = checkpoint["checkpoints"]
    text, _, signed = note.partition("\n\n")
    public.verify(base64.b64decode(signed.split()[2])[4:], f"{text}\n".encode())
    _, size, root = text.split("\n")
    assert [entry["type"] for entry in entries] == [
        *("run.started", "asked", "voted", "decided", "run.ended")
    ]
    for entry in entries:
        leaf = hashlib.sha256(b"\0" + rfc8785.dumps(entry)).digest()
        path = [base64.b64decode(part) for part in proofs["proofs"]["paths"][str(entry["n"])]]
        assert root_by(path, leaf, entry["n"], int(size)) == base64.b64decode(root)


def measured(audit):
    """What the metrics say: entries not sealed, not signed, whether it fails, and what is frozen."""
    lines = dict(
        line.split() for line in audit.runner("metrics").stdout.splitlines() if line[0] != "#"
    )
    names = ("audit_unsealed", "audit_unsigned", "audit_failing", "frozen")
    return [int(float(lines[f"runner_{name}"])) for name in names]


@pytest.mark.full
def test_metrics_say_how_the_audit_stands(audit):
    """What waits for a seal, and nothing once an export has sealed and signed it; a freeze is an entry."""
    unsealed, *rest = measured(audit)
    assert (unsealed > 0, rest) == (True, [0, 0, 0])
    audit.export()
    assert measured(audit) == [0, 0, 0, 0]
    audit.runner("freeze", "--all", "--reason", "fraud")
    assert measured(audit) == [1, 0, 0, 1]


@pytest.mark.full
def test_a_tree_that_lost_entries_is_given_up_with_a_reason(audit, redis_url):
    """Nothing is signed until somebody begins a new tree; its file holds beside the old checkpoints."""
    audit.export()
    with redis.Redis.from_url(redis_url) as client:
        client.xtrim("runner:{p00}:audit", maxlen=3, approximate=False)
        client.delete("runner:{p00}:audit:head", "runner:{p00}:audit:leaves")
    refused = audit.audit("export", "--output", "audit.jsonl")
    assert (refused.exit_code, "has lost some" in refused.stderr) == (2, True)
    assert measured(audit)[2] == 1
    assert audit.audit("restart").exit_code == 2

    assert (
        audit.audit("restart", "--reason", "a restored backup").stdout.strip() == "runner/p00/1"
    )
    lines = audit.export()
    assert measured(audit) == [0, 0, 0, 0]
    assert audit.verify(lines, "--checkpoint", "checkpoints")[0] == 0
    noted = [json.loads(line) for line in lines if '"restarted"' in line]
    assert (len(noted), "backup" in str(noted)) == (1, False)
