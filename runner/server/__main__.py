"""The server as a process: what `runner server` becomes."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from runner.errors import RunnerError, UsageError, needs_extra
from runner.server.app import create_app
from runner.server.auth import ApiKeys, Local, ProxyHeaders, is_loopback, new_key
from runner.settings import Settings

with needs_extra("server", "the HTTP API and the pages"):
    import uvicorn


def auth_of(name: str, api_keys: str, trusted: Sequence[str]) -> Callable[..., Any]:
    """Return the way to tell who calls that the options name.

    Raises:
        UsageError: there is no such way, or the object can't be imported.
    """
    if name == "local":
        way: Callable[..., Any] = Local()
    elif name == "proxy":
        way = ProxyHeaders(trusted=trusted) if trusted else ProxyHeaders()
    else:
        module, colon, attribute = name.partition(":")
        try:
            way = getattr(importlib.import_module(module), attribute) if colon else None  # type: ignore[assignment]
        except (ImportError, AttributeError) as error:
            raise UsageError(f"--auth {name!r} can't be imported: {error}.") from error
        if not callable(way):
            raise UsageError(f"--auth {name!r} is none of local, proxy, MODULE:OBJECT.")
    return ApiKeys(api_keys, then=way) if api_keys else way


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the process is asked to stop."""
    parser = argparse.ArgumentParser(prog="runner server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--auth", default="local")
    parser.add_argument("--api-keys", default="")
    parser.add_argument("--trusted", action="append", default=[])
    parser.add_argument("--new-key", default="")
    parser.add_argument("--role", action="append", default=[])
    options = parser.parse_args(arguments)
    try:
        if options.new_key:
            key, entry = new_key(options.new_key, options.role)
            print(f"{key}\n{json.dumps(entry)}")  # noqa: T201 - a program
            return 0
        if options.auth == "local" and not is_loopback(options.host):
            raise UsageError(
                f"with --auth local everybody may do everything, so it is not served on {options.host}. Name "
                "another --auth: proxy, or MODULE:OBJECT."
            )
        app = create_app(Settings(), auth_of(options.auth, options.api_keys, options.trusted))
    except RunnerError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program
        return 2
    # Addresses of clients come from the connection: ProxyHeaders itself decides whom to believe.
    uvicorn.run(app, host=options.host, port=options.port, proxy_headers=False, timeout_graceful_shutdown=3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
