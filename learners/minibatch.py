"""Cyclic minibatches: every one full, wrapping around, reshuffled at the wrap where asked."""

import math
from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
import torch

from dask_rl.storage.errors import ConfigError, explain

from .batch import Batch, MultiBatch, num_rows


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
        ConfigError: a module has no row.
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
    streams = {
        module_id: _index_stream(num_rows(batch[module_id]), minibatch_size, shuffle_seed, crc32(module_id.encode()))
        for module_id in sorted(batch)
    }
    for position in range(count):
        indices = {module_id: next(stream) for module_id, stream in streams.items()}
        if position >= start:
            yield {module_id: _take(batch[module_id], index) for module_id, index in indices.items()}


def _index_stream(rows: int, size: int, shuffle_seed: int | None, tag: int) -> Iterator[torch.Tensor]:
    epoch = 0
    pending = np.empty(0, np.int64)
    while True:
        while len(pending) < size:
            order = np.arange(rows)
            if shuffle_seed is not None:
                order = np.random.default_rng([shuffle_seed, tag, epoch]).permutation(rows)
            pending = np.concatenate([pending, order])
            epoch += 1
        yield torch.from_numpy(pending[:size].copy())
        pending = pending[size:]


def _take(batch: Batch, index: torch.Tensor) -> Batch:
    return {name: tensor[index.to(tensor.device)] for name, tensor in batch.items()}
