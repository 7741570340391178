"""The process that `runner server` becomes, which passes its options as JSON."""

from __future__ import annotations

import json
import logging.config
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI

from runner.errors import RunnerError, UsageError, needs_extra
from runner.execution.telemetry import JsonFormatter
from runner.server.access import split_role
from runner.server.app import create_app, imported
from runner.server.auth import ApiKeys, Local, ProxyHeaders, is_loopback, new_key, token_of
from runner.settings import Settings

with needs_extra("server", "the HTTP API and the pages"):
    import uvicorn


ARGUMENTS = "RUNNER_SERVER_ARGUMENTS"
"""The environment variable that passes a server's options to its processes."""

SWITCH = 0.001
"""Seconds after which a thread that renders a page lets another one work; Python's default is 0.005."""


def auth_of(
    name: str, api_keys: str | None, server_secret: str, **proxy: Any
) -> Callable[..., Any]:
    """Return the authentication backend that the options name.

    `server_secret` is the secret of `Local`, `proxy` has the options of `ProxyHeaders`.

    Raises:
        UsageError: an option can't be used, or the object can't be imported.
    """
    if name == "local":
        way: Callable[..., Any] = Local(secret=server_secret)
    elif name == "proxy":
        way = ProxyHeaders(**{option: value for option, value in proxy.items() if value})
    else:
        way = imported(name, "auth")
    return ApiKeys(api_keys, then=way) if api_keys else way


def roles_of(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Read `--role-of`: the roles of each group.

    Raises:
        UsageError: one is not GROUP=ROLE, or names no role.
    """
    roles: dict[str, list[str]] = {}
    for pair in pairs:
        group, _, role = pair.rpartition("=")
        try:
            split_role(role if group else "")
        except UsageError as error:
            raise UsageError(f"--role-of {pair!r} is not GROUP=ROLE: {error}") from error
        roles.setdefault(group, []).append(role)
    return roles


def _application(options: SimpleNamespace, settings: Settings) -> FastAPI:
    proxy = {
        "trusted": options.trusted,
        "role_of": roles_of(options.role_of),
        "roles": options.roles_header,
        "secret": settings.proxy_secret,
    }
    sys.setswitchinterval(SWITCH)
    auth = auth_of(options.auth, options.api_keys, settings.server_secret, **proxy)
    return create_app(settings, auth, doors=options.door)


def worker_application() -> FastAPI:
    """Return the application of one of several processes, with the options of the first one."""
    return _application(SimpleNamespace(**json.loads(os.environ[ARGUMENTS])), Settings())


def main(values: Mapping[str, Any]) -> int:
    """Serve with the options of `runner server` until the process is asked to stop."""
    options = SimpleNamespace(**values)
    try:
        if options.new_key:
            key, entry = new_key(options.new_key, options.role, days=options.days)
            print(f"{key}\n{json.dumps(entry)}")  # noqa: T201 - a program
            return 0
        if options.auth == "local" and not is_loopback(options.host):
            raise UsageError(
                f"--auth local is for this machine only, so it is not served on {options.host}. "
                "Name another --auth: proxy, or MODULE:OBJECT."
            )
        settings = Settings()
        settings.server_secret = settings.server_secret or secrets.token_hex(32)
        app: FastAPI | str = _application(options, settings)
    except RunnerError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program
        return 2
    several: dict[str, Any] = {}
    if options.workers > 1:
        os.environ[ARGUMENTS] = json.dumps(values)
        # A form that one process made may be sent to another.
        os.environ["RUNNER_SERVER_SECRET"] = settings.server_secret
        app = "runner.server.__main__:worker_application"
        several = {"workers": options.workers, "factory": True}
    logs = log_config(settings)
    logging.config.dictConfig(logs)
    if options.auth == "local":
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{host}:{options.port}/login?token={token_of(settings.server_secret)}"
        logging.getLogger("uvicorn.error").info("Open %s", address)
    # Addresses of clients come from the connection: ProxyHeaders itself decides whom to believe.
    uvicorn.run(
        app,
        host=options.host,
        port=options.port,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
        ws="none",  # an installed library for WebSockets would be loaded for nothing
        log_config=logs,
        **several,
    )
    return 0


def log_config(settings: Settings) -> dict[str, Any]:
    """Return the configuration of the logs: uvicorn's, or with RUNNER_LOG_FORMAT=json records as JSON."""
    plain = uvicorn.config.LOGGING_CONFIG
    if settings.log_format == "text":
        return plain
    formatters = {name: {"()": JsonFormatter} for name in plain["formatters"]}
    return {
        **plain,
        "formatters": formatters,
        "root": {"handlers": ["default"], "level": "INFO"},
    }


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
