from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("runner", "tasks", "tests", "examples", "bench", "docs")
LIMITS = {"modules": 300, "functions": 40, "scripts": 40}
TEXT = {".cfg", ".html", ".ini", ".json", ".lua", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
VAGUE = {"base", "common", "helpers", "manager", "misc", "types", "utils"}
# A folder of one machine: of a user, of a build, or below the temporary folder.
MACHINE_PATH = re.compile(
    r"""(?:^|[\s"'`(=])/(?:home|root|Users|work|tmp|var/folders)/[\w.]+""", re.MULTILINE
)


def files(*folders: str, suffixes: set[str]) -> list[Path]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in suffixes and path.is_file())


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


LIBRARY = files("runner", "tasks", suffixes={".py"})
EVERYTHING = [
    *files(*FOLDERS, suffixes=TEXT),
    *sorted(path for path in ROOT.iterdir() if path.suffix in TEXT or path.name in {"Makefile", "Procfile"}),
]


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count from `def` to the end, without the docstring."""
    first = node.body[0]
    said = first.end_lineno - first.lineno + 1 if ast.get_docstring(node, clean=False) is not None else 0
    return node.end_lineno - node.lineno + 1 - said


def functions(tree: ast.AST, prefix: str = ""):
    """Give the dotted name and the size of every function, methods and nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", lines(node)
        inner = f"{prefix}{node.name}." if hasattr(node, "name") and hasattr(node, "body") else prefix
        yield from functions(node, inner)


def code_lines(script: Path) -> int:
    stripped = (line.strip() for line in script.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in stripped if line and not line.startswith("--"))


@functools.cache
def sizes() -> dict[str, dict[str, int]]:
    sources = {name(path): path.read_text(encoding="utf-8") for path in LIBRARY}
    return {
        "modules": {path: len(source.splitlines()) for path, source in sources.items()},
        "functions": {
            f"{path}:{function}": size
            for path, source in sources.items()
            for function, size in functions(ast.parse(source))
        },
        "scripts": {name(path): code_lines(path) for path in files("runner", suffixes={".lua"})},
    }


@pytest.mark.parametrize("kind", sorted(LIMITS))
def test_nothing_is_larger_than_the_house_limits(kind):
    """Modules, functions and scripts keep to their limits, or to a listed size that only shrinks."""
    found = sizes()[kind]
    listed = tomllib.loads((ROOT / "limits.toml").read_text(encoding="utf-8"))[kind]
    over = {item: size for item, size in found.items() if size > LIMITS[kind]}

    grown = {item: size for item, size in over.items() if size > listed.get(item, LIMITS[kind])}
    loose = sorted(listed.keys() - over.keys())

    assert grown == {}, "split these, or list their present size in limits.toml and say why"
    assert loose == [], "these keep to the limit now: remove their line in limits.toml"


def test_file_names_say_what_is_inside():
    """No module is named for being useful; its name is a noun one can point at or a verb."""
    assert [name(path) for path in files(*FOLDERS, suffixes={".py"}) if path.stem in VAGUE] == []


def test_the_repository_names_no_machine():
    """No file holds a path that exists on one machine only."""
    found = [
        f"{name(path)}: {match.group().strip()}"
        for path in EVERYTHING
        for match in MACHINE_PATH.finditer(path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_every_test_states_its_promise():
    """Each test has a docstring of one sentence: what a user may rely on."""
    silent = [
        f"{name(path)}: {node.name}"
        for path in files("tests", suffixes={".py"})
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]

    assert silent == []
