"""A model on a port of this machine, as Anthropic's API streams it: Claude Code runs on it in tests."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def _events(model, blocks):
    """The stream of a reply with these blocks."""
    usage = {"input_tokens": 10, "output_tokens": 1}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
    yield {"type": "message_start", "message": {**head, "content": [], "usage": usage}}
    for index, block in enumerate(blocks):
        is_text = block["type"] == "text"
        empty = {"text": ""} if is_text else {"input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        begin = {"index": index, "content_block": {**block, **empty}}
        yield {"type": "content_block_start", **begin}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": stop},
        "usage": {"output_tokens": 5},
    }
    yield {"type": "message_stop"}


@contextmanager
def model(reply):
    """Serve a model; `reply` makes the blocks of a reply of the results of tools so far."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            """Say nothing."""

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            results = [
                block
                for message in body["messages"]
                if isinstance(message["content"], list)
                for block in message["content"]
                if block["type"] == "tool_result"
            ]
            events = _events(body["model"], reply(results))
            lines = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events]
            data = "".join(lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
