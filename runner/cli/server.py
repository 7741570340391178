"""`runner server`: the HTTP API and the pages."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import click

from runner.cli.context import CommandContext, with_context
from runner.errors import needs_extra


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="The port."
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that serve the port.",
)
@click.option(
    "--auth",
    default="local",
    show_default=True,
    metavar="WAY",
    help="How callers log in: local (anyone on this machine), proxy (its headers), or MODULE:OBJECT.",
)
@click.option(
    "--trusted",
    multiple=True,
    metavar="NETWORK",
    help="Where the proxy is, such as 10.0.0.0/8, or unix; may be repeated (default: this machine).",
)
@click.option(
    "--role-of",
    multiple=True,
    metavar="GROUP=ROLE[:GRAPH]",
    help="The role of a group that the proxy names, of a graph or all; may be repeated (default: none).",
)
@click.option(
    "--roles-header",
    metavar="NAME",
    help="A header with roles, which the proxy must set or delete (default: none).",
)
@click.option(
    "--api-keys", metavar="FILE", help="API keys of programs, a JSON list (default: none)."
)
@click.option(
    "--new-key",
    metavar="NAME",
    help="Print a new API key for a program, and its entry in FILE (default: serve).",
)
@click.option("--role", multiple=True, help="A role of the new key; may be repeated.")
@click.option(
    "--days",
    type=click.FloatRange(0, 36_500),
    help="Days after which the new key expires (default: never).",
)
@click.option(
    "--door",
    multiple=True,
    metavar="NAME",
    help="A door to serve: agui, mail, mcp, slack, or MODULE:OBJECT; may be repeated (default: none).",
)
@with_context
def server(context: CommandContext, **options: Any) -> None:
    """Serve the HTTP API and the pages: inbox, runs, graphs, workers.

    Needs the extra `server`: pip install 'celery-graph-runner[server]'. /openapi.json describes the API. To
    serve it from your own application, mount `runner.server.create_app()`.
    """
    check_installed()
    context.become("runner.server", json.dumps(options))


@click.command()
@with_context
def mcp(context: CommandContext) -> None:
    """Serve graphs as tools to an MCP client on stdio.

    The client and the command use standard input and output. RUNNER_MCP_GRAPHS names the graphs. Every call
    is by the user of this command, with all roles. Needs the extras `server` and `mcp`: pip install
    'celery-graph-runner[mcp,server]'. For clients elsewhere: `runner server --door mcp`.
    """
    check_installed()
    with needs_extra("mcp", "the MCP server"):
        look_for("mcp")
    context.become("runner.doors.mcp")


def check_installed() -> None:
    """Check that the web framework is installed, without importing it.

    Raises:
        MissingExtra: it is not.
    """
    with needs_extra("server", "the HTTP API and the pages"):
        look_for("fastapi", "uvicorn")


def look_for(*packages: str) -> None:
    """Raise ModuleNotFoundError if a package isn't installed, without importing any."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
