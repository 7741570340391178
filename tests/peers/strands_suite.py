"""Runs Strands' own tests of graphs and interrupts on Strands and on this library, and writes the page.

`make peers-suite` runs it. The tests come from the source distribution of the installed version; nothing
of it is kept in this repository. A test fails here only if DIFFERS or PRIVATE names it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "strands-suite"
PAGE = ROOT / "docs" / "reference" / "strands-suite.md"
TESTS = ("tests/strands/multiagent/test_graph.py", "tests_integ/interrupts")
STRANDS = "strands-agents"

EARLY = "A node of an unsupported kind is refused by `add_node`, not by the call."
ORDER = "The results of a batch of tools are in the order of the calls."
ONCE = "A condition is evaluated once per edge and completion."
FAIL_FAST = "the siblings finish, and no other node starts"
STOPS = "A run that fails while a question is open has the status `failed`, and the question is withdrawn."
IDS = "An id identifies one question of one node."
STATE = (
    "`serialize_state` of a graph returns only the id of its open run: the run is in the store."
)

DIFFERS = {
    "test_graph_unsupported_node_type": EARLY,
    "test_self_loop_functionality_without_reset": ONCE,
    "test_graph_cancelled_node_does_not_poison_parallel_batch": FAIL_FAST,
    "test_graph_cancelled_node_does_not_overwrite_interrupted_status": STOPS,
    "test_graph_interrupt_on_agent": IDS,
    "test_graph_interrupt_on_multiagent": IDS,
    "test_graph_persisted": STATE,
    "test_graph_serialize_deserialize_serialize_preserves_cumulative_state": STATE,
    "test_graph_execution_time_reflects_active_invocation": STATE,
    "test_graph_checkpoint_persists_in_flight_execution_time": STATE,
    "TestResumeBypassedNodes::test_serialize_deserialize_with_bypassed_node": STATE,
    "TestResumeBypassedNodes::test_resume_executes_bypassed_join_target_end_to_end": STATE,
    "TestResumeDispatchedSibling": STATE,
    "TestResumeInFlightSibling": STATE,
    "interrupts/test_hook.py::test_interrupt": ORDER,
}
"""Sentences of from-strands.md by the tests that fail for them; a name stands for all that begin with it."""

PRIVATE = {
    "test_cyclic_graph_execution": "replaces a method of Strands' node objects",
    "test_self_loop_state_reset": "replaces a method of Strands' node objects",
    "test_graph_builder_validation": "calls the constructor of `Graph`",
    "test_accumulate_metrics": "calls `_accumulate_metrics`",
    "test_graph_validate_unsupported_features": "calls the constructor of `Graph`",
    "test_reset_on_revisit_method_chaining": "reads `_reset_on_revisit`",
    "test_state_reset_only_with_cycles_enabled": "replaces a method of Strands' node objects",
    "test_graph_tracing_setup_failure_does_not_leak_timer": "reads `_invocation_start_time`",
    "test_find_newly_ready_nodes": "calls `_find_newly_ready_nodes`",
    "TestInvocationStatePropagation": "calls private methods of `Graph`",
    "TestResumeDeadlockFix": "calls `_compute_ready_nodes_for_resume`",
    "TestResumeBypassedNodes": "calls `_compute_ready_nodes_for_resume`",
}

THEIRS = (
    "TestEdgeConditionProtocol",
    "TestConditionSignatureDetection",
    "test_graph_dataclasses_and_enums",
    "test_node_reset_executor_state",
)
"""Tests that pass by Strands' own classes alone, without code of this library."""


def find(names: dict[str, str], test: str) -> str:
    """Return the entry for a test; the longest name wins."""
    name = test.split("::", 1)[1]
    for key in sorted(names, key=len, reverse=True):
        if name.startswith(key) or key in test:
            return names[key]
    return ""


def fetch(version: str) -> None:
    """Unpack the sources and the plugin that their tests need into the folder, unless they are there."""
    mark = FOLDER / f"{version}.unpacked"
    if mark.exists():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    archives = FOLDER / "archives"
    # An environment that uv made has no pip.
    python = sys.executable if find_spec("pip") else f"{sys.base_prefix}/bin/python3"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    pinned = f"{STRANDS}=={version}"
    subprocess.run(
        [
            *pip,
            "download",
            "--no-deps",
            "--no-binary",
            STRANDS,
            "--dest",
            str(archives),
            pinned,
        ],
        check=True,
        timeout=300,
    )
    subprocess.run(
        [
            *pip,
            "install",
            "--no-deps",
            "--target",
            str(FOLDER / "plugins"),
            "pytest-asyncio<1.5",
        ],
        check=True,
        timeout=300,
    )
    with tarfile.open(next(archives.glob("*.tar.gz"))) as archive:
        archive.extractall(FOLDER, filter="data")
    mark.touch()


def run(side: str, version: str) -> dict[str, str]:
    """Run the tests on "strands" or "runner"; return outcomes by test."""
    report = FOLDER / f"{side}.jsonl"
    report.unlink(missing_ok=True)
    plugins = ["strands_suite_plugin", "pytest_asyncio", "no:randomly", "no:cacheprovider"]
    plugins += ["no:valkey", "no:schemathesis", "no:langsmith_plugin"]
    aws = {f"AWS_{name}": "none" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
    paths = [Path(__file__).parent, ROOT, FOLDER / "plugins"]
    environment = {
        "PEERS_SUITE": side,
        "PEERS_SUITE_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "AWS_REGION": "us-east-1",
        **aws,
    }
    options = ["-q", "--timeout", "15", "--tb", "no", "--no-summary", "--disable-warnings"]
    options += [option for name in plugins for option in ("-p", name)]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *TESTS],
        cwd=FOLDER / f"{STRANDS.replace('-', '_')}-{version}",
        env={**os.environ, **environment},
        check=False,
        timeout=900,
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    return {line["test"]: line["outcome"] for line in lines}


def verdict(test: str, outcome: str) -> tuple[str, str]:
    """Return a row's result and its reason."""
    if outcome == "passed":
        return "pass", "Strands' own classes alone" if find(
            dict.fromkeys(THEIRS, "x"), test
        ) else ""
    for result, names in (("differs", DIFFERS), ("private", PRIVATE)):
        if reason := find(names, test):
            return result, reason
    return "fault", ""


def page(version: str, ours: dict[str, str]) -> str:
    """Write the page from the outcomes."""
    rows = {test: verdict(test, outcome) for test, outcome in ours.items()}
    results = [result for result, _ in rows.values()]
    alone = sum(result == "pass" and bool(reason) for result, reason in rows.values())
    guide = "../how-to/from-strands.md"
    lines = [
        f"""# Strands' own tests

The tests of graphs and of interrupts from the sources of `{STRANDS}` {version}, unchanged, run on this
library by [`runner.compat.strands`]({guide}#a-program-for-strands-as-it-is). `make peers-suite` runs them
and writes this page; on Strands itself all of them pass.

Of {len(rows)} tests {results.count("pass")} pass, {alone} of them by Strands' own classes alone.
{results.count("differs")} fail for a difference that [Coming from Strands]({guide}) states, and
{results.count("private")} test private names of Strands.

| test | result | reason |
|---|---|---|"""
    ]
    for test, (result, reason) in rows.items():
        path, name = test.split("::", 1)
        short = path.removeprefix("tests/strands/").removeprefix("tests_integ/")
        lines.append(f"| {short}::{name} | {result} | {reason} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Fetch the tests, or run them and write the page; return 1 if a test fails without a reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="only download the sources")
    arguments = parser.parse_args()
    version = importlib.metadata.version(STRANDS)
    fetch(version)
    if arguments.fetch:
        return 0
    control = [test for test, outcome in run("strands", version).items() if outcome != "passed"]
    ours = run("runner", version)
    PAGE.write_text(page(version, ours))
    faults = [test for test, outcome in ours.items() if verdict(test, outcome)[0] == "fault"]
    for kind, names in (("on Strands itself", control), ("without a reason", faults)):
        print(f"{len(names)} failed {kind}.", *names, sep="\n  ")  # noqa: T201 - a program
    return 1 if control or faults else 0


if __name__ == "__main__":
    sys.exit(main())
