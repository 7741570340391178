"""Reads a Python function as a tool: its parameters as a JSON Schema, its docstring as the words."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pydantic
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from runner.errors import DefinitionError

SECTIONS = re.compile(
    r"^\s*(#?\s*(Args|Arguments|Parameters|Params|Returns|Raises|Yields|Examples?|Notes?)\s*:|:\w+)",
    re.MULTILINE,
)
GOOGLE = re.compile(r"^\s*#?\s*(?:Args|Arguments|Parameters|Params)\s*:\s*$")
ENTRY = re.compile(r"^(?P<name>\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")


class _Untitled(GenerateJsonSchema):
    """Titles would repeat the names to the model, at the price of tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave the titles of fields out."""
        del schema
        return False


class Signature:
    """What a function takes from a model: `schema` describes it, `arguments` checks it."""

    def __init__(self, function: Callable[..., Any], skip: Iterable[str] = ()) -> None:
        """Read the function; parameters in `skip` are filled in by the runner.

        Raises:
            DefinitionError: a parameter can't be named in a call.
        """
        self._skip = frozenset(skip)
        self._words = parameter_words(inspect.getdoc(function) or "")
        self._names: dict[str, str] = {}
        self.model = self._model(function)

    def _model(self, function: Callable[..., Any]) -> type[pydantic.BaseModel]:
        fields: dict[str, Any] = {}
        hints = self._hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if name in self._skip or parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise DefinitionError(
                    f"{function.__qualname__}: {parameter} has no name that a model can give."
                )
            # Fields have names of their own, because a parameter may be called `schema` or `_x`.
            field = f"p{len(fields)}"
            self._names[field] = name
            fields[field] = self._field(name, hints.get(name, Any), parameter)
        return pydantic.create_model(function.__name__, **fields)

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        # Only what a model gives must be known: the context and the result may be names of type checkers.
        written = getattr(function, "__annotations__", {})
        given = {key: hint for key, hint in written.items() if key not in self._skip and key != "return"}
        holder = types.SimpleNamespace(__annotations__=given)
        try:
            return get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)
        except NameError as error:
            raise DefinitionError(f"{function.__qualname__}: {error}, so its input has no schema.") from error

    def _field(self, name: str, hint: Any, parameter: inspect.Parameter) -> tuple[Any, Any]:
        annotated = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        words = next((extra for extra in annotated if isinstance(extra, str)), self._words.get(name))
        default = ... if parameter.default is parameter.empty else parameter.default
        if any(isinstance(extra, FieldInfo) and extra.description for extra in annotated):
            words = None
        return hint, pydantic.Field(default, alias=name, description=words)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        found = self.model.model_json_schema(by_alias=True, schema_generator=_Untitled)
        found.pop("title", None)
        found.setdefault("properties", {})
        return found

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check an input and return the arguments, as the types that the function declares.

        Raises:
            pydantic.ValidationError: the input doesn't fit the schema.
        """
        checked = self.model.model_validate(given)
        return {name: getattr(checked, field) for field, name in self._names.items()}


def description(text: str) -> str:
    """Return what a docstring says before its sections."""
    found = SECTIONS.search(text)
    return (text[: found.start()] if found else text).strip()


def parameter_words(text: str) -> dict[str, str]:
    """Read what a docstring says of each parameter, in Google's or Sphinx' style."""
    lines = text.splitlines()
    start = next((i + 1 for i, line in enumerate(lines) if GOOGLE.match(line)), None)
    if start is not None:
        return _entries(lines[start:], ENTRY)
    return _entries([line for line in lines if line.strip()], SPHINX)


def _entries(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Collect `name: words`; deeper lines continue the entry, a line further left ends the section."""
    found: dict[str, str] = {}
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
            depth, name = indent, match["name"].lstrip("*")
            found[name] = match["text"].strip()
        elif name and depth is not None and indent > depth:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
