"""The source of a function as a syntax tree, where it can be had: never run, only looked at."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator

Code = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def bare(function: object) -> object:
    """Take partials and wrappers off, and find the `__call__` of an object that is no function."""
    while isinstance(function, functools.partial):
        function = function.func
    if callable(function):
        function = inspect.unwrap(function)
    if hasattr(function, "__code__") or inspect.ismethod(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004 - it is looked at, not asked for


def tree(function: object) -> Code | None:
    """Parse a function; None where its source is not there, or is not certainly its own."""
    plain = bare(function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return None
    try:
        lines, first = inspect.findsource(plain)  # type: ignore[arg-type]
        source = "".join(inspect.getblock(lines[first:]))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if code.co_name != "<lambda>":
        return next(iter(_parsed(source, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
    return _lambda(lines, first, code)


def _lambda(lines: list[str], first: int, code: types.CodeType) -> ast.Lambda | None:
    """Find a lambda in the statement that it stands in, by the place where its body begins."""
    text, start = _statement(lines, first)
    indent = len(lines[start]) - len(lines[start].lstrip())
    found = [each for each in _parsed(text, (ast.Lambda,)) if isinstance(each, ast.Lambda)]
    # The first instruction belongs to no expression.
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    for each in found:
        if places and (each.body.lineno + start, each.body.col_offset + indent) == min(places):
            return each
    return found[0] if len(found) == 1 else None


def _statement(lines: list[str], first: int) -> tuple[str, int]:
    """A lambda's own lines may begin in the middle of a statement: go back to where it begins."""
    for start in range(first, max(first - 20, -1), -1):
        for length in (1, 2, 3, 5, 8, 13, 21):
            text = textwrap.dedent("".join(lines[start : start + length]))
            if start + length > first and _parses(text):
                return text, start
    return "", first


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return "lambda" in text


def _parsed(source: str, kinds: tuple[type[ast.AST], ...]) -> Iterator[Code]:
    try:
        found = ast.walk(ast.parse(textwrap.dedent(source)))
    except SyntaxError:
        return
    for node in found:
        if isinstance(node, kinds):
            assert isinstance(node, Code)  # noqa: S101 - every kind asked for is one
            yield node
