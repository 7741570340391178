from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from runner.cli.exits import Exit, translated
from runner.cli.output import one_line, short, span, stamp, visible
from runner.errors import BrokerError, LeaseLost, NotFoundError, ResponseError, UnstorableError

HIDDEN = {
    "\x1b[2J": r"\x1b[2J",
    "a\u202eb": r"a\u202eb",
    "a\u200bb": r"a\u200bb",
    "a\x9bb": r"a\x9bb",
    "a\r\tb": r"a\r\tb",
    "\U000e0041": r"\U000e0041",
    "Ünïcode 漢字 ✓": "Ünïcode 漢字 ✓",
}


@pytest.mark.parametrize(("given", "seen"), HIDDEN.items())
def test_hidden_characters_are_shown(given, seen):
    """Nothing that a user or an agent wrote moves the cursor, turns the text round or hides."""
    assert one_line(given) == seen
    assert visible(given) == seen


def test_line_ends_stay_only_where_there_is_room():
    """A block keeps its lines; a cell is one line."""
    assert visible("a\nb") == "a\nb"
    assert one_line("a\nb") == r"a\nb"


def test_long_values_are_cut_with_a_sign():
    """A value that was cut ends in an ellipsis."""
    assert short({"a": "b" * 100}, 20) == '{"a": "bbbbbbbbbbbb…'
    assert short(None) == ""


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (61_000, "1 min 01 s"),
        (3 * 3_600_000, "3 h 00 min"),
        (5 * 86_400_000, "5 days 0 h"),
    ],
)
def test_lengths_of_time_are_short(milliseconds, said):
    """People read a length of time in the unit that fits."""
    assert span(milliseconds) == said


def test_times_are_rfc_3339_in_utc():
    """A time that has not come is None."""
    assert stamp(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert stamp(0) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError(), Exit.NOT_FOUND),
        (ResponseError(), Exit.USAGE),
        (UnstorableError(), Exit.USAGE),
        (LeaseLost(), Exit.CONFLICT),
        (BrokerError(), Exit.UNREACHABLE),
        (TimeoutError(), Exit.TIMED_OUT),
        (KeyboardInterrupt(), Exit.STOPPED),
        (ZeroDivisionError(), Exit.FAULT),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), Exit.USAGE),
    ],
)
def test_every_kind_of_error_has_its_code(error, code):
    """A script can tell from the code whose fault it is."""
    assert translated(error).code == code


def on_terminal(url, *arguments: str, **environment: str) -> str:
    """Run the program on a pseudo-terminal and return what a person would see."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "runner.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "RUNNER_REDIS_URL": url, "TERM": "xterm", "COLUMNS": "120", **environment},
    )
    os.close(theirs)
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    program.wait()
    os.close(ours)
    return seen.decode()


def test_a_terminal_gets_a_tree_with_what_waits_and_for_whom(shop_url, waiting):
    """On a terminal a run is a tree, in colours: each node, and below it the question and its people."""
    seen = on_terminal(shop_url, "runs", "show", waiting[0])

    assert "├── " in seen
    assert "asks shop_refund" in seen
    assert "of ana, ben" in seen
    assert waiting[1] in seen
    assert "\x1b[" in seen


def test_no_color_means_no_colours(shop_url, waiting):
    """NO_COLOR leaves the tree and takes the colours."""
    seen = on_terminal(shop_url, "runs", "show", waiting[0], NO_COLOR="1")

    assert "├── " in seen
    assert "\x1b[3" not in seen


def test_a_terminal_shows_a_run_live_and_then_as_it_ended(shop_url):
    """`run --wait` draws while the run goes, and leaves the last picture."""
    seen = on_terminal(shop_url, "run", "shop-tell", "--input", "1", "--wait")

    assert "✓" in seen.rpartition("shop-tell")[2]
    assert "run.started" not in seen
