"""Makes batches from rows in memory: several steps in one gather, served as views."""

import numpy as np
import numpy.typing as npt
import torch

from dask_rl.learners.batch import Batch

from .blocks import Arrays
from .indexing import index_bytes, make_indexer
from .layout import Layout

MAX_STEPS = 16
"""Steps gathered at once: one call per field for all of them."""
MAX_BYTES = 8 * 2**20
"""Bytes gathered at once, so that the batches are still in the cache when they are used."""
BUDGET_SHARE = 16
"""Of a memory budget, one part in so many is for batches that are gathered ahead."""


def steps_at_once(layout: Layout, num_rows: int, budget_bytes: int | None) -> int:
    """Return how many batches of so many rows are gathered at once; it changes nothing in them."""
    num_steps = MAX_BYTES // (num_rows * layout.sample_bytes)
    if budget_bytes is not None:
        num_steps = min(num_steps, budget_bytes // BUDGET_SHARE // _step_bytes(layout, num_rows))
    return max(1, min(MAX_STEPS, num_steps))


def batch_bytes(layout: Layout, num_rows: int, budget_bytes: int | None) -> int:
    """Return what the batches that are gathered at once take, with their index."""
    return steps_at_once(layout, num_rows, budget_bytes) * _step_bytes(layout, num_rows)


def _step_bytes(layout: Layout, num_rows: int) -> int:
    return num_rows * (layout.sample_bytes + index_bytes(layout))


class Gatherer:
    """Preallocated batches of up to `num_steps` steps, filled from the columns in memory.

    Fill `index` with rows of the columns, call `gather`, and take the batches. On a CUDA device they go
    through pinned memory.
    """

    def __init__(
        self,
        columns: Arrays,
        layout: Layout,
        num_shards: int,
        rows_per_shard: int,
        device: torch.device,
        budget_bytes: int | None = None,
    ) -> None:
        self._columns = columns
        self._layout = layout
        rows = num_shards * rows_per_shard
        self.num_steps = steps_at_once(layout, rows, budget_bytes)
        self.index = np.zeros((self.num_steps, num_shards, rows_per_shard), np.int64)
        """Rows of the columns, to be filled by the caller."""
        self._rows = rows
        self._indexer = make_indexer(layout, columns, self.index.size)
        self._device = device
        self._host = {
            output.key: torch.empty(
                (self.num_steps * rows, *output.shape),
                dtype=torch.from_numpy(np.empty(0, output.dtype)).dtype,
                pin_memory=device.type == "cuda",
            )
            for output in layout.outputs
        }
        self._out = {key: tensor.numpy() for key, tensor in self._host.items()}
        on_device = {key: tensor.to(device) for key, tensor in self._host.items()}  # the same tensors on a CPU
        self._device_tensors = on_device
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._batches: list[Batch] = [
            {key: tensor[step * rows : (step + 1) * rows] for key, tensor in on_device.items()}
            for step in range(self.num_steps)
        ]

    def gather(self, num_steps: int) -> None:
        """Make the first `num_steps` batches from `index`."""
        self._await_copy()
        self._take(self.index[:num_steps].reshape(-1), 0)
        self._send(num_steps)

    def gather_piece(self, shard: int, start: int, rows: npt.NDArray[np.int64]) -> None:
        """Place rows into the first batch, from row `start` of the share of one shard on."""
        self._await_copy()
        self._take(rows, shard * self.index.shape[2] + start)

    def finish_pieces(self) -> None:
        """Complete a first batch made of pieces."""
        self._send(1)

    def batch(self, step: int) -> Batch:
        """Return batch number `step` of those gathered last; its tensors are views."""
        return dict(self._batches[step])

    def _take(self, rows: npt.NDArray[np.int64], start: int) -> None:
        stop = start + len(rows)
        index = self._indexer(rows)
        for output in self._layout.outputs:
            target = self._out[output.key][start:stop]
            if output.column is None:
                target[...] = index[output.key]
            else:
                # mode="clip": the default checks the indices and gathers into a temporary.
                np.take(self._columns[output.column], index[output.place], axis=0, out=target, mode="clip")

    def _await_copy(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def _send(self, num_steps: int) -> None:
        if self._copied is None:
            return
        stop = num_steps * self._rows
        for key, tensor in self._host.items():
            self._device_tensors[key][:stop].copy_(tensor[:stop], non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._device))
