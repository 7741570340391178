"""The question, the answer and the receipt, and the names that tie them together.

An interrupt's id is made from where it was asked, never from a counter or a clock: the same
question of the same visit has the same id in every process, and no other question has it.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pydantic

from runner import codec, expiry, labels, reminders, schemas
from runner.errors import InterruptWithdrawn, ResponseError, UsageError

SEPARATOR = "."
MAX_ID, MAX_DIGITS = 10_000, 16  # characters of an id, and of the visit in it


class InterruptStatus(enum.StrEnum):
    """Where a question stands; everything but `open` is final."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question to a person, asked by one visit of one node.

    `scope` says what asked ("function", "tool", "before_tool_call:<tool use id>" …) and `number`
    counts repeated askings after a retried tool call, `reasked` those after a withdrawal. Times are
    milliseconds of the store's clock, `expires_in` and when to remind are seconds. `on_expire` is
    "reject", "fail", {"response": value} or {"route": node}. `withdrawal` says why and how somebody
    withdrew it: reason, reask, attempt. `reminded` counts the reminders sent. `replaces` is
    the question that this one was asked instead of: its answer no longer fits, or its node had another name.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = codec.STRICT

    id: str
    name: str
    reason: Any = None
    response: Any = None
    run_id: str = ""
    node_id: str = ""
    visit: int = 1
    scope: str = "function"
    number: int = 1
    response_schema: dict[str, Any] | None = None
    assignees: list[str] = field(default_factory=list)
    expires_in: float | None = None
    on_expire: Any = None
    digest: str = ""
    status: InterruptStatus = InterruptStatus.OPEN
    asked_at: int = 0
    answered_at: int = 0
    responder: str | None = None
    idempotency_key: str | None = None
    v: int = 1
    reasked: int = 0
    withdrawal: dict[str, Any] | None = None
    replaces: str = ""
    remind_every: float | None = None
    remind_after: list[float] = field(default_factory=list)
    reminded: int = 0

    @property
    def is_decided(self) -> bool:
        """Tell whether the node must learn what became of it: answered, expired or withdrawn by somebody."""
        return self.withdrawal is not None or self.status in {
            InterruptStatus.ANSWERED,
            InterruptStatus.EXPIRED,
        }

    @property
    def is_open(self) -> bool:
        """Tell whether an answer is still taken."""
        return self.status is InterruptStatus.OPEN

    def is_over(self, now: int) -> bool:
        """Tell whether its time to be answered is over, whether or not a sweep has noticed."""
        return self.expires_in is not None and now >= self.asked_at + round(self.expires_in * 1000)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a question is asked: one visit of one node of one run.

    `within` comes before every scope: it names the tool call in which an agent works for another.
    `routes` are the nodes to which an edge for expired questions leads.
    """

    run_id: str
    node_id: str
    visit: int
    within: str = ""
    routes: tuple[str, ...] = ()

    def interrupt_id(self, scope: str, name: str, number: int = 1, reasked: int = 0) -> str:
        """Name a question of this visit: `run.node.visit.hash`, the same in every process."""
        parts = [scope, name, number, reasked] if reasked else [scope, name, number]
        key = json.dumps(parts, ensure_ascii=True).encode()
        short = hashlib.blake2s(key, digest_size=8).hexdigest()
        return SEPARATOR.join((self.run_id, self.node_id, str(self.visit), short))

    def ask(
        self,
        name: str,
        reason: object = None,
        *,
        scope: str,
        number: int = 1,
        reasked: int = 0,
        response_schema: object = None,
        assignees: Sequence[str] | None = None,
        expires_in: float | None = None,
        on_expire: object = None,
        remind_every: float | None = None,
        remind_after: Sequence[float] | None = None,
    ) -> Interrupt:
        """Build the question.

        Raises:
            UsageError: the name is empty or long, a limit is not positive, the assignees, the schema,
                `on_expire` or the times of reminders can't be used.
            UnstorableError: the reason can't be stored.
        """
        if not isinstance(name, str) or not name:
            raise UsageError("an interrupt needs a name: a text that is not empty.")
        labels.checked(name, "the name of an interrupt")
        expiry.check_lifetime(expires_in, f"interrupt {name!r}")
        scope = self.within + scope
        schema = json_schema(response_schema)
        every, after = reminders.checked(remind_every, remind_after, f"interrupt {name!r}")
        asked = Interrupt(
            id=self.interrupt_id(scope, name, number, reasked),
            name=name,
            reason=codec.pack(reason, f"the reason of interrupt {name!r}"),
            run_id=self.run_id,
            node_id=self.node_id,
            visit=self.visit,
            scope=scope,
            number=number,
            reasked=reasked,
            response_schema=schema,
            assignees=labels.people(assignees, f"assignees of interrupt {name!r}"),
            expires_in=expires_in,
            on_expire=expiry.checked(on_expire, schema, self.routes, f"on_expire of interrupt {name!r}"),
            remind_every=every,
            remind_after=after,
        )
        return replace(asked, digest=digest(asked))


def address_of(interrupt_id: str) -> Address | None:
    """Read run, node and visit out of an interrupt's id; None where it is no id of ours."""
    run_id, dot, rest = interrupt_id.partition(SEPARATOR)
    parts = rest.rsplit(SEPARATOR, 2)
    number = parts[1] if len(parts) == 3 and not labels.fault(interrupt_id, MAX_ID) else ""
    if not dot or not run_id or not (number.isdecimal() and len(number) < MAX_DIGITS):
        return None
    return Address(run_id, parts[0], int(parts[1]))


def digest(interrupt: Interrupt) -> str:
    """Hash what a person is shown: an approval that carries it holds for exactly this."""
    shown = [1, interrupt.id, interrupt.name, interrupt.reason, interrupt.response_schema]
    text = json.dumps(shown, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def json_schema(schema: object) -> dict[str, Any] | None:
    """Turn a response schema (pydantic model class or JSON Schema) into JSON Schema.

    Raises:
        UsageError: it is neither, or no schema that can be used.
    """
    if schema is None:
        return None
    if isinstance(schema, type) and issubclass(schema, pydantic.BaseModel):
        return schema.model_json_schema()
    if isinstance(schema, Mapping):
        packed: dict[str, Any] = codec.pack(schema, "response_schema")
        schemas.check(packed, "response_schema")
        return packed
    raise UsageError("response_schema must be a pydantic model class or a JSON Schema object.")


def typed_response(schema: object, response: Any) -> Any:
    """Give a checked answer the type that the question asked for."""
    if isinstance(schema, type) and issubclass(schema, pydantic.BaseModel):
        return schema.model_validate(response)
    return response


def resolved(interrupt: Interrupt, schema: object = None) -> Any:
    """Return what `interrupt()` gives the code that asked.

    Raises:
        InterruptExpired: nobody answered in time, and the question names no answer for that case.
        InterruptWithdrawn: somebody took the question back.
    """
    if interrupt.withdrawal is not None:
        reason = interrupt.withdrawal["reason"]
        raise InterruptWithdrawn(f"the question {interrupt.name!r} was withdrawn{reason and ': '}{reason}.")
    if interrupt.status is InterruptStatus.EXPIRED:
        for answer in expiry.default(interrupt):
            return typed_response(schema, codec.unpack(answer))
        raise expiry.error(interrupt)
    return typed_response(schema, codec.unpack(interrupt.response))


class ReceiptStatus(enum.StrEnum):
    """What became of one answer."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    SUPERSEDED = "superseded"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an answer, and why."""

    status: ReceiptStatus
    interrupt_id: str
    run_id: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One person's answer to one question; `response` is packed JSON data, never None."""

    interrupt_id: str
    response: Any
    responder: str | None = None
    idempotency_key: str | None = None
    digest: str | None = None


def answers_from(prompt: object) -> list[Answer]:
    """Read answers in the Strands shape: `[{"interruptResponse": {"interruptId", "response"}}]`.

    Raises:
        ResponseError: the value is not such a list.
    """
    if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes)):
        raise ResponseError(
            f"the run waits for answers, but got a {type(prompt).__name__}; "
            "give a list of interruptResponse objects."
        )
    return [_answer(block) for block in prompt]


def _answer(block: object) -> Answer:
    inner = block.get("interruptResponse") if isinstance(block, Mapping) else None
    if not isinstance(block, Mapping) or len(block) != 1 or not isinstance(inner, Mapping):
        keys = sorted(map(str, block)) if isinstance(block, Mapping) else type(block).__name__
        raise ResponseError(f"expected an interruptResponse object, but got {keys}; nothing was applied.")
    interrupt_id, response = inner.get("interruptId"), inner.get("response")
    if not isinstance(interrupt_id, str):
        raise ResponseError("an interruptResponse needs an interruptId (text); nothing was applied.")
    if response is None:
        raise ResponseError(f"the answer to {interrupt_id} is None, which is no answer; nothing was applied.")
    return Answer(interrupt_id, codec.pack(response, "response"))


def is_answers(prompt: object) -> bool:
    """Tell whether a prompt is a list of answers and not a task."""
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(block, Mapping) and "interruptResponse" in block for block in prompt)
    )
