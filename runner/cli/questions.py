"""How questions, and what became of answers, look on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.cli.output import clock_time, compact, one_line, short, span, style, visible

if TYPE_CHECKING:
    from runner.cli.output import Output
    from runner.interrupts import Interrupt, Receipt


def pile(output: Output, found: list[Interrupt], now: int) -> None:
    """On a terminal the id has a line of its own: it is long, and it is what gets copied."""
    from rich.text import Text

    from runner.cli.tree import people, times
    from runner.cli.view import shown

    if not found:
        output.note("Nothing waits for a person.")
    for asked in found:
        line = Text.assemble((one_line(asked.name), "bold yellow"), f"  asked by {one_line(asked.node_id)}")
        line.append(f" of {people(asked)}, {span(now - asked.asked_at)} ago")
        line.append(f", reminded {times(asked.reminded)}" if asked.reminded else "")
        line.append(f"\n  {short(shown(asked.reason), 90)}" if asked.reason is not None else "")
        line.append(f"\n  {asked.id}", style="dim")
        output.show(line)


def page(output: Output, asked: Interrupt) -> None:
    """Show a question whole, with which answers it takes and the answer that it has."""
    import json

    from rich.text import Text

    from runner.cli.tree import people, times
    from runner.cli.view import shown

    def block(value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        return "\n".join(f"  {line}" for line in visible(text).split("\n"))

    parts: list[str | tuple[str, str]] = [
        (f"{one_line(asked.name)}  {asked.status}\n", "bold"),
        f"asked by node {one_line(asked.node_id)} of run {asked.run_id}, {clock_time(asked.asked_at)}, ",
        f"of {people(asked)}\n",
        f"reminded {times(asked.reminded)}\n" if asked.reminded else "",
        _expiry(asked),
        ("reason\n", "bold"),
        block(shown(asked.reason)) + "\n",
    ]
    if asked.response_schema is not None:
        parts += [("takes answers like\n", "bold"), block(asked.response_schema) + "\n"]
    if asked.response is not None:
        who = one_line(asked.responder or "somebody")
        parts += [
            (f"answered by {who}, {clock_time(asked.answered_at)}\n", "bold"),
            block(shown(asked.response)) + "\n",
        ]
    parts += [(f"digest {asked.digest}\n{asked.id}", "dim")]
    output.show(Text.assemble(*parts))
    if asked.is_open:
        output.note(f"Answer with: runner interrupts respond {asked.id} --response JSON")


def receipt(output: Output, given: Receipt) -> None:
    """Show what became of an answer."""
    from rich.text import Text

    line = Text(f"{given.status}  ", style=style(given.status)).append(one_line(given.detail), "default")
    output.show(line.append(f"\n  {one_line(given.interrupt_id)}", "dim"))


def _expiry(asked: Interrupt) -> str:
    """Say when a question expires and what happens then."""
    if asked.expires_in is None:
        return ""
    when, then = clock_time(asked.asked_at + round(asked.expires_in * 1000)), asked.on_expire or "reject"
    return f"expires {when}: {then if isinstance(then, str) else compact(then)}\n"
