from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

ROOT = Path(__file__).parent.parent
FOLDERS = ("runner", "tasks", "tests", "examples", "bench", "docs")
TEXT = {
    ".cfg",
    ".html",
    ".ini",
    ".json",
    ".lua",
    ".md",
    ".py",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}
IN_THE_ROOT = {
    ".ci",
    ".dockerignore",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "Procfile",
    "README.md",
    "SECURITY.md",
    "docker-compose.yml",
    "hatch_build.py",
    "mkdocs.yml",
    "pyproject.toml",
    "requirements",
    *FOLDERS,
}
"""All that the repository has at its top; a new file there needs a reason, and then a line here."""
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


EVERYTHING = [
    *files(*FOLDERS, suffixes=TEXT),
    *sorted(
        path
        for path in ROOT.iterdir()
        if path.suffix in TEXT or path.name in {"Makefile", "Procfile"}
    ),
]


@pytest.mark.full
def test_file_names_say_what_is_inside():
    """No module is named for being useful; its name is a noun one can point at or a verb."""
    assert [
        name(path) for path in files(*FOLDERS, suffixes={".py"}) if path.stem in VAGUE
    ] == []


def test_the_root_holds_known_files_only():
    """Nothing is tracked at the top of the repository that was not put there on purpose."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
        "\0"
    )

    assert sorted({path.split("/")[0] for path in tracked if path} - IN_THE_ROOT) == []


@pytest.mark.full
def test_a_source_release_holds_known_files_only():
    """The archive has the library, its tests and its pages, and nothing that happens to lie beside them."""
    released = [
        file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()
    ]
    tops = {path.split("/")[0] for path in released}

    assert sorted(tops - IN_THE_ROOT) == []
    assert {"runner", "tests", "docs"} <= tops


@pytest.mark.full
def test_the_repository_names_no_machine():
    """No file holds a path that exists on one machine only."""
    found = [
        f"{name(path)}: {match.group().strip()}"
        for path in EVERYTHING
        for match in MACHINE_PATH.finditer(path.read_text(encoding="utf-8"))
    ]

    assert found == []


SILENT = re.compile(r'def test_\w+\((?:[^()]|\([^()]*\))*\)[^:\n]*:\n(?! +r?""")')
"""A test without a docstring, maybe inside a text; to parse each file takes many seconds."""


@pytest.mark.full
def test_every_test_states_its_promise():
    """Each test has a docstring of one sentence: what a user may rely on."""
    silent = [
        f"{name(path)}: {node.name}"
        for path in files("tests", suffixes={".py"})
        if SILENT.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]

    assert silent == []


def test_slow_tests_are_in_modules_that_say_so():
    """`pytest_ignore_collect` knows modules with slow tests by words: the mark, or these two that set it."""
    elsewhere = {
        path.stem
        for path in files("tests", suffixes={".py"})
        if not path.name.startswith("test_") and "pytest.mark.slow" in path.read_text()
    }

    assert elsewhere == {"adapter_contract", "conftest"}
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    assert "slow|any_store|adapter_contract" in conftest
    assert conftest.count("pytest.mark.slow") == 1
