"""`runner gate`: approvals in front of any MCP server, and in the hooks of coding agents."""

from __future__ import annotations

import json
from typing import Any

import click

from runner.cli.arguments import option
from runner.cli.context import CommandContext, command
from runner.cli.server import look_for
from runner.errors import UsageError, needs_extra

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
