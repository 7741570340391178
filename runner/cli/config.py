"""`runner config`: the settings that count here."""

from __future__ import annotations

from typing import Any

import click

from runner.cli.session import Session, pass_session, shared


@click.group()
@shared
def config() -> None:
    """Look at the settings, and where each comes from."""


@config.command()
@click.option("--origin", is_flag=True, help="Also show where each setting comes from.")
@shared
@pass_session
def show(session: Session, *, origin: bool) -> None:
    """Show the value of every setting in this folder, without passwords.

    A setting may be given in several places, and the first of these counts: a flag such as --redis-url,
    a variable such as RUNNER_REDIS_URL, the file .env of this folder, [tool.runner] in its
    pyproject.toml, the default. Without a terminal: name, value and with --origin where it comes from,
    separated by tabs.
    """
    from runner.cli.origins import origins, unknown

    found = [(each.name, _shown(each.value), each.origin) for each in origins(session)]
    if session.output.as_json:
        keys = ("name", "value", "origin")
        session.output.data({"settings": [dict(zip(keys, cells, strict=True)) for cells in found]})
    else:
        headings, width = (("NAME", "VALUE", "ORIGIN"), 3) if origin else (("NAME", "VALUE"), 2)
        rows = [tuple(_cell(cell) for cell in cells[:width]) for cells in found]
        session.output.table(headings, rows, "")
    for line in unknown():
        session.output.note(f"Warning: {line}")


def _shown(value: Any) -> Any:
    from runner.cli.doctor import place

    return place(value) if isinstance(value, str) and "://" in value else value


def _cell(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
