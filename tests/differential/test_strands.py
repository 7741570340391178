"""The released `strands-agents` and this library, side by side: what its users rely on holds here.

One scene is played on both; messages, requests to the model, tool executions, events, stop reasons,
questions and state are compared whole. Where this library does better on purpose, both are asserted.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import pydantic
import pytest

from tests.integrations.extras import need

need("strands", "strands")

from tests.differential.sides import Scene, both, use  # noqa: E402 - only where the extra is installed

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("default"),  # another library's warnings are not ours to mend
]


def add(done):
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        done.append((x, y))
        return x + y

    return add


def crash(done):
    def crash() -> str:
        """Fail in a way that has a type."""
        done.append("crash")
        raise KeyError("no")

    return crash


def ask(name):
    def make(done):
        def tool(ctx) -> str:
            """Ask a person."""
            done.append(name)
            return ctx.interrupt(name, reason={"of": name})

        tool.__name__ = f"ask_{name}"
        return tool

    return make


def ask_twice(done):
    def ask_twice(ctx) -> str:
        """Ask two things, one after the other."""
        done.append("asks")
        first = ctx.interrupt("first", reason="r1")
        second = ctx.interrupt("second", reason="r2")
        done.append((first, second))
        return f"{first} and {second}"

    return ask_twice


def scene(replies, *tools, hooks=(), sequential=False, stop="", **options):
    """Describe a scene; each side makes its own of it. Callbacks are given the event and `done`."""

    def make():
        done = []
        callbacks = [(name, lambda event, act=act: act(event, done)) for name, act in hooks]
        made = [tool(done) for tool in tools]
        return Scene(replies, made, callbacks, options, done, sequential=sequential, stop=stop)

    return make


def play(make, *steps):
    """Play a scene on both sides: texts are prompts, mappings are answers. Give all records."""
    sides = both(make)
    return [
        [side.say(step) if isinstance(step, str) else side.answer(**step) for step in steps]
        for side in sides
    ]


def same(make, *steps, compared=asdict):
    """Play a scene and expect no difference; give what happened."""
    theirs, ours = play(make, *steps)
    for step, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        assert compared(other) == compared(one), f"step {step}"
    return ours


def unordered(record):
    """Give a record without the order of what ran side by side."""
    fields = asdict(record)
    contents = [message["content"] for message in fields["messages"]]
    fields["messages"] = [
        sorted(json.dumps(block, sort_keys=True) for block in blocks) for blocks in contents
    ]
    del fields["requests"]  # they hold the messages before the last one
    return {**fields, "done": sorted(map(str, record.done)), "fired": sorted(record.fired)}


ADD = use("add", "t1", x=1, y=2)


def gate(event, done):
    done.append("gate")
    if event.interrupt("may", reason=event.tool_use["name"]) != "yes":
        event.cancel_tool = "a person said no"


# -- the same --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancel", [True, "not today"])
def test_a_cancelled_call(cancel):
    """`cancel_tool` keeps the tool from running and tells the model why."""

    def refuse(event, done):
        event.cancel_tool = cancel

    (record,) = same(scene([ADD, "end"], add, hooks=[("BeforeToolCallEvent", refuse)]), "go")

    assert record.done == []


def test_retry_is_not_heard_for_a_cancelled_call():
    """`retry` after a cancelled call changes nothing."""
    hooks = [
        ("BeforeToolCallEvent", lambda event, done: setattr(event, "cancel_tool", True)),
        ("AfterToolCallEvent", lambda event, done: setattr(event, "retry", True)),
    ]

    same(scene([ADD, "end"], add, hooks=hooks), "go")


def test_a_retried_call():
    """`retry` runs the whole attempt again; the discarded one leaves nothing."""

    def again(event, done):
        event.retry = done.count("crash") < 3

    (record,) = same(
        scene([use("crash", "t1"), "end"], crash, hooks=[("AfterToolCallEvent", again)]), "go"
    )

    assert record.done == ["crash"] * 3
    assert len(record.messages) == 4


def test_a_replaced_result_and_tool_use():
    """Callbacks may change what a tool is given and what it gave."""

    def other(event, done):
        event.tool_use = {**event.tool_use, "input": {"x": 40, "y": 2}}

    def replaced(event, done):
        event.result = {
            **event.result,
            "content": [{"text": "seen " + event.result["content"][0]["text"]}],
        }

    hooks = [("BeforeToolCallEvent", other), ("AfterToolCallEvent", replaced)]
    (record,) = same(scene([ADD, "end"], add, hooks=hooks), "go")

    assert record.done == [(40, 2)]
    assert record.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "seen 42"}]


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_a_question_before_a_call(answer):
    """A callback asks, the call waits, the answer decides; the model isn't asked again."""
    waiting, ended = same(
        scene([ADD, "end"], add, hooks=[("BeforeToolCallEvent", gate)]), "go", {"may": answer}
    )

    assert (waiting.stop_reason, waiting.interrupts) == ("interrupt", [("may", "add")])
    assert ended.done == (["gate", (1, 2)] if answer == "yes" else ["gate"])


def test_a_tool_that_asks_twice():
    """Each answer runs the tool from its top; earlier answers are there, and False is one."""
    first, second, ended = same(
        scene([use("ask_twice", "t1"), "end"], ask_twice), "go", {"first": 7}, {"second": False}
    )

    assert [record.interrupts for record in (first, second)] == [
        [("first", "r1")],
        [("second", "r2")],
    ]
    assert ended.done == ["asks", (7, False)]


def test_sequential_calls_stop_at_a_question():
    """What comes after a call that asks isn't started until it was answered."""
    replies = [[use("ask_a", "t1"), use("add", "t2", x=1, y=2), use("ask_b", "t3")], "end"]
    first, second, _ = same(
        scene(replies, ask("a"), add, ask("b"), sequential=True),
        "go",
        {"a": "one"},
        {"b": "two"},
    )

    assert (first.done, second.done) == (["a"], ["a", (1, 2), "b"])


def test_an_answer_given_in_advance():
    """`response=` answers at once, and nobody is asked."""

    def callback(event, done):
        done.append(event.interrupt("may", response=False))

    (record,) = same(scene([ADD, "end"], add, hooks=[("BeforeToolCallEvent", callback)]), "go")

    assert record.done == [False, (1, 2)]


def test_all_callbacks_run_and_all_their_questions_come_together():
    """Two callbacks of one event ask side by side; both answers resume."""
    hooks = [
        (
            "BeforeToolCallEvent",
            lambda event, done, name=name: done.append(event.interrupt(name)),
        )
        for name in ("one", "two")
    ]
    waiting, ended = same(scene([ADD, "end"], add, hooks=hooks), "go", {"one": 1, "two": 2})

    assert [name for name, _ in waiting.interrupts] == ["one", "two"]
    assert ended.done == [1, 2, (1, 2)]


# -- the same but for a text --------------------------------------------------------------------------------


class Verdict(pydantic.BaseModel):
    """A verdict."""

    score: int


@pytest.mark.parametrize(
    "replies", [[use("Verdict", "t1", score=3)], ["thinking", use("Verdict", "t1", score=3)]]
)
def test_structured_output(replies):
    """The model gives it by a tool, asked once more if it didn't; only the tool's confirmation differs."""
    theirs, ours = play(scene(replies, structured_output_model=Verdict), "go")

    assert ours[0].structured == theirs[0].structured == Verdict(score=3)
    assert result_texts(ours[0]) == ["Accepted."]
    assert result_texts(theirs[0]) == ["Successfully validated Verdict structured output"]
    assert [shape(record.messages) for record in ours] == [
        shape(record.messages) for record in theirs
    ]
    for field in ("stop_reason", "fired", "requests", "text"):
        assert getattr(ours[0], field) == getattr(theirs[0], field), field


def test_a_reply_that_was_cut_off():
    """Reaching the limit of output tokens is an error on both sides, each under its own name."""
    theirs, ours = play(scene(["half a sen"], stop="max_tokens"), "go")

    assert (theirs[0].error, ours[0].error) == ("MaxTokensReachedException", "MaxTokensReached")
    assert ours[0].messages == theirs[0].messages


def test_a_value_error_has_its_type_too():
    """Strands leaves the type out of a ValueError's text; here every error has it."""

    def refuse(done):
        def refuse() -> str:
            """Fail."""
            raise ValueError("no")

        return refuse

    theirs, ours = play(scene([use("refuse", "t1"), "end"], refuse), "go")

    assert (result_texts(theirs[0]), result_texts(ours[0])) == (
        ["Error: no"],
        ["Error: ValueError - no"],
    )
    assert shape(ours[0].messages) == shape(theirs[0].messages)


def test_data_comes_as_data():
    """A tool's dict is a json block here and a text there: providers write both as the same JSON."""

    def look(done):
        def look() -> dict:
            """Look."""
            return {"a": [1]}

        return look

    theirs, ours = play(scene([use("look", "t1"), "end"], look), "go")

    assert results(theirs[0])[0]["content"] == [{"text": '{"a": [1]}'}]
    assert results(ours[0])[0]["content"] == [{"json": {"a": [1]}}]


def test_a_prompt_that_is_no_answer_is_refused():
    """While it waits an agent takes answers only; the refusal leaves everything as it was."""
    theirs, ours = play(
        scene([use("ask_a", "t1"), "end"], ask("a")), "go", "go on!", {"a": "yes"}
    )

    assert [record.error for record in theirs] == ["", "TypeError", ""]
    assert [record.error for record in ours] == ["", "ResponseError", ""]
    assert ours[2] == theirs[2]


# -- better on purpose --------------------------------------------------------------------------------------


def test_a_call_without_an_answer_is_left_alone():
    """After a part of the answers Strands runs the unanswered tool again; here it isn't touched."""
    replies = [[use("ask_a", "t1"), use("add", "t2", x=1, y=2), use("ask_b", "t3")], "end"]
    theirs, ours = play(
        scene(replies, ask("a"), add, ask("b")), "go", {"b": "two"}, {"a": "one"}
    )

    assert unordered(ours[0]) == unordered(theirs[0])
    assert sorted(theirs[1].done) == ["a", "b"]
    assert ours[1].done == ["b"]
    assert ours[1].interrupts == theirs[1].interrupts == [("a", {"of": "a"})]
    assert ours[2].done == theirs[2].done == ["a"]


def test_results_come_in_the_order_of_the_calls():
    """Strands puts results of earlier passes first; here an answer's time changes no message."""
    replies = [[use("ask_a", "t1"), use("add", "t2", x=1, y=2)], "end"]
    theirs, ours = play(scene(replies, ask("a"), add), "go", {"a": "one"})

    assert [result["toolUseId"] for result in results(theirs[1])] == ["t2", "t1"]
    assert [result["toolUseId"] for result in results(ours[1])] == ["t1", "t2"]
    assert sorted(results(ours[1]), key=key_of) == sorted(results(theirs[1]), key=key_of)


def test_a_question_after_a_call():
    """AfterToolCallEvent can ask here; in the released Strands it has no `interrupt`."""

    def review(event, done):
        done.append(event.interrupt("fine", reason=event.result["content"][0]["text"]))

    one, other = both(scene([ADD, "end"], add, hooks=[("AfterToolCallEvent", review)]))
    theirs, ours = one.say("go"), [other.say("go"), other.answer(fine="yes")]

    assert "interrupt" not in theirs.error
    assert theirs.stop_reason != "interrupt"
    assert (ours[0].stop_reason, ours[0].interrupts) == ("interrupt", [("fine", "3")])
    assert ours[1].done == ["yes"]


def test_what_the_model_said_stays_as_it_said_it():
    """A callback that changes a tool use in place rewrites the conversation in Strands, but not here."""

    def other(event, done):
        event.tool_use["input"]["x"] = 40

    theirs, ours = play(scene([ADD, "end"], add, hooks=[("BeforeToolCallEvent", other)]), "go")

    assert ours[0].done == theirs[0].done == [(40, 2)]
    inputs = [
        side[0].messages[1]["content"][0]["toolUse"]["input"]["x"] for side in (theirs, ours)
    ]
    assert inputs == [40, 1]


def test_a_swallowed_question_still_counts():
    """A tool that catches every Exception loses its question in Strands, not here."""

    def careful(done):
        def careful(ctx) -> str:
            """Catch everything."""
            try:
                return ctx.interrupt("a")
            except Exception:  # noqa: BLE001 - what this test is about
                return "swallowed"

        return careful

    theirs, ours = play(scene([use("careful", "t1"), "end"], careful), "go")

    assert (theirs[0].stop_reason, result_texts(theirs[0])) == ("end_turn", ["swallowed"])
    assert (ours[0].stop_reason, ours[0].interrupts) == ("interrupt", [("a", None)])


def test_none_is_no_answer():
    """Strands 1.62 takes None and asks again without a word; here it is refused, and a real answer counts."""
    theirs, ours = play(
        scene([use("ask_a", "t1"), "end"], ask("a")), "go", {"a": None}, {"a": "yes"}
    )

    assert (theirs[1].stop_reason, theirs[1].error) == ("interrupt", "")
    assert ours[1].error == "ResponseError"
    assert ours[2].messages == theirs[2].messages


def test_a_retried_call_asks_anew():
    """An answer belongs to one attempt: Strands gives the old one to the retry."""

    def once(event, done):
        done.append(event.interrupt("may"))

    def again(event, done):
        event.retry = done.count((1, 2)) < 2

    hooks = [("BeforeToolCallEvent", once), ("AfterToolCallEvent", again)]
    theirs, ours = play(scene([ADD, "end"], add, hooks=hooks), "go", {"may": "first"})

    assert theirs[1].done == ["first", (1, 2), "first", (1, 2)]
    assert (ours[1].stop_reason, ours[1].done) == ("interrupt", ["first", (1, 2)])


def results(record):
    """Give the tool results of a conversation."""
    return [
        block["toolResult"]
        for message in record.messages
        for block in message["content"]
        if "toolResult" in block
    ]


def result_texts(record):
    return [block["text"] for result in results(record) for block in result["content"]]


def key_of(result):
    return result["toolUseId"]


def shape(messages):
    """Leave the texts of tool results out of a conversation."""
    entries = []
    for message in messages:
        blocks = [
            {**block["toolResult"], "content": "…"} if "toolResult" in block else block
            for block in message["content"]
        ]
        entries.append((message["role"], blocks))
    return entries
