"""A drawing of a run for people, live if watched: a line for each node, and its open questions below."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from runner.approvals.rule_text import deciders
from runner.approvals.rules import plain_name
from runner.authoring.drawing.diagram import SIGNS
from runner.cli.output import NARROW, Output, clock_time, compact, short, style, times
from runner.operations.decided import VERBS, DecisionView
from runner.operations.exports import Question, event_of
from runner.operations.views import NodeView, RunView, read_run, spendings
from runner.records.interrupts import Interrupt
from runner.records.json_form import span
from runner.records.listings import grouped
from runner.records.validation import one_line
from runner.store.interface import Event, Store

QUIET = ("completed", "skipped", "pending", "ready", "cancelled")
"""Statuses of the nodes that are only counted when there are more nodes than lines."""

BUSY = frozenset({"ready", "running", "retrying"})

ENDED = frozenset({"completed", "skipped", "failed", "cancelled"})

MANY = 10
"""Number of nodes from which a run that is executing has a progress bar of its own."""

MAX_ITEMS = 20
"""Maximum number of waiting or failed items of a map that are shown; the others are counted."""


def draw(run: RunView, now: int, lines: int = 0, *, wrap: bool = False) -> Tree:
    """Draw a run. `now` is in ms; with `lines` set, quiet nodes that don't fit are only counted.

    Errors and questions continue on the next line; another line that is too long is cut off, unless
    `wrap` is set, for narrow terminals.
    """
    heading: RenderableType = _heading(run, now)
    if run.status == "executing" and len(run.nodes) >= MANY:
        count = sum(node.status in ENDED for node in run.nodes)
        heading = Group(heading, _bar(count, len(run.nodes), now - run.created_at))
    tree = Tree(heading, guide_style="dim")
    _add_nodes(tree, run, now, lines)
    if wrap:
        _wrap(tree)
    return tree


def _wrap(tree: Tree) -> None:
    label = tree.label
    for text in label.renderables if isinstance(label, Group) else [label]:
        if isinstance(text, Text):
            text.no_wrap, text.overflow = False, "fold"
    for branch in tree.children:
        _wrap(branch)


def people(interrupt: Interrupt) -> str:
    """Name the people who may answer."""
    return one_line(deciders(interrupt.rule, interrupt.assignees))


def pending(question: Question) -> str:
    """Describe a decision that can still be taken back; "" if there is none."""
    if (undo := question.undo) is None:
        return ""
    voter = one_line(plain_name(undo.by))
    return f"{VERBS[undo.decision]} by {voter}, takes effect at {clock_time(undo.ends_at)}"


def _heading(run: RunView, now: int) -> Text:
    duration = span((run.ended_at or now) - run.created_at)
    heading = Text.assemble(
        (one_line(run.graph), "bold"),
        "  ",
        (run.status, style(run.status)),
        (", archived" if run.archived else "", "dim"),
        f"  {duration}  ",
        (run.run_id, "dim"),
    )
    if run.requester:
        people = (run.requester, *run.on_behalf_of)
        heading.append(f"  by {one_line(' for '.join(map(plain_name, people)))}", style="dim")
    if run.spent:
        spent = ", ".join(
            f"{amount} {name.replace('_', ' ')}" for name, amount in spendings(run.spent)
        )
        heading.append(f"  spent {spent}", style="dim")
    if run.frozen:
        heading.append(f"  {run.frozen}", style="red")
    if run.reason:
        # If no node has begun, the reason says why the run waits.
        queued = run.status == "executing" and all(
            node.status == "pending" for node in run.nodes
        )
        heading.append(f"  {one_line(run.reason)}", style="yellow" if queued else "red")
    return heading


def _add_nodes(tree: Tree, run: RunView, now: int, lines: int) -> None:
    nodes, hidden_counts = _fitting(run, lines)
    by_node = attrgetter("node_id")
    questions = grouped((item for item in run.interrupts if item.run_id == run.run_id), by_node)
    decided = grouped((item for item in run.decided if item.run_id == run.run_id), by_node)
    width = min(32, max((len(node.id) for node in nodes), default=0))
    for node in nodes:
        line = _line(node, now, width)
        bar = _bar_of(node, now)
        branch = tree.add(Group(line, bar) if bar else line)
        for decision in decided.get(node.id, ()):
            branch.add(_decision(decision))
        for question in questions.get(node.id, ()):
            branch.add(_question(question, now))
        if node.error is not None and node.error.location:
            branch.add(Text(f"at {one_line(node.error.location)}", "dim", overflow="fold"))
        if node.wait:
            branch.add(Text(node.wait, "dim", overflow="fold"))
        if node.run is not None:
            _add_nodes(branch, node.run, now, 0)
        _add_items(branch, node, questions, now, min(MAX_ITEMS, lines // 3 or MAX_ITEMS))
    if hidden_counts:
        counts = ", ".join(f"{number} {status}" for status, number in hidden_counts.items())
        tree.add(Text(f"… and {counts}", style="dim"))


def _add_items(
    branch: Tree, node: NodeView, questions: dict[str, list[Question]], now: int, most: int
) -> None:
    """Add the items of a map that need attention, `most` of them; the map's own line counts the others."""
    items = [
        item
        for item in node.items
        if item.status != "completed"
        and (item.id in questions or item.run or item.status == "failed")
    ]
    for item in items[:most]:
        line = branch.add(_line(item, now, 0))
        for question in questions.get(item.id, ()):
            line.add(_question(question, now))
        if item.run is not None and item.run.status != "completed":
            _add_nodes(line, item.run, now, 0)
    if len(items) > most:
        branch.add(Text(f"… and {len(items) - most} more", style="dim"))


def _bar_of(node: NodeView, now: int) -> Table | None:
    """Draw the progress of a map that runs, or of a node whose code reports it."""
    percent, mark, _ = node.progress.partition("%")
    if _status(node) != "running":
        return None
    if node.total:
        return _bar(
            sum(item.status in ENDED for item in node.items), node.total, now - node.since
        )
    if mark and percent.isdecimal():
        return _bar(int(percent), 100, now - node.since, rate=False)
    return None


def _bar(count: int, total: int, duration: int, *, rate: bool = True) -> Table:
    """Draw progress as a bar with its rate and the remaining time; `duration` is in ms."""
    rate_now = count * 1000 / max(1, duration)
    texts = [f"{count * 100 // total}%"]
    if 0 < count < total and duration > 0:
        if rate and rate_now >= 0.05:
            texts.append(f"{rate_now:,.{int(rate_now < 10)}f}/s")
        texts.append(f"{span(duration * (total - count) // count)} left")
    grid = Table.grid(padding=(0, 2))
    grid.add_row(ProgressBar(total, count, width=24), "  ".join(texts))
    return grid


def _counts(node: NodeView) -> str:
    """Count the items of a map: "1 failed, 3 of 5 items done, 1 waiting"; the line may be cut off later."""
    counts = Counter(_status(item) for item in node.items)
    details = [
        f"{counts[status]} {status}"
        for status in ("failed", "running", "waiting", "retrying")
        if counts[status]
    ]
    details.insert(counts["failed"] > 0, f"{counts['completed']} of {node.total} items done")
    return ", ".join(details)


def _fitting(run: RunView, lines: int) -> tuple[list[NodeView], dict[str, int]]:
    """Choose the nodes to show, and count the others by status."""
    if not lines or len(run.nodes) + len(run.interrupts) <= lines:
        return list(run.nodes), {}
    shown = [node for node in run.nodes if node.status not in QUIET][: max(1, lines - 1)]
    return shown, dict(Counter(node.status for node in run.nodes if node not in shown))


def _line(node: NodeView, now: int, width: int) -> Text:
    status = _status(node)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{SIGNS.get(status, '·')} ", style=style(status)).append(
        f"{one_line(node.id):<{width}}  "
    )
    line.append(f"{status:<9}", style=style(status))
    for detail in _details(node, now):
        line.append(f"  {detail}")
    if node.error is not None:
        line.append(f"  {short(node.error.summary, 500)}", style="red")
        line.no_wrap, line.overflow = False, "fold"
    elif node.status == "completed" and node.output is not None:
        line.append(f"  {short(node.output)}", style="dim")
    return line


def _status(node: NodeView) -> str:
    """Return a node's status: running, if it waits for a child run or items that run."""
    busy = node.run is not None and node.run.status == "executing"
    busy = busy or any(_status(item) in BUSY for item in node.items)
    return "running" if node.status == "waiting" and busy else node.status


def _details(node: NodeView, now: int) -> Iterator[str]:
    if node.status in {"running", "waiting", "retrying"}:
        yield span(now - node.since)
    elif node.status in {"completed", "failed"}:
        yield span(node.execution_ms)
    if node.worker and node.status in {"running", "failed"}:
        yield f"on {one_line(node.worker)}"
    if node.total:
        yield _counts(node)
    if node.visit > 1:
        yield f"visit {node.visit}"
    if node.attempts > 1:
        yield f"attempt {node.attempts}"
    if node.status in {"ready", "running", "retrying"} and node.progress:
        yield one_line(node.progress)
    if node.skipped:
        yield f"skipped by {one_line(plain_name(node.skipped))}, did not run"


def _question(question: Question, now: int) -> Group:
    line = Text(overflow="fold")
    line.append(f"asks {one_line(question.title)}", style="yellow").append(
        f" of {people(question)}"
    )
    line.append(f"  {pending(question)}" if question.undo else "", style="bold")
    line.append(f"  {short(question.reason, 50)}", style="dim")
    if question.expires_at:
        remaining = question.expires_at - now
        line.append(f"  expires in {span(remaining)}" if remaining > 0 else "  expires now")
    if question.reminded:
        line.append(f"  reminded {times(question.reminded)}")
    # People copy the id, so it is never cut.
    return Group(line, Text(question.id, style="dim", overflow="fold"))


def _decision(decision: DecisionView) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{one_line(decision.title)} ").append(
        one_line(decision.sentence), style="bold"
    )
    line.append(f"  {clock_time(decision.answered_at)}", style="dim")
    for who, comment in decision.comments.items():
        line.append(f"  {one_line(plain_name(who))}: {short(comment, 60)}", style="dim")
    return line


POLL = 0.5
"""Maximum seconds of a blocking read of events; then the run's status is read again."""

PAUSE = 0.1
"""Seconds between two drawings, so that a quick run doesn't spend its time on drawing."""

REST = 3
"""Length of the pause after a read of the run, as a multiple of the read's time: slow runs are read less."""

ShowEvents = Callable[[Sequence[Event]], None]


def watch_until_idle(
    store: Store, run_id: str, output: Output, *, timeout: float | None
) -> None:
    """Show a run on stderr until it has ended or waits only for people; `timeout` in seconds.

    Raises:
        TimeoutError: the run was still executing then; it continues.
        NotFoundError: there is no such run.
    """
    _watch(store, run_id, progress(store, run_id, output), timeout=timeout)


def watch_on_stdout(
    store: Store, run_id: str, output: Output, *, follow: bool, timeout: float | None
) -> None:
    """Show a run on stdout; with `follow` until it has ended, also while it waits for people.

    Raises:
        TimeoutError, NotFoundError: as in `watch_until_idle`.
    """
    display: AbstractContextManager[ShowEvents]
    if output.as_json:
        display = nullcontext(_each(lambda event: output.event(event_of(event))))
    elif output.is_terminal and not output.console.is_dumb_terminal:
        display = _live(store, run_id, output.console, stays=True)
    else:
        display = _lines(store, run_id, output.line)
    _watch(store, run_id, display, timeout=timeout, follow=follow)


def progress(store: Store, run_id: str, output: Output) -> AbstractContextManager[ShowEvents]:
    """Choose how events are shown on stderr: as a live tree, or as lines."""
    if output.shows_progress and not output.as_json:
        return _live(store, run_id, output.errors)
    return _lines(store, run_id, output.note)


def until_idle(
    store: Store,
    run_id: str,
    deadline: float | None = None,
    position: str = "",
    *,
    follow: bool = False,
) -> Iterator[Sequence[Event]]:
    """Yield a run's new events, sometimes none, until it has ended or waits only for people.

    `deadline` is in seconds of the monotonic clock. With `follow`, only the end of the run counts.
    """
    while True:
        is_active = _is_active(store, run_id, follow=follow)
        remaining = POLL if deadline is None else min(POLL, deadline - time.monotonic())
        events = store.events(run_id, position, wait=max(0.0, remaining) if is_active else 0)
        if events:
            position = events[-1].position
        elif not is_active or remaining <= 0:
            return
        yield events


def event_line(event: Event, began: int) -> tuple[str, ...]:
    """Return an event as the cells of one line: time since the start, kind, node, details."""
    data = compact(event.data) if event.data is not None else ""
    return span(event.at - began), str(event.kind), event.node, f"{event.detail} {data}".strip()


def wall_clock() -> int:
    """Return this machine's time in ms, which people can't tell from the store's."""
    return time.time_ns() // 1_000_000


def _watch(
    store: Store,
    run_id: str,
    display: AbstractContextManager[ShowEvents],
    *,
    timeout: float | None,
    follow: bool = False,
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    with display as show_events:
        for events in until_idle(store, run_id, deadline, follow=follow):
            show_events(events)
    if _is_active(store, run_id, follow=follow):
        raise TimeoutError(f"run {run_id} is still running after {timeout:g} s; it continues.")


def _is_active(store: Store, run_id: str, *, follow: bool) -> bool:
    record = store.peek(run_id)
    if record is None:
        return False
    return not record.is_final if follow else str(record.status) == "executing"


@contextmanager
def _lines(store: Store, run_id: str, write: Callable[..., None]) -> Iterator[ShowEvents]:
    began = read_run(store, run_id).created_at
    yield _each(lambda event: write(*event_line(event, began)))


def _each(show: Callable[[Event], None]) -> ShowEvents:
    def show_events(events: Sequence[Event]) -> None:
        for event in events:
            show(event)

    return show_events


@contextmanager
def _live(
    store: Store, run_id: str, console: Console, *, stays: bool = False
) -> Iterator[ShowEvents]:
    """Draw the run as last read, with current times. With `stays` the last drawing is whole."""
    from rich.live import Live

    run = read_run(store, run_id)
    is_whole = False

    def draw_run() -> RenderableType:
        lines = 0 if is_whole else console.height - 3
        # The last drawing stays on the screen, so no line is cut off.
        return draw(run, wall_clock(), lines, wrap=is_whole and console.width < NARROW)

    def show_events(events: Sequence[Event]) -> None:
        nonlocal run
        if not events:
            return  # nothing has changed, not even in child runs; the times continue without a read
        began = time.monotonic()
        run = read_run(store, run_id)
        time.sleep(max(PAUSE, REST * (time.monotonic() - began)))

    with Live(
        get_renderable=draw_run, console=console, refresh_per_second=4, transient=not stays
    ):
        yield show_events
        run = read_run(store, run_id)
        is_whole = stays
