from __future__ import annotations

import os
import re

import pytest

from runner.execution import ids
from runner.store.requests import new_nonce


def test_run_ids_sort_by_time_and_name_their_partition():
    """A later run has a greater id, and its first two digits are its partition."""
    made = [ids.run_id(3) for _ in range(1000)]

    assert made == sorted(made)
    assert len(set(made)) == 1000
    assert all(re.fullmatch(r"03[0-9a-v]{26}", each) for each in made)


def test_no_two_requests_have_one_nonce():
    """A nonce is short plain text that no other request has."""
    made = {new_nonce() for _ in range(10_000)}

    assert len(made) == 10_000
    assert all(re.fullmatch(r"[\w-]{13,17}", each) for each in made)


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_processes_make_different_names():
    """Children of one process share no nonce and no run id: nothing random is copied by a fork."""
    reader, writer = os.pipe()
    new_nonce(), ids.run_id()
    for _ in range(2):
        if not (child := os.fork()):
            os.write(writer, f"{new_nonce()} {ids.run_id()} ".encode())
            os._exit(0)
        os.waitpid(child, 0)
    os.write(writer, f"{new_nonce()} {ids.run_id()}".encode())
    made = os.read(reader, 1000).split()
    os.close(reader)
    os.close(writer)

    assert len(set(made)) == 6
