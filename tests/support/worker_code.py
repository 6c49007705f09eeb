"""What tests run inside Dask workers, which can import this folder and not the tests."""

import functools
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import torch
from distributed import get_worker

from dask_rl.pipeline.feed.blocks import Arrays, BlockPlan, BlockRecipe
from dask_rl.pipeline.feed.iterator import DatasetIterator
from dask_rl.pipeline.feed.loaders import DaskLoader, load_block
from dask_rl.pipeline.feed.source import DatasetSource, open_iterator

CPU = torch.device("cpu")


class Counter:
    """An actor."""

    def one(self) -> int:
        return 1


HELD = threading.Event()
"""What `hold` waits for: of use where workers are threads of the tests' process."""


def hold(learner: Any) -> None:
    """Keep a learner busy."""
    HELD.wait(60)


class HoldsUp:
    """An empty tuple, which one worker never comes to the end of unpacking."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __reduce__(self) -> Any:
        return _hold_at, (self._address,)


def _hold_at(address: str) -> tuple[()]:
    if get_worker().address == address:
        HELD.wait(60)
    return ()


def open_files() -> int:
    return psutil.Process().num_fds()


def read_steps(iterator: DatasetIterator, num_steps: int) -> list[Arrays]:
    return [{name: tensor.numpy().copy() for name, tensor in iterator.next_batch().items()} for _ in range(num_steps)]


def flaky_task(directory: Path, recipe: BlockRecipe, plan: BlockPlan) -> Arrays:
    """Fail the first time that a block is asked for; leave behind where each attempt ran."""
    attempts = directory / f"{plan.shard}-{plan.block}"
    first = not attempts.exists()
    with attempts.open("a") as file:
        file.write(f"{get_worker().address}\n")
    if first:
        raise OSError("storage went away for a moment")
    return load_block(recipe, plan)


class Feeder:
    """An actor that reads batches as a learner does: in its sync methods."""

    def __init__(self) -> None:
        self.iterator: DatasetIterator | None = None

    def open(self, source: DatasetSource, directory: Path | None) -> str:
        if directory is None:
            self.iterator = source.open(CPU, 30.0)
        else:
            task = functools.partial(flaky_task, directory)
            self.iterator = open_iterator(source, CPU, 30.0, lambda kind, recipe: DaskLoader(recipe, task))
        return str(get_worker().address)

    def read(self, num_steps: int) -> tuple[list[Arrays], int]:
        assert self.iterator is not None
        batches = read_steps(self.iterator, num_steps)
        return batches, sum(str(key).startswith("load_block") for key in get_worker().data)

    def open_files(self, below: str) -> list[str]:
        """Return the open files of this process below a directory, also those that were removed."""
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        return [path for link in links if os.path.lexists(link) and (path := os.readlink(link)).startswith(below)]

    def close(self) -> None:
        assert self.iterator is not None
        self.iterator.close()
