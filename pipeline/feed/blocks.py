"""Blocks: which rows hold a range of transitions, and how they are read.

A block is a range of a shard's positions, with the rows of the same episodes around them that their samples need:
next observations, stacked frames, sequences (the halo). It is loaded as runs of rows laid end to end; a map leads
from each position to its row in the buffer.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import InvalidDataError, explain
from dask_rl.storage.schema import ArraySpec

from .config import MERGE_GAP_ROWS, Feed
from .layout import Column
from .order import Part
from .partition import IntArray
from .sampling import Halo

Arrays = dict[str, npt.NDArray[Any]]

READ_GAP_ROWS = 4096
"""Unused rows that are read and dropped rather than skipped: a storage chunk is read as a whole anyway."""
SCRATCH_BYTES = 2 * 2**20
"""Of each thread, for rows that are converted or lie apart: small enough for the cache, and kept for the next block."""
_LOCAL = threading.local()


@dataclass(frozen=True)
class BlockPlan:
    """The rows of one block."""

    shard: int
    block: int
    piece_starts: IntArray  # (num_pieces,) runs of transitions, in the order of positions
    piece_stops: IntArray
    run_starts: IntArray  # (num_runs,) runs of rows to load; every piece and its halo lie in one of them
    run_stops: IntArray
    episode_starts: IntArray  # (num_pieces,) first row of each piece's episode
    episode_stops: IntArray  # (num_pieces,) one behind the last usable transition of it

    @property
    def run_offsets(self) -> IntArray:
        """Where each run begins in the buffer, and the number of rows last."""
        return np.concatenate(([0], np.cumsum(self.run_stops - self.run_starts)))

    @property
    def num_rows(self) -> int:
        """Rows in the buffer."""
        return int((self.run_stops - self.run_starts).sum())

    def buffer_rows(self, rows: IntArray) -> IntArray:
        """Return where these rows of the dataset, each inside a run, lie in the buffer."""
        run = np.searchsorted(self.run_starts, rows, side="right") - 1
        return self.run_offsets[run] + rows - self.run_starts[run]

    def local_index(self) -> IntArray:
        """Return the buffer row of each position of the block, in order."""
        lengths = self.piece_stops - self.piece_starts
        begins = np.cumsum(lengths) - lengths
        return np.repeat(self.buffer_rows(self.piece_starts) - begins, lengths) + np.arange(lengths.sum())

    def without_pieces(self) -> "BlockPlan":
        """Return what reading needs: the runs alone, which are few where the pieces may be many."""
        none = np.empty(0, np.int64)
        return replace(self, piece_starts=none, piece_stops=none, episode_starts=none, episode_stops=none)

    def rows_inside(self, rows: IntArray) -> IntArray:
        """Return the buffer rows of those of the sorted `rows` that the block holds."""
        first, last = np.searchsorted(rows, (self.run_starts[0], self.run_stops[-1]))
        near = rows[first:last]
        run = np.searchsorted(self.run_starts, near, side="right") - 1
        return self.buffer_rows(near[near < self.run_stops[run]])


def plan_block(feed: Feed, shard: int, part: Part, halo: Halo) -> BlockPlan:
    """Find the rows of one block of a shard, or of a piece of one."""
    base = int(feed.shard_edges[shard])
    starts, stops = feed.transitions.pieces(base + part.start, base + part.stop)
    episode_starts, episode_stops = feed.transitions.bounds(base + part.start, base + part.stop)
    begins, ends = starts, stops
    if halo.before or halo.after:
        begins = np.maximum(starts - halo.before, episode_starts)
        ends = np.minimum(stops + halo.after, episode_stops)
    ends = ends + halo.next
    breaks = np.flatnonzero(begins[1:] - ends[:-1] > MERGE_GAP_ROWS)
    run_starts = begins[np.concatenate(([0], breaks + 1))]
    run_stops = ends[np.concatenate((breaks, [len(ends) - 1]))]
    return BlockPlan(shard, part.block, starts, stops, run_starts, run_stops, episode_starts, episode_stops)


@dataclass(frozen=True)
class BlockRecipe:
    """What a task needs to load blocks: small, so that it travels with each task."""

    dataset: str
    content_hash: str
    columns: tuple[Column, ...]
    loader: str = ""
    """Whose tasks these are: they share an open dataset."""


def open_recipe(recipe: BlockRecipe) -> OfflineDataset:
    """Open the recipe's dataset, without what was appended since the recipe was made.

    Raises:
        DatasetError: it is not the dataset that the recipe was made for.
    """
    return OfflineDataset.open(recipe.dataset, content_hash=recipe.content_hash)


def read_block(
    dataset: OfflineDataset, columns: tuple[Column, ...], plan: BlockPlan, out: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Read the columns of a block into `out`, each (plan.num_rows, …): as delivered, transformed.

    Raises:
        InvalidDataError: a number is too large for the type that is delivered.
    """
    for column in columns:
        target = out[column.name]
        spec = dataset.arrays[column.name]
        direct = spec.dtype == target.dtype
        max_rows = max(1, SCRATCH_BYTES // max(1, spec.row_bytes))
        for start, stop, parts in _reads(plan, max_rows):
            if direct and len(parts) == 1:
                dataset.read(column.name, start, stop, out=target[parts[0][0] : parts[0][1]])
                continue
            for low in range(start, stop, max_rows):
                high = min(low + max_rows, stop)
                rows = dataset.read(column.name, low, high, out=_scratch(high - low, spec))
                _scatter(rows, low, parts, target)
        for transform in column.transforms:
            transform.apply(target, out=target)


def _scratch(num_rows: int, spec: ArraySpec) -> npt.NDArray[Any]:
    """Return room for so many rows, of this thread, until the next call."""
    num_bytes = num_rows * spec.row_bytes
    buffer: npt.NDArray[np.uint8] | None = getattr(_LOCAL, "buffer", None)
    if buffer is None or len(buffer) < num_bytes:
        buffer = _LOCAL.buffer = np.empty(max(num_bytes, SCRATCH_BYTES), np.uint8)
    return buffer[:num_bytes].view(spec.dtype).reshape(num_rows, *spec.row_shape)


def _reads(plan: BlockPlan, max_rows: int) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Yield row ranges to read at once, with their runs as (buffer start, buffer stop, first row)."""
    offsets = plan.run_offsets.tolist()
    parts: list[tuple[int, int, int]] = []
    start = stop = 0
    for index, (low, high) in enumerate(zip(plan.run_starts.tolist(), plan.run_stops.tolist(), strict=True)):
        if parts and (low - stop > READ_GAP_ROWS or high - start > max_rows):
            yield start, stop, parts
            parts = []
        if not parts:
            start = low
        stop = high
        parts.append((offsets[index], offsets[index + 1], low))
    yield start, stop, parts


def _scatter(rows: npt.NDArray[Any], low: int, parts: list[tuple[int, int, int]], target: npt.NDArray[Any]) -> None:
    """Copy those of `rows` (the dataset's rows from `low` on) that belong to the parts to their places."""
    for begin, end, first in parts:
        lead, tail = max(low, first), min(low + len(rows), first + end - begin)
        if lead < tail:
            try:
                with np.errstate(over="raise"):
                    target[begin + lead - first : begin + tail - first] = rows[lead - low : tail - low]
            except FloatingPointError as error:
                raise InvalidDataError(
                    explain(
                        f"rows {lead} to {tail - 1}",
                        got=f"a number as large as {np.abs(rows[lead - low : tail - low]).max()}",
                        allowed=f"what {target.dtype} can hold",
                        fix="run in float64, or leave these episodes out",
                    )
                ) from error
