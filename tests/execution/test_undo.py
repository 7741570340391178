"""Undos: when a run fails or is cancelled, completed nodes are undone, the last one first."""

from __future__ import annotations

import pytest

from runner import GraphBuilder, RetryPolicy, Status
from runner.approvals import Rule
from runner.client import Run
from runner.errors import ConflictError, DefinitionError
from runner.hooks import AfterGraphEvent
from runner.operations.views import read_run
from runner.store.memory.store import MemoryStore
from runner.testing import CrashPoint
from tests.execution.test_effects import vote
from tests.execution.test_holds import deployed
from tests.graphs import Bench, ident, wired


def boom(ctx):
    raise ValueError("boom")


def ask(ctx):
    return ctx.interrupt("ok?")


class HookProviderOf:
    """Calls one function when a run has ended."""

    def __init__(self, callback):
        self.callback = callback

    def register_hooks(self, registry, **_):
        registry.add_callback(AfterGraphEvent, self.callback)


@pytest.fixture(params=["memory", "redis"])
def store(request):
    """Make stores of both kinds."""
    return MemoryStore if request.param == "memory" else request.getfixturevalue("in_redis")


class Diary:
    """Nodes that note what is done and undone; `fails` names those whose undo fails."""

    def __init__(self, *fails):
        self.lines, self.keys, self.fails = [], {}, fails

    def do(self, ctx):
        self.lines.append(ctx.node_id)
        self.keys[ctx.node_id] = ctx.idempotency_key
        return {"id": f"{ctx.node_id}{ctx.visit}"}

    def undo(self, ctx):
        ((node, output),) = ctx.inputs.items()
        self.lines.append(f"-{output['id']}")
        self.keys[ctx.node_id] = ctx.idempotency_key
        if node in self.fails:
            raise ConnectionError("no refund")

    def node(self, **options):
        return {"undo": self.undo, **options}


def saga(diary, *edges, last=boom, **options):
    """Build "a" and "b" with undos, and a last node "z"."""
    nodes = {"a": diary.do, "b": diary.do, "z": last}
    edges = edges or ("a b", "b z")
    return wired(nodes, *edges, a=diary.node(), b=diary.node(**options))


def test_a_run_that_completes_undoes_nothing():
    """Control: without a failure no undo runs, or is shown."""
    diary = Diary()
    result = saga(diary, last=ident).build()("task")

    assert (result.status, diary.lines) == (Status.COMPLETED, ["a", "b"])
    assert list(result.results) == ["a", "b", "z"]


@pytest.mark.full
@pytest.mark.parametrize("last", [ident, boom])
def test_the_end_event_comes_after_the_undos_and_undoes_nothing(last, store):
    """A hook that fails fails the run, but a completed run's nodes stay done."""
    diary = Diary()

    def fails(event):
        diary.lines.append("after")
        raise ConnectionError("no chat")

    builder = saga(diary, last=last)
    builder.set_hook_providers([HookProviderOf(fails)])
    result = Bench(builder.build(), store).start().finish()

    undone = ["-b1", "-a1"] if last is boom else []
    assert diary.lines == ["a", "b", *undone, "after"]
    assert result.status is Status.FAILED


def test_the_other_undos_run_when_one_fails():
    """The reason names each undo that failed."""
    diary = Diary("b")
    result = saga(diary).build()("task")

    assert diary.lines == ["a", "b", "-b1", "-a1"]
    assert result.reason == 'node "z" failed; node "@undo:b" failed'
    assert str(result.results["@undo:b"].result) == "no refund"


def test_an_undo_has_the_retries_of_its_node():
    """An undo is tried again as its node would be, unless it has a policy of its own."""
    diary = Diary("b")
    twice = RetryPolicy(max_attempts=2, backoff=0)
    result = saga(diary, retry=twice).build()("task")

    assert diary.lines == ["a", "b", "-b1", "-b1", "-a1"]
    assert result.results["@undo:b"].attempts == 2


def test_a_run_that_goes_on_after_a_failure_undoes_at_its_end():
    """With the policy "continue" other branches end first; then the run is undone, as it has failed."""
    diary = Diary("a")
    builder = wired(
        {"a": diary.do, "y": boom, "b": diary.do}, "a b", a=diary.node(), b=diary.node()
    )
    result = builder.set_failure_policy("continue").build()("task")

    assert diary.lines == ["a", "b", "-b1", "-a1"]
    assert (result.status, result.reason) == (Status.FAILED, 'node "@undo:a" failed')


def test_a_cancelled_run_is_undone_after_its_running_nodes(store):
    """A node that runs when a person cancels may finish, and is then undone, too."""
    diary = Diary()

    def cancelled_meanwhile(ctx):
        assert Run(bench.run_id, bench.engine).cancel("enough")
        return diary.do(ctx)

    nodes = {"a": diary.do, "b": cancelled_meanwhile, "z": ask}
    builder = wired(nodes, "a b", "a z", a=diary.node(), b=diary.node())
    bench = Bench(builder.build(), store).start()
    bench.deliver("a")
    bench.deliver("z")
    bench.deliver("b")
    assert bench.result().status is Status.EXECUTING
    assert not Run(bench.run_id, bench.engine).cancel("once more")
    result = bench.finish()

    assert diary.lines == ["a", "b", "-b1", "-a1"]
    assert (result.status, result.reason) == (Status.CANCELLED, "enough")
    assert result.results["z"].status is Status.CANCELLED


def test_a_cancelled_run_whose_undo_fails_has_failed(store):
    """Somebody must look at it, so it isn't among the runs that were only cancelled."""
    diary = Diary("a")
    bench = Bench(saga(diary, last=ask).build(), store).start()
    bench.finish()
    Run(bench.run_id, bench.engine).cancel("enough")
    result = bench.finish()

    assert diary.lines == ["a", "b", "-b1", "-a1"]
    assert (result.status, result.reason) == (
        Status.FAILED,
        'enough; node "@undo:a" failed',
    )


def test_an_undo_asks_first_if_a_rule_says_so(run_graph):
    """Its run waits for the vote, though it stops, and the undo before it waits with it."""
    diary = Diary()
    builder = wired({"a": diary.do, "b": diary.do, "z": boom}, "a b", "b z", a=diary.node())
    builder.add_undo("b", diary.undo, approval=Rule())
    run = run_graph(builder.build())
    assert (run.status, diary.lines) == (Status.INTERRUPTED, ["a", "b"])
    assert run.interrupts[0].node_id == "@undo:b"
    assert run.interrupts[0].action["args"]["inputs"] == {"b": {"id": "b1"}}
    vote(run, "ana")

    assert (run.status, diary.lines) == (Status.FAILED, ["a", "b", "-b1", "-a1"])
    assert run.result.reason == 'node "z" failed'


def test_a_rejected_undo_fails_and_the_others_run(run_graph):
    """The rejection is the error of the undo."""
    diary = Diary()
    builder = wired({"a": diary.do, "b": diary.do, "z": boom}, "a b", "b z", a=diary.node())
    builder.add_undo("b", diary.undo, approval=Rule())
    run = run_graph(builder.build())
    vote(run, "ana", "reject", comment="keep it")

    assert (run.status, diary.lines) == (Status.FAILED, ["a", "b", "-a1"])
    assert "keep it" in str(run.result.results["@undo:b"].result)


@pytest.mark.full
def test_an_undo_may_ask_and_is_answered(store):
    """A question in an undo's code is no different from one in a node's."""

    def undo(ctx):
        return [ctx.interrupt("which?"), *ctx.inputs]

    bench = Bench(
        wired({"a": ident, "z": boom}, "a z", a={"undo": undo}).build(), store
    ).start()
    assert bench.finish().status is Status.INTERRUPTED
    bench.answer("this one")

    assert bench.finish().results["@undo:a"].output == ["this one", "a"]


def test_an_undo_may_be_typed_and_async():
    """Its one input is the node's output, checked against the annotation."""
    seen = []

    async def undo(order: dict[str, str]) -> None:
        seen.append(order)

    diary = Diary()
    wired({"a": diary.do, "z": boom}, "a z", a={"undo": undo}).build()("task")

    assert seen == [{"id": "a1"}]


def test_each_visit_in_a_loop_is_undone_once():
    """The newest first, each with its own output and key."""
    diary = Diary()

    def check(ctx):
        return 1 // (ctx.visit < 3)

    again = ("z a", lambda state: True)
    builder = wired({"a": diary.do, "z": check}, "a z", again, a=diary.node())
    builder.set_entry_point("a").set_max_node_executions(99)
    builder.build()("task")

    assert diary.lines == ["a", "a", "a", "-a3", "-a2", "-a1"]


def test_a_map_is_undone_once_with_its_list():
    """A map is one node; its undo gets the outputs of its items."""
    seen = []
    builder = GraphBuilder()
    builder.add_map(
        lambda ctx: ctx.task * 2, "m", undo=lambda ctx: seen.append(ctx.inputs["m"])
    )
    builder.add_node(boom, "z")
    builder.add_edge("m", "z")
    builder.build()([1, 2])

    assert seen == [[2, 4]]


@pytest.mark.full
@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
def test_a_graph_inside_is_undone_before_the_nodes_around_it(store, ends):
    """Its own end comes after its undos, so what completed before it is undone later."""
    diary = Diary()
    inside = saga(diary, last=boom if ends == "fails" else ask).build()
    builder = wired({"first": diary.do, "in": inside}, "first in", first=diary.node())
    bench = Bench(builder.build(), store).start()
    bench.finish()
    if ends == "is cancelled":
        Run(bench.run_id, bench.engine).cancel("enough")
    result = bench.finish()

    assert diary.lines == ["first", "a", "b", "-b1", "-a1", "-first1"]
    assert result.status is (Status.FAILED if ends == "fails" else Status.CANCELLED)


def test_a_graph_inside_that_completed_has_an_undo_of_its_own():
    """Its nodes stay as they are: the node around them is undone, with the graph's output."""
    diary, seen = Diary(), []
    inside = saga(diary, last=ident).build()
    builder = wired(
        {"in": inside, "z": boom},
        "in z",
        **{"in": {"undo": lambda ctx: seen.append(ctx.inputs)}},
    )
    builder.build()("task")

    assert (diary.lines, seen) == (["a", "b"], [{"in": "z"}])


@pytest.mark.full
def test_what_a_person_did_instead_is_not_undone(store, run_graph):
    """A node that was answered or skipped has not run, so there is nothing to undo."""
    diary = Diary()
    builder = wired(
        {"a": diary.do, "b": diary.do, "z": boom},
        "a b",
        "b z",
        a=diary.node(approval=Rule()),
        b=diary.node(),
    )
    run = run_graph(builder.build())
    vote(run, "ana", "respond", {"id": "by hand"})

    assert (run.status, diary.lines) == (Status.FAILED, ["b", "-b1"])

    bench = Bench(saga(diary).build(), store).start()
    Run(bench.run_id, bench.engine).skip("a", {"id": "by hand"}, by="ana")
    bench.finish()
    assert diary.lines == ["b", "-b1", "b", "-b1"]


def test_an_undone_run_is_not_retried_and_forks_keep_nothing_undone(in_redis):
    """What a fork keeps must still be there: it begins at the first node that was undone."""
    diary = Diary()
    bench = Bench(saga(diary).build(), in_redis).start()
    bench.finish()
    run = Run(bench.run_id, bench.engine)
    with pytest.raises(ConflictError, match="has undone its work: start another one"):
        run.retry()
    with pytest.raises(ConflictError, match="has undone a, b, whose results would be kept"):
        run.fork("z")
    fork = run.fork("a")
    bench.finish_all()
    assert fork.status is Status.FAILED
    assert diary.lines == ["a", "b", "-b1", "-a1"] * 2


def test_a_run_that_had_nothing_to_undo_is_retried_and_undone_later(in_redis):
    """Control: only undos that have run stand in the way of a retry."""
    diary = Diary()

    def once_broken(ctx):
        return 1 // (ctx.attempt > 1)

    nodes = {"y": once_broken, "a": diary.do, "z": boom}
    bench = Bench(wired(nodes, "y a", "a z", a=diary.node()).build(), in_redis).start()
    assert bench.finish().status is Status.FAILED
    assert Run(bench.run_id, bench.engine).retry() == ["y"]
    bench.finish()

    assert diary.lines == ["a", "-a1"]


def test_a_fork_undoes_only_its_own_visits(in_redis):
    """What it keeps was done by the other run, which may still need it."""
    diary = Diary()
    bench = Bench(saga(diary, last=ask).build(), in_redis).start()
    bench.finish()
    fork = Run(bench.run_id, bench.engine).fork("b")
    bench.finish_all()
    fork.cancel()
    bench.finish_all()

    assert diary.lines == ["a", "b", "b", "-b1"]
    assert fork.status is Status.CANCELLED


@pytest.mark.full
def test_a_retried_graph_inside_that_was_undone_starts_again(in_redis):
    """The run around it had nothing to undo itself; the child that is undone is left alone."""
    diary = Diary()
    inside = saga(diary).build()
    bench = Bench(wired({"in": inside}).build(), in_redis).start()
    bench.finish()
    run = Run(bench.run_id, bench.engine)
    keys = dict(diary.keys)
    assert run.retry() == ["in"]
    bench.finish()

    assert diary.lines == ["a", "b", "-b1", "-a1"] * 2
    assert not set(keys.values()) & set(diary.keys.values())


def test_a_migrated_run_is_undone_by_its_new_graph(in_redis):
    """A renamed node is undone under its new name; a run that is being undone isn't migrated."""
    diary = Diary()
    bench = Bench(saga(diary, last=ask).build(), in_redis).start()
    bench.finish()
    nodes = {"a": diary.do, "bb": diary.do, "z": ask, "y": ident}
    options = {"a": diary.node(), "bb": {"undo": ask}}
    deployed(bench, "a bb", "bb z", "z y", options=options, **nodes)
    run = Run(bench.run_id, bench.engine)
    run.migrate({"b": "bb"})
    bench.finish()
    run.cancel()

    assert bench.finish().interrupts[0].node_id == "@undo:bb"
    with pytest.raises(ConflictError, match="is stopping"):
        run.migrate()
    bench.answer()
    assert bench.finish().status is Status.CANCELLED
    assert diary.lines == ["a", "b", "-a1"]


def test_the_undos_are_among_the_nodes_that_are_shown(store):
    """`runs show` and the API name each, with its state and error."""
    bench = Bench(saga(Diary("b")).build(), store).start()
    bench.finish()
    view = read_run(bench.store, bench.run_id)

    assert [(node.id, str(node.status)) for node in view.nodes if node.id[0] == "@"] == [
        ("@undo:b", "failed"),
        ("@undo:a", "completed"),
    ]
    assert view.reason == 'node "z" failed; node "@undo:b" failed'


@pytest.mark.full
@pytest.mark.parametrize(
    "point", ["start", "after_effect", "after_record", "before_commit", "after_commit"]
)
@pytest.mark.parametrize("node", ["b", "z", "@undo:b", "@undo:a"])
def test_a_worker_dies_at_each_point_of_a_saga(run_graph, crash_at, node, point):
    """Each effect has one key, however often it is begun, and the order stays as it is."""
    effects = []

    def effect(ctx):
        ctx.once("effect", lambda: effects.append(ctx.idempotency_key.partition(".")[2]))

    def last(ctx):
        effect(ctx)
        raise ValueError("boom")

    builder = wired(
        {"a": effect, "b": effect, "z": last},
        "a b",
        "b z",
        a={"undo": effect},
        b={"undo": effect},
    )
    crash_at(node, point)
    run = run_graph(builder.build())

    assert list(dict.fromkeys(effects)) == ["a.1", "b.1", "z.1", "@undo:b.1", "@undo:a.1"]
    assert len(effects) == 5 + (point == "after_effect")
    assert (run.status, run.result.reason) == (Status.FAILED, 'node "z" failed')


def test_an_undo_that_kills_every_worker_is_given_up(run_graph, crash_at):
    """It fails with a dead letter, and the others run."""
    diary = Diary()
    crash_at("@undo:b", CrashPoint.START, times=5)
    run = run_graph(saga(diary).build())

    assert diary.lines == ["a", "b", "-a1"]
    assert (run.status, len(run.store.dead)) == (Status.FAILED, 1)


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda graph: graph.add_undo("c", ident), "Undone node 'c' not found"),
        (lambda graph: graph.add_undo("a", ident), "'a' has an undo already"),
        (lambda graph: graph.add_undo("b", "text"), "can't be a node"),
        (
            lambda graph: graph.add_undo("b", wired({"x": ident}).build()),
            "can't be a Graph or have an undo",
        ),
        (
            lambda graph: graph.add_undo("b", ident, undo=ident),
            "can't be a Graph or have an undo",
        ),
        (lambda graph: graph.add_undo("b", ident, retry=3), "retry must be a RetryPolicy"),
        (lambda graph: graph.add_node(ident, "@undo:x"), "can't be a node id"),
    ],
)
def test_an_undo_that_cannot_be_is_refused_where_it_is_declared(add, message):
    """The error names the node."""
    graph = wired({"a": ident, "b": ident}, a={"undo": ident})
    with pytest.raises(DefinitionError, match=message):
        add(graph)
