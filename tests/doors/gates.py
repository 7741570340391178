"""A gate in a process of its own before a server that misbehaves, and a client that writes plain JSON."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

SERVER = [sys.executable, str(Path(__file__).parent / "odd_mcp_server.py")]

POLICY = """
calls:
  - tools: pay
    bounds: {amount: {type: integer, maximum: 50}}
    rule: pass
  - tools: [free*]
    rule: pass
  - tools: "*"
    rule: {eligible: [ana], title: "Pay {amount} to {to}"}
"""


def command(folder, *, main="runner.doors.gate", policy="policy.yaml", **options):
    """Return the command line of a gate, and write its policy."""
    path = folder / policy
    if not path.exists():
        path.write_text(POLICY)
    given = {"policy": str(path), "url": "", "command": SERVER}
    options = {**given, "wait": 0.5, "timeout": 60.0, **options}
    return [sys.executable, "-m", main, json.dumps(options)]


class Gate:
    """The client of a gate's process."""

    def __init__(self, process):
        self.process, self._answers, self.requests = process, {}, []
        self._changed = threading.Condition()
        self._number, self._gone = 0, False
        threading.Thread(target=self._read, daemon=True).start()
        version = {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}}
        self.ask("initialize", **version, clientInfo={"name": "t", "version": "1"})
        self.send({"method": "notifications/initialized"})

    def _read(self):
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # the gate was killed while it wrote
            message = json.loads(line)
            with self._changed:
                if "method" in message:
                    self.requests.append(message)
                else:
                    self._answers[message["id"]] = message
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def begin(self, method, **params):
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        return self._number

    def end(self, number):
        """Return the answer to a request; raise queue.Empty if the gate has died."""
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._answers or self._gone, 180)
            if number not in self._answers:
                raise queue.Empty
            return self._answers.pop(number)

    def until_answered(self, numbers, count, seconds=60):
        """Wait until so many of the requests are answered, or the gate is gone."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._gone or len(numbers & self._answers.keys()) >= count, seconds
            )

    def taken(self, number):
        """Return an answer that has come, {} if none has."""
        with self._changed:
            return self._answers.pop(number, {})

    def rest(self):
        """Return all answers that the gate wrote before it ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._gone, 60)
            return self._answers

    def asked(self):
        """Return the next request of the server to the client."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests, 60)
            return self.requests.pop(0)

    def ask(self, method, **params):
        return self.end(self.begin(method, **params))

    def begin_call(self, tool, args, **more):
        return self.begin("tools/call", name=tool, arguments=args, **more)

    def call(self, tool, **args):
        return self.end(self.begin_call(tool, args))

    def text(self, tool, **args):
        """Call a tool and return the text of its result, and whether it is an error."""
        return self.text_of(self.begin_call(tool, args))

    def text_of(self, number):
        """Return the text of the result of a call, and whether it is an error."""
        result = self.end(number)["result"]
        return result["content"][0]["text"], result.get("isError", False)


@contextmanager
def serving(folder, redis_url, *, env=None, **options):
    """Run a gate on the store at `redis_url`, with its ledger in `folder`."""
    (folder / "changes").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "RUNNER_REDIS_URL": redis_url,
        "LEDGER": str(folder / "ledger"),
        "CHANGES": str(folder / "changes"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **(env or {}),
    }
    process = subprocess.Popen(
        command(folder, **options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextmanager
def gate(folder, redis_url, **options):
    """Run a gate over stdio, and give its client."""
    with serving(folder, redis_url, **options) as process:
        yield Gate(process)


def paid(folder):
    """Return the lines of the ledger: the calls that were made."""
    ledger = folder / "ledger"
    return ledger.read_text().splitlines() if ledger.exists() else []
