"""`runner grants`: make decisions on future calls from a question, list them, vote and revoke them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from runner.cli.arguments import by_option, to_seconds
from runner.cli.context import CommandContext, common_options, with_context
from runner.cli.interrupts import _show_outcome as show_outcome
from runner.cli.output import short_time
from runner.records.validation import one_line

if TYPE_CHECKING:
    from runner.approvals.granting import GrantView

COLUMNS = ("GRANT", "TOOL", "GRAPHS", "BOUNDS", "USED", "UNTIL", "STATE")


@click.group()
@common_options
def grants() -> None:
    """Show grants, make them, vote on them, and revoke them.

    A grant is a decision on future calls of one tool, within bounds that people have signed.
    """


@grants.command("list")
@with_context
def list_grants(context: CommandContext) -> None:
    """List the grants, the newest first.

    Without a terminal: id, tool, graphs, bounds, uses, expiry and state, separated by tabs.
    """
    views = context.client.grants()
    context.output.listing(
        {"grants": views},
        COLUMNS,
        [_row(view) for view in views],
        "No grants. A rule with `grants=Grants(...)` allows them: `runner grants add QUESTION`.",
    )


def _row(view: GrantView) -> tuple[object, ...]:
    properties = (view.bounds or {}).get("properties", {})
    bounds = "; ".join(
        f"{name} " + ", ".join(f"{keyword} {value}" for keyword, value in bound.items())
        for name, bound in properties.items()
    )
    sums = "".join(
        f", {name} {view.summed.get(name, 0)} of {most:.15g}"
        for name, most in view.sums.items()
    )
    state = (
        f"{view.state} ({view.have} of {view.need})" if view.state == "waits" else view.state
    )
    return (
        view.id,
        one_line(view.tool),
        " ".join(view.graphs),
        one_line(bounds),
        f"{view.used} of {view.uses}{sums}",
        short_time(view.until),
        state,
    )


@grants.command()
@click.argument("interrupt_id", metavar="QUESTION")
@click.option(
    "--max",
    "most",
    multiple=True,
    metavar="NAME=NUMBER",
    help="The maximum of an argument; may be repeated.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME=VALUE",
    help="The value an argument must have, as text or JSON; may be repeated.",
)
@click.option("--uses", type=int, default=1, show_default=True, help="Number of calls.")
@click.option(
    "--sum",
    "sums",
    multiple=True,
    metavar="NAME=NUMBER",
    help="The maximum sum of an argument over all calls; may be repeated.",
)
@click.option(
    "--for",
    "lifetime",
    metavar="TIME",
    callback=to_seconds,
    help="For how long, such as 8h or 7d (default: as long as the rule allows).",
)
@click.option(
    "--requester",
    "requesters",
    multiple=True,
    metavar="NAME",
    help="For runs of this requester only; may be repeated.",
)
@click.option(
    "--graph",
    "only_graphs",
    multiple=True,
    metavar="GRAPH",
    help="For this graph (default: the question's graph); may be repeated.",
)
@click.option("--comment", default="", help="What the others read (default: nothing).")
@by_option
@with_context
def add(
    context: CommandContext,
    *,
    interrupt_id: str,
    most: tuple[str, ...],
    only: tuple[str, ...],
    uses: int,
    sums: tuple[str, ...],
    lifetime: float | None,
    requesters: tuple[str, ...],
    only_graphs: tuple[str, ...],
    comment: str,
    by: str,
) -> int:
    """Grant future calls like the one that QUESTION shows.

    The question's rule limits how wide a grant may be. The question itself stays open. Exit codes: 0 it
    holds, or was counted; 2 it can't be granted (the field is named); 4 no such question; 6 you may not.
    """
    bounds: dict[str, dict[str, Any]] = {}
    for name, text in map(_pair, most):
        bounds.setdefault(name, {})["maximum"] = _number(name, text)
    args = (context.client.interrupt(interrupt_id).action or {}).get("args", {})
    for name, text in map(_pair, only):
        # Digits stay text if the argument is text.
        is_text = isinstance(args.get(name), str)
        bounds.setdefault(name, {})["const"] = text if is_text else _value(text)
    receipt = context.client.grant(
        interrupt_id,
        by=by or context.user,
        bounds={"properties": bounds},
        uses=uses,
        sums={name: _number(name, text) for name, text in map(_pair, sums)},
        lifetime=lifetime,
        requesters=requesters,
        graphs=only_graphs,
        comment=comment,
    )
    return show_outcome(context, receipt)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"{text!r} is not NAME=VALUE, as in amount=50.")
    return name, value


def _number(name: str, text: str) -> float:
    from runner.approvals.grants import number_of

    number = number_of(text)
    if number is None:
        raise click.UsageError(f"{name}: {text!r} is not a number.")
    return float(number) if number % 1 else int(number)


def _value(text: str) -> Any:
    from runner.errors import CorruptDocument
    from runner.records import codec

    try:
        return codec.load_json(text)
    except CorruptDocument:
        return text


@grants.command()
@click.argument("grant_id", metavar="GRANT")
@click.argument("decision", type=click.Choice(["approve", "reject"]))
@click.option("--comment", default="", help="What the others read (default: nothing).")
@by_option
@with_context
def vote(
    context: CommandContext, *, grant_id: str, decision: str, comment: str, by: str
) -> int:
    """Vote on a grant that waits for more votes.

    Exit codes: 0 it holds, or was counted; 4 no such grant; 5 you have voted; 6 you may not.
    """
    receipt = context.client.vote_grant(
        grant_id, decision, by=by or context.user, comment=comment
    )
    return show_outcome(context, receipt)


@dataclass(frozen=True, slots=True)
class Revoked:
    """A grant that was revoked."""

    grant: str
    state: str = "revoked"


@grants.command()
@click.argument("grant_id", metavar="GRANT")
@click.option("--reason", required=True, help="Why; it is shown, and the audit keeps its hash.")
@by_option
@with_context
def revoke(context: CommandContext, *, grant_id: str, reason: str, by: str) -> None:
    """Revoke a grant: it allows no new calls.

    Exit codes: 0 revoked; 4 no such grant; 5 it was revoked before.
    """
    view = context.client.revoke_grant(grant_id, reason, by=by or context.user)
    context.output.write(Revoked(view.id), [("revoked", view.id)])
