"""Spending of agents: of a run, or of all runs with a tag, and the rule that stops them.

A sum is a hash: `add` is the rule as it is written for memory, `store/lua/spend.lua` the same in Redis; the
contract of the stores holds the two equal. What has already been spent can't be refused, so it is added
without bounds; what is about to be spent is refused where a bound is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

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
`?<question>` was counted, `#<who>` has the last nonce and the counter that was over.
"""


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
