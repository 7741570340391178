from __future__ import annotations

from dataclasses import replace

import pytest

from runner import GraphBuilder, RetryPolicy, Status
from runner.errors import CorruptDocument, NodeFailed
from runner.execution.engine import Engine
from runner.hooks import AfterNodeCallEvent, BeforeNodeCallEvent
from runner.operations.answers import apply_decisions
from runner.records.checkpoints import Saved
from runner.records.failures import record
from runner.records.interrupts import Decision
from runner.records.outcomes import Failed, Interrupted, Succeeded
from runner.store.interface import Claim
from runner.store.memory.store import MemoryStore
from tests.graphs import Bench, answer_all, answers, ident, wired


class Hooks:
    """Callbacks by event type; what each saw is kept."""

    def __init__(self, **callbacks) -> None:
        self.callbacks = callbacks
        self.seen: list[tuple[str, str, bool]] = []

    def register_hooks(self, registry, **kwargs):
        """Register the callbacks."""
        for name, event_type in (
            ("before", BeforeNodeCallEvent),
            ("after", AfterNodeCallEvent),
        ):
            for callback in self.callbacks.get(name, []):
                registry.add_callback(event_type, self._noting(name, callback))

    def _noting(self, name, callback):
        def call(event):
            self.seen.append((name, event.node_id, event.is_replay))
            return callback(event)

        return call


def hooked(nodes, *edges, before=(), after=(), **options):
    """Build a graph with these callbacks; return it and the hooks."""
    hooks = Hooks(before=list(before), after=list(after))
    return wired(nodes, *edges, **options).set_hook_providers([hooks]).build(), hooks


class Counting:
    """A node that counts its executions."""

    def __init__(self, *endings) -> None:
        self.endings = list(endings)
        self.starts = 0

    def __call__(self, ctx):
        """Return, or raise, the next ending."""
        self.starts += 1
        ending = self.endings[min(self.starts, len(self.endings)) - 1]
        if isinstance(ending, Exception):
            raise ending
        return ending


# -- before a node ---------------------------------------------------------------------------------


def test_hooks_see_every_node():
    """Before and after hooks run around each node, with its id and the invocation state."""
    states = []
    graph, hooks = hooked(
        {"a": ident, "b": ident},
        "a b",
        before=[lambda event: states.append(event.invocation_state)],
        after=[lambda event: states.append(event.result)],
    )

    graph("task", invocation_state={"tenant": 1})

    assert hooks.seen == [
        ("before", "a", False),
        ("after", "a", False),
        ("before", "b", False),
        ("after", "b", False),
    ]
    assert states == [{"tenant": 1}, "a", {"tenant": 1}, "b"]


def test_a_question_before_a_node_keeps_it_from_running():
    """A node whose before hook asks doesn't run until the answer, and the hook sees that it is replayed."""
    node, given = Counting("done"), []
    graph, hooks = hooked(
        {"a": node}, before=[lambda event: given.append(event.interrupt("run it?", "why"))]
    )

    first = graph("task")

    assert [
        (interrupt.name, interrupt.reason, interrupt.scope) for interrupt in first.interrupts
    ] == [("run it?", "why", "before_node_call")]
    assert (node.starts, given) == (0, [])

    last = graph(answer_all(first, False))

    assert (last.results["a"].output, node.starts, given) == ("done", 1, [False])
    assert hooks.seen == [("before", "a", False), ("before", "a", True)]


def test_all_hooks_ask_in_one_pass():
    """Every callback runs although an earlier one asked, and all questions are open together."""
    graph, _ = hooked(
        {"a": ident},
        before=[
            lambda event: event.interrupt("first"),
            lambda event: event.interrupt("second"),
        ],
    )

    first = graph("task")
    second = graph(answers((first.interrupts[0].id, 1)))

    assert [interrupt.name for interrupt in first.interrupts] == ["first", "second"]
    assert [question.name for question in second.interrupts] == ["second"]
    assert graph(answer_all(second)).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("cancel", "text"), [(True, "node cancelled by user"), ("not today", "not today")]
)
def test_a_hook_can_refuse_a_node(cancel, text):
    """`cancel_node` fails the node with that text, and its code does not run."""
    node = Counting("done")

    def refuse(event):
        event.cancel_node = cancel

    graph, _ = hooked({"a": node}, before=[refuse])
    result = graph("task").results["a"]

    assert (result.status, str(result.result), node.starts) == (Status.FAILED, text, 0)
    assert isinstance(result.result, NodeFailed)


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_error_in_a_hook_fails_the_node(where):
    """A callback that raises fails the node with its error; nothing of it is swallowed."""

    def broken(event):
        raise LookupError("no such policy")

    graph, _ = hooked({"a": ident}, **{where: [broken]})
    result = graph("task").results["a"]

    assert result.status is Status.FAILED
    assert repr(result.result) == "LookupError('no such policy')"


class Moody:
    """A provider that registers when the graph is built, and fails when a node runs."""

    def __init__(self, good: int) -> None:
        self.good = good

    def register_hooks(self, registry, **kwargs):
        """Register a few times."""
        self.good -= 1
        if self.good < 0:
            raise OSError("no policy file")


def test_a_provider_that_cannot_register():
    """An error while callbacks are registered ends the build, or fails the node, and no worker."""
    builder = wired({"a": ident})

    with pytest.raises(OSError, match="no policy file"):
        builder.set_hook_providers([Moody(0)]).build()

    assert "no policy file" in str(
        builder.set_hook_providers([Moody(1)]).build()("task").results["a"].error
    )


def test_async_hooks():
    """Callbacks may be async."""

    async def approve(event):
        return event.interrupt("ok?")

    graph, _ = hooked({"a": ident}, before=[approve])

    assert graph(answer_all(graph("task"))).status is Status.COMPLETED


# -- after a node ----------------------------------------------------------------------------------


def test_a_question_after_a_node_holds_its_result():
    """While an after hook asks, the result is kept, successors wait, and the node never runs again."""
    node, given = Counting({"n": 1}), []

    def check(event):
        if event.node_id == "a":
            given.append((event.result, event.interrupt("publish?")))

    graph, hooks = hooked({"a": node, "b": lambda ctx: ctx.inputs}, "a b", after=[check])
    first = graph("task")

    assert first.execution_order == []
    assert (first.results["a"].status, first.results["a"].output) == (Status.WAITING, None)

    last = graph(answer_all(first, "go"))

    assert last.results["b"].output == {"a": {"n": 1}}
    assert (node.starts, given) == (1, [({"n": 1}, "go")])
    assert hooks.seen == [("after", "a", False), ("after", "a", True), ("after", "b", False)]


def test_a_question_after_a_failure():
    """An after hook sees the exception, and the failure is final only after its question is answered."""
    node, seen = Counting(KeyError("gone")), []

    def check(event):
        seen.append(repr(event.result))
        event.interrupt("noted?")

    graph, _ = hooked({"a": node}, after=[check])
    last = graph(answer_all(graph("task")))

    assert (last.status, repr(last.results["a"].result)) == (Status.FAILED, "KeyError('gone')")
    assert (node.starts, seen) == (1, ["KeyError('gone')"] * 2)


def test_a_failure_that_was_asked_about_is_retried():
    """Once the hook's question about a failed attempt is answered, the retry runs the node again."""
    node = Counting(KeyError("gone"), "done")
    seen = []

    def check(event):
        seen.append((event.attempt, repr(event.result)))
        if isinstance(event.result, KeyError):
            event.interrupt("try again?")

    graph, _ = hooked(
        {"a": node}, after=[check], a={"retry": RetryPolicy(3, backoff=0, jitter=0)}
    )
    bench = Bench(graph).start()
    assert bench.finish().status is Status.INTERRUPTED
    bench.answer()
    bench.finish()
    bench.later(0)
    last = bench.finish()

    assert (last.status, last.results["a"].output, node.starts) == (Status.COMPLETED, "done", 2)
    assert seen == [(1, "KeyError('gone')"), (1, "KeyError('gone')"), (2, "'done'")]


def test_what_a_node_saved_survives_a_question_after_it():
    """The record of `once` is kept while an after hook asks about a failed attempt, and in its retry."""
    counts = []

    def pay(ctx):
        ctx.once("pay", lambda: counts.append(1))
        if ctx.attempt == 1:
            raise ValueError("again")
        return "paid"

    def check(event):
        if event.attempt == 1:
            event.interrupt("try again?")

    graph, _ = hooked(
        {"a": pay}, after=[check], a={"retry": RetryPolicy(3, backoff=0, jitter=0)}
    )
    bench = Bench(graph).start()
    bench.finish()
    bench.answer()
    bench.finish()
    bench.later(0)

    assert bench.finish().results["a"].output == "paid"
    assert counts == [1]


def test_a_waiting_node_has_no_after():
    """A node that waits for a person hasn't ended: its after hooks run when it has."""
    graph, hooks = hooked({"a": lambda ctx: ctx.interrupt("ok?")}, after=[lambda event: None])
    first = graph("task")

    assert hooks.seen == []
    graph(answer_all(first))
    assert hooks.seen == [("after", "a", False)]


class Talker:
    """An adapter that checkpoints its messages as agents do."""

    kind = "talker"

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.starts: list[tuple] = []

    def execute(self, visit):
        """Add two messages, the first of them by a checkpoint."""
        self.starts.append((visit.document, list(visit.messages)))
        known = len(visit.messages)
        visit.save(Saved({"v": 1, "turn": known + 1}, known, [f"{visit.address.visit}.1"]))
        saved = Saved({"v": 1, "turn": known + 2}, known + 1, [f"{visit.address.visit}.2"])
        if self.fails:
            return Failed(record(ValueError("no")), saved)
        return Succeeded("said", "said", {"tokens": 3}, saved)


def test_a_later_visit_goes_on_with_the_memory():
    """Document and messages of a visit are there in the next one, unless the graph forgets them."""
    for reset, expected in (
        (False, [(None, []), ({"v": 1, "turn": 2}, ["1.1", "1.2"])]),
        (True, [(None, []), (None, [])]),
    ):
        talker = Talker()
        builder = wired({"a": talker}, ("a a", lambda state: state.visit < 2)).reset_on_revisit(
            reset
        )
        assert builder.build()("task").status is Status.COMPLETED
        assert talker.starts == expected


def test_a_failed_node_keeps_its_conversation_for_the_retry():
    """What a failing execution saved is what the next attempt starts with."""
    talker = Talker(fails=True)
    bench = Bench(
        wired({"a": talker}, a={"retry": RetryPolicy(2, backoff=0, jitter=0)}).build()
    ).start()
    bench.finish()
    bench.later(0)
    bench.finish()

    assert talker.starts == [(None, []), ({"v": 1, "turn": 2}, ["1.1", "1.2"])]


# -- what can go wrong with executors --------------------------------------------------------------


class Adapter:
    """An adapter that does what it is told."""

    kind = "adapter"

    def __init__(self, execute) -> None:
        self.execute = execute


def test_an_adapter_that_raises_has_failed():
    """An executor that breaks its promise and raises fails its node like the node's own code."""

    def boom(visit):
        raise OSError(5, "broken")

    assert (
        repr(wired({"a": Adapter(boom)}).build()("task").results["a"].result)
        == "OSError(5, 'broken')"
    )


def test_an_adapters_document_may_have_any_fields():
    """An executor's document is its own: no name in it means anything to the engine."""
    documents = []

    def execute(visit):
        documents.append(visit.document)
        if visit.answers:
            return Succeeded("done", "done")
        question = visit.question("ok?", scope="adapter")
        return Interrupted(
            [question], Saved({"v": 1, "tentative": {"kind": "succeeded"}, "visit": "mine"})
        )

    graph = wired({"a": Adapter(execute)}).build()
    last = graph(answer_all(graph("task")))

    assert last.results["a"].output == "done"
    assert documents == [None, {"v": 1, "tentative": {"kind": "succeeded"}, "visit": "mine"}]


def test_a_document_that_cannot_be_read_is_kept_and_held(caplog):
    """A stored document of an unknown form is left alone: its run, a dead letter and the log say why."""

    def damaged(visit):
        raise CorruptDocument(
            "a stored state has version 9, this library reads 1; it was left untouched."
        )

    bench = Bench(wired({"a": Adapter(damaged)}).build()).start()

    assert bench.finish().status is Status.NEEDS_MIGRATION
    assert "CorruptDocument: a stored state has version 9" in str(
        bench.result().results["a"].error
    )
    assert "CorruptDocument: a stored state has version 9" in bench.store.dead[0]["reason"]
    assert "node.held" in caplog.text
    assert "a stored state has version 9" in caplog.text


def test_a_node_document_of_another_version_is_held():
    """The engine's own wrapping is read as strictly: another version is held, never guessed."""

    class Newer(MemoryStore):
        def do(self, request):
            """Give out a document that a newer version wrote."""
            reply = super().do(request)
            if not isinstance(reply, Claim):
                return reply
            document = {"v": 2, "visit": 1, "executor": None, "tentative": None}
            return replace(reply, document=document)

    bench = Bench(wired({"a": ident}).build(), Newer)
    bench.start()

    assert bench.finish().status is Status.NEEDS_MIGRATION


def test_a_graph_that_cannot_be_built_is_put_back(caplog):
    """A factory that raises on this worker leaves the node to other workers, with the error in the log."""
    graph = wired({"a": ident}).build()
    bench = Bench(graph).start()

    def broken():
        raise OSError("no settings here")

    elsewhere = Engine(bench.store, bench, type(bench.engine.registry)())
    elsewhere.registry.add("bench", broken)
    bell = bench.bells.pop()

    assert elsewhere.deliver(bell.run_id, bell.node, bell.visit, bell.attempt).word == "left"
    assert "graph.broken: graph 'bench' could not be built" in caplog.text
    assert bench.finish().status is Status.COMPLETED


def test_an_unknown_graph_is_put_back():
    """A worker without the graph's code leaves the node to one that has it."""
    bench = Bench(wired({"a": ident}).build()).start()
    elsewhere = Engine(bench.store, bench, type(bench.engine.registry)())
    bell = bench.bells.pop()

    assert elsewhere.deliver(bell.run_id, bell.node, bell.visit, bell.attempt).word == "left"
    result = bench.finish().results["a"]
    assert (result.status, result.attempts) == (Status.COMPLETED, 1)


def test_a_question_ahead_of_a_node_leaves_its_other_questions_open():
    """With resume="each" a hook may ask at a later start, too: what the node waits for stays open."""

    class AsksAtTheSecondStart:
        starts = 0

        def register_hooks(self, registry, **kwargs):
            registry.add_callback(BeforeNodeCallEvent, self.ask)

        def ask(self, event):
            self.starts += 1
            if self.starts > 1:
                event.interrupt("go on?")

    def ask_two(ctx):
        said = []
        for name in ("x", "y"):
            try:
                said.append(ctx.interrupt(name))
            except BaseException:  # noqa: BLE001, S112 - both are asked in one execution
                continue
        return said

    builder = GraphBuilder().set_hook_providers([AsksAtTheSecondStart()])
    builder.add_node(ask_two, "a", resume="each")
    bench = Bench(builder.build()).start()
    x, y = bench.finish().interrupts
    apply_decisions(bench.engine, [Decision(x.id, 1)])

    still = {interrupt.name: interrupt.id for interrupt in bench.finish().interrupts}
    assert set(still) == {"go on?", "y"}
    assert still["y"] == y.id
    apply_decisions(bench.engine, [Decision(still["go on?"], "yes")])
    bench.finish()
    apply_decisions(bench.engine, [Decision(y.id, 2)])
    assert bench.finish().results["a"].output == [1, 2]
