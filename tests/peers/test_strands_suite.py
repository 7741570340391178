"""The page about Strands' own tests says no more than its tests and from-strands.md do."""

from __future__ import annotations

import re

from tests.peers.strands_suite import DIFFERS, PAGE, PRIVATE, ROOT, find

GUIDE = " ".join((ROOT / "docs/how-to/from-strands.md").read_text().split())


def rows():
    """Read the page's table."""
    lines = [line.split(" | ") for line in PAGE.read_text().splitlines() if "::" in line]
    return [(test.strip("| "), result, reason.strip(" |")) for test, result, reason in lines]


def test_each_difference_has_its_sentence():
    """A reason is a sentence of the guide, and a row of the page has the reason that the program knows."""
    assert {reason for reason in DIFFERS.values() if reason not in GUIDE} == set()
    for test, result, reason in rows():
        expected = {"differs": DIFFERS, "private": PRIVATE}.get(result)
        assert expected is None or find(expected, test) == reason, test


def test_no_test_fails_without_a_reason():
    """Each row passes, differs or is private; the figures above the table count the rows."""
    results = [result for _, result, _ in rows()]
    counts = [results.count(kind) for kind in ("pass", "differs", "private")]

    assert sum(counts) == len(results) > 100
    text = " ".join(PAGE.read_text().split())
    assert re.findall(
        r"Of (\d+) tests (\d+) pass, .* (\d+) fail for .* (\d+) test private", text
    ) == [tuple(map(str, (len(results), *counts)))]
    assert counts[0] >= 60
