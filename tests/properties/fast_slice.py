"""A seeded slice of the property tests, as a program: it ends with 0 when all of it holds.

It is given the folder that `runner` must come from, so that it can't test another copy by mistake,
"graphs" or "maps", and the address of a Redis where the scripts are to be tried.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
from hypothesis import Phase
from hypothesis.stateful import run_state_machine_as_test

import runner
from tests.properties.test_graph_against_model import Against, AgainstRedis
from tests.properties.test_maps_against_model import AgainstMaps, AgainstMapsInRedis

EXAMPLES = {Against: 700, AgainstRedis: 200, AgainstMaps: 250, AgainstMapsInRedis: 150}
BROKEN = 3
"""What the program ends with when a property does not hold."""


def main(home: str, what: str = "graphs", url: str = "") -> int:
    """Run the slice of graphs or of maps on memory, or on the Redis at `url`."""
    if not Path(runner.__file__).is_relative_to(home):
        raise SystemExit(f"runner is {runner.__file__}, not the copy in {home}")
    machines = {"graphs": (Against, AgainstRedis), "maps": (AgainstMaps, AgainstMapsInRedis)}
    kind = machines[what][bool(url)]
    settings = hypothesis.settings(
        max_examples=EXAMPLES[kind],
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        run_state_machine_as_test(type("Slice", (kind,), {"url": url}), settings=settings)
    except Exception as error:  # noqa: BLE001 - whatever a fault brings about, it was noticed
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return BROKEN
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
