"""The hook of coding agents: it decides a call by the gate's policy, in the form of the agent's hooks.

Claude Code and Codex write a call to the hook's standard input before they make it (`PreToolUse`), or
when they would ask their user for permission (`PermissionRequest`), and read the decision from its
output. The agent makes the call; an approval is used by the one hook process that reports it. If
anything fails, the exit code 2 has the agent refuse the call.
"""

from __future__ import annotations

import json
import os
import sys
import time

from runner.doors.gated_call import Calls, own_output, read_policy
from runner.errors import UsageError
from runner.records import codec
from runner.records.codec import JSON, JSONMapping, JSONObject

POLL = 0.25
"""Seconds between two checks of a call that waits."""


class HookCall:
    """The call of one hook process; see `CallMaker`. To make it is to let the agent make it."""

    def __init__(self, event: JSONMapping) -> None:
        """Read the agent's event.

        Raises:
            UsageError: it isn't one of the two events.
        """
        try:
            self.event = str(event["hook_event_name"])
            self.cwd = str(event["cwd"])
            self.name = str(event["tool_name"])
            self.args = dict(event["tool_input"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"The hook got no event of a tool's call: {error!r}.") from error
        if self.event not in {"PreToolUse", "PermissionRequest"}:
            raise UsageError(
                f"The hook decides PreToolUse and PermissionRequest, not {self.event!r:.80}."
            )
        # Codex can't change a call, and asks its user even about a call that PreToolUse allows.
        self.is_codex = "turn_id" in event
        self.decisions = ("approve", *([] if self.is_codex else ["edit"]), "reject")
        self.is_taken = False

    def tool(self, name: str) -> tuple[JSON, bool]:
        """Return no schema: the agent gives none."""
        del name
        return None, False

    def make(self, name: str, args: JSON) -> JSONObject:
        """Take the approval for this process."""
        del name
        self.is_taken = True
        return {"result": args}

    def allowed(self, args: JSON) -> JSONObject:
        """Return the output that allows the call; {} lets the agent go on as without the hook."""
        edit = {} if args == self.args else {"updatedInput": args}
        if self.event == "PermissionRequest":
            return self._output({"decision": {"behavior": "allow", **edit}})
        return {} if self.is_codex else self._output({"permissionDecision": "allow", **edit})

    def denied(self, reason: str) -> JSONObject:
        """Return the output that refuses the call, with a reason for the model."""
        if self.event == "PermissionRequest":
            return self._output({"decision": {"behavior": "deny", "message": reason}})
        return self._output({"permissionDecision": "deny", "permissionDecisionReason": reason})

    def _output(self, fields: JSONObject) -> JSONObject:
        return {"hookSpecificOutput": {"hookEventName": self.event, **fields}}


def decide(call: HookCall, options: JSONMapping) -> JSONObject:
    """Return the hook's output for a call, after at most `wait` seconds."""
    calls = Calls(read_policy(options["policy"]), call.cwd, call)
    until = time.monotonic() + options["wait"]
    while True:
        run_id, _ = calls.attach(call.name, call.args, None)
        if run_id is None:
            return {}
        while (outcome := calls.outcome(run_id)) is None:
            if time.monotonic() > until:
                return call.denied(calls.waiting_text(run_id))
            time.sleep(POLL)
        calls.tell(run_id)
        if "refused" in outcome:
            return call.denied(outcome["refused"])
        if call.is_taken:
            return call.allowed(outcome["result"])
        # Another process used the approval for an equal call, so this one asks again.


if __name__ == "__main__":
    output = own_output()
    try:
        event = codec.load_json(sys.stdin.buffer.read())
        answer = decide(HookCall(event), json.loads(sys.argv[1]))
    except BaseException as problem:  # noqa: BLE001 - whatever fails, the agent must not make the call
        print(f"Error: {problem}", file=sys.stderr)  # noqa: T201 - a program
        sys.exit(2)
    if answer:
        os.write(output, json.dumps(answer).encode())
