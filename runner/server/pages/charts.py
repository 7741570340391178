"""Small charts of the last hour or day of all graphs or one, with a table of their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from runner.immutable import immutable
from runner.operations.installation import SPANS, Sample
from runner.server.pages.rendering import span
from runner.server.services import Services

WIDTH, HEIGHT, LEAST = 240.0, 40.0, 1.0
"""Units of a chart, and the least height of a bar that isn't 0."""

LEVELS = {"waiting", "open"}
"""Figures shown as they are; the others are shown by their increase."""

SERIES = {
    "Runs started": ("started", ""),
    "Nodes completed": ("completed", ""),
    "Nodes failed": ("failed", ""),
    "Nodes waiting for a worker": ("waiting", ""),
    "Time to start": ("queued", "begun"),
    "Open questions": ("open", ""),
    "Questions decided": ("decided", ""),
    "Time to decide": ("deciding", "decided"),
}
"""The figure of each chart; for a mean duration, its sum in seconds and its count.

Decisions are counted for all graphs together.
"""


@immutable
class Chart:
    """One chart: rectangles (x, y, width, height), the highest value, and the last one or the total."""

    title: str
    bars: tuple[tuple[float, float, float, float], ...]
    highest: str
    summary: str


@immutable
class Charts:
    """The charts of a span, and their numbers at the times (ms) of the samples, the newest first."""

    span: str
    charts: tuple[Chart, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


def charts_of(services: Services, span: str, graph: str = "") -> Charts:
    """Draw the charts of a span, "day" or else "hour"."""
    span = span if span in SPANS else "hour"
    seconds, intervals = SPANS[span]
    samples = services.history.read(span, graph)
    # If no worker took samples for some time, the chart has a gap there.
    steps = [
        (earlier, later)
        for earlier, later in pairwise(samples)
        if later["at"] - earlier["at"] < 2000 * seconds
    ]
    begin = services.workers.now() - 1000 * seconds * intervals
    titles = [title for title, names in SERIES.items() if not graph or "decided" not in names]
    values = {title: [_value(title, *step) for step in steps] for title in titles}
    ends = [(earlier["at"] - begin, later["at"] - begin) for earlier, later in steps]
    scale = WIDTH / (1000 * seconds * intervals)
    charts = [_chart(title, values[title], ends, scale) for title in titles]
    rows = [
        (int(later["at"]), tuple(_text(title, values[title][number]) for title in titles))
        for number, (_, later) in enumerate(steps)
    ]
    return Charts(span, tuple(charts), tuple(reversed(rows)))


def _value(title: str, earlier: Sample, later: Sample) -> float | None:
    figure, count = SERIES[title]
    if figure in LEVELS:
        return later.get(figure, 0)
    increase = max(0, later.get(figure, 0) - earlier.get(figure, 0))
    if not count:
        return increase
    number = later.get(count, 0) - earlier.get(count, 0)
    return increase / number if number > 0 else None


def _chart(
    title: str,
    values: Sequence[float | None],
    ends: Sequence[tuple[float, float]],
    scale: float,
) -> Chart:
    numbers = [value for value in values if value is not None]
    highest = max(numbers, default=0.0)
    is_total = not SERIES[title][1] and SERIES[title][0] not in LEVELS
    summary = sum(numbers) if is_total else numbers[-1] if numbers else None
    return Chart(
        title,
        tuple(_bars(values, ends, scale, highest)),
        _text(title, highest),
        _text(title, summary),
    )


def _bars(
    values: Sequence[float | None],
    ends: Sequence[tuple[float, float]],
    scale: float,
    highest: float,
) -> Iterator[tuple[float, float, float, float]]:
    for value, (begin, end) in zip(values, ends, strict=True):
        if value and end > 0:
            height = max(LEAST, HEIGHT * value / highest)
            x = max(0.0, begin * scale)
            yield (
                round(x, 1),
                round(HEIGHT - height, 1),
                round(end * scale - x, 1),
                round(height, 1),
            )


def _text(title: str, value: float | None) -> str:
    if value is None:
        return "-"
    return span(1000 * value) if SERIES[title][1] else f"{value:,.0f}"
