"""Answers of routes: records as JSON, without payloads for people who may not read them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.datastructures import DefaultPlaceholder
from fastapi.routing import APIRoute

from runner.records.codec import JSONMapping
from runner.records.json_form import document
from runner.records.payloads import bare
from runner.server.access import Person

Record = TypeVar("Record")


def seen_by(person: Person | None, record: Record) -> Record:
    """Return a record as a person may see it: without payloads if they may not read them."""
    return record if person and person.may("read") else bare(record)


def seen_document(person: Person | None, record: Any) -> Any:
    """Return a record as JSON, as a person may see it."""
    return document(seen_by(person, record))


def answer_type(endpoint: Callable[..., Any]) -> Any:
    """Return the type of an endpoint's record, the first of several; None if it returns no record."""
    hint = get_type_hints(endpoint)["return"]
    kinds = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    others = (Response, NoneType)
    return next((k for k in kinds if not (inspect.isclass(k) and issubclass(k, others))), None)


class RecordRoute(APIRoute):
    """A route whose endpoint returns a record, or a page of records, which it writes as JSON for the caller.

    The caller is the endpoint's parameter of type `Person`; without one, nobody may read payloads.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        # A router that includes another makes its routes again, with the model that was set here.
        if isinstance(options["response_model"], DefaultPlaceholder) and answer_type(endpoint):
            endpoint, options["response_model"] = _in_json(endpoint), Any
        super().__init__(path, endpoint, **options)


def record_router(prefix: str, tag: str) -> APIRouter:
    """Make a router whose routes answer with records, below a path."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=RecordRoute)


def _in_json(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(endpoint):

        @wraps(endpoint)
        async def answer_later(**values: Any) -> Any:
            record = await endpoint(**values)
            if isinstance(record, Response):
                return record
            return await run_in_threadpool(_seen, record, values)

        return answer_later

    @wraps(endpoint)
    def answer(**values: Any) -> Any:
        return _seen(endpoint(**values), values)

    return answer


def _seen(record: Any, values: JSONMapping) -> Any:
    person = next((value for value in values.values() if isinstance(value, Person)), None)
    return seen_document(person, record)
