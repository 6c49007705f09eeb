"""The episodes of a source in the spaces of a dataset: any range of them, in any process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dask_rl.storage.building.supply import Survey, survey
from dask_rl.storage.episode import Episode

from .base import ImportOptions, RawEpisode, Space
from .checks import InvalidEpisodeError, apply_time_limit, to_episode
from .tally import Tally

Range = tuple[int, int | None]


@dataclass(frozen=True)
class ImportSupply:
    """A source's episodes, cast and checked; the invalid ones are left out or raised, as the options say."""

    read: Callable[[int, int | None], Iterator[RawEpisode]]
    """`Source.episodes`."""
    observation_space: Space
    action_space: Space
    options: ImportOptions
    narrow: bool
    """The source declares no types of its own: floats become float32."""

    def episodes(self, start: int, stop: int | None, tally: Tally | None = None) -> Iterator[Episode | None]:
        """Yield the episodes number `start` … `stop` − 1 of the source; None for one that is left out.

        Args:
            start: the first.
            stop: one after the last; None: all that follow.
            tally: counts them.

        Raises:
            InvalidEpisodeError: an episode is invalid, and the options ask for an error.
            SourceFormatError: the source is damaged.
        """
        tally = tally or Tally()
        for raw in self.read(start, stop):
            raw = apply_time_limit(raw, self.options.max_episode_steps)
            try:
                episode, clipped_steps = to_episode(
                    raw, self.observation_space, self.action_space, self.options, narrow=self.narrow
                )
            except InvalidEpisodeError as error:
                if self.options.on_invalid == "error":
                    raise
                tally.drop(error, len(raw.rewards))
                yield None
            else:
                tally.keep(episode, clipped_steps)
                yield episode


def survey_range(supply: ImportSupply, numbers: Range) -> tuple[Survey, Tally]:
    """Go through a range of the episodes of a source; the body of a task."""
    tally = Tally()
    episodes = supply.episodes(*numbers, tally)
    return survey(episodes, numbers[0], supply.observation_space, supply.action_space), tally


def split_ranges(num_episodes: int | None, num_ranges: int) -> list[Range]:
    """Return ranges of about the same number of episodes; one of all where their number is unknown."""
    if num_episodes is None:
        return [(0, None)]
    size = max(-(-num_episodes // num_ranges), 1)
    return [(start, min(start + size, num_episodes)) for start in range(0, num_episodes, size)] or [(0, 0)]
