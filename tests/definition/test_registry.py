from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runner.definition import registry as public
from runner.definition.registry import Registry, load
from runner.errors import DefinitionError, NotFoundError
from tests.graphs import ident, wired

ROOT = Path(__file__).parents[2]


def refund():
    return wired(
        {"a": ident, "review": wired({"x": ident, "deep": wired({"y": ident}).build()}).build()}
    ).build()


def payout():
    return wired({"a": ident}).build()


def test_a_factory_is_called_when_its_graph_is_needed():
    """A registered graph is built once, at its first use."""
    built = []

    def factory():
        built.append(1)
        return refund()

    own_registry = Registry()
    own_registry.add("refund", factory)

    assert (own_registry.names(), built) == (["refund"], [])
    assert own_registry.find("refund") is own_registry.get("refund")
    assert built == [1]


def test_a_graph_has_the_name_it_is_registered_under():
    """The name given at registration is the graph's, whatever its builder said."""
    own_registry = Registry()
    own_registry.add("refund", refund)
    own_registry.add("other", refund)

    assert own_registry.get("refund").topology.graph_id == "refund"
    assert (
        own_registry.get("refund").topology.fingerprint
        != own_registry.get("other").topology.fingerprint
    )


def test_graphs_inside_are_found_by_their_path():
    """A graph inside a graph is named by the way to it, so that any worker finds its code."""
    own_registry = Registry()
    own_registry.add("refund", refund)

    assert list(own_registry.get("refund/review/deep").definition.nodes) == ["y"]
    assert [plan.definition.id for plan in own_registry.family("refund")] == [
        "refund",
        "refund/review",
        "refund/review/deep",
    ]


@pytest.mark.parametrize(
    "path", ["nobody", "nobody/review", "refund/a", "refund/nobody", "refund/review/x", ""]
)
def test_what_is_not_there_is_not_found(path):
    """A path that leads to no graph is None, or an error that names what is known."""
    own_registry = Registry()
    own_registry.add("refund", refund)

    assert own_registry.find(path) is None
    with pytest.raises(
        NotFoundError, match=r"is registered here; known: refund\. Name the module"
    ):
        own_registry.get(path)


def test_a_similar_graph_is_named():
    """A slip of the hand is told from a module that is missing; control: a name that resembles none."""
    own_registry = Registry()
    own_registry.add("refund", refund)

    with pytest.raises(NotFoundError, match=r"Did you mean 'refund'\?$"):
        own_registry.get("refunds")
    with pytest.raises(NotFoundError, match=r"in RUNNER_GRAPHS\.$"):
        own_registry.get("invoice")


def test_the_decorator_needs_a_name():
    """Without parentheses nothing would be registered, and nobody would be told."""
    with pytest.raises(DefinitionError, match=r"write @graph\('refund'\)"):
        public.graph(refund)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_is_no_path(name):
    """A name that could be mistaken for a path is refused."""
    with pytest.raises(DefinitionError, match="must be a text without '/'"):
        Registry().add(name, refund)


def test_two_graphs_cannot_have_one_name():
    """A second factory under a taken name is an error that names both; the same one again is none."""
    own_registry = Registry()
    own_registry.add("refund", refund)
    own_registry.add("refund", refund)

    with pytest.raises(
        DefinitionError, match=r"two graphs are named 'refund': .*refund and .*payout"
    ):
        own_registry.add("refund", payout)


def test_registering_again_builds_anew():
    """A module that is imported again replaces its graph, those inside included."""
    own_registry = Registry()
    own_registry.add("refund", refund)
    first, inner = own_registry.get("refund"), own_registry.get("refund/review")
    own_registry.add("refund", refund)

    assert own_registry.get("refund") is not first
    assert own_registry.get("refund/review") is not inner


def test_a_factory_that_raises_is_asked_again():
    """A factory that fails once, as for a missing setting, is asked again at the next use."""
    answers = [OSError("no settings"), None]

    def moody():
        if (error := answers.pop(0)) is not None:
            raise error
        return payout()

    own_registry = Registry()
    own_registry.add("moody", moody)
    with pytest.raises(
        DefinitionError, match=r"graph 'moody' can't be built: OSError: no settings \(tests"
    ):
        own_registry.find("moody")

    assert own_registry.find("moody") is not None


def test_threads_build_a_graph_once():
    """Threads that need a graph at the same moment share one."""
    known, built, found = Registry(), [], []

    def factory():
        built.append(1)
        return payout()

    known.add("payout", factory)
    start = threading.Barrier(8)

    def need():
        start.wait()
        found.append(known.get("payout"))

    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(built), len(set(map(id, found)))) == (1, 1)


def test_the_decorator_registers_the_factory_and_names_its_graphs(monkeypatch):
    """`@graph("name")` above a factory makes it known to workers; its graphs know that name."""
    own = Registry()
    monkeypatch.setattr(public, "registry", own)

    decorated = public.graph("refund")(refund)
    assert own.names() == ["refund"]
    assert (decorated.__name__, decorated().definition.name) == ("refund", "refund")
    assert decorated().definition.nodes.keys() == refund().definition.nodes.keys()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of graphs into the folder of a program, and import it as a worker does."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices_of_a_test.py").write_text("LIST = 'prices'\n\nPRICES = {}[LIST]\n")
    names = []

    def write(text):
        names.append(f"graphs_of_a_test_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(text)
        load([names[-1]])
        return sys.modules[names[-1]]

    yield write
    for name in [*names, "prices_of_a_test"]:
        sys.modules.pop(name, None)


def test_modules_of_graphs_are_imported(module):
    """The modules named in the settings are imported."""
    assert module("seen = True\n").seen


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module\n", "No module named 'no_such_module' ({file}, line 1)"),
        ("import os\n\ndef refund(:\n", "SyntaxError: invalid syntax ({file}, line 3)"),
        (
            "def f():\nreturn 1\n",
            "IndentationError: expected an indented block {}({file}, line 2)",
        ),
        (
            "import os\nKEY = os.environ['NO_SUCH_KEY']\n",
            "KeyError: 'NO_SUCH_KEY' ({file}, line 2)",
        ),
        (
            "x = 1\nimport prices_of_a_test\n",
            "KeyError: 'prices' (prices_of_a_test.py, line 3)",
        ),
        ("import sys\nsys.exit('no')\n", "SystemExit: no ({file}, line 2)"),
        (
            "from runner import GraphBuilder\n\nGraphBuilder().set_failure_policy('ignore')\n",
            "the failure policy is 'fail_fast' or 'continue', not 'ignore' ({file}, line 3)",
        ),
    ],
)
def test_a_module_that_can_t_be_imported_is_named_with_the_line(module, text, reason):
    """The message has the module, its error, and the file and line that the user can fix."""
    reason = reason.replace("{}", "after function definition on line 1 ")

    with pytest.raises(DefinitionError) as refused:
        module(text)

    name = "graphs_of_a_test_0"
    assert str(refused.value) == (
        f"the module {name!r} of RUNNER_GRAPHS can't be imported: {reason.format(file=f'{name}.py')}."
    )


@pytest.mark.parametrize("name", ["nowhere", "tests.nowhere", "nowhere.graphs"])
def test_a_module_that_is_not_there_is_a_wrong_setting(name):
    """Nothing is wrong in any file: the advice is about the setting."""
    with pytest.raises(
        DefinitionError, match=r"No module named '\S+'\. Name importable modules, separated"
    ):
        load([name])


def test_a_graph_that_can_t_be_built_is_named_with_the_line(module):
    """An error in a factory names its graph, and the line of the factory, not that of a library."""
    own_registry = Registry()
    own_registry.add(
        "refund", module("import json\n\ndef refund():\n    return json.loads('{')\n").refund
    )

    with pytest.raises(DefinitionError) as refused:
        own_registry.find("refund")

    assert str(refused.value).startswith(
        "graph 'refund' can't be built: JSONDecodeError: Expecting"
    )
    assert str(refused.value).endswith(" (graphs_of_a_test_0.py, line 4).")


@pytest.mark.full
def test_a_module_may_import_the_models_of_a_django_project(tmp_path):
    """Programs that Celery doesn't start set Django up, as its workers do; control: not without settings."""
    app = tmp_path / "stock"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "settings.py").write_text("SECRET_KEY = 'x'\nINSTALLED_APPS = ['stock']\n")
    (app / "models.py").write_text(
        "from django.db import models\n\n\nclass Item(models.Model):\n    pass\n"
    )
    (app / "graphs.py").write_text("from stock.models import Item\n")

    def loaded(**environment):
        return subprocess.run(
            [
                sys.executable,
                "-c",
                "from runner.definition.registry import load; load(['stock.graphs'])",
            ],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    assert loaded(DJANGO_SETTINGS_MODULE="stock.settings").stderr == ""
    assert "ImproperlyConfigured" in loaded().stderr
