"""Cyclic minibatches: every one full, wrapping around, reshuffled at the wrap where asked."""

import itertools
import math
from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
import psutil
import torch

from dask_rl.storage.errors import ConfigError, explain

from .batch import Batch, MultiBatch, num_rows

_INDEX_BYTES = 8
"""Those of a row's place in the batch."""


def count_minibatches(rows_per_shard: Sequence[int], num_epochs: int, minibatch_size: int | None) -> int:
    """Return ceil(num_epochs · max rows / minibatch_size): the same number for every learner and module."""
    for name, value in (("num_epochs", num_epochs), ("minibatch_size", minibatch_size)):
        if value is not None and value < 1:
            raise ConfigError(explain(name, got=value, allowed="at least 1", fix=f"correct {name}"))
    if minibatch_size is None:
        return num_epochs
    return math.ceil(num_epochs * max(rows_per_shard) / minibatch_size)


def cyclic_minibatches(
    batch: MultiBatch, count: int, minibatch_size: int | None, *, shuffle_seed: int | None = None, start: int = 0
) -> Iterator[MultiBatch]:
    """Yield `count` minibatches of exactly `minibatch_size` rows per module; None yields the whole batch.

    With `start`, only the last `count - start` of them: where a call goes on. Without modules they are empty.

    Raises:
        ConfigError: a module has no row, or a minibatch does not fit in memory.
    """
    for module_id in sorted(batch):
        if num_rows(batch[module_id]) == 0:
            raise ConfigError(
                explain(f"batch of module {module_id!r}", got="0 rows", allowed="at least 1", fix="leave it out")
            )
    if minibatch_size is None:
        for _ in range(start, count):
            yield batch
        return
    _refuse_too_large(batch, minibatch_size)
    streams = {
        module_id: _index_stream(num_rows(batch[module_id]), minibatch_size, shuffle_seed, crc32(module_id.encode()))
        for module_id in sorted(batch)
    }
    for position in range(count):
        indices = {module_id: next(stream) for module_id, stream in streams.items()}
        if position >= start:
            yield {module_id: _take(batch[module_id], index) for module_id, index in indices.items()}


def _refuse_too_large(batch: MultiBatch, size: int) -> None:
    """Raise ConfigError for minibatches larger than the batch that do not fit in memory."""
    if size <= max((num_rows(part) for part in batch.values()), default=size):
        return
    per_row = sum(_INDEX_BYTES + sum(tensor[:1].nbytes for tensor in part.values()) for part in batch.values())
    available = psutil.virtual_memory().available
    if size * per_row > available:
        got = f"{size}, which takes {size * per_row / 1e9:.3g} GB a minibatch"
        allowed = f"up to {available // per_row} rows of this batch, in the {available / 1e9:.3g} GB that are free"
        raise ConfigError(explain("minibatch_size", got=got, allowed=allowed, fix="take fewer rows a step"))


def _index_stream(rows: int, size: int, shuffle_seed: int | None, tag: int) -> Iterator[torch.Tensor]:
    if shuffle_seed is None:
        return (torch.arange(first % rows, first % rows + size) % rows for first in itertools.count(0, size))
    return _shuffled_stream(rows, size, [shuffle_seed, tag])


def _shuffled_stream(rows: int, size: int, seeds: list[int]) -> Iterator[torch.Tensor]:
    epoch = taken = 0
    order = np.empty(0, np.int64)
    while True:
        index = np.empty(size, np.int64)
        filled = 0
        while filled < size:
            if taken == len(order):
                order, taken = np.random.default_rng([*seeds, epoch]).permutation(rows), 0
                epoch += 1
            count = min(size - filled, rows - taken)
            index[filled : filled + count] = order[taken : taken + count]
            filled, taken = filled + count, taken + count
        yield torch.from_numpy(index)


def _take(batch: Batch, index: torch.Tensor) -> Batch:
    return {name: tensor[index.to(tensor.device)] for name, tensor in batch.items()}
