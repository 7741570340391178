"""Spending of agents: of a run, or of all runs with a tag, and the rule that stops them.

A sum is a hash: `add` is the rule as it is written for memory, `store/lua/spend.lua` the same in Redis; the
contract of the stores holds the two equal. What has already been spent can't be refused, so it is added
without bounds; what is about to be spent is refused where a bound is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Protocol

COUNTERS = ("tokens", "model_calls", "tool_calls", "cost")
"""Counters of spending. A cost is in millionths of the currency that the prices are in."""

USAGE = {
    "tokens": "totalTokens",
    "model_calls": "modelCalls",
    "tool_calls": "toolCalls",
    "cost": "costMicros",
}
"""Names of the counters in the usage of a node."""

MICROS = 1_000_000

QUESTION = "budget."
"""Prefix of the names of questions that ask to raise a budget: an agent keeps their answers while it runs."""

AWAITED = "awaited:"
"""Prefix of the ids of what an agent keeps for a call that waits for the answer to another one's question."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """All runs with one value of a tag, in one window of so many ms, counted from 1970."""

    tag: str
    value: str
    window: int

    def key(self, now: int) -> str:
        """Name the sum that counts at a time."""
        return f"{self.tag}={self.value}:{self.window}:{now // self.window}"


@dataclass(frozen=True, slots=True)
class Spending:
    """Amounts to add to a sum if no bound is reached by them.

    `bounds` are by counter; `raises` are what people have added to a bound: by question, which counts once,
    counter and amount. `who` spends, one request after the other, each with a nonce of its own.
    """

    who: str
    nonce: str
    amounts: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    raises: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sum:
    """One counter: what was spent, the last bound (0: none), and what people have added to it."""

    spent: int = 0
    bound: int = 0
    raised: int = 0


Fields = MutableMapping[str, str]
"""A sum as it is stored: the counter itself, and under `^` its bound and under `+` what was added to that;
`?<question>` was counted, `#<who>` has the last nonce and the counter that was over. `@` has the visit that
asks to raise a counter's bound, `&` how many others wait for the answer: these are `&<counter> <number>`, and
`&<counter> <visit>` has the number. `!<counter> <visit>` is why one that has waited was refused.
"""


class RaiseFields(Protocol):
    """The fields of a sum, for requests to raise it."""

    def get(self, name: str, /) -> str | None:
        """Return a field, or None."""

    def __setitem__(self, name: str, value: str, /) -> None:
        """Set a field."""

    def pop(self, name: str, default: None, /) -> str | None:
        """Delete a field, and return what it was."""


def open_raise(fields: RaiseFields, counter: str, visit: str, instead_of: str = "") -> str:
    """Make a visit ask to raise a counter's bound, and return "".

    Where another visit asks, this one waits for that answer, and the other is returned, unless it has ended
    (`instead_of`). Where it has waited and the raise was refused, the reason is returned, after "!".
    """
    refusal, asker = fields.get(f"!{counter} {visit}"), fields.get(f"@{counter}")
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
    """End a visit's request to raise a bound, and return the visits that wait for it, which go on.

    With a `refusal` they are refused by that.
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
    """Change a sum, or return the counter whose bound is reached; then nothing is added.

    A repeat of the last request of the same one who spends changes nothing, and gets the same reply.
    """
    last_request = fields.get(f"#{spending.who}", "")
    nonce, _, over = last_request.partition(" ")
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
    """Read the counters of a sum that were ever counted or bound."""
    all_sums = {
        counter: Sum(*(_number(fields, f"{mark}{counter}") for mark in ("", "^", "+")))
        for counter in COUNTERS
    }
    return {counter: value for counter, value in all_sums.items() if value != Sum()}


def _number(fields: Mapping[str, str], name: str) -> int:
    return int(fields.get(name, 0))
