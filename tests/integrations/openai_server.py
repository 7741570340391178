"""A small server that speaks the chat completions API as the real one does, streaming included.

It refuses what the real one refuses: a tool call without exactly one answer, an unknown role.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@dataclass
class Refusal:
    """An error reply."""

    status: int
    code: str | None
    message: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Endpoint:
    """Its replies, one for each assistant message already there, and the requests it got.

    A reply may be a function of the request.
    """

    url: str
    replies: list[Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def text(*pieces, finish="stop", usage=USAGE):
    """A reply of text, one event a piece."""
    deltas = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    return _events(deltas, finish, usage)


def calls(*made, said=""):
    """A reply of (id, name, arguments) calls; arguments come in pieces, those of all calls mixed."""
    starts = [
        {"index": i, "id": key, "type": "function", "function": {"name": name, "arguments": ""}}
        for i, (key, name, _) in enumerate(made)
    ]
    halves = [(i, json.dumps(given)) for i, (_, _, given) in enumerate(made)]
    pieces = [(i, half[:3]) for i, half in halves] + [(i, given[3:]) for i, given in halves]
    deltas = [{"role": "assistant", "content": said or None}, {"tool_calls": starts}]
    deltas += [
        {"tool_calls": [{"index": i, "function": {"arguments": piece}}]} for i, piece in pieces
    ]
    return _events(deltas, "tool_calls", USAGE)


def _events(deltas, finish, usage):
    shared = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "local",
    }
    events = [
        {**shared, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
    ]
    if finish is not None:
        events.append(
            {**shared, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        )
    if usage is not None:
        events.append({**shared, "choices": [], "usage": usage})
    return events


def whole(events):
    """The reply of a stream as one document, as a request without `stream` gets it."""
    message = {"role": "assistant", "content": None}
    choices = [choice for event in events for choice in event["choices"]]
    for delta in (choice["delta"] for choice in choices):
        if delta.get("content"):
            message["content"] = (message["content"] or "") + delta["content"]
        for call in delta.get("tool_calls", []):
            made = message.setdefault("tool_calls", [])
            if call["index"] == len(made):
                made.append(
                    {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
                )
            made[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    choice = {"index": 0, "message": message, "finish_reason": choices[-1]["finish_reason"]}
    shared = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "local"}
    return {**shared, "choices": [choice], "usage": USAGE}


@contextmanager
def endpoint(*replies):
    """Serve these replies on a loopback port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    served = server.endpoint = Endpoint(
        f"http://127.0.0.1:{server.server_port}/v1", list(replies)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        served = self.server.endpoint
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        served.requests.append(body)
        served.keys.append(self.headers["authorization"])
        wrong = (
            "unknown path" if self.path != "/v1/chat/completions" else _wrong(body["messages"])
        )
        if wrong:
            self._refuse(Refusal(400, "invalid_request_error", wrong))
            return
        index = sum(message["role"] == "assistant" for message in body["messages"])
        reply = served.replies[min(index, len(served.replies) - 1)]
        reply = reply(body) if callable(reply) else reply
        if isinstance(reply, Refusal):
            self._refuse(reply)
        elif body.get("stream"):
            self._stream(reply)
        else:
            self._send(200, whole(reply))

    def _refuse(self, reply):
        error = {"message": reply.message, "type": "error", "param": None, "code": reply.code}
        self._send(reply.status, {"error": error}, reply.headers)

    def _send(self, status, document, headers=None):
        data = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for data in [*map(json.dumps, events), "[DONE]"]:
            line = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        """The tests' output is no access log."""


def _wrong(messages):
    """Say what the real service would refuse, or nothing."""
    awaited = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in awaited:
                return f"tool message for {message['tool_call_id']} answers no tool call"
            awaited.remove(message["tool_call_id"])
        elif awaited:
            return f"tool calls {awaited} have no response"
        if message["role"] not in ("system", "user", "assistant", "tool"):
            return f"unknown role {message['role']}"
        awaited += [call["id"] for call in message.get("tool_calls", [])]
    return f"tool calls {awaited} have no response" if awaited else ""
