"""Generates the reference pages and files from the code: `python docs/generate.py`.

A test fails if one of them is out of date.
"""

from __future__ import annotations

import ast
import csv
import enum
import importlib
import inspect
import io
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

import runner as runner_package
from runner import errors, hooks
from runner.cli.context import common_options
from runner.cli.exits import CODES
from runner.cli.program import WORDS, runner
from runner.server import create_app
from runner.server.problems import STATUSES
from tests.cli.schemas import DOCUMENTS, schema
from tests.doors import matrix

REFERENCE = Path(__file__).parent / "reference"
PACKAGE = Path(runner_package.__file__).parent
WIDTH = 100
OURS = ("runner", "tasks")

SUBJECTS: dict[str, tuple[str, dict[str, str]]] = {
    "Graphs": (
        (
            "[Tour](../tour.md), [conditions](../how-to/conditions.md), [loops](../how-to/loops.md), "
            "[nested graphs](../how-to/nested-graphs.md), [retries](../how-to/retry.md)."
        ),
        {
            "runner": "GraphBuilder graph NodeContext GraphState RetryPolicy RetryAfter Graph GraphResult "
            "NodeResult Status Swarm",
            "runner.celery": "CeleryTask",
        },
    ),
    "Limits": (
        (
            "[Limits](../how-to/limits.md), [turns](../how-to/noisy-tenants.md), "
            "[keys](../how-to/one-at-a-time.md)."
        ),
        {"runner": "Limit Fairness Concurrency Debounce"},
    ),
    "Interrupts and approvals": (
        "[Ask people](../how-to/ask-people.md), [approvals](../how-to/approvals.md).",
        {"runner": "Interrupt Receipt", "runner.approvals": "*"},
    ),
    "Agents": (
        "[Agents](../how-to/agents.md), [budgets](../how-to/budgets.md).",
        {"runner": "Agent AgentResult tool ToolContext Budget Price"},
    ),
    "Hooks": (
        (
            "[Hooks](../how-to/hooks.md); [hook events](hook-events.md) lists when each fires. "
            "Every event has the fields and the `interrupt` of `HookEvent`, and those "
            "of `AgentEvent` or `GraphEvent`."
        ),
        {"runner.hooks": "*"},
    ),
    "Running and client": (
        (
            "[Existing projects](../how-to/existing-project.md), [FastAPI](../how-to/fastapi.md), "
            "[deploy](../how-to/deploy.md). `celery --app runner.celery` is a ready app."
        ),
        {
            "runner": "Client Run AsyncClient AsyncRun",
            "runner.celery": "install around_thread_work",
        },
    ),
    "Store and settings": (
        "[Settings](cli.md#settings-environment-variables) lists the variables `RUNNER_*`.",
        {"runner.settings": "as_broker"},
    ),
    "Server": (
        "[Serve the API and the pages](../how-to/server.md), [a door](../how-to/write-a-door.md).",
        {"runner.server": "*"},
    ),
    "Returned values": (
        "Methods of clients and runs return these; import them for annotations and comparisons.",
        {
            "runner.records.listings": "Page RunSummary",
            "runner.records.interrupts": "ReceiptStatus",
            "runner.records.checkpoints": "Session",
            "runner.operations.migration": "MigrationResult",
            "runner.approvals.granting": "GrantView",
            "runner.approvals.absences": "Absence",
        },
    ),
    "Testing": (
        "[Test your graphs](../how-to/test-your-graphs.md) shows them and the fixtures in use.",
        {"runner.testing": "*", "runner.testing.in_process": "InProcessRun"},
    ),
}
"""What the page of the API has under each heading: pages that show it in use, and names by module."""
SYNC_TWINS: dict[str, type] = {
    "AsyncClient": runner_package.Client,
    "AsyncRun": runner_package.Run,
}
ENGINE = re.compile(
    "abandon|as_answer|call|callbacks_for|check_input|claimed|config|counts|covers|decider|delay|due|execute|from_document|longest|"
    "of_call|of_reply|position|problem|queue|refusal|ring|shape|share|show|to_document|topology|"
    # Of Services: only the API and the pages.
    "archive|deliveries|doors|drop_doorbells|hub|notice_groups|notices|take_sample|ticker|workers|dead_letters|fair_keys|findings|jobs|key_uses|layout_problem|limit_settings|note_key_use|"
    "graphs_by_queue|history|queued_keys|queued_nodes|rate_times|remove_graph|scheduler|schedules|servers|sessions|unreadable_queues|use_key|"
    "waiting_keys|webhooks"
)
"""Methods of public classes that only the library itself calls."""
RESULTS = {
    *(
        "AgentResult",
        "Approval",
        "GraphResult",
        "Interrupt",
        "NodeResult",
        "Receipt",
        "Page",
        "RunSummary",
    ),
    *("Session", "MigrationResult", "GrantView", "Absence"),
}
"""Classes that the library makes: their signatures are their fields, without defaults."""
FIXTURES = "runner.testing.plugin"

PYTHON = """# The Python API

All public names, by subject, with their docstrings; [errors](errors.md) have a page of their own.
This page is generated by `docs/generate.py`. The [glossary](../glossary.md) explains the terms.
"""

PLACEHOLDER = re.compile(r"%[-+.\d]*[a-z]")
"""A place in a logged text for a value."""

ERRORS = """# Errors by name

All errors of the library are in `runner.errors`. This page lists their meaning and the remedy. A
`UsageError` means that the call was wrong, a `ConflictError` that the state no longer allows it, and a
`StoreError` that the store or the network failed. [Troubleshooting](../how-to/troubleshooting.md)
begins with symptoms instead. This page is generated by `docs/generate.py`.
"""
ADVICE = {
    "RunnerError": "Catch it for any error of the library.",
    "UsageError": "The message says how.",
    "GrantRefused": "Correct the field that the message names.",
    "DefinitionError": "Correct the graph; `runner graphs check` finds such mistakes before a deploy.",
    "DataMismatch": "Correct the node before it, or the [type](../how-to/typed-nodes.md).",
    "UnstorableError": "See [large values](../how-to/large-values.md).",
    "MissingExtra": "Install the extra that the message names.",
    "PayloadTooLarge": "Store large data elsewhere and return a reference: [large "
    "values](../how-to/large-values.md).",
    "ResponseError": "The message names each answer and its reason; answer again.",
    "NotFoundError": "Compare the id, and the store: `runner config show --origin`. For a graph: "
    "[no graph is known](../how-to/troubleshooting.md#the-start-says-no-graph-is-known).",
    "ConflictError": "Read the run's status: it has ended, or goes on already.",
    "TooManyRuns": "Start later, or choose another "
    "[`when_full`](../how-to/one-at-a-time.md#when-there-is-no-room).",
    "LeaseLost": "Don't catch it. If it is frequent: longer `RUNNER_LEASE`, or less work in one process.",
    "RunStopped": "Don't catch it; it ends the node. See [Cancel a run](../how-to/cancel.md).",
    "EffectsFrozen": "Don't catch it; `runner thaw` ends the [freeze](../how-to/audit.md#freeze).",
    "RetryAfter": "Raise it yourself: [Retry a node](../how-to/retry.md#wait-when-a-provider-says-so).",
    "NodeTimedOut": "Raise the [timeout](../how-to/timeouts.md), or make the node faster.",
    "InterruptExpired": "Catch it to decide without an answer, or set "
    "[`on_expire`](../how-to/ask-people.md#questions-that-expire).",
    "InterruptWithdrawn": "Catch it to go on without an answer: "
    "[Withdraw a question](../how-to/retry-and-fork.md#withdraw-a-question).",
    "ModelFault": "Retry the node, or change the prompt or the model.",
    "MaxTokensReached": "Raise the model's limit of output tokens, or ask for less.",
    "StructuredOutputMissing": "Describe the fields of the model, or use a stronger model.",
    "ApprovalMismatch": "Find out why the call changed after it was approved; then "
    "`runner dead replay`, or cancel the run.",
    "BudgetExceeded": "Raise the [budget](../how-to/budgets.md), or let it ask a person.",
    "CorruptDocument": "The node is held, with a dead letter. Restore the document "
    "and replay the letter, or cancel the run.",
    "DamagedRun": "Restore the run's keys from a backup, or cancel the run.",
    "NodeFailed": "Its text has the type and the message of the original error.",
    "StoreError": "After a time-out it may have been written all the same.",
    "NotDurable": "Check the replica with `runner doctor`.",
    "ArchiveError": "Check `RUNNER_ARCHIVE`; workers try again.",
    "DirectoryError": "Check the directory of `RUNNER_DIRECTORY`, and vote again.",
    "BrokerError": "Check `RUNNER_BROKER_URL`; nothing is lost.",
    "InterruptRaised": "Don't catch it. It isn't an `Exception`, so only a bare `except` would.",
}
"""What to do, by the name of each public error."""

COMMANDS = """# Every command

Each command with its options; `runner COMMAND --help` explains them, its output and the exit codes. Every
command also takes {shared}, before or after its name. [The command line](cli.md) has exit codes, settings and
[JSON](cli.md#json). This page is generated by `docs/generate.py`.

| command | | options |
|---|---|---|
"""

# -- Python ------------------------------------------------------------------------------------------


def python_page() -> str:
    """Write the page of the Python API."""
    parts = [PYTHON]
    for subject, (pages, _) in SUBJECTS.items():
        parts.append(f"## {subject}\n\n{pages}\n")
        module = ""
        for home, name, value in names_of(subject):
            if home != module:
                parts.append(f"Import these from `{home}`.\n")
            module = home
            parts.append(entry(name, value))
    parts.append("pytest finds these fixtures by itself.\n")
    parts += [entry(name, function, call=False) for name, function in fixtures()]
    return "\n".join(parts)


def names_of(subject: str) -> Iterator[tuple[str, str, Any]]:
    """List the names under a subject: module, name and value."""
    for home, listed in SUBJECTS[subject][1].items():
        module = importlib.import_module(home)
        names = [name for name, _ in public_names(module)] if listed == "*" else listed.split()
        for name in names:
            yield home, name, getattr(module, name)


def errors_page() -> str:
    """Write the page of the errors: each with its meaning, its codes, and what to do."""
    parts = [ERRORS]
    for name, error in public_names(errors):
        if isinstance(error, type):
            above = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
            codes = [
                f"{kind} {int(code)}"
                for kind, table in (("exit code", CODES), ("HTTP", STATUSES))
                for code in [next((code for of, code in table if issubclass(error, of)), None)]
                if code is not None
            ]
            kinds = "; ".join([f"Base: {above}", *codes])
            parts.append(f"## `{name}`\n\n{text(error)}\n\n{ADVICE[name]}\n\n{kinds}.\n")
    return "\n".join(parts)


# -- log lines -----------------------------------------------------------------------------------------


def log_lines() -> str:
    """Write the table of the lines that are logged: name, level, text and file of each."""
    rows = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            target.id: statement.value
            for statement in tree.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Attribute(ast.Name("log"), "log"), [_, template, *_]):
                    level = "by case"
                case ast.Call(ast.Attribute(ast.Name("log"), attribute), [template, *_]):
                    level = "ERROR" if attribute == "exception" else attribute.upper()
                case _:
                    continue
            if isinstance(template, ast.Name):
                template = texts.get(template.id, template)
            if isinstance(template, ast.Constant) and isinstance(template.value, str):
                name, colon, line = PLACEHOLDER.sub("…", template.value).partition(": ")
                if colon and " " not in name and level != "DEBUG":
                    rows.add((name, level, line, str(path.relative_to(PACKAGE.parent))))
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerows([("name", "level", "text", "file"), *sorted(rows)])
    return table.getvalue()


def public_names(module: Any) -> Iterator[tuple[str, Any]]:
    """List the public names of a module: its `__all__`, otherwise what it defines itself, in its order."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
    for name in names:
        yield name, getattr(module, name)


def fixtures() -> Iterator[tuple[str, Any]]:
    """List the functions behind the fixtures of the pytest plugin."""
    for name, value in vars(importlib.import_module(FIXTURES)).items():
        function = getattr(value, "_fixture_function", None) or getattr(
            value, "__pytest_wrapped__", None
        )
        if function is not None:
            yield name, getattr(function, "obj", function)


def entry(name: str, value: Any, *, call: bool = True) -> str:
    """Write one name: its signature, its docstring and its members."""
    lines = [f"### `{name}`", ""]
    if isinstance(value, type) and issubclass(value, BaseException):
        if value.__module__ == errors.__name__:
            return "\n".join([*lines, f"See [errors](errors.md#{name.lower()}).", ""])
        above = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        lines += [f"A kind of {above}.", "", text(value), ""]
        return "\n".join(lines)
    if isinstance(value, enum.EnumMeta):
        lines += [text(value), "", ", ".join(f"`{member.value}`" for member in value), ""]
        return "\n".join(lines)
    if not callable(value):
        return "\n".join([*lines, f"The constant `{value!r}`.", ""])
    is_event = isinstance(value, type) and hooks.HookEvent in value.__mro__[1:]
    inherited = {
        field
        for base in (value.__mro__[1:] if is_event else ())
        if issubclass(base, hooks.HookEvent)
        for field in inspect.signature(base).parameters
    }
    is_result = is_event or name in RESULTS
    written = signature(name, value, without=inherited, defaults=not is_result) if call else ""
    twin = SYNC_TWINS.get(name)
    if twin is not None and written == signature(name, twin):
        lines += [f"It takes the arguments of `{twin.__name__}`.", ""]
    elif written:
        lines += ["```text", written, "```", ""]
    if docstring := text(value):
        lines += [docstring, ""]
    if isinstance(value, type):
        lines += members(value, twin)
    return "\n".join(lines)


def members(value: type, twin: type | None = None) -> list[str]:
    """Write the public members of a class; those of a base on this page, or as in its twin, only there."""
    lines: list[str] = []
    call = ""
    for name, member in inspect.getmembers_static(value):
        home = next(base for base in value.__mro__ if name in vars(base))
        private = ENGINE.fullmatch(name) or (name.startswith("_") and name != "__call__")
        if private or home.__module__.partition(".")[0] not in OURS:
            continue
        if home is not value and home in [*vars(hooks).values(), runner_package.Graph]:
            continue
        if twin is not None and inspect.getdoc(member) == inspect.getdoc(
            getattr(twin, name, None)
        ):
            continue
        if isinstance(member, property) or type(member).__name__ == "cached_property":
            lines.append(f"- `.{name}`: {item(member)}")
        elif isinstance(member, (classmethod, staticmethod)) or inspect.isfunction(member):
            function = getattr(member, "__func__", member)
            # Of a static method the first argument is its own.
            bound = not isinstance(member, staticmethod)
            arguments, arrow, returns = signature(
                "", function, method=bound, width=0
            ).partition(" -> ")
            if name == "__call__":
                call = arguments
            elif arguments == call and arguments != "()":
                arguments = "(...)"  # as a call
            called = "" if name == "__call__" else f".{name}"
            lines.append(f"- `{called}{arguments}{arrow}{returns}`: {item(function)}")
    if runner_package.Graph in value.__mro__[1:]:
        lines.append("- It also has the members of `Graph`.")
    return [*lines, ""] if lines else lines


def item(value: Any) -> str:
    """Write a docstring as the text of a list item."""
    return text(value).replace("\n\n", " ").replace("\n", " ") or "see its class."


def text(value: Any) -> str:
    """Write the docstrings of a name and of its `__init__`, but not those that dataclasses generate."""
    parts = [inspect.getdoc(value) or ""]
    if isinstance(value, type) and not issubclass(value, BaseException):
        parts = [] if parts[0].startswith(f"{value.__name__}(") else parts
        own = vars(value).get("__init__")
        parts.append(
            inspect.getdoc(own) or ""
            if own is not None and own.__doc__ != object.__init__.__doc__
            else ""
        )
    whole = "\n\n".join(
        part for part in parts if part and not part.startswith("Initialize self")
    )
    whole = re.sub(r"^Args:\n((?:    .*\n?)+)", _args, whole, flags=re.MULTILINE)
    return re.sub(r"^Raises:\n((?:    .*\n?)+)", _raises, whole, flags=re.MULTILINE).strip()


def _args(match: re.Match[str]) -> str:
    joined = re.sub(r"\n {8,}", " ", match[1])
    return re.sub(r"^    (\w+): ", r"- `\1`: ", joined, flags=re.MULTILINE)


def _raises(match: re.Match[str]) -> str:
    return "Raises " + re.sub(r"\s+", " ", re.sub(r"(\w+): ", r"`\1`: ", match[1])).strip()


def signature(
    name: str,
    value: Any,
    *,
    method: bool = False,
    width: int = WIDTH,
    without: Collection[str] = (),
    defaults: bool = True,
) -> str:
    """Write the signature of a callable, on one line if it fits; "" for anything else."""
    try:
        declared = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [each for each in declared.parameters.values() if each.name not in without]
    if not defaults:
        parameters = [each.replace(default=each.empty) for each in parameters]
    words = list(_parameters(value, parameters[1:] if method else parameters))
    returns = _annotation(declared.return_annotation) if not isinstance(value, type) else ""
    after = f" -> {returns}" if returns else ""
    line = f"{name}({', '.join(words)}){after}"
    if width and len(line) > width:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){after}"
    return line


def _parameters(function: Any, parameters: list[inspect.Parameter]) -> Iterator[str]:
    named = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD and str(parameter.annotation).startswith(
            "Unpack["
        ):
            if not function.__qualname__.startswith("NodeContext."):
                yield "**options"  # Listed once, in the signature to which the docstrings refer.
                continue
            (options,) = get_args(get_type_hints(function)[parameter.name])
            yield "*"
            yield from (
                f"{name}: {hint.__forward_arg__} = None"
                for name, hint in options.__annotations__.items()
            )
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            named = True
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
            parameter.kind, ""
        )
        kind = (
            f": {_annotation(parameter.annotation)}"
            if parameter.annotation is not parameter.empty
            else ""
        )
        if parameter.default is None:
            kind = kind.removesuffix(" | None")  # The default says it.
        default = (
            ""
            if parameter.default is parameter.empty
            else f"{' = ' if kind else '='}{_default(parameter.default)}"
        )
        yield f"{star}{parameter.name}{kind}{default}"


def _annotation(value: Any) -> str:
    if value is inspect.Signature.empty:
        return ""
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    text = text.replace("JSONObject", "dict[str, JSON]").replace(
        "JSONMapping", "Mapping[str, JSON]"
    )
    # The mark of a payload is for people who may not read it, not for the code that has the value.
    return re.sub(r"^(?:Payload|Annotated)\[(.+?)(?:, without_reason\(.+\))?\]$", r"\1", text)


def _default(value: Any) -> str:
    plain = isinstance(value, (str, int, float, bool, tuple, type(None))) and not isinstance(
        value, enum.Enum
    )
    return (
        repr(value) if plain else f'"{value.value}"' if isinstance(value, enum.Enum) else "..."
    )


# -- commands ----------------------------------------------------------------------------------------


def commands_page() -> str:
    """Write the page of the commands."""
    common = common_options(lambda: None)
    options: list[click.Option] = list(reversed(common.__click_params__))  # type: ignore[attr-defined]
    names = {option.name for option in options}
    rows = [_command(path, command, names) for path, command in _commands(runner, ("runner",))]
    words = "\n".join(f"- {line}" for line in WORDS.values())
    shared = ", ".join(map(_option, options))
    return f"{COMMANDS.format(shared=shared)}{''.join(rows)}\n## Words in capitals\n\n{words}\n"


def _commands(
    group: click.Group, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in sorted(group.commands):
        inner = group.commands[name]
        if isinstance(inner, click.Group):
            yield from _commands(inner, (*path, name))
        else:
            yield (*path, name), inner


def _command(path: tuple[str, ...], command: click.Command, common: set[str | None]) -> str:
    arguments = [
        parameter.make_metavar(click.Context(command))
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    ]
    own = [
        _option(parameter)
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name not in common
    ]
    cells = (
        f"`{' '.join([*path, *arguments])}`",
        (command.help or "").split("\n")[0],
        ", ".join(own),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _option(option: click.Option) -> str:
    kind = "" if option.is_flag else f" {option.metavar or _choices(option)}"
    return f"`{'/'.join(option.opts)}{kind}`"


def _choices(option: click.Option) -> str:
    choices = getattr(option.type, "choices", None)
    if choices:
        return "|".join(str(choice) for choice in choices)
    return "NUMBER" if "int" in option.type.name or "float" in option.type.name else "TEXT"


# -- all -----------------------------------------------------------------------------------------------


def written() -> dict[Path, str]:
    """Return the content of every generated file of the docs."""
    files = {
        REFERENCE / "python.md": python_page(),
        REFERENCE / "commands.md": commands_page(),
        REFERENCE / "errors.md": errors_page(),
        REFERENCE / "log-lines.csv": log_lines(),
        REFERENCE / "doors.md": matrix.page(),
        REFERENCE / "openapi.json": json.dumps(
            create_app(auth=lambda _: None).openapi(), indent=2
        )
        + "\n",
    }
    for command in DOCUMENTS:
        path = REFERENCE / "cli-schemas" / f"{command.replace(' ', '-')}.json"
        files[path] = json.dumps(schema(command), indent=2) + "\n"
    return {
        path: re.sub(r"\n{3,}", "\n\n", content).rstrip() + "\n"
        for path, content in files.items()
    }


if __name__ == "__main__":
    for _path, _text in written().items():
        _path.write_text(_text, encoding="utf-8")
