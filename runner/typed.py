"""Functions with types: the input is checked before they run, and what they return after.

A function's one annotated parameter is its input; a parameter that is annotated as NodeContext, or
not at all, is the context. What doesn't fit is a DataMismatch, and the node fails with it. A function
that takes the context alone is called as it is, and its annotations are not looked at.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ForwardRef, Protocol, get_args, get_origin, get_type_hints

import pydantic
import pydantic_core

from runner import codec
from runner.errors import DataMismatch, DefinitionError
from runner.inputs import given
from runner.outcomes import Visit
from runner.results import restorers

KIND = "function"
SHOWN = 80  # characters of a value that doesn't fit

Adapter = pydantic.TypeAdapter[Any]

_returned: dict[str, Adapter] = {}
"""What the typed functions of this process return, by the function's name."""


class Form(Protocol):
    """How a function is called, and how what it returns is stored."""

    def call(self, context: Any, visit: Visit) -> Any:
        """Call the function; the result may be awaitable."""

    def stored(self, result: Any, visit: Visit) -> tuple[Any, Any]:
        """Return the packed result and its plain JSON form."""


@dataclass(frozen=True, slots=True)
class Untyped:
    """A function of the context alone."""

    function: Callable[[Any], Any]

    def call(self, context: Any, visit: Visit) -> Any:
        """Give it the context."""
        del visit
        return self.function(context)

    def stored(self, result: Any, visit: Visit) -> tuple[Any, Any]:
        """Pack what it returned."""
        del visit
        return codec.pack(result, "result"), codec.plain(result)


@dataclass(frozen=True, slots=True)
class Typed:
    """A function of checked data. `filled` are the parameters that get it and the context, in their order."""

    function: Callable[..., Any]
    name: str
    data: inspect.Parameter
    filled: tuple[inspect.Parameter, ...]
    taken: Adapter
    returned: Adapter | None

    def call(self, context: Any, visit: Visit) -> Any:
        """Check the input and give it to the function.

        Raises:
            DataMismatch: the input doesn't fit the annotation.
        """
        source, value = given(visit.task, visit.inputs)
        try:
            data = _validated(self.taken, value)
        except pydantic.ValidationError as error:
            raise DataMismatch(
                f"node {visit.address.node_id!r} was not run: {source} does not fit the parameter "
                f"{self.data.name!r} of {self.name}: {_problems(error)}. It is not tried again; change what "
                "is given, or the annotation."
            ) from error
        values = [(item, data if item is self.data else context) for item in self.filled]
        named = {item.name: value for item, value in values if item.kind is not item.POSITIONAL_ONLY}
        return self.function(*(value for item, value in values if item.name not in named), **named)

    def stored(self, result: Any, visit: Visit) -> tuple[Any, Any]:
        """Check what was returned against the annotation, and pack it.

        Raises:
            DataMismatch: it doesn't fit. UnstorableError: it can't be stored.
        """
        if self.returned is None:
            return codec.pack(result, "result"), codec.plain(result)
        try:
            value = _checked(self.returned, result)
            data = _dumped(self.returned, value, round_trip=True)
            output = _dumped(self.returned, value, round_trip=False)
        except (pydantic.ValidationError, pydantic_core.PydanticSerializationError) as error:
            problems = _problems(error) if isinstance(error, pydantic.ValidationError) else str(error)
            raise DataMismatch(
                f"node {visit.address.node_id!r} ran, but what it returned does not fit the annotation of "
                f"{self.name}: {problems}. The result is not stored and the node is not tried again; change "
                "what the function returns, or the annotation."
            ) from error
        return _packed(self.name, value, data), output


def form(function: object, context: type) -> Form | None:
    """Say how a function is called as a node, or None where it can't be; `context` is NodeContext.

    Raises:
        DefinitionError: its annotations can't be checked, or it takes several inputs.
    """
    if not callable(function):
        return None
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None
    roles = [(_role(each, function, context), each) for each in parameters]
    contexts = [each for role, each in roles if role == "context"]
    data = [each for role, each in roles if role == "data"]
    needed = [each for each in data if each.default is each.empty]
    if not needed and (contexts or not data):
        return Untyped(function) if _takes_one(function) else None
    if len([each for each in contexts if each.default is each.empty]) > 1:
        return None
    chosen = needed or data[:1]
    filled = tuple(each for each in parameters if each in [*chosen, *contexts[:1]])
    return _typed(function, chosen, filled)


def _typed(
    function: Callable[..., Any], data: Sequence[inspect.Parameter], filled: tuple[inspect.Parameter, ...]
) -> Typed:
    name, chosen = _name(function), data[0]
    if len(data) > 1:
        raise DefinitionError(
            f"{name} takes {len(data)} inputs ({', '.join(each.name for each in data)}), and a node has one: "
            "give it one parameter, a model with a field for each node before it."
        )
    taken = _adapter(_hint(function, chosen.annotation, name, chosen.name), name, chosen.name)
    typed = Typed(function, name, chosen, filled, taken, _result_adapter(function, name))
    if typed.returned is not None:
        _returned[name] = typed.returned
    return typed


def restore(packed: Any) -> Any:
    """Bring a function's result back: as the type that it declares, where this process has the function.

    Raises:
        CorruptDocument: a model's class no longer takes the data.
    """
    name = packed.get(codec.TYPED_KEY) if isinstance(packed, dict) else None
    value = codec.unpack(packed)
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
    """Whatever could be anything is the context: that is what functions without types take."""
    written, is_optional = parameter.annotation, parameter.default is not parameter.empty
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return ""
    if written is parameter.empty:
        return "" if is_optional else "context"
    if isinstance(written, str) and written.rpartition(".")[2].strip() == context.__name__:
        return "context"  # perhaps imported for type checkers only
    found = _resolved(function, written)
    kinds = [found, *get_args(found)]
    is_context = any(isinstance(kind, type) and issubclass(kind, context) for kind in kinds)
    return "context" if is_context or found in (Any, object) else "data"


def _resolved(function: object, written: Any) -> Any:
    """Look an annotation up where the function was written; None where a name in it is unknown."""
    try:
        holder = type("Holder", (), {"__annotations__": {"it": written}})
        return get_type_hints(holder, _namespace(function), include_extras=True)["it"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return None


def _hint(function: object, written: Any, name: str, what: str) -> Any:
    found = _resolved(function, written)
    if found is None:
        raise DefinitionError(
            f"{name}: the annotation {written!r} of {what!r} can't be looked up; define or import what it "
            "names at the top of the function's module."
        )
    return found


def _namespace(function: object) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    if not hasattr(function, "__globals__"):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its globals are asked for, not whether it is there
    return getattr(function, "__globals__", {})


def _name(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{getattr(named, '__qualname__', '?')}"


def _result_adapter(function: Callable[..., Any], name: str) -> Adapter | None:
    written = inspect.signature(function).return_annotation
    if written is inspect.Signature.empty:
        return None
    found = _hint(function, written, name, "return")
    if get_origin(found) in (Awaitable, Coroutine):
        found = get_args(found)[-1]
    return None if found is Any else _adapter(found, name, "return")


def _adapter(hint: Any, name: str, what: str) -> Adapter:
    as_base64 = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    try:
        try:
            return pydantic.TypeAdapter(hint, config=as_base64)
        except pydantic.errors.PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            return pydantic.TypeAdapter(hint)  # a model has a configuration of its own
    except (pydantic.errors.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation) as error:
        shown = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
        raise DefinitionError(
            f"{name}: {shown!r} of {what!r} is no type whose JSON can be checked; use a pydantic model, a "
            "dataclass or JSON types. {str(error).partition(chr(10))[0]}"
        ) from error


def _validated(adapter: Adapter, value: Any) -> Any:
    return adapter.validate_json(codec.dump_json(value), strict=True, by_alias=True, by_name=True)


def _checked(adapter: Adapter, result: Any) -> Any:
    """Take an object of the declared type as it is, else read the JSON form of what was returned."""
    try:
        return adapter.validate_python(result, strict=True)
    except pydantic.ValidationError as error:
        try:
            plain = pydantic_core.to_json(result, bytes_mode="base64")
        except pydantic_core.PydanticSerializationError:
            raise error from None
        return adapter.validate_json(plain, strict=True, by_alias=True, by_name=True)


def _dumped(adapter: Adapter, value: Any, *, round_trip: bool) -> Any:
    found = adapter.dump_python(value, mode="json", round_trip=round_trip, warnings="error")
    return codec.plain(codec.pack(found, "result"))


def _packed(name: str, value: Any, data: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        cls = type(value)
        if codec.imported(f"{cls.__module__}:{cls.__qualname__}") is cls:
            return codec.pack(value, "result")  # any program that has the class reads it
    elif data == value:
        return codec.pack(value, "result")
    return {codec.TYPED_KEY: name, "data": codec.pack(data, "result")}


def _problems(error: pydantic.ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    where = ".".join(str(part) for part in first["loc"]) or "the value"
    value = repr(first["input"])
    shown = value if len(value) <= SHOWN else f"{value[: SHOWN - 1]}…"
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{where}: {first['msg']}, got {shown}{more}"
