"""What one step of the agent's machine has changed and asked for so far, and the moves all share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from runner.agent.state import AgentState, Call, Site, Stage, waits_for
from runner.agent.values import Definition, Finish, Fire, Publish, Request
from runner.asking import answered
from runner.failures import ErrorRecord
from runner.interrupts import Interrupt


class Draft:
    """A state under change. `moved` asks the step to go on from the phase that was set."""

    def __init__(self, definition: Definition, state: AgentState) -> None:
        self.definition = definition
        self.state = state
        self.requests: list[Request] = []
        self.moved = False

    def put(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def add(self, *requests: Request) -> None:
        """Ask the drive for something."""
        self.requests.extend(requests)

    def go_on(self, **changes: Any) -> None:
        """Change fields and continue from the phase that then holds."""
        self.put(**changes)
        self.moved = True

    # -- calls ------------------------------------------------------------------------------------

    def call(self, key: str) -> Call:
        """Return a call of the batch by its tool use id."""
        return next(call for call in self.state.calls if call.id == key)

    def put_call(self, key: str, **changes: Any) -> None:
        """Change fields of one call."""
        self.put(calls=[replace(c, **changes) if c.id == key else c for c in self.state.calls])

    # -- hook events ------------------------------------------------------------------------------

    def open_site(self, event: str, key: object, number: int) -> None:
        """Fire an event of the loop."""
        site = Site(event, str(key), number, [], replayed=False)
        self.put(site=site)
        self.add(fire(site))

    def open_edge(self, event: str, number: int) -> None:
        """Fire an event around the pass."""
        site = Site(event, "", number, [], replayed=False)
        self.put(edge=site)
        self.add(fire(site))

    def note(self, questions: Sequence[Interrupt]) -> list[str]:
        """Keep questions, publish the new ones and return the ids of all."""
        new = [question for question in questions if question.id not in self.state.questions]
        if new:
            self.put(questions={**self.state.questions, **{question.id: question for question in new}})
            self.add(Publish(new))
        return [question.id for question in questions]

    # -- ends -------------------------------------------------------------------------------------

    def conclude(self, stop_reason: str) -> None:
        """End the pass: the agent is done, or waits, or was cancelled."""
        self.put(stage=Stage.CLOSING, stop_reason=stop_reason)
        self.open_edge("after_invocation", self.state.passes)

    def fail(self, error: ErrorRecord) -> None:
        """End the invocation in an error; what was reached is kept for another attempt."""
        self.put(failure=self.state.failure or error)
        if self.state.stage is Stage.RUNNING:
            self.put(stage=Stage.FAILING)
            self.add(Fire("after_invocation", "", self.state.passes, replay=False))
        else:
            self.finish("failed")

    def finish(self, kind: Literal["done", "interrupt", "failed"]) -> None:
        """Leave; questions that were not asked again are forgotten."""
        open_ids = {question.id for question in waits_for(self.state)}
        kept = {k: q for k, q in self.state.questions.items() if answered(q) or k in open_ids}
        self.put(questions=kept)
        self.add(Finish(kind))


def fire(site: Site) -> Fire:
    """Ask for a site's event to be fired."""
    return Fire(site.event, site.key, site.number, replay=site.replayed)
