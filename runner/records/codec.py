"""The stored and wire form of values: JSON bytes, strict both ways.

`pack` turns a value into JSON data or refuses it, naming the field; `unpack` is its inverse.
Besides JSON it carries bytes, `SCALARS` and pydantic models, as objects with one reserved key. A
user's object with a reserved key is escaped, so that user data is never mistaken for these forms.
Documents are frozen dataclasses with a field `v`; `encode` and `decode` convert them, and refuse an
unknown field, a missing field or another `v` with an error.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar, cast
from uuid import UUID

import pydantic
import pydantic_core

from runner.errors import CorruptDocument, UnstorableError
from runner.records.read_back import difference

# Strands' sessions use the same key for bytes, so their documents have the same form.
BYTES_KEY = "__bytes_encoded__"

MODEL_KEY = "__model__"

TYPED_KEY = "__typed__"

SCALAR_KEY = "__scalar__"

ESCAPE_KEY = "__escaped__"

RESERVED = frozenset({BYTES_KEY, MODEL_KEY, TYPED_KEY, SCALAR_KEY, ESCAPE_KEY})

SCALARS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Decimal, datetime, date, time, timedelta, UUID)
}
"""Types whose values come back unchanged: databases and Celery's messages have them."""

# Deeper values would exceed the recursion limits of other JSON readers (pydantic's is about 200).
MAX_DEPTH = 64

# JSON readers of other languages lose precision beyond this; larger integers are refused.
MAX_INTEGER = 2**63 - 1

CHECKED = 10_000
"""Items of a long list between two calls of `check`."""

Item = TypeVar("Item")

JSON = Any
"""Plain JSON data, as stored; it is `Any` because a recursive type doesn't help its readers."""

JSONObject = dict[str, JSON]

JSONMapping = Mapping[str, JSON]
"""A JSON object that is only read."""

Document = TypeVar("Document")


def pack(value: object, field: str, check: Callable[[], object] | None = None) -> JSON:
    """Turn a value into JSON data; `field` names it in the error.

    `check` is called between the items of a long list, and may raise.

    Raises:
        UnstorableError: something in it can't be stored.
    """
    return _pack_checked(value, field, [], check)


def pack_result(
    value: object,
    given: Iterable[JSON | LazyValue] = (),
    check: Callable[[], object] | None = None,
) -> tuple[JSON | LazyValue, JSON | LazyValue]:
    """Return the packed and the plain form of a node's result: the same object if they are equal.

    A large value that was `given` to the node and that it returns unchanged stays as it is stored.
    `check` is called between the items of a long list, and may raise.

    Raises:
        UnstorableError: something in it can't be stored.
    """
    for large in given:
        if isinstance(large, LazyValue) and large.holds(value):
            return large, large
    special: list[object] = []
    json_value = _pack_checked(value, "result", special, check)
    return json_value, _plain(value, _input_data) if special else json_value


def _pack_checked(
    value: object, field: str, special: list[object], check: Callable[[], object] | None
) -> JSON:
    if check is None or not isinstance(value, (list, tuple)):
        return _pack(value, (None, field), 0, special)
    items: list[JSON] = []
    for i, item in enumerate(value):
        if i % CHECKED == CHECKED - 1:
            check()
        items.append(_pack(item, ((None, field), i), 1, special))
    return items


Path = tuple[Any, str | int]
"""Names a value in an error: its container's path and its key or index; at first None and name."""


def _path_text(path: Path) -> str:
    outer, key = path
    if outer is None:
        return str(key)
    if isinstance(key, int):
        return f"{_path_text(outer)}[{key}]"
    return f"{_path_text(outer)}.{key}"


def kind_of(value: object) -> str:
    """Name a value's type with its article: "a set", "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _pack(value: object, path: Path, depth: int, special: list[object]) -> JSON:
    """Pack a value; append to `special` every value whose plain form differs."""
    if (type(value) is str and value.isascii()) or value is None or isinstance(value, bool):
        return value  # most values are ASCII texts: the fast path
    if depth > MAX_DEPTH:
        raise UnstorableError(
            f"{_path_text(path)} is nested deeper than {MAX_DEPTH} levels; store a flatter value."
        )
    if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
        return value
    if isinstance(value, (str, int, float)):
        return _pack_scalar(value, path)
    if isinstance(value, (list, tuple)):
        return [_pack(item, (path, i), depth + 1, special) for i, item in enumerate(value)]
    if isinstance(value, (dict, Mapping)):  # `Mapping` alone is much slower for a dict
        return _pack_mapping(value, path, depth, special)
    special.append(value)
    if isinstance(value, bytes):
        return {BYTES_KEY: True, "data": base64.b64encode(value).decode("ascii")}
    if isinstance(value, pydantic.BaseModel):
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        return {
            MODEL_KEY: name,
            "data": _pack(_model_data(value, path), path, depth + 1, special),
        }
    name = type(value).__name__
    if SCALARS.get(name) is type(value):
        packed = {SCALAR_KEY: name, "data": pydantic_core.to_jsonable_python(value)}
        try:
            if unpack(packed) == value:
                return packed
        except pydantic.ValidationError:
            pass  # an infinite Decimal
    where = _path_text(path)
    hint = f", or annotate what the function returns: `-> {name}`" * where.startswith("result")
    raise UnstorableError(
        f"{where} is {kind_of(value)}, which can't be stored; use JSON data, bytes or a pydantic model{hint}."
    )


def _model_data(model: pydantic.BaseModel, path: Path) -> JSON:
    # round_trip leaves out computed fields, which the model would refuse when it is read back.
    try:
        data: JSON = model.model_dump(mode="json", round_trip=True)
        again = type(model).model_validate(data, by_alias=True, by_name=True)
    except Exception as error:
        raise UnstorableError(
            f"{_path_text(path)} is {kind_of(model)} that has no JSON form: {error}"
        ) from error
    if path_of_change := difference(model, again, _path_text(path)):
        raise UnstorableError(
            f"{path_of_change} would have another value when read back, so it can't be stored: give the "
            "field a type whose JSON form is complete."
        )
    return data


def _pack_scalar(value: float | str, path: Path) -> JSON:
    if isinstance(value, str):
        return _pack_text(value, "", path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnstorableError(
                f"{_path_text(path)} is {value}, which JSON has no form for; use None or a string."
            )
        return float(value)
    if abs(value) > MAX_INTEGER:
        raise UnstorableError(
            f"{_path_text(path)} is an integer of more than 64 bits; store it as a string."
        )
    return int(value)


def _pack_text(text: str, which: str, path: Path) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UnstorableError(
                f"{which}{_path_text(path)} holds a lone surrogate, which is not valid text."
            ) from error
    # Not str(text), which is the member's name if the text is also an Enum.
    return str.__str__(text)


def _pack_mapping(
    value: Mapping[Any, object], path: Path, depth: int, special: list[object]
) -> JSON:
    items: JSONObject = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise UnstorableError(
                f"{_path_text(path)} has the key {key!r}; keys must be strings."
            )
        items[_pack_text(key, "a key of ", path)] = _pack(item, (path, key), depth + 1, special)
    if RESERVED.isdisjoint(items):
        return items
    special.append(value)
    return {ESCAPE_KEY: items}


def unpack(value: JSON) -> Any:
    """Turn packed JSON data back into the value.

    A pydantic model comes back as itself when its class is already imported, otherwise as plain data:
    stored data never causes an import.

    Raises:
        CorruptDocument: the model's class no longer takes the data.
    """
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if BYTES_KEY in value:
        return base64.b64decode(value["data"], validate=True)
    if SCALAR_KEY in value:
        return _adapter(SCALARS[value[SCALAR_KEY]]).validate_python(value["data"])
    if MODEL_KEY in value:
        return _restore_model(value[MODEL_KEY], unpack(value["data"]))
    if TYPED_KEY in value:
        return unpack(
            value["data"]
        )  # the function that it names gives it a type; here it is data
    inner = value.get(ESCAPE_KEY, value)
    return {key: unpack(item) for key, item in inner.items()}


class LazyValue:
    """A large stored value in its packed form: it is decoded only when it is read."""

    def read(self) -> JSON:
        """Decode it; each call returns a new copy."""
        raise NotImplementedError

    @property
    def is_plain(self) -> bool:
        """True for data that packing and unpacking don't change."""
        raise NotImplementedError

    def holds(self, value: object) -> bool:
        """Return whether a value read from it is unchanged and would be stored the same."""
        raise NotImplementedError


def read(value: JSON | LazyValue) -> JSON:
    """Return packed data, decoded if it is lazy."""
    return value.read() if isinstance(value, LazyValue) else value


def untyped(json_value: JSON) -> JSON:
    """Return the packed data of a typed function's result without the name of its type."""
    if isinstance(json_value, dict) and TYPED_KEY in json_value:
        return json_value["data"]
    return json_value


def _restore_model(name: str, data: Any) -> Any:
    cls = imported(name)
    if not (isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)):
        return data
    try:
        return cls.model_validate(data, by_alias=True, by_name=True)
    except pydantic.ValidationError as error:
        raise CorruptDocument(f"a stored {name} no longer fits its class: {error}") from error


def imported(name: str) -> object | None:
    """Look up `module:qualname` among the modules already imported; None if it isn't there."""
    module, _, qualname = name.partition(":")
    value: object | None = sys.modules.get(module)
    for attribute in qualname.split("."):
        value = getattr(value, attribute, None)
    return value


def plain(value: object) -> JSON:
    """Return the JSON form that people and other programs see: models as data, bytes as base64."""
    return _plain(value, lambda model: model.model_dump(mode="json"))


def _plain(value: object, data_of: Callable[[pydantic.BaseModel], JSON]) -> JSON:
    if isinstance(value, pydantic.BaseModel):
        return _plain(data_of(value), data_of)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, data_of) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, data_of) for item in value]
    if type(value) in SCALARS.values():
        return pydantic_core.to_jsonable_python(value)
    return str.__str__(value) if isinstance(value, str) else value


def _input_data(model: pydantic.BaseModel) -> JSON:
    """Return a model as the next node reads it, less the computed fields that it would refuse."""
    data: JSON = model.model_dump(mode="json")
    try:
        type(model).model_validate(data, by_alias=True, by_name=True)
    except pydantic.ValidationError:
        return model.model_dump(mode="json", round_trip=True)
    return data


def without(values: Mapping[str, Item], *names: str) -> dict[str, Item]:
    """Copy a mapping without some names."""
    return {name: value for name, value in values.items() if name not in names}


def without_none(values: JSONMapping) -> JSONObject:
    """Copy a mapping without its None values."""
    return {name: value for name, value in values.items() if value is not None}


def without_empty(values: Mapping[str, Item]) -> dict[str, Item]:
    """Copy a mapping without its empty values and zeros."""
    return {name: value for name, value in values.items() if value}


dump_json: Callable[[JSON], bytes] = pydantic_core.to_json
"""Writes JSON data (already packed) as compact UTF-8 bytes."""


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits} is larger than any float")
    return float(digits)


def load_json(data: bytes | str, read_float: Callable[[str], float] = _finite) -> JSON:
    """Read JSON strictly: no duplicate keys, no NaN, no huge numbers, no lone surrogates.

    With `read_float=exact` it refuses a number that a float would round.

    Raises:
        CorruptDocument: the bytes are not strict JSON.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_int=_bounded,
            parse_float=read_float,
        )
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise CorruptDocument("not valid JSON: nested too deep") from error
    except (ValueError, ArithmeticError) as error:
        raise CorruptDocument(f"not valid JSON: {error}") from error
    return value


def _unique(pairs: list[tuple[str, JSON]]) -> JSONObject:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("an object has the same key twice")
    return unique


def _refuse(constant: str) -> JSON:
    raise ValueError(f"{constant} is not JSON")


def exact(digits: str) -> float:
    """Read a number; raise ValueError if the nearest float is another one."""
    number = _finite(digits)
    if Decimal(digits) != Decimal(str(number)):
        raise ValueError(f"{digits} has more digits than a number keeps, which are 15")
    return number


def _bounded(digits: str) -> int:
    if len(digits) > len(str(MAX_INTEGER)) + 1:
        raise ValueError("an integer has too many digits")
    return int(digits)


_adapters: dict[type[Any], pydantic.TypeAdapter[Any]] = {}


def _adapter(cls: type[Any]) -> pydantic.TypeAdapter[Any]:
    """Return the adapter of a class, built once because that takes a millisecond or more."""
    if cls not in _adapters:
        _adapters[cls] = pydantic.TypeAdapter(cls)
    return _adapters[cls]


def encode(document: object) -> bytes:
    """Write a document (one of this library's dataclasses, with packed values) as bytes."""
    return _adapter(type(document)).dump_json(document)


def decode(cls: type[Document], data: bytes | str) -> Document:
    """Read a document strictly.

    Raises:
        CorruptDocument: a field is missing, unknown or of the wrong kind.
    """
    try:
        return cast("Document", _adapter(cls).validate_json(data, strict=True))
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(key) for key in problem["loc"]) or "the document"
        raise CorruptDocument(
            f"a stored {cls.__name__} can't be read: {where}: {problem['msg']}. It was left untouched; "
            "a newer version of this library may have written it."
        ) from error


READ_ERRORS = (
    CorruptDocument,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)
"""Errors of reading damaged or malformed data; a lost connection raises none of them."""


def strict(cls: type[Document]) -> type[Document]:
    """Have a stored dataclass read strictly: an unknown field, or another type, is an error."""
    config = pydantic.ConfigDict(extra="forbid", strict=True)
    cls.__pydantic_config__ = config  # type: ignore[attr-defined] # as pydantic names it
    return cls
