"""Which rows are transitions, and which learner owns which of them. Pure: no IO, no Dask."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.errors import ConfigError, explain

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EpisodeTable:
    """The episodes of a dataset, as far as the partition needs them; every array is (num_episodes,)."""

    starts: IntArray
    """First row."""
    ends: IntArray
    """Exclusive row ends, final rows counted."""
    has_final_observation: npt.NDArray[np.bool_]
    """Whether the last row is a real observation."""
    terminated: npt.NDArray[np.bool_]
    """Whether the environment ended the episode; read only where there is no final observation."""


@dataclass(frozen=True)
class Transitions:
    """The usable transitions of a dataset, numbered 0 … num_positions-1 in row order.

    They are kept as segments of consecutive rows, one for each episode that has any: memory is O(episodes).
    """

    row_starts: IntArray  # (num_segments,)
    row_stops: IntArray  # (num_segments,) exclusive
    invalid_next_rows: IntArray  # sorted: usable rows whose next row is no real observation

    @classmethod
    def of(cls, episodes: EpisodeTable, *, needs_next: bool, selected: IntArray | None = None) -> "Transitions":
        """Find the usable transitions: all rows of the episodes but the final ones.

        Args:
            episodes: the episodes of the dataset.
            needs_next: leave out the last transition of a truncated episode without a final observation: its
                value cannot be bootstrapped.
            selected: indices of the episodes to use, ascending; None takes all.
        """
        chosen = np.arange(len(episodes.ends)) if selected is None else selected
        starts = episodes.starts[chosen]
        stops = episodes.ends[chosen] - 1
        unseen = ~episodes.has_final_observation[chosen]
        if needs_next:
            stops = stops - (unseen & ~episodes.terminated[chosen])
        last = episodes.ends[chosen] - 2
        kept = stops > starts
        return cls(
            starts[kept].astype(np.int64),
            stops[kept].astype(np.int64),
            last[unseen & (stops > last)].astype(np.int64),
        )

    @cached_property
    def offsets(self) -> IntArray:
        """Position of each segment's first row, and num_positions last; strictly increasing."""
        edges: IntArray = np.concatenate(([0], np.cumsum(self.row_stops - self.row_starts))).astype(np.int64)
        return edges

    @property
    def num_positions(self) -> int:
        """Number of usable transitions."""
        return int(self.offsets[-1])

    def rows(self, positions: npt.ArrayLike) -> IntArray:
        """Return the dataset's rows of these positions."""
        wanted = np.asarray(positions, dtype=np.int64)
        segment = np.searchsorted(self.offsets, wanted, side="right") - 1
        rows: IntArray = self.row_starts[segment] + wanted - self.offsets[segment]
        return rows

    def pieces(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return positions [start, stop) as runs of rows: (starts, exclusive stops), start < stop."""
        first, last = self._segments(start, stop)
        starts, stops = self.row_starts[first:last].copy(), self.row_stops[first:last].copy()
        starts[0] += start - self.offsets[first]
        stops[-1] -= self.offsets[last] - stop
        return starts, stops

    def bounds(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return the whole segments of those runs: (first rows of the episodes, exclusive stops)."""
        first, last = self._segments(start, stop)
        return self.row_starts[first:last], self.row_stops[first:last]

    def _segments(self, start: int, stop: int) -> tuple[int, int]:
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        return first, int(np.searchsorted(self.offsets, stop, side="left"))


def select_top_episodes(returns: npt.NDArray[Any], top_fraction: float) -> IntArray:
    """Return the indices, ascending, of the best episodes by return; of equal ones the earlier come first.

    Raises:
        ConfigError: the fraction is not in (0, 1].
    """
    if not 0 < top_fraction <= 1:
        raise ConfigError(
            explain("top_fraction", got=top_fraction, allowed="more than 0, at most 1", fix="use 0.1 for a tenth")
        )
    # The tiny slack keeps 0.1 of 1,000 at 100 where the product is 100.00000000000001.
    count = max(1, int(np.ceil(top_fraction * len(returns) - 1e-9)))
    best = np.argsort(-np.asarray(returns, dtype=np.float64), kind="stable")[:count]
    return np.sort(best).astype(np.int64)


def split(num_positions: int, num_parts: int) -> IntArray:
    """Return the num_parts+1 edges of contiguous ranges whose sizes differ by at most one.

    >>> split(10, 4).tolist()
    [0, 2, 5, 7, 10]
    """
    return np.array([num_positions * part // num_parts for part in range(num_parts + 1)], dtype=np.int64)


def shards_of(learner: int, num_learners: int, num_shards: int) -> tuple[int, ...]:
    """Return the data shards of one learner: s with s % num_learners == learner."""
    return tuple(range(learner, num_shards, num_learners))


def check_split(num_positions: int, batch_size: int, num_shards: int, num_learners: int) -> None:
    """Check that every learner gets a shard, every shard a transition, and every batch whole shares.

    Raises:
        ConfigError: it does not work out; the message says what would.
    """
    if num_learners < 1 or num_shards < num_learners:
        raise ConfigError(
            explain(
                "num_shards",
                got=num_shards,
                allowed=f"at least the number of learners, {num_learners}",
                fix="raise num_shards or lower num_learners",
            )
        )
    if batch_size < 1 or batch_size % num_shards:
        lower = batch_size // num_shards * num_shards
        choices = f"use {lower} or {lower + num_shards}" if lower > 0 else f"use {num_shards}"
        raise ConfigError(
            explain("batch_size", got=batch_size, allowed=f"a multiple of num_shards={num_shards}", fix=choices)
        )
    if not num_positions:
        raise ConfigError(
            explain(
                "dataset",
                got="no usable transition: all episodes are one step long, cut off, and without a final observation",
                allowed=f"at least {num_shards}, one for each shard",
                fix="use other data, or an algorithm that needs no next observations",
            )
        )
    if num_positions < num_shards:
        raise ConfigError(
            explain(
                "num_shards",
                got=f"{num_shards} for {num_positions} usable transitions",
                allowed=f"at most {num_positions}, so that no shard is empty",
                fix="lower num_shards or use more episodes",
            )
        )
