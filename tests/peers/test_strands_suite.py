"""The page about Strands' own tests says no more than its tests and from-strands.md do."""

from __future__ import annotations

from tests.peers.strands_suite import DIFFERS, PAGE, PRIVATE, ROOT, find

GUIDE = " ".join((ROOT / "docs/how-to/from-strands.md").read_text().split())


def rows():
    """Read the page's lists: each test with its kind and its reason."""
    kinds = {"Tests that differ": DIFFERS, "Tests of private names": PRIVATE}
    kind, reason = {}, ""
    for line in PAGE.read_text().splitlines():
        mark, _, text = line.partition(" ")
        if mark == "##":
            kind = kinds[text]
        elif mark == "###":
            reason = text
        elif mark == "-":
            yield text, kind, reason


def test_each_difference_has_its_sentence():
    """A reason is a sentence of the guide, and a test on the page has the reason that the program knows."""
    assert {reason for reason in DIFFERS if reason not in GUIDE} == set()
    for test, kind, reason in rows():
        assert find(kind, test).rstrip(".") == reason, test


def test_no_test_fails_without_a_reason():
    """Each test passes, differs or is private; the figures of the suites add up to the lists."""
    counts = {
        cells[0]: list(map(int, cells[1:]))
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and (cells := line.strip("| ").split(" | "))[0] != "suite"
    }
    kinds = [kind for _, kind, _ in rows()]
    total = counts.pop("all")

    assert list(map(sum, zip(*counts.values(), strict=True))) == total
    tests, passed, _, differ, private = total
    assert passed + differ + private == tests > 300
    assert (differ, private) == (kinds.count(DIFFERS), kinds.count(PRIVATE))
