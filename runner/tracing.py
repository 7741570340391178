"""OpenTelemetry spans for nodes; needs the extra `otel`. Call `instrument()` where graphs are registered.

Each execution of a node is one span. All spans of a run share one trace, whose id is made from the
run's id, so that nothing has to be handed from worker to worker. A wait for a person is no span: it
may take days. The span after it links to the span before it. No prompt, input or output is recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry import trace
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

from runner import telemetry
from runner.outcomes import Delegated, Expanded, Failed, Handed, Interrupted, NextBatch, Outcome, Succeeded
from runner.visits import ClaimedVisit

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
WORDS = {
    Succeeded: "completed",
    Failed: "failed",
    Interrupted: "waiting",
    Delegated: "delegated",
    Expanded: "expanded",
    Handed: "handed",
    NextBatch: "advanced",
}


def trace_id(run_id: str) -> str:
    """Return the id of a run's trace, as 32 hexadecimal digits."""
    return hashlib.blake2b(run_id.encode(), digest_size=16).hexdigest()


def instrument(provider: TracerProvider | None = None) -> telemetry.Observer:
    """Make a span of every execution of a node from now on, and return the observer that does it.

    Without `provider` it is OpenTelemetry's global one.
    """
    tracer = trace.get_tracer("runner", tracer_provider=provider)

    def observer(place: telemetry.Place, visit: ClaimedVisit):  # type: ignore[no-untyped-def]  # noqa: ANN202 - contextmanager's
        return _span(tracer, place, visit)

    telemetry.attach(observer)
    return observer


@contextmanager
def _span(
    tracer: Tracer, place: telemetry.Place, visit: ClaimedVisit
) -> Iterator[Callable[[Outcome], object]]:
    attributes: dict[str, str | int] = {
        "runner.run_id": place.run_id,
        "runner.graph": place.graph,
        "runner.node": place.node,
        "runner.visit": place.visit,
        "runner.attempt": place.attempt,
    }
    with tracer.start_as_current_span(
        f"{place.graph}/{place.node}",
        context=trace.set_span_in_context(NonRecordingSpan(_root(place.run_id))),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(before)] if (before := _read(visit.trace)) else [],
    ) as span:
        visit.trace = _written(span.get_span_context())
        yield lambda outcome: _tell(span, outcome)


def _tell(span: Span, outcome: Outcome) -> None:
    span.set_attribute("runner.outcome", WORDS[type(outcome)])
    if isinstance(outcome, Failed):
        span.set_status(Status(StatusCode.ERROR, str(outcome.error)))
        told = {"exception.type": outcome.error.name, "exception.message": outcome.error.message}
        span.add_event("exception", {**told, "exception.stacktrace": outcome.error.traceback})
    if isinstance(outcome, Interrupted):
        span.set_attribute("runner.questions", [each.name for each in outcome.interrupts])


def _root(run_id: str) -> SpanContext:
    number = int(trace_id(run_id), 16)
    return SpanContext(number, number & 0xFFFFFFFFFFFFFFFF, is_remote=True, trace_flags=SAMPLED)


def _written(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if context.is_valid else ""


def _read(written: str) -> SpanContext | None:
    parts = written.split("-")
    if len(parts) != len(("version", "trace", "span", "flags")):
        return None
    return SpanContext(int(parts[1], 16), int(parts[2], 16), is_remote=True, trace_flags=SAMPLED)
