"""Writes the pages and files of the reference that come from the code: `python docs/generate.py`.

A test fails where one of them is not what the code says.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from runner.cli.program import WORDS, runner
from runner.cli.schemas import DOCUMENTS, schema
from runner.cli.session import shared

REFERENCE = Path(__file__).parent / "reference"
WIDTH = 100
OURS = ("runner", "tasks")

MODULES = {
    "runner": "What graphs are made of, and how programs start runs and answer questions.",
    "runner.hooks": "What hooks are given. [Hook events](events.md) says when each comes.",
    "runner.errors": "Every error that the library raises on purpose, as one tree. A message says what "
    "happened, what happens next, and what to do.",
    "runner.testing": "What tests use. The pytest fixtures are below.",
    "tasks": "The Celery side: `celery --app tasks.app:app` is a ready app; this puts our tasks into yours.",
}
ENGINE = {"claimed", "execute", "from_document", "recipe", "show", "to_document", "topology"}
"""Methods of public classes that only the library itself calls."""
FIXTURES = "runner.testing.plugin"

PYTHON = """# The Python API

All public names, with what their docstrings say. This page is written by `docs/generate.py`; a test holds it
to the code. [Tour](../tour.md) shows how it is used, and the [glossary](../glossary.md) has the words.
"""

COMMANDS = """# Every command

What `runner COMMAND --help` says, on one page. It is written by `docs/generate.py`; a test holds it to
the code. [The command line](cli.md) has exit codes, settings and JSON.

Every command also takes these options, before or after its name:

{shared}
"""


# -- Python ------------------------------------------------------------------------------------------


def python_page() -> str:
    """Write the page of the Python API."""
    parts = [PYTHON]
    for name, said in MODULES.items():
        parts.append(f"## `{name}`\n\n{said}\n")
        parts += [entry(public, found) for public, found in public_names(importlib.import_module(name))]
    parts.append(
        "## Fixtures for pytest\n\n[Test your graphs](../how-to/test-your-graphs.md) shows them at work.\n"
    )
    parts += [entry(name, found, call=False) for name, found in fixtures()]
    return "\n".join(parts)


def public_names(module: Any) -> Iterator[tuple[str, Any]]:
    """List what a module offers: its `__all__`, else what it defines itself, in its order."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, found in vars(module).items()
            if not name.startswith("_") and getattr(found, "__module__", "") == module.__name__
        ]
    for name in names:
        yield name, getattr(module, name)


def fixtures() -> Iterator[tuple[str, Any]]:
    """List the functions behind the fixtures of the pytest plugin."""
    for name, found in vars(importlib.import_module(FIXTURES)).items():
        function = getattr(found, "_fixture_function", None) or getattr(found, "__pytest_wrapped__", None)
        if function is not None:
            yield name, getattr(function, "obj", function)


def entry(name: str, found: Any, *, call: bool = True) -> str:
    """Write one name: how it is called, what it is, and what can be done with it."""
    lines = [f"### `{name}`", ""]
    if isinstance(found, type) and issubclass(found, BaseException):
        above = ", ".join(f"`{base.__name__}`" for base in found.__bases__)
        lines += [f"A kind of {above}.", "", text(found), ""]
        return "\n".join(lines)
    if isinstance(found, enum.EnumMeta):
        lines += [text(found), "", ", ".join(f"`{member.value}`" for member in found), ""]
        return "\n".join(lines)
    if call and (written := signature(name, found)):
        lines += ["```text", written, "```", ""]
    if said := text(found):
        lines += [said, ""]
    if isinstance(found, type) and name != "StoreContract":  # its members are tests
        lines += members(found)
    return "\n".join(lines)


def members(found: type) -> list[str]:
    """Write what an object of a class offers, what it has from classes of ours included."""
    lines: list[str] = []
    for name, member in inspect.getmembers_static(found):
        home = next(base for base in found.__mro__ if name in vars(base))
        private = name in ENGINE or (name.startswith("_") and name != "__call__")
        if private or home.__module__.partition(".")[0] not in OURS:
            continue
        if isinstance(member, property) or type(member).__name__ == "cached_property":
            lines.append(f"- `.{name}`: {item(member)}")
        elif isinstance(member, (classmethod, staticmethod)) or inspect.isfunction(member):
            function = getattr(member, "__func__", member)
            called = "" if name == "__call__" else f".{name}"
            # Of a static method the first argument is its own.
            bound = not isinstance(member, staticmethod)
            lines.append(f"- `{signature(called, function, method=bound, width=0)}`: {item(function)}")
    return [*lines, ""] if lines else lines


def item(found: Any) -> str:
    """Write a docstring as the text of a list item."""
    return text(found).replace("\n\n", " ").replace("\n", " ") or "see its class."


def text(found: Any) -> str:
    """Write the docstring of a name, and of its `__init__`; not what dataclasses write for themselves."""
    parts = [inspect.getdoc(found) or ""]
    if isinstance(found, type) and not issubclass(found, BaseException):
        parts = [] if parts[0].startswith(f"{found.__name__}(") else parts
        own = vars(found).get("__init__")
        parts.append(
            inspect.getdoc(own) or "" if own is not None and own.__doc__ != object.__init__.__doc__ else ""
        )
    whole = "\n\n".join(part for part in parts if part and not part.startswith("Initialize self"))
    whole = re.sub(r"^Args:\n((?:    .*\n?)+)", _args, whole, flags=re.MULTILINE)
    return re.sub(r"^Raises:\n((?:    .*\n?)+)", _raises, whole, flags=re.MULTILINE).strip()


def _args(found: re.Match[str]) -> str:
    joined = re.sub(r"\n {8,}", " ", found[1])
    return re.sub(r"^    (\w+): ", r"- `\1`: ", joined, flags=re.MULTILINE)


def _raises(found: re.Match[str]) -> str:
    return "Raises " + re.sub(r"\s+", " ", re.sub(r"(\w+): ", r"`\1`: ", found[1])).strip()


def signature(name: str, found: Any, *, method: bool = False, width: int = WIDTH) -> str:
    """Write how something is called, on one line where it fits; "" for what can't be."""
    try:
        known = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    given = list(known.parameters.values())
    words = list(_parameters(given[1:] if method else given))
    gives = _annotation(known.return_annotation) if not isinstance(found, type) else ""
    after = f" -> {gives}" if gives else ""
    line = f"{name}({', '.join(words)}){after}"
    if width and len(line) > width:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){after}"
    return line


def _parameters(given: list[inspect.Parameter]) -> Iterator[str]:
    named = False
    for each in given:
        if each.kind is each.VAR_POSITIONAL:
            named = True
        if each.kind is each.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = f": {_annotation(each.annotation)}" if each.annotation is not each.empty else ""
        default = "" if each.default is each.empty else f"{' = ' if kind else '='}{_default(each.default)}"
        yield f"{star}{each.name}{kind}{default}"


def _annotation(found: Any) -> str:
    if found is inspect.Signature.empty:
        return ""
    return found if isinstance(found, str) else inspect.formatannotation(found)


def _default(found: Any) -> str:
    plain = isinstance(found, (str, int, float, bool, tuple, type(None))) and not isinstance(found, enum.Enum)
    return repr(found) if plain else f'"{found.value}"' if isinstance(found, enum.Enum) else "..."


# -- commands ----------------------------------------------------------------------------------------


def commands_page() -> str:
    """Write the page of the commands."""
    common = shared(lambda: None)
    options: list[click.Option] = list(reversed(common.__click_params__))  # type: ignore[attr-defined]
    names = {option.name for option in options}
    parts = [COMMANDS.format(shared="\n".join(map(_option, options)))]
    parts += [_command(path, command, names) for path, command in _commands(runner, ("runner",))]
    words = "\n".join(f"- {line}" for line in WORDS.values())
    return "\n".join([*parts, f"## Words in capitals\n\n{words}\n"])


def _commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    for name in sorted(group.commands):
        inner = group.commands[name]
        if isinstance(inner, click.Group):
            yield from _commands(inner, (*path, name))
        else:
            yield (*path, name), inner


def _command(path: tuple[str, ...], command: click.Command, common: set[str | None]) -> str:
    arguments = [
        each.make_metavar(click.Context(command))
        for each in command.params
        if isinstance(each, click.Argument)
    ]
    words = ["COMMAND"] if isinstance(command, click.Group) else arguments
    own = [each for each in command.params if isinstance(each, click.Option) and each.name not in common]
    lines = [f"## `{' '.join([*path, *words])}`", "", _help(command.help or ""), ""]
    return "\n".join([*lines, *map(_option, own), *([""] if own else [])])


def _help(said: str) -> str:
    """Write a help text; what click must not wrap is shown as it stands."""
    parts = inspect.cleandoc(said).split("\n\n")
    return "\n\n".join(_verbatim(part[2:]) if part.startswith("\b\n") else part for part in parts)


def _verbatim(part: str) -> str:
    return part if part.startswith("Exit codes") else f"```text\n{part}\n```"


def _option(option: click.Option) -> str:
    kind = "" if option.is_flag else f" {option.metavar or _choices(option)}"
    default = f" Default: `{option.default}`." if option.show_default else ""
    needed = " Required." if option.required else ""
    return f"- `{', '.join(option.opts)}{kind}`: {option.help}{default}{needed}"


def _choices(option: click.Option) -> str:
    choices = getattr(option.type, "choices", None)
    if choices:
        return "|".join(str(choice) for choice in choices)
    return "NUMBER" if "int" in option.type.name or "float" in option.type.name else "TEXT"


# -- all -----------------------------------------------------------------------------------------------


def written() -> dict[Path, str]:
    """Write every generated file of the reference, without saving it."""
    files = {REFERENCE / "python.md": python_page(), REFERENCE / "commands.md": commands_page()}
    for command in DOCUMENTS:
        path = REFERENCE / "cli-schemas" / f"{command.replace(' ', '-')}.json"
        files[path] = json.dumps(schema(command), indent=2) + "\n"
    return {path: re.sub(r"\n{3,}", "\n\n", found).rstrip() + "\n" for path, found in files.items()}


if __name__ == "__main__":
    for _path, _text in written().items():
        _path.write_text(_text, encoding="utf-8")
