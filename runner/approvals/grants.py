"""Grants: decisions on future calls, bounded by arguments, uses, sums, time and requesters.

A rule allows them by `grants=Grants(...)`, which has their widest bounds. People sign a grant like
a vote, as many as its rule needs. The worker judges it when a call begins, by the rule in the code
and for the requester of that run, and the store counts its uses: see docs/how-to/grants.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from decimal import Decimal, InvalidOperation
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any

from runner.approvals import ballots, digests, rules
from runner.approvals.judgement import level_of
from runner.approvals.rules import (
    Count,
    Principal,
    Requester,
    Rule,
    Tally,
    Vote,
    Voter,
    VoterFacts,
)
from runner.errors import GrantRefused, RunnerError, UsageError
from runner.immutable import immutable
from runner.records import codec, validation
from runner.records.codec import JSONMapping, JSONObject
from runner.records.nested_schemas import part, pointer_step
from runner.records.run import outermost

if TYPE_CHECKING:
    from runner.approvals.proofs import VerificationKeys

GRANT = "grant:"
"""Prefix of a grant's name in messages and uses, which otherwise name a question."""

MOST_GRAPHS, MOST_REQUESTERS = 100, 100

KEPT_MS = 30 * 86_400_000
"""Milliseconds for which an ended grant is still listed."""

BELOW = ("maximum", "exclusiveMaximum")
ABOVE = ("minimum", "exclusiveMinimum")

INSIDE = dict(zip((*BELOW, *ABOVE), (le, lt, ge, gt), strict=True))

OF_TEXTS = ("minLength", "maxLength", "pattern")

KEYWORDS = (*INSIDE, *OF_TEXTS, "const", "enum", "type")
"""Keywords of JSON Schema that can bound one argument of a grant's calls."""


@codec.strict
@immutable
class Grant:
    """Terms of a grant: calls of one tool, or runs of one node, in some graphs.

    `bounds` is the JSON Schema that the arguments of each call must fit; every argument that it
    names must be present. `uses` and `sums` (by argument) bound all calls together. Times are ms;
    `requesters` are the keys of the people whose runs it is for, all runs if empty. `question` is
    the question on whose page it was made.
    """

    id: str
    tenant: str
    kind: str
    tool: str
    graphs: list[str]
    bounds: JSONObject
    uses: int
    sums: dict[str, float]
    made_at: int
    until: int
    requesters: list[str] = field(default_factory=list)
    question: str = ""
    v: int = 1

    def digest(self) -> str:
        """Hash the whole grant; the people who grant it sign this."""
        return digests.digest("grant", asdict(self), "the grant")

    def allows(self, uses: int, sums: Mapping[str, Decimal]) -> bool:
        """Return whether it is for this many calls with these sums, and no sum is missing."""
        return uses <= self.uses and all(
            name in sums and sums[name] <= Decimal(str(most))
            for name, most in self.sums.items()
        )

    def covers(self, action: JSONMapping, graph_id: str) -> bool:
        """Return whether it covers an action (its preimage) in a graph, with arguments within its bounds."""
        return (
            (self.tenant, self.kind, self.tool)
            == tuple(action[n] for n in ("tenant", "kind", "tool"))
            and outermost(graph_id) in self.graphs
            and fits(self.bounds, action["args"])
        )


@codec.strict
@immutable
class GrantRecord:
    """A grant as it is stored, with the votes for it and its uses.

    `rule` is the rule by which it was made. A vote has the voter (`by`), the time (`at`, ms) and
    its signed `body`, or the groups and roles that the door saw. `revoked` has who revoked it,
    when, and why. `used_for` are the idempotency keys of its uses.
    """

    grant: Grant
    rule: JSONObject
    votes: list[JSONObject] = field(default_factory=list)
    revoked: JSONObject | None = None
    used: int = 0
    summed: dict[str, str] = field(default_factory=dict)
    used_for: frozenset[str] = frozenset()

    def amounts(self, args: JSONMapping, key: str) -> dict[str, str] | None:
        """Return the amounts that a call adds to the sums, as exact decimal numbers.

        None if an amount isn't a number, or if too little was left for it when this was read; a
        call that was already counted under its `key` needs nothing.
        """
        numbers = {
            name: number
            for name in self.grant.sums
            if (number := number_of(args.get(name))) is not None
        }
        totals = {name: numbers[name] + Decimal(self.summed.get(name, 0)) for name in numbers}
        if key in self.used_for or self.grant.allows(self.used + 1, totals):
            return {name: str(number) for name, number in numbers.items()}
        return None


# -- bounds ------------------------------------------------------------------------------------------


def number_of(value: object) -> Decimal | None:
    """Return a number, also from text that is written as `Decimal` writes it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    is_plain = not isinstance(value, str) or str(number) == value  # not "1_0", " 5" or "+5"
    return number if number.is_finite() and is_plain else None


def properties_of(bounds: JSONMapping) -> JSONMapping:
    """Return the bounds of each argument."""
    kinds: JSONMapping = bounds.get("properties", {})
    return kinds


def fits(bounds: JSONMapping, args: object) -> bool:
    """Return whether arguments are within bounds: each named argument is present and fits."""
    return isinstance(args, Mapping) and all(
        name in args and _fits(bound, args[name])
        for name, bound in properties_of(bounds).items()
    )


def _fits(bound: JSONMapping, value: object) -> bool:
    """Return whether a value fits; unlike in JSON Schema, a keyword for another type refuses the value."""
    number = number_of(value)
    if INSIDE.keys() & bound and (number is None or not _is_inside(bound, number)):
        return False
    if {*OF_TEXTS} & bound.keys() and not isinstance(value, str):
        return False
    return not validation.mismatch(numeric(codec.without(bound, *INSIDE)), codec.plain(value))


def numeric(schema: Any) -> Any:
    """Return a JSON Schema whose bounds of numbers fit only numbers, however deep: a text fits any bound."""
    if isinstance(schema, list):
        return [*map(numeric, schema)]
    if not isinstance(schema, Mapping):
        return schema
    # The first two have values to compare, and a schema of the others lets more through if it fits less.
    inner = {
        name: subschema if name in {"const", "enum", "if", "not"} else numeric(subschema)
        for name, subschema in schema.items()
    }
    has_bounds = any(validation.is_number(schema.get(name)) for name in (*INSIDE, "multipleOf"))
    return {"type": "number", **inner} if has_bounds else inner


def _is_inside(bound: JSONMapping, number: Decimal) -> bool:
    return all(
        holds(number, Decimal(str(bound[name])))
        for name, holds in INSIDE.items()
        if name in bound
    )


def check_bounds(bounds: object) -> None:
    """Check the form of bounds.

    Raises:
        GrantRefused: they aren't an object schema of plain bounds, or nothing fits them.
    """
    if not isinstance(bounds, Mapping) or set(bounds) - {"type", "properties", "required"}:
        raise GrantRefused(
            "bounds",
            'must be a JSON Schema such as {"properties": {"amount": {"maximum": 50}}}',
        )
    if bounds.get("type", "object") != "object" or not isinstance(
        bounds.get("properties", {}), Mapping
    ):
        raise GrantRefused("bounds", "must be the schema of an object, the arguments of a call")
    if unbound := set(bounds.get("required") or ()) - set(properties_of(bounds)):
        raise GrantRefused("bounds", f"requires {sorted(unbound)}, and bounds no such argument")
    for name, bound in properties_of(bounds).items():
        where = f"bounds.{name}"
        wrong = [*codec.without(bound, *KEYWORDS)] if isinstance(bound, Mapping) else bound
        if wrong or not isinstance(bound, Mapping):
            raise GrantRefused(where, f"may have {', '.join(KEYWORDS)}, not {wrong!r:.80}")
        for keyword in INSIDE.keys() & bound:
            if isinstance(bound[keyword], str) or number_of(bound[keyword]) is None:
                raise GrantRefused(
                    f"{where}.{keyword}", f"must be a number, not {bound[keyword]!r:.40}"
                )
        try:
            validation.check_schema(codec.plain(dict(bound)), where)
        except UsageError as error:
            raise GrantRefused(where, str(error).rstrip(".")) from error
        low, high = _ends(bound)
        if low is not None and high is not None and low > high:
            raise GrantRefused(where, f"nothing is at least {low} and at most {high}")
        if (values := _values(bound)) and not any(_fits(bound, value) for value in values):
            raise GrantRefused(where, "none of its values is within its other bounds")


def _ends(bound: JSONMapping) -> tuple[Decimal | None, Decimal | None]:
    """Return the least and the greatest number within bounds."""
    lows = [Decimal(str(bound[name])) for name in ABOVE if name in bound]
    highs = [Decimal(str(bound[name])) for name in BELOW if name in bound]
    return max(lows, default=None), min(highs, default=None)


def _values(bound: JSONMapping) -> list[Any]:
    return [bound["const"]] if "const" in bound else list(bound.get("enum", ()))


def check_reach(bounds: JSONMapping, schema: JSONMapping) -> None:
    """Check that calls with a schema can be within bounds.

    Raises:
        GrantRefused: the calls lack an argument, or none of its values fits.
    """
    arguments = schema.get("properties", {})
    for name, bound in properties_of(bounds).items():
        where = f"bounds.{name}"
        if name not in arguments:
            names = ", ".join(sorted(arguments)) or "none"
            raise GrantRefused(where, f"the call has no such argument; it has {names}")
        argument_schema = part(schema, f"#/properties/{pointer_step(name)}")
        values = _values(bound)
        if values and all(
            validation.mismatch(argument_schema, codec.plain(value)) for value in values
        ):
            raise GrantRefused(where, "no call of this tool has one of these values")
        kinds = _kinds(arguments[name])
        if INSIDE.keys() & bound and kinds and not kinds & {"number", "integer"}:
            raise GrantRefused(
                where, f"is {' or '.join(sorted(kinds))}, and only numbers have a bound"
            )
        low, high = _ends(bound)
        least, greatest = _ends(arguments[name])
        if (low is not None and greatest is not None and low > greatest) or (
            high is not None and least is not None and high < least
        ):
            raise GrantRefused(where, "no call of this tool has a number within these bounds")


def _kinds(schema: JSONMapping) -> set[str]:
    """Return the types that a schema and its alternatives name."""
    kinds: set[str] = set()
    for alternative in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        types = alternative.get("type", ())
        kinds |= {types} if isinstance(types, str) else {*types}
    return kinds


def check_narrower(bounds: JSONMapping, widest: JSONMapping) -> None:
    """Check that bounds are within the widest bounds of a rule.

    Raises:
        GrantRefused: they are wider, or can't be compared.
    """
    for name, outer in properties_of(widest).items():
        where = f"bounds.{name}"
        inner = properties_of(bounds).get(name)
        if inner is None:
            raise GrantRefused(
                where, f"the rule allows grants only with {dict(outer)}: bound it, too"
            )
        limits = {keyword: outer[keyword] for keyword in INSIDE if keyword in outer}
        if values := _values(inner):
            is_within = all(_fits(outer, value) for value in values)
        else:
            is_within = codec.without(outer, *limits).items() <= inner.items() and _is_within(
                inner, limits
            )
        if not is_within:
            raise GrantRefused(where, f"wider than the rule allows, which is {dict(outer)}")


def _is_within(inner: JSONMapping, limits: JSONMapping) -> bool:
    """Return whether all numbers within bounds are within some limits."""
    low, high = _ends(inner)
    for keyword in limits:
        end = high if keyword in BELOW else low
        is_open = any(
            name in inner and Decimal(str(inner[name])) == end
            for name in ("exclusiveMaximum", "exclusiveMinimum")
        )
        if end is None or not (
            _is_inside({keyword: limits[keyword]}, end)
            or (is_open and end == Decimal(str(limits[keyword])))
        ):
            return False
    return True


def check(grant: Grant, rule: Rule, schema: JSONMapping | None, now: int) -> None:
    """Check a new grant; `schema` is the schema of the arguments, if known, `now` is in ms.

    Raises:
        GrantRefused: it can't be met, is wider than the rule allows, or ends in the past.
    """
    limits_of_rule = rule.grants
    if limits_of_rule is None:
        raise GrantRefused("rule", "the rule of this call allows no grants (grants=)")
    check_bounds(grant.bounds)
    if schema is not None:
        check_reach(grant.bounds, schema)
    check_narrower(grant.bounds, limits_of_rule.bounds)
    if type(grant.uses) is not int or not 1 <= grant.uses <= limits_of_rule.uses:
        raise GrantRefused(
            "uses",
            f"must be a whole number from 1 to {limits_of_rule.uses}, not {grant.uses!r:.40}",
        )
    for name in {*grant.sums, *limits_of_rule.sums}:
        most = grant.sums.get(name)
        most_allowed = limits_of_rule.sums.get(name)
        if most is None:
            raise GrantRefused(
                f"sums.{name}",
                f"the rule allows grants only with a sum of at most {most_allowed}",
            )
        if isinstance(most, str) or (number := number_of(most)) is None or number <= 0:
            raise GrantRefused(f"sums.{name}", f"must be a number above 0, not {most!r:.40}")
        if most_allowed is not None and number > Decimal(str(most_allowed)):
            raise GrantRefused(
                f"sums.{name}", f"wider than the rule allows, which is {most_allowed}"
            )
        kinds = _kinds((schema or {}).get("properties", {}).get(name, {}))
        if schema is not None and not kinds & {"number", "integer"}:
            raise GrantRefused(f"sums.{name}", "the call has no such number")
    if grant.until <= now:
        raise GrantRefused("until", "is in the past")
    if grant.until > now + limits_of_rule.lifetime * 1000:
        raise GrantRefused(
            "until", f"the rule allows grants for at most {limits_of_rule.lifetime:g} seconds"
        )
    if not grant.graphs or len(grant.graphs) > MOST_GRAPHS:
        raise GrantRefused("graphs", f"must name 1 to {MOST_GRAPHS} graphs")
    if len(grant.requesters) > MOST_REQUESTERS:
        raise GrantRefused("requesters", f"must name at most {MOST_REQUESTERS} principals")


# -- votes for a grant -------------------------------------------------------------------------------


def voter_of(vote: JSONMapping) -> Voter:
    """Return the voter of a vote for a grant, as the door knew them."""
    return Voter(
        Principal.read(vote["by"]),
        frozenset(vote.get("groups") or ()),
        frozenset(vote.get("roles") or ()),
        int(vote.get("level", 0)),
        vote.get("login_age"),
        vote.get("acr"),
    )


def counted(
    rule: Rule,
    grant: Grant,
    voters: Sequence[tuple[Voter, str]],
    requesters: Sequence[str] = (),
    answered: Mapping[str, frozenset[str]] | None = None,
) -> Count:
    """Count the votes for a grant by a rule; if the last vote is refused, return that refusal."""
    effect = grant.digest()
    tally = Tally()
    rounds = dict[str, int]()
    count = Count("counted", tally, 0, rule.steps[0].need)
    for voter, decision in voters:
        facts = VoterFacts(
            [item for item in requesters if item],
            answered or {},
            original=effect,
            voted_in=rounds.get(voter.principal.key),
        )
        vote = Vote(
            voter.principal.key, "reject" if decision == "reject" else "approve", effect
        )
        count, counted_vote = rules.cast(rule, tally, voter, vote, facts)
        if count.numbers:
            rounds[counted_vote.principal] = count.tally.round
        tally = count.tally
        if count.word == "accepted":
            break
    return count


def judge(
    record: GrantRecord,
    rule: Rule,
    requester: Requester,
    answered: Mapping[str, frozenset[str]],
    *,
    keys: Callable[[], VerificationKeys],
    now: int,
) -> str:
    """Return why a grant does not hold for a run, or ""; `rule` comes from the code, `now` is in ms.

    Everything that a signature could prove is taken from signatures, not from the store: the grant
    must be the one signed by people who count by the rule, for a run that nobody excluded by the
    rule asked for.
    """
    grant = record.grant
    level = level_of(rule)
    if rule.grants is None:
        return "its rule allows no grants"
    if grant.requesters and (requester.key not in grant.requesters or requester.level < level):
        return "it is for runs of others"
    if rules.excludes_requester(rule) and (not requester.key or requester.level < level):
        return "nothing proves who has asked for the run"
    try:
        if record.revoked is not None or is_over(record, keys(), now):
            return "it was revoked or is over"
        check(grant, rule, None, grant.made_at)
        voters = [
            (_signed_by(vote, grant, keys()), vote["body"]["decision"])
            if level
            else (voter_of(vote), vote["decision"])
            for vote in record.votes
        ]
        count = counted(
            rule, grant, voters
        )  # with everybody's votes, so that a rejection ends the grant for every run
        if count.decision != "reject":
            count = counted(
                rule, grant, voters, (requester.key, *requester.on_behalf_of), answered
            )
    except (RunnerError, *codec.READ_ERRORS) as error:
        return f"it can't be read as one: {error}"
    if count.word != "accepted" or count.decision == "reject":
        return count.detail or "too few have granted it"
    return ""


def is_over(record: GrantRecord, keys: VerificationKeys, now: int) -> bool:
    """Return whether a grant's time is over (`now` in ms), or a key that signed it was revoked.

    A grant is for future calls: from its revocation on, a key grants nothing.
    """
    signed_by = {vote["body"].get("proof", {}).get("kid") for vote in record.votes}
    return now > record.grant.until or any(
        key.revoked is not None and key.revoked * 1000 <= now
        for kid, key in keys.items()
        if kid in signed_by
    )


def _signed_by(vote: JSONMapping, grant: Grant, keys: VerificationKeys) -> Voter:
    """Return the voter who signed a vote for a grant.

    Raises:
        UsageError, ProofRefused: nobody has, it is for another grant, or it was signed at another
            time.
    """
    from runner.approvals.proofs import verify  # noqa: PLC0415 - an extra, which most do without

    body = vote["body"]
    proof = verify(body, keys, now=None)
    signed_at = proof.issued * 1000
    skew = ballots.SKEW * 1000
    if (body.get("interrupt_id"), body.get("digest")) != (GRANT + grant.id, grant.digest()):
        raise UsageError("it was signed for another grant")
    if not grant.made_at - skew <= signed_at <= grant.until + skew:
        raise UsageError("it was signed at another time than the grant was made")
    return proof.voter
