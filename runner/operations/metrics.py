"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from runner.records.metrics import Metric

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""Escapes in the value of a label."""


def prometheus(metrics: Iterable[Metric]) -> str:
    """Format metrics as lines, each family with its help and type before its first number."""
    lines: list[str] = []
    families: set[str] = set()
    for metric in metrics:
        single = "counter" if metric.name.endswith("_total") else "gauge"
        family, kind = (metric.family, "histogram") if metric.family else (metric.name, single)
        if family not in families:
            lines += [f"# HELP {family} {metric.help}", f"# TYPE {family} {kind}"]
        families.add(family)
        whole = float(metric.value).is_integer()
        lines.append(
            f"{metric.name}{_labels(metric)} {int(metric.value) if whole else metric.value}"
        )
    return "".join(f"{line}\n" for line in lines)


def _labels(metric: Metric) -> str:
    labels = ",".join(
        f'{name}="{value.translate(ESCAPES)}"' for name, value in metric.labels.items()
    )
    return f"{{{labels}}}" if labels else ""
