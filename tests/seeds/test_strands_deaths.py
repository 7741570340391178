"""Scenarios of Strands' tests of interrupts, on workers of which the one that asked is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from runner.records.run import FINAL, Status
from tests.celery.sites import databases, empty_site
from tests.integrations.extras import need
from tests.waiting import wait_until

__all__ = ["databases", "empty_site"]

need("strands", "strands")

GRAPHS = {"RUNNER_GRAPHS": "tests.seeds.scenario_graphs"}
TASK = "day, time and weather?"

SCENARIOS = {
    "an event of a swarm, approved": ("swarm_hook", 1, {"weather": "yes"}),
    "an event of a swarm, rejected": ("swarm_hook", 1, {"weather": "no"}),
    "events of a graph, approved": ("graph_hook", 2, {"day": "yes", "weather": "yes"}),
    # Both, since whether an approved node starts before its sibling fails is a race.
    "events of a graph, rejected": ("graph_hook", 2, {"day": "no", "weather": "no"}),
    "a tool in a swarm": ("swarm_tool", 1, {"sky": "sunny"}),
    "tools in a graph and in a swarm of it": (
        "graph_tool",
        2,
        {"day": "monday", "sky": "sunny"},
    ),
    "a swarm that has a session in Strands": ("swarm_of_two", 1, {"sky": "sunny"}),
    "a graph in a graph, with sessions in Strands": ("graph_in_graph", 1, {"sky": "sunny"}),
    "a call of an agent, approved": ("agent_hook", 1, {"call": "yes"}),
    "a call of an agent, rejected": ("agent_hook", 1, {"call": "no"}),
    "calls and tools, in two rounds": (
        "agent_tools",
        2,
        {"call": "yes", "day": "monday", "time": "12:01"},
    ),
}
"""The graph, the number of questions that are open first, and the answers by the questions' names."""

UNDISTURBED = """
import json
import sys

from runner import Graph
from tests.graphs import answers
from tests.seeds import scenario_graphs

for name, _, by_name in json.loads(sys.argv[2]):
    graph = Graph(getattr(scenario_graphs, name)().definition)
    result = graph(sys.argv[1])
    while result.interrupts:
        result = graph(answers(*((each.id, by_name[each.name]) for each in result.interrupts)))
    outputs = {name: str(node.output) for name, node in result.results.items()}
    print(json.dumps([result.status, outputs, result.usage["inputTokens"]]))
"""

SESSION = """
import os
import signal
import sys

from tests.seeds.scenario_graphs import Gate, agent, clock, sky
from strands.session import FileSessionManager

manager = FileSessionManager(session_id="one", storage_dir=sys.argv[1])
one = agent("a", clock, sky, hooks=[Gate("clock")], session_manager=manager)
if len(sys.argv) == 2:
    print(one("time and weather?").interrupts[0].id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
answer = [{"interruptResponse": {"interruptId": sys.argv[3], "response": "yes"}}]
lost = FileSessionManager(session_id="one", storage_dir=sys.argv[2])
try:
    agent("a", clock, sky, hooks=[Gate("clock")], session_manager=lost)(answer)
except Exception as error:
    print(error)
print(one(answer), len(one.messages), flush=True)
"""


def program(text, *arguments):
    """Run a program: Strands' names are bound for the whole of a process, and other tests need them."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def answer_all(site, runs):
    """Answer the open questions of all runs."""
    for scenario, run in runs.items():
        for question in run.interrupts():
            site.client.respond(question.id, SCENARIOS[scenario][2][question.name])


def unfinished(runs):
    """The scenarios whose runs have not ended."""
    return [scenario for scenario, run in runs.items() if run.result().status not in FINAL]


@pytest.mark.slow
def test_each_scenario_goes_on_on_another_worker(empty_site):
    """Runs end as in one process, as many calls of models; control: none ends without a second worker."""
    first = empty_site.add(slots=2, **GRAPHS)
    first.wait_ready()
    runs = {
        scenario: empty_site.client.start(name, TASK)
        for scenario, (name, _, _) in SCENARIOS.items()
    }
    for scenario, run in runs.items():
        count = SCENARIOS[scenario][1]
        wait_until(lambda run=run, count=count: len(run.interrupts()) == count, scenario)
        assert run.wait(60).status is Status.INTERRUPTED, scenario

    first.kill()
    wait_until(lambda: not first.alive, "the worker is dead")
    answer_all(empty_site, runs)
    assert unfinished(runs) == list(SCENARIOS)

    empty_site.add(slots=2, **GRAPHS).wait_ready()
    wait_until(
        lambda: answer_all(empty_site, runs) or not unfinished(runs), "all runs have ended"
    )
    alone = program(UNDISTURBED, TASK, json.dumps(list(SCENARIOS.values())))
    for line, (scenario, run) in zip(alone.stdout.splitlines(), runs.items(), strict=True):
        result = run.result()
        outputs = {name: str(node.output) for name, node in result.results.items()}
        found = [result.status, outputs, result.usage["inputTokens"]]
        assert found == json.loads(line), scenario


@pytest.mark.slow
def test_an_agents_session_goes_on_in_another_process(tmp_path):
    """The process that asked kills itself, a second one answers; control: not without the session."""
    asked = program(SESSION, str(tmp_path / "kept"))
    assert asked.returncode == -signal.SIGKILL, asked.stderr
    folders = str(tmp_path / "kept"), str(tmp_path / "lost")
    answered = program(SESSION, *folders, asked.stdout.strip())
    assert "waits for no answers" in answered.stdout
    assert answered.stdout.strip().endswith(" 4"), answered.stderr
    assert {text for text in ("12:01", "sunny") if text in answered.stdout} == {
        "12:01",
        "sunny",
    }
