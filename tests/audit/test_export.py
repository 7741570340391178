"""An exported audit: what was changed, cut, swapped or cut off is found at its place, without a server."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from runner.audit.checkpoint import Checkpoint, read, read_verifier_key, sign, verifier_key
from runner.audit.export import Result, export, leaf_of, verify
from runner.audit.files import read_public
from runner.audit.tree import root_of
from runner.errors import UsageError

ORIGIN = "shop.example/runner/p00"
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
KEYS = {"shop": KEY.public_key()}


def entries(number):
    """Entries of three runs, in turn."""
    return [
        {
            "v": 1,
            "n": n,
            "run": f"run{n % 3}",
            "run_n": n // 3,
            "type": "voted",
            "actor": "human:|ana",
            "at": n,
        }
        for n in range(number)
    ]


def note(sealed, key=KEY, origin=ORIGIN):
    return sign(
        Checkpoint(origin, len(sealed), root_of([leaf_of(entry) for entry in sealed])),
        "shop",
        key,
    )


def written(sealed, *sizes, run_id="", key=KEY):
    notes = [note(sealed[:size], key) for size in (*sizes, len(sealed))]
    return list(export(sealed, notes, [verifier_key("shop", key.public_key())], run_id))


SEALED = entries(20)
WHOLE = written(SEALED, 7, 13)
RUN = written(SEALED, run_id="run1")


@pytest.mark.parametrize("lines", [WHOLE, RUN, written([])], ids=["all", "run", "nothing"])
def test_what_was_exported_holds(lines):
    """The untouched file verifies with the public key alone."""
    assert verify(lines, KEYS).result is Result.HOLDS


each_export = pytest.mark.parametrize("lines", [WHOLE, RUN], ids=["all", "run"])


@each_export
def test_a_changed_entry_is_found_at_its_line(lines):
    """Whichever entry has another value, the verdict names its line."""
    for place, line in enumerate(lines[:-3]):
        forged = json.dumps({**json.loads(line), "actor": "human:|eve"}) + "\n"
        verdict = verify([*lines[:place], forged, *lines[place + 1 :]], KEYS)
        assert (verdict.result, verdict.line) == (Result.BROKEN, place + 1)


@pytest.mark.full
@each_export
def test_cut_and_swapped_entries_are_found(lines):
    """An entry that is gone, doubled or in another place breaks the file; a run's, too."""
    for place in range(1, len(lines) - 4):
        cut = verify(lines[:place] + lines[place + 1 :], KEYS)
        doubled = verify([*lines[: place + 1], *lines[place:]], KEYS)
        swapped = verify(
            [*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]], KEYS
        )
        assert (cut.result, cut.line) == (Result.BROKEN, place + 1)
        assert (doubled.result, doubled.line) == (Result.BROKEN, place + 2)
        assert (swapped.result, swapped.line) == (Result.BROKEN, place + 1)
    assert (
        verify(lines[: len(lines) - 4] + lines[len(lines) - 3 :], KEYS).result is Result.BROKEN
    )


def test_a_file_that_was_cut_off_is_incomplete():
    """Without its end nothing is claimed of it."""
    for end in range(len(WHOLE)):
        assert verify(WHOLE[:end], KEYS).result is Result.INCOMPLETE


def test_a_cut_at_the_front_hides_no_forgery():
    """What is there is verified before the file is called incomplete; reversed it is broken."""
    cut = verify(WHOLE[1:], KEYS)
    assert (cut.result, "entries from 1 on hold" in cut.text) == (Result.INCOMPLETE, True)
    for place in (1, 5, 19):
        forged = json.dumps({**json.loads(WHOLE[place]), "actor": "human:|eve"}) + "\n"
        verdict = verify([*WHOLE[1:place], forged, *WHOLE[place + 1 :]], KEYS)
        assert (verdict.result, verdict.line) == (Result.BROKEN, place)
    assert verify([*reversed(WHOLE[:20]), *WHOLE[20:]], KEYS).result is Result.BROKEN


def test_a_tree_that_no_anchor_has_seen_does_not_hold():
    """A stolen key signs another tree, one entry longer than the newest anchor: for a run's file, too."""
    forged = [*SEALED[:4], {**SEALED[4], "actor": "human:|eve"}, *SEALED[5:]]
    anchors = [note(SEALED[:13]), note(SEALED[:19])]
    assert verify(written(forged, run_id="run1"), KEYS, anchors).result is Result.INCOMPLETE
    assert verify(written(forged), KEYS, anchors).result is Result.BROKEN
    assert verify(RUN, KEYS, [*anchors, note(SEALED)]).result is Result.HOLDS


def test_a_verdict_says_of_which_tree_it_is():
    """Its name, its size and the last time; the file of another partition is refused where one is named."""
    verdict = verify(RUN, KEYS)
    assert verdict.tree.startswith(f"the tree {ORIGIN!r} of 20 entries, the last of 1970-01-01")
    assert verify(RUN, KEYS, origin=ORIGIN).result is Result.HOLDS
    assert verify(RUN, KEYS, origin="shop.example/runner/p01").result is Result.BROKEN


def test_a_rotated_key_leaves_old_checkpoints_readable(tmp_path):
    """The old and the new key have one name: in two lines of a file, as two options, or as two PEM files."""
    after = Ed25519PrivateKey.from_private_bytes(b"n" * 32)
    lines = written(SEALED, key=after)
    anchors = [note(SEALED[:13]), note(SEALED, after)]
    texts = [verifier_key("shop", key.public_key()) for key in (KEY, after)]
    one = tmp_path / "keys"
    one.write_text("\n".join(texts))
    pems = [tmp_path / "old.pem", tmp_path / "new.pem"]
    for path, key in zip(pems, (KEY, after), strict=True):
        path.write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
    for paths in ([str(one)], texts, list(map(str, pems))):
        keys = {label: key for path in paths for label, key in read_public(path).items()}
        assert verify(lines, keys, anchors).result is Result.HOLDS
    with pytest.raises(UsageError, match="no signature"):  # the control: the old one alone
        verify(WHOLE, read_public(texts[0]), [note(SEALED, after)])


def test_a_file_that_was_sealed_again_is_broken():
    """Who changes an entry, all hashes and proofs, and signs with another key, is found out by the key."""
    forged = [*SEALED[:5], {**SEALED[5], "actor": "human:|eve"}, *SEALED[6:]]

    verdict = verify(written(forged, 7, 13, key=OTHER), KEYS)
    assert verdict.result is Result.BROKEN
    # Control: whoever has the key can write such a file, and only a checkpoint kept elsewhere tells.
    assert verify(written(forged, 7, 13), KEYS).result is Result.HOLDS
    assert verify(written(forged, 7, 13), KEYS, [note(SEALED[:13])]).result is Result.BROKEN


def test_a_checkpoint_between_bounds_the_place_of_changed_hashes():
    """Where the entry and its hash were both changed, the checkpoints say between which entries."""
    forged = [*SEALED[:9], {**SEALED[9], "actor": "human:|eve"}, *SEALED[10:]]
    lines = written(forged, 7, 13)
    own = (
        json.dumps({"checkpoints": [note(SEALED[:7]), note(SEALED[:13]), note(SEALED)]}) + "\n"
    )

    verdict = verify([*lines[:-3], own, *lines[-2:]], KEYS)
    assert (verdict.result, verdict.line) == (Result.BROKEN, 8)
    assert "entries 7 to 12" in verdict.text


@each_export
def test_a_newer_checkpoint_elsewhere_shows_that_the_file_is_old(lines):
    """A file from before it is incomplete; one kept from before the file holds."""
    assert verify(lines, KEYS, [note(entries(21))]).result is Result.INCOMPLETE
    assert verify(lines, KEYS, [note(SEALED)]).result is Result.HOLDS


@each_export
def test_checkpoints_of_other_trees_say_nothing_of_a_file(lines):
    """Another partition's in the same anchor breaks nothing; alone they don't show that the end is there."""
    other = note(entries(9)[:5], origin="shop.example/runner/p01")
    assert verify(lines, KEYS, [other, note(SEALED), other]).result is Result.HOLDS
    assert verify(lines, KEYS, [other]).result is Result.INCOMPLETE
    # Control: of the file's own tree, such a checkpoint is not passed over.
    assert verify(lines, KEYS, [other, note(entries(21))]).result is Result.INCOMPLETE


@each_export
@pytest.mark.parametrize("value", [None, 0, True, "paths", [], {}])
def test_malformed_proofs_are_no_fault_of_the_program(lines, value):
    """The file is broken, and the verdict says so."""
    malformed = [*lines[:-1], json.dumps({"proofs": value})]
    assert verify(malformed, KEYS).result is Result.BROKEN


@given(st.data())
def test_no_single_byte_can_change_unseen(data):
    """One byte changed anywhere never leaves a file that holds and says something else."""
    text = "".join(data.draw(st.sampled_from([WHOLE, RUN])))
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(min_codepoint=32, max_codepoint=126))
    changed = (text[:place] + letter + text[place + 1 :]).splitlines(keepends=True)

    if verify(changed, KEYS).result is Result.HOLDS:
        keys = next(place for place, line in enumerate(changed) if line.startswith('{"keys"'))
        before = [json.loads(line) for line in text.splitlines()]
        after = [json.loads(line) for line in changed]
        assert before[:keys] == after[:keys]


def test_a_verifier_key_names_itself():
    """A public key is read as it was written, and refused once a part of it was changed."""
    text = verifier_key("shop", KEY.public_key())

    assert read_verifier_key(text)[0] == "shop"
    for wrong in ("", "shop", text.replace("shop", "shoq"), text[:-2] + "AA", text + "!"):
        with pytest.raises(UsageError):
            read_verifier_key(wrong)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(ORIGIN, "elsewhere"),
        lambda text: text.replace("\n20\n", "\n21\n"),
        lambda text: text.replace("— shop", "— other"),
        lambda text: text.partition("\n\n")[0],
        lambda text: text.replace("— ", "- "),
        lambda text: "",
    ],
    ids=["origin", "size", "name", "unsigned", "dash", "empty"],
)
def test_a_checkpoint_is_read_only_with_its_signature(change):
    """Whatever of the note is another, no signature holds."""
    assert read(note(SEALED), KEYS).size == 20
    with pytest.raises(UsageError):
        read(change(note(SEALED)), KEYS)
