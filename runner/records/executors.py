"""The protocol of executors: the visit they get, its inputs, and the outcome they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Unpack

from runner.approvals.ballots import Use
from runner.approvals.rules import Approval, Rule
from runner.immutable import immutable
from runner.records import codec
from runner.records.budgets import Spending, Sum, Tagged
from runner.records.checkpoints import Saved, Session
from runner.records.codec import JSON, JSONMapping, JSONObject, LazyValue
from runner.records.interrupts import Address, Interrupt, InterruptOptions
from runner.records.outcomes import Outcome

restorers: dict[str, Callable[[Any], Any]] = {}
"""Functions that restore packed results, by executor kind; executors register their own."""


@immutable
class Input:
    """One live incoming edge: the upstream node, its visit, and its output as it is stored."""

    node_id: str
    visit: int
    value: JSON | LazyValue

    @property
    def output(self) -> JSON:
        """The output as plain JSON data; a large one is decoded on each read."""
        return codec.read(self.value)


class Visit(Protocol):
    """An executor's access to its visit: everything it may read and do while its node executes.

    All values are plain or unpacked copies, except `input_values`: the task and inputs as stored.
    Methods that write raise LeaseLost when the node now belongs to another worker.
    """

    address: Address
    graph_id: str
    attempt: int
    inputs: Sequence[Input]
    input_values: Sequence[JSON | LazyValue]
    invocation_state: JSONObject
    answers: Mapping[str, Interrupt]
    document: JSONObject | None
    messages: list[JSON]
    external_task: ExternalTaskState | None

    @property
    def task(self) -> Any:
        """The task of the run; for an item of a map, the item."""

    @property
    def idempotency_key(self) -> str:
        """The same text for every start of this visit: `run.node.visit`."""

    def question(
        self,
        name: str,
        reason: object = None,
        *,
        scope: str,
        number: int = 1,
        **options: Unpack[InterruptOptions],
    ) -> Interrupt:
        """Build a question of this visit, under the id of its answer if `answers` has one.

        `scope` and `number` distinguish questions of one name. A withdrawn question gets a new id.
        """

    def check_effect(self, tool: str = "") -> None:
        """Raise EffectsFrozen if an effect of this graph, or a call of this tool, is frozen."""

    def save(self, checkpoint: Saved) -> None:
        """Write a checkpoint, from which the next attempt starts."""

    def ask(self, interrupts: Sequence[Interrupt], checkpoint: Saved) -> None:
        """Publish questions now, while other work of this node continues."""

    def use(self, use: Use, checkpoint: Saved | None = None) -> None:
        """Record the use of a decision, with a checkpoint; a second use raises ApprovalMismatch."""

    def approved(
        self,
        name: str,
        action: JSONMapping | None,
        rule: Rule | None,
        node: str | None,
    ) -> tuple[Interrupt, Approval]:
        """Return another node's question and the approval of an action; see `NodeContext`."""

    def recall(self, session_id: str) -> Session:
        """Read a session as completed visits have left it; an unknown session is empty."""

    def spend(self, tag: Tagged | None, spending: Spending) -> str:
        """Add to the sum of the run or a tag; if a bound is reached return its counter, else ""."""

    def open_raise(self, tag: Tagged | None, counter: str) -> str:
        """Ask to raise a bound: return the visit that already asks, "!" and a refusal, or ""."""

    def close_raise(self, tag: Tagged | None, counter: str, refusal: str = "") -> None:
        """Let visits that wait for this visit's request continue; with a refusal they fail."""

    def spent(self, tag: Tagged | None) -> dict[str, Sum]:
        """Return the sum of the run, or of a tag, by counter."""

    def tags(self) -> dict[str, str]:
        """Return the run's tags."""

    def emit(self, kind: str, data: JSONMapping) -> None:
        """Add an event (progress, text delta …) to the run's events."""

    def check(self) -> None:
        """Raise LeaseLost when the lease is lost, the run is cancelled or the deadline has passed."""

    def check_store(self) -> None:
        """Raise as `check` does; ask the store first unless it replied within half a second."""


class Executor(Protocol):
    """Anything that can be a node: it runs one execution and returns its outcome.

    `execute` must not raise an error of the node's own code, but return `Failed`. It may block; it
    is called on its own thread. With a true `is_async` it only waits in `async_loop.run`.
    """

    kind: str

    def execute(self, visit: Visit) -> Outcome:
        """Run the node until it is done, failed or waits for a person."""


@immutable
class ExternalTaskState:
    """The external task of this attempt: `report` is its packed outcome or None; `late` says that
    no report came within the node's timeout.
    """

    reference: str
    report: JSON = None
    late: bool = False


# The input of a node: the task and the outputs of the nodes before it, in edge order.
#
# The text has the form that Strands' graphs pass to their agents, so that prompts written for them
# work the same here; inputs come in the order of the edges.


def function_input(task: Any, inputs: Sequence[Input]) -> tuple[str, Any]:
    """Choose the argument of a typed function, as plain JSON: the only input, several inputs by
    node id, or the task if there are none. The text describes the choice.
    """
    if len(inputs) == 1:
        return f"the output of {inputs[0].node_id!r}", inputs[0].output
    if inputs:
        return "the input by node id", {item.node_id: item.output for item in inputs}
    return "the task", codec.plain(task)


def input_blocks(task: Any, inputs: Sequence[Input]) -> list[JSONObject]:
    """Build the content blocks for an agent: the task, and a section per input."""
    task_blocks = task if is_blocks(task) else [{"text": as_text(task)}]
    if not inputs:
        return list(task_blocks)
    blocks = (
        [{"text": "Original Task:"}, *task_blocks]
        if is_blocks(task)
        else [{"text": f"Original Task: {as_text(task)}"}]
    )
    blocks.append({"text": "\nInputs from previous nodes:"})
    for item in inputs:
        blocks += [
            {"text": f"\nFrom {item.node_id}:"},
            {"text": f"  - Agent: {as_text(item.output)}"},
        ]
    return blocks


def is_blocks(task: Any) -> bool:
    """Return whether a task is content blocks."""
    return (
        isinstance(task, list) and bool(task) and all(isinstance(item, dict) for item in task)
    )


def input_text(task: Any, inputs: Sequence[Input]) -> str:
    """Build the same input as one text, with a line for each block."""
    return "\n".join(block["text"] for block in input_blocks(task, inputs) if "text" in block)


def as_text(value: Any) -> str:
    """Format a value: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else codec.dump_json(codec.plain(value)).decode()
