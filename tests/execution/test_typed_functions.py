from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
from typing_extensions import TypedDict

from runner import GraphBuilder, NodeContext, RetryPolicy, Status
from runner.errors import DataMismatch, DefinitionError
from tests.graphs import Bench, answer_all, single, wired

if TYPE_CHECKING:
    from decimal import Decimal


class Order(pydantic.BaseModel):
    number: int
    amount: float


class Named(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")


@dataclass
class Receipt:
    order: Order
    paid_on: date


class Size(StrEnum):
    SMALL = "small"


class Both(TypedDict):
    a: Order
    b: int


GIVEN = {"number": 7, "amount": 12.5}


def order(ctx):
    return dict(GIVEN)


# -- what a function is given ------------------------------------------------------------------------


def charge(order: Order, ctx: NodeContext) -> Receipt:
    assert ctx.node_id in {"a", "b"}
    return Receipt(order, date(2026, 1, 2))


def test_a_function_is_given_its_task_as_the_type_that_it_declares():
    """The first node's task is read as the annotated type, and the result comes back as its type."""
    result = single(charge)(GIVEN).results["a"]

    assert result.result == Receipt(Order(number=7, amount=12.5), date(2026, 1, 2))
    assert result.output == {"order": GIVEN, "paid_on": "2026-01-02"}


def test_a_model_given_as_the_task_arrives_as_a_model():
    """A run can be started with an object of the type itself."""
    assert single(charge)(Order(**GIVEN)).results["a"].status is Status.COMPLETED


def test_the_only_input_is_given_instead_of_the_task():
    """A node behind one other node is given what that one returned."""
    result = wired({"a": order, "b": charge}, "a b").build()("the task")

    assert result.results["b"].result.order == Order(**GIVEN)


def join(both: Both) -> float:
    return both["a"].amount + both["b"]


def test_several_inputs_are_given_by_node_id():
    """A node behind several others is given a mapping, which a TypedDict or a model describes."""
    result = wired({"a": order, "b": lambda ctx: 2, "c": join}, "a c", "b c").build()(
        "the task"
    )

    assert result.results["c"].output == 14.5


def optional(value: Order | int | None) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("task", "name"), [(GIVEN, "Order"), (3, "int"), (None, "NoneType")])
def test_unions_take_what_fits(task, name):
    """A union or an optional type takes each of its forms."""
    assert single(optional)(task).results["a"].output == name


def spell(named: Named) -> Named:
    return named


def test_models_with_aliases_go_from_node_to_node():
    """A model with an alias is read by its alias and by its name, which is what it is passed on by."""
    result = wired({"a": spell, "b": spell}, "a b").build()({"orderNumber": 3})

    assert result.results["b"].result == Named(orderNumber=3)


def same(data: dict[str, Any]) -> dict[str, Any]:
    return data


def test_data_with_reserved_keys_goes_from_node_to_node():
    """An object that looks like a stored form of ours is what it was, for the next node and as a result."""
    data = {"__model__": "m", "list": [{"__escaped__": {}}]}
    graph = wired({"a": lambda _: data, "b": same, "c": same}, "a b", "b c").build()

    result = graph("task").results["c"]

    assert (result.output, result.result) == (data, data)


def double(data: bytes) -> bytes:
    return data * 2


def test_bytes_go_from_node_to_node():
    """Bytes are bytes again in a function that declares them."""
    result = wired({"a": double, "b": double}, "a b").build()(b"\xff\xfe~")

    assert result.results["b"].result == b"\xff\xfe~" * 4


async def later(order: Order, *, ctx: NodeContext) -> Order:
    return order.model_copy(update={"amount": ctx.attempt})


def test_async_functions_may_have_types():
    """An async function is awaited, and its result is checked."""
    assert single(later)(GIVEN).results["a"].result == Order(number=7, amount=1)


class Charger:
    def __call__(self, order: Order) -> Order:
        return order

    def method(self, order: Order) -> Order:
        return order


def scaled(scale: int, order: Order, ctx: NodeContext) -> float:
    return order.amount * scale


def in_this_order(ctx, order: Order, /, *more: int, **options: int) -> int:
    return order.number + ctx.attempt + len(more) + len(options)


def by_default(order: Order, scale=2, *more: int) -> float:
    return order.amount * scale


@pytest.mark.parametrize(("function", "output"), [(in_this_order, 8), (by_default, 25.0)])
def test_only_input_and_context_are_filled_in(function, output):
    """Input and context come in any order, also without names; defaults stay as they are."""
    assert single(function)(GIVEN).results["a"].output == output


@functools.wraps(charge)
def wrapped(*args, **kwargs):
    return charge(*args, **kwargs)


@pytest.mark.parametrize(
    "function", [Charger(), Charger().method, functools.partial(scaled, 2), wrapped]
)
def test_everything_that_can_be_called_may_have_types(function):
    """Methods, callable objects, partial and wrapped functions are read like functions."""
    assert single(function)(GIVEN).results["a"].status is Status.COMPLETED


def test_a_typed_function_may_ask():
    """A typed function asks through its context and is given its input again with the answer."""

    def ask(number: int, ctx: NodeContext) -> list[int]:
        return [number, ctx.interrupt("how many?")]

    graph = single(ask)

    assert graph(answer_all(graph(5), 6)).results["a"].output == [5, 6]


def numbers(ctx: NodeContext, count: int) -> list[Order]:
    return [Order(number=number, amount=0) for number in range(count)]


def doubled(order: Order) -> int:
    return order.number * 2


def test_the_items_of_a_map_have_types():
    """A typed function is given the item of a map, and one may list the items."""
    for over in (numbers, None):
        builder = GraphBuilder()
        builder.add_map(doubled, "each", over=over)
        task = 3 if over else [{"number": number, "amount": 1} for number in range(3)]

        assert builder.build()(task).results["each"].output == [0, 2, 4]


# -- what does not fit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"number": "7", "amount": 1}, "number: Input should be a valid integer, got '7'"),
        ({"number": 7}, "amount: Field required"),
        ({}, "number: Field required, got {}, and 1 more"),
        ("text", "the value: "),
    ],
)
def test_input_that_does_not_fit_fails_at_the_door(task, says):
    """The function is not called; the error names the node, the parameter and the field."""
    called = []

    def pay(order: Order) -> None:
        called.append(order)

    result = single(pay)(task).results["a"]

    assert result.status is Status.FAILED
    assert isinstance(result.result, DataMismatch)
    assert "node 'a' was not run: the task does not fit the parameter 'order' of" in str(
        result.result
    )
    assert says in str(result.result)
    assert called == []


def test_the_field_of_one_of_several_inputs_is_named():
    """Where several nodes come before, the error says whose output does not fit, and where."""
    result = wired({"a": order, "b": lambda ctx: "2", "c": join}, "a c", "b c").build()(
        "the task"
    )

    assert "b: Input should be a valid integer, got '2'" in str(result.results["c"].result)


def wrong(task: str) -> Order:
    return {"number": 1, "amount": task}


def test_a_result_that_does_not_fit_fails_the_node():
    """What a function returns must fit its return annotation; a later node never sees it."""
    result = single(wrong)("much").results["a"]

    assert result.status is Status.FAILED
    assert "the result of node 'a' does not fit" in str(result.result)
    assert "amount: Input should be a valid number, got 'much'" in str(result.result)


@pytest.mark.parametrize(
    ("retry_on", "attempts"),
    [((Exception,), 1), ((ValueError, DataMismatch), 2), ((BaseException,), 1)],
)
def test_data_that_does_not_fit_is_retried_only_by_name(retry_on, attempts):
    """A policy for every exception does not repeat what can't work; one that names DataMismatch does."""
    policy = RetryPolicy(max_attempts=2, backoff=0, retry_on=retry_on)
    bench = Bench(single(wrong, retry=policy)).start("much")
    bench.finish_all()
    bench.later(1)
    bench.finish_all()

    assert bench.result().results["a"].attempts == attempts


def changed(order: Order) -> list[Order]:
    order.number = "seven"
    return [order]


def test_an_object_that_was_spoiled_does_not_fit():
    """A model that no longer fits its own class is no result."""
    assert isinstance(single(changed)(GIVEN).results["a"].result, DataMismatch)


# -- what comes back ---------------------------------------------------------------------------------


def day(text: str) -> date:
    return date.fromisoformat(text)


def sizes(count: int) -> tuple[Size, ...]:
    return (Size.SMALL,) * count


def orders(count: int) -> dict[str, list[Order]]:
    return {"all": [Order(number=1, amount=1)] * count}


def as_data(count: int) -> Order:
    return {"number": count, "amount": 1}


@pytest.mark.parametrize(
    ("function", "task", "result", "output"),
    [
        (day, "2026-03-04", date(2026, 3, 4), "2026-03-04"),
        (sizes, 1, (Size.SMALL,), ["small"]),
        (
            orders,
            1,
            {"all": [Order(number=1, amount=1)]},
            {"all": [{"number": 1, "amount": 1.0}]},
        ),
        (as_data, 3, Order(number=3, amount=1), {"number": 3, "amount": 1.0}),
        (optional, 3, "int", "int"),
    ],
)
def test_a_result_comes_back_as_its_type(function, task, result, output):
    """`result` is what the function declares, `output` its JSON form."""
    node_result = single(function)(task).results["a"]

    assert (node_result.result, node_result.output) == (result, output)
    assert type(node_result.result) is type(result)


def test_local_types_come_back_too():
    """A class that only this process can name comes back where the graph was built."""

    class Local(pydantic.BaseModel):
        n: int

    def make(n: int):
        return Local(n=n)

    make.__annotations__.update({"n": int, "return": Local})

    assert single(make)(3).results["a"].result == Local(n=3)


def test_a_users_data_is_never_taken_for_a_typed_result():
    """Data that looks like the stored form of a typed result stays data."""
    tricky = {"__typed__": "tests:charge", "data": 1}

    assert single(lambda ctx: dict(tricky))("task").results["a"].result == tricky


# -- what can't work is refused when it is built -----------------------------------------------------


class Foreign:
    pass


def two_inputs(a: Order, b: Order, ctx: NodeContext) -> None: ...


def unknown_name(order: Nowhere) -> None: ...  # noqa: F821 - that is the case


def unknown_result(order: Order) -> Decimal: ...


def foreign_input(order: Foreign) -> None: ...


def foreign_result(order: Order) -> Foreign: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (two_inputs, r"two_inputs takes 2 inputs \(a, b\), and a node has one"),
        (unknown_name, "the annotation 'Nowhere' of 'order' can't be looked up"),
        (unknown_result, "the annotation 'Decimal' of 'return' can't be looked up"),
        (
            foreign_input,
            "of 'order' isn't a type whose JSON can be checked; .* JSON types. Unable to generate",
        ),
        (foreign_result, "of 'return' isn't a type whose JSON can be checked"),
    ],
)
def test_types_that_cannot_work_are_refused_when_the_node_is_added(function, says):
    """A signature that could never be filled or checked is an error of the graph, naming what to change."""
    with pytest.raises(DefinitionError, match=says):
        GraphBuilder().add_node(function)


def anything(ctx: Any) -> Foreign:
    return 1


def hidden(ctx: NodeContext) -> Foreign:
    return ctx.task


def with_default(ctx, more: int = 1) -> Foreign:
    return ctx.task


def only_default(value=3):
    return value.task


@pytest.mark.parametrize("function", [anything, hidden, with_default, only_default])
def test_a_function_of_the_context_alone_is_called_as_it_is(function):
    """Where only the context is taken, no annotation is looked at."""
    assert single(function)(1).results["a"].result == 1


# -- values that would change between nodes ----------------------------------------------------------


class Login(pydantic.BaseModel):
    name: str
    password: pydantic.SecretStr


class Sum(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    net: int

    @pydantic.computed_field
    @property
    def gross(self) -> int:
        return self.net * 2


class Drifting(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def one_more(cls, number: int) -> int:
        return number + 1


class Kept(pydantic.BaseModel):
    at: date
    cache: dict[str, int] = pydantic.Field(default_factory=dict, exclude=True)


def login(task: str) -> Login:
    return Login(name="ana", password="s3cret")


def logins(task: str) -> dict[str, list[Login]]:
    return {"all": [Login(name="ana", password="s3cret")]}


def untyped_login(ctx):
    return Login(name="ana", password="s3cret")


def drifting(task: str) -> Drifting:
    return Drifting(number=1)


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (login, "password"),
        (logins, "all.0.password"),
        (untyped_login, "result.password"),
        (drifting, "number"),
    ],
)
def test_a_value_that_would_change_between_nodes_is_refused_where_it_is_returned(
    function, path
):
    """By the name of its field: a secret would be ten asterisks in the next node."""
    result = single(function)("go")
    error = result.results["a"].result
    assert result.status is Status.FAILED
    assert f"{path} " in str(error)
    assert "another value" in str(error)


def test_what_is_computed_does_not_keep_a_value_from_the_next_node():
    """Of a model that forbids other fields; excluded fields and dates are the control."""
    gross = []

    def make(net: int) -> Sum:
        return Sum(net=net)

    def make_untyped(ctx):
        return Sum(net=3)

    def take(value: Sum) -> None:
        gross.append(value.gross)

    for first in (make, make_untyped):
        assert wired({"a": first, "b": take}, "a b").build()(3).status is Status.COMPLETED
    assert gross == [6, 6]

    def keep(task: str) -> Kept:
        return Kept(at=date(2026, 2, 28), cache={"x": 1})

    assert single(keep)("go").status is Status.COMPLETED
