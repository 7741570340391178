from __future__ import annotations

import sys
import threading

import pytest

from runner.definition import registry as public
from runner.definition.registry import Registry, load
from runner.errors import DefinitionError, NotFoundError
from tests.graphs import ident, wired


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
    assert own_registry.get("refund").topology.fingerprint != own_registry.get("other").topology.fingerprint


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
    with pytest.raises(NotFoundError, match=r"is registered here; known: refund\. Name the module"):
        own_registry.get(path)


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

    with pytest.raises(DefinitionError, match=r"two graphs are named 'refund': .*refund and .*payout"):
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
    with pytest.raises(OSError, match="no settings"):
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


def test_the_decorator_registers_and_returns_the_factory(monkeypatch):
    """`@graph("name")` above a factory makes it known to workers and leaves it as it is."""
    own = Registry()
    monkeypatch.setattr(public, "registry", own)

    assert public.graph("refund")(refund) is refund
    assert own.names() == ["refund"]


def test_modules_of_graphs_are_imported(tmp_path, monkeypatch):
    """The modules named in the settings are imported; one that can't be is an error that names it."""
    (tmp_path / "graphs_of_a_test.py").write_text("seen = True\n")
    (tmp_path / "broken_graphs_of_a_test.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)

    load(["graphs_of_a_test"])
    assert sys.modules.pop("graphs_of_a_test").seen

    with pytest.raises(
        DefinitionError, match="the module 'broken_graphs_of_a_test' of RUNNER_GRAPHS can't be imported"
    ):
        load(["broken_graphs_of_a_test"])
    with pytest.raises(DefinitionError, match="can't be imported: No module named 'nowhere'"):
        load(["nowhere"])
