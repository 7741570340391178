"""The OpenAPI document: the routes' own descriptions, and their answers by the types of the records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from runner.records.codec import JSONObject
from runner.records.json_form import as_written
from runner.records.run import EventKind
from runner.server.answers import RecordRoute, answer_type
from runner.server.problems import MEDIA_TYPE

PLACE = "#/components/schemas/"

TEXT = {"type": "string"}


OPEN = {"/healthz", "/readyz"}

PROBLEM = {
    "type": "object",
    "properties": {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "detail": TEXT},
    "required": ["type", "title", "status", "detail"],
    "description": "A problem as in RFC 9457; `errors` has a pointer to each place in the request.",
}

FRAME = {
    "type": "string",
    "contentMediaType": "text/event-stream",
    "contentSchema": {"$ref": f"{PLACE}StreamEvent"},
    "description": (
        "Frames of `id`, `event` and `data`. The `data` of `snapshot` is the route's JSON, for /v1/events "
        "a page of open questions, or of the runs that `run` names. The `data` of any other event is an "
        "Event, with `run` also its `run_id`; for /v1/events it is `run_id`, `node`, `at` and `detail`. "
        "`detail` of `interrupt.*` is the id of the question."
    ),
}

RESET = {"type": "object", "properties": {"reason": TEXT}, "required": ["reason"]}

STREAM_EVENT = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "event": {"anyOf": [{"enum": ["snapshot", "reset", *EventKind], **TEXT}, TEXT]},
        "data": {
            "anyOf": [
                *(
                    {"$ref": PLACE + name}
                    for name in ("RunView", "Page_QuestionView_", "Event")
                ),
                RESET,
            ]
        },
    },
    "required": ["event", "data"],
    "description": "One event of a stream, with its fields by name and its data read as JSON.",
}

HEADERS = {
    "etag": "The digest of the question, for If-Match, with a checksum of all that is shown",
    "location": "The path of the new run or job",
    "retry-after": "Seconds to wait",
}

SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key, rk_…"},
    "session": {"type": "apiKey", "in": "cookie", "name": "__Host-runner-session"},
}

PROBLEMS = {
    400: "The request or its cursor can't be read",
    401: "The caller is not known",
    403: "The caller may not do this",
    404: "The named item does not exist",
    409: "Another request was first, or it has ended",
    410: "Too late: the question was decided, has expired or was withdrawn",
    412: "The question is not the one that was shown",
    413: "The body is too large",
    422: "A value can't be used",
    428: "If-Match is missing",
    429: "Too many runs or streams are open",
    503: "The store can't be reached, or too many people read; Retry-After says when to try again",
}


def complete(document: JSONObject, routes: Iterable[APIRoute]) -> JSONObject:
    """Add the routes' answers and problems to FastAPI's document."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= {"ProblemDocument": PROBLEM, "StreamEvent": STREAM_EVENT}
    document["components"]["securitySchemes"] = SCHEMES
    document["security"] = [{name: []} for name in SCHEMES]
    document["servers"] = [{"url": "/"}]
    answers = {
        f"{method.lower()} {route.path_format}": kind
        for route in routes
        if isinstance(route, RecordRoute) and (kind := answer_type(route.endpoint))
        for method in route.methods or ()
    }
    # In a list, each type is a reference to its definition.
    lists, definitions = TypeAdapter.json_schemas(
        [
            (route, "serialization", TypeAdapter(list[kind]))  # type: ignore[valid-type]  # the routes' types
            for route, kind in answers.items()
        ],
        ref_template=PLACE + "{model}",
    )
    ours = definitions["$defs"]
    for name, body in ours.items():
        as_written(body)
        body["title"] = name  # pages of different types have the same one
    # A later version may have further kinds, which a generated client must not refuse.
    ours["Event"]["properties"]["kind"] = {"anyOf": [{"enum": [*EventKind], **TEXT}, TEXT]}
    for name, body in ours.items():
        if schemas.setdefault(name, body) != body:
            raise AssertionError(f"two shapes have the name {name}")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            route = f"{method} {path}"
            _describe(route, operation)
            if route in answers:
                ok = next(code for code in operation["responses"] if code.startswith("2"))
                schema = lists[route, "serialization"]["items"]
                operation["responses"][ok].setdefault("content", {}).update(_json(schema))
    return document


def _describe(route: str, operation: JSONObject) -> None:
    responses = operation["responses"]
    if route.partition(" ")[2] in OPEN:
        operation["security"] = []
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "if-match":  # without it the answer is 428
            parameter |= {"required": True, "schema": TEXT}
    for answer in responses.values():
        if "text/event-stream" in answer.get("content", ()):
            answer["content"]["text/event-stream"] = {"schema": FRAME}
    if route == "get /v1/questions/{question_id}":
        responses["200"]["headers"] = _headers("etag")
    for code in responses.keys() & {"201", "202"} if "/runs" in route else ():
        responses[code]["headers"] = _headers("location")
    content = _json({"$ref": f"{PLACE}ProblemDocument"}, MEDIA_TYPE)
    for status in sorted(_problems(route, operation)):
        responses[str(status)] = {"description": PROBLEMS[status], "content": content}
    if "503" in responses:
        responses["503"]["headers"] = _headers("retry-after")


def _json(schema: JSONObject, media_type: str = "application/json") -> JSONObject:
    return {media_type: {"schema": schema}}


def _headers(name: str) -> JSONObject:
    return {name: {"description": HEADERS[name], "schema": TEXT}}


def _problems(route: str, operation: JSONObject) -> Iterator[int]:
    method, _, path = route.partition(" ")
    if path in OPEN:
        yield from {503} if path == "/readyz" else ()
        return
    yield from (401, 403, 503)
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    if "{" in path or method != "get":
        yield 404
    if names or "requestBody" in operation or "422" in operation["responses"]:
        yield 422
    if "cursor" in names:
        yield 400
    if method != "get":
        yield from (400, 409, 413)
        if path.startswith("/v1/questions"):
            yield 410
    if "If-Match" in names or "if-match" in names:
        yield from (412, 428)
    if route == "post /v1/runs" or any(
        "text/event-stream" in answer.get("content", ())
        for answer in operation["responses"].values()
    ):
        yield 429
