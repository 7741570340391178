from __future__ import annotations

import dataclasses

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import (
    InterruptExpired,
    InterruptRaised,
    ResponseError,
    UnstorableError,
    UsageError,
)
from runner.records import codec
from runner.records.asking import Asker, is_answered
from runner.records.interrupts import (
    Address,
    Decision,
    Interrupt,
    InterruptStatus,
    address_of,
    answer_value,
    answers_from,
    digest,
    is_answers,
    json_schema,
    typed_response,
)

AT = Address("00run", "pay.out", 2)


class Approved(pydantic.BaseModel):
    approve: bool
    note: str = ""


def asked(name="ok?", reason=None, **options) -> Interrupt:
    return AT.ask(name, reason, scope="function", **options)


def with_answer(question: Interrupt, response) -> Interrupt:
    packed = codec.pack(response, "response")
    return dataclasses.replace(question, status=InterruptStatus.ANSWERED, response=packed)


def expired(question: Interrupt) -> Interrupt:
    return dataclasses.replace(question, status=InterruptStatus.EXPIRED)


def test_the_same_question_has_the_same_id_everywhere():
    """An id is made of run, node, visit, scope, name and number alone: every process finds the same one."""
    assert asked().id == "00run.pay.out.2.c4b06011e462a92c"
    assert asked(reason="another reason").id == asked().id


def test_different_questions_have_different_ids():
    """Another run, node, visit, scope, name or number is another question."""
    ids = [
        asked().id,
        asked("ok").id,
        AT.ask("ok?", scope="tool:1").id,
        AT.ask("ok?", scope="function", number=2).id,
        *(
            dataclasses.replace(AT, **{field: value}).ask("ok?", scope="function").id
            for field, value in (
                ("run_id", "00other"),
                ("node_id", "pay"),
                ("visit", 3),
                ("within", "tool:1/"),
            )
        ),
    ]

    assert len(set(ids)) == len(ids)


node_ids = st.text(
    st.characters(codec="utf-8", exclude_characters='"\\/'), min_size=1, max_size=20
)


@pytest.mark.full
@given(node_ids, st.integers(1, 10**6))
def test_an_id_names_its_run_node_and_visit(node, visit):
    """Run, node and visit are read out of an id again, also where the node's id has dots."""
    question = Address("00run", node, visit).ask("ok?", scope="function")

    found = address_of(question.id)

    assert (found.run_id, found.node_id, found.visit) == ("00run", node, visit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        ".b.1.d",
        "a.b.\u00b2.d",
        "v1:tool:1",
        f"a.b.{'9' * 5000}.d",
        "\ud800.b.1.d",
    ],
)
def test_what_is_no_id_of_ours_has_no_address(text):
    """An id of another system is told apart from ours."""
    assert address_of(text) is None


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_question_needs_a_name(name):
    """A question without a name is refused where it is asked."""
    with pytest.raises(UsageError, match="needs a name"):
        asked(name)


def test_an_unknown_option_is_named():
    """A misspelled option is an error like any unknown argument; no question is built without it."""
    with pytest.raises(TypeError, match="no option 'expire_in'"):
        AT.ask("ok?", scope="function", expire_in=5)


def test_a_reason_that_cannot_be_stored_is_refused():
    """A question that could not be stored is refused when it is asked, naming the place."""
    with pytest.raises(UnstorableError, match=r"the reason of interrupt 'ok\?'\.when is a set"):
        asked(reason={"when": {1}})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "x" * 1001}, "the name of an interrupt has 1,001 characters"),
        ({"name": "\ud800"}, "the name of an interrupt holds a lone surrogate"),
        ({"assignees": "alice"}, "must be a list of at most 1,000 people"),
        ({"assignees": ["alice"] * 1001}, "must be a list of at most 1,000 people"),
        ({"assignees": ["alice", 7]}, "must be a text, not 7"),
        ({"assignees": ["\udfff"]}, "holds a lone surrogate"),
    ],
)
def test_names_and_people_are_short_texts(options, says):
    """A store lists questions by them: what could be listed by nobody is refused where it is asked."""
    with pytest.raises(UsageError, match=says):
        asked(**options)


@pytest.mark.parametrize(
    "seconds", [0, -1, float("nan"), 1e-9, "5", True, float("inf"), 1e12, 10**400]
)
def test_a_question_cannot_expire_before_it_is_asked(seconds):
    """Only a positive number of seconds is a time to answer, and one that ends some day."""
    with pytest.raises(UsageError, match="expires_in must be more than 0"):
        asked(expires_in=seconds)


@pytest.mark.parametrize(
    "on_expire", ["rejct", 1, {}, {"response": None}, {"response": 1, "more": 2}, ["response"]]
)
def test_what_happens_at_the_end_is_checked_when_asked(on_expire):
    """A mistake in `on_expire` is found when the question is asked, not days later."""
    with pytest.raises(UsageError, match="on_expire of interrupt 'ok\\?' must be"):
        asked(on_expire=on_expire)


def test_an_answer_by_default_must_fit_the_schema():
    """The answer that holds when nobody answers is checked like one that a person gives."""
    with pytest.raises(UsageError, match=r"on_expire.*does not fit"):
        asked(response_schema=Approved, on_expire={"response": {"approve": "perhaps"}})

    question = asked(response_schema=Approved, on_expire={"response": Approved(approve=False)})

    assert answer_value(expired(question), Approved) == Approved(approve=False)


def test_the_digest_covers_what_is_shown():
    """A digest changes with the name, the reason and the schema of a question, and with nothing else."""
    base = asked(reason={"amount": 5})

    assert base.digest == digest(base)
    assert base.digest.startswith("sha256:")
    assert asked(reason={"amount": 5}, assignees=["ann"], expires_in=5).digest == base.digest
    assert asked(reason={"amount": 6}).digest != base.digest
    assert asked(reason={"amount": 5}, response_schema={"type": "string"}).digest != base.digest


def test_questions_survive_storing():
    """A question with everything on it comes back equal from its stored form."""
    question = asked(
        reason={"raw": b"x"},
        response_schema=Approved,
        assignees=["ann"],
        expires_in=1.5,
        on_expire="reject",
    )

    assert codec.decode(Interrupt, codec.encode(question)) == question


@pytest.mark.parametrize("schema", ["string", 3, Approved(approve=True), ["object"]])
def test_a_schema_is_a_model_class_or_a_json_schema(schema):
    """Anything else as a response schema is refused when the question is asked."""
    with pytest.raises(UsageError, match="pydantic model class or a JSON Schema"):
        asked(response_schema=schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "strin"}, "strin"),
        ({"pattern": "("}, "regex"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "references outside it are not followed"),
        (
            {"properties": {"a": {"$ref": "file:///etc/hosts"}}},
            "references outside it are not followed",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_when_asked(schema, says):
    """A broken schema, or one that refers to another place, is found when asked; nothing is fetched."""
    with pytest.raises(UsageError, match="response_schema can't be used") as refused:
        asked(response_schema=schema)

    assert says in str(refused.value)


def test_a_schema_may_refer_inside_itself():
    """References within the schema work, as pydantic writes them for nested models."""

    class Outer(pydantic.BaseModel):
        decision: Approved

    assert "$ref" in str(json_schema(Outer))
    assert asked(response_schema=Outer).response_schema == json_schema(Outer)


def test_an_answer_has_the_type_that_was_asked_for():
    """Code that asked with a model class gets an instance of it; any other gets the JSON value."""
    assert answer_value(
        with_answer(asked(response_schema=Approved), {"approve": True}), Approved
    ) == Approved(approve=True)
    assert answer_value(with_answer(asked(), {"approve": True})) == {"approve": True}
    assert typed_response(None, 3) == 3


def test_nobody_answered():
    """After its time a question raises in the code that asked, with its name and the time."""
    with pytest.raises(InterruptExpired, match=r"'ok\?' was not answered within 5 s"):
        answer_value(expired(asked(expires_in=5)))


def block(interrupt_id="00r.n.1.x", **rest):
    return {"interruptResponse": {"interruptId": interrupt_id, **rest}}


@pytest.mark.parametrize("response", [False, 0, "", [], {}, "yes", {"a": b"raw"}])
def test_answers_are_read_in_the_shape_of_strands(response):
    """Any JSON value but null is an answer, also those that Python counts as false."""
    assert answers_from([block(response=response)]) == [
        Decision("00r.n.1.x", codec.pack(response, "response"))
    ]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("go on", "the run waits for answers, but got a str"),
        (None, "the run waits for answers, but got a NoneType"),
        (b"x", "got a bytes"),
        ({"interruptResponse": {}}, "got a dict"),
        ([{"text": "hi"}], r"got \['text'\]"),
        ([3], "got int"),
        ([{**block(response=1), "text": ""}], "interruptResponse', 'text'"),
        ([{"interruptResponse": "x"}], "expected an interruptResponse object"),
        ([block(interrupt_id=3, response=1)], "needs an interruptId"),
        ([block(response=None)], "is None, which is no answer"),
        ([block()], "is None, which is no answer"),
        ([block(response=1), block(response=None)], "nothing was applied"),
    ],
)
def test_other_shapes_are_refused_whole(prompt, says):
    """Anything that is not a list of whole answers is refused, and nothing of it is applied."""
    with pytest.raises(ResponseError, match=says):
        answers_from(prompt)


def test_an_answer_that_cannot_be_stored_is_refused():
    """An answer is checked like every other value that is stored."""
    with pytest.raises(UnstorableError, match=r"response\.when"):
        answers_from([block(response={"when": object()})])


def test_a_task_is_not_mistaken_for_answers():
    """Only a list of nothing but answers is a set of answers; an empty list is a task."""
    assert is_answers([block(response=1)])
    assert not is_answers([])
    assert not is_answers([block(response=1), {"text": "hi"}])
    assert not is_answers("text")


def test_a_question_without_an_answer_leaves_the_code():
    """Asking without an answer records the question and leaves past any `except Exception`."""
    asker = Asker(AT, "function")

    with pytest.raises(InterruptRaised):
        asker.decide("ok?", "why")

    assert [(question.name, question.reason) for question in asker.asked] == [("ok?", "why")]
    assert not issubclass(InterruptRaised, Exception)


@pytest.mark.parametrize("response", [False, 0, ""])
def test_an_answer_given_in_advance_needs_no_person(response):
    """`response=` returns at once, unless a person has answered: then the person's answer holds."""
    known = {asked().id: with_answer(asked(), "from a person")}

    assert Asker(AT, "function").decide("ok?", None, response)[0] == response
    assert (
        Asker(AT, "function", answers=known).decide("ok?", None, response)[0] == "from a person"
    )


def test_one_event_asks_each_name_once():
    """In an event a name used twice is an error, remembered although a callback swallows it."""
    asker = Asker(AT, "before_node_call")
    with pytest.raises(InterruptRaised):
        asker.decide("ok?")

    with pytest.raises(UsageError, match="asked twice in one event"):
        asker.decide("ok?")

    assert "asked twice" in str(asker.refused)
    assert len(asker.asked) == 1


def test_one_execution_may_ask_a_name_again():
    """In a function or tool the same name is the same question, asked once."""
    asker = Asker(AT, "function", repeat=True)
    for _ in range(2):
        with pytest.raises(InterruptRaised):
            asker.decide("ok?")

    assert len(asker.asked) == 1


@pytest.mark.parametrize("response", [False, 0, ""])
def test_false_answers_are_answers(response):
    """An answered question is answered, whatever the value, and so is one that expired or was withdrawn."""
    assert is_answered(with_answer(asked(), response))
    assert is_answered(expired(asked()))
    assert not is_answered(asked())
    assert is_answered(dataclasses.replace(asked(), status=InterruptStatus.WITHDRAWN))
