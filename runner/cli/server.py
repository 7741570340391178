"""`runner server`: the HTTP API and the pages."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import click

from runner.cli.arguments import option
from runner.cli.context import CommandContext, command
from runner.errors import UsageError, needs_extra


@command()
@option("--host", "The address to listen on.", default="127.0.0.1")
@option("--port", "The port.", type=click.IntRange(1, 65535), default=8080)
@option("--workers", "Processes that serve the port.", type=click.IntRange(1), default=1)
@option(
    "--auth WAY",
    "How callers log in: local (anyone on this machine), proxy (its headers), or MODULE:OBJECT.",
    default="local",
)
@option(
    "--trusted NETWORK",
    "Where the proxy is, such as 10.0.0.0/8, or unix; may be repeated (default: this machine).",
    multiple=True,
)
@option(
    "--role-of GROUP=ROLE[:GRAPH]",
    "The role of a group that the proxy names, of a graph or all; may be repeated (default: none).",
    multiple=True,
)
@option(
    "--roles-header NAME",
    "A header with roles, which the proxy must set or delete (default: none).",
)
@option("--api-keys FILE", "API keys of programs, a JSON list (default: none).")
@option(
    "--new-key NAME",
    "Print a new API key for a program, and its entry in FILE (default: serve).",
)
@option("--role", "A role of the new key; may be repeated.", multiple=True)
@option(
    "--days",
    "Days after which the new key expires (default: never).",
    type=click.FloatRange(0, 36_500),
)
@option(
    "--door NAME",
    "A door to serve: agui, mail, mcp, slack, or MODULE:OBJECT; may be repeated (default: none).",
    multiple=True,
)
def server(context: CommandContext, **options: Any) -> None:
    """Serve the HTTP API and the pages: inbox, runs, graphs, workers.

    Needs the extra `server`: pip install 'celery-graph-runner[server]'. /openapi.json describes the API. To
    serve it from your own application, mount `runner.server.create_app()`.
    """
    check_installed()
    context.become("runner.server", json.dumps(options))


@command()
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


HOOK = ("hook",)


@command(context_settings={"ignore_unknown_options": True})
@option(
    "--policy FILE",
    "A Python module with `approval`, or YAML: the calls that need approval, and their rules.",
    required=True,
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
)
@option(
    "--url",
    "The address of a server over HTTP, in place of COMMAND (default: none).",
    default="",
)
@option(
    "--wait",
    "Seconds that a call waits for people; then the client gets an error that says to call again.",
    type=click.FloatRange(0, 86_400),
    default=25.0,
)
@option(
    "--timeout",
    "Seconds that the server may take for a call that was approved.",
    type=click.FloatRange(1, 86_400),
    default=300.0,
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def gate(context: CommandContext, **options: Any) -> None:
    """Hold calls to an MCP server until people approve them.

    An MCP client starts this command in place of the server's COMMAND, and speaks with it over standard
    input and output. The gate starts COMMAND and relays everything; calls for which the policy returns a
    rule wait for people, at any door, and are made once. Needs the extra `gate`.

    \b
      runner gate --policy policy.yaml -- npx -y @modelcontextprotocol/server-filesystem .
      runner gate --policy policy.yaml --url https://mcp.example.com/mcp

    With `hook` as COMMAND it is a hook of Claude Code or Codex: it reads a call from standard input and
    writes the decision.

    \b
      runner gate --policy policy.yaml --wait 3500 hook
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    if options["command"] == HOOK:
        context.become("runner.doors.gate_hook", json.dumps(options))
    if bool(options["command"]) == bool(options["url"]):
        raise UsageError("Give either the server's command, after --, or its --url.")
    if options["url"]:
        with needs_extra("mcp", "a server at a URL"):
            look_for("mcp")
    context.become("runner.doors.gate", json.dumps(options))
