"""Measures the library's own structure: tokens, names, language, rooms, imports, and the files on five walks.

`python docs/internals/house.py` prints each figure beside its limit and fails if one is exceeded; `make
check` runs it. Lower a limit when its figure falls; a commit that raises one says which feature pays for it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from runner import GraphBuilder
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.message_handlers import IncomingMessage, handle_answer
from runner.store.interface import Doorbell, Request
from runner.store.redis.store import RedisStore
from runner.store.requests import SettleVisit
from runner.testing import fake_store

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "runner"

LIMITS = {
    "tokens": 514_565,
    "tokens a code line": 8.4,
    "vague names in functions, %": 3.5,
    "class names used twice": 0,
    "docstrings that begin with What, Whether or How": 0,
    "odd phrases per 1,000 words of docstrings": 0.2,
    "odd phrases per 1,000 words of comments": 0.5,
    "odd phrases per 1,000 words of docs": 0.5,
    "words of docs": 105_000,
    "methods of the store's protocol": 29,
    "methods of the store in Redis": 48,
    "most rooms with files of one feature": 3,
    "imports of store.redis from other rooms": 0,
    "modules in import circles": 0,
    "settle: files": 9,
    "settle: calls": 20,
    "run's end: files": 19,
    "run's end: calls": 196,
    "park: files": 39,
    "park: calls": 358,
    "answer: files": 26,
    "answer: calls": 238,
    "resume: files": 38,
    "resume: calls": 342,
}

VAGUE = re.compile(
    r"_*(own|places?|parts?|words?|before|after|first|last|more|others?|each|rest|things?|all|done|left|made|given"
    r"|kept|held|found|said|told|known|sent|read|seen|taken|put|gone|new|old|both|one|what|who|it|[a-z]+ed)"
)
"""Participles and fillers, which say nothing of what a name holds."""

ODD_PHRASES = re.compile(
    r"(?:^|[.,;:] )what (?!(?:is|are|does|happens)\b[^.]*\?)|\b(?:of|with|by|from|for|on|in|and) what\b"
    r"|\bth(?:at|ose) of\b|\bwhere there (?:is|are)\b|\bif there is one\b"
    r"|\b(?:is|are|was) no (?!longer|more\b)\w+",
    re.IGNORECASE | re.MULTILINE,
)
"""Phrases that Celery's texts hardly have: "what" and "that of" as nouns, "is no" for "isn't a"."""

GENERATED = {"commands.md", "python.md", "doors.md"}

FEATURES = {
    "webhook|deliver(y|ies)$": "webhooks",
    "schedule": "schedules",
    "audit|ledger": "audit",
    "freez": "approvals",
    "^limits?(_|$)": "limits",
}
"""Patterns of the names of a feature's files, and the feature's room."""

NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


@dataclass(slots=True)
class Module:
    """One Python file of the library."""

    path: Path
    name: str
    source: str
    tree: ast.Module
    imports: set[str] = field(default_factory=set)

    @property
    def room(self) -> str:
        """The folder of `runner` that it is in; "" for the files beside the folders."""
        relative = self.path.relative_to(LIBRARY)
        return relative.parts[0] if len(relative.parts) > 1 else ""


def modules() -> dict[str, Module]:
    """Read the library."""
    read: dict[str, Module] = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text()
        read[name] = Module(path, name, source, ast.parse(source))
    for module in read.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                module.imports |= {name if name in read else node.module for name in names}
            elif isinstance(node, ast.Import):
                module.imports |= {alias.name for alias in node.names}
        module.imports &= read.keys()
    return read


def count_tokens(library: dict[str, Module]) -> tuple[int, int]:
    """Return the tokens and the lines of code, without docstrings, comments and blank lines."""
    tokens, lines = 0, set()
    for module in library.values():
        docstrings = {
            line
            for text in _docstrings(module)
            for line in range(text.lineno, text.end_lineno + 1)
        }
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
            if token.type not in NO_CODE and token.start[0] not in docstrings:
                tokens += 1
                lines |= {
                    (module.name, line) for line in range(token.start[0], token.end[0] + 1)
                }
    return tokens, len(lines)


def _docstrings(module: Module) -> Iterator[ast.Constant]:
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value


def weak_docstrings(library: dict[str, Module]) -> list[str]:
    """Return the docstrings that begin with a question word instead of a verb or a noun."""
    return [
        text.value
        for module in library.values()
        for text in _docstrings(module)
        if re.match("(What|Whether|How)\\b", str(text.value))
    ]


def odd_phrases(library: dict[str, Module]) -> dict[str, float]:
    """Return how many odd phrases 1,000 words of docstrings, comments and docs have."""
    comments = [
        token.string.lstrip("# ")
        for module in library.values()
        for token in tokenize.generate_tokens(io.StringIO(module.source).readline)
        if token.type == tokenize.COMMENT
    ]
    pages = [
        re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", page.read_text(), flags=re.DOTALL)
        for page in (ROOT / "docs").rglob("*.md")
        if page.name not in GENERATED and page.parent.name != "decisions"
    ]
    texts = {
        "docstrings": [
            str(text.value) for each in library.values() for text in _docstrings(each)
        ],
        "comments": comments,
        "docs": pages,
    }
    return {
        kind: round(
            1000
            * sum(len(ODD_PHRASES.findall(text)) for text in group)
            / sum(len(text.split()) for text in group),
            2,
        )
        for kind, group in texts.items()
    }


def function_names(library: dict[str, Module]) -> Iterator[str]:
    """Yield the names that each function binds: its parameters and variables."""
    for module in library.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from set(_bound(node)) - {"self", "cls", "_"}


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = function.args
    extra = (argument for argument in (arguments.vararg, arguments.kwarg) if argument)
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra):
        yield argument.arg
    yield from _variables(function)


def _variables(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        yield from _variables(child)


def class_names(library: dict[str, Module]) -> list[str]:
    """Return the names that more than one class has."""
    names: list[str] = []
    for module in library.values():
        names += {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
    return sorted({name for name in names if names.count(name) > 1})


def methods(module: Module, class_name: str) -> list[str]:
    """Return the methods of a class."""
    (definition,) = (
        node
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    return [node.name for node in definition.body if isinstance(node, ast.FunctionDef)]


def feature_rooms(library: dict[str, Module]) -> dict[str, set[str]]:
    """Return the rooms that have a file of each feature."""
    return {
        pattern: {
            module.room
            for module in library.values()
            if re.search(pattern, module.path.stem) or module.room == room
        }
        for pattern, room in FEATURES.items()
    }


def store_arrows(library: dict[str, Module]) -> list[str]:
    """Return the imports of `runner.store.redis` in other rooms than the store and Celery's."""
    return sorted(
        f"{module.name} -> {name}"
        for module in library.values()
        for name in module.imports
        if name.startswith("runner.store.redis") and module.room not in {"store", "celery"}
    )


def circles(library: dict[str, Module]) -> set[str]:
    """Return the modules that import themselves by way of others; what types alone need does not count."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for name in library[waiting.pop()].imports - found:
                found.add(name)
                waiting.append(name)
        return found

    return {
        name
        for name, module in library.items()
        if module.path.stem != "__init__" and name in reached(name)
    }


@dataclass(slots=True)
class Walk:
    """The library's functions that were called while something was done."""

    calls: int = 0
    files: set[str] = field(default_factory=set)

    def follow(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function, and note what it calls in this thread, but for comprehensions and a fake Redis."""

        def note(frame: FrameType, event: str, _: object) -> None:
            path, name = frame.f_code.co_filename, frame.f_code.co_name
            is_ours = path.startswith(str(LIBRARY)) and not path.startswith(
                str(LIBRARY / "testing")
            )
            if event == "call" and is_ours and not name.startswith("<"):
                self.calls += 1
                self.files.add(path)

        sys.setprofile(note)
        try:
            return function(*args)
        finally:
            sys.setprofile(None)


class Doorbells:
    """Keeps doorbells instead of ringing them."""

    def __init__(self) -> None:
        self.doorbells: list[Doorbell] = []

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Add doorbells to the list."""
        self.doorbells += doorbells

    def call(self, task: str, kwargs: object, task_id: str) -> bool:
        """Call nothing: no graph here asks for it."""
        raise NotImplementedError


def chain() -> object:
    """Build a graph of two functions."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.task, "begin")
    builder.add_node(lambda ctx: ctx.inputs["begin"], "end")
    builder.add_edge("begin", "end")
    return builder.build()


def question() -> object:
    """Build a graph of one function, which asks a question."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.interrupt("sure?"), "ask")
    return builder.build()


def walks() -> dict[str, Walk]:
    """Follow what runs do on fakeredis, the second time in this process.

    "settle" is that of a node with a successor, "run's end" that of the last node; "answer" leads from the
    message to its receipt; "park" and "resume" are the visits of a function that asks.
    """
    with fake_store() as server:
        store, bells, registry = server.open(), Doorbells(), Registry()
        registry.add("chain", chain)
        registry.add("question", question)
        engine = Engine(store, bells, registry)
        _follow_runs(engine, store, bells)
        return _follow_runs(engine, store, bells)


def _following_settle(walk: Walk, do: Callable[..., Any], request: Request[Any]) -> Any:
    return walk.follow(do, request) if isinstance(request, SettleVisit) else do(request)


def _follow_runs(engine: Engine, store: RedisStore, bells: Doorbells) -> dict[str, Walk]:
    steps = {name: Walk() for name in ("settle", "run's end", "park", "answer", "resume")}

    def visit() -> None:
        bell = bells.doorbells.pop(0)
        engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)

    engine.start("chain", "task")
    for step in ("settle", "run's end"):
        store.do = partial(_following_settle, steps[step], store.do)  # type: ignore[method-assign] - for one visit
        visit()
        del store.do
    run_id = engine.start("question", "task")
    steps["park"].follow(visit)
    (asked,) = store.open_interrupts().items
    body = json.dumps({"v": 1, "interrupt_id": asked.id, "response": "yes"}).encode()
    steps["answer"].follow(handle_answer, engine, IncomingMessage(run_id, run_id, body))
    steps["resume"].follow(visit)
    return steps


def measure() -> dict[str, float]:
    """Return every figure by the name that it has in `LIMITS`."""
    library = modules()
    tokens, lines = count_tokens(library)
    names = list(function_names(library))
    vague = [name for name in names if VAGUE.fullmatch(name)]
    figures = {
        "tokens": tokens,
        "tokens a code line": round(tokens / lines, 2),
        "vague names in functions, %": round(100 * len(vague) / len(names), 1),
        "class names used twice": len(class_names(library)),
        "docstrings that begin with What, Whether or How": len(weak_docstrings(library)),
        "methods of the store's protocol": len(
            methods(library["runner.store.interface"], "Store")
        ),
        "methods of the store in Redis": len(
            methods(library["runner.store.redis.store"], "RedisStore")
        ),
        "most rooms with files of one feature": max(
            len(rooms) for rooms in feature_rooms(library).values()
        ),
        "imports of store.redis from other rooms": len(store_arrows(library)),
        "modules in import circles": len(circles(library)),
    }
    for kind, rate in odd_phrases(library).items():
        figures[f"odd phrases per 1,000 words of {kind}"] = rate
    figures["words of docs"] = sum(
        len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md")
    )
    for name, walk in walks().items():
        figures |= {f"{name}: files": len(walk.files), f"{name}: calls": walk.calls}
    return figures


def main() -> int:
    """Print the figures; return 1 where one is over its limit."""
    figures = measure()
    for name, figure in figures.items():
        limit = LIMITS[name]
        sys.stdout.write(
            f"{'OVER' if figure > limit else '    '} {name:50} {figure:>10} of {limit}\n"
        )
    return any(figure > LIMITS[name] for name, figure in figures.items())


if __name__ == "__main__":
    sys.exit(main())
