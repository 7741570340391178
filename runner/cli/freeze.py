"""`runner freeze` and `runner thaw`: stop all effects of a graph, a tool or everything, and resume."""

from __future__ import annotations

from typing import Any

from runner.cli.arguments import add_options, by_option, flag, option
from runner.cli.context import CommandContext, command
from runner.immutable import immutable


@immutable
class Frozen:
    """A freeze in force or just ended; `scope` is all, graph:GRAPH or tool:TOOL, `by` who did it."""

    scope: str
    status: str
    reason: str
    by: str


_options = add_options(
    by_option,
    option("--reason", "Why; it is shown, and the audit keeps its hash.", required=True),
    flag("--all", "everything", "Every graph."),
    option("--tool TOOL", "The calls of this tool (default: none).", default=""),
    option("--graph GRAPH", "The nodes of this graph (default: none).", default=""),
)


@command()
@_options
@flag("--force", "Even if nothing here has this name.")
def freeze(context: CommandContext, *, reason: str, by: str, force: bool, **names: Any) -> None:
    """Stop all effects of a graph, of a tool, or everything.

    No node of a frozen graph starts, even if the graph is a node of another one, and its running nodes call
    no tools. A frozen tool is not called, and the node that would call it waits. Workers obey within
    five seconds. Nothing is lost: questions can be answered meanwhile, and everything resumes after `runner
    thaw`. `runner doctor`, `runner metrics`, `runner runs show`, notices and receipts of answers show it.

    A name that no graph or tool has is refused. Tools are looked up in the agents of the graphs that this
    program imports; a tool of a framework's agent, such as Strands, needs --force.

    Without a terminal: scope, status, reason and who did it, separated by tabs. Exit codes: 0 frozen;
    4 nothing has this name; 5 it is frozen already.
    """
    from runner.approvals import freezing
    from runner.approvals.freezes import scope_of

    scope = scope_of(**names)
    freezing.freeze(context.client.engine, scope, reason, by, force=force)
    context.output.write(Frozen(scope, "frozen", reason, by))


@command()
@_options
def thaw(context: CommandContext, *, reason: str, by: str, **names: Any) -> None:
    """End a freeze, with the option that began it.

    Waiting nodes start with the next sweep, or within fifteen seconds if they met a frozen tool. Without a
    terminal: scope, status, reason and who did it, separated by tabs.

    Exit codes: 0 thawed; 4 it is not frozen.
    """
    from runner.approvals import freezing
    from runner.approvals.freezes import scope_of

    scope = scope_of(**names)
    freezing.thaw(context.client.engine, scope, reason, by)
    context.output.write(Frozen(scope, "thawed", reason, by))
