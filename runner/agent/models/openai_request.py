"""What an OpenAI-compatible endpoint is sent: a conversation and tools in its words.

Pure: Converse messages and tool specs in, JSON data out. Imports no client. What has no form in
the chat completions API is refused, but for reasoning, which that API takes back from nobody.
"""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Iterable, Mapping
from typing import Any

from runner.errors import UsageError

JSON = Any


def conversation(messages: Iterable[Mapping[str, Any]], prompt: list[dict[str, Any]]) -> list[JSON]:
    """Translate messages, with the system prompt first.

    Raises:
        UsageError: a content block has no form in this API.
    """
    system = [{"role": "system", "content": _texts(prompt)}] if prompt else []
    return [*system, *(part for message in messages for part in _message(message))]


def _message(message: Mapping[str, Any]) -> Iterable[JSON]:
    blocks = message["content"]
    if message["role"] == "assistant":
        yield _assistant(blocks)
        return
    results = [block["toolResult"] for block in blocks if "toolResult" in block]
    for result in results:
        yield {"role": "tool", "tool_call_id": result["toolUseId"], "content": _result_text(result)}
    # A tool message holds text only, so pictures and files follow as the user's.
    shown = [part for result in results for part in result["content"] if not part.keys() & {"text", "json"}]
    rest = [block for block in blocks if not block.keys() & {"toolResult", "cachePoint"}]
    if shown or rest:
        yield {"role": "user", "content": _parts(shown + rest)}


def _assistant(blocks: list[dict[str, Any]]) -> JSON:
    message: dict[str, Any] = {"role": "assistant"}
    text = _texts(blocks)
    calls = [_call(block["toolUse"]) for block in blocks if "toolUse" in block]
    if calls:
        message["tool_calls"] = calls
    if text or not calls:
        message["content"] = text
    return message


def _call(use: Mapping[str, Any]) -> JSON:
    function = {"name": use["name"], "arguments": json.dumps(use["input"])}
    return {"id": use["toolUseId"], "type": "function", "function": function}


def _texts(blocks: Iterable[Mapping[str, Any]]) -> str:
    found = [block["text"] for block in blocks if "text" in block]
    for block in blocks:
        found += [
            part["text"] for part in block.get("citationsContent", {}).get("content", ()) if "text" in part
        ]
    return "\n".join(found)


def _result_text(result: Mapping[str, Any]) -> str:
    texts = [
        part["text"] if "text" in part else json.dumps(part["json"])
        for part in result["content"]
        if "text" in part or "json" in part
    ]
    return "\n".join(texts) or ("(see what follows)" if result["content"] else "(no output)")


def _parts(blocks: list[dict[str, Any]]) -> str | list[JSON]:
    """One text goes as plain text: many servers take nothing else."""
    if len(blocks) == 1 and "text" in blocks[0]:
        return str(blocks[0]["text"])
    return [_part(block) for block in blocks]


def _part(block: Mapping[str, Any]) -> JSON:
    if "text" in block:
        return {"type": "text", "text": block["text"]}
    if "image" in block and "bytes" in block["image"]["source"]:
        kind = block["image"]["format"].replace("jpg", "jpeg")
        return {"type": "image_url", "image_url": {"url": _data(f"image/{kind}", block["image"])}}
    if "document" in block and "bytes" in block["document"]["source"]:
        document = block["document"]
        name = f"{document['name']}.{document['format']}"
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return {"type": "file", "file": {"filename": name, "file_data": _data(kind, document)}}
    raise UsageError(
        f"a content block with {sorted(block)} can't be sent to an OpenAI-compatible endpoint; "
        "give text, or an image or document as bytes."
    )


def _data(kind: str, content: Mapping[str, Any]) -> str:
    return f"data:{kind};base64,{base64.b64encode(content['source']['bytes']).decode('ascii')}"


def tools(specs: list[dict[str, Any]] | None, choice: Mapping[str, Any] | None) -> dict[str, JSON]:
    """Translate tool specs and the choice among them into fields of the request."""
    if not specs:
        return {}
    functions = [
        {"name": spec["name"], "description": spec["description"], "parameters": spec["inputSchema"]["json"]}
        for spec in specs
    ]
    fields: dict[str, JSON] = {"tools": [{"type": "function", "function": each} for each in functions]}
    match choice:
        case {"tool": {"name": name}}:
            fields["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"any": _}:
            fields["tool_choice"] = "required"
        case {"auto": _}:
            fields["tool_choice"] = "auto"
    return fields
