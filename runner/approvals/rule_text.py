"""Approval rules in words, for the people who decide by them: every door shows the same sentence."""

from __future__ import annotations

from collections.abc import Sequence

from runner.approvals.rules import (
    ANSWERED,
    DELEGATED,
    KINDS,
    OUTER,
    Principal,
    Rule,
    plain_name,
    selector,
)
from runner.records.codec import JSONMapping
from runner.records.shown_text import shown

NUMBERS = (
    "none",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
)

LEVELS = (
    "",
    "named by a service that signs",
    "who has logged in",
    "who signs with a key of their own",
)


def in_words(
    rule: Rule,
    requester: str = "",
    on_behalf_of: Sequence[str] = (),
    *,
    is_bound: bool = True,
) -> str:
    """Describe who may decide by a rule, how many are needed, and when it ends.

    `requester` is the key of the principal who asked for the run, `on_behalf_of` are the keys of
    the people for whom they asked. Without `is_bound` the question shows no call, so the code may
    do anything with the answer, and approvers are warned.
    """
    head = ", then ".join(_step(step, rule) for step in rule.steps)
    phrases = [
        head,
        *_excluded(rule, requester, on_behalf_of),
        *_ends(rule),
        *{
            "group": ["may be delegated within the group"],
            "anyone": ["may be delegated to anyone"],
        }.get(rule.delegate, ()),
        *_escalations(rule),
        *([f"a decision can be taken back for {_span(rule.undo)}"] if rule.undo else []),
        *([f"asked because {shown(rule.because)}"] if rule.because else []),
        *([] if is_bound else ["no call is bound to this answer"]),
    ]
    return "; ".join(phrases)


def who(form: str) -> str:
    """Name a selector for people: `user:human:|ana` is ana, `group:finance` is group finance."""
    if form == DELEGATED:
        return "a delegate"
    form = selector(form)
    kind, _, name = form.partition(":")
    if kind == "user":
        return person(name)
    return f"{kind} {name}" if name else form


def deciders(rule: JSONMapping | None, assignees: Sequence[str]) -> str:
    """Name the people who may decide a question, by its stored rule or its assignees."""
    steps = (rule["stages"] or (rule,)) if rule is not None else ()
    names = [who(form) for step in steps for form in step["eligible"]]
    return ", ".join(dict.fromkeys([*names, *assignees])) or "anyone"


UNDONE = {"function": "the action is not approved", "node": "the node does not run"}
"""Consequence for the action, by its kind, of an answer instead of a decision; a tool call isn't made."""


def instead(action: JSONMapping | None) -> str:
    """Say what an answer instead of a decision means for the action; "" if the question shows no action."""
    return "" if action is None else UNDONE.get(str(action["kind"]), "the call is not made")


def person(key: str) -> str:
    """Name a principal by its key: with its issuer, and its kind unless it is a human."""
    principal = Principal.read(key)
    name = plain_name(key)
    if name != key:
        return name
    kind = "" if principal.kind == "human" else f"{principal.kind} "
    return f"{kind}{principal.sub}" + (f" of {principal.iss}" if principal.iss else "")


def _step(step: Rule, rule: Rule) -> str:
    people = _listed([who(form) for form in step.eligible], "or")
    number = NUMBERS[step.need] if step.need < len(NUMBERS) else str(step.need)
    text = f"{number} of {people}"
    heavier = [
        f"{who(form)} counts {weight}" for form, weight in step.weights.items() if weight > 1
    ]
    text += f" ({', '.join(heavier)})" if heavier else ""
    everywhere = _barred_kinds(rule, rule.steps)
    kinds = _programs([kind for kind in _barred_kinds(rule, [step]) if kind not in everywhere])
    text += f", not {_listed(kinds, 'nor')}" if kinds else ""
    level = max(step.auth.level, rule.auth.level)
    text += f", each {LEVELS[level]}" if level else ""
    age = step.auth.max_age or rule.auth.max_age
    return text + (f", at most {_span(age)} ago" if age else "")


def _excluded(rule: Rule, requester: str, on_behalf_of: Sequence[str]) -> list[str]:
    forms = list(dict.fromkeys(entry for step in (rule, *rule.steps) for entry in step.exclude))
    names = []
    for form in map(selector, forms):
        node = form.removeprefix(ANSWERED)
        if form == "requester":
            names.append(
                f"{person(requester)} who asked for it" if requester else "who asked for it"
            )
            names += [f"{person(key)} for whom that was" for key in on_behalf_of]
        elif node != form:
            names.append(f"who answered {node.removeprefix(OUTER)}")
        else:
            names.append(who(form))
    kinds = _programs(_barred_kinds(rule, rule.steps))
    return [f"not {_listed([*names, *kinds], 'nor')}"] if names or kinds else []


def _barred_kinds(rule: Rule, steps: Sequence[Rule]) -> list[str]:
    """Name the kinds that may not vote in any of these stages of a rule."""
    return [
        f"{kind}s"
        for kind in KINDS
        if not any(rule.counts(kind) and step.counts(kind) for step in steps)
    ]


def _programs(kinds: list[str]) -> list[str]:
    """Name services and agents together as programs."""
    return ["programs"] if kinds == ["services", "agents"] else kinds


def _ends(rule: Rule) -> list[str]:
    phrases = []
    vetoes = {step.veto for step in rule.steps}
    if vetoes == {"majority"}:
        phrases.append("as many rejections end it")
    elif vetoes == {None}:
        phrases.append("rejections are only counted")
    elif vetoes != {1}:
        phrases.append("rejections end it: " + ", ".join(str(step.veto) for step in rule.steps))
    else:
        phrases.append("one rejection ends it")
    if len(rule.decisions) < 4:
        phrases.append(f"decisions: {', '.join(rule.decisions)}")
    if (
        "edit" in rule.decisions
        and rule.edit == "resets"
        and any(step.need > 1 for step in rule.steps)
    ):
        phrases.append("an edit resets earlier votes")
    return phrases


def _escalations(rule: Rule) -> list[str]:
    hours = f" of calendar {rule.calendar}" if rule.calendar else ""
    return [
        f"after {_span(seconds)}{hours} also {_listed([who(form) for form in selectors], 'or')}"
        for seconds, selectors in rule.escalate
    ]


def _listed(names: Sequence[str], conjunction: str) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {conjunction} {names[-1]}"


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size and seconds % size == 0:
            number = round(seconds / size)
            return f"{number} {unit}{'s' if number > 1 else ''}"
    return f"{seconds:g} seconds"
