"""What every store must do: a test suite to run over one of your own.

Subclass `StoreContract` in a test module and give it a store that reads the `clock`:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, clock):
            return MyStore(clock=clock, lease=30)

Every test uses the store's public methods only. A lease must be 30 seconds.
"""

# ruff: noqa: E402 - pytest must know the tests before they are imported, or it can't show what was compared
from __future__ import annotations

import pytest

PARTS = (
    "asking",
    "budgets",
    "delegation",
    "limits",
    "loops",
    "manual_worker",
    "reading",
    "recovery",
    "runs",
    "timing",
    "voting",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))

from runner.store.interface import Store
from runner.testing.in_process import ManualClock
from tests.contract.store.asking import AskingContract
from tests.contract.store.budgets import BudgetContract
from tests.contract.store.delegation import DelegationContract
from tests.contract.store.limits import LimitContract
from tests.contract.store.loops import LoopContract
from tests.contract.store.manual_worker import ManualWorker
from tests.contract.store.reading import ReadingContract
from tests.contract.store.recovery import RecoveryContract
from tests.contract.store.runs import RunContract
from tests.contract.store.timing import TimingContract
from tests.contract.store.voting import VotingContract

__all__ = ["ManualWorker", "StoreContract"]


class StoreContract(
    RunContract,
    LoopContract,
    AskingContract,
    TimingContract,
    DelegationContract,
    LimitContract,
    BudgetContract,
    RecoveryContract,
    ReadingContract,
    VotingContract,
):
    """The promises of `runner.store.interface.Store`, one test each."""

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
