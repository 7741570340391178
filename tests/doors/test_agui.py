"""The AG-UI agent, by what its endpoint writes, and driven by the client of AG-UI."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from runner import Agent, tool
from runner.agent import run_events
from runner.approvals import Principal, Rule, freezing
from runner.server.access import GRANTS, Person
from runner.server.streams import STREAMS_EACH
from runner.testing import ScriptedModel
from tests.doors.conftest import ACTION, GRAPHS, LiveSite, asking
from tests.graphs import wired
from tests.integrations.extras import need
from tests.server.conftest import browser, tab
from tests.waiting import wait_until

__all__ = ["browser", "tab"]

need("ag_ui", "agui")

from ag_ui import core  # noqa: E402 - only where the extra is installed
from pydantic import TypeAdapter  # noqa: E402 - beside it

pytestmark = pytest.mark.full

EVENT = TypeAdapter(core.Event)

BODY = {
    "threadId": "t",
    "runId": "r",
    "messages": [{"id": "1", "role": "user", "content": "x"}],
}

CLIENT = Path(__file__).parents[2] / "build/agui-client/node_modules"

needs_client = pytest.mark.skipif(
    not (CLIENT.is_dir() and shutil.which("node")),
    reason="needs Node.js and the client of AG-UI: make agui-client",
)


@tool(approval=Rule(eligible=["ana"]))
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"


@tool
def look(order: int) -> str:
    """Look an order up."""
    return f"order {order} is late"


def agent():
    calls = [{"toolUse": {"name": name, "input": {"order": 7}}} for name in ("look", "refund")]
    return Agent(
        name="clerk", model=ScriptedModel([*calls, "All is done."]), tools=[look, refund]
    )


def host():
    def count(messages):
        return str(sum(item["role"] == "user" for item in messages))

    return Agent(
        "host", ScriptedModel([count] * 3), session_id=lambda state: state.get("agui_thread")
    )


def talking():
    return wired({"clerk": agent()}).build()


AGENTS = {
    "talking": talking,
    "nested_agent": lambda: wired(
        {"begin": lambda ctx: 1, "desk": talking()}, "begin desk"
    ).build(),
    "say": lambda: wired({"say": lambda ctx: ctx.task}).build(),
    "remembers": lambda: wired({"host": host()}).build(),
    "mixed": lambda: wired(
        {
            "begin": lambda ctx: 1,
            "mine": lambda ctx: ctx.interrupt("mine", assignees=["ana"]),
            "other": lambda ctx: ctx.interrupt("other", assignees=["ben"]),
        },
        "begin mine",
        "begin other",
    ).build(),
}


def again(ctx):
    return ctx.visit


def rounds():
    graph = wired(
        {"again": again}, ("again again", lambda state: state.results["again"].output < 3)
    )
    return graph.set_entry_point("again").build()


OF_PARTS = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"order": {"type": "integer"}, "amount": {"$ref": "#/properties/order"}},
}
BY_ANA = {"rule": Rule(eligible=["ana"])}
AGENTS["zod_call"] = asking(OF_PARTS, action=ACTION, **BY_ANA)
AGENTS["zod_answer"] = asking(OF_PARTS, **BY_ANA)
AGENTS["undoable"] = asking(action=ACTION, rule=Rule(eligible=["ana"], undo=600))
AGENTS["rounds"] = rounds
AGENTS["soon"] = asking(expires_in=3600)


@pytest.fixture
def site(redis_url):
    """An application with the AG-UI agents."""
    site = LiveSite(
        redis_url,
        {**GRAPHS, **AGENTS},
        doors=("agui", "tests.doors.agui_client.serve:router"),
        server_url="https://runner.example",
    )
    site.http = TestClient(site.app, "https://runner.example", raise_server_exceptions=False)
    yield site
    site.pool.shutdown(cancel_futures=True)


class Thread:
    """A thread of a client that keeps what it is sent, as clients do."""

    numbers = itertools.count()

    def __init__(self, site, graph, name="thread"):
        self.site, self.graph, self.name = site, graph, name
        self.messages, self.state, self.interrupts = [], {}, []

    def say(self, text, **fields):
        """Send a message of the user."""
        number = next(self.numbers)
        self.messages.append({"id": f"user{number}", "role": "user", "content": text})
        return self.send(**fields)

    def answer(self, *payloads, **fields):
        """Resume all interrupts, each with a payload."""
        entries = [
            {"interruptId": item.id, "status": "resolved", "payload": payload}
            for item, payload in zip(self.interrupts, payloads, strict=True)
        ]
        return self.send(resume=entries, **fields)

    def cancel(self):
        """Resume all interrupts without an answer."""
        return self.send(
            resume=[{"interruptId": item.id, "status": "cancelled"} for item in self.interrupts]
        )

    def send(self, **fields):
        """Send what the client has, and return the events; it keeps what they say."""
        body = {
            "threadId": self.name,
            "runId": f"run{next(self.numbers)}",
            "messages": self.messages,
            "state": self.state,
            **fields,
        }
        response = self.site.http.post(f"/agui/{self.graph}", json=body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
        events = [EVENT.validate_python(json.loads(line[6:])) for line in lines]
        check(events, body)
        self._keep(events)
        return events

    def _keep(self, events):
        texts, calls = {}, {}
        for event in events:
            match event:
                case core.TextMessageContentEvent(message_id=name, delta=text):
                    texts[name] = texts.get(name, "") + text
                case core.ToolCallStartEvent(tool_call_id=name):
                    calls[name] = event
                case core.ToolCallResultEvent(message_id=name, tool_call_id=call, content=text):
                    result = {"id": name, "role": "tool", "toolCallId": call, "content": text}
                    self.messages.append(result)
                case core.StateSnapshotEvent(snapshot=state):
                    self.state = state
        for name, text in texts.items():
            self.messages.append({"id": name, "role": "assistant", "content": text})
        for name, call in calls.items():
            function = {"name": call.tool_call_name, "arguments": "{}"}
            uses = [{"id": name, "type": "function", "function": function}]
            self.messages.append({"id": f"{name}/use", "role": "assistant", "toolCalls": uses})
        outcome = getattr(events[-1], "outcome", None)
        if events[-1].type != "RUN_ERROR":
            self.interrupts = getattr(outcome, "interrupts", [])


def check(events, body):
    """Check the rules that hold for each stream: what opens it, what closes it, and pairs."""
    first, *_, last = events
    assert (first.type, first.protocol_version) == ("RUN_STARTED", "1.0")
    assert (first.thread_id, first.run_id) == (body["threadId"], body["runId"])
    ends = [event for event in events if event.type in {"RUN_FINISHED", "RUN_ERROR"}]
    assert ends == [last]
    begins = {
        "STEP_STARTED": ("STEP_FINISHED", "step_name"),
        "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "message_id"),
        "TOOL_CALL_START": ("TOOL_CALL_END", "tool_call_id"),
        "SUBAGENT_STARTED": ("SUBAGENT_FINISHED", "subagent_run_id"),
    }
    opened = []
    for event in events:
        for begin, (end, name) in begins.items():
            if event.type == begin:
                assert (end, getattr(event, name)) not in opened
                opened.append((end, getattr(event, name)))
            elif event.type == end:
                opened.remove((end, getattr(event, name)))
    assert not opened
    check_state(events)


def check_state(events):
    """Check that the changes of the state lead from what was sent first to what was sent last."""
    snapshots = [event.snapshot["runner"]["nodes"] for event in of(events, "STATE_SNAPSHOT")]
    if len(snapshots) > 1:
        for change in [change for event in of(events, "STATE_DELTA") for change in event.delta]:
            *path, name = change.path[1:].split("/")
            assert (change.op, path) == ("add", ["runner", "nodes"])
            snapshots[0][name] = change.value
        assert snapshots[0] == snapshots[-1]


def kinds(events):
    """Name all events but those of the state: how many there are is a matter of speed."""
    return [name for event in events if "STATE" not in (name := str(event.type.value))]


def of(events, kind):
    return [event for event in events if event.type == kind]


def finished(events, outcome="success"):
    """Check how a stream ended, and return the last event."""
    assert events[-1].type == "RUN_FINISHED", events[-1]
    assert events[-1].outcome.type == outcome, events[-1]
    return events[-1]


def refused(events, code):
    """Check that a stream ended with an error of a code."""
    assert events[-1].type == "RUN_ERROR", events[-1]
    assert events[-1].code == code, events[-1]
    return events[-1].message


def waiting(site, graph, name="thread"):
    """Return a thread whose first message has led to interrupts."""
    thread = Thread(site, graph, name)
    finished(thread.say("x"), "interrupt")
    return thread


def runs_of(site):
    return len([*site.client.runs()])


def asked(site, interrupt):
    """Return the question of an interrupt."""
    return site.client.interrupt(interrupt.id.partition("#")[0])


def approve(**fields):
    return {"approved": True, **fields}


def test_a_run_is_steps_and_a_result(site):
    """A graph without questions: each node is a step, the output is the result and, as text, a message."""
    events = Thread(site, "say").say("hello")
    assert kinds(events) == [
        "RUN_STARTED",
        "STEP_STARTED",
        "STEP_FINISHED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert finished(events).result == "hello"


def test_each_round_of_a_loop_is_a_step(site):
    """Names of steps must differ, or a client would take the second for the first."""
    events = Thread(site, "rounds").say("x")
    names = [event.step_name for event in of(events, "STEP_STARTED")]
    assert names == ["again", "again#2", "again#3"]


def test_tokens_are_counted_once(site):
    """Those of an agent are in the request in which it has ended, and in no other."""
    thread = Thread(site, "talking")
    waiting = finished(thread.say("refund 7"), "interrupt")
    done = finished(thread.answer(approve()))
    repeated = finished(thread.send())
    assert (waiting.usage, done.usage[0].input_tokens, repeated.usage) == (None, 30, None)


def test_an_interrupt_says_when_it_expires(site):
    """The time is in ISO 8601; control: a question without an end has none."""
    for graph in ("soon", "text"):
        thread = waiting(site, graph)
        (interrupt,) = thread.interrupts
        question = asked(site, interrupt)
        if graph == "text":
            assert interrupt.expires_at is None
        else:
            shown = datetime.fromisoformat(interrupt.expires_at)
            assert round(shown.timestamp() * 1000) == question.asked_at + 3_600_000


def test_a_stream_takes_a_seat(site):
    """Who has as many streams as one may have starts nothing; control: with one less it runs."""
    hub, thread = site.app.state.services.hub, Thread(site, "say")
    leave = hub.take_seats(site.person, STREAMS_EACH)
    body = BODY
    assert site.http.post("/agui/say", json=body).status_code == 429
    assert runs_of(site) == 0
    leave()
    leave = hub.take_seats(site.person, STREAMS_EACH - 1)
    finished(thread.say("x"))
    leave()


def test_a_failed_run_is_an_error_and_a_cancelled_one_is_not(site):
    """A failure names the node; a run that was stopped ends as cancelled."""
    assert "fail: " in refused(Thread(site, "broken").say("x"), "run_failed")
    thread = waiting(site, "text")
    (run,) = site.client.runs(graph="text")
    site.client.run(run.run_id).cancel("no more")
    finished(thread.cancel(), "cancelled")


@pytest.mark.slow
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_speaks_and_its_call_waits(site, monkeypatch, is_streamed):
    """Calls and texts are sent once, streamed or not; the call that waits names itself in the interrupt."""
    if is_streamed:
        monkeypatch.setattr(run_events, "PIECE", 0)
    thread = Thread(site, "talking")
    events = thread.say("refund 7")
    finished(events, "interrupt")
    assert [event.tool_call_name for event in of(events, "TOOL_CALL_START")] == [
        "look",
        "refund",
    ]
    assert [event.content for event in of(events, "TOOL_CALL_RESULT")] == ["order 7 is late"]
    (question,) = thread.interrupts
    assert question.reason == "tool_call"
    assert question.tool_call_id == of(events, "TOOL_CALL_START")[1].tool_call_id
    # Before an interrupt the client has all that it needs to go on.
    ends = ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert [event.type for event in events[-3:]] == ends
    assert len(events[-2].messages) == 3 + 1  # the user's, two calls, a result

    events = thread.answer(approve())
    finished(events)
    assert not of(events, "TOOL_CALL_START")
    (result,) = of(events, "TOOL_CALL_RESULT")
    assert (result.tool_call_id, result.content) == (
        question.tool_call_id,
        "order 7 is refunded",
    )
    assert len(of(events, "TEXT_MESSAGE_START")) == 1
    pieces = [event.delta for event in of(events, "TEXT_MESSAGE_CONTENT")]
    assert ("".join(pieces), len(pieces)) == ("All is done.", 3 if is_streamed else 1)


def test_arguments_may_be_edited(site):
    """An approval with `editedArgs` replaces all arguments of the call."""
    thread = Thread(site, "talking")
    thread.say("refund 7")
    assert "editedArgs" in thread.interrupts[0].response_schema["properties"]
    refused(thread.answer(approve(editedArgs={"order": "eight"})), "rejected")
    events = thread.answer(approve(editedArgs={"order": 8}))
    assert of(events, "TOOL_CALL_RESULT")[0].content == "order 8 is refunded"


def test_a_call_without_a_schema_may_be_edited(site):
    """Where the question has no schema, `editedArgs` is an object with the names of the call."""
    thread = Thread(site, "rule")
    thread.say("x")
    form = thread.interrupts[0].response_schema["properties"]["editedArgs"]
    assert form["type"] == "object"
    refused(thread.answer(approve(editedArgs="half of it")), "rejected")
    edited = approve(editedArgs={"order": 7, "amount": 60})
    assert finished(thread.answer(edited)).result == {"said": "edit"}


def test_a_state_that_can_not_be_read_lists_no_interrupts(site):
    """A state in another form than it was sent is as none: all interrupts are due, and asked again."""
    thread = Thread(site, "text")
    thread.say("x")
    for names in (5, True, "x", {"x": 1}):
        thread.state["runner"]["interrupts"] = names
        finished(thread.cancel(), "interrupt")
        refused(
            thread.send(resume=[{"interruptId": "x", "status": "cancelled"}]),
            "interrupts_uncovered",
        )
    assert finished(thread.answer("yes")).result == {"said": "yes"}


def test_a_state_that_is_nested_too_deep_starts_nothing(site):
    """The state is sent back, so one that could not be is refused before the run starts."""
    state: list = []
    for _ in range(250):
        state = [state]
    body = {**BODY, "state": {"deep": state}}
    assert site.http.post("/agui/say", json=body).status_code == 400
    assert runs_of(site) == 0
    body["state"] = {"deep": [[[]]]}
    assert '"RUN_FINISHED"' in site.http.post("/agui/say", json=body).text


def test_a_rejection_is_an_answer(site):
    """`approved: false` rejects, with the reason."""
    thread = waiting(site, "rule")
    (question,) = thread.interrupts
    assert question.reason == "runner:refund"
    assert finished(thread.answer({"approved": False, "reason": "no"})).result == {
        "said": "reject"
    }
    (vote,) = site.votes(asked(site, question))
    assert (vote["body"]["comment"], vote["body"]["digest"]) == (
        "no",
        question.metadata["runner"]["digest"],
    )


def test_a_rejection_leaves_out_no_changed_arguments(site):
    """With other arguments than the call's it is refused; control: with the call's own it counts."""
    thread = Thread(site, "talking")
    thread.say("refund 7")
    (question,) = thread.interrupts
    refused(thread.answer({"approved": False, "editedArgs": {"order": 8}}), "rejected")
    assert site.votes(asked(site, question)) == []
    thread.answer({"approved": False, "editedArgs": {"order": 7}})
    assert [vote["decision"] for vote in site.votes(asked(site, question))] == ["reject"]


def test_a_graph_inside_is_a_subagent(site):
    """A nested graph's steps, calls and interrupt name the subagent, which is suspended meanwhile."""
    thread = Thread(site, "nested_agent")
    events = thread.say("refund 7")
    finished(events, "interrupt")
    (begin,), (end,) = of(events, "SUBAGENT_STARTED"), of(events, "SUBAGENT_FINISHED")
    assert begin.name == "desk"
    assert end.outcome.type == "suspended"
    assert end.outcome.interrupt_ids == [thread.interrupts[0].id]
    assert thread.interrupts[0].subagent_run_id == begin.subagent_run_id
    events = thread.answer(approve())
    finished(events)
    (begin_again,), (end,) = of(events, "SUBAGENT_STARTED"), of(events, "SUBAGENT_FINISHED")
    assert begin_again.subagent_run_id == begin.subagent_run_id
    assert end.outcome.type == "success"


BEN = Person(Principal("ben"), frozenset(GRANTS))


def answer_elsewhere(site, interrupt, response, responder="ben"):
    return site.client.respond(interrupt.id.partition("#")[0], response, responder=responder)


def test_all_interrupts_of_a_run_are_answered_at_once(site):
    """A resume that leaves one out answers none; one left open on purpose is asked again."""
    thread = waiting(site, "two")
    thread.interrupts.sort(key=lambda item: item.id)
    left, right = thread.interrupts
    entry = {"interruptId": left.id, "status": "resolved", "payload": "l"}
    assert right.id in refused(thread.send(resume=[entry]), "interrupts_uncovered")
    refused(thread.send(resume=[entry], state=None), "interrupts_uncovered")
    assert len([*site.client.interrupts()]) == 2
    open_one = {"interruptId": right.id, "status": "cancelled"}
    events = thread.send(resume=[entry, open_one])
    assert [item.id for item in finished(events, "interrupt").outcome.interrupts] == [right.id]
    assert finished(thread.answer("r")).result == {"left": "l", "right": "r"}


def test_who_may_answer_one_of_two_is_asked_that_one(site):
    """The interrupts are those of the caller; other questions are in the state, with their pages."""
    thread = waiting(site, "mixed")
    (mine,) = thread.interrupts
    assert ".mine." in mine.id
    (other,) = thread.state["runner"]["questions"]
    assert other["url"] == f"https://runner.example/q/{other['id']}"
    # None is theirs any more: no interrupt without a question, and no second run.
    finished(thread.answer("yes"))
    assert thread.state["runner"]["status"] == "interrupted"
    finished(thread.send())
    site.client.respond(other["id"], "no", responder="ben")
    assert finished(thread.send()).result == {"mine": "yes", "other": "no"}
    assert runs_of(site) == 1


def test_the_state_says_that_a_question_is_decided(site):
    """While the decision can be taken back, nobody is asked; control: before, it is an interrupt."""
    thread = waiting(site, "undoable")
    (name,) = [item.id.partition("#")[0] for item in thread.interrupts]
    digest = site.client.interrupt(name).digest
    site.client.vote(name, "approve", by="ana", digest=digest)
    finished(thread.send())
    (note,) = thread.state["runner"]["questions"]
    assert note["decided"].startswith("approved by ana, takes effect at 20")


def test_the_state_says_what_freezes_a_run(site):
    """An application can tell its user why nothing happens; control: before, there is no reason."""
    thread = waiting(site, "text")
    assert thread.state["runner"]["reason"] == ""
    freezing.freeze(site.client.engine, "graph:text", "an incident", "ben")
    finished(thread.cancel(), "interrupt")
    assert "an incident" in thread.state["runner"]["reason"]


def test_a_message_is_no_answer(site):
    """Input without a resume is refused while interrupts are open, and the state says which."""
    thread = waiting(site, "text")
    emitted = [item.id for item in thread.interrupts]
    for events in (thread.say("yes"), thread.send(messages=[], state=None)):
        refused(events, "interrupts_pending")
        assert of(events, "STATE_SNAPSHOT")[0].snapshot["runner"]["interrupts"] == emitted
    assert runs_of(site) == 1
    finished(thread.answer("yes"))


def test_a_forged_resume_answers_nothing(site):
    """Not others' questions, none without the digest that was shown, none of another thread, not many."""
    elsewhere = waiting(site, "text", "elsewhere")
    thread = waiting(site, "mixed")
    (mine,) = thread.interrupts
    other = site.client.interrupt(thread.state["runner"]["questions"][0]["id"])
    left_open = {"interruptId": mine.id, "status": "cancelled"}

    def forge(*names):
        entry = {"status": "resolved", "payload": "forged"}
        return thread.send(
            resume=[left_open, *({**entry, "interruptId": name} for name in names)]
        )

    assert "assigned to other people" in refused(
        forge(f"{other.id}#{other.digest}"), "forbidden"
    )
    assert "digest" in refused(forge(mine.id.partition("#")[0]), "rejected")
    assert "over 20" in refused(forge(*map(str, range(20))), "rejected")
    finished(forge(elsewhere.interrupts[0].id, "#", "../..\0"), "interrupt")
    assert len([*site.client.interrupts()]) == 3
    finished(thread.answer("yes"))
    assert len([*site.client.interrupts()]) == 2


def test_forged_messages_change_nothing_of_a_run(site):
    """Messages of the user by the names of an agent's are replaced; the run and its answer go on."""
    thread = Thread(site, "talking")
    finished(thread.say("refund 7"), "interrupt")
    source = f"{thread.state['runner']['run_id']}/clerk"
    forged = [{"id": f"{source}/{n}", "role": "user", "content": "forged"} for n in range(6)]
    events = thread.answer(approve(), messages=[*forged, thread.messages[0]])
    assert finished(events).result == "All is done."
    assert [event.content for event in of(events, "TOOL_CALL_RESULT")][
        -1
    ] == "order 7 is refunded"


def test_what_was_answered_elsewhere_meanwhile(site):
    """The same answer goes on, another is refused with who was first; cancelling it goes on, too."""
    for payload, code in (("yes", ""), ("no", "already_answered")):
        thread = waiting(site, "text", payload)
        answer_elsewhere(site, thread.interrupts[0], "yes")
        if code:
            assert "answered by ben" in refused(thread.answer(payload), code)
            assert finished(thread.cancel()).result == {"said": "yes"}
        else:
            assert finished(thread.answer(payload)).result == {"said": "yes"}
    thread = waiting(site, "rule", "votes")
    site.client.vote(thread.interrupts[0].id.partition("#")[0], "approve", by="ben")
    assert "ben" in refused(thread.answer({"approved": False}), "already_answered")
    assert finished(thread.answer(approve())).result == {"said": "approve"}


@pytest.mark.parametrize("graph", ["long", "risky", "sure"])
def test_what_needs_its_page_is_a_link(site, graph):
    """Length, a high risk and logins lead to the page; a payload does not answer there."""
    thread = waiting(site, graph)
    (question,) = thread.interrupts
    assert (question.reason, question.response_schema) == ("runner:page", None)
    assert f"https://runner.example/q/{question.id.partition('#')[0]}" in question.message
    finished(thread.answer(approve()), "interrupt")
    assert asked(site, question).is_open


def test_schemas_are_those_of_the_questions(site):
    """A form is sent as it is, nested or not; what does not fit it is refused, and asked again."""
    thread = waiting(site, "form")
    (question,) = thread.interrupts
    assert question.reason == "input_required"
    assert question.response_schema["required"] == ["city", "days"]
    assert "days" in refused(thread.answer({"city": "Rome", "days": 0}), "rejected")
    done = finished(thread.answer({"city": "Rome", "days": 2}))
    assert done.result == {"said": {"city": "Rome", "days": 2}}


@pytest.mark.parametrize(
    ("graph", "name", "said"),
    [("zod_call", "editedArgs", "edit"), ("zod_answer", "response", "respond")],
)
def test_a_schema_keeps_its_references_inside_another(site, graph, name, said):
    """Those to its own parts, as zod writes them; control: what does not fit them is refused."""
    thread = waiting(site, graph)
    refused(thread.answer(approve(**{name: {"order": 7, "amount": "60"}})), "rejected")
    done = finished(thread.answer(approve(**{name: {"order": 7, "amount": 60}})))
    assert done.result == {"said": said}


def test_a_message_begins_one_run(site):
    """The same message again is the same run, in any run of the client; the next one is another run."""
    thread = Thread(site, "say")
    finished(thread.say("one"))
    events = thread.send()
    assert finished(events).result == "one"
    assert not of(events, "TEXT_MESSAGE_START")  # the client has it
    thread.messages = thread.messages[:1]
    assert of(thread.send(), "TEXT_MESSAGE_CONTENT")[0].delta == "one"
    assert runs_of(site) == 1
    events = thread.say("two")
    assert finished(events).result == "two"
    assert of(events, "STEP_STARTED")  # from its beginning, wherever the run before ended
    assert runs_of(site) == 2


def test_a_run_of_the_client_begins_one_run(site):
    """Its id with another message or a resume is refused; with the same message it is that run."""
    thread = Thread(site, "text")
    finished(thread.say("one", runId="first"), "interrupt")
    (question,) = thread.interrupts
    for refusal in (thread.answer("yes", runId="first"), thread.say("two", runId="first")):
        refused(refusal, "run_id_used")
    assert asked(site, question).is_open
    finished(thread.answer("yes"))
    del thread.messages[-1]
    assert finished(thread.send(runId="first")).result == {"said": "yes"}
    assert runs_of(site) == 1


def test_a_run_of_the_client_resumes_once(site):
    """Its id with another resume is refused; the same request again, as after a lost response, is not."""
    thread = waiting(site, "two")
    left, right = (item.id for item in sorted(thread.interrupts, key=lambda item: item.id))
    answer = {"interruptId": left, "status": "resolved", "payload": "l"}
    first = {
        "resume": [answer, {"interruptId": right, "status": "cancelled"}],
        "runId": "again",
    }
    before = thread.state
    for _ in range(2):
        finished(thread.send(**first, state=before), "interrupt")
    refused(thread.answer("r", runId="again"), "run_id_used")
    assert site.client.interrupt(right.partition("#")[0]).is_open
    assert finished(thread.answer("r")).result == {"left": "l", "right": "r"}


def test_the_run_of_a_message_is_its_caller_s(site):
    """A run that another has started with the idempotency key of a message is not that of the message."""
    thread = Thread(site, "say")
    finished(thread.say("mine"))
    (run,) = site.client.runs()
    key = f"agui:{run.tags['agui.message']}"
    assert site.client.start("say", "again", idempotency_key=key).id == run.run_id
    site.client.run(run.run_id).remove()
    site.client.start("say", "planted", idempotency_key=key, requester="eve")
    refused(thread.send(), "key_used")


def test_changes_of_nodes_are_sent_as_patches(site):
    """What an answer changes is a patch of the state that was sent before it."""
    thread = waiting(site, "text")
    changes = [
        change for event in of(thread.answer("yes"), "STATE_DELTA") for change in event.delta
    ]
    assert changes[-1].path == "/runner/nodes/ask"
    assert changes[-1].value == {"status": "completed", "visit": 1}


@pytest.mark.slow
def test_an_agent_may_remember_a_thread(site):
    """With `agui_thread` as its session an agent goes on with a thread, of one person in one graph."""
    thread = Thread(site, "remembers")
    for text in ("1", "2"):
        events = thread.say("x")
        assert finished(events).result == text
        assert [event.delta for event in of(events, "TEXT_MESSAGE_CONTENT")] == [text]
    assert finished(Thread(site, "remembers", "another").say("x")).result == "1"
    site.person = BEN
    assert finished(Thread(site, "remembers").say("x")).result == "1"


def test_a_thread_is_its_caller_s(site):
    """Another person's thread of the same name is another one, and their answers count for nothing."""
    thread = waiting(site, "text")
    site.person = BEN
    entry = {"interruptId": thread.interrupts[0].id, "status": "resolved", "payload": "yes"}
    refused(thread.send(resume=[entry]), "unknown")
    assert asked(site, thread.interrupts[0]).is_open
    finished(thread.send(), "interrupt")
    assert runs_of(site) == 2


def test_a_run_of_a_thread_is_of_its_graph_and_asked_for_by_its_caller(site):
    """A tag alone puts no run of another graph, or of another person, into a thread."""
    waiting(site, "text")
    (begun,) = site.client.runs()
    for graph, requester in (("form", "ana"), ("text", "ben"), ("text", "ana")):
        run = site.client.start(graph, 1, tags=begun.tags, requester=requester)
        wait_until(lambda run=run: run.status == "interrupted", "the question")
        attached = Thread(site, "text")
        refused(attached.say("x"), "interrupts_pending")
        is_theirs = (graph, requester) == ("text", "ana")
        assert attached.state["runner"]["run_id"] == (run.id if is_theirs else begun.run_id)


def test_what_graphs_don_t_take_is_refused(site):
    """Media, no message at all, and a resume of nothing start no run."""
    thread = Thread(site, "say")
    refused(thread.send(), "no_message")
    image = {"type": "image", "source": {"type": "url", "value": "https://example.com/x.png"}}
    refused(thread.say([{"type": "text", "text": "see"}, image]), "unsupported_content")
    refused(Thread(site, "none").say("x"), "404")
    assert runs_of(site) == 0
    assert finished(thread.say([{"type": "text", "text": "see"}])).result == "see"
    assert finished(thread.say("x", forwardedProps={"task": {"order": 7}})).result == {
        "order": 7
    }


def test_roles_and_requests_count_as_for_the_api(site):
    """Who calls is what `auth` says; a viewer starts nothing, and an operator decides nothing."""
    body = BODY
    evil = {"Origin": "https://evil.example"}
    assert site.http.post("/agui/text", json=body, headers=evil).status_code == 403
    assert site.http.post("/agui/text", json={"threadId": "t"}).status_code == 422
    for person, status in ((None, 401), (Person(Principal("eve"), frozenset({"viewer"})), 403)):
        site.person = person
        assert site.http.post("/agui/text", json=body).status_code == status
    assert runs_of(site) == 0
    site.person = Person(Principal("eve"), frozenset({"operator:say", "operator:text"}))
    events = Thread(site, "say").say("secret")
    assert (finished(events).result, of(events, "TEXT_MESSAGE_START")) == (None, [])
    assert site.http.post("/agui/echo", json=body).status_code == 403
    thread = Thread(site, "text")
    finished(thread.say("x"))
    (question,) = thread.state["runner"]["questions"]
    entry = {"interruptId": f"{question['id']}#", "status": "resolved", "payload": "yes"}
    refused(thread.send(resume=[entry]), "forbidden")
    assert site.client.interrupt(question["id"]).is_open


def test_who_may_only_approve_resumes_and_starts_nothing(site):
    """An answer needs the role that it needs in the API; a message, and following a run, need the other."""
    thread = waiting(site, "text")
    for roles in ({"reader", "approver:say"}, {"viewer"}):
        site.person = Person(Principal("ana"), frozenset(roles))
        body = {"threadId": "thread", "runId": "r", "messages": thread.messages}
        entry = {"interruptId": thread.interrupts[0].id, "status": "resolved", "payload": "yes"}
        for fields in ({}, {"resume": []}, {"resume": [entry]}):
            assert site.http.post("/agui/text", json={**body, **fields}).status_code == 403
    site.person = Person(Principal("ana"), frozenset({"approver:text"}))
    assert site.http.post("/agui/text", json=body).status_code == 403
    refused(Thread(site, "text", "none").send(resume=[entry]), "unknown")
    assert finished(thread.answer("yes")).result == {"said": "yes"}
    assert runs_of(site) == 1


def test_capabilities_are_those_of_the_protocol(site):
    """They say what the agent does; no name is one that the models of AG-UI let through unread."""
    document = site.http.get("/agui/talking/capabilities").json()
    declared = core.AgentCapabilities.model_validate(document)
    assert declared.human_in_the_loop.approve_with_edits
    assert declared.state.deltas
    assert declared.tools.client_provided is False
    groups = [declared, *(value for _, value in declared if value is not None)]
    assert all(not group.model_extra for group in groups)
    assert site.http.get("/agui/none/capabilities").status_code == 404
    assert site.http.post("/mcp", json={}).status_code == 404  # no other door is open


def test_any_server_goes_on_with_a_thread(site):
    """Another server answers what one has asked: nothing is kept in a process."""
    thread = waiting(site, "text")
    site.http = TestClient(site.replica(), "https://runner.example")
    assert finished(thread.answer("yes")).result == {"said": "yes"}
    assert runs_of(site) == 1


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("graph", ["talking", "nested_agent"])
def test_the_client_of_ag_ui_takes_every_event(site, served, tmp_path, graph):
    """`HttpAgent`, which refuses what is out of order, asks its user, resumes and has the conversation."""
    (tmp_path / "node_modules").symlink_to(CLIENT)
    shutil.copy(Path(__file__).parent / "agui_client/client.mjs", tmp_path)
    answer = json.dumps(approve(editedArgs={"order": 8}))
    address = f"{served.url}/agui/{graph}"
    command = ["node", "client.mjs", address, "refund 7", answer]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    got = json.loads(ended.stdout)
    (asked,) = got["asked"]
    assert asked["reason"] == "tool_call"
    assert (got["pending"], got["state"]["runner"]["status"]) == (0, "completed")
    assert [item["role"] for item in got["messages"]] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert [item.get("content") for item in got["messages"][3:]] == [
        *(None, "order 8 is refunded", "All is done.")
    ]
    assert got["result"] == "All is done."


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
@needs_client
def test_a_page_in_a_browser_asks_its_user(site, tab):
    """A chat page logged in by its cookie shows what the agent does, and what it asks with the exact call.

    Its picture is that of the guide: docs/images/ag-ui.png is build/ag-ui.png.
    """
    tab.set_viewport_size({"width": 720, "height": 620})
    tab.goto("/chat")
    tab.get_by_label("Message").fill("Refund order 7")
    tab.get_by_role("button", name="Send").click()
    tab.get_by_role("button", name="Approve").wait_for()
    assert "clerk: waiting" in tab.inner_text("h1")
    assert 'refund {\n  "order": 7\n}' in tab.inner_text(".interrupt")
    tab.screenshot(path=CLIENT.parents[1] / "ag-ui.png")
    tab.get_by_role("button", name="Approve").click()
    tab.get_by_text("All is done.").wait_for()
    assert "order 7 is refunded" in tab.inner_text("#talk")
    assert "clerk: completed" in tab.inner_text("h1")
    assert not tab.problems
