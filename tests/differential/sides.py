"""The same agent twice: once of the released `strands-agents`, once of this library.

Both get one provider (a Strands `Model`), tools made of the same functions and the same callbacks.
What either does is written down in one form.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import strands
from strands.tools.executors import SequentialToolExecutor

from runner.testing import ScriptedModel

JSON = Any


class Scripted(strands.models.Model):
    """A provider of Strands that plays a script, in real chunks."""

    stateful = False

    def __init__(self, replies, stop=""):
        self.script = ScriptedModel(replies)
        self.stop = stop
        self.requests = []

    def update_config(self, **config):
        raise NotImplementedError("nothing can be configured here")

    def get_config(self):
        return {}

    def structured_output(self, output_model, prompt, system_prompt=None, **options):
        raise NotImplementedError("the deprecated way is not used here")

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        self.requests.append(copy.deepcopy([plain(message) for message in messages]))
        async for chunk in self.script.stream(messages, tool_specs, system_prompt, **options):
            yield (
                {"messageStop": {"stopReason": self.stop}}
                if self.stop and "messageStop" in chunk
                else chunk
            )


@dataclass
class Record:
    """What happened in one call of an agent, in a form that both sides have."""

    stop_reason: str
    text: str
    interrupts: list[tuple[str, Any]]
    messages: list[JSON]
    requests: list[list[JSON]]
    done: list[Any]
    fired: list[str]
    state: dict[str, Any]
    structured: Any = None
    error: str = ""


@dataclass
class Scene:
    """What is played: a script, functions that become tools, callbacks by the name of their event.

    A function whose first parameter is named `ctx` is given the context. Whatever functions and
    callbacks put into `done` is compared.
    """

    replies: Sequence[Any]
    tools: Sequence[Callable[..., Any]] = ()
    hooks: Sequence[tuple[str, Callable[[Any], Any]]] = ()
    options: dict[str, Any] = field(default_factory=dict)
    done: list[Any] = field(default_factory=list)
    sequential: bool = False
    stop: str = ""


class Side:
    """One of the two, with its agent for a scene."""

    def __init__(self, name: str, scene: Scene) -> None:
        self.home = importlib.import_module(name)
        self.events = importlib.import_module(f"{name}.hooks")
        self.scene = scene
        self.model = Scripted(scene.replies, scene.stop)
        self.fired: list[str] = []
        options = dict(scene.options)
        if name == "strands":
            options["callback_handler"] = None
        if scene.sequential:
            options["tool_executor"] = (
                SequentialToolExecutor() if name == "strands" else "sequential"
            )
        self.agent = self.home.Agent(
            name="a",
            model=self.model,
            tools=[self._tool(tool) for tool in scene.tools],
            hooks=[self],
            **options,
        )
        self.asked: list[Any] = []

    def _tool(self, function: Callable[..., Any]) -> Any:
        needs = function.__code__.co_varnames[:1] == ("ctx",)
        return self.home.tool(context="ctx")(function) if needs else self.home.tool(function)

    def register_hooks(self, registry: Any, **_: Any) -> None:
        """Write every event down, then do what the scene says."""
        for name in FIRED:
            kind = getattr(self.events, name)
            registry.add_callback(kind, lambda event, name=name: self.fired.append(name))
        for name, callback in self.scene.hooks:
            registry.add_callback(getattr(self.events, name), callback)

    def say(self, prompt: Any) -> Record:
        """Call the agent; write down what came of it since the call before."""
        del self.scene.done[:], self.fired[:], self.model.requests[:]
        error, result = "", None
        try:
            result = self.agent(prompt)
        except Exception as raised:  # noqa: BLE001 - an error is an outcome to compare
            error = type(raised).__name__
        self.asked = list(result.interrupts or ()) if result is not None else self.asked
        return Record(
            stop_reason=result.stop_reason if result is not None else "",
            text=str(result) if result is not None and not self.asked else "",
            interrupts=sorted((question.name, question.reason) for question in self.asked),
            messages=[plain(message) for message in self.agent.messages],
            requests=list(self.model.requests),
            done=list(self.scene.done),
            fired=list(self.fired),
            state=self.agent.state.get(),
            structured=getattr(result, "structured_output", None),
            error=error,
        )

    def answer(self, **responses: Any) -> Record:
        """Answer open questions by name."""
        ids = {question.name: question.id for question in self.asked}
        return self.say(
            [
                {"interruptResponse": {"interruptId": ids[name], "response": response}}
                for name, response in responses.items()
            ]
        )


FIRED = (
    "BeforeInvocationEvent",
    "MessageAddedEvent",
    "BeforeModelCallEvent",
    "AfterModelCallEvent",
    "BeforeToolCallEvent",
    "AfterToolCallEvent",
    "AfterInvocationEvent",
)


def plain(message: JSON) -> JSON:
    """Leave out of a message what no model sees."""
    return {"role": message["role"], "content": message["content"]}


def use(name: str, key: str, **arguments: Any) -> JSON:
    return {"toolUse": {"name": name, "input": arguments, "toolUseId": key}}


def both(make: Callable[[], Scene]) -> tuple[Side, Side]:
    """Set a scene on both sides; each has functions, callbacks and lists of its own."""
    return Side("strands", make()), Side("runner", make())
