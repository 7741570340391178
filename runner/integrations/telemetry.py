"""OpenTelemetry spans for nodes, model calls and tool calls; needs the extra `otel`.

Call `instrument()` where graphs are registered. Each execution of a node is one span, and each call
of a model or tool is a span inside it. The spans of a run and its child runs are children of the
span in which the run was started. A run started outside any span gets a new trace, whose id is
derived from the run's id so that workers needn't pass anything on; its nodes' spans have no parent.
A wait for a person has no span, because it may take days; the span after it links to the span
before it. No prompt, input or output is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from runner.agent.effects import CallEnd, ObservedCall, call_observers
from runner.errors import needs_extra
from runner.execution import telemetry
from runner.execution.context import ClaimedVisit
from runner.records.outcomes import Failed, Interrupted, Outcome

with needs_extra("otel", "OpenTelemetry"):
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        TracerProvider,
    )

ORIGINS = 1_000
"""Maximum number of runs whose origin a process remembers."""


def instrument(provider: TracerProvider | None = None) -> telemetry.Observer:
    """Create a span for every node execution, model call and tool call from now on.

    Without `provider`, OpenTelemetry's global one is used. To stop, pass the returned observer to
    `telemetry.detach`.
    """
    tracer = trace.get_tracer("runner", tracer_provider=provider)
    origins: dict[str, tuple[str, str]] = {}

    def observer(running_node: telemetry.RunningNode, visit: ClaimedVisit):  # type: ignore[no-untyped-def]  # noqa: ANN202 - contextmanager's
        if running_node.run_id not in origins:
            if len(origins) >= ORIGINS:
                origins.pop(next(iter(origins)))
            origins[running_node.run_id] = _origin(visit)
        return _span(tracer, running_node, visit, *origins[running_node.run_id])

    def call_observer(call: ObservedCall):  # type: ignore[no-untyped-def]  # noqa: ANN202 - as above
        if telemetry.is_attached(observer):
            return _call_span(tracer, call)
        return nullcontext(lambda _: None)

    telemetry.attach(observer)
    call_observers.append(call_observer)
    return observer


def _origin(visit: ClaimedVisit) -> tuple[str, str]:
    """Return the id of a run's outermost run, and the traceparent of the span that started it."""
    record = visit.store.peek(visit.address.run_id)
    if record is not None and record.root not in ("", record.run_id):
        record = visit.store.peek(record.root) or record
    return (record.run_id, record.trace) if record is not None else (visit.address.run_id, "")


@contextmanager
def _span(
    tracer: Tracer,
    running_node: telemetry.RunningNode,
    visit: ClaimedVisit,
    root: str,
    traceparent: str,
) -> Iterator[Callable[[Outcome], object]]:
    caller = _read(traceparent)
    if caller is not None:
        context = trace.set_span_in_context(NonRecordingSpan(caller))
    else:
        # No parent: a made-up one would be missing in every exported trace.
        context = Context()
        _use_trace_ids(tracer)
    token = _next_trace.set(int(telemetry.trace_id(root), 16))
    attributes: dict[str, str | int] = {
        "runner.run_id": running_node.run_id,
        "runner.graph": running_node.graph,
        "runner.node": running_node.node,
        "runner.visit": running_node.visit,
        "runner.attempt": running_node.attempt,
    }
    try:
        span = tracer.start_span(
            f"{running_node.graph}/{running_node.node}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(parent)] if (parent := _read(visit.trace)) else [],
        )
    finally:
        _next_trace.reset(token)
    with trace.use_span(span, end_on_exit=True):
        visit.trace = _written(span.get_span_context())
        yield lambda outcome: _tell(span, outcome)


def _tell(span: Span, outcome: Outcome) -> None:
    span.set_attribute("runner.outcome", telemetry.OUTCOMES[type(outcome)])
    if isinstance(outcome, Failed):
        span.set_status(Status(StatusCode.ERROR, str(outcome.error)))
        exception = {
            "exception.type": outcome.error.name,
            "exception.message": outcome.error.message,
        }
        span.add_event(
            "exception", {**exception, "exception.stacktrace": outcome.error.traceback}
        )
    if isinstance(outcome, Interrupted):
        span.set_attribute(
            "runner.questions", [interrupt.name for interrupt in outcome.interrupts]
        )


@contextmanager
def _call_span(tracer: Tracer, call: ObservedCall) -> Iterator[Callable[[CallEnd], object]]:
    """Create a model or tool call's span, by OpenTelemetry's conventions for generative AI."""
    operation = {"model": "chat", "tool": "execute_tool"}[call.kind]
    attributes = {"gen_ai.operation.name": operation, "gen_ai.agent.name": call.agent}
    if call.kind == "tool":
        attributes["gen_ai.tool.name"] = call.name
    kind = SpanKind.CLIENT if call.kind == "model" else SpanKind.INTERNAL
    with tracer.start_as_current_span(
        f"{operation} {call.name}", kind=kind, attributes=attributes
    ) as span:

        def finish(end: CallEnd) -> None:
            for name, key in (
                ("inputTokens", "input_tokens"),
                ("outputTokens", "output_tokens"),
            ):
                if name in end.usage:
                    span.set_attribute(f"gen_ai.usage.{key}", end.usage[name])
            if end.error == "interrupt":
                span.set_attribute("runner.outcome", "waiting")
            elif end.error:
                span.set_attribute("error.type", end.error)
                span.set_status(Status(StatusCode.ERROR, end.error))

        yield finish


class _TraceIds:
    """An id generator that gives spans without a parent the trace id in `_next_trace`."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_trace_id(self) -> int:
        return _next_trace.get() or int(self._generator.generate_trace_id())

    def generate_span_id(self) -> int:
        return int(self._generator.generate_span_id())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


_next_trace: ContextVar[int] = ContextVar("runner_next_trace", default=0)


def _use_trace_ids(tracer: Tracer) -> None:
    """Give our tracer, used by no other code, the id generator above; other SDKs keep their ids."""
    real: Any = getattr(
        tracer, "_tracer", tracer
    )  # the global provider's tracer may be set later
    generator = getattr(real, "id_generator", None)
    if generator is not None and not isinstance(generator, _TraceIds):
        real.id_generator = _TraceIds(generator)


def _written(context: SpanContext) -> str:
    flags = int(context.trace_flags)
    if context.is_valid:
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
    return ""


def _read(traceparent: str) -> SpanContext | None:
    try:
        _, trace_number, span_number, flags = (
            int(field, 16) for field in traceparent.split("-")
        )
    except ValueError:
        return None
    context = SpanContext(
        trace_number, span_number, is_remote=True, trace_flags=TraceFlags(flags)
    )
    return context if context.is_valid else None
