"""What commands write into a pipe is as safe as on a terminal: `runner interrupts show ID | less`."""

from __future__ import annotations

import pytest

from runner import GraphBuilder, Status
from runner.approvals import Rule
from runner.records.shown_text import shown
from tests.server.conftest import Site

HOSTILE = "p\u0430y \u202e005\u202c \u3164\ufe0f to\u200b \x1b[31mACME\u2800"
"""A look-alike letter, a turn of direction, letters that show nothing, and a colour."""

COMMANDS = [
    ("interrupts", "list"),
    ("interrupts", "show", "{question}"),
    ("runs", "list"),
    ("runs", "show", "{run}"),
    ("runs", "show", "{failed}"),
    ("runs", "watch", "{failed}"),
    ("runs", "retry", "{failed}"),
    ("dead", "list"),
    ("api", "GET", "/v1/runs"),
    ("api", "GET", "/v1/questions"),
    ("api", "GET", "/metrics"),
    ("api", "GET", "/v1/limits/queued"),
    ("doctor",),
]


@pytest.fixture
def hostile(redis_url):
    """A run that waits, and one that has failed, whose texts are all hostile."""

    def ask(ctx):
        rule = Rule(title="Pay {sum}", because=HOSTILE)
        ctx.interrupt(HOSTILE, {"note": HOSTILE}, rule=rule, action={"sum": HOSTILE})

    def fail(ctx):
        raise ValueError(HOSTILE)

    def graph(function):
        builder = GraphBuilder()
        builder.add_node(function, "a")
        return builder.build()

    site = Site(redis_url, {"ask": lambda: graph(ask), "fail": lambda: graph(fail)})
    tags = {"customer": "p\u0430y"}
    waiting, failed = site.start("ask", HOSTILE, tags=tags), site.start("fail", HOSTILE)
    assert (waiting.result().status, failed.result().status) == (
        Status.INTERRUPTED,
        Status.FAILED,
    )
    question = waiting.interrupts()[0].id
    site.client.comment(question, HOSTILE, by="ana")
    return {"run": waiting.id, "failed": failed.id, "question": question}


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_in_a_pipe_is_hidden(call, redis_url, hostile, command):
    """Each line has escapes where a terminal would show nothing, or something else."""
    done = call(*(part.format(**hostile) for part in command), url=redis_url)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    for line in (done.stdout + done.stderr).splitlines():
        plain = line.replace("\t", " ")
        assert shown(plain) == plain


def test_the_texts_of_that_test_are_there(call, redis_url, hostile):
    """The control: the same command has them, as JSON escapes."""
    done = call("interrupts", "show", hostile["question"], "--json", url=redis_url)
    assert done.stdout.count("\\u202e") > 2
    assert "\\u202e" in call("interrupts", "show", hostile["question"], url=redis_url).stdout
