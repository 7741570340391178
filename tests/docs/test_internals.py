from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "README.md").read_text(encoding="utf-8")
FILE = re.compile(r"`((?:[\w.]+/)+[\w.]*|\w+\.(?:py|lua))`")
DEFINED = re.compile(r"`((?:\w+/)*\w+\.py)` `([\w.]+)`")


def missing(page: str) -> list[str]:
    """List the files of `runner/` and the names in them that a page speaks of and that are not there."""
    gone = [
        path
        for path in FILE.findall(page)
        if not any((home / path).exists() for home in (ROOT / "runner", ROOT))
    ]
    for path, name in DEFINED.findall(page):
        code = (ROOT / "runner" / path).read_text(encoding="utf-8") if path not in gone else ""
        parts = name.split(".")
        if not all(
            re.search(rf"^\s*(?:async )?(?:def|class) {part}\b", code, re.MULTILINE)
            for part in parts
        ):
            gone.append(f"{path} {name}")
    return gone


def test_the_internals_page_names_files_and_functions_that_exist():
    """Every file, and every function behind a file's name, is there."""
    assert missing(PAGE) == []


def test_a_stale_name_on_the_internals_page_is_noticed():
    """A file or a function that is not there is reported."""
    page = "`execution/engine.py` `Engine.nothing`, `execution/nowhere.py`, `store/redis/keys.py`"

    assert missing(page) == ["execution/nowhere.py", "execution/engine.py Engine.nothing"]


def test_the_internals_page_shows_every_room():
    """The picture has each folder of the library."""
    rooms = {path.parent.name for path in (ROOT / "runner").glob("*/__init__.py")}

    assert {room for room in rooms if f"{room}/" not in PAGE} == set()
