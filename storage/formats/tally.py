"""What an import left out or changed on the way to the dataset."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from gymnasium import spaces

from dask_rl.storage.building.step_columns import StepColumns
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import flatten
from dask_rl.storage.schema import ACTIONS, TERMINATIONS, TRUNCATIONS, is_part_of
from dask_rl.storage.spaces import describe_space

from .base import ImportOptions, Space, environment_limit
from .checks import InvalidEpisodeError


@dataclass
class Tally:
    """Counts of one pass over a source, or of a part of one."""

    num_steps: int = 0
    """Steps of the source that were read."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Episodes left out, by reason."""
    dropped_steps: int = 0
    first_drop: str = ""
    clipped_steps: int = 0
    largest_action: float = 0.0
    ends: Counter[tuple[int, bool]] = field(default_factory=Counter)
    """Episodes by their number of steps and whether they are terminated and not truncated."""

    def keep(self, episode: Episode, clipped_steps: int) -> None:
        """Count an episode that goes into the dataset."""
        self.num_steps += len(episode)
        self.clipped_steps += clipped_steps
        self.ends[len(episode), episode.terminated and not episode.truncated] += 1
        for actions in flatten("actions", episode.actions).values():
            if actions.dtype.kind == "f":
                self.largest_action = max(self.largest_action, float(np.abs(actions).max(initial=0)))

    def keep_all(self, steps: StepColumns) -> None:
        """Count all episodes at once."""
        self.num_steps += steps.num_steps
        last = np.cumsum(steps.lengths) - 1
        terminated = steps.columns[TERMINATIONS][last] & ~steps.columns[TRUNCATIONS][last]
        self.ends.update(zip(steps.lengths.tolist(), terminated.tolist(), strict=True))
        for path, actions in steps.columns.items():
            if is_part_of(path, ACTIONS) and actions.dtype.kind == "f":
                largest = max(float(actions.max(initial=0)), -float(actions.min(initial=0)))
                self.largest_action = max(self.largest_action, largest)

    def drop(self, error: InvalidEpisodeError, num_steps: int) -> None:
        """Count an episode that does not."""
        self.num_steps += num_steps
        self.dropped[error.reason] += 1
        self.dropped_steps += num_steps
        self.first_drop = self.first_drop or str(error)

    def add(self, later: Self) -> None:
        """Take in the counts of a later part of the source."""
        self.num_steps += later.num_steps
        self.dropped += later.dropped
        self.dropped_steps += later.dropped_steps
        self.first_drop = self.first_drop or later.first_drop
        self.clipped_steps += later.clipped_steps
        self.ends += later.ends
        self.largest_action = max(self.largest_action, later.largest_action)

    def check(self, source: str, num_episodes: int) -> None:
        """Check that there is an episode to write.

        Raises:
            SourceFormatError: there is none.
        """
        if not num_episodes:
            total = sum(self.dropped.values())
            got = f"{total} episodes, all invalid ({self.first_drop})" if total else "no episodes"
            raise SourceFormatError(explain(source, got=got, allowed="at least one", fix="check the source"))

    def notes(self, action_space: Space, options: ImportOptions) -> Iterator[str]:
        """Yield what the user should look at."""
        if self.dropped:
            yield f"the dropped episodes had {self.dropped_steps} steps; the first: {self.first_drop}"
        if self.clipped_steps:
            yield f"actions were clipped at {self.clipped_steps} steps"
        limit = environment_limit(options.environment)
        if limit is not None and self.ends[limit, True] and not self.ends[limit, False]:
            yield (
                f"{self.ends[limit, True]} episodes are terminated after exactly {limit} steps, the time limit of "
                f"{options.environment}, and none is truncated there: if the source does not tell time limits from "
                f"terminations, import it again with max_episode_steps (--max-episode-steps {limit})"
            )
        if (
            isinstance(action_space, spaces.Box)
            and not options.normalized_actions
            and self.largest_action <= 1
            and action_space.is_bounded()
            and float(np.abs([action_space.low, action_space.high]).min()) > 1
        ):
            yield (
                f"all actions lie in [-1, 1] while the space is {describe_space(action_space)}: if the source "
                "normalised them, import it again with normalized_actions"
            )
