"""The model of the page about agents: it calls the tool that it was asked about, and says what came back."""

from __future__ import annotations

from typing import Any

from tests.integrations.openai_server import calls, text

ARGUMENTS = {
    "order_status": {"order_id": 1042},
    "refund": {"order_id": 1042, "amount": 12.5},
    "Complaint": {"order_id": 1042, "mood": "angry"},
}


def reply(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Call the tool that the request is about, once; of what has no end, call it again and again."""
    messages = request["messages"]
    asked = next(str(message["content"]) for message in messages if message["role"] == "user")
    tools = [tool["function"]["name"] for tool in request.get("tools", [])]
    wanted = [
        name
        for name in tools
        if name == "Complaint" or name.split("_")[0].lower() in asked.lower()
    ]
    results = [message for message in messages if message["role"] == "tool"]
    if wanted and (not results or "every order" in asked):
        return calls((f"call_{len(results)}", wanted[0], ARGUMENTS[wanted[0]]))
    return text(f"Order 1042: {results[-1]['content']}" if results else "Hello.")
