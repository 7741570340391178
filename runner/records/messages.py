"""The messages that other programs exchange with workers: answers, starts, and their receipts.

They are plain JSON, so that any language can send them; docs/reference/messages holds their JSON
Schemas, which `python -m runner.records.messages <folder>` writes. Reading is strict: an unknown field,
another `v`, a duplicate key, NaN or bytes that are not JSON are refused with the reason.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from runner.approvals.rules import Principal, Voter
from runner.errors import CorruptDocument, PayloadTooLarge, UsageError
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Decision, Receipt
from runner.records.validation import MAX_REASON, MAX_TEXT

TRACEPARENT = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
"""The form of a span's address in W3C Trace Context."""

Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]

OptionalText = Annotated[str | None, Field(min_length=1, max_length=MAX_TEXT)]


def _text(description: str, default: Any = ...) -> Any:
    return Field(default, min_length=1, max_length=MAX_TEXT, description=description)


Version2 = Annotated[int, Field(ge=2, le=2, json_schema_extra={"const": 2})]

Digest = Field(
    default=None,
    max_length=MAX_TEXT,
    description="the digest of the question that the person was shown",
)

ReplyTo = Field(
    default=None,
    # This keeps a reply from being written to a queue or a run.
    pattern=r"^[A-Za-z0-9_-]+:replies:[^\s]+$",
    max_length=MAX_TEXT,
    description="the Redis stream that gets the receipt; its name begins with runner:replies:, where "
    "`runner` is the workers' RUNNER_NAMESPACE",
)


class Message(BaseModel):
    """The base of all messages: strict fields and a version."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # Not Literal[1], which also accepts `true`.
    v: Annotated[int, Field(ge=1, le=1, json_schema_extra={"const": 1})]


class AnswerMessage(Message):
    """An answer to one question, sent to the stream runner:responses or the task runner.respond."""

    interrupt_id: Text
    response: Any = Field(description="any JSON value; null isn't an answer and is rejected")
    responder: OptionalText = None
    idempotency_key: OptionalText = None
    digest: str | None = Digest
    reply_to: str | None = ReplyTo

    def decided(self, key: str, _: JSONMapping) -> Decision:
        """Return the answer; `key` is used if the message has no idempotency key.

        Raises:
            UnstorableError: the response can't be stored.
        """
        return Decision(
            self.interrupt_id,
            codec.pack(self.response, "response"),
            self.responder,
            self.idempotency_key or key,
            self.digest,
        )


MOST_BEHALF = 10

ShownAt = Field(
    default=0,
    ge=0,
    lt=2**53,
    description="when the question was shown to the person, in ms since 1970; the audit records it",
)

Proof = Field(
    default=None,
    description="the signer's proof: `alg`, `kid`, `iat`, `exp`, `jti`, `sig` over all but `reply_to`, and "
    "a door's facts about a login",
)


class VoteMessage(Message):
    """A decision on one question: an answer of version 2, sent the same way as answers."""

    v: Version2
    interrupt_id: Text
    decision: Literal["approve", "edit", "reject", "respond"]
    by: str = _text(
        "the decider: `kind:issuer|subject` with a kind of human, service or agent, or a name"
    )
    response: Any = Field(
        default=None,
        description="any JSON value: the answer of `respond`, or the whole arguments that are approved in "
        "place of those shown",
    )
    responder: str | None = Field(
        default=None, max_length=MAX_TEXT, description="the name to show for the decider"
    )
    comment: str = Field(default="", max_length=MAX_REASON)
    idempotency_key: OptionalText = None
    digest: str | None = Digest
    shown_at: int = ShownAt
    proof: JSONObject | None = Proof
    reply_to: str | None = ReplyTo

    def decided(self, key: str, body: JSONMapping) -> Decision:
        """Return the vote; `key` is used without an idempotency key, `body` is the whole message.

        Raises:
            UsageError: `by` isn't a principal. UnstorableError: the response can't be stored.
        """
        voter = Voter(replace(Principal.read(self.by), name=self.responder or ""))
        return Decision(
            self.interrupt_id,
            codec.pack(self.response, "response"),
            None,
            self.idempotency_key or key,
            self.digest,
            self.decision,
            comment=self.comment,
            voter=voter,
            body=codec.without(body, "reply_to"),
            shown_at=self.shown_at,
        )


class OperationMessage(Message):
    """An operation on a question other than voting, sent the same way as answers."""

    v: Version2
    interrupt_id: Text
    operation: Literal["claim", "release", "delegate", "comment", "withdraw_vote"]
    by: str = _text("the person or program that does it: `kind:issuer|subject`, or a name")
    to: str | None = _text("for `delegate`: the person who may vote instead", default=None)
    until: int | None = Field(
        default=None, description="for `delegate`: when it ends, in ms since 1970"
    )
    ttl: float | None = Field(default=None, description="for `claim`: the number of seconds")
    comment: str = Field(default="", max_length=MAX_REASON)
    idempotency_key: OptionalText = None
    shown_at: int = ShownAt
    proof: JSONObject | None = Proof
    reply_to: str | None = ReplyTo


class StartMessage(Message):
    """A run to start, sent to the stream runner:starts or the task runner.start."""

    graph: Text
    task: Any = Field(description="any JSON value: the input of the graph's entry points")
    idempotency_key: OptionalText = None
    invocation_state: JSONObject | None = None
    tags: dict[str, str] | None = None
    on_end: str | None = _text(
        "the Celery task to call when the run has ended: its name, or name@queue", default=None
    )
    traceparent: str | None = Field(
        default=None,
        pattern=TRACEPARENT,
        description="the span that the run belongs to, in the form of the W3C header of that name",
    )
    reply_to: str | None = ReplyTo


class RequestMessage(StartMessage):
    """A run to start for a person: a start of version 2."""

    v: Version2
    requester: str = _text("the requester of the run: `kind:issuer|subject`, or a name")
    on_behalf_of: list[str] | None = Field(
        default=None,
        max_length=MOST_BEHALF,
        description="if a bot or a service asks, the principals it asks for",
    )
    proof: JSONObject | None = Proof


def vote_body(
    interrupt_id: str,
    decision: str,
    by: Principal | str,
    *,
    response: object = None,
    digest: str | None = None,
    comment: str = "",
    idempotency_key: str | None = None,
    shown_at: int = 0,
) -> JSONObject:
    """Return a vote's message as it is signed, without unset fields.

    `shown_at` (ms) is when the question was shown to the person.

    Raises:
        UsageError: `by` isn't a principal. UnstorableError: the response can't be stored.
    """
    decided = Decision(
        interrupt_id,
        codec.pack(response, "response"),
        None,
        idempotency_key,
        digest,
        decision,
        comment=comment,
        shown_at=shown_at,
    )
    return body_of(decided, key_of(by))


def body_of(decision: Decision, by: str) -> JSONObject:
    """Return the message of a principal's vote, as it is signed."""
    optional = {
        "response": codec.plain(decision.response),
        "digest": decision.digest,
        "comment": decision.comment or None,
        "idempotency_key": decision.idempotency_key,
        "shown_at": decision.shown_at or None,
    }
    body: JSONObject = {
        "v": 2,
        "interrupt_id": decision.interrupt_id,
        "decision": decision.decision or "respond",
        "by": by,
    }
    return body | codec.without_none(optional)


def operation_body(
    interrupt_id: str,
    operation: str,
    by: Principal | str,
    *,
    to: Principal | str | None = None,
    until: int | None = None,
    ttl: float | None = None,
    comment: str = "",
    shown_at: int = 0,
) -> JSONObject:
    """Return the message of a person's operation on a question besides voting, as it is signed.

    `operation` is "claim" (`ttl` seconds), "release", "delegate" (`to` a person, `until` a time in
    ms), "comment" or "withdraw_vote". `shown_at` (ms) is when they were shown the question.

    Raises:
        UsageError: a name isn't a principal's.
    """
    optional: JSONObject = {
        "to": None if to is None else key_of(to),
        "until": until,
        "ttl": ttl,
        "comment": comment or None,
        "shown_at": shown_at or None,
    }
    body: JSONObject = {
        "v": 2,
        "interrupt_id": interrupt_id,
        "operation": operation,
        "by": key_of(by),
    }
    return body | codec.without_none(optional)


def start_body(
    graph: str, task: object, requester: Principal | str, **optional: object
) -> JSONObject:
    """Return the message of a start for a person as it is signed, without unset fields.

    `optional` are other fields of a start: idempotency_key, invocation_state, tags, on_end, and
    on_behalf_of, a list of principals.

    Raises:
        UsageError: the requester isn't a principal. UnstorableError: the task can't be stored.
    """
    body: JSONObject = {
        "v": 2,
        "graph": graph,
        "task": codec.plain(codec.pack(task, "task")),
    }
    body["requester"] = key_of(requester)
    return body | {
        name: codec.plain(codec.pack(value, name))
        for name, value in optional.items()
        if value is not None
    }


def key_of(principal: Principal | str) -> str:
    """Return a principal's key.

    Raises:
        UsageError: the text isn't a principal.
    """
    return (principal if isinstance(principal, Principal) else Principal.read(principal)).key


class ReceiptMessage(Message):
    """Outcome of a message. `message_id` is the id that the stream gave it."""

    status: Literal[
        "accepted",
        "duplicate",
        "rejected",
        "expired",
        "unknown",
        "superseded",
        "forbidden",
        "counted",
        "withdrawn_vote",
        "full",
    ]
    message_id: str
    interrupt_id: str | None = None
    run_id: str | None = None
    detail: str = ""
    have: int | None = Field(
        default=None, description="for a vote: the weight for its effect so far"
    )
    need: int | None = Field(default=None, description="for a vote: the weight that decides")
    against: int | None = Field(
        default=None, description="for a vote: the weight of rejections so far"
    )

    def dump(self) -> bytes:
        """Return the message as it is sent, without a vote's numbers if no vote was counted."""
        return self.model_dump_json(
            exclude=None if self.need is not None else {"have", "need", "against"}
        ).encode()


Known = TypeVar("Known", bound=Message)


def read(kind: type[Known], body: bytes) -> Known:
    """Read a message strictly.

    Raises:
        UsageError: it is malformed; the error says where and why.
    """
    return _validated(kind, _loaded(body))


def check_size(body: bytes, most: int) -> None:
    """Refuse a message before it is parsed.

    Raises:
        PayloadTooLarge: it is too large.
    """
    if len(body) > most:
        raise PayloadTooLarge(
            f"the message has {len(body):,} bytes, more than one may have here ({most:,}). It was not read."
        )


def read_answer(
    body: bytes,
) -> tuple[AnswerMessage | VoteMessage | OperationMessage, JSONMapping]:
    """Read a message about a question; return it with its raw fields.

    Raises:
        UsageError: it is malformed.
    """
    message = _loaded(body)
    if _version(message) == 2:
        return (
            _validated(OperationMessage, message)
            if "operation" in message
            else _validated(VoteMessage, message)
        ), message
    return _validated(AnswerMessage, message), message


def read_start(body: bytes) -> tuple[StartMessage, JSONMapping]:
    """Read a start of either version; return it with its raw fields.

    Raises:
        UsageError: it is malformed.
    """
    message = _loaded(body)
    return _validated(
        RequestMessage if _version(message) == 2 else StartMessage, message
    ), message


def _loaded(body: bytes) -> Any:
    try:
        return codec.load_json(body)
    except CorruptDocument as error:
        raise UsageError(str(error)) from error


def _version(message: Any) -> object:
    return message.get("v") if isinstance(message, dict) else None


def _validated(kind: type[Known], message: Any) -> Known:
    try:
        return kind.model_validate(message)
    except pydantic.ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        reasons = [
            f"{'.'.join(map(str, problem['loc'])) or 'the message'}: {problem['msg']}"
            for problem in problems
        ]
        raise UsageError("; ".join(reasons)) from error


def traceparent_of(header: object) -> str:
    """Return a header `traceparent` if it is valid, or "": a broken trace doesn't stop a run."""
    return header if isinstance(header, str) and re.fullmatch(TRACEPARENT, header) else ""


def receipt(message_id: str, result: Receipt) -> ReceiptMessage:
    return ReceiptMessage(
        v=1,
        status=result.status.value,
        message_id=message_id,
        interrupt_id=result.interrupt_id or None,
        run_id=result.run_id,
        detail=result.detail,
        have=result.have,
        need=result.need,
        against=result.against,
    )


def schemas() -> dict[str, str]:
    """Return the JSON Schema of every message as text, by file name."""
    kinds: dict[str, type[Message]] = {
        "answer": AnswerMessage,
        "answer-2": VoteMessage,
        "operation-2": OperationMessage,
        "start": StartMessage,
        "start-2": RequestMessage,
        "receipt": ReceiptMessage,
    }
    return {
        f"{name}.json": json.dumps(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                **kind.model_json_schema(),
            },
            indent=2,
        )
        + "\n"
        for name, kind in kinds.items()
    }


def write_schemas(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
