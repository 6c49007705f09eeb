"""Episodes that any process can get again, and what is known of all of them after one pass."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from dask_rl.storage.episode import Episode
from dask_rl.storage.layout import crc32c
from dask_rl.storage.schema import ArraySpec
from dask_rl.storage.spaces import Space
from dask_rl.storage.validation import array_specs, episode_columns

from .episode_axis import axis_columns

IntArray = npt.NDArray[np.int64]


class Supply(Protocol):
    """A picklable recipe of episodes in an order: the same ones each time, wherever it is asked."""

    def episodes(self, start: int, stop: int) -> Iterator[Episode | None]:
        """Yield the episodes number `start` … `stop` − 1; None for one that is left out."""
        ...


@dataclass(frozen=True)
class Survey:
    """What a pass over episodes tells of those that were not left out, in their order. Surveys can be joined."""

    numbers: IntArray  # (num_episodes,) in the supply
    lengths: IntArray  # (num_episodes,) steps
    ids: IntArray  # (num_episodes,) -1: unknown
    seeds: IntArray  # (num_episodes,) -1: unknown
    has_final_observation: npt.NDArray[np.bool_]  # (num_episodes,)
    checksums: npt.NDArray[np.uint32]  # (num_episodes,) over all their values
    specs: Mapping[str, ArraySpec] | None
    """The arrays that hold the first of them; None if there is none."""

    @property
    def num_episodes(self) -> int:
        """How many there are."""
        return len(self.lengths)

    @property
    def num_steps(self) -> int:
        """Steps of all."""
        return int(self.lengths.sum())

    @property
    def row_ends(self) -> IntArray:
        """Exclusive row ends, final rows counted, (num_episodes,)."""
        return np.cumsum(self.lengths + 1)

    @property
    def fingerprint(self) -> str:
        """A sha256 that tells whether two passes saw the same episodes."""
        digest = hashlib.sha256()
        for column in (self.lengths, self.ids, self.seeds, self.has_final_observation, self.checksums):
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    def axis_columns(self, first_episode: int) -> dict[str, npt.NDArray[Any]]:
        """Return the columns on the episode axis by key, in the types of the files.

        Args:
            first_episode: number of the first one in its dataset; one without an id gets its number.
        """
        return axis_columns(self.row_ends, self.ids, self.seeds, self.has_final_observation, first_episode)

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """Return one survey of what several saw, one after another."""
        found = list(parts)
        return cls(
            numbers=np.concatenate([part.numbers for part in found]),
            lengths=np.concatenate([part.lengths for part in found]),
            ids=np.concatenate([part.ids for part in found]),
            seeds=np.concatenate([part.seeds for part in found]),
            has_final_observation=np.concatenate([part.has_final_observation for part in found]),
            checksums=np.concatenate([part.checksums for part in found]),
            specs=next((part.specs for part in found if part.specs is not None), None),
        )


def survey(episodes: Iterable[Episode | None], first: int, observation_space: Space, action_space: Space) -> Survey:
    """Go through episodes, and keep none.

    Args:
        episodes: of a supply; None for one that is left out.
        first: the supply's number of the first.
        observation_space: of the dataset to be.
        action_space: of the dataset to be.

    Raises:
        InvalidDataError: an info that no array can hold.
    """
    rows: list[tuple[int, int, int, int, bool, int]] = []
    specs: dict[str, ArraySpec] | None = None
    for number, episode in enumerate(episodes, first):
        if episode is None:
            continue
        if specs is None:
            specs = array_specs(episode, observation_space, action_space)
        seed = -1 if episode.seed is None else episode.seed
        checksum = episode_checksum(episode)
        rows.append((number, len(episode), episode.id, seed, episode.has_final_observation, checksum))
    numbers, lengths, ids, seeds, has_final, checksums = zip(*rows, strict=True) if rows else ((),) * 6
    return Survey(
        numbers=np.array(numbers, np.int64),
        lengths=np.array(lengths, np.int64),
        ids=np.array(ids, np.int64),
        seeds=np.array(seeds, np.int64),
        has_final_observation=np.array(has_final, np.bool_),
        checksums=np.array(checksums, np.uint32),
        specs=specs,
    )


def episode_checksum(episode: Episode) -> int:
    """Return a CRC-32C over all values of an episode, and their types."""
    checksum = 0
    for path, column in episode_columns(episode):
        checksum = crc32c(f"{path} {column.dtype.str} {column.shape}".encode(), checksum)
        checksum = crc32c(np.ascontiguousarray(column).reshape(-1).view(np.uint8), checksum)
    return checksum
