"""The order in which a data shard is read: a pure function of (seed, shard, epoch). No IO, no Dask.

An epoch permutes the shard's blocks, groups them into windows and permutes the rows of each window. Shards
of one size would all change windows at the same step, so the first window of an epoch is shorter, by another
number of blocks in each shard: windows are staggered, and a learner that streams holds its shards + 1 windows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .partition import IntArray, split

_BLOCKS, _ROWS = 1, 2  # tags: the two kinds of draws never share a random stream


@dataclass(frozen=True)
class Window:
    """Blocks whose rows are shuffled together."""

    epoch: int
    index: int
    """Number of the window in its epoch."""
    blocks: tuple[int, ...]
    """Blocks of the shard, in the epoch's order."""
    start: int
    """Where the window begins in the shard's endless stream of epochs, in rows."""
    num_rows: int


@dataclass(frozen=True)
class ShardOrder:
    """The endless stream of epochs of one data shard; its positions are numbered from 0 within the shard."""

    seed: int
    shard: int
    num_shards: int
    num_positions: int
    """Transitions of this shard."""
    block_rows: int
    """Transitions of a block, at most."""
    window_rows: int
    """Transitions of a window, at most, rounded down to whole blocks (but at least one)."""

    @cached_property
    def block_edges(self) -> IntArray:
        """First position of each block, and num_positions last; block sizes differ by at most one."""
        return split(self.num_positions, -(-self.num_positions // self.block_rows))

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the shard."""
        return len(self.block_edges) - 1

    @property
    def blocks_per_window(self) -> int:
        """Blocks of a full window."""
        return min(self.num_blocks, max(1, self.window_rows // self.block_rows))

    @cached_property
    def window_edges(self) -> tuple[int, ...]:
        """Where each window of an epoch begins in the permuted blocks, and num_blocks last."""
        full = self.blocks_per_window
        first = full if self.num_blocks <= full else full - self.shard * full // self.num_shards
        return (0, *range(first, self.num_blocks, full), self.num_blocks)

    def epoch_windows(self, epoch: int) -> tuple[Window, ...]:
        """Return the windows of one epoch in order."""
        blocks = self._generator(_BLOCKS, epoch).permutation(self.num_blocks)
        sizes = np.diff(self.block_edges)[blocks]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        base = epoch * self.num_positions
        return tuple(
            Window(
                epoch=epoch,
                index=index,
                blocks=tuple(int(block) for block in blocks[start:stop]),
                start=base + int(ends[start]),
                num_rows=int(ends[stop] - ends[start]),
            )
            for index, (start, stop) in enumerate(zip(self.window_edges[:-1], self.window_edges[1:], strict=True))
        )

    def windows_from(self, row: int) -> Iterator[Window]:
        """Yield the windows of the endless stream, from the one that holds stream row `row` on."""
        epoch = row // self.num_positions
        while True:
            for window in self.epoch_windows(epoch):
                if window.start + window.num_rows > row:
                    yield window
            epoch += 1

    def permutation(self, window: Window) -> IntArray:
        """Return the order of the window's rows, as indices into its blocks laid end to end."""
        return self._generator(_ROWS, window.epoch, window.index).permutation(window.num_rows)

    def positions(self, window: Window) -> IntArray:
        """Return the shard's positions that the window delivers, in order."""
        edges = self.block_edges
        laid_out = np.concatenate([np.arange(edges[b], edges[b + 1]) for b in window.blocks])
        return laid_out[self.permutation(window)]

    def _generator(self, tag: int, *key: int) -> np.random.Generator:
        sequence = np.random.SeedSequence([self.seed, tag, self.shard, *key])
        return np.random.Generator(np.random.PCG64(sequence))


def shard_order(order: ShardOrder, epoch: int) -> IntArray:
    """Return all positions of a shard in the order of one epoch."""
    return np.concatenate([order.positions(window) for window in order.epoch_windows(epoch)])
