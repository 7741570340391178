"""Tools: functions that a model may call, and any object shaped like Strands' AgentTool.

A function's parameters become a JSON Schema, and its docstring becomes the text for the model.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
    runtime_checkable,
)

import pydantic
import pydantic_core
from pydantic.json_schema import GenerateJsonSchema

from runner import async_loop
from runner.agent.context import ToolContext
from runner.agent.models.protocol import TOOL_NAME
from runner.approvals import policies
from runner.approvals.digests import Action
from runner.approvals.policies import ApprovalPolicy
from runner.approvals.rules import Rule
from runner.errors import DefinitionError, UnstorableError, UsageError
from runner.records import codec, validation
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.interrupts import Judge

CONTEXT_PARAMETER = "tool_context"
AGENT = re.compile(
    r"(<class '|(typing\.)?Optional\[)?[\w.<>]*(\bAny|Agent|AgentView)('>|\])?( \| None)?"
)
"""An annotation that means an agent, as text."""
STATUSES = frozenset({"success", "error"})
BLOCKS = frozenset({"text", "json", "image", "document", "video"})

Parameters = ParamSpec("Parameters")
Further = ParamSpec("Further")
Returned = TypeVar("Returned")


@runtime_checkable
class AgentTool(Protocol):
    """A tool with a name and a spec, whose stream ends with the result."""

    @property
    def tool_name(self) -> str:
        """The name by which the model calls it."""

    @property
    def tool_spec(self) -> JSONObject:
        """Specification for the model: name, description, inputSchema."""

    def stream(
        self, tool_use: JSONObject, invocation_state: JSONObject, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run the tool; the last item it yields is the result."""


def check_tool_schema(name: str, schema: JSONMapping) -> None:
    """Check the number of paths in a tool's input schema.

    Raises:
        DefinitionError: the schema has too many paths, or refers to something outside itself.
    """
    try:
        validation.check_paths(schema, f"the input schema of tool {name!r}")
    except UsageError as error:
        raise DefinitionError(str(error)) from None


class FunctionTool(Generic[Parameters, Returned]):
    """A function that a model may call and that other code still calls as before."""

    tool_type = "function"

    def __init__(
        self,
        function: Callable[Parameters, Returned],
        name: str | None = None,
        description: str | None = None,
        *,
        context: bool | str = False,
        schema: JSONMapping | None = None,
        approval: Rule | ApprovalPolicy | None = None,
    ) -> None:
        """Read the function's signature and docstring. For `approval`, see `tool`.

        Raises:
            DefinitionError: the name or a parameter can't be given to a model.
        """
        self.function = function
        self.tool_name = name or function.__name__
        if schema is not None:
            check_tool_schema(self.tool_name, schema)
        if not TOOL_NAME.fullmatch(self.tool_name):
            raise DefinitionError(
                f"a tool can't be called {self.tool_name!r}: use letters, digits, _ and -."
            )
        self._context = _context_parameter(function, context)
        self._agent = _agent_parameter(function)
        skip = (*_self_parameter(function), *filter(None, [self._context, self._agent]))
        self._signature = Signature(function, skip, is_open=schema is not None)
        self._has_schema = schema is not None
        docstring = inspect.getdoc(function) or ""
        self.tool_spec = {
            "name": self.tool_name,
            "description": description
            or PARAMETERS.sub("", docstring).strip()  # the schema describes parameters
            or self.tool_name,
            "inputSchema": {
                "json": dict(schema) if schema is not None else self._signature.schema
            },
        }
        self.approval = policies.checked(
            approval,
            f"tool {self.tool_name!r}",
            self.whole_schema.get("properties", {}) if approval else None,
        )
        self._self: Any = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        """Call the plain function."""
        function: Callable[..., Returned] = self.function
        if self._self is None:
            return function(*args, **kwargs)
        return function(self._self, *args, **kwargs)

    def __get__(
        self: FunctionTool[Concatenate[Any, Further], Returned],
        instance: object,
        owner: type | None = None,
    ) -> FunctionTool[Further, Returned]:
        """Bind a method to its instance."""
        del owner
        bound: FunctionTool[Further, Returned] = FunctionTool.__new__(FunctionTool)
        bound.__dict__.update(self.__dict__)
        bound._self = instance
        return bound

    async def invoke(self, tool_input: Any, context: ToolContext) -> Any:
        """Check the input and run the function; a sync one runs on a thread.

        Raises:
            pydantic.ValidationError: the input doesn't fit the schema.
        """
        arguments = self._signature.arguments(_object(tool_input))
        if self._agent:
            arguments[self._agent] = context.agent
        if self._context:
            arguments[self._context] = context
        call: Callable[..., Any] = self
        if inspect.iscoroutinefunction(self.function):
            return await call(**arguments)
        value = await async_loop.in_thread(call, **arguments)
        return await value if inspect.isawaitable(value) else value

    async def stream(
        self, tool_use: JSONObject, invocation_state: JSONObject, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run the function where an AgentTool is expected, and yield its result.

        Raises:
            DefinitionError: the function needs a context and `tool_context` isn't given.
        """
        context = kwargs.get(CONTEXT_PARAMETER)
        if (self._context or self._agent) and not isinstance(context, ToolContext):
            raise DefinitionError(
                f"tool {self.tool_name} needs a ToolContext: pass it as tool_context."
            )
        del invocation_state
        value = await self.invoke(tool_use.get("input"), context)  # type: ignore[arg-type] # unused without
        yield {"toolUseId": tool_use.get("toolUseId"), **result_of(value, self.tool_name)}

    def arguments(self, tool_input: JSONMapping) -> dict[str, Any]:
        """Return the arguments as the types declared by the function.

        Raises:
            pydantic.ValidationError: they don't fit the schema.
        """
        return self._signature.arguments(tool_input)

    @property
    def whole_schema(self) -> JSONObject:
        """The schema of a call's whole arguments: see `whole_arguments`."""
        signature_schema = self._signature.whole_schema
        if self._has_schema:
            return _closed(_input_schema(self), signature_schema)
        return signature_schema

    def whole(self, tool_input: JSONMapping) -> JSONObject:
        """Return the arguments as the function gets them; see `Signature.whole`."""
        from_signature = self._signature.whole(tool_input)
        if self._has_schema:
            return {**_with_defaults(tool_input, self.whole_schema), **from_signature}
        return from_signature


# -- the arguments of a call that people approve -----------------------------------------------------


def whole_schema(tool: AgentTool) -> JSONObject:
    """Return the schema of a call's whole arguments, with all defaults and no unknown names."""
    if isinstance(tool, FunctionTool):
        return tool.whole_schema
    return _closed(_input_schema(tool), {})


def _input_schema(tool: Any) -> JSONObject:
    schema: JSONObject = tool.tool_spec.get("inputSchema", {}).get("json", {})
    return schema


def whole_arguments(tool: AgentTool, tool_input: Any) -> JSONObject:
    """Return a call's validated arguments, so that people are shown exactly what the tool gets.

    Raises:
        pydantic.ValidationError: they don't fit the function. UsageError: they don't fit the
        schema, have a name that isn't in it, or can't be shown.
    """
    arguments = _object(tool_input)
    schema = whole_schema(tool)
    whole = (
        tool.whole(arguments)
        if isinstance(tool, FunctionTool)
        else _with_defaults(arguments, schema)
    )
    path, message = validation.violation(schema, whole)
    if message:
        where = "".join(f"[{key!r}]" for key in path or ())
        raise UsageError(
            f"the arguments{where} do not fit the schema of {tool.tool_name}: {message}."
        )
    return whole


def typed_arguments(tool: AgentTool, whole: JSONMapping) -> JSONMapping:
    """Return whole arguments as the types declared by a function; other tools' are unchanged."""
    return {**whole, **tool.arguments(whole)} if isinstance(tool, FunctionTool) else whole


def call_action(tool: AgentTool, args: Any, judge: Judge | None) -> Action:
    """Return the action of a call with its whole arguments."""
    return Action(
        judge.tenant if judge else "", "tool", tool.tool_name, args, _input_schema(tool)
    )


def _object(tool_input: Any) -> JSONMapping:
    if not isinstance(tool_input, Mapping):
        raise UsageError(
            f"the arguments of a call are an object, not {type(tool_input).__name__}."
        )
    return tool_input


def _with_defaults(tool_input: JSONMapping, schema: JSONMapping) -> JSONObject:
    properties = schema.get("properties", {})
    defaults = {
        name: property_schema["default"]
        for name, property_schema in properties.items()
        if "default" in _part(property_schema)
    }
    whole: JSONObject = codec.plain({**defaults, **tool_input})
    return whole


def _part(schema: Any) -> JSONMapping:
    return schema if isinstance(schema, Mapping) else {}


def _closed(schema: JSONMapping, signature_schema: JSONMapping) -> JSONObject:
    """Return a given schema that includes the function's other parameters and is closed."""
    if "properties" not in schema:
        return dict(schema)
    closed_schema = {
        **schema,
        "properties": {**signature_schema.get("properties", {}), **schema["properties"]},
        "required": sorted(
            {*signature_schema.get("required", ()), *schema.get("required", ())}
        ),
        "$defs": {**signature_schema.get("$defs", {}), **schema.get("$defs", {})},
    }
    combinators = {"allOf", "anyOf", "oneOf", "$ref", "if"} & schema.keys()
    closed_schema.setdefault(
        "unevaluatedProperties" if combinators else "additionalProperties", False
    )
    return closed_schema


class ToolDecorator(Protocol):
    """Decorator returned by `tool(...)` with options; the function keeps its signature."""

    def __call__(
        self, function: Callable[Parameters, Returned], /
    ) -> FunctionTool[Parameters, Returned]:
        """Make the function a tool."""


def _context_parameter(function: Callable[..., Any], context: object) -> str | None:
    if not context:
        return None
    name = CONTEXT_PARAMETER if context is True else str(context)
    if name not in inspect.signature(function).parameters:
        raise DefinitionError(
            f"{function.__qualname__} takes no {name!r}; add the parameter for the context."
        )
    return name


def _agent_parameter(function: Callable[..., Any]) -> str | None:
    """Return `agent` if the parameter of that name is for the agent, by its type or without one."""
    parameter = inspect.signature(function).parameters.get("agent")
    if parameter is None:
        return None
    hint = parameter.annotation
    return parameter.name if (hint is parameter.empty or AGENT.fullmatch(str(hint))) else None


def _self_parameter(function: Callable[..., Any]) -> tuple[str, ...]:
    name = next(iter(inspect.signature(function).parameters), "")
    return (name,) if name in ("self", "cls") else ()


@overload
def tool(function: Callable[Parameters, Returned], /) -> FunctionTool[Parameters, Returned]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    context: bool | str = False,
    inputSchema: JSONMapping | None = None,  # noqa: N803 - the name of the format's field
    approval: Rule | ApprovalPolicy | None = None,
) -> ToolDecorator: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    context: bool | str = False,
    inputSchema: JSONMapping | None = None,  # noqa: N803 - as above
    approval: Rule | ApprovalPolicy | None = None,
) -> Any:
    """Make a function a tool for agents; it stays callable as before.

    The input schema comes from type hints and the docstring, unless `inputSchema` is given. With
    `context=True` the function gets a ToolContext as `tool_context`; a string names the parameter.
    With `approval` people are asked before each call and shown the exact call. It is a rule, or a
    function that takes the call's validated arguments and a `CallContext` and returns a rule, or
    None if the call needs no approval.

    Raises:
        DefinitionError: the function or its name can't be given to a model.
    """

    def wrap(function: Callable[..., Any]) -> FunctionTool[..., Any]:
        return FunctionTool(
            function, name, description, context=context, schema=inputSchema, approval=approval
        )

    return wrap(function) if function is not None else wrap


class StructuredOutputTool:
    """The tool that a model calls with the structured output; the call ends the invocation."""

    tool_type = "structured_output"

    def __init__(self, model: type[pydantic.BaseModel]) -> None:
        self.model = model
        self.tool_name = model.__name__
        self.tool_spec = {
            "name": self.tool_name,
            "description": (model.__doc__ or "").strip()
            or "Give the final answer in this form.",
            "inputSchema": {"json": model.model_json_schema()},
        }

    async def stream(
        self, tool_use: JSONObject, invocation_state: JSONObject, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Check the input; the shell takes the output from the call itself."""
        del invocation_state, kwargs
        self.model.model_validate(tool_use["input"])
        yield {
            "status": "success",
            "content": [{"text": "Accepted."}],
            "toolUseId": tool_use["toolUseId"],
        }


def tools_by_name(tools: Iterable[Any]) -> dict[str, AgentTool]:
    """Collect tools by name; an object with `as_tool()` (an agent) becomes a tool.

    Raises:
        DefinitionError: an item isn't a tool, or two have the same name.
    """
    by_name: dict[str, AgentTool] = {}
    for item in tools:
        agent_tool = item.as_tool() if hasattr(item, "as_tool") else item
        if not isinstance(agent_tool, AgentTool):
            raise DefinitionError(f"{item!r} is not a tool; decorate the function with @tool.")
        if agent_tool.tool_name in by_name:
            raise DefinitionError(
                f"two tools are called {agent_tool.tool_name!r}; rename one of them."
            )
        by_name[agent_tool.tool_name] = agent_tool
    return by_name


def spec_of(tool: AgentTool) -> JSONObject:
    spec: JSONObject = codec.unpack(
        codec.pack(tool.tool_spec, f"the spec of tool {tool.tool_name}")
    )
    return spec


# -- results of tools --------------------------------------------------------------------------------


def result_of(value: Any, name: str) -> JSONObject:
    """Turn a tool's return value into a packed result without its id.

    A dict with status and content, or a list of content blocks, is used as it is.

    Raises:
        UnstorableError: the value can't be stored.
    """
    field = f"the result of tool {name}"
    if isinstance(value, pydantic.BaseModel):
        value = codec.plain(value)
    if is_result(value):
        result: JSONObject = codec.pack({k: value[k] for k in ("status", "content")}, field)
        return result
    if _is_content(value):
        return {"status": "success", "content": codec.pack(value, field)}
    if isinstance(value, Mapping):
        return {"status": "success", "content": [{"json": codec.pack(value, field)}]}
    if isinstance(value, bytes):
        raise UnstorableError(f"{field} is bytes; return text, JSON data or a content block.")
    if isinstance(value, str):
        text = codec.pack(value, field)
    else:
        text = codec.dump_json(codec.plain(codec.pack(value, field))).decode()
    return {"status": "success", "content": [{"text": text}]}


def is_result(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.get("status") in STATUSES
        and isinstance(value.get("content"), list)
    )


def _is_content(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(block, Mapping) and len(block) == 1 and block.keys() <= BLOCKS
            for block in value
        )
    )


def replaced_result(value: Any, name: str) -> JSONObject:
    """Check a callback's replacement for a tool's result.

    Raises:
        UsageError: it doesn't have the shape of a tool result.
    """
    if not is_result(value):
        raise UsageError(f"a callback gave tool {name} a result without status and content.")
    return result_of(value, name)


# -- a function's description for a model ------------------------------------------------------------

PARAMETERS = re.compile(
    r"\A#?[ \t]*(?:Args|Arguments|Parameters|Params)[ \t]*:(?:\n.+)*|"  # loses its indentation
    r"^([ \t]*)(?:#?[ \t]*(?:Args|Arguments|Parameters|Params)[ \t]*:[ \t]*|:(?:param|type)\b.*)$"
    r"(?:\n(?:\1[ \t]+\S.*|[ \t]*)$)*\n?",
    re.MULTILINE,
)
GOOGLE = re.compile(r"^\s*#?\s*(?:Args|Arguments|Parameters|Params)\s*:\s*$")
ENTRY = re.compile(r"^(?P<name>\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")


class _WithoutTitles(GenerateJsonSchema):
    """Schemas without titles, which would only repeat names and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False


class _Whole(_WithoutTitles):
    """Schemas of whole arguments: every field is required except a TypedDict's optional keys."""

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: FBT001 - the signature of pydantic
        return field["type"] != "typed-dict-field" or super().field_is_required(field, total)


class Signature:
    """Parameters that a model passes to a function: `schema` describes, `arguments` checks them."""

    def __init__(
        self, function: Callable[..., Any], skip: Iterable[str] = (), *, is_open: bool = False
    ) -> None:
        """Read the function; parameters in `skip` are filled in by the runner.

        Names that aren't parameters are refused, unless `is_open`: then another schema checks them.

        Raises:
            DefinitionError: a parameter can't be passed by name, or has no schema.
        """
        self._skip = frozenset(skip)
        self._extra: Literal["ignore", "forbid"] = "ignore" if is_open else "forbid"
        self._descriptions = _parameter_descriptions(inspect.getdoc(function) or "")
        self._names: dict[str, str] = {}
        self.model = self._model(function)

    def _model(self, function: Callable[..., Any]) -> type[pydantic.BaseModel]:
        fields: JSONObject = {}
        hints = self._hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if name in self._skip or parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise DefinitionError(
                    f"{function.__qualname__}: a model passes arguments by name, and {parameter} does "
                    "not take one; use a plain parameter."
                )
            # Fields get generated names, because a parameter may be called `schema` or `_x`.
            field = f"p{len(fields)}"
            self._names[field] = name
            fields[field] = self._field(name, hints.get(name, Any), parameter)
        try:
            config = pydantic.ConfigDict(extra=self._extra)
            return pydantic.create_model(function.__name__, __config__=config, **fields)
        except (TypeError, pydantic.errors.PydanticUserError) as error:
            raise DefinitionError(
                f"the parameters of {function.__qualname__} have no schema: {error}"
            ) from error

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        # Types of the context and the result, which a model doesn't pass, may exist only for type
        # checkers.
        annotations = getattr(function, "__annotations__", {})
        hints = {
            key: hint
            for key, hint in annotations.items()
            if key not in self._skip and key != "return"
        }
        holder = types.SimpleNamespace(__annotations__=hints)
        try:
            return get_type_hints(
                holder, getattr(function, "__globals__", {}), include_extras=True
            )
        except NameError as error:
            raise DefinitionError(
                f"{function.__qualname__}: {error}, so its input has no schema."
            ) from error

    def _field(self, name: str, hint: Any, parameter: inspect.Parameter) -> Any:
        plain, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        text = next(
            (extra for extra in extras if isinstance(extra, str)), self._descriptions.get(name)
        )
        # In pydantic the last of several Fields wins, so the user's come after this one.
        field_info = pydantic.Field(alias=name, description=text)
        annotation: Any = Annotated[plain, field_info, *extras]
        if parameter.default is parameter.empty:
            return annotation
        return (annotation, parameter.default)

    @property
    def schema(self) -> JSONObject:
        return self._schema(_WithoutTitles)

    @functools.cached_property
    def whole_schema(self) -> JSONObject:
        """The schema of complete arguments without unknown names, at any depth."""
        schema = self._schema(_Whole)
        _close(schema)
        return schema

    def _schema(self, generator: type[GenerateJsonSchema]) -> JSONObject:
        schema = self.model.model_json_schema(by_alias=True, schema_generator=generator)
        schema.pop("title", None)
        schema.setdefault("properties", {})
        return schema

    def arguments(self, tool_input: JSONMapping) -> dict[str, Any]:
        """Check an input and return the arguments as the types declared by the function.

        Raises:
            pydantic.ValidationError: the input doesn't fit the schema.
        """
        validated_input = self.model.model_validate(tool_input)
        return {name: getattr(validated_input, field) for field, name in self._names.items()}

    def whole(self, tool_input: JSONMapping) -> JSONObject:
        """Check an input and return it as the function gets it, as JSON data with all defaults.

        Raises:
            pydantic.ValidationError: the input doesn't fit the schema.
            UsageError: an object in it has an unknown name, the arguments can't be written as JSON
                that reads back as the same value, or a default differs each time.
        """
        validated_input = self.model.model_validate(tool_input)
        whole: JSONObject = _as_json(
            validated_input.model_dump(by_alias=True, round_trip=True, warnings=False)
        )
        if any(
            self.model.model_validate(again) != validated_input for again in (whole, tool_input)
        ):
            raise UsageError(
                "the arguments have no form that can be shown and reads as the same again."
            )
        by_name = {name: value for name, value in tool_input.items() if name in whole}
        if unknown := sorted(_dropped(by_name, whole)):
            raise UsageError(
                f"the arguments have names that {self.model.__name__} does not: {unknown}."
            )
        return whole


def _dropped(value: Any, whole: Any) -> Iterator[str]:
    """Yield the names in the input that validation left out."""
    if isinstance(value, Mapping) and isinstance(whole, Mapping):
        yield from value.keys() - whole.keys()
        for name in value.keys() & whole.keys():
            yield from _dropped(value[name], whole[name])
    elif isinstance(value, (list, tuple)) and isinstance(whole, list):
        for item, validated_item in zip(value, whole, strict=False):
            yield from _dropped(item, validated_item)


def _as_json(value: Any) -> JSON:
    """Write a value as JSON data; a set has the same order in every process."""
    if isinstance(value, Mapping):
        names = (next(iter(pydantic_core.to_jsonable_python({key: None}))) for key in value)
        return dict(zip(names, map(_as_json, value.values()), strict=True))
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(_as_json, value), key=codec.dump_json)
    return codec.plain(pydantic_core.to_jsonable_python(value))


def _close(schema: Any) -> None:
    """Refuse unknown names in every object with properties in a schema written by pydantic."""
    if not isinstance(schema, dict):
        return
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    for name in ("properties", "$defs"):
        for subschema in schema.get(name, {}).values():
            _close(subschema)
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for subschema in schema.get(name, ()):
            _close(subschema)
    for name in ("items", "additionalProperties"):
        _close(schema.get(name))


def _parameter_descriptions(docstring: str) -> dict[str, str]:
    """Read each parameter's description, in Google or Sphinx style."""
    lines = docstring.splitlines()
    start = next((i + 1 for i, line in enumerate(lines) if GOOGLE.match(line)), None)
    if start is not None:
        return _entries(lines[start:], ENTRY)
    return _entries([line for line in lines if line.strip()], SPHINX)


def _entries(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Collect `name: text`; deeper lines continue the entry, a line further left ends the section."""
    entries: dict[str, str] = {}
    depth: int | None = None
    name = ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        match = pattern.match(line.strip())
        if not line.strip():
            continue
        if depth is not None and indent < depth:
            break
        if match and (depth is None or indent == depth):
            depth = indent
            name = match["name"].lstrip("*")
            entries[name] = match["text"].strip()
        elif name and depth is not None and indent > depth:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries
