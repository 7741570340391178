"""A graph with an agent of the Claude Agent SDK, as a worker imports it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions

from runner import graph
from runner.approvals.rules import Rule
from runner.integrations.claude_agent import ClaudeAgent
from tests.graphs import wired


def options():
    """No file of an earlier execution is there, as on another machine."""
    folder = tempfile.mkdtemp(dir=os.environ["FOLDER"])
    env = {
        "ANTHROPIC_BASE_URL": os.environ["MODEL"],
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": str(Path(folder, "config")),
    }
    return ClaudeAgentOptions(cwd=folder, env=env, setting_sources=[])


@graph("claude")
def claude():
    return wired({"asker": ClaudeAgent(options, gate=["Bash"], approval=Rule())}).build()
