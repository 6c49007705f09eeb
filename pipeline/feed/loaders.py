"""How blocks get into memory: read by a thread, or by Dask tasks on the own worker; the same bytes."""

import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from distributed import Client, Future, Worker, get_client, get_worker, wait

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain

from .blocks import Arrays, BlockPlan, BlockRecipe, open_recipe, read_block

TASK_RETRIES = 3
TASK_NAME = "load_block"
"""The dashboard groups tasks by this prefix of their keys."""


class BlockLoader(Protocol):
    """Loads blocks; safe to call from several threads."""

    def load(self, plan: BlockPlan, out: Mapping[str, npt.NDArray[Any]]) -> None:
        """Fill the stored columns of a block, each (plan.num_rows, …); returns when they are complete."""
        ...

    def cancel(self) -> None:
        """Give up what is under way, as far as that can be: a load in another thread may fail soon after."""
        ...

    def close(self) -> None:
        """Free everything; what is loading still, because it hangs, ends in an error or for nobody."""
        ...


class ThreadLoader:
    """Reads in the calling thread, straight into the buffers."""

    def __init__(self, recipe: BlockRecipe) -> None:
        self._recipe = recipe
        self._dataset = open_recipe(recipe)

    def load(self, plan: BlockPlan, out: Mapping[str, npt.NDArray[Any]]) -> None:
        """Read one block."""
        read_block(self._dataset, self._recipe.columns, plan, out)

    def cancel(self) -> None:
        """Let a read under way finish: it is short."""

    def close(self) -> None:
        """Close the dataset."""
        self._dataset.close()


BlockTask = Callable[[BlockRecipe, BlockPlan], Arrays]


_DATASETS: dict[str, OfflineDataset] = {}
"""Open datasets by loader, for its tasks, which run in the same process."""


def load_block(recipe: BlockRecipe, plan: BlockPlan) -> Arrays:
    """Read one block; the body of the Dask task."""
    out = {column.name: np.empty((plan.num_rows, *column.row_shape), column.dtype) for column in recipe.columns}
    dataset = _DATASETS.get(recipe.loader)
    if dataset is not None:
        read_block(dataset, recipe.columns, plan, out)
    else:  # a task that is later than the end of its loader
        with open_recipe(recipe) as own:
            read_block(own, recipe.columns, plan, out)
    return out


def _forget_dataset(loader: str) -> None:
    if (dataset := _DATASETS.pop(loader, None)) is not None:
        dataset.close()


class DaskLoader:
    """Reads in tasks pinned to the own worker: the scheduler retries them, the dashboard shows them.

    Only inside a Dask worker. A finished block is taken from the worker's memory without a copy, copied into
    the buffer, never changed, and dropped at once.
    """

    def __init__(self, recipe: BlockRecipe, task: BlockTask = load_block) -> None:
        self._recipe = replace(recipe, loader=uuid.uuid4().hex)
        self._task = task
        self._worker: Worker = get_worker()
        self._client: Client = get_client()
        self._lock = threading.Lock()
        self._open: set[Future] = set()
        self._closed = False
        _DATASETS[self._recipe.loader] = open_recipe(recipe)
        self._forget = weakref.finalize(self, _forget_dataset, self._recipe.loader)

    def load(self, plan: BlockPlan, out: Mapping[str, npt.NDArray[Any]]) -> None:
        """Submit the task of one block, wait for it and copy its result."""
        future = self._submit(plan)
        try:
            wait(future)
            block = self._result(future)
            for column in self._recipe.columns:
                np.copyto(out[column.name], block[column.name])
        finally:
            with self._lock:
                self._open.discard(future)
            future.release()

    def cancel(self) -> None:
        """Cancel the open tasks, which wakes the threads that wait for them."""
        with self._lock:
            self._closed = True
            pending = list(self._open)
        if pending:
            self._client.cancel(pending, force=True)

    def close(self) -> None:
        """Close the dataset; the client belongs to the worker."""
        self._forget()

    def _submit(self, plan: BlockPlan) -> Future:
        with self._lock:
            if self._closed:
                raise RuntimeError("the loader is closed")
            future = self._client.submit(
                self._task,
                self._recipe,
                plan.without_pieces(),
                key=f"{TASK_NAME}-{plan.shard}-{plan.block}-{uuid.uuid4().hex}",
                workers=[self._worker.address],
                allow_other_workers=False,
                retries=TASK_RETRIES,
                pure=False,
            )
            self._open.add(future)
        return future

    def _result(self, future: Future) -> Arrays:
        if future.status == "finished" and future.key in self._worker.data:
            block: Arrays = self._worker.data[future.key]
            return block
        # An error, which this raises; or a result that lies elsewhere after the worker was replaced.
        elsewhere: Arrays = future.result()
        return elsewhere


def choose_loader(kind: str, recipe: BlockRecipe) -> BlockLoader:
    """Return the loader of this name; `auto` takes tasks inside a Dask worker and a thread elsewhere.

    Raises:
        ConfigError: `dask` is asked for outside a Dask worker.
    """
    if kind == "thread" or (kind == "auto" and not inside_worker()):
        return ThreadLoader(recipe)
    if not inside_worker():
        allowed = "thread outside a Dask worker"
        raise ConfigError(explain("loader", got=kind, allowed=allowed, fix="leave it at auto"))
    return DaskLoader(recipe)


def inside_worker() -> bool:
    """Whether this code runs in a task or an actor of a Dask worker."""
    try:
        get_worker()
    except ValueError:
        return False
    return True
