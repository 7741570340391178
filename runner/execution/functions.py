"""Functions as nodes: one context in, JSON data or a pydantic model out; `typed` adds checked data.

A resumed function runs again from its top; `interrupt()` returns the answers it has, and `once()`
returns its results without running again.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import (
    Any,
    ForwardRef,
    Literal,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
import pydantic_core

from runner import async_loop
from runner.approvals.ballots import Use
from runner.approvals.rules import Approval, Rule
from runner.definition.model import Definition, FailurePolicy, index_of
from runner.errors import (
    ApprovalMismatch,
    CorruptDocument,
    DataMismatch,
    DefinitionError,
    InterruptRaised,
    LeaseLost,
    RetryAfter,
    RunnerError,
    RunStopped,
    UsageError,
)
from runner.immutable import immutable
from runner.records import codec, validation
from runner.records.asking import Asker, typed_interrupt
from runner.records.checkpoints import Saved
from runner.records.codec import JSONObject
from runner.records.executors import Visit, function_input, input_text, restorers
from runner.records.interrupts import Interrupt, InterruptOptions
from runner.records.outcomes import Failed, Interrupted, Outcome, Succeeded
from runner.records.read_back import difference
from runner.records.run_ids import effect_name

# Functions with types: the input is checked before they run, and the returned value after.
#
# A function's one annotated parameter is its input; a parameter that is annotated as NodeContext,
# or not annotated, is the context. Data that doesn't fit is a DataMismatch, and the node fails with
# it. A function that takes the context alone is called as it is, without a look at its annotations.


KIND = "function"

Adapter = pydantic.TypeAdapter[Any]

Result = TypeVar("Result")

_returned: dict[str, Adapter] = {}
"""Result types of the typed functions of this process, by the function's name."""


class NodeSignature(Protocol):
    """Signature of a node function: how it is called, and how its result is stored."""

    def call(self, context: Any, visit: Visit) -> Any:
        """Call the function; the result may be awaitable."""

    def stored(self, result: Any, visit: Visit) -> tuple[Any, Any]:
        """Return the packed result and its plain JSON form."""


@immutable
class Untyped:
    """A function of the context alone."""

    function: Callable[[Any], Any]

    def call(self, context: Any, visit: Visit) -> Any:
        del visit
        return self.function(context)

    def stored(self, result: Any, visit: Visit) -> tuple[Any, Any]:
        """Pack the result; any JSON data or pydantic model is accepted."""
        return codec.pack_result(result, visit.input_values, visit.check_store)


@immutable
class Typed:
    """A function of checked data. `filled` are the parameters for the data and the context, in order."""

    function: Callable[..., Any]
    name: str
    data: inspect.Parameter
    filled: tuple[inspect.Parameter, ...]
    taken: Adapter
    returned: Adapter | None

    def call(self, context: Any, visit: Visit) -> Any:
        """Check the input and call the function with it.

        Raises:
            DataMismatch: the input doesn't fit the annotation.
        """
        source, value = function_input(visit.task, visit.inputs)
        try:
            data = _validated(self.taken, value)
        except pydantic.ValidationError as error:
            raise DataMismatch(
                f"node {visit.address.node_id!r} was not run: {source} does not fit the parameter "
                f"{self.data.name!r} of {self.name}: {validation.of_model(error)}. It is not tried again; "
                "change the input, or the annotation."
            ) from error
        values = [(item, data if item is self.data else context) for item in self.filled]
        by_name = {
            item.name: value for item, value in values if item.kind is not item.POSITIONAL_ONLY
        }
        return self.function(
            *(value for item, value in values if item.name not in by_name), **by_name
        )

    def stored(self, result: Any, visit: Visit) -> tuple[Any, Any]:
        """Check the returned value against the annotation, and pack it.

        Raises:
            DataMismatch: it doesn't fit. UnstorableError: it can't be stored.
        """
        if self.returned is None:
            return codec.pack_result(result, visit.input_values, visit.check_store)
        try:
            value = _checked(self.returned, result)
            data = _dumped(self.returned, value, round_trip=True)
            output = _dumped(self.returned, value, round_trip=False)
            if data != value:  # JSON data is read back unchanged
                self._check_read_back(value, _validated(self.returned, data), visit)
            if output != data and not _fits(self.returned, output):
                output = data  # a node that takes this type would refuse computed fields
        except (pydantic.ValidationError, pydantic_core.PydanticSerializationError) as error:
            problems = (
                validation.of_model(error)
                if isinstance(error, pydantic.ValidationError)
                else str(error)
            )
            raise DataMismatch(
                f"the result of node {visit.address.node_id!r} does not fit the annotation of "
                f"{self.name}: {problems}. It is not stored and the node is not tried again; change "
                "the returned value, or the annotation."
            ) from error
        return _packed(self.name, value, data), output

    def _check_read_back(self, value: Any, again: Any, visit: Visit) -> None:
        """Check that the next node gets the value that this node returned.

        Raises:
            DataMismatch: part of it would be another value.
        """
        if path := difference(value, again):
            raise DataMismatch(
                f"node {visit.address.node_id!r} ran, but {path} of its result would be another "
                "value when it is read back, so the result is not stored and the node is not tried again: "
                f"give {self.name} a type whose JSON form has all of it."
            )


def _fits(adapter: Adapter, value: Any) -> bool:
    try:
        _validated(adapter, value)
    except pydantic.ValidationError:
        return False
    return True


def signature_of(function: object, context: type) -> NodeSignature | None:
    """Return how a function is called as a node, or None if it can't be; `context` is NodeContext.

    Raises:
        DefinitionError: its annotations can't be checked, or it takes several inputs.
    """
    if not callable(function):
        return None
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None
    roles: dict[str, list[inspect.Parameter]] = {"context": [], "data": []}
    for parameter in parameters:
        roles.setdefault(_role(parameter, function, context), []).append(parameter)
    contexts = roles["context"]
    data = roles["data"]
    mandatory = _mandatory(data)
    if not mandatory and (contexts or not data):
        return Untyped(function) if _takes_one(function) else None
    if len(_mandatory(contexts)) > 1:
        return None
    chosen = mandatory or data[:1]
    arguments = [*chosen, *contexts[:1]]
    return _typed(function, chosen, tuple(filter(arguments.__contains__, parameters)))


def _mandatory(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    return [parameter for parameter in parameters if parameter.default is parameter.empty]


def _typed(
    function: Callable[..., Any],
    data: Sequence[inspect.Parameter],
    arguments: tuple[inspect.Parameter, ...],
) -> Typed:
    name = _name(function)
    chosen = data[0]
    if len(data) > 1:
        raise DefinitionError(
            f"{name} takes {len(data)} inputs ({', '.join(parameter.name for parameter in data)}), and a "
            "node has one: give it one parameter, a model with a field for each node before it."
        )
    input_adapter = _adapter(
        _hint(function, chosen.annotation, name, chosen.name), name, chosen.name
    )
    signature = Typed(
        function, name, chosen, arguments, input_adapter, _result_adapter(function, name)
    )
    if signature.returned is not None:
        _returned[name] = signature.returned
    return signature


def restore(json_value: Any) -> Any:
    """Restore a function's result as its declared type, if this process has the function.

    Raises:
        CorruptDocument: a model's class no longer takes the data.
    """
    name = json_value.get(codec.TYPED_KEY) if isinstance(json_value, dict) else None
    value = codec.unpack(json_value)
    if name not in _returned:
        return value
    try:
        return _validated(_returned[name], value)
    except pydantic.ValidationError:
        # The annotation has changed since: the run must still be readable.
        return value


restorers[KIND] = restore


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


def _role(parameter: inspect.Parameter, function: object, context: type) -> str:
    """Return a parameter's role. If it could be anything, it is the context, as in untyped functions."""
    written = parameter.annotation
    is_optional = parameter.default is not parameter.empty
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return ""
    if written is parameter.empty:
        return "" if is_optional else "context"
    if isinstance(written, str) and written.rpartition(".")[2].strip() == context.__name__:
        return "context"  # perhaps imported for type checkers only
    hint = _resolved(function, written)
    kinds = [hint, *get_args(hint)]
    is_context = any(isinstance(kind, type) and issubclass(kind, context) for kind in kinds)
    return "context" if is_context or hint in (Any, object) else "data"


def _resolved(function: object, written: Any) -> Any:
    """Look an annotation up in the function's module; return None if a name in it is unknown."""
    try:
        holder = type("Holder", (), {"__annotations__": {"it": written}})
        return get_type_hints(holder, _namespace(function), include_extras=True)["it"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return None


def _hint(function: object, written: Any, name: str, parameter: str) -> Any:
    hint = _resolved(function, written)
    if hint is None:
        raise DefinitionError(
            f"{name}: the annotation {written!r} of {parameter!r} can't be looked up; define or import "
            "its names at the top of the function's module."
        )
    return hint


def _namespace(function: object) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    if not hasattr(function, "__globals__"):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its globals are needed, not whether it exists
    return getattr(function, "__globals__", {})


def _name(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    definition = function if hasattr(function, "__qualname__") else type(function)
    return f"{definition.__module__}:{getattr(definition, '__qualname__', '?')}"


def _result_adapter(function: Callable[..., Any], name: str) -> Adapter | None:
    written = inspect.signature(function).return_annotation
    if written is inspect.Signature.empty:
        return None
    hint = _hint(function, written, name, "return")
    if get_origin(hint) in (Awaitable, Coroutine):
        hint = get_args(hint)[-1]
    return None if hint is Any else _adapter(hint, name, "return")


def _adapter(hint: Any, name: str, parameter: str) -> Adapter:
    as_base64 = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    try:
        try:
            return pydantic.TypeAdapter(hint, config=as_base64)
        except pydantic.errors.PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            return pydantic.TypeAdapter(hint)  # a model has its own configuration
    except (
        pydantic.errors.PydanticUserError,
        pydantic.errors.PydanticUndefinedAnnotation,
    ) as error:
        shown = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
        raise DefinitionError(
            f"{name}: {shown!r} of {parameter!r} isn't a type whose JSON can be checked; use a pydantic "
            f"model, a dataclass or JSON types. {str(error).partition(chr(10))[0]}"
        ) from error


def _validated(adapter: Adapter, value: Any) -> Any:
    return adapter.validate_json(
        codec.dump_json(value), strict=True, by_alias=True, by_name=True
    )


def _checked(adapter: Adapter, result: Any) -> Any:
    """Return an object of the declared type unchanged; validate anything else from its JSON form."""
    try:
        return adapter.validate_python(result, strict=True)
    except pydantic.ValidationError as error:
        try:
            plain = pydantic_core.to_json(result, bytes_mode="base64")
        except pydantic_core.PydanticSerializationError:
            raise error from None
        return adapter.validate_json(plain, strict=True, by_alias=True, by_name=True)


def _dumped(adapter: Adapter, value: Any, *, round_trip: bool) -> Any:
    data = adapter.dump_python(value, mode="json", round_trip=round_trip, warnings="error")
    return codec.pack_result(data)[1]


def _packed(name: str, value: Any, data: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        cls = type(value)
        if codec.imported(f"{cls.__module__}:{cls.__qualname__}") is cls:
            return codec.pack(value, "result")  # any program that has the class reads it
    elif data == value:
        return codec.pack(value, "result")
    return {codec.TYPED_KEY: name, "data": codec.pack(data, "result")}


class Inputs(dict[str, Any]):
    """Outputs by node id. The usual mistake is to read a node that has no edge to this one."""

    def __missing__(self, node_id: str) -> Any:
        """Raise a KeyError that names the existing inputs."""
        names = ", ".join(self) or "nothing"
        raise KeyError(
            f"no output of {node_id!r} came to this node; ctx.inputs has {names}. It needs an edge "
            f"from {node_id!r}, taken in this visit."
        )


class NodeContext:
    """Context of a function node: it reads its run, asks, remembers and reports.

    `invocation_state` is the state given to the run beside its task. `run_id`, `graph_id`,
    `node_id`, `visit` and `attempt` say where it is; `item_index` is None outside of maps.
    """

    def __init__(self, visit: Visit) -> None:
        """Wrap one visit; made by the engine, not by users."""
        self._visit = visit
        self._asker = Asker(visit.address, "function", answers=visit.answers, repeat=True)
        document = visit.document or {}
        ours = document.get("visit") == visit.address.visit
        self._once: dict[str, Any] = dict(document["once"]) if ours else {}
        self._lock = threading.Lock()
        self._approval_key = ""
        self.invocation_state: JSONObject = visit.invocation_state
        self.run_id: str = visit.address.run_id
        self.node_id: str = visit.address.node_id
        self.graph_id: str = visit.graph_id
        self.visit: int = visit.address.visit
        self.attempt: int = visit.attempt
        self.item_index: int | None = index_of(visit.address.node_id)

    @functools.cached_property
    def task(self) -> Any:
        """The task of the run; for a map's item, the item."""
        return self._visit.task

    @functools.cached_property
    def inputs(self) -> JSONObject:
        """The outputs of the previous nodes by node id, decoded when the function first asks for them."""
        return Inputs({item.node_id: item.output for item in self._visit.inputs})

    @property
    def input_text(self) -> str:
        """The task and the outputs of the previous nodes, as one text in edge order."""
        return input_text(self.task, self._visit.inputs)

    @property
    def idempotency_key(self) -> str:
        """The same text at every start of this visit: pass it to services that accept one.

        It derives from the idempotency key of the run's start, so a run started again with that
        key, after the store was lost, does not pay twice. After `approved` it is the key of that
        approval, in every visit that could use it.
        """
        return self._approval_key or self._visit.idempotency_key

    @typed_interrupt
    def interrupt(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        **options: Unpack[InterruptOptions],
    ) -> Any:
        """Ask a person, or return the answer: the first call ends this execution, a later one returns.

        `response` answers at once. An answer must fit `response_schema` (a pydantic model, whose
        instance is then returned, or a JSON Schema); `assignees` are the people who may give it.
        `expires_in` is in seconds; then `on_expire` applies: "reject" (the default:
        InterruptExpired is raised here), {"response": value}, "fail" (the node fails) or {"route":
        node} (an edge for that leads on). People are reminded every `remind_every` seconds, or
        `remind_after` these seconds. `title` is a sentence with names of the reason in braces.

        With a `rule` people vote, and an `Approval` is returned, even for a rejection. `action` is
        the action to approve (an object of JSON data): the function must then do exactly that, or
        the new action of an edit. `risk` is "low" or "high".

        Raises:
            UsageError: an argument can't be used. UnstorableError: the reason can't be stored.
            InterruptExpired: no answer came in time. ApprovalMismatch: the question is not the one that was
                decided, or the votes don't come to the decision; the node is held.
        """
        self.check()
        answer, question = self._asker.decide(name, reason, response, **options)
        if question.rule is not None:
            self._use(question, answer)
        return answer

    def _use(
        self,
        question: Interrupt,
        approval: Approval,
        role: Literal["asks", "follows"] = "asks",
    ) -> None:
        """Record once for this visit that it now acts on a decision."""
        key = self._visit.idempotency_key
        is_recorded = question.used_key == key
        if approval.decision not in {"reject", "expired"} and not is_recorded:
            self._visit.use(Use(question.id, approval.effect, key, role), self.saved())

    def approved(
        self,
        name: str,
        action: Mapping[str, Any] | None = None,
        *,
        rule: Rule | None = None,
        node: str | None = None,
    ) -> Approval:
        """Return and use up the approval that an earlier node got for this node's next action.

        The `node` asked the question `name` with the same `action`; after an edit, with the new
        one. Without `node`, a node whose output comes to this one asked it. If people approve the
        node `name`, its rule applies. Otherwise pass the `rule` by which the code asks: any client
        that writes to the store can lower the stored question's rule.

        Raises:
            ApprovalMismatch: no one has approved just this, it was used elsewhere, or it has no rule; the
                node is held.
        """
        self.check()
        question, approval = self._visit.approved(name, action, rule, node)
        self._use(question, approval, "follows")
        # A client of the store can make a used approval new: then the effect is a repeat by its
        # key.
        self._approval_key = effect_name(self.run_id) + question.id.removeprefix(self.run_id)
        return approval

    def once(
        self,
        key: str,
        fn: Callable[[], Result],
        *,
        on_unknown: Literal["repeat", "raise"] = "repeat",
    ) -> Result:
        """Run `fn` until one of its results is recorded in this visit, and never after that.

        A crash between the effect and the record repeats it, with the same idempotency key. With
        `on_unknown="raise"` the intent is recorded first, and a crash in between raises instead. An
        async function that passes an async `fn` awaits the returned value.

        Raises:
            RunnerError: with on_unknown="raise", an earlier start left no result.
            UnstorableError: the result can't be stored.
        """
        self.check()
        if on_unknown not in ("repeat", "raise"):
            raise UsageError(
                f"once({key!r}): on_unknown is 'repeat' or 'raise', not {on_unknown!r}."
            )
        if inspect.iscoroutinefunction(fn) and async_loop.is_running():
            awaitable: Any = self._once_async(key, fn, on_unknown)
            return cast("Result", awaitable)
        if self._begins(key, on_unknown):
            try:
                self._finish(key, _awaited(fn()))
            except InterruptRaised:
                self._forget(key)
                raise
        return cast("Result", self._recall(key))

    async def _once_async(
        self, key: str, fn: Callable[[], Awaitable[Any]], on_unknown: str
    ) -> Any:
        if await async_loop.in_thread(self._begins, key, on_unknown):
            try:
                await async_loop.in_thread(self._finish, key, await fn())
            except InterruptRaised:
                await async_loop.in_thread(self._forget, key)
                raise
        return self._recall(key)

    def _begins(self, key: str, on_unknown: str) -> bool:
        if key in self._once:
            return False
        self._visit.check_effect()
        if on_unknown == "raise":
            self._record(key, {"begun": True})
        return True

    def _finish(self, key: str, result: object) -> None:
        self._record(key, {"result": codec.pack(result, f"the result of once({key!r})")})

    def _forget(self, key: str) -> None:
        """Forget a call that a question ended: it is unfinished, and begins again with the answer."""
        if key in self._once:
            self._record(key, None)

    def _recall(self, key: str) -> Any:
        entry = self._once[key]
        if "result" in entry:
            return codec.unpack(entry["result"])
        raise RunnerError(
            f"once({key!r}) was started before and left no result: it may or may not have happened. "
            "Look at the service: if it has, skip the node with its output, and the run goes on: "
            "`runner runs skip RUN NODE --output JSON`; otherwise start a new run."
        )

    def _record(self, key: str, entry: JSONObject | None) -> None:
        with self._lock:
            results = {name: result for name, result in self._once.items() if name != key}
            self._once = results if entry is None else {**results, key: entry}
            self._visit.save(self.saved())

    def saved(self) -> Saved:
        """Return the state that this function keeps across pauses."""
        return Saved({"v": 1, "visit": self.visit, "once": self._once})

    def progress(self, fraction: float, note: str = "") -> None:
        """Report this node's progress, from 0 to 1, to people who watch the run."""
        self.check()
        self._visit.emit("progress", {"fraction": float(fraction), "note": note})

    def check(self) -> None:
        """Raise if this worker may no longer run the node. Call it in long loops; the other methods do.

        Raises:
            LeaseLost: another worker goes on. RunStopped: the run was cancelled. NodeTimedOut: the node
                is past its timeout.
        """
        self._visit.check()

    @property
    def mismatch(self) -> ApprovalMismatch | None:
        """The reason why a decision of this execution is invalid, even if the code continued."""
        return self._asker.mismatch

    @property
    def asked(self) -> list[Interrupt]:
        """Questions of this execution that have no answer yet."""
        return self._asker.asked


def _awaited(result: Any) -> Any:
    return async_loop.run(_wait(result)) if inspect.isawaitable(result) else result


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


class FunctionNode:
    """The executor for a function, sync or async."""

    kind = KIND

    def __init__(self, function: Callable[..., Any], signature: NodeSignature) -> None:
        """Wrap a function, called by its `signature`. Made by `function_node`."""
        self.function, self.signature = function, signature
        self.is_async = inspect.iscoroutinefunction(function)

    def execute(self, visit: Visit) -> Outcome:
        """Run the function once; an error that it raises is its failure."""
        context = NodeContext(visit)
        outcome: Outcome | None = None
        try:
            if self.is_async:
                _ = (
                    context.task,
                    context.inputs,
                )  # decoded now: not on the loop of all async nodes
            result = _awaited(self.signature.call(context, visit))
            outcome = Succeeded(*self.signature.stored(result, visit))
        except (
            ApprovalMismatch,
            CorruptDocument,
            LeaseLost,
            RunStopped,
            KeyboardInterrupt,
            SystemExit,
        ):
            raise
        except BaseException as error:
            # Code that swallows, wraps or replaces the exception of a question can't lose the
            # question.
            if not context.asked:
                if isinstance(error, RetryAfter) or not isinstance(error, Exception):
                    raise
                outcome = Failed.of(error)
        if context.mismatch is not None:
            raise context.mismatch
        if outcome is None or context.asked:
            saved = context.saved()
            keeps = saved.document["once"] or visit.document is not None
            return Interrupted(context.asked, saved if keeps else None)
        return outcome


def task_schema(definition: Definition) -> JSONObject | None:
    """Return the JSON Schema of a graph's task as its first functions declare it; None for any JSON."""
    signatures = [
        getattr(definition.nodes[name].executor, "signature", None)
        for name in definition.entries
    ]
    adapters = [signature.taken for signature in signatures if isinstance(signature, Typed)]
    try:
        schemas = [adapter.json_schema() for adapter in adapters]
    except pydantic.errors.PydanticInvalidForJsonSchema:
        return None
    return schemas[0] if schemas and all(schema == schemas[0] for schema in schemas) else None


def result_schema(definition: Definition) -> JSONObject | None:
    """Return the JSON Schema of the output of a completed run, as the graph's last function declares it.

    None if it declares none, people may answer instead of it, or the graph may end elsewhere.
    """
    sources = {edge.source for edge in definition.edges}
    last = [node for name, node in definition.nodes.items() if name not in sources]
    may_end_elsewhere = definition.policy is not FailurePolicy.FAIL_FAST or any(
        edge.condition or edge.on_expire for edge in definition.edges
    )
    if len(last) != 1 or last[0].map or last[0].approval or may_end_elsewhere:
        return None
    returned = getattr(getattr(last[0].executor, "signature", None), "returned", None)
    if returned is None:
        return None
    try:
        schema: JSONObject = returned.json_schema(by_alias=False, mode="serialization")
    except pydantic.errors.PydanticInvalidForJsonSchema:
        return None
    return schema


def function_node(function: object) -> FunctionNode | None:
    """Wrap a function of one NodeContext, or of typed data and perhaps the context; None for others.

    Raises:
        DefinitionError: its types can't be checked.
    """
    signature = signature_of(function, NodeContext)
    if signature is None or not callable(function):
        return None
    return FunctionNode(function, signature)
