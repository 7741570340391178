"""Restate's server with a service in this process: `restate_server.py`. A node is a step of a handler.

The server is `restate-server` beside this interpreter, in its environment's node_modules (npm package
@restatedev/restate-server), or on PATH. It keeps its journal in a folder that is deleted at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path

import hypercorn.asyncio
import restate
from hypercorn import Config
from program import ANSWERS, LENGTH, STEPS, WIDTH, flow_jobs, reply, serve

PATIENT = 60.0
"""Seconds for the start of the server."""

bench = restate.Service("bench")
asking = restate.Workflow("asking")


def step() -> int:
    """Do nothing."""
    return 1


async def _sequence(ctx: restate.Context, length: int) -> int:
    return sum([await ctx.run_typed("step", step) for _ in range(length)])


def moment() -> float:
    """Say when it runs."""
    return time.time()


@bench.handler()
async def chain(ctx: restate.Context) -> int:
    """Take one step after another."""
    return await _sequence(ctx, LENGTH)


@bench.handler()
async def flow(ctx: restate.Context) -> int:
    """Take a few steps, one after another."""
    return await _sequence(ctx, STEPS)


@bench.handler()
async def fan(ctx: restate.Context) -> int:
    """Take one step, many together, and one more."""
    first = await ctx.run_typed("step", step)
    branches = [ctx.run_typed("step", step) for _ in range(WIDTH)]
    await restate.gather(*branches)
    total = first + sum([await branch for branch in branches])
    return total + await ctx.run_typed("step", step)


@asking.main()
async def ask(ctx: restate.WorkflowContext) -> float:
    """Wait for a promise, then take a step."""
    await ctx.promise("go", type_hint=bool).value()
    return await ctx.run_typed("moment", moment)


@asking.handler()
async def go(ctx: restate.WorkflowSharedContext) -> None:
    """Answer."""
    await ctx.promise("go", type_hint=bool).resolve(True)  # noqa: FBT003 - the answer


class Client(threading.local):
    """Connections to an address, one a thread, which stay open."""

    def __init__(self, port: int) -> None:
        """Connect at the first request."""
        self._connection = HTTPConnection("127.0.0.1", port, timeout=PATIENT)

    def request(self, method: str, path: str, body: object = None) -> object:
        """Send a request; return what the reply says."""
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"content-type": "application/json"}
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise ValueError(f"{path}: {response.status} {text.decode(errors='replace'):.200}")
        return json.loads(text or b"null")


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def find_server() -> str | None:
    """Return where the server's program is."""
    beside = Path(sys.executable).parent
    folders = (beside, beside.parent / "node_modules" / ".bin", os.environ.get("PATH", ""))
    return shutil.which("restate-server", path=os.pathsep.join(map(str, folders)))


def start_server(program: str, folder: str, ingress: int, admin: int) -> None:
    """Start the server; it ends with this process group."""
    addresses = {"INGRESS__BIND": ingress, "ADMIN__BIND": admin, "BIND": free_port()}
    settings = {
        f"RESTATE_{name}_ADDRESS": f"127.0.0.1:{port}" for name, port in addresses.items()
    }
    environment = {**os.environ, **settings, "RESTATE_BASE_DIR": folder, "RUST_LOG": "error"}
    subprocess.Popen(
        [program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )


def serve_handlers(port: int) -> None:
    """Serve the handlers over HTTP/2 from a thread."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    app = restate.app(services=[bench, asking])
    work = hypercorn.asyncio.serve(app, config, shutdown_trigger=asyncio.Event().wait)
    threading.Thread(target=lambda: asyncio.run(work), daemon=True).start()


def register(admin: int, port: int) -> None:
    """Tell the server where the handlers are, as soon as it listens."""
    deadline = time.monotonic() + PATIENT
    while True:
        try:
            Client(admin).request("POST", "/deployments", {"uri": f"http://127.0.0.1:{port}"})
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def main() -> None:
    """Start the server and the service, and serve."""
    program = find_server()
    if program is None:
        reply({"error": "there is no restate-server: npm install @restatedev/restate-server"})
        sys.exit(1)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    ingress, admin, port = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start_server(program, folder, ingress, admin)
        serve_handlers(port)
        register(admin, port)
        client = Client(ingress)

        def whole(name: str, nodes: int) -> None:
            count = client.request("POST", f"/bench/{name}")
            if count != nodes:
                raise ValueError(f"{count} steps ran, not {nodes}")

        def resume() -> list[float]:
            times = []
            for _ in range(ANSWERS):
                key = uuid.uuid4().hex
                client.request("POST", f"/asking/{key}/ask/send")
                time.sleep(0.05)  # it waits by then
                sent = time.time()
                client.request("POST", f"/asking/{key}/go")
                output = client.request("GET", f"/restate/workflow/asking/{key}/attach")
                times.append((float(output) - sent) * 1000)
            return times

        serve(
            {
                "restate-sdk": version("restate-sdk"),
                "server": said.stdout.split()[1],
                "hypercorn": version("hypercorn"),
            },
            {
                "chain": lambda: whole("chain", LENGTH),
                "fan": lambda: whole("fan", WIDTH + 2),
                "resume": resume,
                **flow_jobs(lambda: whole("flow", STEPS)),
            },
        )


main()
