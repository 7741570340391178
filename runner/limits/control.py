"""Listing the limits of all graphs, and changing them while workers run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from shlex import quote

from runner.errors import NotFoundError, UsageError
from runner.immutable import immutable
from runner.limits.limit import Limit, name_of
from runner.limits.setting import DeclaredNumbers, LimitPause, LimitSetting, is_of
from runner.records import validation
from runner.records.listings import grouped
from runner.records.metrics import Metric
from runner.store.interface import Store
from runner.store.requests import ChangeLimit
from runner.store.shared import Shared, WaitingKey


@immutable
class Declaration:
    """The numbers of a limit in the code of some graphs; None for a number that it doesn't limit.

    `by` says how it is divided into keys, as in its `Limit`.
    """

    by: str
    concurrency: int | None
    interval: int | None
    graphs: list[str]

    def numbers(self, name: str) -> DeclaredNumbers:
        """Return the numbers with the start of the limit's keys."""
        start = name if self.by == "all" else f"{name}:{self.by}:"
        return start, self.concurrency or 0, self.interval or 0


@immutable
class LimitView:
    """A limit as the graphs' code declares it, the operators' setting, and the keys with waiting nodes.

    `interval` is the ms between two executions of a rate. More than one declaration of the same
    keys is a mistake: the first of them holds. `paused` means that no node under the limit may
    start.
    """

    name: str
    declarations: list[Declaration]
    setting: LimitSetting | None
    paused: bool
    waiting: list[WaitingKey]


def declared(store: Store) -> dict[str, list[Declaration]]:
    """Return the limits of the graphs that workers have published, by name."""
    limits: dict[str, dict[tuple[str, int, int], dict[str, None]]] = {}
    for graph, fingerprint in sorted(store.graphs().items()):
        topology = store.topology(graph, fingerprint)
        nodes = topology.nodes.values() if topology else ()
        for shape in [limit for node in nodes for limit in node.limits]:
            numbers = shape.scope, shape.concurrency, shape.interval
            limits.setdefault(shape.name, {}).setdefault(numbers, {})[graph] = None
    return {
        name: [
            Declaration(by, concurrency or None, interval or None, list(graphs))
            for (by, concurrency, interval), graphs in numbers.items()
        ]
        for name, numbers in limits.items()
    }


MOST_MEASURED = 50
"""Maximum number of limits with metrics; limits with waiting nodes come first."""


class LimitControl:
    """The limits of a store, and the operators' changes to them."""

    def __init__(self, shared: Shared) -> None:
        """Keep the shared part of the store; nothing is connected yet."""
        self._shared = shared

    def all(self) -> list[LimitView]:
        """List the limits by their names."""
        settings, now = self._shared.limit_settings()
        declarations = declared(self._shared.store)
        waiting = self._shared.waiting_keys()
        times = self._shared.rate_times([*declarations], now)
        views = []
        queued = grouped(waiting, lambda key: key.limit)
        for name in sorted({*declarations, *settings, *queued}):
            setting = settings.get(name, LimitSetting(name)).at_time(now)
            if setting.is_reset and not (name in declarations or name in queued):
                continue
            order = {numbers: position for position, numbers in enumerate(setting.declared)}
            views.append(
                LimitView(
                    name,
                    sorted(
                        declarations.get(name, ()),
                        key=lambda each: order.get(each.numbers(name), 0),
                    ),
                    None if setting.is_reset else setting,
                    bool(setting.paused_until(name)),
                    queued.get(name, [])
                    + _delayed(setting, declarations.get(name, ()), times, now),
                )
            )
        return views

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of limits that nodes wait for, or that are changed or paused."""
        now = self._shared.limit_settings()[1]
        views = [view for view in self.all() if view.waiting or view.setting]
        views.sort(key=lambda view: not view.waiting)
        for view in views[:MOST_MEASURED]:
            since = min((key.since for key in view.waiting if key.since), default=now)
            last_start_at = max((key.last_start_at for key in view.waiting), default=0)
            numbers = (
                (
                    "runner_limit_waiting_nodes",
                    "Nodes that wait for a slot of a limit, or for a start time of its rate.",
                    sum(key.nodes for key in view.waiting),
                ),
                (
                    "runner_limit_oldest_seconds",
                    "Seconds for which the first of them has waited for a slot.",
                    max(0, now - since) / 1000,
                ),
                (
                    "runner_limit_last_start_seconds",
                    "Seconds until the start time of the last of them.",
                    max(0, last_start_at - now) / 1000,
                ),
                (
                    "runner_limit_pauses",
                    "Pauses of a limit and of its keys.",
                    len(view.setting.pauses) if view.setting else 0,
                ),
            )
            for name, help_text, value in numbers:
                yield Metric(name, help_text, value, {"limit": view.name})

    def get(self, name: str) -> LimitView:
        """Return one limit.

        Raises:
            NotFoundError: no graph declares it.
        """
        limit = self._find(name)
        if not (limit.declarations or limit.setting or limit.waiting):
            raise NotFoundError(
                f"no graph of this store has a limit {validation.one_line(name)!r:.80}; "
                "`runner limits list` shows the existing ones."
            )
        return limit

    def _find(self, name: str) -> LimitView:
        empty = LimitView(name, [], None, paused=False, waiting=[])
        return next((limit for limit in self.all() if limit.name == name), empty)

    def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
        per: float = 1.0,
        reason: str = "",
        by: str = "",
    ) -> LimitView:
        """Change the slots of a limit, its rate, or both, for all workers at once, until it is reset.

        Raises:
            NotFoundError: no graph declares it. UsageError: a number can't be used, or the code
                doesn't declare the bound that should change.
        """
        interval = Limit(name, concurrency, rate, per).shape("", "").interval or None
        declarations = self.get(name).declarations
        for number, field, word in (
            (concurrency, "concurrency", "slots"),
            (interval, "interval", "a rate"),
        ):
            if number and not any(getattr(each, field) for each in declarations):
                raise UsageError(
                    f"the limit {name!r} has no {field} that could be changed: no graph declares {word}."
                )
        return self._change(
            name,
            "limit.set",
            lambda setting: replace(
                setting,
                concurrency=concurrency or setting.concurrency,
                interval=interval or setting.interval,
            ),
            reason,
            by,
        )

    def pause(
        self, key: str, seconds: float | None, reason: str = "", by: str = ""
    ) -> LimitView:
        """Start no node under a limit, or under one key of it, for this many seconds (None: until resumed).

        A key is named as in lists, such as "model:tag:tenant:x".

        Raises:
            NotFoundError: no graph declares it. UsageError: the seconds or the key can't be used.
        """
        if seconds is not None and not 0 < seconds <= 366 * 86_400:
            raise UsageError(f"a pause lasts up to a year, not {seconds!r:.40} seconds.")
        validation.checked(key, "the key", validation.MAX_REASON)
        limit = self.get(name_of(key))
        starts = [f"{limit.name}:{each.by}:" for each in limit.declarations if each.by != "all"]
        if key != limit.name and not key.startswith(tuple(starts)):
            raise UsageError(
                f"the limit {limit.name!r} has no key {validation.one_line(key)!r:.80}: "
                f"{'its keys begin with ' + ', '.join(starts) if starts else 'only its name can be given'}."
            )
        now = self._shared.limit_settings()[1]
        pause = LimitPause(
            key, 0 if seconds is None else now + round(seconds * 1000), reason, by, now
        )
        return self._change(
            key, "limit.paused", lambda setting: setting.pause(pause), reason, by
        )

    def resume(self, key: str, reason: str = "", by: str = "") -> LimitView:
        """End the pause of a key, or all pauses of a limit, and push the doorbells of waiting nodes.

        Raises:
            NotFoundError: no graph declares it, or the key is not paused.
        """
        limit = self.get(name_of(key))
        pauses = limit.setting.pauses if limit.setting else ()
        if key not in [limit.name, *(each.key for each in pauses)]:
            raise NotFoundError(
                f"the key {validation.one_line(key)!r:.80} is not paused; "
                f"`runner limits show {quote(limit.name)}` shows the paused ones."
            )
        return self._change(
            key, "limit.resumed", lambda setting: setting.resume(key), reason, by
        )

    def reset(self, name: str, reason: str = "", by: str = "") -> LimitView:
        """Return a limit to its declaration in the code, and end its pauses.

        Raises:
            NotFoundError: no graph declares it. UsageError: it is a key of a limit.
        """
        if name_of(name) != name:
            raise UsageError(
                f"{validation.one_line(name)!r:.80} is a key: `resume` ends its pause, `reset` takes a limit."
            )
        return self._change(
            name,
            "limit.reset",
            lambda setting: LimitSetting(setting.id, declared=setting.declared),
            reason,
            by,
        )

    def _change(
        self,
        key: str,
        event: str,
        change: Callable[[LimitSetting], LimitSetting],
        reason: str,
        by: str,
    ) -> LimitView:
        name = self.get(name_of(key)).name
        checked, now = validation.reason(reason), self._shared.limit_settings()[1]

        def changed(setting: LimitSetting) -> LimitSetting:
            return replace(change(setting.at_time(now)), reason=checked, by=by, at=now)

        self._shared.store.do(ChangeLimit(name, changed, event, f"limit:{key}"))
        return self._find(name)  # after a reset, a limit that no graph has any more is gone


def _delayed(
    setting: LimitSetting,
    declarations: Sequence[Declaration],
    times: Sequence[tuple[str, int]],
    now: int,
) -> list[WaitingKey]:
    """Return the keys whose nodes wait for start times of a rate; these are evenly spaced."""
    waiting_keys = []
    for declaration in declarations:
        start, *_ = numbers = declaration.numbers(setting.id)
        interval = setting.numbers(numbers)[1]
        for key, following in times if interval else ():
            latest = following - interval
            if latest > now and is_of(key, start):
                waiting_keys.append(
                    WaitingKey(key, math.ceil((latest - now) / interval), 0, [], latest)
                )
    return waiting_keys


def conflicts(declarations: Sequence[Declaration]) -> str:
    """Say how graphs declare one limit differently; "" if they don't."""
    scopes = [each.by for each in declarations]
    return "; ".join(
        f"{words(each.concurrency, each.interval)} in {', '.join(each.graphs[:3])}"
        for each in declarations
        if scopes.count(each.by) > 1
        and each.by not in ("graph", "node")  # these have separate keys
    )


def words(concurrency: int | None, interval: int | None) -> str:
    """Describe the numbers of a limit in words."""
    slots = f"{concurrency} at a time" if concurrency else ""
    return ", ".join(filter(None, (slots, f"one each {interval:,} ms" if interval else "")))
