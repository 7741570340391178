"""Programs that start a run on a store that no worker has ever used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runner import AsyncClient, Client, Status
from runner.definition.registry import Registry
from runner.errors import DefinitionError, NotFoundError
from runner.operations.message_handlers import IncomingMessage, handle_start

GRAPHS = """
from runner import GraphBuilder, graph

@graph("refund")
def refund():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.task, "pay")
    return builder.build()
"""

START = "from runner import Client; print(Client({url}).start('{graph}', 1).id)\n"

START_ASYNC = """
import asyncio
from runner import AsyncClient

async def main():
    print((await AsyncClient({url}).start('{graph}', 1)).id)

asyncio.run(main())
"""

CONFIGURED = {
    "environment": {},
    "dotenv": {".env": "RUNNER_GRAPHS=flows\n"},
    "pyproject": {"pyproject.toml": '[tool.runner]\ngraphs = ["flows"]\n'},
}
"""The files that name the graphs; in the first case a variable does."""


@pytest.fixture(
    params=[
        "environment",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("dotenv", "pyproject")),
    ]
)
def project(request, tmp_path, redis_url):
    """Give a way to run a program in a folder whose settings name a module of graphs."""
    (tmp_path / "flows.py").write_text(GRAPHS)
    for name, text in CONFIGURED[request.param].items():
        (tmp_path / name).write_text(text)
    settings = {"RUNNER_GRAPHS": "flows"} if request.param == "environment" else {}

    def run(*words, with_url=True):
        address = {"RUNNER_REDIS_URL": redis_url} if with_url else {}
        environment = {**os.environ, **settings, **address}
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    return run


@pytest.mark.slow
def test_a_program_starts_a_run_before_any_worker(project, redis_url):
    """Wherever settings name the modules; a graph of none is an error that lists the known ones."""
    done = project(
        "-c", START.format(url="", graph="refund") + START.format(url="", graph="payout")
    )

    assert Client(redis_url).run(done.stdout.strip()).status is Status.EXECUTING, done.stderr
    assert "no graph 'payout' is known to this store; known: refund." in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("project", ["environment"], indirect=True)
def test_a_program_may_name_the_store_itself(project, redis_url):
    """Then no setting has to, in both clients."""
    address = f"redis_url={redis_url!r}"
    program = "".join(each.format(url=address, graph="refund") for each in (START, START_ASYNC))
    done = project("-c", program, with_url=False)

    started = [Client(redis_url).run(run).status for run in done.stdout.split()]
    assert started == [Status.EXECUTING] * 2, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("project", ["environment"], indirect=True)
def test_the_command_line_starts_a_run_before_any_worker(project, redis_url):
    """`runner run` reads the same settings; a graph that nobody has is one line with what to do."""
    done = project("-m", "runner.cli", "run", "refund")
    unknown = project("-m", "runner.cli", "run", "payout")

    assert Client(redis_url).run(done.stdout.strip()).status is Status.EXECUTING, done.stderr
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (4, 2)
    assert "Or set RUNNER_GRAPHS of this program." in unknown.stderr


@pytest.mark.slow
def test_a_module_that_can_t_be_imported_is_no_fault_of_the_program(tmp_path, redis_url):
    """The command line says in one line which file has the error, and exits as for a wrong use."""
    (tmp_path / "flows.py").write_text("def refund(:\n")
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli", "run", "refund"],
        cwd=tmp_path,
        env={**os.environ, "RUNNER_GRAPHS": "flows", "RUNNER_REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert done.returncode == 2
    assert done.stderr == (
        "Error: the module 'flows' of RUNNER_GRAPHS can't be imported: SyntaxError: invalid syntax "
        "(flows.py, line 1).\n"
    )


def test_a_start_names_a_module_that_can_t_be_imported(fake_store, monkeypatch):
    """A Client raises the same error at every start, until the setting is right."""
    monkeypatch.setenv("RUNNER_GRAPHS", "tests.nowhere")
    client = Client(fake_store.url)

    for _ in range(2):
        with pytest.raises(
            DefinitionError, match=r"the module 'tests\.nowhere' of RUNNER_GRAPHS"
        ):
            client.start("nobody", 1)
    monkeypatch.setenv("RUNNER_GRAPHS", "")
    with pytest.raises(NotFoundError, match="no graph 'nobody' is known to this store"):
        client.start("nobody", 1)


@pytest.mark.full
def test_the_hint_is_true_for_each_way_to_start(fake_store):
    """What names graphs differs: this program's setting, its registry, or that of the workers alone."""
    worker = "Start a worker whose RUNNER_GRAPHS names its module."
    registered = Client(fake_store.url, registry=Registry())
    message = IncomingMessage("1-0", "key", b'{"v": 1, "graph": "nobody", "task": 1}')
    verdict = handle_start(registered.engine, message)

    assert refusal(Client(fake_store.url)).endswith(
        f"{worker} Or set RUNNER_GRAPHS of this program."
    )
    assert refusal(AsyncClient(fake_store.url).sync).endswith(
        "Or set RUNNER_GRAPHS of this program."
    )
    assert refusal(registered).endswith(f"{worker} Or add it to the registry of this program.")
    assert verdict.reason.endswith(worker)
    assert verdict.receipt.detail == verdict.reason


def refusal(client):
    with pytest.raises(NotFoundError) as refused:
        client.start("nobody", 1)
    return str(refused.value)
