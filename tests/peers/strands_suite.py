"""Runs Strands' own tests on Strands and on this library, and writes the page.

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
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "strands-suite"
PAGE = ROOT / "docs" / "reference" / "strands-suite.md"
SUITES = {
    "graphs": ("tests/strands/multiagent/test_graph.py",),
    "interrupts": (
        "tests_integ/interrupts",
        "tests/strands/test_interrupt.py",
        "tests/strands/types/test_interrupt.py",
    ),
    "hooks": (
        "tests/strands/hooks",
        "tests/strands/agent/hooks",
        "tests/strands/agent/test_agent_hooks.py",
    ),
    "the decorator": (
        "tests/strands/tools/test_decorator.py",
        "tests/strands/tools/test_decorator_pep563.py",
    ),
    "executors of tools": ("tests/strands/tools/executors",),
}
STRANDS = "strands-agents"

DIFFERS = {
    "A node of an unsupported kind is refused by `add_node`, not by the call.": (
        "test_graph_unsupported_node_type",
    ),
    "A condition is evaluated once per edge and completion.": (
        "test_self_loop_functionality_without_reset",
    ),
    "the siblings finish, and no other node starts": (
        "test_graph_cancelled_node_does_not_poison_parallel_batch",
    ),
    "A run that fails while a question is open has the status `failed`, and the question is withdrawn.": (
        "test_graph_cancelled_node_does_not_overwrite_interrupted_status",
    ),
    "An id identifies one question of one node.": (
        "test_graph_interrupt_on_agent",
        "test_graph_interrupt_on_multiagent",
    ),
    "The results of a batch of tools are in the order of the calls.": (
        "interrupts/test_hook.py::test_interrupt",
    ),
    "`serialize_state` of a graph returns only the id of its open run: the run is in the store.": (
        "test_graph_persisted",
        "test_graph_serialize_deserialize_serialize_preserves_cumulative_state",
        "test_graph_execution_time_reflects_active_invocation",
        "test_graph_checkpoint_persists_in_flight_execution_time",
        "TestResumeBypassedNodes::test_serialize_deserialize_with_bypassed_node",
        "TestResumeDispatchedSibling",
        "TestResumeInFlightSibling",
    ),
    "A registry has no `invoke_callbacks`: only a run calls callbacks.": (
        "test_registry.py::test_hook_registry_invoke_callbacks",
        "test_hook_registry_union_callback_invoked_for_each_type",
        "test_lower_order_runs_first",
        "test_same_order_preserves_registration_order",
        "test_negative_order_runs_before_default",
        "test_after_events_lower_order_still_runs_first",
        "test_hook_registry.py::test_invoke_callbacks_async",
        "test_hook_registry.py::test_has_callbacks",
    ),
    "Events have no `should_reverse_callbacks` and no `projected_input_tokens`.": (
        "test_after_events_should_reverse_callbacks",
        "test_event_should_reverse_callbacks",
        "test_before_model_call_event_projected_input_tokens",
        "test_hook_registry.py::test_get_callbacks_for",
    ),
    "`invocation_state` and `messages` of an event are empty where Strands has `None`.": (
        "hooks/test_events.py::test_multi_agent_initialization_event_with_orchestrator_only",
        "hooks/test_events.py::test_after_node_invocation_event_with_required_fields",
        "hooks/test_events.py::test_after_multi_agent_invocation_event_with_orchestrator_only",
        "hooks/test_events.py::test_before_node_call_event",
        "hooks/test_events.py::test_before_multi_agent_invocation_event",
        "test_before_invocation_event_messages_default_none",
    ),
    "`event.source` is the graph's definition.": (
        "test_swarm_complete_hook_lifecycle",
        "test_graph_complete_hook_lifecycle",
    ),
    "The invocation state in an event is a copy": (
        "test_graph_after_hook_precedes_terminal_result",
    ),
    "A program that leaves `stream_async` early cancels the run": (
        "test_graph_after_hook_receives_state_on_close",
    ),
    "An error from the store has the type and the text of the one that was raised": (
        "test_graph_after_hook_error_prevents_terminal_result",
    ),
    "`event.agent` is the agent as hooks see it": (
        "test_agent__call__hooks",
        "test_agent_stream_async_hooks",
    ),
    "the call is an invocation of its own": ("test_agent_hooks.py::test_agent_tool_call",),
    "An agent has no `event_loop_metrics`, `structured_output` or `structured_output_async`": (
        "test_hook_retry_on_successful_call",
        "test_agent_events.py::test_structured_output",
        "test_agent_structured_output_hooks",
        "test_agent_structured_async_output_hooks",
        "test_before_invocation_event_messages_none_in_structured_output",
    ),
    "`agent.stream_async` yields fewer events": (
        "test_stream_e2e",
        "test_event_loop_cycle_text_response_throttling_early_end",
    ),
    "Callbacks of `AgentInitializedEvent` may be async, which Strands refuses.": (
        "test_hook_registry_add_callback_agent_init_coroutine",
    ),
    "Errors are this library's, with texts of their own": (
        "test_hook_registry_add_callback_raises_error",
        "test_hook_registry_add_callback_union_with_none_raises_error",
        "test_hook_registry_add_callback_union_with_invalid_type_raises_error",
        "test_hook_registry_add_callback_with_list_validates_types",
        "test_hook_registry_add_callback_with_empty_list_raises_error",
        "test_after_invocation_resume_with_invalid_input_during_interrupt",
        "test_hooks_param_invalid_hook_raises_error",
        "test_function_tool_metadata_validate_signature",
    ),
    "`tool.stream` yields the result itself, not an event with it, and raises the errors of the function.": (
        "test_agent_parameter_passing",
        "test_basic_tool_creation",
        "test_class_method_handling",
        "test_complex_parameter_types",
        "test_custom_tool_result_handling",
        "test_default_parameter_handling",
        "test_detailed_validation_errors",
        "test_decorator.py::test_stream",
        "test_empty_tool_use_handling",
        "test_multiple_default_parameters",
        "test_return_type_validation",
        "test_tool_as_",
        "test_tool_async_generator",
        "test_tool_complex_validation_edge_cases",
        "test_tool_context_",
        "test_tool_decorator_annotated_execution",
        "test_tool_decorator_annotated_validation_error",
        "test_tool_decorator_preserves_non_ascii_structured_return_values",
        "test_tool_decorator_with_different_return_values",
        "test_tool_error_handling",
        "test_tool_general_exception_handling",
        "test_tool_method_detection_errors",
        "test_tool_result_",
        "test_tool_with_complex_anyof_schema",
        "test_tool_with_no_parameters",
        "test_tool_with_optional_params",
        "test_traditional_function_call",
    ),
    "`@tool` takes the function as a positional argument, and an empty name or 0 is ignored.": (
        "test__init__invalid_name",
        "test_tool_func_not_decorated",
    ),
    "The schema of a tool allows no other arguments": (
        "test_tool_spec",
        "test_tool_decorator_param_default_field_preserves_constraints",
        "test_tool_nullable_required_field_preserves_anyof",
        "test_tool_nullable_optional_field_simplifies_anyof",
        "test_complex_literal_type_tool_spec",
    ),
    "`Field` in `Annotated` is read; Strands refuses it.": (
        "test_tool_decorator_annotated_pydantic_field_constraints",
        "test_tool_decorator_annotated_mixed_styles",
        "test_tool_decorator_annotated_no_description_fallback",
        "test_tool_decorator_annotated_field_with_inner_default",
    ),
    "A tool has no `is_dynamic`, `supports_hot_reload` or `get_display_properties`.": (
        "test_supports_hot_reload",
        "test_get_display_properties",
    ),
}
"""Tests that fail for a sentence of from-strands.md; a name stands for all that begin with it."""

RACES = ("test_graph_cancelled_node_does_not_poison_parallel_batch",)
"""Tests that differ and yet pass if the sibling's successor has started before the failure."""

PRIVATE = {
    "replaces a method of Strands' node objects": (
        "test_cyclic_graph_execution",
        "test_self_loop_state_reset",
        "test_state_reset_only_with_cycles_enabled",
    ),
    "calls the constructor of `Graph`": (
        "test_graph_builder_validation",
        "test_graph_validate_unsupported_features",
    ),
    "calls `_accumulate_metrics`": ("test_accumulate_metrics",),
    "reads `_reset_on_revisit`": ("test_reset_on_revisit_method_chaining",),
    "reads `_invocation_start_time`": ("test_graph_tracing_setup_failure_does_not_leak_timer",),
    "calls `_find_newly_ready_nodes`": ("test_find_newly_ready_nodes",),
    "calls private methods of `Graph`": ("TestInvocationStatePropagation",),
    "calls `_compute_ready_nodes_for_resume`": (
        "TestResumeDeadlockFix",
        "TestResumeBypassedNodes",
    ),
    "replaces `_execute_graph`": ("test_graph_after_hook_receives_state_on_error",),
    "reads `_registered_callbacks`": (
        "test_hook_registry_add_callback_infers",
        "test_hook_registry_add_callback_with_explicit_event_type_and_callback",
        "test_hook_registry_add_callback_union_multiple_types",
        "test_hook_registry_add_callback_with_list_of_types",
        "test_hook_registry_add_callback_with_list_deduplicates",
        "test_hook_registry.py::test_hook_registry_init",
        "test_hook_registry.py::test_add_",
    ),
    "calls `_interrupt_id`": ("test_before_tools_event_interrupt_id",),
    "reads `_interrupt_state`": (
        "test_after_invocation_resume_handles_interrupt_with_responses",
        "test_after_invocation_resume_interrupt",
        "test_before_model_call_hook_interrupt_stops_and_resumes_at_model_call",
    ),
    "makes a `_Interruptible`": ("types/test_interrupt.py",),
    "calls `_execute` and `_stream` of an executor": ("tools/executors",),
}
"""Tests that fail for a private name of Strands that they use."""


def find(names: dict[str, tuple[str, ...]], test: str) -> str:
    """Return the reason for a test; the longest name wins."""
    name = test.split("::", 1)[1]
    fits = [
        (len(key), reason)
        for reason, keys in names.items()
        for key in keys
        if name.startswith(key) or key in test
    ]
    return max(fits, default=(0, ""))[1]


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
    tests = [path for paths in SUITES.values() for path in paths]
    options = ["-q", "--timeout", "15", "--tb", "no", "--no-summary", "--disable-warnings"]
    options += [option for name in plugins for option in ("-p", name)]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=FOLDER / f"{STRANDS.replace('-', '_')}-{version}",
        env={**os.environ, **environment},
        check=False,
        timeout=900,
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    return {line["test"]: line["outcome"] for line in lines}


def verdict(test: str, outcome: str) -> tuple[str, str]:
    """Return a test's result and its reason."""
    if outcome.startswith("passed") and not test.endswith(RACES):
        return outcome.replace("passed", "pass"), ""
    for result, names in (("differs", DIFFERS), ("private", PRIVATE)):
        if reason := find(names, test):
            return result, reason
    return "fault", ""


def page(version: str, ours: dict[str, str]) -> str:
    """Write the page from the outcomes."""
    rows = {test: verdict(test, outcome) for test, outcome in ours.items()}
    guide = "../how-to/from-strands.md"
    lines = [
        f"""# Strands' own tests

The tests of graphs, interrupts, hooks and tools from the sources of `{STRANDS}` {version}, unchanged, run on
this library by [`runner.compat.strands`]({guide}#a-program-for-strands-as-it-is). `make peers-suite` runs
them and writes this page; on Strands itself all of them pass.

| suite | tests | pass | of them by Strands' own classes alone | differ | private |
|---|---|---|---|---|---|"""
    ]
    for suite, paths in {**SUITES, "all": ("",)}.items():
        results = [result for test, (result, _) in rows.items() if test.startswith(paths)]
        count = Counter(result.partition(" ")[0] for result in results)
        alone = results.count("pass alone")
        counts = (len(results), count["pass"], alone, count["differs"], count["private"])
        lines.append(f"| {suite} | {' | '.join(map(str, counts))} |")
    texts = {
        "differs": f"Each fails for a difference that [Coming from Strands]({guide}) states. A test "
        "that isn't in these two lists passes.",
        "private": "Each uses private names of Strands, which programs don't.",
    }
    for kind, text in texts.items():
        title = "Tests that differ" if kind == "differs" else "Tests of private names"
        lines += ["", f"## {title}", "", text]
        for reason in dict.fromkeys(
            reason for result, reason in rows.values() if result == kind
        ):
            lines += ["", f"### {reason.rstrip('.')}", ""]
            lines += [f"- {short(test)}" for test, row in rows.items() if row == (kind, reason)]
    return "\n".join([*lines, ""])


def short(test: str) -> str:
    """Return a test's name without the folders that all have."""
    return test.removeprefix("tests/strands/").removeprefix("tests_integ/")


def main() -> int:
    """Fetch the tests, or run them and write the page; return 1 if a test fails without a reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="only download the sources")
    arguments = parser.parse_args()
    version = importlib.metadata.version(STRANDS)
    fetch(version)
    if arguments.fetch:
        return 0
    control = [
        test
        for test, outcome in run("strands", version).items()
        if not outcome.startswith("passed")
    ]
    ours = run("runner", version)
    PAGE.write_text(page(version, ours))
    faults = [test for test, outcome in ours.items() if verdict(test, outcome)[0] == "fault"]
    for kind, names in (("on Strands itself", control), ("without a reason", faults)):
        print(f"{len(names)} failed {kind}.", *names, sep="\n  ")  # noqa: T201 - a program
    return 1 if control or faults else 0


if __name__ == "__main__":
    sys.exit(main())
