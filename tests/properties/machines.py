"""Playing the machines of the property tests."""

from __future__ import annotations

import hypothesis
import hypothesis.stateful


def play(machine, examples: int, *, steps: int = 30, **named) -> None:
    """Let hypothesis draw so many runs of a machine; `named` are attributes that this one has."""
    settings = hypothesis.settings(
        max_examples=examples, stateful_step_count=steps, deadline=None
    )
    hypothesis.stateful.run_state_machine_as_test(
        type("Machine", (machine,), named), settings=settings
    )
