"""The OpenAPI document: the routes' own descriptions, and their answers.

The answers are records and views as `records.json_form.document` writes them, so their shapes come from the
types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from runner.approvals.freezes import Freeze
from runner.approvals.granting import GrantView
from runner.limits.concurrency import QueuedKey
from runner.limits.control import LimitView
from runner.limits.fairness import FairKey
from runner.operations.api_keys import ApiKey
from runner.operations.dead import Replayed
from runner.operations.deploys import GraphCheck
from runner.operations.migration import MigrationResult
from runner.operations.questions import Away, QuestionView
from runner.operations.views import (
    BackfilledRun,
    Backlog,
    RetriedRun,
    RunStatus,
    RunView,
    StartedRun,
    WorkerView,
)
from runner.records.dead_letters import DeadLetter
from runner.records.interrupts import Receipt
from runner.records.jobs import JobView, RunOfJob
from runner.records.json_form import TIME, as_written
from runner.records.listings import RunSummary, SessionSummary
from runner.records.run import EventKind
from runner.schedules.schedule import Schedule
from runner.server.problems import MEDIA_TYPE
from runner.store.interface import Event
from runner.webhooks.webhook import Delivery, WebhookView

PLACE = "#/components/schemas/"

TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}

TEXT_OR_NULL = {"anyOf": [TEXT, {"type": "null"}]}


def fields(**types: Any) -> dict[str, Any]:
    """Return the schema of an object with just these fields."""
    return {"type": "object", "properties": types, "required": list(types)}


class Listing:
    """A list of one kind, with the cursor of its next page, and `more` fields about the whole list."""

    def __init__(self, kind: Any, **more: Any) -> None:
        self.kind, self.more = kind, more


STATUS = fields(status=TEXT)
SCOPE = fields(scope=TEXT)
HEAD = fields(
    partition=NUMBER, size=NUMBER, signed=NUMBER, signed_at=TIME, checkpoint=TEXT, problem=TEXT
)
MATCHES = {"dry_run": FLAG, "total": NUMBER, "more": FLAG}

TEXTS = {"type": "array", "items": TEXT}
ME = fields(
    principal=TEXT, name=TEXT, roles=TEXTS, groups=TEXTS, permissions=TEXTS, form_token=TEXT
)

ANSWERS: dict[str, Any] = {
    "get /healthz": STATUS,
    "get /readyz": STATUS,
    "get /v1/me": ME,
    "post /v1/runs": StartedRun,
    "get /v1/runs": Listing(RunSummary),
    "get /v1/runs/{run_id}": RunView,
    "get /v1/runs/{run_id}/events": Listing(Event),
    "post /v1/runs/{run_id}:cancel": RunStatus,
    "post /v1/runs/{run_id}:{action}": RunStatus,
    "post /v1/runs/{run_id}:retry": RetriedRun,
    "post /v1/runs/{run_id}:fork": RunStatus,
    "post /v1/runs/{run_id}:again": RunStatus,
    "post /v1/runs/{run_id}:migrate": MigrationResult,
    "post /v1/runs:batch": Listing(RunOfJob, **MATCHES),
    "get /v1/jobs/{job_id}": JobView,
    "get /v1/questions": Listing(QuestionView),
    "get /v1/questions/{question_id}": QuestionView,
    "post /v1/questions/{question_id}/votes": Receipt,
    "delete /v1/questions/{question_id}/votes": Receipt,
    "post /v1/questions/{question_id}:claim": Receipt,
    "post /v1/questions/{question_id}:release": Receipt,
    "post /v1/questions/{question_id}:delegate": Receipt,
    "post /v1/questions/{question_id}:comment": Receipt,
    "post /v1/questions/{question_id}:reassign": Receipt,
    "get /v1/absences": Listing(Away),
    "put /v1/absences/mine": Away,
    "post /v1/questions:vote": Listing(fields(interrupt_id=TEXT, status=TEXT, detail=TEXT)),
    "post /v1/questions/{question_id}/grants": Receipt,
    "get /v1/grants": Listing(GrantView),
    "post /v1/grants/{grant_id}/votes": Receipt,
    "post /v1/grants/{grant_id}:revoke": GrantView,
    "get /v1/audit": Listing(HEAD),
    "get /v1/audit/{run_id}": Listing({"type": "object"}, result=TEXT, detail=TEXT),
    "get /v1/freezes": Listing(Freeze),
    "post /v1/freezes": SCOPE,
    "post /v1/freezes:thaw": SCOPE,
    "get /v1/graphs": Listing(fields(name=TEXT, fingerprint=TEXT)),
    "get /v1/graphs/{graph}:check": GraphCheck,
    "post /v1/graphs/{graph}:check": GraphCheck,
    "get /v1/limits": Listing(LimitView),
    "get /v1/limits/fairness": Listing(FairKey),
    "get /v1/limits/queued": Listing(QueuedKey),
    "post /v1/limits/{name}:set": LimitView,
    "post /v1/limits/{name}:pause": LimitView,
    "post /v1/limits/{name}:resume": LimitView,
    "post /v1/limits/{name}:reset": LimitView,
    "get /v1/schedules": Listing(Schedule),
    "post /v1/schedules": Schedule,
    "get /v1/schedules/{schedule_id}": Schedule,
    "post /v1/schedules/{schedule_id}:pause": Schedule,
    "post /v1/schedules/{schedule_id}:resume": Schedule,
    "post /v1/schedules/{schedule_id}:backfill": Listing(BackfilledRun),
    "get /v1/keys": Listing(ApiKey),
    "get /v1/webhooks": Listing(WebhookView),
    "post /v1/webhooks": WebhookView,
    "get /v1/webhooks/{webhook_id}": WebhookView,
    "post /v1/webhooks/{webhook_id}:pause": WebhookView,
    "post /v1/webhooks/{webhook_id}:resume": WebhookView,
    "post /v1/webhooks/{webhook_id}:rotate": WebhookView,
    "get /v1/webhooks/{webhook_id}/deliveries": Listing(Delivery),
    "post /v1/webhooks/{webhook_id}/deliveries/{delivery_id}:redeliver": Delivery,
    "get /v1/workers": Listing(WorkerView),
    "get /v1/backlog": Backlog,
    "get /v1/dead": Listing(DeadLetter),
    "get /v1/dead/{letter_id}": DeadLetter,
    "post /v1/dead/{letter_id}:replay": Replayed,
    "get /v1/sessions": Listing(SessionSummary),
}
"""By route: the type of its answer, or the schema itself. Routes whose answers aren't JSON are missing."""

OPEN = {"/healthz", "/readyz"}

PROBLEM = fields(type=TEXT, title=TEXT, status=NUMBER, detail=TEXT) | {
    "description": "A problem as in RFC 9457; `errors` has a pointer to each place in the request."
}

FRAME = {
    "type": "string",
    "description": (
        "Frames of `id`, `event` and `data`. The `data` of `snapshot` is the route's JSON, for /v1/events "
        "a page of open questions, or of the runs that `run` names. The `data` of any other event is an "
        "Event, with `run` also its `run_id`; for /v1/events it is `run_id`, `node`, `at` and `detail`. "
        "`detail` of `interrupt.*` is the id of the question."
    ),
}

HEADERS = {
    "etag": "The digest of the question, for If-Match",
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


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add the routes' answers and problems to FastAPI's document."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["ProblemDocument"] = PROBLEM
    document["components"]["securitySchemes"] = SCHEMES
    document["security"] = [{name: []} for name in SCHEMES]
    document["servers"] = [{"url": "/"}]
    kinds = [value.kind if isinstance(value, Listing) else value for value in ANSWERS.values()]
    types = {kind for kind in kinds if isinstance(kind, type)}
    bodies, definitions = TypeAdapter.json_schemas(
        [(kind.__name__, "serialization", TypeAdapter(kind)) for kind in types],
        ref_template=PLACE + "{model}",
    )
    ours = definitions.get("$defs", {}) | {
        name: body for (name, _), body in bodies.items() if "$ref" not in body
    }
    for body in ours.values():
        as_written(body)
    # A later version may have further kinds, which a generated client must not refuse.
    ours["Event"]["properties"]["kind"] = {"anyOf": [{"enum": [*EventKind], **TEXT}, TEXT]}
    for name, body in ours.items():
        if schemas.setdefault(name, body) != body:
            raise AssertionError(f"two shapes have the name {name}")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _describe(f"{method} {path}", operation)
    return document


def _describe(route: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    if route.partition(" ")[2] in OPEN:
        operation["security"] = []
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "if-match":  # without it the answer is 428
            parameter |= {"required": True, "schema": TEXT}
    _describe_answer(route, responses)
    content = _json({"$ref": f"{PLACE}ProblemDocument"}, MEDIA_TYPE)
    for status in sorted(_problems(route, operation)):
        responses[str(status)] = {"description": PROBLEMS[status], "content": content}
    if "503" in responses:
        responses["503"]["headers"] = _headers("retry-after")


def _describe_answer(route: str, responses: dict[str, Any]) -> None:
    for answer in responses.values():
        if "text/event-stream" in answer.get("content", ()):
            answer["content"]["text/event-stream"] = {"schema": FRAME}
    if route == "get /v1/questions/{question_id}":
        responses["200"]["headers"] = _headers("etag")
    if "201" in responses and "/runs" in route:
        responses["201"]["headers"] = _headers("location")
    if route in ANSWERS:
        (good,) = (code for code in responses if code.startswith("2"))
        responses[good].setdefault("content", {}).update(_json(_schema(ANSWERS[route])))
    if route == "post /v1/runs:batch":
        responses["202"] = {
            "description": "The job",
            "headers": _headers("location"),
            "content": _json(fields(job_id=TEXT, **MATCHES)),
        }


def _json(schema: dict[str, Any], media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": schema}}


def _headers(name: str) -> dict[str, Any]:
    return {name: {"description": HEADERS[name], "schema": TEXT}}


def _schema(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Listing):
        items = {"type": "array", "items": _schema(answer.kind)}
        return fields(items=items, next=TEXT_OR_NULL, **answer.more)
    return {"$ref": PLACE + answer.__name__} if isinstance(answer, type) else answer


def _problems(route: str, operation: dict[str, Any]) -> Iterator[int]:
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
    if route == "POST /v1/runs" or any(
        "text/event-stream" in answer.get("content", ())
        for answer in operation["responses"].values()
    ):
        yield 429
