"""`runner init`: a project to begin with."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import click

from runner.cli.exits import CommandError, Exit
from runner.cli.session import Session, pass_session, shared

FILES = (
    "refunds.py",
    "test_refunds.py",
    "pyproject.toml",
    "Procfile",
    "docker-compose.yml",
    "README.md",
    ".gitignore",
)
NAMED = ("pyproject.toml", "docker-compose.yml", "README.md")
"""Those in which {name} stands for the project's name."""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
@shared
@pass_session
def init(session: Session, folder: Path) -> None:
    """Write a small project that works.

    It goes into DIR, by default this folder. It has a graph that asks a person, and its tests. There
    are a pyproject.toml, a Procfile, a docker-compose.yml and a README that says how to go on. No file
    is ever overwritten. Without a terminal: the path of each file.

    \b
    Example:
      runner init my-project
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise CommandError(
            Exit.CONFLICT,
            f"{folder} has {', '.join(there)} already, so nothing was written.",
            "Name a folder that is new or empty.",
        )
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "graphs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            (folder / file).write_text(_text(file, name), encoding="utf-8")
    except OSError as error:
        said = f"{folder} can't be written: {error.strerror}."
        raise CommandError(Exit.USAGE, said, "Name a folder that you may write to.") from error
    if session.output.as_json:
        session.output.data({"folder": str(folder), "name": name, "files": list(FILES)})
    else:
        session.output.lines([(str(folder / file),) for file in FILES])
    session.output.note(f"Go on with: cd {folder} && pytest && runner dev")


def _text(file: str, name: str) -> str:
    kept = resources.files("runner.cli") / "starter" / f"{file.lstrip('.')}.txt"
    text = kept.read_text(encoding="utf-8")
    return text.format(name=name) if file in NAMED else text
