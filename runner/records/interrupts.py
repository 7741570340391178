"""The question, the answer and the receipt, and the names that tie them together.

An interrupt's id is made from where it was asked, never from a counter or a clock: the same
question of the same visit has the same id in every process, and no other question has it. The
expiry and the reminders of an unanswered question are worked out from the question alone, so that
the store's scripts need no user code when the time comes: see docs/decisions/0011-expiry.md.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from itertools import pairwise
from typing import Annotated, Any, Protocol, TypedDict, TypeVar, Unpack

import pydantic

from runner.approvals import digests, titles
from runner.approvals.digests import Action
from runner.approvals.policies import CallSource
from runner.approvals.rules import Approval, Principal, Rule, Voter, people_of, plain_name
from runner.errors import InterruptExpired, InterruptWithdrawn, ResponseError, UsageError
from runner.immutable import immutable
from runner.records import codec, failures, validation
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.payloads import Payload, without_reason
from runner.records.run import VisitEntry

SEPARATOR = "."

MAX_ID = 10_000  # characters

ID = re.compile(r"(?s:(?!.*[\ud800-\udfff])([^:.]+)\.(.*)\.(\d{1,15})\.[^.]*)")
"""The form of an id: run, node, visit and digest. A run id with a colon would name a Redis key."""

MAX_LIFETIME = 36_525 * 86_400
"""The longest time that a question waits, in seconds: a hundred years."""

MAX_REMINDERS = 100
"""The most reminders of one question: they are events of its run, which keeps a few thousand."""

EXPIRY_WORDS = ("reject", "fail")

RISKS = ("", "low", "high")


AnswerModel = TypeVar("AnswerModel", bound=pydantic.BaseModel)


class DeliveryOptions(TypedDict, total=False):
    """Options that every `interrupt()` takes; times are in seconds. See `NodeContext.interrupt`."""

    assignees: Sequence[str] | None
    expires_in: float | None
    on_expire: object
    remind_every: float | None
    remind_after: Sequence[float] | None
    title: str


class InterruptOptions(DeliveryOptions, total=False):
    """All options of `interrupt()`. With a model as the schema, an overload types the answer.

    With a `rule` the answer is an `Approval`; `action` is the action to approve, `risk` is "low" or
    "high".
    """

    response_schema: object
    rule: Rule | None
    risk: str
    action: Action | Mapping[str, Any] | None


class InterruptStatus(enum.StrEnum):
    """Status of a question; every status except `open` is final."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@codec.strict
@immutable
class Interrupt:
    """A question to a person, asked by one visit of one node.

    `scope` identifies the asker ("function", "tool", "before_tool_call:<tool use id>" …), `number`
    counts repeats after a retried tool call, and `reasked` counts repeats after a withdrawal. Times
    are milliseconds of the store's clock; `expires_in` and the times of reminders are seconds.
    `on_expire` is "reject", "fail", {"response": value} or {"route": node}. `withdrawal` holds the
    reason of an operator's withdrawal, whether to ask again and whom (`to`), and the attempt.
    `replaces` is the id of the question that this one replaces.

    A question with a `rule` (as `Rule.frozen` writes it) is decided by votes, and its digest has
    the form `digest_v` 2. `action` is the preimage of the action that would run, `requester` the
    principal who started the run, `on_behalf_of` the principals they acted for, `place` the graph,
    fingerprint, root and path of its run when it was asked, `escalates_at` (ms) when others become
    eligible. `decision` and `effect` are the result of the votes; `used` records how the decision
    was used: the idempotency `key`, the `effect` and the time (`at`). `title` describes a question
    in a sentence: one with a rule only in the result of its run.
    """

    id: str
    name: str
    reason: Payload[Any] = None
    response: Payload[Any] = None
    run_id: str = ""
    node_id: str = ""
    visit: int = 1
    scope: str = "function"
    number: int = 1
    response_schema: Payload[JSONObject | None] = None
    assignees: list[str] = field(default_factory=list)
    expires_in: float | None = None
    on_expire: Payload[Any] = None
    digest: str = ""
    status: InterruptStatus = InterruptStatus.OPEN
    asked_at: int = 0
    answered_at: int = 0
    responder: str | None = None
    idempotency_key: str | None = None
    v: int = 1
    reasked: int = 0
    withdrawal: Annotated[JSONObject | None, without_reason("withdrawal")] = None
    replaces: str = ""
    remind_every: float | None = None
    remind_after: list[float] = field(default_factory=list)
    reminded: int = 0
    rule: JSONObject | None = None
    requester: str = ""
    on_behalf_of: list[str] = field(default_factory=list)
    action: Payload[JSONObject | None] = None
    risk: str = ""
    digest_v: int = 1
    place: dict[str, str] | None = None
    escalates_at: list[int] = field(default_factory=list)
    decision: str = ""
    effect: str = ""
    used: JSONObject | None = None
    title: Payload[str] = ""

    @property
    def is_open(self) -> bool:
        """Return whether the question still accepts an answer."""
        return self.status is InterruptStatus.OPEN

    @property
    def ends_at(self) -> int:
        """The time in ms when the time to answer is over; 0 for never."""
        return 0 if self.expires_in is None else self.asked_at + round(self.expires_in * 1000)

    @property
    def requesters(self) -> Sequence[str]:
        """Who started the run, and those they acted for."""
        return self.requester, *self.on_behalf_of

    @property
    def args(self) -> JSONObject:
        """The arguments of the action; empty without one."""
        args: JSONObject = (self.action or {}).get("args", {})
        return args

    @property
    def used_key(self) -> JSON:
        """The idempotency key of the decision's use, or None."""
        return (self.used or {}).get("key")

    def is_over(self, now: int) -> bool:
        """Return whether the time to answer has passed, even if no sweep has closed it yet."""
        return self.expires_in is not None and now >= self.ends_at

    def to_dict(self) -> JSONObject:
        """Return the id, the name, the reason and the response."""
        return {name: getattr(self, name) for name in ("id", "name", "reason", "response")}


class Judge(CallSource, Protocol):
    """Judge of one visit's decisions that were made by a rule; `tenant` is part of every action."""

    tenant: str

    def approval(self, question: Interrupt, decision: Interrupt) -> Approval:
        """Return the decision if it holds for the question as it is asked now.

        Raises:
            ApprovalMismatch: it does not hold.
        """

    def is_stale(self, rule: Rule, decision: Interrupt) -> bool:
        """Return whether it is too late to use a decision."""

    def use_grant(self, rule: Rule, action: Action, key: str) -> str:
        """Use a grant for a call without a question and return its id; "" if no grant covers it."""

    def check(self, rule: Rule) -> None:
        """Check the requester and the calendar that a rule depends on.

        Raises:
            UsageError: it excludes the requester, who is unknown, or names an unknown calendar.
        """

    def check_reach(self, rule: Rule) -> None:
        """Check that the people whom the rule of a new question names can decide it.

        Raises:
            UsageError: too few of them are left.
        """


@immutable
class Address:
    """Place of a question: one visit of one node of one run.

    `within` is a prefix of every scope: it names the tool call in which a sub-agent runs. `routes`
    are the targets of the node's edges for expired questions. `judge` is set in a run; without it,
    no question can be decided by a rule.
    """

    run_id: str
    node_id: str
    visit: int
    within: str = ""
    routes: tuple[str, ...] = ()
    judge: Judge | None = field(default=None, compare=False, repr=False)

    def interrupt_id(self, scope: str, name: str, number: int = 1, reasked: int = 0) -> str:
        """Name a question of this visit: `run.node.visit.hash`, the same in every process."""
        preimage = [scope, name, number, reasked] if reasked else [scope, name, number]
        short = hashlib.blake2s(
            json.dumps(preimage, ensure_ascii=True).encode(), digest_size=8
        ).hexdigest()
        return SEPARATOR.join((self.run_id, self.node_id, str(self.visit), short))

    def ask(
        self,
        name: str,
        reason: object = None,
        *,
        scope: str,
        number: int = 1,
        reasked: int = 0,
        **options: Unpack[InterruptOptions],
    ) -> Interrupt:
        """Build the question.

        Raises:
            TypeError: an option is not known.
            UsageError: the name is empty or too long, a limit is not positive, or the assignees,
                the schema, the rule, `on_expire` or the times of reminders can't be used.
            UnstorableError: the reason can't be stored, or the question has a rule and the reason
                can't be hashed.
        """
        if not isinstance(name, str) or not name:
            raise UsageError("an interrupt needs a name: a text that isn't empty.")
        validation.checked(name, "the name of an interrupt")
        unknown = sorted(options.keys() - InterruptOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"interrupt() has no option {unknown[0]!r}.")
        field = f"interrupt {name!r}"
        expires_in = options.get("expires_in")
        check_lifetime(expires_in, field)
        scope = self.within + scope
        schema = json_schema(options.get("response_schema"))
        every, reminder_delays = checked_reminders(
            options.get("remind_every"), options.get("remind_after"), field
        )
        question = Interrupt(
            id=self.interrupt_id(scope, name, number, reasked),
            name=name,
            reason=codec.pack(reason, f"the reason of {field}"),
            run_id=self.run_id,
            node_id=self.node_id,
            visit=self.visit,
            scope=scope,
            number=number,
            reasked=reasked,
            response_schema=schema,
            assignees=_assignees(options, field),
            expires_in=expires_in,
            on_expire=checked_on_expire(
                options.get("on_expire"),
                schema,
                self.routes,
                f"on_expire of {field}",
                options.get("response_schema"),
            ),
            remind_every=every,
            remind_after=reminder_delays,
            title=_title(options, reason, field) if "title" in options else "",
            **_ruled(options, field, name, self.judge),
        )
        return replace(question, digest=digest(question))


OF_RULES: JSONObject = {
    "rule": None,
    "requester": "",
    "on_behalf_of": [],
    "action": None,
    "risk": "",
    "digest_v": 1,
    "place": None,
    "escalates_at": [],
    "decision": "",
    "effect": "",
    "used": None,
    "title": "",
}
"""Defaults of the fields that most questions don't have; they are stored only with another value."""


def usual_dropped(question: JSONObject) -> JSONObject:
    """Remove unused fields from a question's JSON, and return the JSON."""
    for name, usual in OF_RULES.items():
        if question.get(name, usual) == usual:
            question.pop(name, None)
    return question


def address_of(interrupt_id: str) -> Address | None:
    """Parse run, node and visit from an interrupt's id; None if the text has another form."""
    match = ID.fullmatch(interrupt_id) if len(interrupt_id) <= MAX_ID else None
    return Address(match[1], match[2], int(match[3])) if match else None


def run_of(interrupt_id: str) -> str:
    """Return the id of the run that a question's id names; "" if it can't be a question's id."""
    address = address_of(interrupt_id)
    return address.run_id if address else ""


def selectors_of(rule: JSONMapping | None) -> list[str]:
    """Name the groups and roles that a frozen rule makes eligible, at first or later, or `anyone`."""
    if rule is None:
        return []
    steps = rule["stages"] or [rule]
    forms = [form for step in steps for form in step["eligible"]]
    forms += [form for _, selectors in rule["escalate"] for form in selectors]
    return [form for form in dict.fromkeys(forms) if not form.startswith("user:")]


def tool_of(action: JSONMapping | None) -> str:
    """Return the name of the tool whose call a question is about; "" if it has none."""
    return str(action.get("tool", "")) if action else ""


def as_asked(question: Interrupt) -> Interrupt:
    """Return a question as it was asked, without its answer, its end or its reminders."""
    return replace(
        question,
        status=InterruptStatus.OPEN,
        response=None,
        responder=None,
        idempotency_key=None,
        asked_at=0,
        answered_at=0,
        withdrawal=None,
        reminded=0,
        decision="",
        effect="",
        used=None,
    )


def _assignees(options: InterruptOptions, field: str) -> list[str]:
    rule = options.get("rule")
    people = validation.people(options.get("assignees"), f"assignees of {field}")
    if people or not isinstance(rule, Rule):
        return people
    return people_of(rule)


def _title(options: InterruptOptions, reason: object, field: str) -> str:
    """Fill the title of a question from its reason."""
    template = options["title"]
    if options.get("rule") is not None:
        raise UsageError(f"{field}: the rule of a question has its title; set Rule(title=...).")
    titles.check(template)
    facts = codec.plain(reason)
    facts = facts if isinstance(facts, Mapping) else {}
    titles.check_names(template, facts, f"the reason of {field}")
    return titles.filled(template, facts)


def _ruled(options: InterruptOptions, field: str, name: str, judge: Judge | None) -> JSONObject:
    """Return the fields of a question that is decided by a rule; no fields without a rule.

    Raises:
        UsageError: an option can't be used, or needs a rule.
    """
    rule = options.get("rule")
    risk = options.get("risk") or ""
    action = options.get("action")
    if rule is None:
        if risk or action is not None:
            raise UsageError(
                f"{field}: risk and action need a rule, by which they are approved."
            )
        return {}
    if not isinstance(rule, Rule) or options.get("assignees"):
        raise UsageError(
            f"{field}: rule must be a Rule, which names who is eligible in place of assignees."
        )
    if risk not in RISKS:
        raise UsageError(f'{field}: risk must be "low" or "high", not {risk!r:.80}.')
    if judge is not None:
        judge.check(rule)
    if isinstance(action, Mapping):
        action = Action(judge.tenant if judge else "", "function", name, codec.plain(action))
    if not (action is None or isinstance(action, Action)):
        raise UsageError(
            f"{field}: action must be an object of JSON data, not {codec.kind_of(action)}."
        )
    names = (
        () if action is None else {*action.args, *(action.schema or {}).get("properties", ())}
    )
    titles.check_names(rule.title, names, field)
    shown = None if action is None else action.preimage()
    return {"rule": rule.frozen(), "risk": risk, "action": shown, "digest_v": 2}


def digest(interrupt: Interrupt) -> str:
    """Hash a question as a person sees it: an approval with this digest holds for nothing else.

    Raises:
        UnstorableError: a question with a rule has values that other languages would read
            differently.
    """
    if interrupt.digest_v == 2:
        return digests.digest("question", preimages(interrupt)["question"])
    shown = [1, interrupt.id, interrupt.name, interrupt.reason, interrupt.response_schema]
    shown += [interrupt.title] if interrupt.title else []
    return "sha256:" + hashlib.sha256(digests.ENCODER.encode(shown).encode()).hexdigest()


def title_of(interrupt: Interrupt) -> str:
    """Describe a question in one sentence: its title or the title of its rule, or else its name.

    The title of a rule is filled with the arguments asked about, or with the edit that decided it.
    """
    template: str = (interrupt.rule or {}).get("title", "")
    if not template:
        return (interrupt.rule is None and interrupt.title) or interrupt.name
    # After an edit the title shows the decided arguments, not the original ones.
    edit = (
        codec.plain(codec.unpack(interrupt.response)) if interrupt.decision == "edit" else None
    )
    return titles.filled(template, edit if isinstance(edit, Mapping) else interrupt.args)


def policy_of(interrupt: Interrupt) -> JSONObject:
    """Return the data hashed as a question's policy: its rule, and its outcome without a decision."""
    lifetime = interrupt.expires_in
    expires_at = None if lifetime is None else interrupt.asked_at + round(lifetime * 1000)
    return {
        "rule": interrupt.rule,
        "on_expire": interrupt.on_expire,
        "expires_at": expires_at,
        "risk": interrupt.risk,
    }


def preimages(interrupt: Interrupt) -> dict[str, JSONObject]:
    """Return the data hashed for a question with a rule, by digest; see `approvals/digests.py`.

    Raises:
        UnstorableError: it has values that other languages would read differently.
    """
    asked_in = interrupt.place or {}
    policy = policy_of(interrupt)
    action = interrupt.action
    question: JSONObject = {
        "id": interrupt.id,
        "run": interrupt.run_id,
        "root": asked_in.get("root", ""),
        "graph": asked_in.get("graph", ""),
        "fingerprint": asked_in.get("fingerprint", ""),
        "node": asked_in.get("path", "") + interrupt.node_id,
        "visit": interrupt.visit,
        "scope": interrupt.scope,
        "name": interrupt.name,
        "number": interrupt.number,
        "requester": interrupt.requester,
        **({"on_behalf_of": [*interrupt.on_behalf_of]} if interrupt.on_behalf_of else {}),
        "action": None if action is None else digests.digest("action", action),
        "shown": {"title": interrupt.name, "reason": interrupt.reason},
        "response_schema": interrupt.response_schema,
        "policy": digests.digest("policy", policy),
    }
    return {
        "question": question,
        "policy": policy,
        **({} if action is None else {"action": action}),
    }


def json_schema(schema: object) -> JSONObject | None:
    """Convert a response schema (pydantic model class or JSON Schema) to JSON Schema.

    Raises:
        UsageError: it is neither of these, or not a valid schema.
    """
    if schema is None:
        return None
    if isinstance(schema, type) and issubclass(schema, pydantic.BaseModel):
        json_value: JSONObject = schema.model_json_schema()
    elif isinstance(schema, Mapping):
        json_value = codec.pack(schema, "response_schema")
    else:
        raise UsageError(
            "response_schema must be a pydantic model class or a JSON Schema object."
        )
    validation.check_schema(json_value, "response_schema")
    return json_value


# The answer and its receipt.


@immutable
class Decision:
    """One person's decision on one question: an answer, or a vote if the question has a rule.

    `response` (packed) is the answer, or the whole new arguments of an edit. `decision` is "" for a
    plain answer, which counts as the vote "respond". `voter` is the decider as far as the sender
    knows; without it, `responder` is. `body` is a vote's message as it was signed: without
    `reply_to` and with its `proof`. `shown_at` (ms) is when the question was shown to them,
    `effect` the result of the votes, `instead_of` the key of the absent assignee for whom an answer is given.
    """

    interrupt_id: str
    response: JSON
    responder: str | None = None
    idempotency_key: str | None = None
    digest: str | None = None
    decision: str = ""
    effect: str = ""
    comment: str = ""
    voter: Voter | None = None
    body: JSONMapping = field(default_factory=dict)
    shown_at: int = 0
    instead_of: str = ""

    def decider(self) -> Voter | None:
        """Return the decider; None if no one is named, or the name isn't a principal's."""
        if self.voter is None and isinstance(self.responder, str):
            with suppress(UsageError):
                return Voter(Principal.read(self.responder))
        return self.voter

    def problem(self, *names: str) -> str:
        """Describe the first of these texts that can't be stored; "" if all can."""
        for name in names:
            value = getattr(self, name)
            if value is not None and (problem := validation.problem(value)):
                return f"the {name} {problem}"
        return ""

    def receipt(self, status: ReceiptStatus, detail: str) -> Receipt:
        """Return a receipt for this decision."""
        return Receipt(status, self.interrupt_id, run_of(self.interrupt_id) or None, detail)

    def as_answer(self) -> Decision:
        """Return the answer to a question without a rule: yes, no, or the response.

        Other decisions keep their `decision`, lose their response, and are refused.
        """
        if not self.decision:
            return self
        answers: JSONObject = {"respond": self.response}
        if self.response is None or self.response is True:
            answers |= {"approve": True, "reject": False}
        voter = self.decider()
        responder = None if voter is None else plain_name(voter.principal.key)
        return Decision(
            self.interrupt_id,
            answers.get(self.decision),
            responder,
            self.idempotency_key,
            self.digest,
            "" if self.decision in answers else self.decision,
        )


class ReceiptStatus(enum.StrEnum):
    """Outcome of one answer, vote or start."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    SUPERSEDED = "superseded"
    FORBIDDEN = "forbidden"
    COUNTED = "counted"
    WITHDRAWN_VOTE = "withdrawn_vote"
    FULL = "full"


@immutable
class Receipt:
    """Outcome of an answer, with the reason.

    For a counted vote, `have` is the weight so far for its effect in the open stage, `need` the
    weight required, and `against` the weight of rejections.
    """

    status: ReceiptStatus
    interrupt_id: str
    run_id: str | None = None
    detail: str = ""
    have: int | None = None
    need: int | None = None
    against: int | None = None


def answers_from(prompt: object) -> list[Decision]:
    """Parse answers in the Strands form: `[{"interruptResponse": {"interruptId", "response"}}]`.

    Beside the response an answer may name its `"responder"`. If the question has a rule, it is a
    vote with a `"decision"` ("respond" by default) and optionally a `"comment"`.

    Raises:
        ResponseError: the value is not such a list.
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes)):
        raise ResponseError(
            f"the run waits for answers, but got {codec.kind_of(prompt)}; "
            "pass a list of interruptResponse objects."
        )
    return [_answer(block) for block in prompt]


def _answer(block: object) -> Decision:
    inner = block.get("interruptResponse") if isinstance(block, Mapping) else None
    if not isinstance(block, Mapping) or len(block) != 1 or not isinstance(inner, Mapping):
        keys = sorted(map(str, block)) if isinstance(block, Mapping) else type(block).__name__
        raise ResponseError(
            f"expected an interruptResponse object, but got {keys}; nothing was applied."
        )
    interrupt_id = inner.get("interruptId")
    response = inner.get("response")
    if not isinstance(interrupt_id, str):
        raise ResponseError(
            "an interruptResponse needs an interruptId (text); nothing was applied."
        )
    if response is None and inner.get("decision") not in {"approve", "reject"}:
        raise ResponseError(
            f"the answer to {interrupt_id} is None, which is no answer; nothing was applied."
        )
    texts = {name: inner.get(name) for name in ("responder", "decision", "comment")}
    for name, text in texts.items():
        if not isinstance(text, str | None):
            raise ResponseError(
                f"the {name} of the answer to {interrupt_id} is {codec.kind_of(text)}, not a text; "
                "nothing was applied."
            )
    return Decision(
        interrupt_id,
        codec.pack(response, "response"),
        texts["responder"],
        decision=texts["decision"] or "",
        comment=texts["comment"] or "",
    )


def is_answers(prompt: object) -> bool:
    """Return whether a prompt is a list of answers rather than a task."""
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(block, Mapping) and "interruptResponse" in block for block in prompt)
    )


def answer_value(interrupt: Interrupt, schema: object = None) -> Any:
    """Return the value of `interrupt()` in the code that asked: an `Approval` if it has a rule.

    Raises:
        InterruptExpired: the time to answer has passed, and the question has no default answer.
        InterruptWithdrawn: an operator has withdrawn the question.
    """
    if interrupt.withdrawal is not None:
        reason = interrupt.withdrawal["reason"]
        raise InterruptWithdrawn(
            f"the question {interrupt.name!r} was withdrawn{reason and ': '}{reason}."
        )
    if interrupt.status is InterruptStatus.EXPIRED:
        for answer in default_answer(interrupt):
            return _approval(interrupt, "expired", schema, answer)
        raise expiry_error(interrupt)
    return _approval(interrupt, interrupt.decision, schema, interrupt.response)


def _approval(interrupt: Interrupt, decision: str, schema: object, response: JSON) -> Any:
    value = codec.unpack(response)
    if interrupt.rule is None:
        return typed_response(schema, value)
    has_schema = decision in {"respond", "expired"} or (
        decision == "approve" and interrupt.action is None
    )
    response = typed_response(schema, value) if has_schema else value
    return Approval(decision, response, action=interrupt.action)


def typed_response(schema: object, response: Any) -> Any:
    """Convert a validated answer to the pydantic model that the question named, if any."""
    if isinstance(schema, type) and issubclass(schema, pydantic.BaseModel):
        return schema.model_validate_json(codec.dump_json(codec.plain(response)))
    return response


# Expiry. With "fail" or {"route": node} the node ends without running again: the script that finds
# the question expired writes the node's error or output from values prepared here.


def check_lifetime(expires_in: object, field: str) -> None:
    """Check the time that a question waits, in seconds; None means without limit.

    Raises:
        UsageError: it is not a number of seconds from 0.001 to a hundred years.
    """
    if expires_in is not None and not (
        validation.is_number(expires_in) and 0.001 <= expires_in <= MAX_LIFETIME
    ):
        raise UsageError(
            f"{field}: expires_in must be more than 0 seconds (0.001 and more), and at most a hundred years, "
            f"not {expires_in!r:.80}; without it the question waits without limit."
        )


def checked_on_expire(
    value: object,
    schema: JSONObject | None,
    routes: Sequence[str],
    field: str,
    model: object,
) -> JSON:
    """Check the `on_expire` of a question; `routes` are the nodes that it may name.

    Raises:
        UsageError: the form is unknown, the default answer does not match the schema or its model,
            or no edge added with on_expire=True leads to the node.
    """
    if value is None or value in EXPIRY_WORDS:
        return value
    form = next(iter(value)) if isinstance(value, Mapping) and len(value) == 1 else ""
    if (
        not isinstance(value, Mapping)
        or form not in {"response", "route"}
        or value[form] is None
    ):
        raise UsageError(
            f'{field} must be "reject", "fail", {{"response": value}} or {{"route": node}}, not {value!r}.'
        )
    json_value = codec.pack(value, field)
    if form == "route":
        _check_route(value[form], routes, field)
        return json_value
    answer = codec.plain(value[form])
    reason = validation.mismatch(schema, answer) if schema else ""
    try:
        typed_response(None if reason else model, answer)
    except pydantic.ValidationError as error:
        reason = validation.of_model(error)
    if reason:
        raise UsageError(f"{field} can't be used: {reason}.")
    return json_value


def _check_route(target: object, routes: Sequence[str], field: str) -> None:
    if target not in routes:
        hint = f"such edges lead to {sorted(set(routes))}" if routes else "it has none"
        raise UsageError(
            f"{field} names the node {target!r}, but no edge added with on_expire=True leads there from the "
            f"node that asks; {hint}."
        )


def ends_node(question: Interrupt) -> bool:
    """Return whether the node ends when the question expires, without running again."""
    return question.on_expire == "fail" or bool(route(question))


def route(question: Interrupt) -> str:
    """Return the node to which an expired question leads, or ""."""
    return str(question.on_expire["route"]) if _names(question, "route") else ""


def default_answer(question: Interrupt) -> Sequence[JSON]:
    """Return the packed answer that counts after expiry, as a list of one item or none."""
    return [question.on_expire["response"]] if _names(question, "response") else []


def _names(question: Interrupt, form: str) -> bool:
    return isinstance(question.on_expire, Mapping) and form in question.on_expire


def expiry_error(question: Interrupt) -> InterruptExpired:
    reason = f"{question.name!r} was not answered within {question.expires_in or 0:g} s"
    if question.on_expire == "fail":
        return InterruptExpired(f'{reason}, and with on_expire="fail" its node fails for that.')
    return InterruptExpired(f"{reason}, so it counts as rejected.")


def expired_entry(question: Interrupt, edges: str) -> VisitEntry:
    """Build the entry of a node that ended because its question expired: an error, or its edges."""
    if route(question):
        return {"v": 1, "ms": 0, "edges": edges, "expired": question.id}
    return {"v": 1, "ms": 0, "error": asdict(failures.record(expiry_error(question)))}


def expired_output(question: Interrupt) -> JSON:
    """Build the output of a node whose expired question led elsewhere: the question's fields."""
    fields = {"interrupt_id": question.id, "name": question.name, "reason": question.reason}
    return {"expired": {**fields, "assignees": list(question.assignees)}}


# Reminders: `remind_every` or `remind_after`, in seconds.


def checked_reminders(
    every: float | None, delays: Sequence[float] | None, field: str
) -> tuple[float | None, list[float]]:
    """Check the times of reminders, in seconds.

    Raises:
        UsageError: both are set, a time is not positive, the times are not ascending, or there are too many.
    """
    times = [] if delays is None else list(delays)
    if every is not None and times:
        raise UsageError(f"{field}: set remind_every or remind_after, not both.")
    for seconds in [*times, *([] if every is None else [every])]:
        if not (validation.is_number(seconds) and 0 < seconds < math.inf):
            raise UsageError(
                f"{field}: reminders come after more than 0 seconds, not {seconds!r}."
            )
    if any(later <= earlier for earlier, later in pairwise(times)):
        raise UsageError(
            f"{field}: the times in remind_after must grow, they count from the question."
        )
    if len(times) > MAX_REMINDERS:
        raise UsageError(
            f"{field}: remind_after has {len(times)} times; a question reminds {MAX_REMINDERS} times."
        )
    return (None if every is None else float(every)), [float(seconds) for seconds in times]


def next_reminder(question: Interrupt, now: int) -> int:
    """Return when a reminder is due next, asked or reminded at `now`, in ms; 0 after the last.

    Reminders missed during an outage are collapsed into one.
    """
    if question.remind_every is not None:
        if question.reminded + 1 < MAX_REMINDERS:
            return now + _reminder_times(question)[0]
        return 0
    due = (question.asked_at + delay for delay in _reminder_times(question))
    return next((time for time in due if time > now), 0)


def _reminder_times(question: Interrupt) -> list[int]:
    delays = question.remind_after or (
        [] if question.remind_every is None else [question.remind_every]
    )
    return [max(1, round(seconds * 1000)) for seconds in delays]
