"""The columns on the episode axis: of episodes that are known at once, or as they grow one by one."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.episode import Episode
from dask_rl.storage.schema import EPISODE_ENDS, EPISODE_HAS_FINAL_OBSERVATION, EPISODE_ID, EPISODE_SEED, META_DTYPES

IntArray = npt.NDArray[np.int64]


def axis_columns(
    row_ends: IntArray, ids: IntArray, seeds: IntArray, has_final_observation: npt.NDArray[np.bool_], first_episode: int
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns on the episode axis by key, in the types of the files.

    Args:
        row_ends: exclusive row ends, final rows counted, (num_episodes,).
        ids: (num_episodes,); -1: unknown, such an episode gets its number.
        seeds: (num_episodes,); -1: unknown.
        has_final_observation: (num_episodes,).
        first_episode: number of the first one in its dataset.
    """
    columns = {
        EPISODE_ENDS: row_ends,
        EPISODE_ID: np.where(ids < 0, first_episode + np.arange(len(ids)), ids),
        EPISODE_SEED: seeds,
        EPISODE_HAS_FINAL_OBSERVATION: has_final_observation,
    }
    return {key: column.astype(META_DTYPES[key]) for key, column in columns.items()}


class EpisodeAxis:
    """Where episodes end, and what identifies them.

    Args:
        first_episode: number of the first one in its dataset; one without an id gets its number.
    """

    def __init__(self, first_episode: int) -> None:
        """No episodes as yet."""
        self.num_steps = 0
        self._first_episode = first_episode
        self._columns: tuple[list[int], ...] = ([], [], [], [])  # as `axis_columns` takes them

    @property
    def num_episodes(self) -> int:
        """Episodes so far."""
        return len(self._columns[0])

    def add(self, episode: Episode) -> None:
        """Take one episode."""
        self.num_steps += len(episode)
        end, seed = self.num_steps + self.num_episodes + 1, -1 if episode.seed is None else episode.seed
        for column, value in zip(self._columns, (end, episode.id, seed, episode.has_final_observation), strict=True):
            column.append(value)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns by key, in the types of the files."""
        ends, ids, seeds, has_final = (np.array(column) for column in self._columns)
        return axis_columns(ends, ids, seeds, has_final, self._first_episode)
