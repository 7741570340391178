"""Listings on the command line: how many, from where, and how to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from runner.cli.output import Output
    from runner.listings import Page

Command = TypeVar("Command", bound=Callable[..., Any])
Item = TypeVar("Item")

MOST_PAGES = 100
"""Pages that one command reads where few of many fit; then it says how to go on."""


def paged(command: Command) -> Command:
    """Give a command the options of a listing."""
    limit = click.option(
        "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most."
    )
    cursor = click.option(
        "--cursor", metavar="CURSOR", help="Go on behind an earlier listing, which said this CURSOR."
    )
    return limit(cursor(command))


def gather(fetch: Callable[[int, str | None], Page[Item]], limit: int, cursor: str | None) -> Page[Item]:
    """Read pages until there are enough items, or no more."""
    from runner.listings import Page

    found: list[Item] = []
    for _ in range(MOST_PAGES):
        page = fetch(limit - len(found), cursor)
        found += page
        cursor = page.next
        if cursor is None or len(found) >= limit:
            break
    return Page(tuple(found), cursor)


def tell_next(output: Output, cursor: str | None) -> None:
    """Say how to go on where more follows."""
    if cursor is not None:
        output.note(f"More follow: --cursor {cursor}")
