"""The scripts by themselves: whole, loadable and explained."""

from __future__ import annotations

import re
from pathlib import Path

import redis

from runner.store.encoding import EVENT_LETTERS
from runner.store.redis import scripts

ROOM = Path(scripts.__file__).parents[1] / "lua"
SCRIPTS = sorted(ROOM.glob("*.lua"))
PARTS = sorted(ROOM.glob("parts/*.lua"))


def test_a_server_takes_every_script(redis_url):
    """Each script compiles, and the server names it by the hash that we call it by."""
    for path in SCRIPTS:
        script = scripts.script(path.stem)
        with redis.Redis.from_url(redis_url) as client:
            assert client.script_load(script.text) in {script.sha, script.sha.encode()}, (
                path.name
            )


def test_scripts_make_no_globals():
    """Every name is local: a server refuses a script that makes a global one, but only when it runs."""
    for path in [*SCRIPTS, *PARTS]:
        source = path.read_text(encoding="utf-8")
        assert re.findall(r"^function (?!DUE\.)", source, re.MULTILINE) == [], path.name


def test_no_script_has_too_many_locals():
    """Lua takes 200 local names in one function; a script's top level is one, with all that it includes."""
    for path in SCRIPTS:
        count = len(top_level_names(scripts.script(path.stem).text.decode()))
        assert count <= 190, f"{path.name} has {count}"


def test_no_name_of_a_script_hides_another():
    """Parts that are included together define no function twice: their order would decide which is called."""
    for path in SCRIPTS:
        functions = re.findall(
            r"^local function (\w+)\(", scripts.script(path.stem).text.decode(), re.MULTILINE
        )
        assert len(functions) == len(set(functions)), path.name


def top_level_names(text: str) -> list[str]:
    """List the locals of a script's outermost block, each as often as it is defined."""
    names: list[str] = []
    depth = 0
    for line in text.splitlines():
        if depth == 0 and line.startswith("local "):
            function = re.match(r"local function (\w+)", line)
            names += (
                [function[1]] if function else re.match(r"local ([\w, ]+)", line)[1].split(",")
            )
        code = re.sub(r"'[^']*'|--.*", "", line)
        opened = re.findall(r"\b(?:function|if|for|while|do|repeat)\b", code)
        # A `for` or `while` line has its own `do`.
        depth += len(opened) - sum(word in {"for", "while"} for word in opened)
        depth -= len(re.findall(r"\b(?:end|until)\b", code))
    assert depth == 0
    return names


def test_scripts_write_the_kinds_of_events_as_python_reads_them():
    """Both sides have the same letters for kinds, and no two kinds have one."""
    texts = [path.read_text(encoding="utf-8") for path in SCRIPTS]
    letters = {
        pair
        for text in texts
        for pair in re.findall(r"kind = '([a-z.]+)', letter = '(\w)'", text)
    }

    assert letters
    assert letters <= set(EVENT_LETTERS.items())
    assert len(set(EVENT_LETTERS.values())) == len(EVENT_LETTERS)


def test_every_script_is_called():
    """Its name stands in the code of the store; a script that nobody calls would be dead."""
    code = "".join(path.read_text(encoding="utf-8") for path in ROOM.parent.rglob("*.py"))

    assert [path.stem for path in SCRIPTS if f'"{path.stem}"' not in code] == []
