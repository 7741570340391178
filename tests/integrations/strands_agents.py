"""Strands agents with a scripted model, built as a worker would build them."""

from __future__ import annotations

from strands import Agent, ToolContext, tool
from strands.models import Model

from runner.testing import ScriptedModel

ANSWERS: dict[str, int] = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}


class Scripted(Model):
    """The library's scripted model as a Strands provider."""

    def __init__(self, replies, **options):
        self.script = ScriptedModel(replies, **options)
        self.config = {"model_id": "scripted"}

    def update_config(self, **config):
        self.config.update(config)

    def get_config(self):
        return self.config

    def structured_output(self, output_model, prompt, system_prompt=None, **options):
        raise NotImplementedError("the deprecated way is not used here")

    def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        return self.script.stream(messages, tool_specs, system_prompt, **options)


def use(name, key, **given):
    return {"toolUse": {"name": name, "input": given, "toolUseId": key}}


def results(messages):
    """All tool results of a conversation as text, ordered by their calls: Strands runs them at once."""
    blocks = [block for message in messages for block in message["content"]]
    ended = [block["toolResult"] for block in blocks if "toolResult" in block]
    contents = [
        result["content"] for result in sorted(ended, key=lambda each: each["toolUseId"])
    ]
    return "; ".join(block["text"] for content in contents for block in content)


@tool(context=True)
def ask(topic: str, tool_context: ToolContext) -> str:
    """Ask a person."""
    return f"{topic} is {tool_context.interrupt('colour', reason={'topic': topic})}"


def agent(*replies, tools=(ask,), **options):
    return Agent(model=Scripted(replies), tools=list(tools), callback_handler=None, **options)
