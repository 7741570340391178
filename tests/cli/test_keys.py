"""`runner keys`: both halves of a key, and what a signature is worth as they change."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from runner.approvals.decision_keys import DecisionKeys, SigningKey
from runner.approvals.proofs import ProofRefused, verify
from runner.cli.program import runner
from runner.errors import UsageError

BODY = {
    "v": 2,
    "interrupt_id": "00run.pay.1.0",
    "decision": "approve",
    "by": "human:https://login.example|ana",
}


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Call `runner keys` with a set of its own."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, **environment: str):
        store = {"RUNNER_REDIS_URL": "redis://127.0.0.1:1/0"}  # where none is
        known = {"RUNNER_DECISION_KEYS": str(tmp_path / "keys.json"), **store, **environment}
        return CliRunner().invoke(runner, ["keys", *arguments], env=known)

    return invoke


def signed(path, **options):
    return SigningKey.read(path).sign(BODY, **options)


def test_a_new_key_signs_what_the_set_checks(keys, tmp_path):
    """The private half is in its own file alone, which only its owner reads; the public half in the set."""
    assert (
        keys("new", "door", "--level", "2", "--issuer", "https://login.example").exit_code == 0
    )
    public, private = (tmp_path / "keys.json").read_text(), tmp_path / "door.key.json"
    assert json.loads(private.read_text())["d"] not in public
    assert private.stat().st_mode & 0o777 == 0o600

    proved = verify(signed(private), DecisionKeys(str(tmp_path / "keys.json")).read(), now=None)
    assert (proved.voter.level, proved.kid) == (2, "door")
    assert keys("list").stdout.split("\t")[:4] == [
        "door",
        "2",
        "Ed25519",
        "https://login.example",
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", [["--level", "1", "--hmac"], ["--level", "1"], ["--level", "2"]]
)
def test_a_key_is_followed_by_another_with_an_overlap(keys, tmp_path, kind):
    """For the overlap both sign; afterwards the new one alone, and what the old one signed still holds."""
    keys("new", "one", *kind)
    assert keys("rotate", "one", "--to", "two", "--overlap", "60s").exit_code == 0
    known = DecisionKeys(str(tmp_path / "keys.json")).read()
    now, later = time.time(), time.time() + 120
    one, two = tmp_path / "one.key.json", tmp_path / "two.key.json"

    for path, moment in ((one, now), (two, now), (two, later)):
        assert verify(signed(path, now=moment), known, now=None).voter.level == int(kind[1])
    with pytest.raises(ProofRefused, match="was revoked before"):
        verify(signed(one, now=later), known, now=None)


def test_a_stolen_key_is_refused_whenever_it_says_that_it_signed(keys, tmp_path):
    """Revoked since ever, nothing of it holds; revoked now, what it signed before does."""
    keys("new", "door", "--level", "2")
    reader, old = (
        DecisionKeys(str(tmp_path / "keys.json")),
        signed(tmp_path / "door.key.json", now=1_000),
    )
    assert verify(old, reader.read(), now=None)
    assert keys("revoke", "door").exit_code == 0
    assert verify(old, reader.read(), now=None)
    assert keys("revoke", "door", "--since", "ever").exit_code == 0
    with pytest.raises(ProofRefused, match="was revoked"):
        verify(old, reader.read(), now=None)
    assert keys("revoke", "other").exit_code == 4


@pytest.mark.full
def test_changes_of_the_keys_are_audited(keys, fake_store):
    """The audit names each key that was added, rotated or revoked; without a store that is said."""
    store = {"RUNNER_REDIS_URL": fake_store.url}
    keys("new", "one", "--level", "2", **store)
    keys("rotate", "one", "--to", "two", **store)
    keys("revoke", "two", "--since", "ever", RUNNER_AUDIT="off", **store)
    keys("revoke", "two", "--since", "ever", **store)
    alone = keys("new", "three", "--level", "1")

    entries = [
        json.loads(fields[b"e"]) for _, fields in fake_store.client.xrange("runner:{p00}:audit")
    ]
    words = [
        (entry["type"], entry["outcome"]["kid"], entry["outcome"].get("follows"))
        for entry in entries
    ]
    assert words == [
        ("decision_key.added", "one", None),
        ("decision_key.rotated", "two", "one"),
        ("decision_key.revoked", "two", None),
    ]
    assert entries[-1]["outcome"]["revoked_at"] == 1  # since ever
    assert (alone.exit_code, "audit" in alone.stderr) == (0, True)


def test_a_persons_own_key_is_added_by_its_public_half(keys, tmp_path):
    """Somebody gives the public half away; the groups that the person has stand beside it."""
    own = tmp_path / "ana.json"
    keys(
        "new",
        "ana",
        "--level",
        "1",
        "--private",
        str(own),
        RUNNER_DECISION_KEYS=str(tmp_path / "elsewhere"),
    )
    entry = json.loads(own.read_text())
    shared = tmp_path / "public.json"
    shared.write_text(json.dumps(entry))
    arguments = [
        "--level",
        "3",
        "--principal",
        BODY["by"],
        "--group",
        "finance",
        "--public",
        str(shared),
    ]
    done = keys("new", "ana", *arguments)
    assert done.exit_code == 2
    assert "is a private one" in done.stderr

    shared.write_text(json.dumps({name: value for name, value in entry.items() if name != "d"}))
    assert keys("new", "ana", *arguments).exit_code == 0
    proved = verify(signed(own), DecisionKeys(str(tmp_path / "keys.json")).read(), now=None)
    assert (proved.voter.level, proved.voter.selectors) == (
        3,
        {"anyone", "group:finance", f"user:{BODY['by']}"},
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["new", "door", "--level", "3"], 2, "principal"),
        (["new", "door", "--level", "2", "--hmac"], 2, "a secret has level 1"),
        (["new", "one", "--level", "1"], 5, "exists already"),
        (["new", "two", "--level", "1", "--private", "one.key.json"], 5, "never written over"),
        (["rotate", "none", "--to", "two"], 4, "has no key 'none'"),
        (["rotate", "one", "--to", "two", "--overlap", "soon"], 2, "not a duration"),
        (["revoke", "one", "--since", "soon"], 2, "not a time"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_line(keys, tmp_path, arguments, code, words):
    """Nothing is written then."""
    keys("new", "one", "--level", "1")
    before = (tmp_path / "keys.json").read_text()
    done = keys(*arguments)
    assert done.exit_code == code
    assert words in done.stderr.splitlines()[0]
    assert (tmp_path / "keys.json").read_text() == before


def test_a_setting_that_can_not_be_used_is_one_clear_line(keys, tmp_path, monkeypatch):
    """No file, another file, no package: the setting or the extra is named."""
    assert "RUNNER_DECISION_KEYS names no file" in keys("list", RUNNER_DECISION_KEYS="").stderr
    (tmp_path / "keys.json").write_text("[]")
    for path in (tmp_path / "keys.json", tmp_path / "none.json"):
        with pytest.raises(UsageError, match=r"^RUNNER_DECISION_KEYS names '.*json': [^\n]*$"):
            DecisionKeys(str(path)).read()
        with pytest.raises(UsageError, match="holds no private decision key"):
            SigningKey.read(path)
    monkeypatch.setenv("RUNNER_SIGNING_KEY", "")
    with pytest.raises(UsageError, match="RUNNER_SIGNING_KEY names no file"):
        SigningKey.read()
    assert DecisionKeys("").read() == {}
