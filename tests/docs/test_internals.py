from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "README.md").read_text(encoding="utf-8")
FILE = re.compile(r"`((?:[\w.]+/)+[\w.]*|\w+\.(?:py|lua))`")
DEFINED = re.compile(r"`((?:\w+/)*\w+\.py)` `([\w.]+)`")
NAMED_FILE = re.compile(r"(?<![\w./<-])(?:[\w-]+/)*\w[\w-]*\.(?:py|lua|md)\b")
ROOMS = [path.parent.name for path in (ROOT / "runner").glob("*/__init__.py")]
NAMED_MODULE = re.compile(rf"`(?:runner\.)?({'|'.join(ROOMS)})\.(\w+)\.\w")


def missing(page):
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


def prose(path):
    """Return the docstrings and the comments of a file."""
    code = path.read_text(encoding="utf-8")
    if path.suffix == ".lua":
        return "\n".join(re.findall(r"--.*", code))
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    docstrings = [
        node.value.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return "\n".join([*comments, *docstrings])


def missing_in_prose(text, path):
    """List the files and modules that a file's prose names and that lie in none of the folders above it."""
    files = NAMED_FILE.findall(text)
    modules = [f"{room}/{name}" for room, name in NAMED_MODULE.findall(text)]
    return [
        name
        for name in [*files, *modules]
        if not any(
            (home / name).exists() or (home / f"{name}.py").exists()
            for home in path.parents
            if home.is_relative_to(ROOT)
        )
    ]


@pytest.mark.slow
def test_docstrings_and_comments_name_files_that_exist():
    """Every file and module that a docstring or a comment of the library names is there."""
    gone = {
        path.relative_to(ROOT).as_posix(): names
        for path in (ROOT / "runner").rglob("*")
        if path.suffix in {".py", ".lua"} and (names := missing_in_prose(prose(path), path))
    }

    assert gone == {}


def test_a_stale_name_in_a_docstring_is_noticed():
    """A file or a module that is not there is reported, and one that is there is not."""
    text = "See lua/nowhere.lua, `records.nothing.f`, `records.run`, keys.py, docs/glossary.md."

    assert missing_in_prose(text, ROOT / "runner/store/redis/keys.py") == [
        "lua/nowhere.lua",
        "records/nothing",
    ]


@pytest.mark.full
def test_the_internals_page_names_files_and_functions_that_exist():
    """Every file, and every function behind a file's name, is there."""
    assert missing(PAGE) == []


def test_a_stale_name_on_the_internals_page_is_noticed():
    """A file or a function that is not there is reported."""
    page = (
        "`execution/engine.py` `Engine.nothing`, `execution/nowhere.py`, `store/redis/keys.py`"
    )

    assert missing(page) == ["execution/nowhere.py", "execution/engine.py Engine.nothing"]


def test_the_internals_page_shows_every_room():
    """The picture has each folder of the library."""
    rooms = {path.parent.name for path in (ROOT / "runner").glob("*/__init__.py")}

    assert {room for room in rooms if f"{room}/" not in PAGE} == set()
