"""The sweep: every worker looks now and then at what is due, so that nothing needs a leader."""

from __future__ import annotations

import random

from tasks.background import Background

BATCH = 100


class Sweeper(Background):
    """Sweeps every RUNNER_SWEEP_INTERVAL seconds; at once again while there is more than one batch."""

    label = "sweeper"

    def turn(self) -> None:
        """Do what is due, then rest; the rest differs, so that workers don't sweep all at once."""
        while self.engine.sweep(BATCH) >= BATCH and not self.stopping.is_set():
            continue
        self.stopping.wait(self.settings.sweep_interval * random.uniform(0.8, 1.2))  # noqa: S311 - jitter is no secret
