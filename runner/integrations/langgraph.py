"""A compiled LangGraph graph as a node (extra `langgraph`).

Its checkpoints are in the node's document: each is stored before the next superstep begins, so
another worker can continue after a crash. Each `interrupt()` of the graph becomes one question for
people, and so does each tool call of LangChain's `HumanInTheLoopMiddleware`, which a rule may
decide. The graph continues once all are answered, because it reruns a node that asked from its top.
Errors of the graph fail the node.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as installed
from typing import Any

from runner import async_loop
from runner.agent.machine.state import add_usage
from runner.approvals.gate import CallState
from runner.approvals.policies import Gates, ToolApprovals
from runner.approvals.rules import DECISIONS, Approval, Rule
from runner.errors import (
    CorruptDocument,
    DefinitionError,
    ModelFault,
    UnstorableError,
    UsageError,
    needs_extra,
)
from runner.immutable import immutable
from runner.integrations.framework import (
    Asked,
    FrameworkCall,
    FrameworkExecution,
    FrameworkNode,
    Past,
    inner_name,
    strict,
    whole_call,
)
from runner.records import codec
from runner.records.asking import with_problem
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.executors import Visit, function_input, input_text
from runner.records.interrupts import Interrupt
from runner.records.nested_schemas import nested
from runner.records.outcomes import Interrupted, Outcome, Succeeded

with needs_extra("langgraph", "LangGraphNode"):
    import langgraph.types
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import LLMResult
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.serde.types import ERROR, RESUME
    from langgraph.errors import is_invalid_resume
    from langgraph.pregel import Pregel
    from pydantic import ValidationError

KIND = "langgraph"

_MESSAGE = {"message": {"type": "string"}}
_EDITED = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "args": {"type": "object"}},
    "required": ["name", "args"],
    "additionalProperties": False,
}
_FIELDS: dict[str, tuple[JSONObject, list[str]]] = {
    "approve": ({}, []),
    "edit": ({"edited_action": _EDITED}, ["edited_action"]),
    "reject": (_MESSAGE, []),
    "respond": (_MESSAGE, ["message"]),
}


class LangGraphNode(FrameworkNode):
    """A node that runs a compiled LangGraph graph; each visit is a separate thread.

    Args:
        factory: compiles the graph with the given checkpointer, at each call.
        input: makes the graph's input from the visit; without it the task and the inputs become a
            user message if the state has `messages`, otherwise the input of a typed function.
        output: makes the node's output from the final state; without it the output is the content
            of the last message, or the state.
        approval: the rule that decides calls of the tools that the middleware asks about (of all
            tools in a graph without `HumanInTheLoopMiddleware`); or a function that takes a call's
            arguments and a `CallContext` and returns its rule, or None if the call needs no
            approval; or a mapping from tool names to either. Without it any answer is accepted.
        types: classes of objects in the state, besides LangChain's; others are not loaded.
        name: the node's id, unless `add_node` gives one.
        version: change it if waiting runs must not continue with the new code.
    """

    kind = KIND
    built_type = Pregel

    def __init__(
        self,
        factory: Callable[[InMemorySaver], Pregel[Any, Any, Any, Any]],
        *,
        input: Callable[[Visit], Any] | None = None,  # noqa: A002 - as LangGraph calls it
        output: Callable[[Any], Any] | None = None,
        approval: ToolApprovals = None,
        types: Iterable[type] = (),
        name: str | None = None,
        version: str = "",
    ) -> None:
        super().__init__(factory, approval, name, version)
        self._input, self._output = input, output
        self._types = [(cls.__module__, cls.__name__) for cls in types]

    async def _execute(self, visit: Visit) -> Outcome:
        past = self._past(_LangGraphPast, visit)
        visit.check()
        execution = _Execution(visit, past, self._types, self._approval)
        graph = await async_loop.in_thread(self._factory, execution.saver)
        _check(graph)
        execution.saver.keeps_all = _has_deltas(graph)
        make = self._input or (lambda visit: _input(graph, visit))
        interrupts = await execution.run(graph, make)
        if interrupts:
            return Interrupted(interrupts, execution.saved(), execution.usage)
        values = (await graph.aget_state(execution.config)).values
        output = await async_loop.in_thread(self._output or _output, values)
        try:
            result = codec.pack(output, "the graph's output")
        except UnstorableError as error:
            raise UnstorableError(
                f"{error} Return JSON data or a pydantic model from output=."
            ) from None
        return Succeeded(result, codec.plain(output), execution.usage, execution.saved())


@dataclass(kw_only=True)
class _LangGraphPast(Past):
    """Stored state; `thread` is the checkpointer's document.

    `interrupt_ids` are the interrupts that got the last answers; `problems` say why the graph
    refused an answer, by interrupt id.
    """

    thread: JSON = None
    interrupt_ids: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def _check(graph: Any) -> None:
    """Refuse anything but a graph with this checkpointer.

    Raises:
        DefinitionError: the graph can't be run as a node.
    """
    if not isinstance(graph, Pregel) or not isinstance(graph.checkpointer, NodeCheckpointer):
        raise DefinitionError(
            "the factory of a LangGraphNode didn't return a graph with its checkpointer, so nothing was run: "
            "return builder.compile(checkpointer=checkpointer)."
        )
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise DefinitionError(
            "the graph has interrupt_before or interrupt_after, which ask nothing answerable, so "
            "nothing was run: call interrupt() in the node."
        )


def _graphs(graph: Any) -> list[Any]:
    """List a graph and the graphs inside it."""
    return [graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))]


def _has_deltas(graph: Any) -> bool:
    """Return whether restoring a channel needs checkpoints before the newest one."""
    return any(
        isinstance(channel, DeltaChannel)
        for subgraph in _graphs(graph)
        for channel in subgraph.channels.values()
    )


class _Execution(FrameworkExecution[_LangGraphPast]):
    """One execution of a graph, and the state to store."""

    distribution = "langgraph"

    def __init__(
        self,
        visit: Visit,
        past: _LangGraphPast,
        types: Sequence[tuple[str, str]],
        approval: Gates,
    ) -> None:
        super().__init__(visit, past, KIND, approval)
        self._last_ids = past.interrupt_ids
        self._schemas: JSONObject = {}
        self._callbacks = _Callbacks(visit, self._begin)
        self._asked_about: frozenset[str] | None = None
        self.saver = NodeCheckpointer(past.thread, self._save, types)
        self.config: Any = {
            "configurable": {
                "thread_id": visit.idempotency_key,
                "idempotency_key": visit.idempotency_key,
            },
            "callbacks": [self._callbacks],
        }

    async def run(self, graph: Any, make_input: Callable[[Visit], Any]) -> list[Interrupt]:
        """Run until the graph is done, or return its open questions."""
        self._schemas = _tool_schemas(graph)
        self._asked_about = _asked_about(graph, self._approval)
        state = await self._stored_state(graph)
        while True:
            command: Any = None
            if state.created_at is None:
                command = await async_loop.in_thread(make_input, self._visit)
            elif state.interrupts:
                if any(
                    "action_requests" in each.value
                    for each in state.interrupts
                    if isinstance(each.value, Mapping)
                ):
                    state = await graph.aget_state(self.config, subgraphs=True)
                asked = await async_loop.in_thread(self._ask_all, state)
                if open_questions := self._unanswered(asked):
                    return open_questions
                command = langgraph.types.Command(resume=await self._answers(state))
            elif not state.tasks:  # `next` lacks tasks that have written in an unfinished step
                return []
            try:
                await graph.ainvoke(command, self.config, durability="sync")
            except ValidationError as error:
                if not is_invalid_resume(error):
                    raise
                problem = "; ".join(each["msg"] for each in error.errors())
                self._past.problems = dict.fromkeys(self._past.interrupt_ids.values(), problem)
            finally:
                if self._callbacks.stopped:
                    raise self._callbacks.stopped
            self._visit.check()
            state = await graph.aget_state(self.config)

    async def _stored_state(self, graph: Any) -> Any:
        try:
            return await graph.aget_state(self.config)
        except Exception as error:
            raise CorruptDocument(
                f"langgraph {installed('langgraph')} can't read the checkpoints that version "
                f"{self._past.library} has stored: {error!r}. Run the node with that version."
            ) from error

    # -- questions --------------------------------------------------------------------------------

    def _ask_all(self, state: Any) -> list[Asked]:
        ids = _CallIds(state)
        return [
            each
            for inner, interrupt in _asks(state)
            for each in self._ask(inner, interrupt, ids)
        ]

    def _ask(self, inner: str, interrupt: Any, ids: _CallIds) -> list[Asked]:
        """Ask for one interrupt; each tool call in it gives a question, a decision or None."""
        if self._last_ids.get(inner) == interrupt.id:  # the graph hasn't saved an answer
            self._questions.take_back(inner)
        if calls := _calls(interrupt):
            return [
                self._ask_call(inner_name(f"{inner}.{number}", ids.of(call)), call, interrupt)
                for number, call in enumerate(calls)
            ]
        name, reason = _title(interrupt.value)
        if problem := self._past.problems.get(interrupt.id):
            reason = with_problem(reason, problem)
        return [
            self._questions.ask(inner, name, reason, response_schema=interrupt.response_schema)
        ]

    def _ask_call(self, inner: str, call: _Call, interrupt: Any) -> Asked:
        args_schema = self._schemas.get(call.name)
        schema = args_schema is None and interrupt.response_schema
        framework_call = FrameworkCall(
            inner, call.name, call.args, args_schema, call.allowed, call.description
        )
        return self._gate.ask(framework_call, schema or _decision_schema(call, args_schema))

    async def _answers(self, state: Any) -> JSONObject:
        """Return the answers by interrupt id.

        Raises:
            ApprovalMismatch: a decision doesn't hold for the call about to be made.
            InterruptExpired: no answer came in time. InterruptWithdrawn: a question was withdrawn.
        """
        ids = _CallIds(state)
        asked = [
            (inner, each, await async_loop.in_thread(self._ask, inner, each, ids))
            for inner, each in _asks(state)
        ]
        given = self._questions.hand_over()
        answers = {}
        for inner, interrupt, questions in asked:
            calls = _calls(interrupt)
            if not calls:
                answers[interrupt.id] = given[inner]
                continue
            plain = {
                each: answer for each, answer in given.items() if each.startswith(f"{inner}.")
            }
            decisions = [
                self._decision(call, question, plain.get(_inner_of(question)))
                for call, question in zip(calls, questions, strict=True)
            ]
            batched = "action_requests" in interrupt.value
            answers[interrupt.id] = {"decisions": decisions} if batched else decisions[0]
        self._past.interrupt_ids = {inner: interrupt.id for inner, interrupt, _ in asked}
        self._last_ids = {}
        return answers

    def _decision(self, call: _Call, question: Asked, answer: Any) -> Any:
        """Return one decision in the middleware's form; edits that don't fit become rejections."""
        if question is None:
            return {"type": "approve"}
        if isinstance(question, CallState) and question.approval is not None:
            whole = whole_call(call.name, call.args, self._schemas.get(call.name))
            return _decision_of(call, question.approval, question.args, whole)
        if isinstance(question, Interrupt):
            try:
                self._check_edit(call, answer)
            except UsageError as error:
                question = str(error)
            else:
                return answer
        if "reject" not in call.allowed:
            raise UsageError(str(question))
        return {"type": "reject", "message": str(question)}

    def _check_edit(self, call: _Call, decision: JSONMapping) -> None:
        """Refuse an edit that lacks arguments the tool would get, even if a door accepted it.

        Raises:
            UsageError: the edit leaves arguments out, or doesn't fit the tool.
        """
        if decision["type"] != "edit":
            return
        args = decision["edited_action"]["args"]
        if whole_call(call.name, args, self._schemas.get(call.name)) != args:
            raise UsageError(f"the edit leaves arguments of {call.name} to their defaults.")

    def _begin(self, tool: str, args: Any, call_id: str) -> None:
        """Let a call begin, or refuse it: see `CallGate.begin`."""
        if self._asked_about is None or tool in self._asked_about:
            self._gate.begin(tool, args, self._schemas.get(tool), call_id)

    # -- storage ----------------------------------------------------------------------------------

    @property
    def usage(self) -> dict[str, int]:
        """The tokens of this visit."""
        return add_usage(self._past.usage, self._callbacks.usage)

    def saved(self) -> Saved:
        """Return the state to store."""
        return Saved(
            {
                **self._state(),
                "begun": True,
                "usage": self.usage,
                "thread": self.saver.document(),
            }
        )

    def _save(self) -> None:
        self._visit.save(self.saved())


def _inner_of(question: Asked) -> str:
    return question.scope.partition(":")[2] if isinstance(question, Interrupt) else ""


class _CallIds:
    """The ids of the tool calls in a state: an interrupt for several calls doesn't contain them."""

    def __init__(self, state: Any) -> None:
        self._calls = list(_tool_calls(state))

    def of(self, call: _Call) -> str:
        """Return the id of a call, and give it to no other call; "" if it isn't known."""
        for middleware in self._calls:
            if (middleware["name"], middleware["args"]) == (call.name, call.args) and (
                call.id in {"", middleware["id"]}
            ):
                self._calls.remove(middleware)
                return str(middleware["id"])
        return call.id


def _tool_calls(state: Any) -> Iterator[Any]:
    """Yield the calls of the last reply in a state, and in its subgraphs."""
    values = state.values if isinstance(state.values, Mapping) else {}
    for message in reversed(values.get("messages") or ()):
        if isinstance(message, AIMessage):
            yield from message.tool_calls
            break
    for task in state.tasks:
        if hasattr(task.state, "tasks"):
            yield from _tool_calls(task.state)


def _asks(state: Any) -> list[tuple[str, Any]]:
    """List a graph's interrupts, each under a name that is the same in every process.

    LangGraph's own ids change if a crash has lost the first checkpoint.
    """
    open_ids = {interrupt.id for interrupt in state.interrupts}
    step = (state.metadata or {}).get("step")
    return [
        (f"{step}.{task.name}.{place}.{number}", interrupt)
        for place, task in enumerate(state.tasks)
        for number, interrupt in enumerate(task.interrupts)
        if interrupt.id in open_ids
    ]


@immutable
class _Call:
    """A tool call that people review; `id` is "" if the middleware doesn't give it."""

    name: str
    args: JSONObject
    description: str
    allowed: Sequence[str]
    id: str = ""


def _calls(interrupt: Any) -> list[_Call]:
    """List the tool calls in an interrupt of `HumanInTheLoopMiddleware`; others have none."""
    value = interrupt.value
    if not isinstance(value, Mapping):
        return []
    if value.get("type") == "tool_approval":
        return [
            _Call(
                value["name"],
                value["args"],
                value.get("description", ""),
                _types(interrupt),
                str(value.get("tool_call_id") or ""),
            )
        ]
    allowed = {
        config["action_name"]: config["allowed_decisions"]
        for config in value.get("review_configs", ())
    }
    return [
        _Call(
            request["name"],
            request["args"],
            request.get("description", ""),
            allowed.get(request["name"], DECISIONS),
        )
        for request in value.get("action_requests", ())
    ]


def _types(interrupt: Any) -> Sequence[str]:
    """List the decisions accepted by the answer schema of one tool call."""
    schema = interrupt.response_schema or {}
    one = schema.get("properties", {}).get("type", {}).get("const")
    return [*schema.get("discriminator", {}).get("mapping", [one] if one else DECISIONS)]


def _title(value: Any) -> tuple[str, Any]:
    """Return a question's name, which is the action for LangChain's agent inbox, and its reason."""
    request = value.get("action_request") if isinstance(value, Mapping) else None
    name = request.get("action") if isinstance(request, Mapping) else None
    return (name if isinstance(name, str) and name else "interrupt"), codec.plain(value)


def _tool_schemas(graph: Any) -> JSONObject:
    """Return the argument schemas of all tools in a graph and its subgraphs, by name.

    None if tools of one name have different schemas, as it isn't known which one is called, or for
    Pydantic 1.
    """
    nodes = [node.bound for each in _graphs(graph) for node in each.nodes.values()]
    tools = [each for node in nodes for each in getattr(node, "tools_by_name", {}).values()]
    schemas: JSONObject = {}
    for tool in tools:
        form = tool.tool_call_schema
        if not isinstance(form, dict):
            # A decision's schema would not find the definitions of a Pydantic 1 model.
            form = getattr(form, "model_json_schema", lambda: None)()
        schema = strict(form)
        if schemas.setdefault(tool.name, schema) != schema:
            schemas[tool.name] = None
    return schemas


def _asked_about(graph: Any, approval: Gates) -> frozenset[str] | None:
    """Return the tools that a rule applies to: those in `HumanInTheLoopMiddleware`; None for all.

    Raises:
        DefinitionError: a middleware asks only about some calls of a tool, or not about a tool with
            a rule.
    """
    if not isinstance(approval, (Rule, Mapping)):
        return None
    middleware = {id(each): each for one in _graphs(graph) for each in _middleware(one)}
    asked_about = {
        tool: config
        for each in middleware.values()
        for tool, config in each.interrupt_on.items()
    }
    if isinstance(approval, Mapping):
        if missing := sorted(approval.keys() - asked_about.keys()) if middleware else []:
            raise DefinitionError(
                f"approval= has rules for {missing}, and HumanInTheLoopMiddleware does not ask about them: "
                "nothing was run. Name them in interrupt_on, too."
            )
        return None
    if not middleware:
        return None
    if partial_ones := sorted(
        tool for tool, config in asked_about.items() if config.get("when")
    ):
        raise DefinitionError(
            f"HumanInTheLoopMiddleware asks only about some calls of {partial_ones}, by `when`, which is not "
            "checked when a call begins, so nothing was run: leave it out, and give approval= a function "
            "that returns None for the other calls."
        )
    return frozenset(asked_about)


def _middleware(graph: Any) -> Iterator[Any]:
    """Yield middleware that asks about tool calls; its hooks are bound methods in agents' nodes."""
    seen: set[int] = set()
    queue: list[Any] = [node.bound for node in graph.nodes.values()]
    while queue:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(getattr(item, "interrupt_on", None), Mapping):
            yield item
            continue
        names = ("func", "afunc", "__self__", "__func__", "_wrap_tool_call", "_awrap_tool_call")
        queue += [each for name in names if (each := getattr(item, name, None)) is not None]
        queue += [
            cell.cell_contents
            for cell in getattr(item, "__closure__", None) or ()
            if _is_filled(cell)
        ]


def _is_filled(cell: Any) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:
        return False


def _decision_schema(call: _Call, args_schema: Any) -> JSONObject:
    args, top = nested(args_schema or {"type": "object"})

    def decision(kind: str) -> JSONObject:
        fields, required = _FIELDS[kind]
        if kind == "edit" and args_schema is not None:
            properties = {"name": {"const": call.name}, "args": args}
            fields = {"edited_action": {**_EDITED, "properties": properties}}
        return {
            "type": "object",
            "properties": {"type": {"const": kind}, **fields},
            "required": ["type", *required],
            "additionalProperties": False,
        }

    return {"anyOf": [decision(kind) for kind in DECISIONS if kind in call.allowed], **top}


def _decision_of(call: _Call, approval: Approval, args: Any, whole: Any) -> JSONObject:
    """Return a rule's decision in the middleware's form: an approval after an edit is an edit."""
    match approval.decision:
        case "approve" if args == whole:
            return {"type": "approve"}
        case "approve" | "edit":
            return {"type": "edit", "edited_action": {"name": call.name, "args": args}}
        case "reject":
            message = approval.response["rejected"]
            return {"type": "reject", **({"message": str(message)} if message else {})}
    return {"type": "respond", "message": str(approval.response)}


class _Callbacks(BaseCallbackHandler):
    """Counts tokens, and stops tools that are frozen or lack a needed approval."""

    raise_error = True
    run_inline = True

    def __init__(self, visit: Visit, begin: Callable[[str, Any, str], None]) -> None:
        self._visit, self._begin = visit, begin
        self.usage: dict[str, int] = {}
        self.stopped: Exception | None = None

    def on_tool_start(
        self,
        serialized: JSONObject,
        input_str: str,
        *,
        inputs: Any = None,
        tool_call_id: str | None = None,
        **_: Any,
    ) -> None:
        """Let a call begin if it isn't frozen and has any approval it needs.

        An error raised here makes the node fail or be held, even if the graph turns it into a
        message for the model.
        """
        name = str(serialized.get("name", ""))
        try:
            self._visit.check_effect(name)
            self._begin(name, input_str if inputs is None else inputs, tool_call_id or "")
        except Exception as error:
            self.stopped = error
            raise

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        """Add the tokens of a reply, and check its calls before any of them begins.

        Raises:
            ModelFault: two calls have the same id, so the middleware could apply an edit to the
                wrong one.
        """
        for generation in (each for batch in response.generations for each in batch):
            message = getattr(generation, "message", None)
            if not isinstance(message, AIMessage):
                continue
            if counts := message.usage_metadata:
                self.usage = add_usage(
                    self.usage,
                    {
                        "inputTokens": counts["input_tokens"],
                        "outputTokens": counts["output_tokens"],
                        "totalTokens": counts["total_tokens"],
                    },
                )
            if len({call["id"] for call in message.tool_calls}) < len(message.tool_calls):
                raise ModelFault(
                    "the model gave one id to two calls of a reply; none of them was made."
                )
            for call in message.tool_calls:
                self._visit.check_effect(call["name"])


# -- the checkpointer --------------------------------------------------------------------------------


class NodeCheckpointer(InMemorySaver):
    """A checkpointer that keeps JSON data; `save` is called after each change.

    It keeps the newest checkpoint of each namespace, so that the data doesn't grow with the steps;
    with `keeps_all` it keeps all. Objects whose classes are neither LangChain's nor in `types` are
    loaded as data.
    """

    def __init__(
        self, document: JSON, save: Callable[[], object], types: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Restore a document from `document()`, unless it is None.

        Raises:
            CorruptDocument: the document has another form.
        """
        super().__init__(serde=JsonPlusSerializer(allowed_msgpack_modules=types or None))
        self.keeps_all = False
        self._save = save
        self._lock = threading.RLock()
        try:
            self._restore(document or {})
        except codec.READ_ERRORS as error:
            raise CorruptDocument(
                f"langgraph {installed('langgraph')} can't read the checkpoints that were stored: {error}."
            ) from error

    def _restore(self, document: JSONMapping) -> None:
        for thread, namespace, key, checkpoint, metadata, parent in document.get(
            "checkpoints", ()
        ):
            self.storage[thread][namespace][key] = (
                _typed(checkpoint),
                _typed(metadata),
                parent,
            )
        for thread, namespace, key, task, index, channel, value, path in document.get(
            "writes", ()
        ):
            self.writes[thread, namespace, key][task, index] = (
                task,
                channel,
                _typed(value),
                path,
            )
        for thread, namespace, channel, number, value in document.get("values", ()):
            self.blobs[thread, namespace, channel, number] = _typed(value)

    def document(self) -> JSONObject:
        """Return all checkpoints as JSON data."""
        with self._lock:
            return {
                "checkpoints": [
                    [thread, namespace, key, _text(checkpoint), _text(metadata), parent]
                    for thread, namespaces in self.storage.items()
                    for namespace, entries in namespaces.items()
                    for key, (checkpoint, metadata, parent) in entries.items()
                ],
                "writes": [
                    [*key, task, index, channel, _text(value), path]
                    for key, writes in self.writes.items()
                    for (task, index), (_, channel, value, path) in writes.items()
                ],
                "values": [[*key, _text(value)] for key, value in self.blobs.items()],
            }

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Store a checkpoint."""
        with self._lock:
            stored = super().put(config, checkpoint, metadata, new_versions)
            if not self.keeps_all:
                self._drop_older(stored["configurable"], checkpoint["channel_versions"])
            self._save()
        return stored

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes, without the answers if it failed: it gets them again."""
        if any(channel == ERROR for channel, _ in writes):
            writes = [write for write in writes if write[0] != RESUME]
        with self._lock:
            super().put_writes(config, writes, task_id, task_path)
            self._save()

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        with self._lock:
            super().delete_thread(thread_id)
            self._save()

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Store a checkpoint."""
        return await async_loop.in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes."""
        await async_loop.in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        await async_loop.in_thread(self.delete_thread, thread_id)

    def _drop_older(self, stored: JSONMapping, versions: JSONMapping) -> None:
        """Drop the data that a new checkpoint replaces.

        After a step of the whole graph, its subgraphs, whose namespaces name tasks, have ended.
        """
        thread = stored["thread_id"]
        namespace = stored["checkpoint_ns"]
        namespaces = self.storage[thread]
        namespaces[namespace] = {
            stored["checkpoint_id"]: namespaces[namespace][stored["checkpoint_id"]]
        }
        ended = [] if namespace else [each for each in namespaces if ":" in each]
        for each in ended:
            del namespaces[each]
        for task_writes in [key for key in self.writes if key[0] == thread]:
            is_replaced = (
                task_writes[1] == namespace and task_writes[2] < stored["checkpoint_id"]
            )
            if task_writes[1] in ended or is_replaced:
                del self.writes[task_writes]
        for value in [key for key in self.blobs if key[0] == thread]:
            is_replaced = value[1] == namespace and versions.get(value[2]) != value[3]
            if value[1] in ended or is_replaced:
                del self.blobs[value]


def _text(value: tuple[str, bytes]) -> list[str]:
    kind, data = value
    return [kind, base64.b64encode(data).decode()]


def _typed(value: Sequence[str]) -> tuple[str, bytes]:
    kind, text = value
    return kind, base64.b64decode(text)


# -- input and output --------------------------------------------------------------------------------


def _input(graph: Any, visit: Visit) -> Any:
    if "messages" in graph.channels:
        return {"messages": [{"role": "user", "content": input_text(visit.task, visit.inputs)}]}
    return function_input(visit.task, visit.inputs)[1]


def _output(values: Any) -> Any:
    messages = values.get("messages") if isinstance(values, Mapping) else None
    return messages[-1].content if messages else codec.plain(values)
