"""Workarounds for behaviour of kombu and Celery that is unsafe for durable execution.

Each section names the behaviour it works around.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial, wraps
from itertools import filterfalse
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import pydantic_core
from billiard import einfo, semaphore_tracker
from celery.concurrency.base import BasePool
from celery.worker.request import Request
from celery.worker.strategy import default
from kombu.transport import redis, virtual

from runner.celery.engines import outbox_of
from runner.celery.logs import log_received
from runner.errors import CorruptDocument, StoreError, UsageError
from runner.records import codec
from runner.records.validation import one_line

log = logging.getLogger(__name__)

MAX_REASON = 1000
"""Most characters of a dead letter's reason."""


def write_dead_letter(app: Any, source: str, body: bytes, reason: str) -> None:
    """Write a dead letter and log it; if the store can't be reached, only log it."""
    source = one_line(source[:MAX_REASON])
    reason = one_line(reason[:MAX_REASON])
    log.warning("message.dead: %d bytes from %s: %s", len(body), source, reason)
    try:
        outbox_of(app).write_dead_letter(source, body, reason)
    except StoreError as error:
        log.warning("message.lost: %s The dead letter was not written.", one_line(error))


# Malformed items of a queue in Redis.
#
# kombu's Redis transport reads a queue with BRPOP and decodes the item without catching anything.
# An item that isn't JSON ends the worker process. An item that decodes to something else may be put
# back as the worker ends, and then end the next worker. The channel below writes such items to the
# dead letters and reads on.

READ = 2.0
"""Seconds of one blocking read of the queues, which may delay a worker's end by as much; kombu's is 1."""

NAME_ALL_EVERY = 1.0
"""Seconds within which even a busy worker reads all lists of its queues."""

MANY = 2**31

POOLS = WeakKeyDictionary[Any, Any]()
"""The pools of writing connections, one for each place, with the parameters that lead there."""


class SafeQoS(redis.QoS):
    """kombu's record of the messages that aren't acknowledged, which outlives refusals."""

    channel: Any

    def append(self, message: Any, delivery_tag: Any) -> None:
        """Keep a message that was read: without its copy, which a full server refuses, it would be lost."""
        try:
            super().append(message, delivery_tag)
        except self.channel.ResponseError as error:
            self.channel.log_refusal(error)
            virtual.QoS.append(self, message, delivery_tag)


class SafeChannel(redis.Channel):
    """kombu's channel, which writes an item that it can't decode to the dead letters.

    It also needs half as many connections, and sends less.
    """

    QoS = SafeQoS
    # Each pass of a worker's event loop reads these, and kombu's kind of property is slow.
    client = cached_property(redis.Channel.client.func)
    subclient = cached_property(redis.Channel.subclient.func)
    app: Any
    priorities: Mapping[str, AbstractSet[int]] = MappingProxyType({})
    _item: Any = None
    _pool: Any = None
    _all_named_at = 0.0
    _is_busy = False
    _is_refused = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Release the connection that kombu opens to greet the server: not every channel reads queues."""
        super().__init__(*args, **kwargs)
        if self.connection.polling_interval is None:
            self.brpop_timeout = READ
        self.async_pool.disconnect()
        self._q_for_pri: Any = cache(
            super()._q_for_pri
        )  # kombu makes the names again for each read

    @property
    def active_queues(self) -> list[str]:
        fanout = self.active_fanout_queues
        return list(filterfalse(fanout.__contains__, dict.fromkeys(self._active_queues)))

    def _get_pool(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Share the connections of all channels that write to the same place."""
        new_pool = super()._get_pool(asynchronous)
        if asynchronous:
            return new_pool
        # The service that Sentinels watch isn't among the parameters of their connections.
        params = {**self._connparams(), "service": getattr(self, "master_name", None)}
        for pool, other_params in list(POOLS.items()):
            if params == other_params:
                return pool
        new_pool.max_connections = MANY
        POOLS[new_pool] = params
        return new_pool

    def _disconnect_pools(self) -> None:
        """Close idle connections only: other threads may be writing."""
        pool = self._pool
        self._pool = None
        if pool is not None:
            pool.disconnect(inuse_connections=False)
        super()._disconnect_pools()

    def _connparams(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        if getattr(self.connection, "client", None) is None:  # kombu would end the worker
            raise ConnectionError("the connection was lost; the message is delivered again")
        params = super()._connparams(asynchronous)
        if asynchronous:
            kind = params["connection_class"]
            shorten = self.shortened

            def send_command(connection: Any, *command: Any, **options: Any) -> None:
                kind.send_command(connection, *shorten(command), **options)

            params["connection_class"] = type(
                "Connection", (kind,), {"send_command": send_command}
            )
        return params

    def shortened(self, command: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leave priority lists that no node uses out of some BRPOPs, each of which then blocks only briefly.

        kombu names four lists for each queue, and most nodes have the same priority. But reports of
        tasks, and nodes of another release, may have others. So all lists are named each second, and
        whenever there was nothing to read; one that had a message is used from then on.
        """
        if command[0] != "BRPOP" or not self.priorities:
            return command
        now = time.monotonic()
        if self._is_busy and now - self._all_named_at < NAME_ALL_EVERY:
            keys = [key for key in command[1:-1] if key not in self._unused]
            return ("BRPOP", *keys, min(command[-1], NAME_ALL_EVERY)) if keys else command
        self._all_named_at = now
        return command

    @cached_property
    def _unused(self) -> set[str]:
        return {
            self._q_for_pri(queue, step)
            for queue, priorities in self.priorities.items()
            for step in set(self.priority_steps)
            - {self.priority(priority) for priority in priorities}
        }

    def _brpop_read(self, **options: Any) -> Any:
        newest = next(reversed(self.qos._delivered), None)  # noqa: SLF001 - no public way
        try:
            return super()._brpop_read(**options)
        except self.ResponseError as error:
            self.log_refusal(error)
            raise
        except codec.READ_ERRORS as error:
            if self._item is None:
                raise
            queue, item = self._item
            delivery = next(reversed(self.qos._delivered), None)  # noqa: SLF001 - no public way
            if delivery != newest:
                self.qos.ack(delivery)  # kombu counts it as delivered, and would put it back
            source = queue.decode(errors="replace")
            write_dead_letter(self.app, source, item, f"it isn't a Celery message: {error!r}")
            return True
        finally:
            self._item = None

    def maybe_refresh_binding_expiry(self) -> None:
        """Log only the first refusal, as by a server without memory: kombu tries each second."""
        try:
            super().maybe_refresh_binding_expiry()
        except self.ResponseError as error:
            self.log_refusal(error)
        else:
            self._is_refused = False

    def log_refusal(self, error: Exception) -> None:
        if not self._is_refused:
            log.warning(
                "broker.refused: %s. Trying again until it is accepted.", one_line(error)
            )
        self._is_refused = True

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        client = super()._create_client(asynchronous)
        if asynchronous:
            client.parse_response = partial(self._parse, client.parse_response)
        return client

    def _parse(
        self, parse: Callable[..., Any], connection: Any, command: str, **options: Any
    ) -> Any:
        """Remember the item that a BRPOP took off a queue: kombu's error no longer has it."""
        reply = parse(connection, command, **options)
        if command == "BRPOP":
            self._item = reply
            self._is_busy = reply is not None
            if self._is_busy:
                self._unused.discard(f"{self.global_keyprefix}{reply[0].decode()}")
        return reply


class SafeSentinelChannel(SafeChannel, redis.SentinelChannel):
    """A SafeChannel to the primary that Sentinels name."""


def use_safe_channel(app: Any, priorities: Mapping[str, AbstractSet[int]]) -> None:
    """Make the workers of this process read queues in Redis through a SafeChannel.

    `priorities` are the known priorities of each queue's messages.
    """
    SafeChannel.app, SafeChannel.priorities = app, priorities
    redis.Transport.Channel = SafeChannel
    redis.SentinelTransport.Channel = SafeSentinelChannel


# The bodies of answers and starts, byte for byte.
#
# kombu's JSON decoder is lenient: of a repeated key the last one wins, and an object with the keys
# `__type__` and `__value__` becomes another value, or drops the message without a trace. People's
# answers must arrive as they were sent or be refused with a reason. So the body is wrapped into a
# text before kombu decodes it, and the task parses that text as strictly as every other way in.

JSON_TYPE = "application/json"

TEXT = "sent_as_text"
"""The argument that holds a JSON body as text."""

OTHER = "sent_as_other"
"""The argument that holds a body of another content type, in base64."""


def as_sent(*strategy: Any, **options: Any) -> Callable[..., Any]:
    """Handle private messages, each with its body wrapped into a text; for `Task.Strategy`."""
    handle = private(*strategy, **options)

    def handle_wrapped(message: Any, body: Any, *callbacks: Any) -> Any:
        if body is None:  # otherwise Celery's first protocol, already decoded
            _wrap_body(message)
        return handle(message, body, *callbacks)

    return handle_wrapped


def _wrap_body(message: Any) -> None:
    raw = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    if message.content_type == JSON_TYPE:
        kwargs = {TEXT: raw.decode("utf-8", "backslashreplace")}
    else:
        kwargs = {OTHER: f"{message.content_type} {base64.b64encode(raw).decode()}"}
    try:
        options = json.loads(raw)[2]  # callbacks and the like, which Celery sends along
    except (ValueError, RecursionError, LookupError, TypeError):
        options = {}
    message.body = json.dumps([[], kwargs, options])
    message.content_type = JSON_TYPE
    message.content_encoding = "utf-8"


def unwrapped(
    args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """Return the positional and named arguments that were sent, parsed strictly.

    Raises:
        UsageError: they aren't valid JSON arguments, or have another content type; the error says which.
    """
    positional = list(args)
    keywords = dict(kwargs)
    # A task that Celery sends again, to retry it, has its text nested in a text.
    while set(keywords) == {TEXT} and not positional and isinstance(keywords[TEXT], str):
        positional, keywords = _parse_body(keywords[TEXT])
    if set(keywords) == {OTHER}:
        raise UsageError(
            f"the content type is {str(keywords[OTHER]).split(' ')[0]}; send JSON, as {JSON_TYPE}."
        )
    return positional, keywords


def _parse_body(text: object) -> tuple[list[object], dict[str, object]]:
    try:
        body = codec.load_json(str(text))
    except CorruptDocument as error:
        raise UsageError(f"the arguments aren't JSON: {error}") from error
    match body:
        case [list(args), dict(kwargs), *_]:
            return list[object](args), dict[str, object](kwargs)
    raise UsageError(
        "the body isn't a Celery message: a list of arguments, named arguments and options."
    )


FIRST = {"runner.respond": "response", "runner.start": "task"}
"""The field that a task's only positional argument fills: in a chain, the previous task's result."""


def message_of(
    task: str,
    task_id: str,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    traceparent: str = "",
) -> bytes:
    """Return the JSON message for the stream, made from a task's arguments.

    Raises:
        UsageError: no message can be made; the error says why.
    """
    positional, keywords = unwrapped(args, kwargs)
    if len(positional) == 1 and FIRST[task] not in keywords:
        keywords[FIRST[task]] = positional.pop()
    if positional:
        raise UsageError(
            f"positional arguments; only the {FIRST[task]} may be one: send keyword arguments"
        )
    if keywords.get("proof") is None:  # a signed one is complete, and counts once by its number
        # With the task's id as its key, a task that Celery delivers twice is one message.
        keywords = {
            "v": 1,
            "idempotency_key": task_id,
            **({"traceparent": traceparent} if traceparent else {}),
            **keywords,
        }
    try:
        return pydantic_core.to_json(keywords)
    except pydantic_core.PydanticSerializationError as error:
        raise UsageError(str(error)) from error


def body_text(kwargs: Mapping[str, object]) -> bytes:
    """Return a wrapped body as text that people can read."""
    return "".join(map(str, kwargs.values())).encode(errors="backslashreplace")


# Answers, tasks and results as monitors see them.
#
# The sender's Celery puts the arguments as text into the headers of a message. Celery's worker
# shows them in the event `task-received`, and so in Flower, and in its log, at level DEBUG with the
# body itself. Answers and tasks may be confidential, so monitors see only the ids of their
# messages.

HIDDEN = "(hidden)"


class PrivateText(str):
    """A body that shows only its length in logs."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} characters, hidden>"


class PrivateBytes(bytes):
    """The counterpart of PrivateText for bytes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, hidden>"


def private(*strategy: Any, **options: Any) -> Callable[..., Any]:
    """Handle messages as Celery does, without their arguments in events and logs; for `Task.Strategy`."""
    handle = default(*strategy, **options)

    def handle_hidden(message: Any, body: Any, *callbacks: Any) -> Any:
        if body is None:
            kind = PrivateText if isinstance(message.body, str) else PrivateBytes
            message.body = kind(message.body)
            message.headers = {**message.headers, "argsrepr": HIDDEN, "kwargsrepr": HIDDEN}
        return handle(message, body, *callbacks)

    return handle_hidden


class PrivateRequest(Request):
    """A request whose arguments `celery inspect` doesn't show; for `Task.Request`."""

    def info(self, safe: bool = False) -> Any:  # noqa: FBT001, FBT002, ARG002 - Celery's signature
        """Return the fields that monitors may see."""
        return super().info(safe=True)


# Time limits.
#
# A child of a prefork pool sees the limits in its message or in its task's configuration. Only the
# main process knows the limits of the command `worker --time-limit` or of `celery control
# time_limit`, so a child could not tell that it is killed because of its node. Those limits are
# sent along with the message.


def with_time_limits(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Handle nodes as Celery does, each with its effective limits; for `Task.Strategy`."""
    handle = default(task, app, consumer, info=log_received, **options)
    of_pool = getattr(consumer.pool, "options", {})

    def handle_limited(message: Any, body: Any, *callbacks: Any) -> Any:
        if body is None and not any(message.headers.get("timelimit") or ()):
            hard = task.time_limit or of_pool.get("timeout")
            soft = task.soft_time_limit or of_pool.get("soft_timeout")
            if hard or soft:
                message.headers = {**message.headers, "timelimit": [hard, soft]}
        return handle(message, body, *callbacks)

    return handle_limited


# Messages that expire.
#
# Celery drops a message whose `expires` has passed and tells only the result backend. A person's
# answer must not vanish that way: it becomes a dead letter, which can be replayed.


class ExpiringRequest(PrivateRequest):
    """A request of the tasks `runner.respond` and `runner.start`; for `Task.Request`."""

    def maybe_expire(self) -> bool:
        """Return whether the message has expired; if so, write a dead letter."""
        if not super().maybe_expire():
            return False
        try:
            body = message_of(self.name, self.id, self.args, self.kwargs)
        except UsageError:
            body = body_text(self.kwargs)
        write_dead_letter(
            self.app, self.name, body, f"it expired at {self.expires} before a worker took it."
        )
        return True


# Reconnections to Redis.
#
# At each reconnection kombu registers new timers and callbacks with the event loop and keeps those
# from the previous connection, with everything they refer to: a tenth of a megabyte each time, and
# more calls each time.

REGISTERED = "_runner_registered"
"""The attribute of the event loop, and of the patched function, that marks registered callbacks."""


def timers_of(loop: Any) -> set[Any]:
    """Return the timers of an event loop."""
    return {timer for _, _, timer in loop.timer.queue}


def forget_old_connections() -> None:
    """Make each new connection of an event loop replace the previous one; harmless when called twice."""
    register = redis.Transport.register_with_event_loop
    if getattr(register, REGISTERED, False):
        return

    @wraps(register)
    def replacing(transport: Any, connection: Any, loop: Any) -> None:
        timers, callbacks = getattr(loop, REGISTERED, ((), ()))
        loop.on_tick.difference_update(callbacks)
        for timer in timers:
            timer.cancel()
        timers, callbacks = timers_of(loop), set(loop.on_tick)
        register(transport, connection, loop)
        setattr(loop, REGISTERED, (timers_of(loop) - timers, loop.on_tick - callbacks))

    setattr(replacing, REGISTERED, True)
    redis.Transport.register_with_event_loop = replacing


# Tracebacks.
#
# For each task that raises (and nodes that wait, are retried or fail do), billiard copies the
# position of every instruction of every function in the traceback: half a megabyte and a
# millisecond or more, in reference cycles that Python collects late, so that a worker seems to
# grow. The copies are cached.

CACHED_CODE = 1000
"""Most code objects kept; a worker sees a few dozen."""


def cache_traceback_code() -> None:
    """Make tracebacks share their copies of code objects; harmless when called twice."""
    frame: Any = einfo.Traceback.Frame
    if not isinstance(vars(frame)["Code"], staticmethod):
        frame.Code = staticmethod(lru_cache(CACHED_CODE)(frame.Code))


# Cold shutdown of a pool of threads.
#
# On a cold shutdown Celery calls `terminate_job`, which pools of threads and solo pools don't have:
# it raises NotImplementedError. In a solo pool that error arises inside the running node, which
# fails.


def ignore_terminate_job(pool: Any) -> None:
    """Make a pool that can't terminate a job leave it running."""
    if getattr(pool.terminate_job, "__func__", None) is BasePool.terminate_job:
        pool.terminate_job = lambda *_, **__: None


# The process that unlinks the semaphores of a prefork pool.
#
# Each new child needs some. If that process was killed, the first of them ended the worker with a
# BrokenPipeError.


def restart_semaphore_tracker() -> None:
    """Have billiard's semaphore tracker started again when it has ended."""
    tracker: Any = semaphore_tracker._semaphore_tracker  # noqa: SLF001 - no public way
    write = tracker._send  # noqa: SLF001
    names = set[str]()

    def send(command: str, name: str) -> None:
        begins = command == "REGISTER"
        try:
            if begins or name in names:
                write(command, name)
        except BrokenPipeError:
            log.warning(
                "tracker.restarted: billiard's semaphore tracker has ended; another one starts."
            )
            os.close(tracker._fd)  # noqa: SLF001
            tracker._fd = None  # noqa: SLF001
            names.clear()  # the new one would not know them
            if begins:
                write(command, name)
        (names.add if begins else names.discard)(name)

    tracker._send = send  # noqa: SLF001


# Children that are still starting.
#
# A stopping worker waits until the processes of a prefork pool have started, which takes longer on
# a busy machine, and then ends them.


def end_starting_children(pool: Any) -> None:
    """Kill a stopping pool's processes that have not reported yet: they have no task."""
    processes: Any = getattr(pool, "_pool", None)
    ready_children = getattr(processes, "_all_inqueues", None)
    if ready_children is None:
        return  # not a prefork pool
    for child in list(processes._pool):  # noqa: SLF001 - no public way
        if child.inqW_fd not in ready_children:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
