"""Tools: functions that a model may call, and any object of the shape of Strands' AgentTool."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Protocol, overload, runtime_checkable

from runner import codec, loops
from runner.agent.context import ToolContext
from runner.agent.models.port import TOOL_NAME
from runner.agent.results import content_of
from runner.agent.signatures import Signature, description
from runner.errors import DefinitionError

CONTEXT_PARAMETER = "tool_context"


@runtime_checkable
class AgentTool(Protocol):
    """A tool: it says its name and spec, and its stream ends with the result."""

    @property
    def tool_name(self) -> str:
        """The name the model calls it by."""

    @property
    def tool_spec(self) -> dict[str, Any]:
        """What the model is told: name, description, inputSchema."""

    def stream(
        self, tool_use: dict[str, Any], invocation_state: dict[str, Any], **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run the tool; the last thing it yields is the result."""


class FunctionTool:
    """A function that a model may call, and that is still called as before by everybody else."""

    tool_type = "function"

    def __init__(
        self,
        function: Callable[..., Any],
        name: str | None = None,
        about: str | None = None,
        *,
        context: bool | str = False,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the function's signature and docstring.

        Raises:
            DefinitionError: the name or a parameter can't be given to a model.
        """
        self.function = function
        self.tool_name = name or function.__name__
        if not TOOL_NAME.fullmatch(self.tool_name):
            raise DefinitionError(f"a tool can't be called {self.tool_name!r}: use letters, digits, _ and -.")
        self._context = _context_parameter(function, context)
        self._signature = Signature(function, (*_bound(function), *filter(None, [self._context])))
        text = about or description(inspect.getdoc(function) or "") or self.tool_name
        self.tool_spec = {
            "name": self.tool_name,
            "description": text,
            "inputSchema": {"json": dict(schema) if schema is not None else self._signature.schema},
        }
        self._self: Any = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function."""
        return (
            self.function(*args, **kwargs)
            if self._self is None
            else self.function(self._self, *args, **kwargs)
        )

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        """Give a method its instance."""
        del owner
        bound: FunctionTool = FunctionTool.__new__(FunctionTool)
        bound.__dict__.update(self.__dict__)
        bound._self = instance
        return bound

    async def invoke(self, given: Any, context: ToolContext) -> Any:
        """Check the input and run the function; a sync one runs on a thread.

        Raises:
            pydantic.ValidationError: the input doesn't fit.
        """
        arguments = self._signature.arguments(given if isinstance(given, Mapping) else {})
        if self._context:
            arguments[self._context] = context
        if inspect.iscoroutinefunction(self.function):
            return await self(**arguments)
        returned = await loops.in_thread(self, **arguments)
        return await returned if inspect.isawaitable(returned) else returned

    async def stream(
        self, tool_use: dict[str, Any], invocation_state: dict[str, Any], **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Run the function where an AgentTool is expected, and yield its result.

        Raises:
            DefinitionError: it needs a context and `tool_context` isn't given.
        """
        context = kwargs.get(CONTEXT_PARAMETER)
        if self._context and not isinstance(context, ToolContext):
            raise DefinitionError(f"tool {self.tool_name} needs a ToolContext: give it as tool_context.")
        del invocation_state
        returned = await self.invoke(tool_use.get("input"), context)  # type: ignore[arg-type] # unused without
        yield {"toolUseId": tool_use.get("toolUseId"), **content_of(returned, self.tool_name)}


def _context_parameter(function: Callable[..., Any], context: object) -> str | None:
    if not context:
        return None
    name = CONTEXT_PARAMETER if context is True else str(context)
    if name not in inspect.signature(function).parameters:
        raise DefinitionError(
            f"{function.__qualname__} takes no {name!r}; add the parameter for the context."
        )
    return name


def _bound(function: Callable[..., Any]) -> tuple[str, ...]:
    first = next(iter(inspect.signature(function).parameters), "")
    return (first,) if first in ("self", "cls") else ()


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    context: bool | str = False,
    inputSchema: Mapping[str, Any] | None = None,  # noqa: N803 - the name of the format's field
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    context: bool | str = False,
    inputSchema: Mapping[str, Any] | None = None,  # noqa: N803 - as above
) -> Any:
    """Make a function a tool that agents can be given; it stays callable as before.

    The input schema comes from type hints and the docstring, unless `inputSchema` is given. With
    `context=True` the function gets a ToolContext as `tool_context`; a string names the parameter.

    Raises:
        DefinitionError: the function or its name can't be given to a model.
    """

    def wrap(wrapped: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(wrapped, name, description, context=context, schema=inputSchema)

    return wrap(function) if function is not None else wrap


def toolbox(tools: Iterable[Any]) -> dict[str, AgentTool]:
    """Collect tools by name; an object with `as_tool()` (an agent) becomes one.

    Raises:
        DefinitionError: something is no tool, or two have the same name.
    """
    found: dict[str, AgentTool] = {}
    for given in tools:
        one = given.as_tool() if hasattr(given, "as_tool") else given
        if not isinstance(one, AgentTool):
            raise DefinitionError(f"{given!r} is no tool; decorate the function with @tool.")
        if one.tool_name in found:
            raise DefinitionError(f"two tools are called {one.tool_name!r}; give one of them another name.")
        found[one.tool_name] = one
    return found


def spec_of(one: AgentTool) -> dict[str, Any]:
    """Return what a model is told of a tool."""
    spec: dict[str, Any] = codec.unpack(codec.pack(one.tool_spec, f"the spec of tool {one.tool_name}"))
    return spec
