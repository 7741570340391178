"""The users of Redis that SECURITY.md describes, on a real server: what they may do, and still can."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.message_handlers import IncomingMessage, handle_answer, handle_start
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import StreamReader
from tests.contract.store import ManualWorker
from tests.graphs import ident, wired

RECIPE = Path(__file__).parents[2] / "SECURITY.md"

KEYS = Keys()

RECEIPTS = "runner:replies:NAME"


class Server:
    """A server with the users of the recipe, a waiting question, and a worker's reader of the streams."""

    def __init__(self, url) -> None:
        self.admin = redis.Redis.from_url(url)
        self.is_old = self.admin.info("server")["redis_version"].startswith("6.")
        self.rules = dict(
            re.findall(r"^ACL SETUSER (\w+) (.*)$", RECIPE.read_text(), re.MULTILINE)
        )
        (self.reads,) = re.findall(r"add `(\+xread [^`]+)`", RECIPE.read_text())
        for user in self.rules:
            self.grant(user, self.rules[user])
        self.store = RedisStore(url, push=False)
        self.worker = ManualWorker(self.store)
        registry = Registry()
        registry.add("bench", wired({"a": ident}).build)
        self.engine = Engine(self.store, self, registry)
        self.stream_reader = StreamReader(url)
        self.stream_reader.read(0.01)
        self.clients: dict[str, redis.Redis] = {}

    def grant(self, user, rules) -> None:
        if self.is_old:
            rules = re.sub("%[RW]~", "~", rules)  # as the page says of 6.2
        self.admin.execute_command("ACL", "SETUSER", user, *rules.split())

    def ring(self, doorbells) -> None:
        """Leave the doorbells alone: no test here runs a node."""

    def client(self, user) -> redis.Redis:
        """Connect as a user."""
        if user not in self.clients:
            pool = self.admin.connection_pool
            kwargs = {**pool.connection_kwargs, "username": user, "password": "SECRET"}
            self.clients[user] = redis.Redis(
                connection_pool=redis.ConnectionPool(pool.connection_class, **kwargs)
            )
        return self.clients[user]

    def close(self) -> None:
        self.store.close()
        self.stream_reader.close()
        for user in self.rules:
            self.admin.execute_command("ACL", "DELUSER", user)
        for client in (*self.clients.values(), self.admin):
            client.connection_pool.disconnect()


@pytest.fixture
def server(redis_url):
    server = Server(redis_url)
    yield server
    server.close()


def answer_to(question, **more) -> str:
    return json.dumps({"v": 1, "interrupt_id": question.id, "response": "yes", **more})


def apply(server):
    """Apply what has come, as a worker does."""
    (entry,) = server.stream_reader.read(0.5)
    message = IncomingMessage(entry.id, entry.key, entry.body)
    if entry.stream == KEYS.starts:
        return handle_start(server.engine, message)
    return handle_answer(server.engine, message)


def test_an_answer_only_program_answers_and_a_start_only_program_starts(server):
    """Each sends its message, and the worker applies it."""
    run_id = server.worker.start("a")
    (question,) = server.worker.park(run_id, "a")
    server.client("answers").xadd(KEYS.responses, {"body": answer_to(question)})
    assert apply(server).receipt.status == "accepted"

    server.engine.publish(["bench"])
    server.client("starts").xadd(
        KEYS.starts, {"body": json.dumps({"v": 1, "graph": "bench", "task": "x"})}
    )
    assert apply(server).receipt.status == "accepted"


def forbidden(user):
    """List what a user may not do: all but to add to its stream."""
    own, other = (
        (KEYS.responses, KEYS.starts) if user == "answers" else (KEYS.starts, KEYS.responses)
    )
    run = KEYS.run("00run0001")
    return [
        ["XADD", other, "*", "body", "{}"],
        ["XADD", KEYS.notices, "*", "body", "{}"],
        ["XADD", KEYS.dead_messages, "*", "body", "{}"],
        ["XADD", RECEIPTS, "*", "body", "{}"],
        ["XREAD", "STREAMS", own, "0"],
        ["XRANGE", own, "-", "+"],
        ["XDEL", own, "1-1"],
        ["XTRIM", own, "MAXLEN", "0"],
        ["XGROUP", "DESTROY", own, "runner"],
        ["DEL", own],
        ["HGETALL", run],
        ["HSET", run, "run", "x"],
        ["LPUSH", "celery", "x"],
        ["EVAL", "return 1", "0"],
        ["KEYS", "*"],
        ["SCAN", "0"],
        ["CONFIG", "GET", "*"],
        ["ACL", "LIST"],
        ["SUBSCRIBE", "x"],
        ["PUBLISH", "x", "y"],
        ["FLUSHALL"],
    ]


def refused(server, user) -> list[str]:
    """Name the forbidden commands that the server refuses."""
    words = []
    for command in forbidden(user):
        try:
            server.client(user).execute_command(*command)
        except NoPermissionError:
            words.append(" ".join(command))
        except redis.RedisError:
            continue
    return words


@pytest.mark.parametrize("user", ["answers", "starts"])
def test_such_a_program_may_do_nothing_else(server, user):
    """It reads nothing, and writes nowhere but on its stream."""
    server.worker.start("a")
    assert refused(server, user) == [" ".join(command) for command in forbidden(user)]


def test_a_program_with_more_rights_is_noticed(server):
    """The control: without the limit to one key, the test above fails."""
    server.grant("answers", server.rules["answers"] + " ~*")
    assert refused(server, "answers") != [" ".join(command) for command in forbidden("answers")]


def test_it_reads_its_own_receipts_only(server):
    """With the further rule it reads the stream that it names in reply_to, and writes nothing there."""
    if server.is_old:
        pytest.skip("Redis 6 has no separate rights to read and to write a key")
    server.grant("answers", server.rules["answers"] + " " + server.reads)
    server.admin.xadd(RECEIPTS, {"body": "{}"})
    server.admin.xadd("runner:replies:other", {"body": "{}"})
    client = server.client("answers")

    assert client.xread({RECEIPTS: "0"})
    for stream in ("runner:replies:other", KEYS.responses):
        with pytest.raises(NoPermissionError):
            client.xread({stream: "0"})
    with pytest.raises(NoPermissionError):
        client.xadd(RECEIPTS, {"body": "{}"})
