"""Iterators that nobody closes: their threads end with them."""

import gc
import threading
import time
from pathlib import Path

import pytest
from worker_code import CPU, read_steps

from dask_rl.pipeline.feed.config import FeedConfig
from dask_rl.pipeline.feed.source import DatasetSource


def loader_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("dask-rl-loader")}


@pytest.mark.parametrize("resident", [True, False])
def test_the_threads_of_an_abandoned_iterator_end(feed_dataset: Path, resident: bool) -> None:
    before = loader_threads()
    config = FeedConfig(
        dataset=str(feed_dataset),
        fields=("observations", "actions"),
        batch_size=24,
        num_shards=4,
        seed=5,
        block_rows=16,
        window_rows=48,
        resident=resident,
    )
    iterator = DatasetSource(config, (0, 1)).open(CPU, 30.0)
    read_steps(iterator, 3)
    if not resident:
        assert loader_threads() - before
    del iterator
    gc.collect()
    deadline = time.monotonic() + 20
    while loader_threads() - before:
        assert time.monotonic() < deadline, "threads of an iterator that nobody has any more"
        time.sleep(0.01)
