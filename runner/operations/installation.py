"""Access of `cli` and `server` to a store, which is opened here, once, from the settings."""

from __future__ import annotations

from functools import cached_property

from runner.errors import ConflictError, NotFoundError
from runner.execution.engine import Engine
from runner.limits.control import LimitControl
from runner.records.metrics import Metric
from runner.records.run import PATH
from runner.records.validation import similar
from runner.schedules.schedule import Schedule
from runner.schedules.scheduler import Scheduler
from runner.store.shared import SPANS, AuditLog, NoticeTail, Sample, Shared
from runner.webhooks.delivery import WebhookAdmin

__all__ = ["SPANS", "AuditLog", "Installation", "NoticeTail", "Sample"]


class Installation(Shared):
    """A store, with the webhooks, schedules and limits that people manage there."""

    @cached_property
    def webhooks(self) -> WebhookAdmin:
        """The webhooks."""
        return WebhookAdmin(self)

    def scheduler(self, engine: Engine) -> Scheduler:
        """Return the schedules; the engine starts their runs."""
        return Scheduler(engine, self.documents(Schedule))

    @cached_property
    def limits(self) -> LimitControl:
        """The limits of graphs, which operators may change."""
        return LimitControl(self)

    def metrics(self) -> list[Metric]:
        """Read all metrics, including the limits'; raise StoreError if a server can't be reached."""
        return [*super().metrics(), *self.limits.metrics()]

    def graphs(self) -> dict[str, str]:
        """Return the fingerprints of the graphs that workers have published, without inner graphs."""
        fingerprints = sorted(self.store.graphs().items())
        return {name: fingerprint for name, fingerprint in fingerprints if PATH not in name}

    def remove_graph(self, name: str) -> None:
        """Delete a graph that is no longer needed, with the graphs inside it.

        Raises:
            NotFoundError: the graph doesn't exist. ConflictError: a worker has it, a schedule names it, or
                runs of it are in the store; nothing was changed.
        """
        if name not in self.graphs():
            raise NotFoundError(
                f"this store has no graph {name!r}.{similar(name, self.graphs())}"
            )
        now = self.workers.now()
        workers = [
            worker.name
            for worker in self.workers.all()
            if name in worker.graphs and worker.alive(now)
        ]
        schedules = [each.id for each in self.documents(Schedule).all() if each.graph == name]
        problem = ""
        if workers:
            problem = (
                f"the worker {workers[0]} has it and would publish it again; stop it first"
            )
        elif schedules:
            problem = f"the schedule {schedules[0]!r} starts it; remove that first"
        elif runs := self.store.remove_graph(name):
            problem = (
                f"runs of it are in the store ({runs}); end those that are open, and wait until they "
                "expire (RUNNER_RETENTION), or delete them with `runner runs remove`"
            )
        if problem:
            raise ConflictError(f"the graph {name!r} was not removed: {problem}.")
