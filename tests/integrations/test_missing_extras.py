"""A package that is not installed: what needs it says which extra has it."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from runner.errors import MissingExtra
from runner.schedules.schedule import Schedule, checked

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

PROGRAM = """
import importlib, json, sys
from runner.errors import MissingExtra
said = []
for package, module in json.load(sys.stdin):
    blocked = {name: sys.modules[name] for name in sys.modules if f"{name}.".startswith(f"{package}.")}
    sys.modules |= dict.fromkeys([package, *blocked])
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
        del sys.modules[name]
    try:
        imported = importlib.import_module(module)
        [getattr(imported, name) for name in getattr(imported, "__all__", ())]  # some are lazy
        said.append("")
    except MissingExtra as error:
        said.append(str(error))
    del sys.modules[package]
    sys.modules |= blocked
print(json.dumps(said))
"""


def distribution(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def imported(node):
    """The packages that the import statements in a piece of code name."""
    names = {
        alias.name
        for each in ast.walk(node)
        if isinstance(each, ast.Import)
        for alias in each.names
    }
    names |= {each.module for each in ast.walk(node) if isinstance(each, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def statements(tree):
    """Walk over statements alone, of which a file has a tenth of its nodes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield node
            yield from statements(node)


def blocks(tree):
    """The `with needs_extra(...)` of a file: the extra, the distribution that has it, the block."""
    found = []
    for node in statements(tree):
        call = node.items[0].context_expr if isinstance(node, ast.With) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "needs_extra":
            package = next(
                (ast.literal_eval(each.value) for each in call.keywords), PROJECT["name"]
            )
            found.append((ast.literal_eval(call.args[0]), package, node))
    return found


def installed(lines):
    """The distributions that requirements install, those that they need included."""
    found, todo = set(), [Requirement(line) for line in lines]
    while todo:
        each = todo.pop()
        if (key := (distribution(each.name), *sorted(each.extras))) not in found:
            found.add(key)
            todo += [
                more
                for more in map(Requirement, requires(each.name) or ())
                if not more.marker
                or any(more.marker.evaluate({"extra": extra}) for extra in {"", *each.extras})
            ]
    return {name for name, *_ in found}


@cache
def base():
    return installed(PROJECT["dependencies"])


@cache
def homes():
    return {
        name: {each.lower().replace("_", "-") for each in homes}
        for name, homes in packages_distributions().items()
    }


@cache
def files():
    return {
        path: ast.parse(path.read_text()) for path in sorted((ROOT / "runner").rglob("*.py"))
    }


def is_optional(package):
    known = package in sys.stdlib_module_names or package in {
        "runner",
        "pytest",
        "_pytest",
        "pydantic_core",
        "billiard",
    }
    return not known and not homes().get(package, set()) & base()


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def server_packages():
    return {
        package
        for path, tree in files().items()
        if path.is_relative_to(ROOT / "runner" / "server")
        for package in imported(tree)
        if is_optional(package) and package not in {"uvicorn", "runner"}
    }


def misses():
    """Each optional package, the extra that an error must name, and one module that needs both."""
    guarded = {
        (package, extra if home == PROJECT["name"] else f"{home}[{extra}]"): module_of(path)
        for path, tree in files().items()
        for extra, home, block in blocks(tree)
        if block in tree.body
        for package in imported(block)
        if is_optional(package)
    }
    return guarded | {(package, "server"): "runner.server" for package in server_packages()}


@pytest.mark.slow
def test_what_an_extra_has_is_imported_where_it_is_named():
    """Imports of optional packages are in blocks that name the extra, as the import of `runner.server` is."""
    unnamed = []
    for path, tree in files().items():
        for extra, home, block in blocks(tree):
            having = set().union(*(homes().get(name, set()) for name in imported(block)))
            listed = (
                {distribution(line) for line in EXTRAS[extra]}
                if home == PROJECT["name"]
                else {home}
            )
            more = imported(block) - {"runner", "claude_agent_sdk"}  # which is not installed
            assert not more or having & listed or having & installed(listed), path
        guarded = {id(node) for *_, block in blocks(tree) for node in statements(block)}
        for node in statements(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                guarded |= {id(inside) for inside in statements(node)}
        for node in statements(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in guarded:
                unnamed += [
                    (module_of(path), package)
                    for package in imported(node)
                    if is_optional(package)
                ]

    assert {
        package for package in server_packages() if ("runner.server.app", package) in unnamed
    }  # what a miss looks like
    assert [each for each in unnamed if not each[0].startswith("runner.server.")] == []


@pytest.mark.slow
def test_the_error_names_the_extra():
    """Without a package the import of a module that needs it fails with the command that installs it."""
    cases = misses()
    asked = json.dumps([(package, module) for (package, _), module in cases.items()])
    command = [sys.executable, "-c", PROGRAM]

    said = json.loads(
        subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout
    )

    for (package, extra), message in zip(cases, said, strict=True):
        named = extra if "[" in extra else f"celery-graph-runner[{extra}]"
        assert f"pip install '{named}'" in message, package


IMPORTS = {
    "ag-ui": "runner.doors.agui",
    "agents": "strands.models.openai",
    "approvals": "runner.approvals.proofs",
    "archive": "runner.store.archive.postgres",
    "mcp": "runner.doors.mcp, runner.integrations.mcp",
    "slack": "runner.doors.slack",
    "sqs": "runner.celery.sqs",
    "webhooks": "standardwebhooks",
}
"""By page, what it has its reader import."""


@pytest.mark.slow
@pytest.mark.parametrize("page", IMPORTS)
def test_a_page_names_all_that_its_imports_need(page):
    """Where nothing is installed but what the page says, what it is about can be imported."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    (line,) = set(re.findall(r"pip install ([^\n`]*celery-graph-runner[^\n`]*)", text))
    ours, *others = shlex.split(line)
    lines = (
        [each for extra in Requirement(ours).extras for each in EXTRAS[extra]]
        + PROJECT["dependencies"]
        + others
    )
    there = installed(lines) | {PROJECT["name"]}
    missing = [name for name, having in homes().items() if not having & there]
    program = f"import sys; sys.modules |= dict.fromkeys({missing}); import {IMPORTS[page]}"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("cryptography", ["audit", "key", "k.json"], "audit"),
        ("fastapi", ["server"], "server"),
        ("fastapi", ["api", "GET", "/v1/runs"], "server"),
        ("mcp", ["mcp"], "mcp"),
    ],
)
def test_a_command_names_the_extra(package, command, extra, tmp_path):
    """A command that lacks a package says how to install it, and calls nothing a bug."""
    program = f"import sys; sys.modules[{package!r}] = None; from runner.cli import main; sys.exit(main())"
    environment = {**os.environ, "RUNNER_REDIS_URL": "redis://127.0.0.1:1"}

    ended = subprocess.run(
        [sys.executable, "-c", program, *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert f"pip install 'celery-graph-runner[{extra}]'" in ended.stderr
    assert "bug" not in ended.stderr


def test_a_cron_expression_names_the_extra(monkeypatch):
    """Without the library a schedule with one is refused before the store is asked."""
    monkeypatch.setitem(sys.modules, "croniter", None)
    with pytest.raises(MissingExtra, match=r"celery-graph-runner\[schedules\]"):
        checked(Schedule("x", "refund", None, cron="0 9 * * *"))
