"""The scripts by themselves: whole, small, and explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis

from runner.store import scripts

ROOM = Path(scripts.__file__).parent / "lua"
SCRIPTS = sorted(ROOM.glob("*.lua"))
PARTS = sorted(ROOM.glob("parts/*.lua"))


def code_lines(path: Path) -> int:
    stripped = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return sum(bool(line) and not line.startswith("--") for line in stripped)


def header(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("--"))])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_server_takes_every_script(path, redis_url):
    """Each script compiles, and the server names it by the hash that we call it by."""
    found = scripts.script(path.stem)
    with redis.Redis.from_url(redis_url) as client:
        assert client.script_load(found.text) in {found.sha, found.sha.encode()}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_what_it_is(path):
    """A script begins with its purpose, the keys it touches, its arguments and its words."""
    text = header(path)
    assert re.match(r"-- [A-Z].+[.;]", text)
    for part in ("Keys touched", "Arguments", "Words"):
        assert re.search(rf"^-- {part}[^:]*: ", text, re.MULTILINE), f"{path.name} lacks {part!r}"


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.stem)
def test_every_part_says_what_it_is_and_is_used(path):
    """A part begins with its purpose, and some script includes it."""
    assert re.match(r"-- [A-Z]", header(path))
    users = [each for each in [*SCRIPTS, *PARTS] if path.stem in scripts.INCLUDE.findall(each.read_text())]
    assert users


@pytest.mark.parametrize("path", [*SCRIPTS, *PARTS], ids=lambda path: path.stem)
def test_scripts_stay_small(path):
    """A script or part has at most 40 lines of code."""
    assert code_lines(path) <= 40


def test_a_part_is_included_once_and_before_its_users():
    """Including is by name, depth first, without repeats, so that order in a file does not matter."""
    text = scripts.script("settle").text.decode()
    for name in ("open", "change", "arrive", "spread", "finish", "step", "reply"):
        assert text.count(f"local function {name}(") == 1
    assert text.index("local function arrive(") < text.index("local function spread(")


def test_scripts_make_no_globals():
    """Every name is local: a server refuses a script that makes a global one, but only when it runs."""
    for path in [*SCRIPTS, *PARTS]:
        source = path.read_text(encoding="utf-8")
        assert re.findall(r"^function (?!DUE\.)", source, re.MULTILINE) == [], path.name
