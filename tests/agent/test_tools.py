"""Tools: what a model reads of a function, what the function gets, and what it returns."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Annotated, Any, Literal

import annotated_types
import pydantic
import pytest
from pydantic import Field

from runner import GraphBuilder
from runner.agent import Agent, ToolContext, tool
from runner.agent.models.scripted import ScriptedModel
from runner.agent.tools import FunctionTool, result_of
from runner.approvals import Rule
from runner.errors import DefinitionError, UnstorableError
from tests.agent.visits import done, scripted, use


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class MyAgent(Agent):
    """An agent of another class."""


class Address(pydantic.BaseModel):
    """A place."""

    street: str
    number: int = 1


def test_a_title_names_arguments_of_its_tool() -> None:
    """A name that the tool does not take is refused where the tool is declared; so is a node's."""

    def pay(amount: int, iban: str = "DE0") -> str:
        """Pay."""
        return f"{amount} {iban}"

    known, unknown = (Rule(title=f"Pay {{amount}} to {{{name}}}") for name in ("iban", "name"))

    assert tool(approval=known)(pay).approval is known
    with pytest.raises(DefinitionError, match="'name', which is not an argument of tool 'pay'"):
        tool(approval=unknown)(pay)
    GraphBuilder().add_node(pay, "pay", approval=Rule(title="Pay {task}"))
    with pytest.raises(DefinitionError, match="'name', which is not an argument of node 'pay'"):
        GraphBuilder().add_node(pay, "pay", approval=Rule(title="Pay {name}"))


def run_tool(tool: Any, **arguments: Any) -> Any:
    """Run one call of a tool in an agent and return its result."""
    node = scripted([use(tool.tool_name, **arguments), "end"], tool)
    done(node.run())
    return node.results[0]


def test_the_schema_comes_from_hints_and_a_google_docstring() -> None:
    """Names, types, defaults and descriptions of each parameter reach the model; titles don't."""

    @tool
    def find(query: str, limit: int = 10, kind: Literal["a", "b"] = "a") -> str:
        """Find things.

        Looks everywhere.

        Args:
            query: What to look for,
                in any language.
            limit (int): How many at most.
            kind: One of two.

        Returns:
            What was found.

        Example:
            find("storks")
        """
        return f"{query} {limit} {kind}"

    assert find.tool_spec == {
        "name": "find",
        "description": "Find things.\n\nLooks everywhere.\n\nReturns:\n    What was found.\n\n"
        'Example:\n    find("storks")',
        "inputSchema": {
            "json": {
                "type": "object",
                "properties": {
                    "query": {
                        "type": "string",
                        "description": "What to look for, in any language.",
                    },
                    "limit": {
                        "type": "integer",
                        "default": 10,
                        "description": "How many at most.",
                    },
                    "kind": {
                        "type": "string",
                        "enum": ["a", "b"],
                        "default": "a",
                        "description": "One of two.",
                    },
                },
                "required": ["query"],
                "additionalProperties": False,
            }
        },
    }
    assert find("x", limit=2) == "x 2 a"
    assert run_tool(find, query="q")["content"] == [{"text": "q 10 a"}]


def test_a_docstring_of_parameters_alone_leaves_the_name() -> None:
    """Python takes the indentation from the lines after the first, so the section ends at a blank line."""

    @tool
    def find(query: str) -> str:
        """Args:
            query: what to look for.

        Returns:
            What was found.
        """
        return query

    @tool
    def seek(query: str) -> str:
        """Args:
        query: what to look for.
        """
        return query

    assert find.tool_spec["description"] == "Returns:\n    What was found."
    assert seek.tool_spec["description"] == "seek"


def test_a_sphinx_docstring_and_annotated_words_are_read_too() -> None:
    """`:param name:` and `Annotated[..., "words"]` describe parameters."""

    @tool
    def go(where: str, how: Annotated[str, "the means"] = "foot") -> str:
        """Go somewhere.

        :param where: the place
        :returns: nothing
        """
        return where + how

    properties = go.tool_spec["inputSchema"]["json"]["properties"]
    assert go.tool_spec["description"] == "Go somewhere.\n\n:returns: nothing"
    assert properties["where"]["description"] == "the place"
    assert properties["how"]["description"] == "the means"


def _assigned(n: int = Field(5, ge=1, description="how many")) -> int:
    return n


def _annotated(n: Annotated[int, Field(ge=1, description="how many")] = 5) -> int:
    return n


def _annotated_default(
    n: Annotated[int, Field(default=5, ge=1, description="how many")],
) -> int:
    return n


def _both(
    n: Annotated[int, annotated_types.Ge(1)] = Field(default=5, description="how many"),
) -> int:
    return n


def _with_docstring(
    n: Annotated[int, "not this", Field(ge=1, description="how many")] = Field(5),
) -> int:
    """Count.

    Args:
        n: nor this
    """
    return n


def _docstring_alone(n: int = Field(5, ge=1)) -> int:
    """Count.

    Args:
        n: how many
    """
    return n


@pytest.mark.full
@pytest.mark.parametrize(
    "function",
    [_assigned, _annotated, _annotated_default, _both, _with_docstring, _docstring_alone],
)
def test_fields_of_pydantic_describe_parameters(function: Callable[..., int]) -> None:
    """`Field` as the default or inside `Annotated` gives default, bounds and description, as in a model."""
    counts = FunctionTool(function, "counts")

    schema = counts.tool_spec["inputSchema"]["json"]
    expected = {"type": "integer", "default": 5, "minimum": 1, "description": "how many"}
    assert schema == {
        "type": "object",
        "properties": {"n": expected},
        "additionalProperties": False,
    }
    assert run_tool(counts)["content"] == [{"text": "5"}]
    assert run_tool(counts, n=2)["content"] == [{"text": "2"}]
    assert run_tool(counts, n=0)["status"] == "error"


def test_fields_may_be_required_have_an_alias_or_a_factory() -> None:
    """A Field without a default is required; a factory makes each call's own; the model uses the alias."""

    @tool
    def add(
        word: str = Field(min_length=2),
        words: list[str] = Field(default_factory=list),  # noqa: B008 - evaluated once, as it must be
        limit: int = Field(3, alias="max"),
    ) -> str:
        words.append(word)
        return f"{words} {limit}"

    schema = add.tool_spec["inputSchema"]["json"]
    assert schema["required"] == ["word"]
    assert list(schema["properties"]) == ["word", "words", "max"]
    for _ in range(2):
        assert run_tool(add, word="ab", max=4)["content"] == [{"text": "['ab'] 4"}]
    assert run_tool(add)["status"] == "error"


def test_a_field_that_pydantic_refuses_is_refused_with_its_function() -> None:
    """Two defaults for one parameter are an error when the tool is made, not when it is called."""

    def two(n: Annotated[list[int], Field(default_factory=list)] = [1]) -> None:  # noqa: B006 - the mistake
        """Count."""

    with pytest.raises(
        DefinitionError, match=r"parameters of .*two have no schema: cannot specify both"
    ):
        tool(two)


def test_a_tool_gets_the_types_that_it_declares() -> None:
    """Models, enums and nested values are checked and built before the function is called."""
    got: list[Any] = []

    @tool
    def send(to: Address, size: Size, _note: str = "", schema: str = "s") -> None:
        """Send."""
        got.extend([to, size, _note, schema])

    result = run_tool(send, to={"street": "Elm"}, size="large", _note="n")
    assert result["status"] == "success"
    assert got == [Address(street="Elm"), Size.LARGE, "n", "s"]


def test_name_description_schema_and_context_can_be_given() -> None:
    """`@tool(...)` overrides what would be read, and a context parameter is no part of the schema."""
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}

    @tool(name="shout", description="Say it loud.", context="ctx", inputSchema=schema)
    def _shout(word: str, ctx: ToolContext) -> str:
        return f"{word.upper()} {ctx.tool_use['name']} {ctx.agent.name} {ctx.attempt}"

    assert _shout.tool_spec == {
        "name": "shout",
        "description": "Say it loud.",
        "inputSchema": {"json": schema},
    }
    assert run_tool(_shout, word="hi")["content"] == [{"text": "HI shout a 1"}]


@pytest.mark.full
@pytest.mark.parametrize(
    ("hint", "is_sent"),
    [
        (None, False),
        (Any, False),
        ("Any", False),
        (Agent, False),
        ("Agent | None", False),
        ("AgentView", False),
        (str, True),
        ("dict[str, Any]", True),
        (MyAgent, False),
        (Agent | None, False),
        (Literal["Agent"], True),
        (Annotated[str, "the name of the Agent"], True),
    ],
)
def test_a_parameter_for_the_agent_is_not_sent(hint: Any, is_sent: bool) -> None:
    """A parameter `agent` without a type or with an agent's is filled in; of another, it is the model's."""

    def hire(agent: Any) -> str:
        return str(getattr(agent, "name", agent))

    hire.__annotations__ = {"agent": hint} if hint is not None else {}

    assert ("agent" in tool(hire).tool_spec["inputSchema"]["json"]["properties"]) == is_sent
    if not is_sent:
        assert run_tool(tool(hire))["content"] == [{"text": "a"}]


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("text", [{"text": "text"}]),
        ({"a": 1}, [{"json": {"a": 1}}]),
        ([1, 2], [{"text": "[1,2]"}]),
        (None, [{"text": "null"}]),
        (3.5, [{"text": "3.5"}]),
        (Address(street="Elm"), [{"json": {"street": "Elm", "number": 1}}]),
        ([{"text": "a"}, {"json": 1}], [{"text": "a"}, {"json": 1}]),
        ({"status": "success", "content": [{"text": "own"}], "extra": 1}, [{"text": "own"}]),
    ],
)
def test_what_a_tool_returns_becomes_content(returned: Any, content: list[Any]) -> None:
    """Text, JSON data, models, content blocks and whole results are all fine."""
    assert result_of(returned, "t") == {"status": "success", "content": content}


def test_a_tool_may_return_an_error_of_its_own() -> None:
    """The model reads a result with status error as it is."""

    @tool
    def own() -> dict[str, Any]:
        """Return an error."""
        return {"status": "error", "content": [{"text": "no such thing"}]}

    assert run_tool(own)["status"] == "error"


def test_a_result_that_cannot_be_stored_is_an_error_that_names_it() -> None:
    """The model and the log read what was wrong with the result; the run goes on."""

    @tool
    def odd() -> Any:
        """Return a set."""
        return {"found": {1, 2}}

    assert run_tool(odd)["content"][0]["text"].startswith(
        "Error: UnstorableError - the result of tool odd.found is a set"
    )
    with pytest.raises(UnstorableError):
        result_of(b"raw", "t")


def test_bytes_in_content_survive_the_store() -> None:
    """Images and documents come back byte for byte."""

    @tool
    def draw() -> list[Any]:
        """Draw."""
        return [{"image": {"format": "png", "source": {"bytes": b"\x89\x00png"}}}]

    assert run_tool(draw)["content"][0]["image"]["source"]["bytes"] == b"\x89\x00png"


def test_a_method_can_be_a_tool() -> None:
    """A decorated method knows its instance, as a tool and when called."""

    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @tool
        async def greet(self, who: str) -> str:
            """Greet."""
            return f"{self.name} greets {who}"

    shop = Shop("Ada's")
    assert run_tool(shop.greet, who="Bo")["content"] == [{"text": "Ada's greets Bo"}]
    assert "self" not in shop.greet.tool_spec["inputSchema"]["json"]["properties"]


def test_a_sync_tool_sees_the_callers_context_variables() -> None:
    """Context variables set by the caller reach tools on their threads."""
    tenant = contextvars.ContextVar("tenant", default="nobody")

    @tool
    def who() -> str:
        """Tell."""
        return tenant.get()

    tenant.set("acme")
    assert run_tool(who)["content"] == [{"text": "acme"}]


def test_an_object_of_the_shape_of_strands_agent_tool_is_accepted() -> None:
    """`tool_name`, `tool_spec` and `stream` are enough; the last thing yielded is the result."""

    class Counter:
        tool_name = "count"

        @property
        def tool_spec(self) -> dict[str, Any]:
            return {
                "name": "count",
                "description": "Count.",
                "inputSchema": {"json": {"type": "object"}},
            }

        async def stream(
            self, tool_use: Any, invocation_state: Any, **kwargs: Any
        ) -> AsyncIterator[Any]:
            yield {"progress": 1}
            yield {
                "toolUseId": tool_use["toolUseId"],
                "status": "success",
                "content": [{"text": "2"}],
            }

    assert run_tool(Counter())["content"] == [{"text": "2"}]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: tool(name="not a name")(lambda: None),
        lambda: tool(context=True)(lambda: None),
        lambda: tool(lambda *words: None),
        lambda: Agent("a", ScriptedModel(["x"]), [lambda: None]),
        lambda: Agent(
            "a", ScriptedModel(["x"]), [tool(name="t")(lambda: 1), tool(name="t")(lambda: 2)]
        ),
        lambda: Agent("a", object()),
        lambda: Agent("a"),
        lambda: Agent("a", ScriptedModel(["x"]), tool_executor="both"),
        lambda: Agent("a", ScriptedModel(["x"]), limits={"turns": 0}),
        lambda: Agent("a", ScriptedModel(["x"]), limits={"minutes": 3}),
        lambda: Agent("a", ScriptedModel(["x"]), hooks=[object()]),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_defined(wrong: Any) -> None:
    """A wrong tool, model, executor, limit or hook is an error at once, not in the middle of a run."""
    with pytest.raises(DefinitionError):
        wrong()


def test_a_type_that_cannot_be_found_is_named() -> None:
    """A hint that means nothing at run time is refused with the name of the function."""
    with pytest.raises(DefinitionError, match="Missing"):

        @tool
        def bad(x: Missing) -> None:  # noqa: F821 - the point of the test
            """Be bad."""
