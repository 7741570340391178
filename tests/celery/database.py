"""A Django project on Postgres whose nodes and tools query it: its settings, its app and its graphs."""

from __future__ import annotations

import asyncio
import os

SECRET_KEY = "only for tests"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "runner",
        "HOST": os.environ["POSTGRES_FOLDER"],
        "OPTIONS": {"application_name": "nodes"},
    }
}

from celery import Celery  # noqa: E402 - the settings above are read while this module is imported

import runner.celery  # noqa: E402
from runner import Agent, async_loop, graph, tool  # noqa: E402
from runner.settings import as_broker  # noqa: E402
from runner.testing import ScriptedModel  # noqa: E402
from tests.graphs import single  # noqa: E402

if os.environ.get("SABOTAGE"):
    async_loop._surrounded = lambda work, *arguments, **named: work(*arguments, **named)

app = Celery("database", broker=as_broker(os.environ["RUNNER_REDIS_URL"]))
runner.celery.install(app)


def query():
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("select 42")
        return cursor.fetchone()[0]


@tool
def look_up() -> int:
    """Query the database."""
    return query()


async def query_elsewhere(ctx):
    return await asyncio.to_thread(query)


@graph("functions")
def functions():
    return single(lambda ctx: query())


@graph("coroutines")
def coroutines():
    return single(query_elsewhere)


@graph("tools")
def tools():
    calls = [{"toolUse": {"name": "look_up"}} for _ in range(5)]
    return single(Agent("clerk", ScriptedModel([calls, "done"]), [look_up]))


def answering(checkpointer):
    from langgraph.graph import START, MessagesState, StateGraph

    def ask(state):
        return {"messages": [("ai", str(query()))]}

    return StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile(checkpointer)


@graph("langgraph")
def langgraph():
    from runner.integrations.langgraph import LangGraphNode

    return single(LangGraphNode(answering))
