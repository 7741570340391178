"""`runner sessions`: the conversations that agents remember across runs."""

from __future__ import annotations

import click

from runner.cli.arguments import paged, read_pages
from runner.cli.context import CommandContext, common_options, with_context
from runner.errors import NotFoundError


@click.group()
@common_options
def sessions() -> None:
    """List the sessions of agents, and delete them.

    A session is what agents with a session id remember from one run to the next. It stays until it is
    deleted.
    """


@sessions.command("list")
@paged
@with_context
def list_sessions(context: CommandContext, limit: int, cursor: str | None) -> None:
    """List sessions, a page at a time.

    There is no index of sessions: a page searches the keys of the store by SCAN, half a million at most. So
    each page is sorted by id, but pages are in no order; a session that begins meanwhile may be missing, and
    one may be on two pages.

    Without a terminal: id and number of messages, separated by a tab. If there may be more, stderr has the
    cursor of the next page, even where this one is empty.
    """
    page = read_pages(context.installation.sessions, limit, cursor)
    listed = sorted({item.id: item for item in page}.values(), key=lambda item: item.id)
    rows = [(item.id, item.messages) for item in listed]
    context.output.listing(
        {"sessions": listed, "next": page.next}, ("SESSION", "MESSAGES"), rows, "No sessions."
    )


@sessions.command()
@click.argument("session_id", metavar="SESSION")
@with_context
def forget(context: CommandContext, session_id: str) -> None:
    """Delete a session; a run that is in it now adds to a new one."""
    if not context.client.forget_session(session_id):
        raise NotFoundError(f"there is no session {session_id!r}, so nothing was deleted.")
    context.output.removed(session_id, "forgotten")
