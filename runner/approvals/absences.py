"""Absences: while one person is away, another may vote in their place, as far as each rule allows.

The absent person leaves one message, signed if there are keys. It changes nothing on a question
until the other person votes there. Then the message counts as a loan of the vote, as after
`delegate`, and a worker that judges the decision reads the message again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from runner.approvals import rules
from runner.approvals.ballots import escalated
from runner.approvals.judgement import level_of
from runner.approvals.rules import Principal, Rule, Voter, selector
from runner.errors import UsageError
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSONObject
from runner.records.interrupts import Interrupt

LONGEST = 366 * 86_400_000
"""Maximum length of an absence in milliseconds."""

MOST_ONLY = 20


@codec.strict
@immutable
class Absence:
    """Absence of a person (`by`), the person who may vote for them (`to`), and its begin and end (ms).

    `only` limits the loan to votes that they have by these selectors, such as "group:finance".
    `groups` and `roles` are theirs as the door knew them; `body` is the message as they signed it.
    """

    by: str
    to: str
    since: int
    until: int
    only: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    body: JSONObject = field(default_factory=dict)
    v: int = 1

    @property
    def person(self) -> Voter:
        """The absent person, as the door knew them."""
        return Voter(Principal.read(self.by), frozenset(self.groups), frozenset(self.roles))

    @property
    def selectors(self) -> list[str]:
        """Selectors by which the absence lends a vote, as lists of questions name them."""
        name = rules.plain_name(self.by)
        forms = {form: form for form in self.person.selectors - {"anyone"}}
        forms[f"user:{self.by}"] = f"user:{name}"
        return [form for full, form in forms.items() if full in (self.only or forms)]


def absence_body(
    tenant: str,
    by: Principal | str,
    to: Principal | str,
    *,
    since: int,
    until: int,
    only: Sequence[str] = (),
) -> JSONObject:
    """Return the message of an absence, as it is signed. Times are ms since 1970.

    Raises:
        UsageError: a name isn't a principal, an entry of `only` isn't a selector, or the times
            can't be used.
    """
    people = [
        name if isinstance(name, Principal) else Principal.read(name) for name in (by, to)
    ]
    if people[0].key == people[1].key:
        raise UsageError("an absence names somebody else, who votes instead.")
    if not 0 <= since < until <= since + LONGEST:
        raise UsageError("an absence ends after it begins, within 366 days.")
    if len(only) > MOST_ONLY:
        raise UsageError(f"an absence names at most {MOST_ONLY} groups or roles.")
    return {
        "v": 2,
        "operation": rules.AWAY,
        "tenant": tenant,
        "by": people[0].key,
        "to": people[1].key,
        "since": since,
        "until": until,
        "only": sorted({selector(form) for form in only}),
    }


def standing_in(
    absences: Iterable[Absence], question: Interrupt, stage: int, now: int
) -> list[Absence]:
    """List the absences that lend a vote on a question now (ms), as far as known before the vote.

    Without a rule, they lend an assignee's answer.
    """
    absences = [absence for absence in absences if absence.since <= now <= absence.until]
    if question.rule is None:
        names = {f"user:{name}" for name in question.assignees}
        return [absence for absence in absences if not names.isdisjoint(absence.selectors)]
    rule = Rule.thawed(question.rule)
    due = escalated(question, now)
    if rule.delegate == "none":
        return []
    return [
        absence
        for absence in absences
        if (absence.body or not level_of(rule))
        and rules.lends(absence.only, rule.steps[stage], due, absence.person)
    ]
