"""Fixtures of the learners' tests."""

import pytest
import torch
from learner_peers import Peers


@pytest.fixture(autouse=True)
def one_thread():
    """One thread of maths: sums in one order, and no contest with the processes that a test starts."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def peers():
    """Two spawned processes."""
    with Peers(2) as started:
        yield started
