from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from runner.cli.exits import Exit, command_error
from runner.cli.output import Output, short, visible
from runner.cli.program import runner
from runner.errors import BrokerError, LeaseLost, NotFoundError, ResponseError, UnstorableError
from runner.records.json_form import span, stamp
from runner.records.validation import one_line

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"

HIDDEN = {
    "\x1b[2J": r"\x1b[2J",
    "a\u202eb": r"a\u202eb",
    "a\u200bb": r"a\u200bb",
    "a\x9bb": r"a\x9bb",
    "a\r\tb": r"a\r\tb",
    "\U000e0041": r"\U000e0041",
    "a\u3164b": r"a\u3164b",
    "a\ufe0fb": r"a\ufe0fb",
    "\u0430pple": r"\u0430pple",
    "Ünïcode 漢字 ✓": "Ünïcode 漢字 ✓",
}


@pytest.mark.parametrize(("text", "escaped"), HIDDEN.items())
def test_hidden_characters_are_escaped(text, escaped):
    """Nothing that a user or an agent wrote moves the cursor, turns the text round or hides."""
    assert one_line(text) == escaped
    assert visible(text) == escaped


def test_line_ends_stay_only_where_there_is_room():
    """A block keeps its lines; a cell is one line."""
    assert visible("a\nb") == "a\nb"
    assert one_line("a\nb") == r"a\nb"


def test_long_values_are_cut_with_a_sign():
    """A value that was cut ends in an ellipsis."""
    assert short({"a": "b" * 100}, 20) == '{"a": "bbbbbbbbbbbb…'
    assert short(None) == ""


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (61_000, "1 min 01 s"),
        (3 * 3_600_000, "3 h 00 min"),
        (5 * 86_400_000, "5 days 0 h"),
    ],
)
def test_lengths_of_time_are_short(milliseconds, text):
    """People read a length of time in the unit that fits."""
    assert span(milliseconds) == text


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
        (ZeroDivisionError(), Exit.INTERNAL_ERROR),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), Exit.USAGE),
    ],
)
def test_every_kind_of_error_has_its_code(error, code):
    """A script can tell from the code whose fault it is."""
    assert command_error(error).code == code


def test_the_reference_lists_the_exit_codes():
    """The table of exit codes is that of the code."""
    section = REFERENCE.read_text(encoding="utf-8").split("## Exit codes")[1].split("## ")[0]

    assert [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)] == sorted(
        Exit
    )


def test_hints_of_the_module_name_it_as_it_was_called():
    """`runner` may not be on the PATH; control: as a program, its name is short."""
    module = subprocess.run(
        [
            sys.executable,
            "-m",
            "runner.cli",
            "runs",
            "list",
            "--redis-url",
            "redis://127.0.0.1:1",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "Hint: `python -m runner.cli dev` starts a store" in module.stderr
    output = Output(program="python -m runner.cli --redis-url redis://x")
    assert output.advice("`runner runs list`, `runner init`") == (
        "`python -m runner.cli --redis-url redis://x runs list`, `python -m runner.cli init`"
    )
    assert output.advice("Next: cd a && pytest && runner dev") == (
        "Next: cd a && pytest && python -m runner.cli dev"
    )
    short = CliRunner().invoke(runner, ["runs", "list", "--redis-url", "redis://127.0.0.1:1"])
    assert "Hint: `runner dev` starts a store" in short.stderr


def on_terminal(url, *arguments, typed="", **environment):
    """Run the program on a pseudo-terminal, type into it, and return what a person would see."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "runner.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={
            **os.environ,
            "RUNNER_REDIS_URL": url,
            "TERM": "xterm",
            "COLUMNS": "120",
            **environment,
        },
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    screen = b""
    try:
        while piece := os.read(ours, 65536):
            screen += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    program.wait()
    os.close(ours)
    return screen.decode()


@pytest.mark.slow
def test_a_terminal_gets_a_tree_with_what_waits_and_for_whom(shop_url, waiting):
    """On a terminal a run is a tree, in colours: each node, and below it the question and its people."""
    screen = on_terminal(shop_url, "runs", "show", waiting[0])

    assert "├── " in screen
    assert "asks shop_refund" in screen
    assert "of ana, ben" in screen
    assert waiting[1] in screen
    assert "\x1b[" in screen


@pytest.mark.slow
def test_no_color_means_no_colours(shop_url, waiting):
    """NO_COLOR leaves the tree and takes the colours."""
    screen = on_terminal(shop_url, "runs", "show", waiting[0], NO_COLOR="1")

    assert "├── " in screen
    assert "\x1b[3" not in screen


@pytest.mark.slow
def test_a_terminal_shows_a_run_live_and_then_as_it_ended(shop_url):
    """`run --wait` draws while the run goes, and leaves the last picture."""
    screen = on_terminal(shop_url, "run", "shop-echo", "--input", "1", "--wait")

    assert "✓" in screen.rpartition("shop-echo")[2]
    assert "run.started" not in screen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("shop-desk", "runner interrupts vote {} approve --by WHO --digest sha256:"),
        ("shop-count", "Add --responder, who answers"),
    ],
)
def test_an_answer_that_can_not_count_is_not_sent(cli, graph, words):
    """A call is decided by a vote, an answer to a rule names its person and what was shown."""
    waits = cli("run", graph, "--input", "1", "--wait", "--json")
    (question,) = json.loads(waits.stdout)["interrupts"]
    answer = ("interrupts", "respond", question["id"], "--response", "7")

    refused = cli(*answer)
    assert (refused.exit_code, words.format(question["id"]) in refused.stderr) == (2, True)
    named = cli(*answer, "--responder", "ana", "--digest", question["digest"])
    assert ("accepted" in named.stdout) is (graph == "shop-count")


@pytest.mark.slow
def test_an_id_is_not_broken_in_80_columns(shop_url, waiting):
    """An id in a table can be copied, and is on one line with all else; only long tags are broken."""
    tag = "department=accounts-receivable"
    on_terminal(shop_url, "run", "shop-echo", "--input", "1", "--tag", tag)
    screen = on_terminal(shop_url, "runs", "list", "--limit", "2", NO_COLOR="1", COLUMNS="80")

    lines = re.sub(r"\x1b\[\d*m", "", screen).splitlines()
    assert "RUN  " in lines[0]
    (line,) = (line for line in lines if waiting[0] in line)
    assert re.search(r"  shop-refund +interrupted +\d\d-\d\d \d\d:\d\d", line)
    assert max(map(len, lines[1:])) <= 80


def test_long_names_are_broken_in_80_columns(monkeypatch):
    """Ids are whole, names are folded, nothing is cut off; control: short ones are one line."""
    monkeypatch.setattr(Output, "is_terminal", True)
    run, headings = "0" * 28, ("RUN", "GRAPH", "STATUS", "STARTED", "TAGS")
    for name, tags, lines in (
        ("Q" * 60, "Z" * 40, 4),  # the last column stands below
        ("Q" * 8, "Z" * 8, 1),
        ("Q" * 60, "", 3),
    ):
        output, written = Output(), io.StringIO()
        output.console = Console(file=written, width=80)
        output.table(headings, [(run, name, "interrupted", "11-24 01:38", tags)], "")
        _, *rows = written.getvalue().splitlines()
        assert (len(rows), rows[0].startswith(f"{run}  ")) == (lines, True)
        assert max(map(len, rows)) <= 80
        assert ["".join(rows).count(letter) for letter in "QZ"] == [len(name), len(tags)]


@pytest.mark.parametrize("width", [80, 120])
def test_long_texts_stand_below_their_row(monkeypatch, width):
    """Over the whole width, each with its heading; ids, also in the second column, stay in one piece."""
    monkeypatch.setattr(Output, "is_terminal", True)
    run, texts = "0" * 28, {"MESSAGE": "wrong " * 40, "ADVICE": "change " * 20}
    output, written = Output(), io.StringIO()
    output.console = Console(file=written, width=width)
    headings = ("", "RUN", "GRAPH", "NODE", *texts)
    output.table(headings, [("held", run, "g" * 30, "n" * 30, *texts.values())] * 2, "")
    rows = written.getvalue().splitlines()

    assert rows[1].split()[:2] == ["held", run]
    assert sum(row.split()[:1] == ["held"] for row in rows) == 2
    below = [row.strip() for row in rows if row.startswith("    ") and "wrong" in row]
    assert below[0].startswith("message wrong")
    assert len(below) == 2 * -(-len("message " + texts["MESSAGE"]) // (width - 10))
    assert "".join(rows).count("change") == 40
    assert max(map(len, rows)) <= width


@pytest.mark.slow
def test_a_narrow_terminal_gets_a_line_for_each_cell(shop_url, waiting):
    """In 40 columns a table would be unreadable: each cell has a line with its heading."""
    screen = on_terminal(
        shop_url, "runs", "list", "--status", "interrupted", NO_COLOR="1", COLUMNS="40"
    )

    lines = re.sub(r"\x1b\[\d+m", "", screen).splitlines()
    assert f"RUN  {waiting[0]}" in lines
    assert "STATUS  interrupted" in lines


def on_40_columns(url, *arguments):
    """The lines of a command on a terminal of 40 columns, without colours."""
    screen = on_terminal(url, *arguments, NO_COLOR="1", COLUMNS="40")
    return re.sub(r"\x1b\[\d+m", "", screen).splitlines()


@pytest.mark.slow
def test_a_tree_cuts_nothing_off_on_a_narrow_terminal(shop_url, waiting):
    """Where a line doesn't fit in 40 columns it continues on the next one."""
    lines = on_40_columns(shop_url, "runs", "show", waiting[0])

    assert max(map(len, lines)) <= 40
    assert "…" not in "".join(lines)
    assert "ana, ben" in " ".join(line.strip("│├└─ ") for line in lines)
