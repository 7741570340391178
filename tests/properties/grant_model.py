"""Which calls a grant lets begin, written from `docs/how-to/grants.md` alone, without a line of `runner`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Bounds = dict[str, dict[str, Any]]

AS_TEXT = re.compile(r"-?\d+(\.\d+)?(E[+-]\d+)?", re.ASCII)


def number(value: Any) -> Decimal | None:
    """Return the number that `value` is, also one as a `Decimal` writes it; true and false are none."""
    if isinstance(value, str) and AS_TEXT.fullmatch(value) and str(Decimal(value)) == value:
        return Decimal(value)
    return Decimal(str(value)) if type(value) in (int, float) else None


def same(value: Any, wanted: Any) -> bool:
    """Compare values of one type: 1 is 1.0, and neither `true` nor "1"."""
    one, other = ("number" if type(v) in (int, float) else type(v) for v in (value, wanted))
    return one == other and value == wanted


def compared(value: Any, limit: Any) -> Decimal:
    """Return how far a value is above a limit; what is no number is above and below all."""
    found, end = number(value), number(limit)
    return Decimal("NaN") if found is None or end is None else found - end


TESTS = {
    "maximum": lambda value, limit: (d := compared(value, limit)).is_finite() and d <= 0,
    "minimum": lambda value, limit: (d := compared(value, limit)).is_finite() and d >= 0,
    "exclusiveMaximum": lambda value, limit: (
        (d := compared(value, limit)).is_finite() and d < 0
    ),
    "exclusiveMinimum": lambda value, limit: (
        (d := compared(value, limit)).is_finite() and d > 0
    ),
    "const": same,
    "enum": lambda value, choices: any(same(value, choice) for choice in choices),
    "minLength": lambda value, length: isinstance(value, str) and len(value) >= length,
    "maxLength": lambda value, length: isinstance(value, str) and len(value) <= length,
    "pattern": lambda value, text: isinstance(value, str) and bool(re.search(text, value)),
}


def fits(arguments: dict[str, Any], bounds: Bounds) -> bool:
    """Return whether each argument that `bounds` names is there and passes all of its tests."""
    return all(
        name in arguments
        and all(TESTS[test](arguments[name], limit) for test, limit in tests.items())
        for name, tests in bounds.items()
    )


@dataclass(frozen=True)
class Rule:
    """Who decides, and the widest that a grant may be: of numbers up to a maximum, and of values."""

    eligible: frozenset[str]
    need: int
    excludes_requester: bool
    level: int
    bounds: Bounds
    uses: int
    sums: dict[str, int]
    lifetime: int

    def excludes(self, by: str, people: list[str]) -> bool:
        """Return whether one of those who asked decides; a name without an issuer is all of that name."""
        issuer, _, name = by.rpartition("|")
        asked = [who.rpartition("|") for who in people]
        is_one = any(
            name == other and (issuer == of or "human:" in (issuer, of))
            for of, _, other in asked
        )
        return self.excludes_requester and is_one


@dataclass(frozen=True)
class Call:
    """A call that is about to begin, under its idempotency key.

    `people` are those who have asked for its run: who has started it, and on whose behalf.
    """

    tool: str
    graph: str
    arguments: dict[str, Any]
    people: list[str]
    is_proven: bool
    key: str
    at: int


@dataclass
class Grant:
    """What was asked for, what people said to it, and how often it was used."""

    tool: str
    graphs: list[str]
    bounds: Bounds
    uses: int
    sums: dict[str, Any]
    made: int
    lifetime: int
    requesters: list[str]
    asked_by: list[str]
    voters: list[str] = field(default_factory=list)
    is_rejected: bool = False
    is_revoked: bool = False
    is_of_revoked_key: bool = False
    keys: set[str] = field(default_factory=set)
    spent: dict[str, Decimal] = field(default_factory=dict)

    def is_over(self, at: int) -> bool:
        """Return whether its time is over."""
        return at > self.made + self.lifetime

    def is_ended(self) -> bool:
        """Return whether people have ended it, or a key that has signed it was revoked."""
        return self.is_rejected or self.is_revoked or self.is_of_revoked_key

    def is_waiting(self, rule: Rule) -> bool:
        """Return whether it was not decided yet."""
        return not self.is_ended() and len(self.voters) < rule.need

    def is_within(self, rule: Rule) -> bool:
        """Return whether the rule allows it."""
        highs = ("maximum", "exclusiveMaximum")

        def narrower(name: str, widest: dict[str, Any]) -> bool:
            tests = self.bounds.get(name, {})
            values = tests.get("enum", [tests["const"]] if "const" in tests else [])
            if values:
                return all(fits({name: value}, {name: widest}) for value in values)
            ends = [tests[high] for high in highs if high in tests]
            return "maximum" in widest and bool(ends) and min(ends) <= widest["maximum"]

        return (
            all(narrower(name, widest) for name, widest in rule.bounds.items())
            and 1 <= self.uses <= rule.uses
            and all(0 < self.sums.get(name, 0) <= most for name, most in rule.sums.items())
            and 0 < self.lifetime <= rule.lifetime * 1000
        )

    def vote(self, rule: Rule, by: str, at: int, *, approve: bool) -> bool:
        """Return whether a vote counts: not of strangers, not a second one, not after the decision."""
        if not self.is_waiting(rule) or self.is_over(at):
            return False
        if by not in rule.eligible or by in self.voters or rule.excludes(by, self.asked_by):
            return False
        self.voters += [by] * approve
        self.is_rejected = not approve
        return True

    def covers(self, call: Call) -> bool:
        """Return whether it is for such calls."""
        is_for = call.tool == self.tool and call.graph in self.graphs
        return is_for and fits(call.arguments, self.bounds)

    def holds(self, rule: Rule, call: Call) -> bool:
        """Return whether the call may begin by this grant."""
        known = call.people[0] if call.is_proven or not rule.level else ""
        heard = [by for by in self.voters if not rule.excludes(by, call.people)]
        return (
            not (self.is_ended() or self.is_over(call.at))
            and self.is_within(rule)
            and len(heard) >= rule.need
            and (not self.requesters or known in self.requesters)
            and self.covers(call)
            and (call.key in self.keys or self._has_left(call))
        )

    def _has_left(self, call: Call) -> bool:
        totals = {name: self._total(name, call) for name in self.sums}
        is_known = all(total is not None for total in totals.values())
        return (
            is_known
            and len(self.keys) < self.uses
            and all(totals[name] <= Decimal(str(most)) for name, most in self.sums.items())
        )

    def use(self, call: Call) -> None:
        """Count the call, once for its key."""
        if call.key not in self.keys:
            self.spent = {name: self._total(name, call) for name in self.sums}
            self.keys.add(call.key)

    def _total(self, name: str, call: Call) -> Decimal | None:
        value = number(call.arguments.get(name))
        return None if value is None else self.spent.get(name, Decimal(0)) + value


def may_begin(rule: Rule, grants: dict[str, Grant], call: Call) -> set[str]:
    """Return the grants by which a call may begin; without any, people are asked.

    A call that has begun before is repeated by the same grant, if that still holds.
    """
    holding = {name for name, grant in grants.items() if grant.holds(rule, call)}
    return {name for name in holding if call.key in grants[name].keys} or holding
