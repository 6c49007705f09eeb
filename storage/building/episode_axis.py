"""The columns on the episode axis, as they grow episode by episode."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.episode import Episode
from dask_rl.storage.schema import EPISODE_ENDS, EPISODE_HAS_FINAL_OBSERVATION, EPISODE_ID, EPISODE_SEED, META_DTYPES


class EpisodeAxis:
    """Where episodes end, and what identifies them.

    Args:
        first_episode: number of the first one in its dataset; one without an id gets its number.
    """

    def __init__(self, first_episode: int) -> None:
        """No episodes as yet."""
        self.num_steps = 0
        self._first_episode = first_episode
        self._columns: dict[str, list[int]] = {key: [] for key in META_DTYPES}

    @property
    def num_episodes(self) -> int:
        """Episodes so far."""
        return len(self._columns[EPISODE_ENDS])

    def add(self, episode: Episode) -> None:
        """Take one episode."""
        number, length = self.num_episodes, len(episode)
        self.num_steps += length
        self._columns[EPISODE_ENDS].append(self.num_steps + number + 1)
        self._columns[EPISODE_ID].append(self._first_episode + number if episode.id < 0 else episode.id)
        self._columns[EPISODE_SEED].append(-1 if episode.seed is None else episode.seed)
        self._columns[EPISODE_HAS_FINAL_OBSERVATION].append(episode.has_final_observation)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns by key, in the types of the files."""
        return {key: np.array(self._columns[key], dtype) for key, dtype in META_DTYPES.items()}
