"""The model that drafts the notes: a script, so that the example needs no account, or a real one.

`RELEASE_MODEL=module:factory` names a function without arguments that returns a model: any object
with the `stream` method of a Strands model, for example Strands' own model classes.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from runner.testing import ScriptedModel

Messages = list[dict[str, Any]]


def model() -> Any:
    """Return the model that RELEASE_MODEL names, or the script."""
    named = os.environ.get("RELEASE_MODEL")
    if not named:
        return ScriptedModel([_call_both_tools, _write_notes])
    module, _, factory = named.partition(":")
    return getattr(importlib.import_module(module), factory)()


def _call_both_tools(messages: Messages) -> list[dict[str, Any]]:
    """Call both tools; the path of the repository is in the prompt, as for a real model."""
    prompt = messages[0]["content"][0]["text"]
    task = json.loads(prompt.removeprefix("Original Task: "))
    arguments = {"repository": task.get("path", "."), "limit": task.get("commits", 20)}
    return [
        {"toolUse": {"name": "recent_changes", "input": arguments}},
        {"toolUse": {"name": "ask_audience", "input": {}}},
    ]


def _write_notes(messages: Messages) -> str:
    subjects, audience = (_text(block["toolResult"]) for block in messages[-1]["content"])
    lines = "\n".join(f"- {subject}" for subject in json.loads(subjects))
    return f"# Release notes\n\n{audience}\n\n{lines}\n"


def _text(result: dict[str, Any]) -> str:
    return "".join(
        block.get("text") or json.dumps(block.get("json")) for block in result["content"]
    )
