"""Columns that no dataset stores: whether the next observation is real, returns-to-go, n-step rewards, step numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.schema import REWARDS
from dask_rl.storage.transforms import SCAN_ROWS, n_step_rewards, returns_to_go

from .blocks import BlockPlan
from .config import Feed
from .layout import NEXT_VALID, RETURNS_TO_GO, STEPS_LEFT, TIMESTEPS, Layout
from .partition import IntArray
from .sampling import Halo


@dataclass(frozen=True)
class DerivedColumns:
    """Fills the derived columns of blocks; made once for the data shards of one learner."""

    invalid_next_rows: npt.NDArray[np.int64]
    returns: Mapping[int, tuple[int, npt.NDArray[Any]]]
    """By data shard: its first row, and the returns-to-go from there to the end of its last episode."""
    n_step: int = 1
    discount: float = 1.0
    """Of n steps."""

    def fill(self, plan: BlockPlan, out: Mapping[str, npt.NDArray[Any]]) -> None:
        """Fill the derived columns of one block."""
        if NEXT_VALID in out:
            out[NEXT_VALID][:] = True
            out[NEXT_VALID][plan.rows_inside(self.invalid_next_rows)] = False
        if RETURNS_TO_GO in out:
            first, values = self.returns[plan.shard]
            offsets = plan.run_offsets
            for index, (start, stop) in enumerate(zip(plan.run_starts, plan.run_stops, strict=True)):
                out[RETURNS_TO_GO][offsets[index] : offsets[index + 1]] = values[start - first : stop - first]
        if TIMESTEPS in out:
            _fill_pieces(plan, out[TIMESTEPS], plan.piece_starts - plan.episode_starts, 1)
        if STEPS_LEFT in out:
            _fill_pieces(plan, out[STEPS_LEFT], plan.episode_stops - plan.piece_starts, -1)
        if self.n_step > 1 and REWARDS in out:
            out[REWARDS][:] = n_step_rewards(out[REWARDS], out[STEPS_LEFT], self.n_step, self.discount)

    @property
    def num_bytes(self) -> int:
        """Bytes that are held in memory."""
        return sum(values.nbytes for _, values in self.returns.values())


def derive_columns(feed: Feed, layout: Layout, dataset: OfflineDataset, shards: tuple[int, ...]) -> DerivedColumns:
    """Prepare the derived columns of these shards; returns-to-go take one backward scan."""
    returns: dict[int, tuple[int, npt.NDArray[Any]]] = {}
    if any(column.name == RETURNS_TO_GO for column in layout.derived):
        for shard in shards:
            returns[shard] = _scan(feed, dataset, shard, layout.halo)
    return DerivedColumns(feed.transitions.invalid_next_rows, returns, layout.sampling.n_step, layout.discount)


def _fill_pieces(plan: BlockPlan, column: npt.NDArray[Any], firsts: IntArray, step: int) -> None:
    """Number the transitions of each piece from its first number on; 0 in all rows around them."""
    lengths = plan.piece_stops - plan.piece_starts
    begins = np.cumsum(lengths) - lengths
    column[:] = 0
    column[plan.local_index()] = np.repeat(firsts - step * begins, lengths) + step * np.arange(lengths.sum())


def _scan(feed: Feed, dataset: OfflineDataset, shard: int, halo: Halo) -> tuple[int, npt.NDArray[Any]]:
    positions = feed.shard_edges[shard], feed.shard_edges[shard + 1] - 1
    first, last = (int(row) for row in feed.transitions.rows(positions))
    first = max(0, first - halo.before)
    ends = np.asarray(dataset.episode_ends)
    low, high = np.searchsorted(ends, (first, last), side="right")
    ends = ends[low : high + 1]
    starts = np.concatenate(([first], ends[:-1]))
    values = np.empty(int(ends[-1]) - first, feed.config.dtype)
    for begin in range(first, int(ends[-1]), SCAN_ROWS):
        stop = min(begin + SCAN_ROWS, int(ends[-1]))
        values[begin - first : stop - first] = dataset.read(REWARDS, begin, stop)
    for transform in feed.config.transforms.get(REWARDS, ()):
        transform.apply(values, out=values)
    returns_to_go(values, starts - first, ends - first, feed.config.discount, out=values)
    # The last episode may be the next shards' for the most part.
    needed = last + 1 + halo.after + halo.next - first
    return first, values[:needed].copy() if needed < len(values) else values
