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

    A session is the memory that agents with the same session id keep between runs. It stays until it is
    deleted.
    """


@sessions.command("list")
@paged
@with_context
def list_sessions(context: CommandContext, limit: int, cursor: str | None) -> None:
    """List sessions, a page at a time.

    Sessions have no index: a page searches the keys of the store by SCAN, half a million at most. So
    each page is sorted by id, but pages are in no order; a session that begins meanwhile may be missing, and
    a session may be on two pages.

    Without a terminal: id, number of messages and graph, separated by tabs; a session that all graphs share
    has no graph. If there may be more, stderr has the cursor of the next page, even if this one is empty.
    """
    page = read_pages(context.installation.sessions, limit, cursor)
    by_key = {(item.graph, item.id): item for item in page}
    listed = [item for _, item in sorted(by_key.items())]
    context.output.listing(
        {"sessions": listed, "next": page.next},
        ("SESSION", "MESSAGES", "GRAPH"),
        [(item.id, item.messages, item.graph) for item in listed],
        "No sessions.",
    )


@sessions.command()
@click.argument("session_id", metavar="SESSION")
@click.option(
    "--graph",
    "of_graph",
    default="",
    metavar="GRAPH",
    help="The session's graph (default: all graphs share it).",
)
@with_context
def forget(context: CommandContext, session_id: str, of_graph: str) -> None:
    """Delete a session; a run that uses it now begins a new one."""
    if not context.client.forget_session(session_id, graph=of_graph):
        where = f"of the graph {of_graph!r}" if of_graph else "that all graphs share"
        raise NotFoundError(
            f"there is no session {session_id!r} {where}, so nothing was deleted. `runner sessions list` has "
            "the graph of each."
        )
    context.output.removed(session_id, "forgotten")
