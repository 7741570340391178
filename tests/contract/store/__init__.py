"""The promises of every store, as tests.

A subclass of `StoreContract` gives it a store that reads the `clock`, with leases of 30 seconds:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, clock):
            return MyStore(clock=clock, lease=30)

Where only a part of a store differs from one that keeps all of it, a mark chooses the tests of that part:
`routed` those of each verb that partitions route or merge, `scripts` one or more of each Lua script.
Every test uses the store's public methods only.
"""

# ruff: noqa: E402 - pytest must know the tests before they are imported, or it can't show what was compared
from __future__ import annotations

from pathlib import Path

import pytest

parts = Path(__file__).parent.glob("[!_]*.py")
pytest.register_assert_rewrite(*(f"{__name__}.{part.stem}" for part in parts))

from runner.store.interface import Store
from runner.testing.in_process import ManualClock
from tests.contract.store.asking import AskingContract
from tests.contract.store.budgets import BudgetContract
from tests.contract.store.delegation import DelegationContract
from tests.contract.store.fairness import FairnessContract
from tests.contract.store.limits import LimitContract, LimitSettingsContract
from tests.contract.store.listing import ListingContract
from tests.contract.store.loops import LoopContract
from tests.contract.store.manual_worker import ManualWorker
from tests.contract.store.open_runs import DebounceContract, KeyContract, OpenRunsContract
from tests.contract.store.reading import ReadingContract
from tests.contract.store.recovery import RecoveryContract
from tests.contract.store.removal import RemovalContract
from tests.contract.store.runs import RunContract
from tests.contract.store.timing import TimingContract
from tests.contract.store.undoing import UndoingContract
from tests.contract.store.voting import VotingContract

__all__ = ["ManualWorker", "RunStoreContract", "StoreContract"]


class RunStoreContract(
    RunContract,
    LoopContract,
    AskingContract,
    TimingContract,
    DelegationContract,
    LimitContract,
    BudgetContract,
    ReadingContract,
    VotingContract,
    UndoingContract,
):
    """The promises of a store that keeps one run and the runs inside it, one test each."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock that the store must read."""
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Store:
        """The store under test: override this."""
        raise NotImplementedError(
            "a contract needs a fixture `store` that gives the store under test."
        )

    @pytest.fixture
    def worker(self, store: Store, clock: ManualClock) -> ManualWorker:
        """A worker whose calls the tests make by hand."""
        return ManualWorker(store, clock)


class StoreContract(
    RunStoreContract,
    LimitSettingsContract,
    OpenRunsContract,
    KeyContract,
    DebounceContract,
    FairnessContract,
    RecoveryContract,
    RemovalContract,
    ListingContract,
):
    """The promises of `runner.store.interface.Store`, one test each."""

    def __init_subclass__(cls, only: str = "") -> None:
        """Run all tests, or `only` those with a mark."""
        for name in dir(cls) if only else ():
            marks = {mark.name for mark in getattr(getattr(cls, name), "pytestmark", ())}
            if name.startswith("test_") and only not in marks:
                setattr(cls, name, None)
