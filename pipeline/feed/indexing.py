"""From the rows of transitions in memory to the rows of everything that their samples deliver."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .blocks import Arrays
from .layout import DISCOUNTS, SEQUENCE_MASK, STEPS_LEFT, TIMESTEPS, Layout
from .partition import IntArray

Indexer = Callable[[IntArray], Arrays]
"""Maps the rows of N transitions to indices by the outputs' places, and to the fields that need no column, by key.
What it returns is valid until the next call."""


def make_indexer(layout: Layout, columns: Arrays, max_rows: int) -> Indexer:
    """Return the indexer of a layout; at most `max_rows` rows at a time."""
    if layout.sampling.is_plain:
        return PlainIndexer(layout, max_rows)
    return SampleIndexer(layout, columns)


def index_bytes(layout: Layout) -> int:
    """Return what an indexer takes at most for each of the transitions that it is given at once."""
    sampling = layout.sampling
    stacks = {output.place for output in layout.outputs if output.place in ("row_stack", "next_stack")}
    numbers = 6 + (len(stacks) + 2) * sampling.frame_stack * bool(stacks)  # those kept, and those on the way
    return 8 * numbers * (sampling.sequence_length or 1)


class PlainIndexer:
    """Single transitions: a row, and the one behind it."""

    def __init__(self, layout: Layout, max_rows: int) -> None:
        self._following = np.empty(max_rows, np.int64) if layout.halo.next else None

    def __call__(self, rows: IntArray) -> Arrays:
        """Return `row` and `next`, (N,)."""
        if self._following is None:
            return {"row": rows}
        return {"row": rows, "next": np.add(rows, 1, out=self._following[: len(rows)])}


class SampleIndexer:
    """Sequences, n steps and stacked frames; see Sampling for what they are."""

    def __init__(self, layout: Layout, columns: Arrays) -> None:
        sampling = layout.sampling
        self._offsets = sampling.offsets
        self._is_left = sampling.padding == "left"
        self._n_step = sampling.n_step
        self._frames = np.arange(1 - sampling.frame_stack, 1)
        self._timesteps, self._steps_left = columns.get(TIMESTEPS), columns.get(STEPS_LEFT)
        self._powers = np.power(layout.discount, np.arange(self._n_step + 1))
        self._zeros = len(next(iter(columns.values()))) - 1
        """The row of zeros behind all others, of sequences."""
        self._stacks = [output.place for output in layout.outputs if output.place in ("row_stack", "next_stack")]

    def __call__(self, rows: IntArray) -> Arrays:
        """Return indices (N,), (N, L) or (N, L, k), and fields (N, …)."""
        index = self._steps(rows) if self._offsets is None else self._sequences(rows, self._offsets)
        for place in self._stacks:
            index[place] = self._stack(rows, index[place.removesuffix("_stack")], index.get(SEQUENCE_MASK))
        return index

    def _steps(self, rows: IntArray) -> Arrays:
        if self._n_step == 1:
            return {"row": rows, "next": rows + 1}
        counts = np.minimum(_column(self._steps_left)[rows], self._n_step)
        behind = rows + counts
        return {"row": rows, "next": behind, "last": behind - 1, DISCOUNTS: self._powers[counts]}

    def _sequences(self, rows: IntArray, offsets: IntArray) -> Arrays:
        steps = _column(self._timesteps)[rows][:, None] + offsets
        mask = steps >= 0 if self._is_left else offsets < _column(self._steps_left)[rows][:, None]
        elements = rows[:, None] + offsets
        return {
            "row": np.where(mask, elements, self._zeros),
            "next": np.where(mask, elements + 1, self._zeros),
            SEQUENCE_MASK: mask,
            TIMESTEPS: np.where(mask, steps, 0),
        }

    def _stack(self, rows: IntArray, index: IntArray, mask: npt.NDArray[np.bool_] | None) -> IntArray:
        firsts = rows - _column(self._timesteps)[rows]
        firsts = firsts.reshape(-1, *[1] * index.ndim)
        stacked = np.maximum(index[..., None] + self._frames, firsts)
        return stacked if mask is None else np.where(mask[..., None], stacked, self._zeros)


def _column(column: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    if column is None:
        raise RuntimeError("a layout without the columns that its sampling needs")
    return column
