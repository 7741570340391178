"""Votes on questions with a rule: a door judges them by the question alone, before the store counts.

A vote on a question without a rule counts as the corresponding answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from runner.approvals import ballots, freezing
from runner.approvals.absences import LONGEST, Absence, standing_in
from runner.approvals.ballots import Ballot, Operation
from runner.approvals.decision_keys import proofs
from runner.approvals.directory import looked_up
from runner.approvals.judgement import level_of
from runner.approvals.rule_text import instead
from runner.approvals.rules import (
    DECISIONS,
    Principal,
    Rule,
    Voter,
    VoterFacts,
    barred,
    may_stand_in,
    needed,
    people_of,
    plain_name,
)
from runner.approvals.visit_judge import answerers, began_at
from runner.approvals.voting import ApplyOperation, CastVote, rule_of
from runner.errors import (
    ConflictError,
    DirectoryError,
    NotFoundError,
    PayloadTooLarge,
    RunnerError,
    UnstorableError,
    UsageError,
)
from runner.execution.engine import Engine
from runner.records import codec, validation
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.interrupts import Decision, Interrupt, Receipt, ReceiptStatus
from runner.records.run import outermost
from runner.records.validation import mismatch
from runner.store.interface import Reply, Request
from runner.store.receipts import check_answer
from runner.store.requests import ChangeAbsence, new_nonce

Sign = Callable[[JSONObject], JSONObject]
"""Function that returns a message with its proof, or unchanged."""

MOST_CLAIMED = 30 * 86_400
"""Maximum length of a claim in seconds."""


def apply_vote(
    engine: Engine, decision: Decision, question: Interrupt, *, queued: bool = False
) -> Receipt:
    """Count a decision on a question with a rule.

    Raises:
        DirectoryError: the directory can't be asked who the voter is; nothing was counted.
        ConflictError: it is `queued`, and this process does not have the graph. StoreError: the
            store can't be reached.
    """
    if queued:
        _check_served(engine, question)
    rule = Rule.thawed(question.rule or {})
    kind = decision.decision or "respond"
    response = decision.response
    if kind == "approve" and response is None:
        response = True  # as it was shown
    reason = _unfit(decision, kind, response, question, engine.store.max_bytes)
    if reason:
        return decision.receipt(ReceiptStatus.REJECTED, reason)
    voter = decision.decider()
    if voter is None:
        return decision.receipt(ReceiptStatus.FORBIDDEN, "the vote names no one who decides")
    try:
        effect = ballots.effect_of(question, kind, response)
    except UnstorableError as error:
        return decision.receipt(ReceiptStatus.REJECTED, str(error))
    try:
        voter, body = sender_of(engine, voter, decision.body, level_of(rule))
    except DirectoryError:
        raise
    except RunnerError as error:
        return decision.receipt(ReceiptStatus.FORBIDDEN, str(error))
    if decision.digest is None and (queued or level_of(rule)):
        return decision.receipt(
            ReceiptStatus.REJECTED,
            "the vote must name the digest of the question that was shown",
        )
    ballot = Ballot(
        decision.interrupt_id,
        voter,
        kind,  # type: ignore[arg-type] # it is one of DECISIONS, see `_unfit`
        response,
        effect,
        digest=decision.digest,
        comment=decision.comment,
        idempotency_key=decision.idempotency_key,
        answered=answerers(engine.store, rule, question),
        body=body,
        shown_at=decision.shown_at,
        plain_issuer=engine.plain_issuer,
        began=began_at(engine.store, question),
    )
    if (refusal := ballots.refuse_misstated(ballot, question)) is not None:
        return refusal
    if kind in rule.decisions and rule.delegate != "none":
        ballot = _stand_in(engine, question, rule, ballot)
    receipt = _done(engine, CastVote(ballot, new_nonce()))
    if kind == "respond" and receipt.have is not None and (undone := instead(question.action)):
        receipt = replace(receipt, detail=f"for an answer instead: {undone}")
    return freezing.with_freeze(engine, receipt) if engine.freezes.known else receipt


def _stand_in(engine: Engine, question: Interrupt, rule: Rule, ballot: Ballot) -> Ballot:
    """Lend an absent person's vote to the voter that they named, if that voter may not vote otherwise.

    Return the vote with the absences that hold now; earlier ones no longer count.
    """
    voter = ballot.voter
    now = now_of(engine)
    key = voter.principal.key
    absences_of = [
        absence for absence in engine.store.signed(Absence).values() if absence.to == key
    ]
    if not absences_of or not question.is_open:
        return ballot
    standing = engine.store.standings([question.id])[0]
    facts = VoterFacts(
        question.requesters,
        ballot.answered,
        ballots.escalated(question, now),
        plain_issuer=engine.plain_issuer,
    )
    stage = standing.tally.stage
    absences_of = standing_in(absences_of, question, stage, now)
    ballot = replace(ballot, away=frozenset(absence.by for absence in absences_of))
    if (
        key in standing.loans(now)
        or not barred(rule, voter, facts, stage)
        or barred(rule, voter, replace(facts, lent=stage), stage)
    ):
        return ballot
    for absence in absences_of:
        person = absence.person
        if absence.body and level_of(rule):
            keys = engine.decision_keys.read()
            try:
                proof = proofs().verify(absence.body, keys, now=None, effective=now / 1000)
            except proofs().ProofRefused:
                continue
            # The passkey signed the absence once, for all votes that it lends.
            person = replace(proof.voter, counter=None)
        if barred(rule, person, facts, stage) or not may_stand_in(
            rule.delegate, person.groups, voter
        ):
            continue
        operation = Operation(
            question.id,
            person,
            "delegate",
            voter,
            absence.until,
            digest=ballot.digest,
            answered=facts.answered,
            plain_issuer=engine.plain_issuer,
            lent={"body": absence.body, "until": absence.until},
        )
        receipt = _done(engine, ApplyOperation(operation, new_nonce()))
        if receipt.status is ReceiptStatus.ACCEPTED:
            break
    return ballot


def answer_of_absent(engine: Engine, answer: Decision, question: Interrupt | None) -> Decision:
    """Return an answer, marked `instead_of` if its responder stands in for an absent assignee."""
    names = question.assignees if question and question.is_open else ()
    if question is None or not names or answer.responder is None or answer.responder in names:
        return answer
    for absence in standing_in(
        engine.store.signed(Absence).values(), question, 0, now_of(engine)
    ):
        if plain_name(absence.to) == answer.responder:
            return replace(answer, instead_of=absence.by)
    return answer


def lend(
    engine: Engine,
    question: Interrupt,
    to: Principal,
    reason: str,
    *,
    instead_of: Principal | None,
    until: int | None,
    by: str,
) -> Receipt:
    """Let a person vote in an eligible person's place, on an operator's order: see `answers.reassign`."""
    rule = Rule.thawed(question.rule or {})
    if level_of(rule):
        raise UsageError(
            "the rule of this question asks for signatures, so only the person can say who votes instead, by "
            "`delegate`. Otherwise change who is eligible in the graph, deploy it, and withdraw the question "
            "with reask."
        )
    if instead_of is None:
        names = people_of(rule)
        if len(names) != 1:
            raise UsageError(
                f"say whom they replace (instead_of): the rule names {len(names)} people."
            )
        instead_of = Principal.read(names[0])
    operation = Operation(
        question.id,
        _looked_up(engine, Voter(instead_of)),
        "delegate",
        _looked_up(engine, Voter(to)),
        _end(engine, until),
        comment=reason,
        answered=answerers(engine.store, rule, question),
        plain_issuer=engine.plain_issuer,
        by=by,
    )
    return _done(engine, ApplyOperation(operation, new_nonce()))


def _done(engine: Engine, request: Request[Reply]) -> Receipt:
    """Make a request about one question; return its receipt."""
    reply = engine.store.do(request)
    engine.ring(reply)
    return reply.receipts[0]


def _end(engine: Engine, until: int | None) -> int:
    """Return the end of a delegation in ms; 0 for none.

    Raises:
        UsageError: it is over already, or far away.
    """
    if until and not 0 < until - now_of(engine) <= LONGEST:
        raise UsageError(
            "a delegation ends in the future, within 366 days; nothing was changed."
        )
    return until or 0


def begin_absence(engine: Engine, body: JSONMapping, voter: Voter) -> Absence:
    """Store an absence, replacing the person's earlier one; `voter` is as the door knows them.

    Raises:
        UsageError: it is over already, or its signature does not hold.
        DirectoryError: the directory can't be asked who they are; nothing was stored.
    """
    if not 0 < body["until"] - now_of(engine) <= 2 * LONGEST:
        raise UsageError(
            "an absence ends in the future and begins within 366 days; nothing was stored."
        )
    voter, signed_body = sender_of(engine, voter, body, 0)
    if voter.doubt or voter.principal.key != body["by"]:
        raise UsageError(
            f"nothing was stored: {voter.doubt or 'another person has signed it'}."
        )
    absence = Absence(
        str(body["by"]),
        str(body["to"]),
        body["since"],
        body["until"],
        list(body["only"]),
        sorted(voter.groups),
        sorted(voter.roles),
        dict(signed_body) if signed_body.get("proof") else {},
    )
    engine.store.do(ChangeAbsence(absence.by, absence, absence.by))
    return absence


def end_absence(engine: Engine, who: Principal | str, by: str = "") -> None:
    """End a person's absence: from now on it lets nobody vote in their place.

    Raises:
        NotFoundError: they are not away. UsageError: the name isn't a principal.
    """
    key = principal_of(who).key
    if engine.store.do(ChangeAbsence(key, None, by)).word == "unknown":
        raise NotFoundError(f"{key} is not away; nothing was changed.")


def absences(engine: Engine) -> list[Absence]:
    """List the absences that are not over, ordered by their ends."""
    now = now_of(engine)
    return sorted(
        (absence for absence in engine.store.signed(Absence).values() if absence.until >= now),
        key=lambda absence: (absence.until, absence.by),
    )


def lent_selectors(engine: Engine, principal: Principal) -> list[str]:
    """Name the people for whom a person may vote now, with their groups and roles: for lists of questions."""
    now = now_of(engine)
    return [
        form
        for absence in engine.store.signed(Absence).values()
        if absence.to == principal.key and absence.since <= now <= absence.until
        for form in absence.selectors
    ]


def _check_served(engine: Engine, question: Interrupt) -> None:
    """Refuse a queued message about another service's question: that service's directory and keys judge it.

    Raises:
        ConflictError: this process does not have the question's graph; a process that has it takes
            the message.
    """
    graph_id = outermost((question.place or {}).get("graph", ""))
    if graph_id not in engine.registry.names():
        raise ConflictError(
            f"the vote on {question.id} is left to a process that has the graph {graph_id!r}, whose "
            "directory and keys judge it. Name its module in RUNNER_GRAPHS of a worker or keeper."
        )


def apply_operation(
    engine: Engine,
    body: JSONMapping,
    by: Voter | None = None,
    key: str | None = None,
    *,
    queued: bool = False,
) -> Receipt:
    """Apply a person's operation, other than a vote, to a question.

    `body` is the message, see `messages.operation_body`. `by` is the sender according to the door
    itself; `key` is for a message without an idempotency key.

    Raises:
        UsageError: a name isn't a principal, or the time or the comment can't be used.
        DirectoryError: the directory can't be asked who they are; nothing was done.
        ConflictError: it is `queued`, and this process does not have the graph.
    """
    name = body["interrupt_id"]
    kind = body["operation"]
    comment = body.get("comment", "")
    ttl = body.get("ttl") or 0
    validation.checked(comment, "the comment", validation.MAX_REASON)
    if kind == "comment" and not comment:
        raise UsageError("a comment has some text.")
    if kind == "claim" and not 1 <= ttl <= MOST_CLAIMED:
        raise UsageError(f"a claim holds for 1 to {MOST_CLAIMED:,} seconds, not {ttl!r:.40}.")
    if kind == "delegate" and not body.get("to"):
        raise UsageError("a delegation names `to`, who may vote instead.")
    by = by or Voter(Principal.read(body["by"]))
    question = engine.store.interrupts([name])[0]
    answered_by: dict[str, frozenset[str]] = {}
    if queued and question is not None and question.rule is not None:
        _check_served(engine, question)
    delegate = (
        _looked_up(engine, Voter(Principal.read(body["to"]))) if kind == "delegate" else None
    )
    if question is not None:
        rule = rule_of(question)
        by, body = sender_of(engine, by, body, level_of(rule))
        answered_by = answerers(engine.store, rule, question)
        if question.rule is None and question.assignees:
            answer = Decision(name, None, plain_name(by.principal.key))
            answer = answer_of_absent(engine, answer, question)
            if not answer.instead_of and answer.responder not in question.assignees:
                return answer.receipt(
                    ReceiptStatus.FORBIDDEN, "the question is assigned to other people"
                )
    operation = Operation(
        name,
        by,
        kind,
        delegate,
        _end(engine, body.get("until")) if delegate else 0,
        round(ttl * 1000),
        comment=comment,
        answered=answered_by,
        body=body,
        plain_issuer=engine.plain_issuer,
        began=began_at(engine.store, question) if question else 0,
        idempotency_key=body.get("idempotency_key") or key,
        shown_at=body.get("shown_at", 0),
    )
    return _done(engine, ApplyOperation(operation, new_nonce()))


def principal_of(text: Principal | str) -> Principal:
    """Return the principal that a text names; a principal is returned unchanged.

    Raises:
        UsageError: the text doesn't name a principal.
    """
    return text if isinstance(text, Principal) else Principal.read(text)


def sender_of(
    engine: Engine, voter: Voter, body: JSONMapping, level: int
) -> tuple[Voter, JSONMapping]:
    """Return the authenticated sender of a message about a question, and the message to store.

    `voter` is the sender according to the door, which counts if nothing needs proof; a proof that
    does not hold becomes a doubt. For a rule of a `level` above 0 the groups are those that the
    proof vouches for, as seen by the worker that counts again, which asks no directory. At level 0
    a proof is checked if there are keys.

    Raises:
        UsageError: keys or directory can't be read. DirectoryError: the directory could not be
            asked.
    """
    proof = body.get("proof")
    if not level and (proof is None or not engine.decision_keys.read()):
        return _looked_up(engine, voter), codec.without(body, "proof")
    if proof is None:
        return replace(voter, doubt=f"{needed(level)}, and this message has no proof"), body
    module = proofs()
    try:
        voter = module.verify(
            body, engine.decision_keys.read(), now=now_of(engine) / 1000
        ).voter
    except module.ProofRefused as error:
        return replace(voter, doubt=str(error)), codec.without(body, "proof")
    return voter if level else _looked_up(engine, voter), body


def now_of(engine: Engine) -> int:
    """Return the time in ms since 1970, from the store's clock if it has one."""
    clock = engine.store.clock
    return clock() if clock else time.time_ns() // 1_000_000


def _looked_up(engine: Engine, voter: Voter) -> Voter:
    if engine.directory is None:
        from runner.settings import Settings  # noqa: PLC0415 - costs most of the start-up of a program

        engine.directory = Settings().directory
    return looked_up(voter, engine.directory)


def signed(engine: Engine, body: JSONObject, principal: Principal) -> JSONObject:
    """Sign a message as this process, with the groups from its directory, if it has a signing key.

    Only for callers that know the principal themselves: a message from a queue is never signed
    here.

    Raises:
        UsageError: the key can't be read. DirectoryError: the directory could not be asked.
    """
    key = engine.signing_key
    if key is None:
        return body
    voter = _looked_up(engine, Voter(principal))
    login: JSONObject = {"groups": sorted(voter.groups), "roles": sorted(voter.roles)}
    if engine.signing_level is not None:
        login["level"] = engine.signing_level
    return key.sign(body, now=now_of(engine) / 1000, login=login)


def proven(
    engine: Engine,
    body: JSONObject,
    principal: Principal,
    proof: Mapping[str, object] | None,
) -> JSONObject:
    """Return a message with the proof that came with it; without one this process signs it, if it can.

    Raises:
        UsageError: the key can't be read. DirectoryError: the directory could not be asked.
    """
    if proof is None:
        return signed(engine, body, principal)
    return {**body, "proof": codec.pack(proof, "proof")}


def requester_of(engine: Engine, body: JSONMapping) -> JSONObject:
    """Return a run's requester as it is stored: the principal, for whom, and the message if it is signed.

    A process without keys doesn't check the proof: the worker that needs it does.

    Raises:
        UsageError: a name isn't a principal, or the proof does not hold.
    """
    principal = Principal.read(str(body["requester"])).key
    requester: JSONObject = {"principal": principal}
    if body.get("on_behalf_of"):
        requester["on_behalf_of"] = [Principal.read(name).key for name in body["on_behalf_of"]]
    if body.get("proof") is None:
        return requester
    keys = engine.decision_keys.read()
    try:
        if keys:
            proofs().verify(body, keys, now=now_of(engine) / 1000, member="requester")
    except UsageError:
        raise
    except RunnerError as error:
        raise UsageError(f"nothing was started for {principal}: {error}") from error
    return {
        **requester,
        "body": codec.without(body, "reply_to"),
    }


def inherited(
    engine: Engine,
    run_id: str,
    by: Principal | str | None,
    body: JSONObject,
    sign: Sign | None,
) -> JSONObject | None:
    """Return the requester of a run made from another one `by` a person; None if nobody is known.

    `body` describes the operation. Everyone who asked for the other run also asks for this one.
    Without `by` the requester is marked as `inherited`: a rule that excludes the requester does not
    accept that.

    Raises:
        UsageError: `by` isn't a principal.
    """
    source = engine.store.requester(run_id) or {}
    people = [
        name for name in (source.get("principal"), *source.get("on_behalf_of", ())) if name
    ]
    if by is None:
        # The signature covers only the start of the other run.
        record = codec.without(source, "body")
        return {**record, "inherited": True} if record else None
    principal = principal_of(by)
    behalf = [name for name in people if name != principal.key]
    body = {
        "v": 2,
        **body,
        "requester": principal.key,
        **({"on_behalf_of": behalf} if behalf else {}),
    }
    return requester_of(engine, sign(body) if sign else signed(engine, body, principal))


def _unfit(
    decision: Decision, kind: str, response: JSON, question: Interrupt, max_bytes: int
) -> str:
    """Return why no one could cast this vote, or ""."""
    if question.action is not None and not decision.decision and question.is_open:
        return (
            "the question shows a call, so it is decided, by approve, edit or reject; the decision respond "
            f"answers instead, and then {instead(question.action)}"
        )
    if kind not in DECISIONS:
        return f"the decision must be one of {', '.join(DECISIONS)}"
    if problem := decision.problem("idempotency_key", "digest"):
        return problem
    if problem := validation.problem(decision.comment, validation.MAX_REASON):
        return f"the comment {problem}"
    if kind == "reject":
        return "" if response is None else "a rejection has no response; say why in the comment"
    if response is None:
        return "None (null) is no answer"
    try:
        check_answer(response, max_bytes)
    except PayloadTooLarge as error:
        return str(error)
    return unfit_response(kind, response, question) if question.is_open else ""


def unfit_response(decision: str, response: JSON, question: Interrupt) -> str:
    """Compare a response with the schema: the schema of the arguments, if the question shows a call."""
    edits = (
        question.action is not None and decision in {"approve", "edit"} and response is not True
    )
    if decision == "edit" and question.action is None:
        return "the question shows no call whose arguments could be edited; respond instead"
    if edits and not isinstance(response, dict):
        return "an edit is the whole new arguments, as an object"
    has_schema = edits or question.action is None
    if not has_schema:
        return ""
    action = question.action or {}
    if edits and action.get("kind") == "node":
        return "a node runs on what it gets: approve it as it is shown, or reject it"
    if question.response_schema is None:
        return _other_names(action.get("args", {}), response) if edits else ""
    return mismatch(question.response_schema, codec.plain(codec.unpack(response))) or ""


def _other_names(args: JSONMapping, edited_args: JSONMapping) -> str:
    """Say which names an edit adds to or lacks from the shown call, for a question without a schema."""
    unknown = sorted(edited_args.keys() - args.keys())
    missing = sorted(args.keys() - edited_args.keys())
    if not unknown and not missing:
        return ""
    has = f"has {unknown}, which the call that was shown has not" if unknown else ""
    lacks = f"lacks {missing}" if missing else ""
    return f"an edit is the whole new arguments: this one {' and '.join(filter(None, (has, lacks)))}"
