"""Rules for who may decide a question, and the arithmetic of their votes.

A `Rule` is declared in code and frozen into the question as JSON. A vote is one principal's
decision. Votes add up only for the same effect (the digest of the call or answer), and a person
counts once. `take` is the whole arithmetic: the store uses it when a vote arrives, and the worker
when it counts again before the effect.
"""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, field, replace
from typing import Any, Literal, get_args

import pydantic_core

from runner.approvals import titles
from runner.errors import UsageError
from runner.immutable import immutable
from runner.records import codec, validation
from runner.records.codec import JSONMapping, JSONObject
from runner.records.shown_text import shown

Kind = Literal["human", "service", "agent"]
KINDS = get_args(Kind)

DecisionKind = Literal["approve", "edit", "reject", "respond"]
DECISIONS = get_args(DecisionKind)

OF_A_STAGE = ("eligible", "need", "weights", "veto")
"""Settings that a rule with stages leaves to each of them."""

IN_A_STAGE = {*OF_A_STAGE, "exclude", "kinds", "agents", "auth", "decisions"}

MAX_EFFECTS = 8
"""Maximum number of different effects among one question's votes: more edits are refused."""

MAX_EDITS = 100
"""Maximum number of edits of one question that void earlier votes; it bounds a worker's recount."""

MAX_STAGES = 8
MAX_SELECTORS = 100
MAX_WEIGHT = 1_000
MAX_UNDO = 3_600

HOUR, DAY = 3_600, 86_400

SERVICE, LOGIN, OWN_KEY = 1, 2, 3
"""Levels above 0; at level 0 no issuer vouches for a name."""

ANSWERED = "answered:"
"""Prefix of the selector for everyone who answered a node's questions."""

OUTER = "../"
"""Prefix for the name of a node in a graph around the rule's graph."""

AWAY = "away"
"""Operation of the message by which an absent person lends their votes: see absences.py."""

DELEGATED = "delegated"
"""Selector of a vote that is cast in another person's place."""


@immutable
class Principal:
    """A person, service or agent that decides or asks.

    `iss` vouches for the name `sub` ("" if no issuer does); `name` is for display.
    """

    sub: str
    iss: str = ""
    kind: Kind = "human"
    name: str = ""

    def __post_init__(self) -> None:
        """Normalize the names, so that accents or spaces written differently don't make two people of one."""
        for field_name in ("sub", "iss"):
            words = unicodedata.normalize("NFC", getattr(self, field_name)).split()
            object.__setattr__(self, field_name, " ".join(words))

    @property
    def key(self) -> str:
        """The principal as one text, `kind:iss|sub`, which doesn't depend on the display name."""
        return f"{self.kind}:{self.iss}|{self.sub}"

    @classmethod
    def read(cls, text: str) -> Principal:
        """Read `kind:iss|sub`; a plain name such as "ana" is the human of that name, without an issuer.

        Raises:
            UsageError: the text is empty, has an invisible or confusable character, or has a `|`
                without a known kind and a colon before it.
        """
        head, _, sub = (text if "|" in text else f"human:|{text}").partition("|")
        kind, colon, iss = head.partition(":")
        if shown(text) != text:
            raise UsageError(
                f"{validation.one_line(text)!r:.80} names no principal: it has characters that can't be seen "
                "or that look like another script's."
            )
        if not sub.strip() or not colon or kind not in KINDS or validation.problem(text):
            raise UsageError(
                f"{text!r:.80} names no principal: write a name such as 'ana', or kind:issuer|subject with a "
                f"kind of {', '.join(KINDS)}."
            )
        return cls(sub, iss, kind)  # type: ignore[arg-type] # it is one of KINDS


@immutable
class Requester:
    """Requester of a run: the principal's key ("" if nobody was named), and those on whose behalf.

    `level` is the level at which that is proven for this very run: 0 without a signature.
    """

    key: str = ""
    on_behalf_of: Sequence[str] = ()
    level: int = 0


@immutable
class Auth:
    """Required authentication of voters: see docs/how-to/approvals.md for the levels 0 to 3.

    `max_age` is the maximum age of a login in seconds, `acr` the class of login that the issuer
    must state.
    """

    level: int = 0
    max_age: float | None = None
    acr: str | None = None


@immutable
class Grants:
    """The widest bounds of the grants that a rule allows: decisions on future calls.

    `bounds` is a JSON Schema that the arguments of each call must fit, as in
    `{"properties": {"amount": {"maximum": 50}}}`; `uses` is the maximum number of calls by one
    grant, `sums` the maximum total of an argument over all those calls, `lifetime` the maximum
    number of seconds that a grant holds.
    """

    bounds: JSONMapping = field(default_factory=dict)
    uses: int = 100
    sums: Mapping[str, float] = field(default_factory=dict)
    lifetime: float = 7 * DAY


@immutable
class Rule:
    """Rule for a question: who may decide it, how many are needed, and when it ends.

    `eligible` and `exclude` are selectors: `user:<principal>` or a plain name, `group:<name>`,
    `role:<name>`, `anyone`; `exclude` also takes `requester`, `answered:<node>` and
    `answered:../<node>`; whoever is excluded can't reject either. Approvals for one effect must
    together weigh `need`; `weights` are by selector, 1 by default. Rejections that together weigh
    `veto` reject; "majority" means as much as `need`, None never. With `stages` each stage opens
    when the one before it is met. `edit="resets"` makes an edit void earlier votes. `delegate` is
    "none", "group" or "anyone". `escalate` lists (seconds, selectors that become eligible then), in
    the business time of the `calendar` if one is named. People vote; with `agents` also agents, or
    exactly the principals of these `kinds`, as in ("human", "service"). The decision may be used
    for `use_within` seconds after it. `decisions` are those that people may take: "edit" approves
    other arguments, and "respond" gives a result in place of the call. For `undo` seconds, at most
    an hour, whoever gave the last vote may take it back. `title` describes the effect in one
    sentence, with the names of arguments in braces: "Refund {amount} to {customer}". `because` says
    why this call needs people, as in "the amount is above 500"; `policy`, which is filled in, names
    the function that returned the rule. `grants` allows decisions on future calls.
    """

    eligible: Sequence[str] = ("anyone",)
    need: int = 1
    weights: Mapping[str, int] = field(default_factory=dict)
    veto: int | Literal["majority"] | None = 1
    stages: Sequence[Rule] = ()
    exclude: Sequence[str] = ()
    agents: bool = False
    auth: Auth = field(default_factory=Auth)
    decisions: Sequence[DecisionKind] = DECISIONS
    edit: Literal["resets", "keeps"] = "resets"
    delegate: Literal["none", "group", "anyone"] = "none"
    escalate: Sequence[tuple[float, Sequence[str]]] = ()
    calendar: str = ""
    use_within: float = DAY
    title: str = ""
    kinds: Sequence[Kind] = ()
    because: str = ""
    policy: Mapping[str, str] = field(default_factory=dict)
    grants: Grants | None = None
    undo: float = 0

    def __post_init__(self) -> None:
        """Check the whole rule at its declaration.

        Raises:
            UsageError: no voter could decide by the rule, or a part has no meaning.
        """
        try:
            _check(self)
        except codec.READ_ERRORS as error:
            raise UsageError(f"a part of the rule has another type: {error}.") from error

    def frozen(self) -> JSONObject:
        """Return the rule as JSON, as it is stored with the question and hashed."""
        return {
            "eligible": [*map(selector, self.eligible)],
            "weights": {selector(entry): weight for entry, weight in self.weights.items()},
            "stages": [stage.frozen() for stage in self.stages],
            "exclude": [*map(selector, self.exclude)],
            "auth": asdict(self.auth),
            "decisions": list(self.decisions),
            "escalate": [
                [seconds, [*map(selector, selectors)]] for seconds, selectors in self.escalate
            ],
            **{
                name: getattr(self, name)
                for name in (
                    "need",
                    "veto",
                    "agents",
                    "edit",
                    "delegate",
                    "calendar",
                    "use_within",
                )
            },
            **codec.without_empty(
                {
                    "title": self.title,
                    "kinds": list(self.kinds),
                    "because": self.because,
                    "policy": dict(self.policy),
                    "grants": self.grants and asdict(self.grants),
                    "undo": self.undo,
                }
            ),
        }

    @classmethod
    def thawed(cls, data: JSONMapping) -> Rule:
        """Read a rule written by `frozen`.

        Raises:
            UsageError: a field is missing, unknown or wrong.
        """
        try:
            return _thawed(codec.dump_json(data))
        except codec.READ_ERRORS as error:
            raise UsageError(f"this isn't a rule for approvals: {error!r}.") from error

    def counts(self, kind: str) -> bool:
        """Return whether principals of a kind may vote. A rule with stages leaves services to each stage."""
        if self.kinds:
            return kind in self.kinds
        return kind == "human" or (self.agents if kind == "agent" else bool(self.stages))

    @property
    def steps(self) -> Sequence[Rule]:
        """The stages, or the rule itself if it has none."""
        return self.stages or (self,)


_stored = ContextVar("stored", default=False)
"""True while a stored rule is read: earlier versions took settings that a declaration refuses now."""


@functools.lru_cache(1_000)
def _thawed(text: bytes) -> Rule:
    """Read a rule from its JSON, once for all questions that have it."""
    fields = pydantic_core.from_json(text)
    fields["auth"] = Auth(**fields["auth"])
    if fields.get("grants"):
        fields["grants"] = Grants(**fields["grants"])
    for name in ("eligible", "exclude", "decisions", "escalate"):
        fields[name] = tuple(fields[name])
    fields["stages"] = [*map(Rule.thawed, fields["stages"])]
    token = _stored.set(True)
    try:
        return Rule(**fields)
    finally:
        _stored.reset(token)


def selector(text: str) -> str:
    """Return a selector in its full form: a plain name is `user:human:|<name>`.

    Raises:
        UsageError: it has no known form.
    """
    form, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text in {"anyone", "requester"} or (form in {"group", "role", "answered"} and name):
        return text
    if form == "user" and name:
        return f"user:{Principal.read(name).key}"
    if text and not colon:
        return f"user:{Principal.read(text).key}"
    raise UsageError(
        f"{text!r:.80} selects no one: write a name, user:<principal>, group:<name>, role:<name> or anyone."
    )


def _check(rule: Rule) -> None:
    if not rule.eligible:
        raise UsageError("a rule needs someone who is eligible.")
    titles.check(rule.title)
    if len(rule.because) > titles.LONGEST or "\n" in rule.because:
        raise UsageError(
            f"because of a rule must be one line of at most {titles.LONGEST} characters, not "
            f"{rule.because!r:.80}."
        )
    _check_selectors(rule)
    _check_numbers(rule)
    if len(rule.stages) > MAX_STAGES:
        raise UsageError(f"a rule may have {MAX_STAGES} stages.")
    for name, values, allowed, minimum in (
        ("decisions", rule.decisions or (), DECISIONS, 1),
        ("kinds", rule.kinds, KINDS, 0),
    ):
        if isinstance(values, str) or len(values) < minimum or not set(values) <= set(allowed):
            raise UsageError(
                f"{name} of a rule must be some of {', '.join(allowed)}, not {values!r:.80}."
            )
    if rule.agents and rule.kinds:
        raise UsageError("a rule has either agents=True, or its kinds: name agents among them.")
    for name, value, choices in (
        ("edit", rule.edit, ("resets", "keeps")),
        ("delegate", rule.delegate, ("none", "group", "anyone")),
        ("agents", rule.agents, (True, False)),
        ("level", rule.auth.level, (0, SERVICE, LOGIN, OWN_KEY)),
    ):
        if value not in choices:
            raise UsageError(f"{name} of a rule must be one of {choices}, not {value!r:.40}.")
    if _stored.get():
        return
    _check_types(rule, rule.auth, rule.grants)
    check_reach(rule)
    rule.frozen()
    if rule.grants:
        bounds = rule.grants.bounds
        if not bounds.keys() <= {"type", "properties", "required"}:
            raise UsageError(
                "bounds of the grants of a rule have only type, properties and required, such as "
                '{"properties": {"amount": {"maximum": 50}}}.'
            )
        validation.check_keywords(bounds, "bounds of the grants of a rule")
    if rule.stages:
        _check_stages(rule)


def _check_types(rule: Rule, auth: Auth, grants: Grants | None) -> None:
    for name, kind, value in (
        ("level", int, auth.level),
        ("uses", int, 1 if grants is None else grants.uses),
        ("because", str, rule.because),
        ("calendar", str, rule.calendar),
        ("acr", str, "none" if auth.acr is None else auth.acr),
    ):
        is_missing = name in {"uses", "acr"} and not value
        if is_missing or not isinstance(value, kind) or isinstance(value, bool):
            raise UsageError(
                f"{name} of a rule can't be {value!r:.40}; its type is {kind.__name__}."
            )


def _check_stages(rule: Rule) -> None:
    """Refuse settings that would be ignored: a reader would take them for conditions."""
    default = Rule().frozen()
    outside, *inside = (
        {name for name, value in step.frozen().items() if value != default.get(name)}
        for step in (rule, *rule.stages)
    )
    if ignored := ", ".join(sorted(outside.intersection(OF_A_STAGE))):
        raise UsageError(
            f"{ignored}: each stage of a rule has its own, and the rule around them has none."
        )
    if ignored := ", ".join(sorted(set().union(*inside) - IN_A_STAGE)):
        raise UsageError(f"{ignored}: a stage has none of its own, only the rule.")
    for stage in rule.stages:
        if {*rule.decisions}.difference(["reject"]).isdisjoint(stage.decisions):
            raise UsageError("a stage takes no decision that its rule takes.")


def _check_selectors(rule: Rule) -> None:
    for name, entries in (
        ("eligible", rule.eligible),
        ("exclude", rule.exclude),
        ("weights", tuple(rule.weights)),
        *(("escalate", names) for _, names in rule.escalate if not _stored.get()),
    ):
        if isinstance(entries, str) or len(entries) > MAX_SELECTORS:
            raise UsageError(
                f"{name} of a rule must be a list of at most {MAX_SELECTORS} selectors."
            )
        forms = [*map(selector, entries)]
        if name != "exclude" and any(
            form.startswith(("requester", "answered:")) for form in forms
        ):
            raise UsageError(
                f"{name} of a rule can't name the requester or who answered a node; exclude can."
            )


def _check_numbers(rule: Rule) -> None:
    for name, number in (
        ("need", rule.need),
        *(("a weight", weight) for weight in rule.weights.values()),
    ):
        if type(number) is not int or not 1 <= number <= MAX_WEIGHT:
            raise UsageError(
                f"{name} of a rule must be a whole number from 1 to {MAX_WEIGHT}, not {number!r:.40}."
            )
    counts = type(rule.veto) is int and rule.veto >= 1
    if not (counts or rule.veto in {None, "majority"}):
        raise UsageError(
            f'veto of a rule must be 1 or more, "majority" or None, not {rule.veto!r:.40}.'
        )
    grants = rule.grants
    for value in (
        rule.undo,
        rule.use_within,
        0 if rule.auth.max_age is None else rule.auth.max_age,
        *(seconds for seconds, _ in rule.escalate),
        *((grants.uses, grants.lifetime, *grants.sums.values()) if grants else ()),
    ):
        if not (_stored.get() or (type(value) in {int, float} and 0 <= value < math.inf)):
            raise UsageError(
                "undo, use_within, max_age, and the numbers of escalate and grants of a rule must be 0 or "
                f"more, not {value!r:.40}."
            )
    if not (0 <= rule.undo <= MAX_UNDO and rule.undo < rule.use_within):
        raise UsageError(
            f"undo of a rule must be from 0 to {MAX_UNDO} seconds and below use_within, not "
            f"{rule.undo!r:.40}."
        )


def people_of(rule: Rule) -> list[str]:
    """Name the people in a rule's selectors: by plain name if no issuer vouches for it, otherwise by key."""
    forms = [selector(entry) for step in rule.steps for entry in step.eligible]
    return list(
        dict.fromkeys(plain_name(form[5:]) for form in forms if form.startswith("user:"))
    )


def is_same_person(key: str, other_key: str, plain_issuer: str) -> bool:
    """Return whether two principals count as one person when one of them is excluded.

    A name without an issuer matches every principal of that name, so that an exclusion fails
    closed. If `plain_issuer` gives the issuer of plain names, it matches only that issuer's
    principal.
    """
    (kind, iss, sub), (other_kind, other_iss, other_sub) = map(_parts, (key, other_key))
    if plain_issuer:
        return (kind, iss or plain_issuer, sub) == (
            other_kind,
            other_iss or plain_issuer,
            other_sub,
        )
    return key == other_key or (sub == other_sub and not (iss and other_iss))


def _parts(key: str) -> tuple[str, str, str]:
    head, _, sub = key.partition("|")
    kind, _, iss = head.partition(":")
    return kind, iss, sub


def excludes_requester(rule: Rule) -> bool:
    """Return whether the requester of the run may not decide."""
    return any("requester" in step.exclude for step in (rule, *rule.steps))


def excluded_answerers(rule: Rule) -> list[str]:
    """List the nodes whose answerers may not decide, as the rule names them."""
    return sorted(
        {
            entry.removeprefix(ANSWERED)
            for step in (rule, *rule.steps)
            for entry in step.exclude
            if entry.startswith(ANSWERED)
        }
    )


def plain_name(key: str) -> str:
    """Return a principal's key as people write it: "ana" for `human:|ana`, unless that would read as another.

    A person named "service:x|bot" keeps the full key: they are not the bot.
    """
    name = key.removeprefix("human:|")
    return key if "|" in name and name.partition(":")[0] in KINDS else name


@immutable
class Approval:
    """Result of `interrupt()` with a rule.

    `decision` is how it was decided, or "expired" if no voter did and the question named an answer
    for that. `response` is true for "approve", the new arguments for "edit", an object with
    `rejected` (the comment of the last person who rejected it) for "reject". `votes` are as they
    are stored, `action` is the preimage of the shown action, `effect` the digest of the decided one.
    """

    decision: str
    response: Any = None
    votes: Sequence[JSONMapping] = ()
    action: JSONMapping | None = None
    effect: str = ""

    @property
    def approved(self) -> bool:
        """Return whether it was approved, as shown or edited."""
        return self.decision in {"approve", "edit"}


# Judging a voter where the vote comes in: by the question as it was frozen, so it costs no request.


@immutable
class Voter:
    """A principal as its door knows it: groups and roles (bare names), and how well its identity is proven.

    `login_age` is in seconds; the issuer stated `acr`. `counter` names the passkey that signed,
    with its signature count. `doubt` says why the proof doesn't hold. `claims` are the selectors of
    all groups and roles that the door states: they exclude even where the door's key can't vouch
    for them.
    """

    principal: Principal
    groups: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    level: int = 0
    login_age: float | None = None
    acr: str | None = None
    doubt: str = ""
    counter: tuple[str, int] | None = None
    claims: frozenset[str] = frozenset()

    @property
    def selectors(self) -> frozenset[str]:
        """Every selector that this voter fits."""
        return frozenset(
            {
                "anyone",
                f"user:{self.principal.key}",
                *(f"group:{name}" for name in self.groups),
                *(f"role:{name}" for name in self.roles),
            }
        )


def weight_of(rule: Rule, selectors: Collection[str]) -> int:
    """Return a vote's weight: the largest of the voter's weights, 1 without any."""
    weights = {selector(entry): weight for entry, weight in rule.weights.items()}
    return max((weights[entry] for entry in selectors if entry in weights), default=1)


def forbidden(
    rule: Rule,
    voter: Voter,
    *,
    requesters: Collection[str] = (),
    answered_by: Mapping[str, frozenset[str]] | None = None,
    escalated_selectors: Sequence[str] = (),
    stage: int = 0,
    plain_issuer: str = "",
) -> str:
    """Return why a voter may not vote in a stage, or "".

    `requesters` and `answered_by` (by node) are keys of principals; `escalated_selectors` have
    become eligible by escalation. `plain_issuer` is the issuer of names without one, see
    `is_same_person`.
    """
    if voter.doubt:
        return voter.doubt
    step = rule.steps[stage]
    selectors = voter.selectors
    key = voter.principal.key
    kind = voter.principal.kind
    if not (rule.counts(kind) and step.counts(kind)):
        return f"{kind}s don't decide this"
    eligible = {*map(selector, [*step.eligible, *escalated_selectors])}
    if not selectors & eligible:
        where = ""
        if voter.level:
            where = "; groups and roles come from the key or the login that signed"
        elif not (voter.groups or voter.roles) and any(
            form.startswith(("group:", "role:")) for form in eligible
        ):
            where = "; no group or role of theirs is known (RUNNER_DIRECTORY)"
        return f"not one of those who may decide this{where}"

    def is_one_of(keys: Iterable[str]) -> bool:
        return any(is_same_person(key, one_key, plain_issuer) for one_key in keys)

    for entry in {*rule.exclude, *step.exclude}:
        form = selector(entry)
        if form == "requester" and is_one_of(requesters):
            return "who asked for this does not decide it"
        node = form.removeprefix(ANSWERED)
        if form != node and is_one_of((answered_by or {}).get(node, ())):
            return f"who answered {node.removeprefix(OUTER)!r} does not decide this"
        if form in selectors | voter.claims or is_one_of([form.removeprefix("user:")]):
            return f"excluded: {entry}"
    return unsure(rule, voter, stage)


def needed(level: int) -> str:
    """Return the level of identity that is missing, and how to provide it."""
    how = (
        "sign with a key of your own: the question's page asks your passkey, other doors take `proof`"
        if level == OWN_KEY
        else "send it by a door that signs for you (RUNNER_SIGNING_KEY), or sign it yourself"
    )
    return f"identity of level {level} is needed ({how})"


def unsure(rule: Rule, voter: Voter, stage: int) -> str:
    """Return why a voter's identity isn't proven well enough for a stage, or ""."""
    if voter.doubt:
        return voter.doubt
    for auth in {rule.auth, rule.steps[stage].auth}:
        if voter.level < auth.level:
            return f"{needed(auth.level)}, this message has {voter.level}"
        if auth.max_age is not None and (
            voter.login_age is None or voter.login_age > auth.max_age
        ):
            return f"the login must be at most {auth.max_age:g} s old"
        if auth.acr is not None and voter.acr != auth.acr:
            return f"the login must be of the class {auth.acr!r}"
    return ""


# Counting votes.


@immutable
class Vote:
    """One principal's decision, for one effect (a digest); `weight` is its weight in its stage."""

    principal: str
    decision: DecisionKind
    effect: str
    weight: int = 1


@immutable
class Tally:
    """Sums of the votes on one question so far.

    `effects` has the weight for each effect in the present stage, `against` the weight of
    rejections. `round` grows when an edit resets earlier votes; `settled` is the effect for which
    earlier stages were met.
    """

    stage: int = 0
    round: int = 0
    effects: Mapping[str, int] = field(default_factory=dict)
    against: int = 0
    settled: str = ""


@immutable
class Count:
    """Outcome of one vote: "counted", "accepted", "duplicate" or "forbidden", and the tally after it.

    If accepted, `decision` is "reject", or how the deciding voter voted for the effect.
    """

    word: Literal["counted", "accepted", "duplicate", "forbidden"]
    tally: Tally
    have: int = 0
    need: int = 0
    decision: DecisionKind | None = None
    effect: str = ""
    detail: str = ""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of a vote's receipt: have, need and against; none if the vote didn't count."""
        if self.word not in {"counted", "accepted"}:
            return ()
        return self.have, self.need, self.tally.against


def take(rule: Rule, tally: Tally, vote: Vote, voted_in: int | None) -> Count:
    """Count one vote. `voted_in` is the round in which its principal voted before, or None."""
    step = rule.steps[tally.stage]
    resets = vote.decision == "edit" and rule.edit == "resets"
    if vote.decision not in rule.decisions or vote.decision not in step.decisions:
        return Count(
            "forbidden",
            tally,
            detail=f"{vote.decision!r} is not a decision that this question takes",
        )
    if voted_in == tally.round and not resets:
        return Count("duplicate", tally, detail="you have voted")
    if vote.decision == "reject":
        return _reject(step, tally, vote)
    if resets and tally.round >= MAX_EDITS:
        return Count("forbidden", tally, detail=f"it was edited {MAX_EDITS} times")
    if resets:
        tally = Tally(round=tally.round + 1)
        step = rule.steps[0]
    if tally.settled not in {"", vote.effect}:
        return Count("forbidden", tally, detail="an earlier stage has approved another value")
    if vote.effect not in tally.effects and len(tally.effects) >= MAX_EFFECTS:
        return Count(
            "forbidden", tally, detail=f"there are votes for {MAX_EFFECTS} other values"
        )
    have = tally.effects.get(vote.effect, 0) + vote.weight
    new_tally = replace(tally, effects={**tally.effects, vote.effect: have})
    if have < step.need:
        return Count("counted", new_tally, have, step.need)
    if tally.stage + 1 < len(rule.steps):
        return Count(
            "counted",
            Tally(tally.stage + 1, tally.round, settled=vote.effect),
            0,
            rule.steps[tally.stage + 1].need,
        )
    return Count("accepted", new_tally, have, step.need, vote.decision, vote.effect)


def _reject(step: Rule, tally: Tally, vote: Vote) -> Count:
    against = tally.against + vote.weight
    new_tally = replace(tally, against=against)
    ends = step.need if step.veto == "majority" else step.veto
    have = max(tally.effects.values(), default=0)
    if ends is None or against < ends:
        return Count("counted", new_tally, have, step.need)
    return Count("accepted", new_tally, have, step.need, "reject")


def without(tally: Tally, vote: Vote) -> Tally:
    """Take a vote of the open stage out of a tally."""
    if vote.decision == "reject":
        return replace(tally, against=tally.against - vote.weight)
    weight_left = tally.effects.get(vote.effect, 0) - vote.weight
    effects = codec.without(tally.effects, vote.effect)
    return replace(
        tally, effects={**effects, vote.effect: weight_left} if weight_left > 0 else effects
    )


@immutable
class VoterFacts:
    """Facts besides the rule that decide who may vote.

    `requesters` are the keys of the run's requester and the people they asked for, `answered` has,
    by node, the keys of everyone who answered it, `escalated` are selectors that have become
    eligible. `lent` is the stage in which the voter may stand in for an eligible person; `gave` is
    true if the voter has delegated. `original` is the effect of approving the action as shown,
    `voted_in` the round in which the voter voted before, for `voted_for`. `plain_issuer` is the
    issuer of names without one, "" if none is set.
    """

    requesters: Collection[str] = ()
    answered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    escalated: Sequence[str] = ()
    lent: int | None = None
    gave: bool = False
    original: str = ""
    voted_in: int | None = None
    voted_for: str = ""
    plain_issuer: str = ""


def cast(
    rule: Rule, tally: Tally, voter: Voter, vote: Vote, facts: VoterFacts
) -> tuple[Count, Vote]:
    """Judge a voter and count their vote; return the vote as it was counted, too.

    An approval of changed arguments is an edit, unless another person has voted for these before;
    then an edit is an approval, unless its voter has voted for others in this round: they change
    their vote by it. An edit that resets votes weighs nothing if its voter may not vote in the
    first stage; a vote in another's place weighs 1.

    The weight of `vote` is ignored: the rule has it. The store counts by this, and a worker does so
    again if the rule asks for signatures; without them the worker only adds up the stored weights,
    by `take`.
    """
    if facts.original and vote.decision in {"approve", "edit"}:
        is_supported = vote.effect in {facts.original, tally.settled, *tally.effects}
        changes = facts.voted_in == tally.round and vote.effect != facts.voted_for
        if not (changes and vote.decision == "edit" and rule.edit == "resets"):
            vote = replace(vote, decision="approve" if is_supported else "edit")
    why = barred(rule, voter, facts, tally.stage)
    if why:
        return Count("forbidden", tally, detail=why), vote
    stage = 0 if vote.decision == "edit" and rule.edit == "resets" else tally.stage
    weight = 0 if stage != tally.stage and barred(rule, voter, facts, stage) else 1
    if weight:
        is_lent = used_selector(rule, voter, facts, stage) == DELEGATED
        weight = weight_of(rule.steps[stage], () if is_lent else voter.selectors)
    vote = replace(vote, principal=voter.principal.key, weight=weight)
    return take(rule, tally, vote, facts.voted_in), vote


def may_stand_in(delegate: str, groups: Collection[str], voter: Voter) -> bool:
    """Return whether a rule's `delegate` lets a voter stand in for a person in these groups."""
    return delegate == "anyone" or (delegate == "group" and not voter.groups.isdisjoint(groups))


def lends(
    only: Collection[str], step: Rule, escalated_selectors: Iterable[str], voter: Voter
) -> bool:
    """Return whether a voter is eligible by one of the selectors `only`, or by any if `only` is empty."""
    eligible = map(selector, (*step.eligible, *escalated_selectors))
    return any(form in voter.selectors and form in (only or [form]) for form in eligible)


def used_selector(rule: Rule, voter: Voter, facts: VoterFacts, stage: int) -> str:
    """Name the selector by which an eligible voter votes: the one with the most weight."""
    step = rule.steps[stage]
    forms = map(selector, (*step.eligible, *facts.escalated))
    return max(
        (form for form in forms if form in voter.selectors),
        key=lambda form: weight_of(step, [form]),
        default=DELEGATED,
    )


def barred(rule: Rule, voter: Voter, facts: VoterFacts, stage: int) -> str:
    """Return why a voter may not vote in a stage, by all known facts; "" if they may."""
    if facts.gave:
        return "you have let another vote in your place"
    escalated_selectors = [*facts.escalated, *(["anyone"] if facts.lent == stage else [])]
    return forbidden(
        rule,
        voter,
        requesters=facts.requesters,
        answered_by=facts.answered,
        escalated_selectors=escalated_selectors,
        stage=stage,
        plain_issuer=facts.plain_issuer,
    )


BY_NAME = VoterFacts(plain_issuer="?")
"""Facts known at a declaration: a name without an issuer isn't the person of a login with that name."""


def check_reach(rule: Rule, facts: VoterFacts = BY_NAME) -> None:
    """Refuse a rule that no voters could meet, as far as it names them; each votes in one stage only."""
    heaviest: dict[str, int] = {}
    for stage, step in enumerate(rule.steps):
        acr = rule.auth.acr or step.auth.acr
        if acr and OWN_KEY in {rule.auth.level, step.auth.level}:
            raise UsageError(
                "auth of a rule can't have an acr at level 3: a key of one's own signs without a login. Ask "
                "for acr at level 2, or for level 3 without it."
            )
        forms = {*map(selector, step.eligible)}
        if rule.escalate or not all(
            form.startswith("user:") for form in forms.union(map(selector, step.weights))
        ):
            heaviest["others"] = 10**9
            continue
        reasons = {}
        for form in forms:
            voter = Voter(Principal.read(form[5:]), level=OWN_KEY, login_age=0, acr=acr)
            reasons[form] = barred(rule, voter, facts, stage)
        weights = {form: weight_of(step, [form]) for form in forms if not reasons[form]}
        most = sum(weights.values())
        heaviest = weights | {
            form: max(weight, weights.get(form, 0)) for form, weight in heaviest.items()
        }
        if most < step.need:
            why = [f"; {plain_name(form[5:])}: {why}" for form, why in reasons.items() if why]
            raise UsageError(
                f"a rule needs {step.need}, but those who may decide weigh {most} together"
                f"{''.join(sorted(why))}."
            )
    total, most = sum(step.need for step in rule.steps), sum(heaviest.values())
    if most < total and rule.delegate == "none":
        raise UsageError(
            f"the stages of a rule need {total} in all, but those who may decide, each in one of them, weigh "
            f"{most} together."
        )
