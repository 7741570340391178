"""Questions as doors ask them: finding those a caller may decide, their text, and their pages."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from textwrap import indent
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from runner.approvals.directory import owner_of
from runner.approvals.judgement import level_of
from runner.approvals.rule_text import instead
from runner.approvals.rules import LOGIN, SERVICE, Principal, Rule, plain_name
from runner.errors import UsageError, needs_extra
from runner.operations.decided import VERBS
from runner.operations.questions import QuestionView, read_question
from runner.operations.views import RunView
from runner.records.interrupts import ReceiptStatus
from runner.records.json_form import pretty, stamp
from runner.records.listings import InterruptQuery, Page
from runner.records.shown_text import shown
from runner.settings import Settings

with needs_extra("server", "the door"):
    from runner.server.access import Permission, Person
    from runner.server.deciding import own_page, why_barred
    from runner.server.problems import Problem
    from runner.server.services import Services

MOST_SHOWN = 8000
"""Maximum characters of a question in a client; a longer one becomes a link to its page."""

MOST_ASKED = 20
"""Maximum questions of one run asked at the same time; further ones follow after the answers."""

GOOD = {ReceiptStatus.ACCEPTED, ReceiptStatus.COUNTED}


def permit(person: Person, permission: Permission, graph: str) -> Person:
    """Return a person with their roles for a graph; "" stands for all graphs.

    Raises:
        Problem: they lack the permission.
    """
    scoped = person.within(graph)
    if not scoped.may(permission):
        raise Problem(
            403, f"This needs a role that may {permission}, for the graph {graph!r:.80}."
        )
    return scoped


def check_settings(settings: Settings, names: Sequence[str], door: str, page: str) -> None:
    """Raise a `UsageError` if a setting that a door needs is missing."""
    if missing := [f"RUNNER_{name.upper()}" for name in names if not getattr(settings, name)]:
        raise UsageError(f"{door} needs {', '.join(missing)}; see {page}.")


def person_of(services: Services, account: Principal, email: str) -> Person | None:
    """Return the owner of an outside account or of an address; None if the directory doesn't know them."""
    voter = owner_of(account, email, services.settings.directory)
    if voter is None:
        return None
    return Person(voter.principal, voter.roles, voter.groups, SERVICE)


def waiting(services: Services, person: Person, limit: int) -> Page[QuestionView]:
    """List the open questions that wait for a person, by urgency: `limit` for each graph of their roles."""
    query = InterruptQuery(urgent=True)
    graphs = [""] if person.may("decide") else person.graphs
    pages = [
        own_page(
            services, person.within(graph), "mine", replace(query, graph=graph or None), limit
        )
        for graph in graphs
    ]
    next_page = max((page.next or "" for page in pages), default="")
    return Page(sorted(chain(*pages), key=query.position), next_page or None)


def waiting_text(questions: Page[QuestionView], zone: str = "UTC") -> str:
    """Say how many questions wait for a person, and until when the first of them can be decided."""
    many = f"{len(questions)}{' or more' if questions.next else ''} questions wait for you"
    text = ("Nothing waits for you", "1 question waits for you", many)[min(len(questions), 2)]
    expires_at = questions[0].expires_at if questions.items else 0
    return f"{text}; the first is due at {local_time(expires_at, zone)}" if expires_at else text


def local_time(milliseconds: int, zone: str) -> str:
    """Return a time as people in a zone read it, with the zone's name."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M %Z}"


def mac_of(settings: Settings, door: str, text: str) -> str:
    """Return the code that proves that this installation wrote a text for a door."""
    key = hashlib.sha256(f"{door}\n{settings.server_secret}".encode()).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def decider(
    services: Services, question: QuestionView, account: Principal, email: str, kind: str
) -> Person:
    """Return the owner of an outside account or of an address, who may decide a question.

    Raises:
        Problem: the directory doesn't know the owner, or they may not decide.
    """
    person = person_of(services, account, email)
    if person is None:
        raise Problem(403, f"The directory does not know whose {kind} this is.")
    person = permit(person, "decide", services.graph_of(question.id))
    if why := why_barred(services, person, question):
        raise Problem(403, f"You may not decide this: {why}.")
    return person


def deciders(question: QuestionView) -> list[str]:
    """Return selectors for everyone who might decide a question, now or at a later stage."""
    entries = [f"user:{name}" for name in question.assignees] or ["anyone"]
    if question.rule is not None:
        rule = Rule.thawed(question.rule)
        entries = [name for step in rule.steps for name in step.eligible]
        entries += [name for _, names in rule.escalate for name in names]
    entries += [f"user:{key}" for key in question.delegated]
    entries += [f"user:{away.to}" for away in question.away]
    return list(
        dict.fromkeys(
            f"user:{plain_name(name[5:])}" if name.startswith("user:") else name
            for name in entries
        )
    )


def has_voted(person: Person, question: QuestionView) -> bool:
    """Return whether a person has a vote on a question; a vote that an edit voided doesn't count."""
    return any(vote.by == person.principal.key and not vote.is_void for vote in question.votes)


def open_questions(
    services: Services, person: Person, view: RunView
) -> Iterator[tuple[QuestionView, bool]]:
    """Yield a run's open questions, each with whether the person may decide and hasn't voted."""
    ids = [question.id for question in view.interrupts]
    interrupts = [item for item in services.store.interrupts(ids) if item is not None]
    for interrupt in interrupts:
        if not interrupt.is_open:
            continue
        question = read_question(services.store, interrupt)
        may_decide = person.may("decide") and not why_barred(services, person, question)
        yield question, may_decide and not has_voted(person, question)


def page_of(address: str, question_id: str) -> str:
    """Return the address of a question's page on the server at `address`, or "" if that is ""."""
    return f"{address.rstrip('/')}/q/{quote(question_id)}" if address else ""


def needs_page(question: QuestionView) -> bool:
    """Return whether a question can be decided only on its page.

    This is so if it is long, if people have changed it so that several versions can be approved, if its
    decision can be taken back, or if it is of high risk or its rule requires a login.
    """
    if len(message(question)) > MOST_SHOWN or any(_versions(question)) or question.undo:
        return True
    if question.rule is None:
        return False
    rule = Rule.thawed(question.rule)
    auths = [rule.auth, *(step.auth for step in rule.steps)]
    needs_login = level_of(rule) >= LOGIN or any(auth.acr or auth.max_age for auth in auths)
    return question.risk == "high" or needs_login


def message(question: QuestionView) -> str:
    """Return everything that a person decides on, with nothing cut or hidden."""
    lines = [question.title]
    if question.reason is not None:
        reason = pretty(question.reason)
        # With a rule it is quoted, so that no line of an agent looks like the call or the votes.
        lines.append(reason if question.rule is None else indent(reason, "> ", lambda _: True))
    if question.action:
        lines.append(f"{question.action['tool']} {pretty(question.action['args'])}")
    lines += _versions(question)
    if question.rule_words:
        lines.append(f"{question.rule_words}. So far: {question.have} of {question.need}.")
    if undo := question.undo:
        verb = VERBS[undo.decision].capitalize()
        who = plain_name(undo.by)
        until = stamp(undo.ends_at)
        lines.append(f"{verb} by {who}, who can take it back on its page until {until}.")
    if question.expires_at:
        lines.append(f"Expires at {stamp(question.expires_at)}.")
    return shown("\n\n".join(lines))


def _versions(question: QuestionView) -> Iterator[str]:
    """Yield each version of a question made by people: its voters, votes and changes."""
    for variant in question.variants:
        if not variant.is_proposed:
            people = ", ".join(map(plain_name, variant.voters))
            is_edit = variant.decision == "edit"
            head = f"{'Changed' if is_edit else 'Answered'} by {people}, {variant.have} of {question.need}"
            if question.action and not is_edit:
                head += f", instead: {instead(question.action)}"
            yield "\n".join(
                [
                    f"{head}:",
                    *(
                        f"> {change.name}: {_line(change.before)} → {_line(change.after)}"
                        for change in variant.changes
                    ),
                    *([] if is_edit else [f"> {_line(variant.response)}"]),
                ]
            )


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def page_message(question: QuestionView) -> str:
    """Return a text with a question's versions that sends people to its page."""
    versions = shown("\n\n".join(_versions(question)))
    texts = [
        f"{shown(question.title):.1000}",
        versions if len(versions) <= MOST_SHOWN else "",
        "This is decided on its page.",
    ]
    return "\n\n".join(filter(None, texts))


def failure(view: RunView) -> str:
    """Describe the end of a run that did not complete, with its failed nodes."""
    faults = [f"{node.id}: {node.error.summary}" for node in view.nodes if node.error]
    return "; ".join([f"Run {view.run_id} {view.status}", view.reason, *faults])
