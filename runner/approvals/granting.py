"""Making grants, voting for them, and revoking them; the worker judges them by `grants.py`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Annotated, Literal

from runner.approvals.grants import (
    GRANT,
    KEPT_MS,
    Grant,
    GrantRecord,
    check,
    counted,
    is_over,
    voter_of,
)
from runner.approvals.judgement import level_of
from runner.approvals.rules import Count, Grants, Principal, Rule, Voter
from runner.approvals.visit_judge import answerers
from runner.approvals.votes import now_of, sender_of
from runner.definition.registry import tools_of
from runner.errors import ConflictError, GrantRefused, NotFoundError
from runner.execution.engine import Engine
from runner.immutable import immutable
from runner.records import validation
from runner.records.codec import JSONMapping, JSONObject, without
from runner.records.interrupts import Interrupt, Receipt, ReceiptStatus
from runner.records.messages import vote_body
from runner.records.payloads import Payload, without_reason
from runner.records.run import outermost
from runner.store.requests import ChangeGrant


@immutable
class GrantVote:
    """A vote for a grant: the voter, approve or reject, the time (ms since 1970), and a comment."""

    by: str
    decision: str
    at: int
    comment: Payload[str] = ""


GrantState = Literal["waits", "valid", "rejected", "used up", "over", "revoked"]


@immutable
class GrantView:
    """A grant as doors show it, with its uses so far.

    `state` is "waits" (for votes), "valid", "rejected", "used up", "over" or "revoked". Times are
    ms since 1970. `have` is the weight of its votes, `need` the weight it needs. See `Grant` for
    the rest.
    """

    id: str
    state: GrantState
    tool: str
    kind: Literal["tool", "function", "node"]
    graphs: list[str]
    bounds: Payload[JSONObject | None]
    uses: int
    used: int
    sums: Payload[dict[str, float]]
    summed: Payload[dict[str, str]]
    until: int
    made_at: int
    requesters: list[str]
    question: str
    digest: str
    have: int
    need: int
    votes: list[GrantVote] = field(default_factory=list)
    revoked: Annotated[JSONObject | None, without_reason("revoked")] = None


def view_of(engine: Engine, record: GrantRecord) -> GrantView:
    """Return a grant in its current state, as doors show it."""
    grant = record.grant
    count = _count(record)
    state: GrantState = "waits"
    if record.revoked is not None:
        state = "revoked"
    elif count.decision == "reject":
        state = "rejected"
    elif _is_over(engine, record):
        state = "over"
    elif record.used >= grant.uses:
        state = "used up"
    elif count.word == "accepted":
        state = "valid"
    shown = without(asdict(grant), "v", "tenant")
    votes = [
        GrantVote(vote["by"], vote["decision"], vote["at"], vote["comment"])
        for vote in record.votes
    ]
    return GrantView(
        **shown,
        state=state,
        used=record.used,
        summed=record.summed,
        digest=grant.digest(),
        have=count.have,
        need=count.need,
        votes=votes,
        revoked=record.revoked,
    )


def list_grants(engine: Engine) -> list[GrantView]:
    """List all grants, the newest first."""
    records = sorted(
        engine.store.signed(GrantRecord).values(), key=lambda each: -each.grant.made_at
    )
    return [view_of(engine, record) for record in records]


def propose(
    engine: Engine,
    interrupt_id: str,
    *,
    bounds: JSONMapping,
    uses: int = 1,
    sums: Mapping[str, float] | None = None,
    lifetime: float | None = None,
    requesters: Sequence[str] = (),
    graphs: Sequence[str] = (),
) -> GrantRecord:
    """Return a grant for calls like the one that a question shows; nothing is stored.

    `lifetime` is in seconds and defaults to the longest that the rule allows; `graphs` defaults to
    the graph of the question.

    Raises:
        NotFoundError: no such question was asked. UsageError: a requester isn't a principal.
        GrantRefused: the grant is not possible; the error names the field.
    """
    (question,) = engine.store.interrupts([interrupt_id])
    if question is None:
        raise NotFoundError(f"no question {interrupt_id!r:.120} was asked.")
    if question.action is None or question.rule is None:
        raise GrantRefused("question", "shows no call that a rule decides")
    rule = Rule.thawed(question.rule)
    now = now_of(engine)
    names = [*graphs] or [outermost((question.place or {}).get("graph", ""))]
    longest = (rule.grants or Grants()).lifetime if lifetime is None else lifetime
    action: JSONMapping = question.action
    grant = Grant(
        secrets.token_hex(8),
        action["tenant"],
        action["kind"],
        action["tool"],
        sorted({*names}),
        {"properties": {}, **bounds},
        uses,
        dict(sums or {}),
        now,
        now + round(longest * 1000),
        sorted({Principal.read(name).key for name in requesters}),
        interrupt_id,
    )
    check(grant, rule, _schema(question), now)
    _check_graphs(engine, grant)
    return GrantRecord(grant, question.rule)


def _schema(question: Interrupt) -> JSONMapping:
    """Return the schema of the arguments; without one, a schema with the names that the question shows."""
    action: JSONMapping = question.action or {}
    return question.response_schema or {
        "properties": {
            name: {"type": "number"} if type(value) in {int, float} else {}
            for name, value in action["args"].items()
        }
    }


def _check_graphs(engine: Engine, grant: Grant) -> None:
    graph_names = {outermost(name) for name in engine.store.graphs()}
    for name in grant.graphs:
        if name not in graph_names:
            raise GrantRefused("graphs", f"there is no graph {name!r:.80}")
        nodes = [
            node
            for plan in engine.registry.everything()
            if outermost(plan.definition.id) == name
            for node in plan.definition.nodes.values()
        ]
        tools = {tool.tool_name for node in nodes for tool in tools_of(node.executor)}
        # Only the framework knows the tools of its agent.
        frameworks = any(
            not any(tools_of(node.executor)) and node.kind not in {"function", "graph"}
            for node in nodes
        )
        if nodes and not frameworks and grant.tool not in tools | {node.id for node in nodes}:
            raise GrantRefused(
                "graphs", f"no agent or node of the graph {name!r} has {grant.tool!r}"
            )


def message(record: GrantRecord, decision: str, by: Principal, comment: str = "") -> JSONObject:
    """Return the message of a vote for a grant, as it is signed."""
    return vote_body(
        GRANT + record.grant.id, decision, by, digest=record.grant.digest(), comment=comment
    )


def vote(engine: Engine, record: GrantRecord, body: JSONMapping, voter: Voter) -> Receipt:
    """Count a vote for a grant, and store the grant with its first vote; `voter` is as the door knows them.

    The receipt is accepted once enough people have granted it, or a rejection ends it.

    Raises:
        DirectoryError: the directory can't be asked who the voter is; nothing was counted.
    """
    grant, rule = record.grant, Rule.thawed(record.rule)
    (question,) = engine.store.interrupts([grant.question])
    comment = validation.checked(
        body.get("comment") or "", "the comment", validation.MAX_REASON
    )
    voter, signed_body = sender_of(engine, voter, body, level_of(rule))
    vote_record: JSONObject = {
        "by": voter.principal.key,
        "decision": body["decision"],
        "at": now_of(engine),
        "comment": comment,
        "level": voter.level,
        "groups": sorted(voter.groups),
        "roles": sorted(voter.roles),
        "login_age": voter.login_age,
        "acr": voter.acr,
        "body": dict(signed_body) if signed_body.get("proof") else {},
    }
    receipt = _receipt(grant, ReceiptStatus.FORBIDDEN, voter.doubt)

    def change(stored_record: GrantRecord | None) -> GrantRecord | None:
        nonlocal receipt
        current = stored_record or record
        if voter.doubt:
            return current  # the grant waits for the voter's signature
        count = _count(current)
        was = ""
        if current.revoked is not None or _is_over(engine, current):
            was = "revoked, or is over"
        elif any(entry["body"] == vote_record["body"] != {} for entry in current.votes):
            receipt = _receipt(grant, count.word, count.detail, count.numbers)
            return None
        elif count.word == "accepted":
            was = "decided: revoke it to end it"
        if was:
            receipt = _receipt(grant, ReceiptStatus.SUPERSEDED, f"the grant was {was}")
            return None
        count = counted(
            rule,
            grant,
            [*_voters(current), (voter, body["decision"])],
            question.requesters if question else (),
            answerers(engine.store, rule, question) if question else {},
        )
        receipt = _receipt(grant, count.word, count.detail, count.numbers)
        if not count.numbers:
            return None
        return replace(current, votes=[*current.votes, vote_record])

    if not voter.doubt or not record.votes:
        ended_ids = [
            name
            for name, entry in engine.store.signed(GrantRecord).items()
            if entry.grant.until + KEPT_MS < vote_record["at"]
        ]
        engine.store.do(
            ChangeGrant(
                grant.id,
                change,
                "grant.voted",
                voter.principal.key,
                comment,
                ended_ids,
            )
        )
    return receipt


def find(engine: Engine, grant_id: str) -> GrantRecord:
    """Return a grant.

    Raises:
        NotFoundError: no grant has this id.
    """
    record = engine.store.signed(GrantRecord).get(grant_id.removeprefix(GRANT))
    if record is None:
        raise NotFoundError(f"there is no grant {grant_id!r:.80}.")
    return record


def revoke(engine: Engine, grant_id: str, reason: str, by: str = "") -> GrantView:
    """Revoke a grant: from now on it allows no new call on any worker.

    Raises:
        NotFoundError: no grant has this id. UsageError: the reason is missing or too long.
        ConflictError: it was revoked before.
    """
    validation.reason(reason)
    record = find(engine, grant_id)
    at = now_of(engine)

    def change(stored_record: GrantRecord | None) -> GrantRecord | None:
        if stored_record is None or stored_record.revoked is not None:
            return None
        return replace(stored_record, revoked={"by": by, "at": at, "reason": reason})

    if (
        engine.store.do(ChangeGrant(record.grant.id, change, "grant.revoked", by, reason)).word
        != "changed"
    ):
        raise ConflictError(
            f"the grant {record.grant.id} was revoked before; nothing was changed."
        )
    return view_of(engine, find(engine, grant_id))


def _is_over(engine: Engine, record: GrantRecord) -> bool:
    return is_over(record, engine.decision_keys.read(), now_of(engine))


def _count(record: GrantRecord) -> Count:
    return counted(Rule.thawed(record.rule), record.grant, _voters(record))


def _voters(record: GrantRecord) -> list[tuple[Voter, str]]:
    return [(voter_of(vote), vote["decision"]) for vote in record.votes]


def _receipt(grant: Grant, status: str, detail: str, numbers: Sequence[int] = ()) -> Receipt:
    return Receipt(ReceiptStatus(status), GRANT + grant.id, None, detail, *numbers)
