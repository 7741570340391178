"""The JSON Schemas of what commands write with `--json`; docs/reference/cli-schemas holds them as files."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from runner.cli import documents

DRAFT = GenerateJsonSchema.schema_dialect

DOCUMENTS: dict[str, tuple[str, type]] = {
    "dead list": ("letters", documents.LetterDocument),
    "dead show": ("", documents.LetterDocument),
    "graphs list": ("graphs", documents.GraphLine),
    "graphs show": ("", documents.GraphDocument),
    "interrupts list": ("interrupts", documents.InterruptDocument),
    "interrupts respond": ("", documents.ReceiptDocument),
    "interrupts show": ("", documents.InterruptDocument),
    "runs list": ("runs", documents.RunLine),
    "runs show": ("", documents.RunDocument),
    "workers list": ("workers", documents.WorkerDocument),
}
"""By command: the key of its list, or "" where it writes one document, and the form of each."""


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command writes."""
    key, form = DOCUMENTS[command]
    made = TypeAdapter(form).json_schema(ref_template="#/$defs/{model}")
    if key:
        parts = made.pop("$defs", {})
        listed = {"type": "object", "properties": {key: {"type": "array", "items": made}}, "required": [key]}
        made = {**listed, "$defs": parts} if parts else listed
    return {
        "$schema": DRAFT,
        "title": f"runner {command} --json",
        **{k: v for k, v in made.items() if k != "title"},
    }
