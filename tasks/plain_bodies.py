"""How the tasks `tasks.respond` and `tasks.start` get what was sent, byte for byte.

kombu's JSON reader is lenient: of a key that comes twice the last one wins, and an object with the keys
`__type__` and `__value__` becomes another value, or ends the message without a trace. People's answers
must arrive as they were sent or be refused with a reason. So the body is put into a text before kombu
reads it, and the task reads that text as strictly as every other door does.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pydantic_core
from celery.worker.strategy import default

from runner import codec
from runner.errors import CorruptDocument, UsageError

JSON_TYPE = "application/json"
TEXT = "sent_as_text"
OTHER = "sent_as_other"
"""The argument that holds the body: as text, or in base64 when it is of another content type."""


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Handle messages as Celery does, each with its body put into a text; for `Task.Strategy`."""
    handle = default(task, app, consumer, **options)

    def handle_plain(message: Any, body: Any, *rest: Any, **more: Any) -> Any:
        if body is None:  # else it is of Celery's first protocol, and read already
            _put_into_text(message)
        return handle(message, body, *rest, **more)

    return handle_plain


def _put_into_text(message: Any) -> None:
    raw = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    if message.content_type == JSON_TYPE:
        held = {TEXT: raw.decode("utf-8", "backslashreplace")}
    else:
        held = {OTHER: f"{message.content_type} {base64.b64encode(raw).decode()}"}
    message.body = json.dumps([[], held, _embedded(raw)])
    message.content_type, message.content_encoding = JSON_TYPE, "utf-8"


def _embedded(raw: bytes) -> Any:
    """Keep what Celery sends along: callbacks, and the like."""
    try:
        return json.loads(raw)[2]
    except (ValueError, RecursionError, LookupError, TypeError):
        return {}


def sent(args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[list[object], dict[str, object]]:
    """Read the arguments that were sent, strictly.

    Raises:
        UsageError: they are no such JSON, or of another content type; the error says which.
    """
    found, named = list(args), dict(kwargs)
    # A task that Celery sends once more has its text in a text.
    while set(named) == {TEXT} and not found and isinstance(named[TEXT], str):
        found, named = _read(named[TEXT])
    if set(named) == {OTHER}:
        kind = str(named[OTHER]).partition(" ")[0]
        raise UsageError(f"the content type is {kind}; send JSON, as {JSON_TYPE}.")
    return found, named


def message_of(task_id: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
    """Make the message of a door from what was sent to its task.

    Raises:
        UsageError: it can't be one; the error says why.
    """
    found, named = sent(args, kwargs)
    if found:
        raise UsageError("positional arguments; send keyword arguments only")
    try:
        # The task's id makes a task that Celery delivers twice one message.
        return pydantic_core.to_json({"v": 1, "idempotency_key": task_id, **named})
    except pydantic_core.PydanticSerializationError as error:
        raise UsageError(str(error)) from error


def raw(kwargs: Mapping[str, object]) -> bytes:
    """Give back what was sent, as text, for people to read."""
    return "".join(map(str, kwargs.values())).encode(errors="backslashreplace")


def _read(text: object) -> tuple[list[object], dict[str, object]]:
    try:
        body = codec.load_json(str(text))
    except CorruptDocument as error:
        raise UsageError(f"the arguments are no JSON: {error}") from error
    if isinstance(body, list) and len(body) > 1 and isinstance(body[0], list) and isinstance(body[1], dict):
        return body[0], body[1]
    raise UsageError("the body is no Celery message: a list of arguments, named arguments and options.")
