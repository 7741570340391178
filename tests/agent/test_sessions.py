"""An agent with a session goes on with its conversation in the next run."""

from __future__ import annotations

import pytest

from runner import Agent, GraphBuilder, Status, ToolContext, tool
from runner.hooks import AfterInvocationEvent, AfterNodeCallEvent, BeforeInvocationEvent
from runner.records.checkpoints import session_key, session_of
from runner.records.failures import restore
from runner.records.outcomes import Succeeded
from runner.store.memory.store import MemoryStore
from runner.testing import ScriptedModel
from tests.agent.visits import Hooks, Node, done, failed, use


def user_texts(messages):
    """Reply with the texts of the user that the model got."""
    blocks = [
        block
        for message in messages
        if message["role"] == "user"
        for block in message["content"]
    ]
    return " ".join(block["text"] for block in blocks if "text" in block)


def chatty(**options):
    return Agent("a", ScriptedModel([user_texts] * 9), session_id="ann", **options)


def next_run(node, task):
    """Begin another run with the sessions that this one left."""
    following = Node(node.make, task)
    following.sessions = node.sessions
    return following


def texts(session):
    return [message["content"][0]["text"] for message in session.messages]


def test_the_next_run_goes_on_with_the_conversation():
    """The messages of one run are what the model sees first in the next."""
    first = Node(chatty, "one")
    done(first.run())
    second = next_run(first, "two")

    assert done(second.run()).output == "one two"
    assert texts(first.sessions.read("tests/ann")) == ["one", "one", "two", "one two"]


def test_without_a_session_nothing_is_remembered():
    """Control: an agent without a session starts every run from what it was made with."""
    first = Node(lambda: Agent("a", ScriptedModel([user_texts] * 9)), "one")
    done(first.run())

    assert done(next_run(first, "two").run()).output == "two"


def test_messages_that_the_agent_was_made_with_stay_in_front():
    """They come first in each run, and are no part of the session."""
    rules = [{"role": "user", "content": [{"text": "rules"}]}]
    first = Node(lambda: chatty(messages=rules), "one")
    done(first.run())

    assert done(next_run(first, "two").run()).output == "rules one two"
    assert texts(first.sessions.read("tests/ann"))[:2] == ["one", "rules one"]


def test_the_state_goes_on_too():
    """Values that a run set, changed or deleted are so in the next one."""

    @tool(context=True)
    def note(tool_context: ToolContext) -> str:
        """Change the state."""
        state = tool_context.agent.state
        seen = dict(state.get())
        state.set("count", state.get("count") + 1)
        state.set("new", True) if "new" not in seen else state.delete("new")
        return str(seen)

    def make():
        model = ScriptedModel([use("note"), "ok"] * 2)
        return Agent("a", model, [note], state={"count": 1, "kept": "x"}, session_id="ann")

    first = Node(make, "one")
    done(first.run())
    assert first.sessions.read("tests/ann").state == {"count": 2, "new": True}
    second = next_run(first, "two")
    done(second.run())

    assert second.texts[-1] == str({"count": 2, "kept": "x", "new": True})
    assert first.sessions.read("tests/ann").state == {"count": 3}


def test_each_visit_of_a_run_goes_on_too():
    """A loop that enters the node again continues the same session, each exchange in it once."""
    node = Node(chatty, "one")
    done(node.run())
    node.next_visit("two")

    assert done(node.run()).output == "one two"
    assert texts(node.sessions.read("tests/ann")) == ["one", "one", "two", "one two"]


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a person."""
    return tool_context.interrupt("q")


def asking():
    def reply(messages):
        text = user_texts(messages)
        return (
            text
            if "toolResult" in messages[-1]["content"][0] or "ask" not in text
            else use("ask")
        )

    return Agent("a", ScriptedModel([reply] * 9), [ask], session_id="ann")


def test_runs_that_overlap_both_add_what_they_said():
    """A run that waits for a person and one that ends meanwhile lose nothing of each other."""
    slow = Node(asking, "ask")
    slow.run()
    quick = next_run(slow, "quick")
    done(quick.run())
    assert done(slow.resume(q="yes")).output == "ask"

    blocks = [message["content"][0] for message in slow.sessions.read("tests/ann").messages]
    assert [block.get("text") or next(iter(block)) for block in blocks] == [
        "quick", "quick", "ask", "toolUse", "toolResult", "ask"
    ]  # fmt: skip


def test_a_failed_node_leaves_the_session_as_it_was():
    """Only an exchange that was completed is remembered."""
    node = Node(lambda: Agent("a", ScriptedModel([ValueError("no")]), session_id="ann"), "one")
    failed(node.run())

    assert node.sessions.read("tests/ann").messages == []


def test_a_completed_node_is_remembered_though_its_run_failed():
    """The exchange belongs to the node that completed, whatever its run comes to."""
    builder = GraphBuilder()
    builder.add_node(chatty(), "a")
    builder.add_node(lambda ctx: ctx.inputs["missing"], "b")
    builder.add_edge("a", "b")
    graph = builder.set_store(MemoryStore()).build()
    assert graph("one").status == Status.FAILED
    assert graph("two").results["a"].output == "one two"


def test_a_call_that_was_left_open_is_closed_in_the_session():
    """Every call in a session has its result, also where a callback ended the invocation before it ran."""

    def stop(event):
        event.cancel = not event.messages

    hooks = [Hooks((BeforeInvocationEvent, stop))]
    model = ScriptedModel([use("ask", "t1"), user_texts])
    node = Node(lambda: Agent("a", model, [ask], hooks=hooks, session_id="ann"), "one")
    node.run()
    done(node.resume(q="yes"))

    blocks = [
        block
        for message in node.sessions.read("tests/ann").messages
        for block in message["content"]
    ]
    calls = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
    assert (
        calls
        == ["t1"]
        == [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
    )


def test_a_function_of_the_invocation_state_names_the_session():
    """One agent serves many conversations: each run names its own, or has none."""

    def make():
        return Agent(
            "a", ScriptedModel([user_texts] * 9), session_id=lambda state: state.get("customer")
        )

    first = Node(make, "one")
    first.invocation_state = {"customer": "bob"}
    done(first.run())
    other = next_run(first, "two")
    assert done(other.run()).output == "two"
    again = next_run(first, "three")
    again.invocation_state = {"customer": "bob"}

    assert done(again.run()).output == "one three"


@pytest.mark.parametrize("name", [7, ""])
def test_a_session_without_a_name_fails_the_node(name):
    """What names a session must be a text; anything else is the node's failure, not the worker's."""
    node = Node(lambda: Agent("a", ScriptedModel(["x"]), session_id=lambda _: name))

    error = restore(failed(node.run()).error)
    assert "session's id is a text" in str(error)


# -- in process ---------------------------------------------------------------------------------------


def graph_of(agent, *hooks, store=None):
    builder = GraphBuilder()
    builder.add_node(agent, "a")
    builder.set_hook_providers(list(hooks))
    return (builder.set_store(store) if store else builder).build()


def test_a_graph_in_process_remembers_its_sessions():
    """Runs of one graph share its sessions, and graphs on one store do."""
    graph = graph_of(chatty())
    graph("one")
    assert graph("two").results["a"].output == "one two"
    assert graph_of(chatty())("three").results["a"].output == "three"

    store = MemoryStore()
    graph_of(chatty(), store=store)("one")
    assert graph_of(chatty(), store=store)("two").results["a"].output == "one two"


@pytest.mark.full
@pytest.mark.parametrize(("shared", "output"), [(False, "two"), (True, "one two")])
def test_a_session_is_of_its_outermost_graph(shared, output):
    """Who may run one graph reads nothing of what another had with a customer, unless agents say so."""
    store = MemoryStore()

    def graph(name, *, nested=False):
        builder = GraphBuilder()
        builder.add_node(chatty(shared_session=shared), "a")
        if nested:
            inner, builder = builder.build(), GraphBuilder()
            builder.add_node(inner, "a")
        return builder.set_graph_id(name).set_store(store).build()

    graph("secret")("one")
    assert graph("open")("two").results["a"].output == output
    nested = graph("secret", nested=True)("three").results["a"].output
    assert str(nested).split()[0] == "one"


def test_no_shared_id_is_that_of_a_graph():
    """Also not one that is written like the name under which the graph's is stored."""
    assert session_of(session_key("", "secret/ann")) == ("", "secret/ann")
    assert session_key("", "secret/ann") != session_key("secret", "ann")


def test_in_process_an_agent_without_a_session_starts_fresh():
    """Its `messages` show the last run, and the next run does not see them."""
    agent = Agent("a", ScriptedModel([user_texts] * 9))
    graph = graph_of(agent)
    graph("one")
    assert [message["content"][0]["text"] for message in agent.messages] == ["one", "one"]

    assert graph("two").results["a"].output == "two"


def test_a_session_waits_for_the_hooks_after_the_node():
    """While a hook asks about the node's result nothing is remembered; after the answer it is, once."""
    store = MemoryStore()
    graph = graph_of(
        chatty(), Hooks((AfterNodeCallEvent, lambda e: e.interrupt("fine"))), store=store
    )

    waiting = graph("one")
    assert (waiting.status, store.session("default_graph/ann").messages) == (
        Status.INTERRUPTED,
        [],
    )
    [question] = waiting.interrupts
    ended = graph([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])

    assert ended.status is Status.COMPLETED
    assert texts(store.session("default_graph/ann")) == ["one", "one"]
    assert store.forget_session("default_graph/ann")
    assert not store.forget_session("default_graph/ann")


def test_what_the_last_callback_sets_is_remembered():
    """State set after the invocation belongs to it."""
    hooks = Hooks((AfterInvocationEvent, lambda event: event.agent.state.set("late", [1])))
    node = Node(lambda: chatty(hooks=[hooks]), "one")
    outcome = done(node.run())

    assert isinstance(outcome, Succeeded)
    assert node.sessions.read("tests/ann").state == {"late": [1]}


def test_callbacks_may_collect_agents_in_sets_and_dictionaries():
    """The agent of each invocation is one of its own, also beside another of the same name and state."""
    seen = set()
    hooks = Hooks((AfterInvocationEvent, lambda event: seen.add(event.agent)))
    for _ in range(2):
        assert isinstance(done(Node(lambda: chatty(hooks=[hooks]), "one").run()), Succeeded)

    assert len(seen) == 2
