"""Torch's random numbers, which are one sequence for the whole process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK = threading.RLock()


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Use torch's random numbers in the block as if nobody else did, one thread at a time, and leave no trace in them.

    Networks draw their first weights from them; other runs of this process build theirs at the same time.
    """
    with _LOCK, torch.random.fork_rng(devices=[]):
        yield
