"""What a dataset says about itself: everything that is known without reading a row."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .blocking import block_ranges
from .location import Location
from .reading.contents import Contents, load_meta
from .schema import EPISODE_ENDS, EPISODE_HAS_FINAL_OBSERVATION, EPISODE_ID, EPISODE_SEED, ArraySpec
from .spaces import Space, space_from_json


class DatasetFacts:
    """The attributes of a dataset and its columns on the episode axis."""

    def __init__(self, location: Location, contents: Contents) -> None:
        """Columns on the episode axis are read when they are first asked for."""
        self.location = location
        self.contents = contents

    @property
    def path(self) -> str:
        """The absolute path, or the URL."""
        return self.location.url

    @property
    def num_steps(self) -> int:
        """Transitions of all episodes."""
        return self.contents.attributes.num_steps

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return self.contents.attributes.num_episodes

    @property
    def num_rows(self) -> int:
        """Length of the time axis: steps and final observations."""
        return self.contents.attributes.num_rows

    @property
    def generation(self) -> int:
        """1 when it was written, and one more for each appending since."""
        return self.contents.commit.generation

    @property
    def shard_rows(self) -> int:
        """Rows of a shard, the same for all arrays; segments that were appended may have others."""
        return self.contents.commit.shard_rows

    def block_ranges(self, block_rows: int) -> Iterator[tuple[int, int]]:
        """Yield the row ranges [start, stop) of blocks that lie in one segment each; the last of each may be short."""
        for part in self.contents.commit.parts:
            for start, stop in block_ranges(part.num_rows, block_rows):
                yield part.first_row + start, part.first_row + stop

    @cached_property
    def observation_space(self) -> Space:
        """The space of one observation."""
        return space_from_json(self.contents.attributes.observation_space)

    @cached_property
    def action_space(self) -> Space:
        """The space of one action."""
        return space_from_json(self.contents.attributes.action_space)

    @property
    def environment(self) -> str | None:
        """Gymnasium id of the environment, if it is known."""
        return self.contents.attributes.environment

    @property
    def ref_scores(self) -> tuple[float, float] | None:
        """Returns of a random policy and of an expert, if they are known."""
        minimum, maximum = self.contents.attributes.ref_min_score, self.contents.attributes.ref_max_score
        return None if minimum is None or maximum is None else (minimum, maximum)

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the data came from."""
        return dict(self.contents.attributes.provenance)

    @property
    def content_hash(self) -> str:
        """The identity of the data, the same for the same data, settings of the writer and spaces."""
        return self.contents.content_hash

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays on the time axis, by field."""
        return dict(self.contents.arrays)

    @cached_property
    def episode_ends(self) -> npt.NDArray[np.int64]:
        """Exclusive row ends, final rows counted, (num_episodes,)."""
        return load_meta(self.location, self.contents.commit, EPISODE_ENDS)

    @cached_property
    def episode_starts(self) -> npt.NDArray[np.int64]:
        """First rows, (num_episodes,)."""
        return np.concatenate([[0], self.episode_ends[:-1]])

    @property
    def episode_lengths(self) -> npt.NDArray[np.int64]:
        """Steps T of each episode, (num_episodes,)."""
        return self.episode_ends - self.episode_starts - 1

    @cached_property
    def episode_ids(self) -> npt.NDArray[np.int64]:
        """The source's ids, (num_episodes,)."""
        return load_meta(self.location, self.contents.commit, EPISODE_ID)

    @cached_property
    def episode_seeds(self) -> npt.NDArray[np.int64]:
        """The environment's seeds, -1 where unknown, (num_episodes,)."""
        return load_meta(self.location, self.contents.commit, EPISODE_SEED)

    @cached_property
    def has_final_observation(self) -> npt.NDArray[np.bool_]:
        """Whether the last row of each episode is real, (num_episodes,)."""
        return load_meta(self.location, self.contents.commit, EPISODE_HAS_FINAL_OBSERVATION)
