"""The order in which a data shard is read: a pure function of (seed, shard, epoch). No IO, no Dask.

An epoch permutes the shard's blocks, groups them into windows and permutes the rows of each window. Shards
of one size would all change windows at the same step, so the first window of an epoch is shorter, by another
amount in each shard: windows are staggered, and a learner that streams holds its shards + 1 windows. Where the
first window ends inside a block, the rest of that block comes last in the epoch.

With replacement the windows are the same, but a window of n rows delivers n draws from its rows in place of each once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .partition import IntArray, split

_BLOCKS, _ROWS, _DRAWS = 1, 2, 3  # tags: the kinds of draws never share a random stream


class Part(NamedTuple):
    """Positions [start, stop) of a shard that are loaded at once: a block, or a piece of one."""

    block: int
    start: int
    stop: int


@dataclass(frozen=True)
class Window:
    """Parts of a shard whose rows are shuffled together."""

    epoch: int
    index: int
    """Number of the window in its epoch."""
    parts: tuple[Part, ...]
    """In the epoch's order; no more of them than blocks_per_window."""
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
    replacement: bool = False
    """Whether the rows of a window are drawn with replacement."""

    @cached_property
    def block_edges(self) -> IntArray:
        """First position of each block, and num_positions last; block sizes differ by at most one."""
        return split(self.num_positions, -(-self.num_positions // self.block_rows))

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the shard."""
        return len(self.block_edges) - 1

    def block_part(self, block: int) -> Part:
        """Return a whole block."""
        return Part(block, int(self.block_edges[block]), int(self.block_edges[block + 1]))

    @property
    def blocks_per_window(self) -> int:
        """Blocks of a full window."""
        return min(self.num_blocks, max(1, self.window_rows // self.block_rows))

    def epoch_windows(self, epoch: int) -> tuple[Window, ...]:
        """Return the windows of one epoch in order."""
        blocks = self._generator(_BLOCKS, epoch).permutation(self.num_blocks).tolist()
        parts = [self.block_part(block) for block in blocks]
        full = self.blocks_per_window
        first = len(parts)
        if len(parts) > full:
            first, remainder = divmod(full * (self.num_shards - self.shard), self.num_shards)
            block, start, stop = parts[first]
            cut = start + (stop - start) * remainder // self.num_shards
            if start < cut:
                parts[first] = Part(block, start, cut)
                parts.append(Part(block, cut, stop))
            first += start < cut or first == 0
        windows: list[Window] = []
        end = epoch * self.num_positions
        for low, high in pairwise((0, *range(first, len(parts), full), len(parts))):
            chosen = tuple(parts[low:high])
            num_rows = sum(part.stop - part.start for part in chosen)
            windows.append(Window(epoch, len(windows), chosen, end, num_rows))
            end += num_rows
        return tuple(windows)

    def windows_from(self, row: int) -> Iterator[Window]:
        """Yield the windows of the endless stream, from the one that holds stream row `row` on."""
        epoch = row // self.num_positions
        while True:
            for window in self.epoch_windows(epoch):
                if window.start + window.num_rows > row:
                    yield window
            epoch += 1

    def permutation(self, window: Window) -> IntArray:
        """Return the order of the window's rows, as indices into its parts laid end to end."""
        if self.replacement:
            return self._generator(_DRAWS, window.epoch, window.index).integers(window.num_rows, size=window.num_rows)
        return self._generator(_ROWS, window.epoch, window.index).permutation(window.num_rows)

    def positions(self, window: Window) -> IntArray:
        """Return the shard's positions that the window delivers, in order."""
        laid_out = np.concatenate([np.arange(part.start, part.stop) for part in window.parts])
        return laid_out[self.permutation(window)]

    def _generator(self, tag: int, *key: int) -> np.random.Generator:
        sequence = np.random.SeedSequence([self.seed, tag, self.shard, *key])
        return np.random.Generator(np.random.PCG64(sequence))


def shard_order(order: ShardOrder, epoch: int) -> IntArray:
    """Return all positions of a shard in the order of one epoch."""
    return np.concatenate([order.positions(window) for window in order.epoch_windows(epoch)])
