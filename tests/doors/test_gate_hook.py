"""The hook of coding agents, with the JSON that their documentation shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.doors.gates import command
from tests.integrations.extras import need
from tests.waiting import wait_until

pytestmark = pytest.mark.full

need("mcp", "mcp")

COMMAND = {"command": "git push --force"}
CLAUDE = {
    "session_id": "abc123",
    "transcript_path": "/srv/agent/projects/shop/abc123.jsonl",
    "cwd": "/srv/shop",
    "permission_mode": "default",
    "tool_name": "Bash",
    "tool_input": {**COMMAND, "description": "Publish the branch"},
}
CODEX = {
    "session_id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "turn_id": "turn-1",
    "transcript_path": None,
    "cwd": "/srv/shop",
    "model": "gpt-5.5-codex",
    "permission_mode": "default",
    "tool_name": "Bash",
    "tool_input": COMMAND,
}
EVENTS = {
    "claude-pre": {**CLAUDE, "hook_event_name": "PreToolUse", "tool_use_id": "toolu_01ABC123"},
    "claude-permission": {
        **CLAUDE,
        "hook_event_name": "PermissionRequest",
        "permission_suggestions": [{"type": "toolAlwaysAllow", "tool": "Bash"}],
    },
    "codex-pre": {**CODEX, "hook_event_name": "PreToolUse", "tool_use_id": "call_1"},
    "codex-permission": {**CODEX, "hook_event_name": "PermissionRequest"},
}
POLICY = "calls: [{tools: Bash, rule: {eligible: [ana]}}]"
RULE_THAT_PRINTS = """
import os
from runner.approvals import Rule
print('a')
os.system('echo b')
def approval(args):
    print(args)
    return Rule(eligible=['ana'])
"""
PERMISSION = {"hookEventName": "PermissionRequest"}
PRE = {"hookEventName": "PreToolUse"}
ALLOWED = {
    "claude-pre": {**PRE, "permissionDecision": "allow"},
    "claude-permission": {**PERMISSION, "decision": {"behavior": "allow"}},
    "codex-pre": None,
    "codex-permission": {**PERMISSION, "decision": {"behavior": "allow"}},
}


@pytest.fixture
def start(tmp_path, redis_url):
    """Start a hook for an event."""
    processes = []

    def begin(event, wait=30.0, url=redis_url, policy=POLICY, name="policy.yaml"):
        (tmp_path / name).write_text(policy)
        process = subprocess.Popen(
            command(tmp_path, wait=wait, main="runner.doors.gate_hook", policy=name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RUNNER_REDIS_URL": url,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
        processes.append(process)
        process.stdin.write(event if isinstance(event, str) else json.dumps(event))
        process.stdin.close()
        process.stdin = None
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def output(process):
    """Return what the agent reads; None lets it go on as without the hook."""
    text, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return json.loads(text)["hookSpecificOutput"] if text else None


def vote(people, decision, **options):
    wait_until(lambda: list(people.interrupts()), "people are asked")
    (asked,) = people.interrupts()
    assert people.vote(asked.id, decision, by="ana", **options).status == "accepted"
    return asked


@pytest.mark.parametrize("name", EVENTS)
def test_an_approval_is_told_in_the_agents_form(name, start, people):
    """It shows the exact call, and allows it once: the same call afterwards is asked anew."""
    hook = start(EVENTS[name])
    asked = vote(people, "approve")
    assert asked.action["args"] == EVENTS[name]["tool_input"]
    assert output(hook) == ALLOWED[name]

    again = output(start(EVENTS[name], wait=0))
    assert "It waits for approval" in json.dumps(again)


@pytest.mark.parametrize("name", EVENTS)
def test_a_rejection_is_told_in_the_agents_form(name, start, people):
    """The reason reaches the model."""
    hook = start(EVENTS[name])
    vote(people, "reject", comment="not on Fridays")
    said = output(hook)
    decision = said.get("decision", said)
    assert "deny" in (decision.get("behavior"), decision.get("permissionDecision"))
    assert "not on Fridays" in (decision.get("message") or decision["permissionDecisionReason"])


def test_claude_code_gets_an_edited_call_and_codex_offers_none(start, people):
    """Codex refuses an answer with a changed call, so people can only approve or reject there."""
    edit = {**CLAUDE["tool_input"], "command": "git push"}
    hook = start(EVENTS["claude-pre"])
    vote(people, "edit", response=edit)
    assert output(hook) == {**PRE, "permissionDecision": "allow", "updatedInput": edit}

    start(EVENTS["codex-permission"])
    wait_until(lambda: list(people.interrupts()), "people are asked")
    assert next(iter(people.interrupts())).rule["decisions"] == ["approve", "reject"]


def test_two_hooks_for_equal_calls_share_no_approval(start, people):
    """One takes the approval; the other one asks again."""
    hooks = [start(EVENTS["claude-pre"], wait=60) for _ in range(2)]
    first = vote(people, "approve")
    wait_until(
        lambda: any(each.id != first.id for each in people.interrupts()), "the other one asks"
    )
    second = vote(people, "reject")
    assert second.id != first.id
    decisions = sorted(output(hook)["permissionDecision"] for hook in hooks)
    assert decisions == ["allow", "deny"]


def test_a_call_without_a_rule_is_left_to_the_agent(start, people):
    """The hook says nothing, and nobody is asked."""
    hook = start(EVENTS["claude-pre"], policy="calls: [{tools: Bash, rule: pass}]")
    assert output(hook) is None
    assert list(people.interrupts()) == []


@pytest.mark.parametrize(
    "event",
    ["{", "[]", "{}", json.dumps({**EVENTS["claude-pre"], "hook_event_name": "Stop"})],
)
def test_an_event_that_cannot_be_read_refuses_the_call(start, event):
    """The exit code 2 blocks the call in both agents, with the reason on stderr."""
    process = start(event)
    text, error = process.communicate(timeout=60)
    assert (process.returncode, text) == (2, "")
    assert error.startswith("Error: ")


def test_a_policy_that_prints_does_not_spoil_the_answer(start):
    """An agent ignores an answer that isn't JSON, and goes on without the hook."""
    process = start(EVENTS["claude-pre"], wait=0, policy=RULE_THAT_PRINTS, name="rule.py")
    assert output(process)["permissionDecision"] == "deny"


def test_a_policy_that_ends_the_program_refuses_the_call(start):
    """The exit code 0 without an answer would let the agent go on."""
    process = start(EVENTS["claude-pre"], policy="raise SystemExit(0)", name="policy.py")
    assert (process.communicate(timeout=60)[0], process.returncode) == ("", 2)


def test_a_store_that_is_away_refuses_the_call(start):
    """Nothing is allowed because nobody could be asked."""
    process = start(EVENTS["claude-pre"], url="redis://127.0.0.1:1/0")
    text, error = process.communicate(timeout=60)
    assert (process.returncode, text) == (2, "")
    assert "could not be reached" in error
