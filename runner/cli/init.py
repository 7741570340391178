"""`runner init`: a project to begin with."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import click

from runner.cli.context import CommandContext, command
from runner.cli.exits import CommandError, Exit
from runner.immutable import immutable

FILES = (
    "refunds.py",
    "test_refunds.py",
    "login.py",
    "pyproject.toml",
    "Procfile",
    "docker-compose.yml",
    ".dockerignore",
    "README.md",
    ".gitignore",
)
TEMPLATES = ("pyproject.toml", "docker-compose.yml", "README.md")
"""The files in which {name} is replaced by the project's name."""


@immutable
class Project:
    """A project that was created: its folder, its name, and the files in it."""

    folder: str
    name: str
    files: tuple[str, ...]


@command()
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
def init(context: CommandContext, folder: Path) -> None:
    """Create a small project that works.

    DIR (default: the current folder) gets a graph that asks a person, its tests, a login for the pages, a
    pyproject.toml, a Procfile, a docker-compose.yml and a README with the next steps. No file is
    overwritten. Without a terminal: the path of each file.

    \b
    Example:
      runner init my-project
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    existing = [name for name in FILES if (folder / name).exists()]
    if existing:
        raise CommandError(
            Exit.CONFLICT,
            f"{folder} already has {', '.join(existing)}, so nothing was written.",
            "Name a folder that is new or empty.",
        )
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "graphs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            (folder / file).write_text(_text(file, name), encoding="utf-8")
    except OSError as error:
        raise CommandError(
            Exit.USAGE,
            f"{folder} can't be written: {error.strerror}.",
            "Name a folder that you may write to.",
        ) from error
    context.output.write(
        Project(str(folder), name, FILES), [(str(folder / file),) for file in FILES]
    )
    context.output.note(f"Next: cd {folder} && pytest && runner dev")


def _text(file: str, name: str) -> str:
    template = resources.files("runner.cli") / "starter" / f"{file.lstrip('.')}.txt"
    text = template.read_text(encoding="utf-8")
    return text.format(name=name) if file in TEMPLATES else text
