"""A pytest plugin for Strands' own tests: their models, and with PEERS_SUITE=runner this library.

It stands alone on the path, since Strands' sources have a package `tests`, too.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path

import strands.models.bedrock

CALLS = []
"""The first function of this library that the test has called."""

if os.environ["PEERS_SUITE"] == "runner":
    import runner.compat.strands

    runner.compat.strands.install()

    FOLDER = str(Path(runner.__file__).parent)

    def _profile(frame, event, argument):
        if not CALLS and frame.f_code.co_filename.startswith(FOLDER):
            CALLS.append(frame.f_code.co_name)

    threading.setprofile(_profile)
    sys.setprofile(_profile)

REPORT = Path(os.environ["PEERS_SUITE_REPORT"])


def _call(number, name, **arguments):
    use = {"toolUseId": f"use-{number}-{name}", "name": name}
    yield {"contentBlockStart": {"start": {"toolUse": use}}}
    yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
    yield {"contentBlockStop": {}}


async def _stream(self, messages, tool_specs=None, system_prompt=None, **options):
    """Call each tool once, hand over if nobody has, and then repeat all that the model was told."""
    text = str(messages[0]["content"])
    asked = [b["toolUse"]["name"] for m in messages for b in m["content"] if "toolUse" in b]
    names = [spec["name"] for spec in tool_specs or ()]
    calls = [(name, {}) for name in names if name not in {*asked, "handoff_to_agent"}]
    others = re.findall(r"Agent name: (\w+)", text)
    may_hand_over = (
        "handoff_to_agent" in set(names) - set(asked) and "Previous agents" not in text
    )
    if not calls and others and may_hand_over:
        told = re.sub(r"Agent name|Previous agents", "", str(messages))
        calls = [("handoff_to_agent", {"agent_name": others[0], "message": told})]
    yield {"messageStart": {"role": "assistant"}}
    for name, arguments in calls:
        for chunk in _call(len(asked), name, **arguments):
            yield chunk
    if not calls:
        said = str([message["content"] for message in messages])
        yield {"contentBlockDelta": {"delta": {"text": said}}}
        yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


strands.models.bedrock.BedrockModel.stream = _stream


def pytest_runtest_logstart():
    """Begin a test: it has called nothing yet."""
    CALLS.clear()


def pytest_runtest_logreport(report):
    """Append each test's end to the report."""
    if report.when == "call" or report.failed:
        reason = str(report.longrepr or "").strip().splitlines()
        line = {
            "test": report.nodeid,
            "outcome": report.outcome + (" alone" if report.passed and not CALLS else ""),
            "reason": next((x for x in reversed(reason) if x.startswith("E ")), "")[:300],
        }
        with REPORT.open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def pytest_unconfigure():
    """End at once: threads of a test that timed out may wait for ever."""
    sys.stdout.flush()
    os._exit(0)
