"""Common code of the adapters for agent frameworks: a visit's stored document, and its questions.

A framework's own ids stay in the node's document. Ours name run, node and visit, so that two nodes
whose frameworks number calls alike never share a question.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version as installed
from types import SimpleNamespace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, StrictBool, TypeAdapter

from runner import async_loop
from runner.agent.models.protocol import raise_delayed
from runner.agent.tools import whole_arguments
from runner.approvals import policies
from runner.approvals.ballots import Use
from runner.approvals.digests import Action
from runner.approvals.gate import CallState, Granted, decide
from runner.approvals.policies import CallContext, Gates, ToolApprovals, wants_no_more
from runner.approvals.rules import DECISIONS, Approval, Rule
from runner.errors import (
    ApprovalMismatch,
    ConflictError,
    CorruptDocument,
    DefinitionError,
    UnstorableError,
    UsageError,
)
from runner.immutable import immutable
from runner.records import codec
from runner.records.asking import is_answered, is_asked_again, numbered_question
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONObject
from runner.records.executors import Visit, input_text
from runner.records.interrupts import Address, Interrupt, answer_value, as_asked
from runner.records.outcomes import Failed, Outcome

VERSION = 1

PastT = TypeVar("PastT", bound="Past")


class FrameworkNode:
    """A node that runs a framework's agent, which a factory builds for each execution."""

    is_async = True
    built_type: type
    """The type that the factory builds."""

    def __init__(
        self,
        factory: Callable[..., Any],
        approval: ToolApprovals,
        name: str | None,
        version: str,
    ) -> None:
        """Refuse an agent, which one execution would change for the next, and non-callables."""
        if isinstance(factory, self.built_type) or not callable(factory):
            raise DefinitionError(
                f"{type(self).__name__} takes a function that builds an agent, not an object of type "
                f"{type(factory).__name__}: each execution needs a new agent."
            )
        self.name = name or getattr(factory, "__name__", "")
        self.version = version
        self._factory = factory
        self._approval = policies.by_tool(approval, f"node {self.name!r}")

    def execute(self, visit: Visit) -> Outcome:
        """Run the agent until it is done, fails or waits for people.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
            ApprovalMismatch: the call about to be made isn't the approved one.
        """
        return async_loop.run(self._outcome(visit))

    async def _outcome(self, visit: Visit) -> Outcome:
        """Return an execution's outcome; an error raised by the agent fails the node."""
        try:
            return await self._execute(visit)
        except Exception as error:  # noqa: BLE001 - users' agents raise anything
            reason = self._cause(error)
            if isinstance(reason, (ApprovalMismatch, ConflictError)):
                raise reason from None
            raise_delayed(reason)
            return Failed.of(reason)

    def _cause(self, error: BaseException) -> BaseException:
        """Return the original error, which a framework may have wrapped."""
        return error

    async def _execute(self, visit: Visit) -> Outcome:
        raise NotImplementedError

    def _past(self, kind: type[PastT], visit: Visit) -> PastT:
        """Return this visit's past; from an earlier visit only the conversation is kept."""
        past = restored(kind, visit, type(self).__name__)
        return past if past.visit == visit.address.visit else kind(visit=visit.address.visit)


def text_input(visit: Visit) -> str:
    """Return the input of an agent that takes one text."""
    return input_text(visit.task, visit.inputs)


@dataclass(kw_only=True)
class Past:
    """Stored state of a visit's earlier executions; each adapter adds its fields.

    `begun` is true once the visit's input is in the conversation; `library` is the version of the
    framework that wrote the state.
    """

    visit: int
    begun: bool = False
    questions: list[JSON] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    library: str = ""
    v: int = VERSION


def restored(kind: type[PastT], visit: Visit, adapter: str) -> PastT:
    """Return the past in a node's document, perhaps an earlier visit's; without one, an empty past.

    Raises:
        CorruptDocument: the document was not written by this version of the adapter.
    """
    if visit.document is None:
        return kind(visit=visit.address.visit)
    names = {field.name for field in fields(kind)}
    if visit.document.get("v") != VERSION or visit.document.keys() != names:
        where = f"the stored document of node {visit.address.node_id!r}"
        raise CorruptDocument(
            f"{where} can't be read by this {adapter}; it was left untouched."
        )
    return kind(**visit.document)


OPTIONS = (
    "response_schema",
    "assignees",
    "expires_in",
    "on_expire",
    "remind_every",
    "remind_after",
)
"""Fields that a question keeps when it is asked again."""


@immutable
class _Asked:
    """One question: the framework's id, our id, and whether the framework has its answer."""

    inner: str
    id: str
    number: int
    handed: bool = False


class Questions:
    """The questions of one visit.

    Args:
        kind: the adapter's kind, which begins the scope of every question.
        address: the visit's address.
        answers: the visit's answers.
        stored: the value of `document()` at the end of this visit's last execution.

    Raises:
        CorruptDocument: `stored` doesn't have the form of `document()`.
    """

    def __init__(
        self,
        kind: str,
        address: Address,
        answers: Mapping[str, Interrupt],
        stored: Sequence[JSON] = (),
    ) -> None:
        self._kind = kind
        self._address = address
        self._answers = answers
        try:
            stored_questions = [_Asked(**entry) for entry in stored]
        except TypeError as error:
            raise CorruptDocument(
                f"the stored questions of node {address.node_id!r} can't be read."
            ) from error
        self._asked = {question.inner: question for question in stored_questions}

    def ask(self, inner: str, name: str, reason: object = None, **options: Any) -> Interrupt:
        """Turn the framework's question `inner` into ours, with the options of `Address.ask`.

        If it is asked again after its answer was handed over, it is a new question: some frameworks
        number their calls from 1 in every turn.

        Raises:
            UsageError: the question can't be asked as it is.
        """
        scope, number = self.place(inner)
        question = numbered_question(
            self._address, self._answers, name, reason, scope=scope, number=number, **options
        )
        self._asked[inner] = _Asked(inner, question.id, number)
        return question

    def place(self, inner: str) -> tuple[str, int]:
        """Return the scope and number for the next time a question is asked."""
        earlier = self._asked.get(inner)
        number = 1 if earlier is None else earlier.number + earlier.handed
        return f"{self._kind}:{inner}", number

    def hand_over(self) -> JSONObject:
        """Return the answers that the framework doesn't have yet, by its own ids.

        Raises:
            InterruptExpired: a question wasn't answered in time.
            InterruptWithdrawn: a question was withdrawn.
        """
        answers = {}
        for inner, question in list(self._asked.items()):
            answer = self._answers.get(question.id)
            if (
                not question.handed
                and answer is not None
                and is_answered(answer)
                and not is_asked_again(answer)
            ):
                answers[inner] = answer_value(answer)
                self._asked[inner] = _Asked(inner, question.id, question.number, handed=True)
        return answers

    def take_back(self, inner: str) -> None:
        """Hand over the answers to `inner` and its calls again, because the framework lost them."""
        for call_name, question in self._asked.items():
            if f"{call_name}.".startswith(f"{inner}."):
                self._asked[call_name] = replace(question, handed=False)

    def close(self, inner: str) -> None:
        """Note that a call has begun; another call of its name gets a new question."""
        for call_name, question in self._asked.items():
            if call_name == inner or call_name.startswith(f"{inner}#"):
                self._asked[call_name] = replace(question, handed=True)

    def open_document(self, stored: Sequence[JSON]) -> list[JSON]:
        """Return `stored` and new questions, to store until this execution's answers count."""
        open_ = [entry for entry in self.document() if not entry["handed"]]
        return list({entry["inner"]: entry for entry in (*stored, *open_)}.values())

    def ask_again(self) -> list[Interrupt]:
        """Ask withdrawn questions again if their answers are still needed."""
        questions = []
        for inner, question in list(self._asked.items()):
            answer = self._answers.get(question.id)
            if not question.handed and answer is not None and is_asked_again(answer):
                options = {name: getattr(answer, name) for name in OPTIONS}
                questions.append(
                    self.ask(inner, answer.name, codec.unpack(answer.reason), **options)
                )
        return questions

    def document(self) -> list[JSON]:
        """Return the questions as JSON data, to continue in another process."""
        return [asdict(question) for question in self._asked.values()]


def strict(schema: Any) -> Any:
    """Return a tool's JSON Schema that refuses unknown names and requires names with defaults."""
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for name in {"properties", "$defs", "definitions"} & result.keys():
        result[name] = {key: strict(value) for key, value in result[name].items()}
    for name in {"items", "additionalProperties"} & result.keys():
        result[name] = strict(result[name])
    if "properties" not in result:
        # Beside `properties`, these describe the same object, and each alone would close it.
        for name in {"anyOf", "oneOf", "prefixItems"} & result.keys():
            result[name] = [strict(schema) for schema in result[name]]
    elif not {"anyOf", "oneOf", "allOf", "$ref", "if"} & result.keys():
        defaults = {
            name
            for name, each in result["properties"].items()
            if isinstance(each, Mapping) and "default" in each
        }
        result["required"] = sorted(defaults.union(result.get("required", ())))
        result.setdefault("additionalProperties", False)
    return result


def whole_call(tool: str, args: Any, schema: JSON) -> Any:
    """Return a call's arguments as the tool gets them, with its defaults; `schema` is strict, or None.

    Raises:
        UsageError: the arguments don't fit the schema.
    """
    if schema is None:
        return args
    spec: Any = SimpleNamespace(tool_name=tool, tool_spec={"inputSchema": {"json": schema}})
    return whole_arguments(spec, args)


@immutable
class FrameworkCall:
    """One tool call that a framework's agent asks about.

    `inner` names the call in the node's document and ends in the framework's id: see `inner_name`.
    `args_schema` is the tool's strict schema, if known; then people see the arguments as the tool
    gets them. `decisions` lists the decisions that the framework can carry out.
    """

    inner: str
    tool: str
    args: Any
    args_schema: JSON = None
    decisions: Sequence[str] = DECISIONS
    description: str = ""


Asked: TypeAlias = Interrupt | CallState | str | None
"""State of a call at the gate: see `CallGate.ask`."""


def inner_name(place: str, call_id: str) -> str:
    """Name a call by its place in a reply and its id, which another agent's call may share."""
    return f"{place}/{call_id}"


class CallGate:
    """The gate where the calls of a framework's agent begin.

    A call that needs approval begins only with this visit's judged, unused approval for the same
    tool, arguments and call id, or with a grant, whatever the framework's stored document says and
    even if nobody was asked. `approval` is the node's argument.
    """

    def __init__(self, visit: Visit, questions: Questions, approval: Gates) -> None:
        self._visit = visit
        self._questions = questions
        self._gates = approval
        self._begun: set[str] = set()
        self._granted: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def is_for(self, tool: str) -> bool:
        """Return whether a rule decides any calls of a tool."""
        return policies.of_tool(self._gates, tool) is not None

    def rule(self, tool: str, args: Any) -> Rule | None:
        """Return a call's rule, or None if it needs no approval. A policy's errors are raised."""
        return policies.rule_of(policies.of_tool(self._gates, tool), args, self._context(tool))

    def ask(self, call: FrameworkCall, schema: JSON) -> Asked:
        """Ask if a call may be made: by its rule, else by a plain question answered by `schema`.

        Returns a rule's open question or decision, a plain question (open or answered), a text that
        tells the model why the call can't be made, or None if it needs no approval.

        Raises:
            ApprovalMismatch: a decision doesn't hold for the call about to be made.
            InterruptExpired, InterruptWithdrawn: no answer came.
        """
        gate = policies.of_tool(self._gates, call.tool)
        try:
            whole = whole_call(call.tool, call.args, call.args_schema)
            self.action(call.tool, whole, call.args_schema).digest()
        except UsageError as error:
            return f"{error} The call was not made; send other arguments."
        if gate is None:
            reason = {"tool": call.tool, "args": whole, "description": call.description}
            return self._questions.ask(call.inner, call.tool, reason, response_schema=schema)
        gated_call = _GatedCall(self, call, self._visit, self._questions)
        state = decide(gate, gated_call, whole, self._context(call.tool))
        if isinstance(state, Granted):
            self._granted.append((call.tool, state.effect))
            return None
        return state.question if state and state.approval is None else state

    def begin(self, tool: str, args: Any, args_schema: JSON, call_id: str) -> None:
        """Let a call begin, and use its approval if it needs one.

        Raises:
            ApprovalMismatch: nobody has approved it. EffectsFrozen: the graph or the tool is frozen.
        """
        if not self.is_for(tool):
            return
        try:
            whole = whole_call(tool, args, args_schema)
            rule = self.rule(tool, whole)
        except UsageError as error:
            raise ApprovalMismatch(
                f"{error} Nobody can have approved this call of {tool!r}."
            ) from error
        if rule is None:
            return
        action = self.action(tool, whole, args_schema)
        effect = action.digest()
        with self._lock:
            if (tool, effect) in self._granted:
                self._granted.remove((tool, effect))
                return
            for question in self._visit.answers.values():
                if self._is_approved(question, rule, effect, call_id):
                    key = f"{self._visit.idempotency_key}/{question.scope}"
                    if question.used_key != key:
                        self._visit.use(Use(question.id, effect, key))
                    self._begun.add(question.id)
                    return
        judge = self._visit.address.judge
        # A crash may have separated an earlier execution's call from the grant counted for it.
        key = f"{self._visit.idempotency_key}/{call_id}/{self._visit.attempt}"
        if judge and rule.grants is not None and judge.use_grant(rule, action, key):
            return
        raise ApprovalMismatch(
            f"{tool!r} needs approval, and nobody has approved this call in this visit, or the approval was "
            "used: the call was not made."
        )

    def _is_approved(self, question: Interrupt, rule: Rule, effect: str, call_id: str) -> bool:
        address = self._visit.address
        judge = self._visit.address.judge
        name = re.sub(r"#\d+$", "", question.scope.partition(":")[2])
        if (
            judge is None
            or question.action is None
            or question.rule is None
            or question.id in self._begun
            or question.effect != effect
            or (question.run_id, question.node_id, question.visit)
            != (address.run_id, address.node_id, address.visit)
            or name.rpartition("/")[2] not in {call_id, ""}
        ):
            return False
        given = Rule.thawed(question.rule)
        return (
            judge.approval(as_asked(question), question).approved
            and wants_no_more(rule, given)
            and not judge.is_stale(rule, question)
        )

    def action(self, tool: str, args: Any, args_schema: JSON) -> Action:
        """Return the action of a call."""
        judge = self._visit.address.judge
        return Action(judge.tenant if judge else "", "tool", tool, args, args_schema)

    def _context(self, tool: str) -> CallContext:
        address = self._visit.address
        return CallContext(tool, address.run_id, address.node_id, address.visit, address.judge)


@immutable
class _GatedCall:
    """A framework's call, as the gate sees it."""

    gate: CallGate
    call: FrameworkCall
    visit: Visit
    questions: Questions

    @property
    def address(self) -> Address:
        return self.visit.address

    @property
    def answers(self) -> Mapping[str, Interrupt]:
        return self.visit.answers

    def question(self, step: int, rule: Rule, args: Any) -> Interrupt:
        call = self.call
        common = tuple(decision for decision in rule.decisions if decision in call.decisions)
        if not common:
            raise DefinitionError(
                f"the rule takes {', '.join(rule.decisions)} and the agent takes {', '.join(call.decisions)} "
                f"for {call.tool}, so no one could decide: nothing was run. Let both take one decision."
            )
        return self.questions.ask(
            self._inner(step),
            call.tool,
            call.description or f"{self.address.node_id} asks to call {call.tool}.",
            rule=replace(rule, decisions=common),
            action=self.action(args),
            response_schema=call.args_schema,
        )

    def earlier(self, step: int) -> list[Interrupt]:
        scope, number = self.questions.place(self._inner(step))
        position = (self.address.within + scope, number)
        return [
            answer
            for answer in self.answers.values()
            if (answer.scope, answer.number) == position
        ]

    def action(self, args: Any) -> Action:
        return self.gate.action(self.call.tool, args, self.call.args_schema)

    def use_key(self, step: int) -> str:
        scope, number = self.questions.place(self._inner(step))
        return f"{self.visit.idempotency_key}/{scope}/{number}"

    def _inner(self, step: int) -> str:
        return self.call.inner + (f"#{step}" if step else "")

    def policy_arguments(self, args: Any) -> Any:
        return args

    def edited(self, approval: Approval) -> Any:
        return whole_call(self.call.tool, approval.response, self.call.args_schema)


class FrameworkExecution(Generic[PastT]):
    """One execution of a node: its visit, its questions, its gate, and the state that it stores."""

    distribution: str
    """The package whose version is stored with the state."""

    def __init__(self, visit: Visit, past: PastT, kind: str, approval: Gates) -> None:
        self._visit = visit
        self._past = past
        self._approval = approval
        self._questions = Questions(kind, visit.address, visit.answers, past.questions)
        self._gate = CallGate(visit, self._questions, approval)
        self._messages = StoredMessages(visit.messages)
        self._stopped: Exception | None = None

    def _state(self) -> JSONObject:
        """Return the state to store."""
        return {
            **vars(self._past),
            "questions": self._questions.document(),
            "library": installed(self.distribution),
        }

    def _unanswered(self, asked: Iterable[Asked]) -> list[Interrupt]:
        """Return the questions that have no answer yet."""
        answers = self._visit.answers
        return [
            each for each in asked if isinstance(each, Interrupt) and each.id not in answers
        ]


class StoredMessages:
    """The stored messages of a visit; only a framework's new messages are written."""

    def __init__(self, stored: list[JSON]) -> None:
        self.stored = list(stored)

    def saved(self, document: JSONObject, messages: list[JSON]) -> Saved:
        """Return the document, and the messages after the last unchanged one, for storage."""
        pairs = zip(self.stored, messages, strict=False)
        shorter = min(len(self.stored), len(messages))
        keep = next(
            (
                i
                for i, (stored_message, message) in enumerate(pairs)
                if stored_message != message
            ),
            shorter,
        )
        self.stored = list(messages)
        return Saved(document, keep, messages[keep:])

    def unchanged(self, document: JSONObject) -> Saved:
        """Return a changed document for storage, with unchanged messages."""
        return Saved(document, len(self.stored))


# The answer to "may this tool call run?": strict, so that a misspelt answer isn't an approval.


class Approved(BaseModel):
    """The call may run, with `override_args` if given."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["tool-approved"]
    override_args: JSONObject | None = None


class Denied(BaseModel):
    """The call may not run; the model gets the message as its result."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["tool-denied"]
    message: str = "The tool call was denied."


approval: TypeAdapter[bool | Approved | Denied] = TypeAdapter(StrictBool | Approved | Denied)
"""True, false, or one of the two objects; people are shown its JSON Schema."""


ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def packed(output: Any) -> tuple[JSON, JSON]:
    """Return an agent's output packed for storage, and as plain JSON."""
    try:
        return codec.pack(output, "the agent's output"), codec.plain(output)
    except UnstorableError:
        # Dataclasses, dates and similar have a JSON form that the framework itself would send.
        output = ANYTHING.dump_python(output, mode="json")
        return codec.pack(output, "the agent's output"), codec.plain(output)


def usage_of(**counts: int) -> dict[str, int]:
    """Return token counts, with cache counts only if the cache was used."""
    return {
        name: count for name, count in counts.items() if count or not name.startswith("cache")
    }
