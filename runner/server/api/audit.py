"""`/v1/audit` and `/v1/freezes`: what was recorded of approvals, whether it holds, and what stops effects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field, StrictBool

from runner.approvals.freezes import scope_named
from runner.approvals.freezing import freeze, thaw
from runner.audit.files import export_lines, read_public, verify_file
from runner.audit.sealing import terms
from runner.errors import UsageError
from runner.records.json_form import stamp
from runner.records.run import existing
from runner.records.run_ids import partition_of
from runner.server.access import Administers, Reads, Seen
from runner.server.api.documents import ONE_PAGE, RequestBody, page_document
from runner.server.services import Served, Services

router = APIRouter(prefix="/v1", tags=["audit"])


@dataclass(frozen=True, slots=True)
class RunAudit:
    """The entries of a run, and what verifying them came to.

    `result` is holds, broken or incomplete; unverified where this server has no key, unsigned where no
    worker has signed anything yet.
    """

    entries: list[Mapping[str, Any]]
    result: str
    detail: str
    lines: list[str]


def audit_of(services: Services, run_id: str) -> RunAudit:
    """Read a run's audit and verify what is signed of it, with this server's key.

    Looking signs nothing. The key that stands in the store verifies nothing either: a client of it could have
    put it there.
    """
    logs = services.store.audit_logs
    log = logs[partition_of(run_id) % len(logs)]
    try:
        conditions = replace(terms(services.settings, services.archive), signer=None)
        lines = list(export_lines(log, conditions, "jsonl", run_id))
    except UsageError as error:
        kept = (json.loads(text) for _, text in log.kept())
        of_run = [entry for entry in kept if entry.get("run") == run_id]
        return RunAudit(of_run, "unsigned", str(error), [])
    entries = [entry for entry in map(json.loads, lines) if "type" in entry]
    if not services.settings.audit_key:
        detail = "this server has no RUNNER_AUDIT_KEY to verify with; export it, then `runner audit verify`."
        return RunAudit(entries, "unverified", detail, lines)
    verdict = verify_file(lines, read_public(services.settings.audit_key), ())
    return RunAudit(entries, verdict.result.name.lower(), verdict.text, lines)


@router.get(
    "/audit", summary="Show how far the audit is sealed and signed", dependencies=[ONE_PAGE]
)
def heads(person: Reads, services: Served) -> dict[str, Any]:
    """Show each partition's tree: its entries, those signed, and the checkpoint that signs them."""
    items = []
    for partition, log in enumerate(services.store.audit_logs):
        head = log.head()
        items.append(
            {
                "partition": partition,
                "size": head.size,
                "signed": head.signed,
                "signed_at": stamp(head.signed_at),
                "checkpoint": head.note,
                "problem": head.problem,
            }
        )
    return page_document(items, person)


@router.get("/audit/{run_id}", summary="Show the audit of a run, verified")
def show(run_id: str, person: Reads, services: Served) -> Any:
    """Show what was recorded of a run's approvals, and whether it holds by this server's key."""
    existing(services.store.peek(run_id), run_id)
    audit = audit_of(services, run_id)
    return page_document(audit.entries, person) | {
        "result": audit.result,
        "detail": audit.detail,
    }


@router.get(
    "/audit/{run_id}/export",
    summary="Export the audit of a run",
    response_class=Response,
    responses={200: {"content": {"application/jsonl": {}}}},
)
def export(run_id: str, _: Reads, services: Served) -> Response:
    """Write the file that `runner audit verify` checks without a store: JSON lines."""
    existing(services.store.peek(run_id), run_id)
    text = "".join(audit_of(services, run_id).lines)
    return Response(text, media_type="application/jsonl")


class Scope(RequestBody):
    """A freeze of a graph, a tool, or all effects, and its reason."""

    kind: Literal["graph", "tool", "all"]
    name: str = ""
    reason: str = Field(min_length=1)


class Freezing(Scope):
    """A scope to freeze; `force` takes a name that no graph or tool has here."""

    force: StrictBool = False


@router.get("/freezes", summary="List what is frozen", dependencies=[ONE_PAGE])
def list_freezes(person: Seen, services: Served) -> dict[str, Any]:
    """List the freezes: no effect of theirs happens until they are thawed."""
    return page_document(services.store.frozen().values(), person)


@router.post("/freezes", status_code=201, summary="Freeze effects")
def add_freeze(body: Freezing, person: Administers, services: Served) -> dict[str, str]:
    """Stop every effect of a graph, a tool or all; 404 where nothing has the name."""
    scope = scope_named(body.kind, body.name)
    freeze(services.client.engine, scope, body.reason, person.principal.key, force=body.force)
    return {"scope": scope}


@router.post("/freezes:thaw", summary="End a freeze")
def end_freeze(body: Scope, person: Administers, services: Served) -> dict[str, str]:
    """Let effects happen again."""
    scope = scope_named(body.kind, body.name)
    thaw(services.client.engine, scope, body.reason, person.principal.key)
    return {"scope": scope}
