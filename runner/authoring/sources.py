"""The source of a function as a syntax tree, for lint and for arrow labels; it is never run."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator

Code = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def bare(function: object) -> object:
    """Unwrap partials and decorators; for another kind of object, return its `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if callable(function):
        function = inspect.unwrap(function)
    if hasattr(function, "__code__") or inspect.ismethod(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004 - its code is needed


def tree(function: object) -> Code | None:
    """Parse a function; None if the source is missing or may belong to another function."""
    plain = bare(function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return None
    try:
        lines, first_line = inspect.findsource(plain)  # type: ignore[arg-type]
        source = "".join(inspect.getblock(lines[first_line:]))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if code.co_name != "<lambda>":
        return next(iter(_parsed(source, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
    return _lambda(lines, first_line, code)


def _lambda(lines: list[str], first_line: int, code: types.CodeType) -> ast.Lambda | None:
    """Find a lambda in its statement, which may hold several, by the position of its body."""
    text, start = _statement(lines, first_line)
    indent = len(lines[start]) - len(lines[start].lstrip())
    candidates = [node for node in _parsed(text, (ast.Lambda,)) if isinstance(node, ast.Lambda)]
    # The first instruction isn't part of an expression, and has no column.
    positions = [
        (line, column) for line, _, column, _ in code.co_positions() if line and column
    ]
    if (
        not positions
    ):  # Python 3.12 gives a constant no position; any of several equal lambdas will do
        return next(
            (node for node in candidates if _returns(node.body, code.co_consts[-1])), None
        )
    for node in candidates:
        if (node.body.lineno + start, node.body.col_offset + indent) == min(positions):
            return node
    return candidates[0] if len(candidates) == 1 else None


def _returns(body: ast.expr, value: object) -> bool:
    return isinstance(body, ast.Constant) and repr(body.value) == repr(value)


def _statement(lines: list[str], first_line: int) -> tuple[str, int]:
    """Return the statement around a line and its first line; a lambda may start in its middle."""
    for start in range(first_line, max(first_line - 20, -1), -1):
        for length in (1, 2, 3, 5, 8, 13, 21):
            text = textwrap.dedent("".join(lines[start : start + length]))
            if start + length > first_line and _parses(text):
                return text, start
    return "", first_line


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return "lambda" in text


def _parsed(source: str, kinds: tuple[type[ast.AST], ...]) -> Iterator[Code]:
    try:
        nodes = ast.walk(ast.parse(textwrap.dedent(source)))
    except SyntaxError:
        return
    for node in nodes:
        if isinstance(node, kinds):
            assert isinstance(node, Code)  # noqa: S101 - `kinds` are of these three
            yield node
