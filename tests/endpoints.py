"""HTTP endpoints of tests, which note what they are sent and answer as they are told."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    """What came."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Endpoint:
    """An endpoint on a port of this machine. `code` is what it answers; it may be changed."""

    def __init__(self, code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.code, self.requests, self.connected = code, list[Request](), False
        self.at_once, self.most_at_once = 0, 0
        self.gate = threading.Event()
        self.gate.set()
        endpoint, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                endpoint.connected = True
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                lowered = {name.lower(): value for name, value in self.headers.items()}
                with lock:
                    endpoint.at_once += 1
                    endpoint.most_at_once = max(endpoint.most_at_once, endpoint.at_once)
                    endpoint.requests.append(Request(self.path, lowered, body))
                endpoint.gate.wait(60)
                with lock:
                    endpoint.at_once -= 1
                self.send_response(endpoint.code)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/hooks"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=[0.01], daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def ids(self) -> list[str]:
        """The `webhook-id` of each request."""
        return [request.headers["webhook-id"] for request in self.requests]
