"""The JSON Schemas of what commands write with `--json`; docs/reference/cli-schemas holds them as files."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from runner.cli import documents, export, forms

DRAFT = GenerateJsonSchema.schema_dialect

DOCUMENTS: dict[str, tuple[str, Any]] = {
    "completion": ("", forms.CompletionForm),
    "config show": ("settings", forms.SettingForm),
    "dead drop": ("dropped", forms.DroppedForm),
    "dead list": ("letters", documents.LetterDocument),
    "dead replay": ("replayed", forms.ReplayedForm),
    "dead show": ("", documents.LetterDocument),
    "dev": ("", forms.ReadyForm),
    "doctor": ("checks", forms.CheckForm),
    "graphs check": ("", forms.CheckedForm),
    "graphs draw": ("", documents.DrawingDocument),
    "graphs list": ("graphs", documents.GraphLine),
    "graphs show": ("", documents.GraphDocument),
    "init": ("", forms.WrittenForm),
    "interrupts list": ("interrupts", documents.InterruptDocument),
    "interrupts respond": ("", documents.ReceiptDocument),
    "interrupts show": ("", documents.InterruptDocument),
    "interrupts withdraw": ("", forms.WithdrawnForm),
    "metrics": ("metrics", forms.GaugeForm),
    "run": ("", forms.StartedForm | documents.RunDocument),
    "runs again": ("", forms.StandingForm),
    "runs cancel": ("", forms.StandingForm),
    "runs events": ("", documents.EventDocument),
    "runs export": ("", export.ExportDocument),
    "runs fork": ("", forms.StandingForm),
    "runs list": ("runs", documents.RunLine),
    "runs migrate": ("runs", forms.MigratedForm),
    "runs remove": ("", forms.RemovedForm),
    "runs retry": ("", forms.RetriedForm),
    "runs show": ("", documents.RunDocument),
    "runs watch": ("", documents.EventDocument),
    "version": ("", forms.VersionForm),
    "workers list": ("workers", documents.WorkerDocument),
}
"""By command: the key of its list, or "" where it writes one document, and the form of each."""

PAGED = {"interrupts list", "runs list"}
"""Commands whose list goes on: `next` is what `--cursor` takes, empty or null at the end."""


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command writes."""
    key, form = DOCUMENTS[command]
    made = TypeAdapter(form).json_schema(ref_template="#/$defs/{model}")
    if key:
        parts = made.pop("$defs", {})
        properties = {key: {"type": "array", "items": made}}
        properties |= {"next": {"type": ["string", "null"]}} if command in PAGED else {}
        listed = {"type": "object", "properties": properties, "required": list(properties)}
        made = {**listed, "$defs": parts} if parts else listed
    return {
        "$schema": DRAFT,
        "title": f"runner {command} --json",
        **{k: v for k, v in made.items() if k != "title"},
    }
