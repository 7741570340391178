from __future__ import annotations

import ast
import functools

import pytest

from runner.authoring import sources

FIRST, SECOND = (lambda state: state.first), (lambda state: state.second)
MANY = [
    lambda state: [each.x for each in state],
    lambda state: (
        state.many
        and state.lines
    ),
]  # fmt: skip


def named(state):
    return state


@functools.wraps(named)
def wrapped(*arguments):
    return named(*arguments)


class Called:
    def __call__(self, state):
        return 1

    def method(self, state):
        return 2


@pytest.mark.parametrize(
    ("function", "body"),
    [
        (FIRST, "state.first"),
        (SECOND, "state.second"),
        (MANY[0], "[each.x for each in state]"),
        (MANY[1], "state.many and state.lines"),
        (named, "return state"),
        (wrapped, "return state"),
        (functools.partial(named, 1), "return state"),
        (Called(), "return 1"),
        (Called().method, "return 2"),
    ],
)
def test_the_source_of_a_function_is_found(function, body):
    """A function, method, callable object or lambda is found, also beside another one in its line."""
    found = sources.tree(function)

    assert ast.unparse(found.body if isinstance(found, ast.Lambda) else found.body[-1]) == body


MADE = eval("lambda state: 1")  # noqa: S307 - our own text


@pytest.mark.parametrize(
    "function", [print, int, 3, None, MADE], ids=["print", "int", "3", "None", "made"]
)
def test_what_has_no_source_is_said_to_have_none(function):
    """Built-in functions, classes and code made at run time have no source, and that is no error."""
    assert sources.tree(function) is None
