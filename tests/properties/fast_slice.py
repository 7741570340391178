"""A seeded slice of the property tests, as a program: it ends with 0 when all of it holds.

It is given the folder that `runner` must come from, so that it can't test another copy by mistake,
"graphs", "maps" or "exits", and the address of a Redis where the scripts are to be tried.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
from hypothesis import Phase
from hypothesis.stateful import initialize, run_state_machine_as_test

import runner
from tests.properties.test_graph_against_model import TRICKY, Against, AgainstRedis, definitions
from tests.properties.test_maps_against_model import AgainstMaps, AgainstMapsInRedis


class AgainstExits(Against):
    """A loop whose exit meets a branch that is not done: few of the steps that are drawn lead there."""

    @initialize(
        first=definitions("first", TRICKY[-1:]), second=definitions("second", TRICKY[-1:])
    )
    def publish(self, first, second):
        """Let "b" leave its loop and repeat it, and then end it, while "c" still waits for a worker."""
        self.publish_both(first, second)
        for node, bits in (("a", 511), ("b", 511), ("b", 0)):
            bell = next((bell for bell in reversed(self.bells) if bell.node == node), None)
            claim = self.take(bell) if bell else None
            if claim is not None:
                self.settle_with(claim, bits, fails=False)


EXAMPLES = {
    AgainstExits: 20,
    Against: 180,
    AgainstRedis: 220,
    AgainstMaps: 200,
    AgainstMapsInRedis: 220,
}
"""So many runs each slice draws: half as many again as the fault needs that is found last (138)."""
BROKEN = 3
"""What the program ends with when a property does not hold."""


def main(home: str, what: str = "graphs", url: str = "") -> int:
    """Run the slice of graphs or of maps on memory, or on the Redis at `url`."""
    if not Path(runner.__file__).is_relative_to(home):
        raise SystemExit(f"runner is {runner.__file__}, not the copy in {home}")
    machines = {
        "exits": (AgainstExits, AgainstExits),
        "graphs": (Against, AgainstRedis),
        "maps": (AgainstMaps, AgainstMapsInRedis),
    }
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
