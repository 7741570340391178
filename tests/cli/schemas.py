"""The JSON Schemas of the commands' output with `--json`; docs/reference/cli-schemas has them as files.

They are generated from the records and views that the commands write. `docs/generate.py` writes the files.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from runner.approvals.keys import PublicKey
from runner.cli import (
    audit,
    config,
    controls,
    dev,
    graphs,
    init,
    program,
)
from runner.limits.control import LimitView
from runner.operations.backlog import QueueBacklog
from runner.operations.dead_letters import Replayed
from runner.operations.deploys import GraphCheck
from runner.operations.doctor import Check
from runner.operations.exports import Export
from runner.operations.migration import MigratedRun
from runner.operations.questions import QuestionView
from runner.operations.views import (
    RetriedRun,
    RunStatus,
    RunView,
    StartedRun,
    WorkerView,
)
from runner.records.dead_letters import DeadLetter
from runner.records.interrupts import Receipt
from runner.records.json_form import as_written
from runner.records.listings import RunSummary
from runner.records.metrics import Metric
from runner.store.interface import Event

DOCUMENTS: dict[str, tuple[str, Any]] = {
    "audit export": ("", audit.Exported),
    "audit key": ("", audit.AuditKey),
    "audit restart": ("", audit.Restarted),
    "audit verify": ("", audit.Verified),
    "config show": ("settings", config.Setting),
    "dead list": ("letters", DeadLetter),
    "dead replay": ("replayed", Replayed),
    "dev": ("", dev.Ready),
    "doctor": ("checks", Check),
    "freeze": ("", controls.Frozen),
    "graphs check": ("", GraphCheck),
    "graphs draw": ("", graphs.GraphDrawing),
    "graphs list": ("graphs", graphs.GraphLine),
    "graphs remove": ("", graphs.RemovedGraph),
    "graphs show": ("", graphs.GraphView),
    "init": ("", init.Project),
    "interrupts list": ("interrupts", QuestionView),
    "interrupts respond": ("", Receipt),
    "interrupts show": ("", QuestionView),
    "interrupts vote": ("", Receipt),
    "keys list": ("keys", PublicKey),
    "keys new": ("", PublicKey),
    "keys revoke": ("", PublicKey),
    "keys rotate": ("", PublicKey),
    "metrics": ("metrics", Metric),
    "run": ("", StartedRun | RunView),
    "runs cancel": ("", RunStatus),
    "runs export": ("", Export),
    "runs hold": ("", RunStatus),
    "runs list": ("runs", RunSummary),
    "runs migrate": ("runs", MigratedRun),
    "runs release": ("", RunStatus),
    "runs remove": ("", RunStatus),
    "runs retry": ("", RetriedRun),
    "runs show": ("", RunView),
    "runs skip": ("", RunStatus),
    "runs watch": ("", Event),
    "limits list": ("limits", LimitView),
    "limits pause": ("", LimitView),
    "limits reset": ("", LimitView),
    "limits resume": ("", LimitView),
    "limits set": ("", LimitView),
    "limits show": ("", LimitView),
    "thaw": ("", controls.Frozen),
    "version": ("", program.Versions),
    "workers backlog": ("queues", QueueBacklog),
    "workers list": ("workers", WorkerView),
}
"""By command: the key of its list, or "" if it writes one document, and the type of each."""

PAGED = {"interrupts list", "runs list"}
"""Commands whose lists have a key `next`: the `--cursor` of the next page, null at the end."""


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's output."""
    key, kind = DOCUMENTS[command]
    body = TypeAdapter(kind).json_schema(ref_template="#/$defs/{model}", mode="serialization")
    types = body.pop("$defs", {})
    for part in (body, *types.values()):
        as_written(part)
    if key:
        properties = {key: {"type": "array", "items": body}}
        properties |= {"next": {"type": ["string", "null"]}} if command in PAGED else {}
        body = {"type": "object", "properties": properties, "required": list(properties)}
    title = {"$schema": GenerateJsonSchema.schema_dialect, "title": f"runner {command} --json"}
    return {**title, **{name: value for name, value in body.items() if name != "title"}} | (
        {"$defs": types} if types else {}
    )
