"""Spending of agents, by run or by all runs with a tag, and the rule that stops them.

A sum is a hash: `add` is the rule for the memory store, `store/lua/spend.lua` the same rule in
Redis; the stores' contract tests keep the two equal. Past spending can't be refused, so it is added
without bounds; new spending is refused if a bound is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import field
from typing import Protocol

from runner.immutable import immutable

COUNTERS = ("tokens", "model_calls", "tool_calls", "cost")
"""Counters of spending. A cost is in millionths of the prices' currency."""

USAGE = {
    "tokens": "totalTokens",
    "model_calls": "modelCalls",
    "tool_calls": "toolCalls",
    "cost": "costMicros",
}
"""Names of the counters in the usage of a node."""

MICROS = 1_000_000

QUESTION = "budget."
"""Prefix of names of questions that ask to raise a budget; running agents keep their answers."""

AWAITED = "awaited:"
"""Prefix of an agent's ids for calls that wait for the answer to another call's question."""


@immutable
class Tagged:
    """All runs with one value of a tag, in one of the windows of `window` ms counted from 1970."""

    tag: str
    value: str
    window: int

    def key(self, now: int) -> str:
        """Return the name of the sum for the window that contains `now` (ms)."""
        return f"{self.tag}={self.value}:{self.window}:{now // self.window}"


@immutable
class Spending:
    """Amounts to add to a sum unless they reach a bound.

    `bounds` are by counter; `raises` are people's additions to a bound: by question, which counts
    once, the counter and the amount. `who` is the spender, whose requests come one after the other,
    each with its own nonce.
    """

    who: str
    nonce: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    raises: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@immutable
class Sum:
    """One counter: the amount spent, the last bound (0: none), and people's additions to it."""

    spent: int = 0
    bound: int = 0
    raised: int = 0


Fields = MutableMapping[str, str]
"""A sum as it is stored: each counter, with its bound under `^` and the additions to the bound
under `+`; `?<question>` marks a question as counted, `#<who>` has the last nonce and the counter
that was over. `@` has the visit that asks to raise a counter's bound, `&` the number of other
visits that wait for the answer: `&<counter> <number>` has such a visit, and `&<counter> <visit>`
its number. `!<counter> <visit>` is why a waiting visit was refused.
"""


class RaiseFields(Protocol):
    """The fields of a sum, for requests to raise it."""

    def get(self, name: str, /) -> str | None:
        """Return a field, or None."""

    def __setitem__(self, name: str, value: str, /) -> None:
        """Set a field."""

    def pop(self, name: str, default: None, /) -> str | None:
        """Delete a field and return its value."""


def open_raise(fields: RaiseFields, counter: str, visit: str, instead_of: str = "") -> str:
    """Make a visit ask to raise a counter's bound, and return "".

    If another visit already asks, this one waits for that answer, and the other is returned, unless
    it has ended (`instead_of`). If this visit waited and the raise was refused, return "!" and the
    reason.
    """
    refusal = fields.get(f"!{counter} {visit}")
    asker = fields.get(f"@{counter}")
    if refusal is not None:
        return f"!{refusal}"
    if asker in {None, visit, instead_of}:
        fields[f"@{counter}"] = visit
        return ""
    if fields.get(f"&{counter} {visit}") is None:
        number = str(int(fields.get(f"&{counter}") or 0) + 1)
        fields[f"&{counter}"] = number
        fields[f"&{counter} {number}"] = visit
        fields[f"&{counter} {visit}"] = number
    return asker or ""


def close_raise(fields: RaiseFields, counter: str, visit: str, refusal: str = "") -> list[str]:
    """End a visit's request to raise a bound, and return the visits that waited for it.

    They continue; with a `refusal` they are refused for that reason.
    """
    if fields.get(f"@{counter}") not in {None, visit}:
        return []
    fields.pop(f"@{counter}", None)
    count = int(fields.pop(f"&{counter}", None) or 0)
    waiting = [fields.pop(f"&{counter} {number}", None) or "" for number in range(1, count + 1)]
    for waiter in waiting:
        fields.pop(f"&{counter} {waiter}", None)
        if refusal:
            fields[f"!{counter} {waiter}"] = refusal
    return waiting


def add(fields: Fields, spending: Spending) -> str:
    """Add to a sum and return ""; if a bound is reached, add nothing and return its counter.

    A repeat of a spender's last request changes nothing and gets the same reply.
    """
    nonce, _, over = fields.get(f"#{spending.who}", "").partition(" ")
    if nonce != spending.nonce:
        for question, (counter, amount) in spending.raises.items():
            if f"?{question}" not in fields:
                fields[f"?{question}"] = "1"
                fields[f"+{counter}"] = str(_number(fields, f"+{counter}") + amount)
        over = ""
        for counter, bound in sorted(spending.bounds.items()):
            fields[f"^{counter}"] = str(bound)
            total = _number(fields, counter) + max(1, spending.amounts.get(counter, 0))
            if not over and total > bound + _number(fields, f"+{counter}"):
                over = counter
        for counter, amount in spending.amounts.items() if not over else ():
            fields[counter] = str(_number(fields, counter) + amount)
        fields[f"#{spending.who}"] = f"{spending.nonce} {over}"
    return over


def sums(fields: Mapping[str, str]) -> dict[str, Sum]:
    """Return the counters of a sum that have an amount or a bound."""
    all_sums = {
        counter: Sum(*(_number(fields, f"{mark}{counter}") for mark in ("", "^", "+")))
        for counter in COUNTERS
    }
    return {counter: value for counter, value in all_sums.items() if value != Sum()}


def _number(fields: Mapping[str, str], name: str) -> int:
    return int(fields.get(name, 0))
