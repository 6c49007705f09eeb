"""The episodes of a transformed dataset: any range of them, in any process."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dask_rl.storage.building.supply import Survey, survey
from dask_rl.storage.episode import Episode
from dask_rl.storage.spaces import Space

from .config import TransformConfig
from .normalization import Normalization
from .rewards import change_rewards
from .sources import Range, SourcePart
from .spans import read_episodes


@dataclass(frozen=True, eq=False)
class TransformSupply:
    """Episodes of several datasets, numbered through; those that are not kept are left out."""

    parts: tuple[SourcePart, ...]
    packed: npt.NDArray[np.uint8]
    """Which episodes are kept, a bit each: every task gets it."""
    config: TransformConfig
    normalization: Normalization | None
    """By what observations are standardised or, as the config says, were; None: they stay as they are."""
    observation_space: Space
    action_space: Space

    @property
    def is_copy(self) -> bool:
        """Whether episodes stay as they are."""
        config = self.config
        return self.normalization is None and config.ids == "keep" and not config.changes_rewards

    def episodes(self, start: int, stop: int) -> Iterator[Episode | None]:
        """Yield the episodes number `start` … `stop` − 1 of all sources; None for one that is not kept.

        Raises:
            CorruptDataError: a source is damaged.
        """
        kept = np.unpackbits(self.packed, count=stop).view(np.bool_)
        rank = int(kept[:start].sum())
        for part in self.parts:
            own_start, own_stop = part.overlap(start, stop)
            flags = kept[part.first + own_start : part.first + own_stop]
            numbers = own_start + np.flatnonzero(flags)
            if not len(numbers):
                yield from [None] * len(flags)
                continue
            with part.open() as dataset:
                found = read_episodes(dataset, numbers, part.fields)
                for flag in flags:
                    yield self._change(next(found), rank) if flag else None
                    rank += int(flag)

    def _change(self, episode: Episode, rank: int) -> Episode:
        if self.is_copy:
            return episode
        rewards = change_rewards(episode.rewards, episode.terminations, self.config)
        number = rank if self.config.ids == "renumber" else episode.id
        observations = episode.observations
        if self.normalization is not None:
            observations = self.normalization.apply(observations, undo=self.config.denormalize)
        return replace(episode, observations=observations, rewards=rewards, id=number)


def survey_range(supply: TransformSupply, numbers: Range) -> Survey:
    """Go through a range of the episodes; the body of a task."""
    return survey(supply.episodes(*numbers), numbers[0], supply.observation_space, supply.action_space)
