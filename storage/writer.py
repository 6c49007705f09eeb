"""Episodes in, a committed dataset out: the only way a dataset comes into being."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from .blocking import check_shard_rows
from .building.assembly import ShardAssembler
from .building.build import BuildDirectory
from .building.column_shards import ColumnShards
from .building.destination import Description, create, extend
from .building.episode_axis import EpisodeAxis
from .building.finalize import clear_all_but, collect_objects, write_meta_arrays, write_metadata
from .building.parallel_build import ParallelShards, TaskRunner
from .building.step_columns import StepColumns
from .building.supply import Supply, Survey
from .building.write_errors import explained_write_errors
from .dataset import OfflineDataset
from .episode import Episode
from .errors import ConfigError, DatasetError, InvalidDataError, SourceFormatError, explain
from .manifest import Commit
from .spaces import Space
from .validation import EpisodeChecker, array_specs

# The same run would fail again: there is nothing to go on from.
_HOPELESS = (InvalidDataError, SourceFormatError, ConfigError)


@dataclass(eq=False)
class DatasetWriter:
    """Writes a dataset from a stream of episodes, in memory bounded by one shard.

    Used as a context manager; leaving it finishes the dataset. The dataset appears at its path complete or not at
    all, and so does what is appended to one. After a crash, or an error of the machine, finished shards stay in a
    hidden sibling directory (behind a URL: in place, with notes in `NAME.partial/`) and the same run again goes on
    from them; after an error in the data nothing stays.

    Raises:
        DatasetError: the path exists, cannot be written, or another writer is at work on it.
        InvalidDataError: an episode holds what no learner may see.
        ConfigError: a space is missing, or what is appended does not fit.
    """

    path: str | os.PathLike[str]
    """Where the dataset will be, such as `pendulum.zarr`."""
    _: KW_ONLY
    observation_space: Space | None = None
    """Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those; to append: the dataset's, or None."""
    action_space: Space | None = None
    """As for observations; every action is checked against it."""
    environment: str | None = None
    """Gymnasium id of the environment, if there is one."""
    ref_scores: tuple[float, float] | None = None
    """Returns of a random policy and of an expert, for normalised scores."""
    provenance: Mapping[str, Any] | None = None
    """Where the data comes from, JSON-able; no part of the dataset's identity."""
    shard_rows: int | None = None
    """Rows of a shard, a power of two; None chooses."""
    overwrite: bool = False
    """Replace a dataset at this path, at the moment the new one is complete; behind a URL the old one goes before the
    first shard of the new one is written."""
    append: bool = False
    """Add the episodes to the dataset at this path, a directory, at the moment they are complete: a new generation."""
    num_steps: int = field(default=0, init=False)
    """Steps added so far."""
    num_episodes: int = field(default=0, init=False)
    """Episodes added so far."""

    def __post_init__(self) -> None:
        """Check the settings and take the place, before any work."""
        if self.shard_rows is not None:
            check_shard_rows(self.shard_rows)
        if self.append and self.overwrite:
            raise ConfigError(explain("append", got="append and overwrite", allowed="one of both", fix="choose one"))
        description = Description(
            self.observation_space, self.action_space, self.environment, self.ref_scores, self.provenance
        )
        self._place = extend(self.path, description) if self.append else create(self.path, description, self.overwrite)
        self.observation_space, self.action_space = self._place.observation_space, self._place.action_space
        self._build = self._place.build
        self._checker: EpisodeChecker | None = None
        self._stream: ShardAssembler | None = None
        self._axis = EpisodeAxis(self._place.first_episode)
        self._supplied: tuple[ParallelShards | ColumnShards, Survey | StepColumns] | None = None
        self._closed = self._is_published = False

    def add_episode(self, episode: Episode) -> None:
        """Add one episode.

        Raises:
            InvalidDataError: naming the episode, the step, the field and the value.
            DatasetError: the disk refuses.
        """
        self._check_open("an episode")
        if self._stream is None or self._checker is None:
            spaces = self._place.observation_space, self._place.action_space
            specs = self._place.specs or array_specs(episode, *spaces)
            self._checker = EpisodeChecker(specs, *spaces)
            self._stream = ShardAssembler(specs, self.shard_rows, self._build)
        columns = self._checker.columns(episode, self.num_episodes)
        self._stream.append(columns, len(episode) + 1)
        self._axis.add(episode)
        self.num_episodes, self.num_steps = self._axis.num_episodes, self._axis.num_steps

    def add_episodes(self, episodes: Iterable[Episode]) -> None:
        """Add every episode of an iterable; see `add_episode`."""
        for episode in episodes:
            self.add_episode(episode)

    def add_supply(
        self, supply: Supply, survey: Survey, run: TaskRunner, progress: Callable[[int], None] | None = None
    ) -> None:
        """Add all episodes of a supply by tasks, a shard each; no others may be added before or after.

        The dataset is the one that `add_episodes` would give, for any number of workers.

        Args:
            supply: the episodes.
            survey: what a pass over all of them told.
            run: runs the tasks; memory of a process is bounded by one shard and one episode.
            progress: gets the number of rows on the disk.

        Raises:
            InvalidDataError: naming the episode, the step, the field and the value.
            DatasetError: the disk refuses, or the episodes are others than the survey saw.
        """
        self._check_open("episodes")
        if self.num_episodes:
            raise DatasetError(
                explain(f"writer of {self.path}", got="a supply after episodes", fix="write one or the other")
            )
        if self._place.specs is not None:
            survey = replace(survey, specs=self._place.specs)
        spaces = self._place.observation_space, self._place.action_space
        shards = ParallelShards(supply, survey, *spaces, self.shard_rows, self._build)
        shards.write(run, progress or (lambda num_rows: None))
        self._supplied = shards, survey
        self.num_episodes, self.num_steps = survey.num_episodes, survey.num_steps

    def add_steps(self, steps: StepColumns) -> None:
        """Add many episodes at once, from columns in memory.

        The dataset is the one that `add_episodes` would give, with the same checks, several times as fast. In a
        directory they should be the only ones: nothing can be added after them, and after others they are written
        one by one, as behind a URL.

        Args:
            steps: the episodes.

        Raises:
            InvalidDataError: naming the episode, the step, the field and the value.
            DatasetError: the disk refuses.
        """
        self._check_open("episodes")
        if self.num_episodes or not isinstance(self._build, BuildDirectory):
            self.add_episodes(steps.episode(number) for number in range(steps.num_episodes))
            return
        spaces = self._place.observation_space, self._place.action_space
        specs = self._place.specs or array_specs(steps.episode(0), *spaces)
        shards = ColumnShards(steps, specs, *spaces, self.shard_rows, self._build)
        shards.write()
        self._supplied = shards, steps
        self.num_episodes, self.num_steps = steps.num_episodes, steps.num_steps

    def finish(self) -> OfflineDataset:
        """Write what is left, commit the dataset and open it.

        Raises:
            InvalidDataError: there is no episode.
            DatasetError: the disk refuses, another writer was first, or this one was closed without a dataset.
        """
        if self._closed and not self._is_published:
            got, fix = "an end without a dataset before", "open a new writer"
            raise DatasetError(explain(f"writer of {self.path}", got=got, fix=fix))
        if not self._closed:
            self._commit()
        return OfflineDataset.open(self.path)

    def abort(self) -> None:
        """Give up: nothing stays on the disk."""
        self._build.abort()
        self._closed = True

    def close(self) -> None:
        """Stop without a dataset; finished shards stay, so that the same run again goes on from them."""
        if self._closed:
            return
        if self._build.has_receipts():
            self._build.close()
            self._closed = True
        else:
            self.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._closed:
            return
        if isinstance(error, _HOPELESS):
            self.abort()
        elif error is not None:
            self.close()
        else:
            self._commit()

    def _check_open(self, what: str) -> None:
        if self._closed or self._supplied:
            raise DatasetError(explain(f"writer of {self.path}", got=f"{what} after the end", fix="open a new writer"))

    def _commit(self) -> None:
        shards = self._supplied[0] if self._supplied else self._stream
        if shards is None:
            self.abort()
            raise InvalidDataError(
                explain(f"dataset {self.path}", got="0 episodes", allowed="at least 1", fix="check the source")
            )
        try:
            axis = self._supplied[1] if self._supplied else None
            self._publish(shards, axis.axis_columns(self._place.first_episode) if axis else self._axis.columns())
            self._closed = self._is_published = True  # the place may be another writer's from here on
        finally:
            if not self._closed:
                self.close()

    def _publish(
        self, shards: ShardAssembler | ParallelShards | ColumnShards, columns: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Write the metadata around the shards, and the manifest last."""
        layouts = shards.finish()
        numbers = {"num_steps": self.num_steps, "num_episodes": self.num_episodes}
        attributes = self._place.attributes.model_copy(update=numbers)
        num_rows = next(iter(layouts.values())).num_rows
        if num_rows != attributes.num_rows:  # somebody interrupted `add_episode`, and went on
            got, allowed = f"{num_rows} rows of its episodes", f"{attributes.num_rows}, all of them"
            raise DatasetError(explain(f"dataset {self.path}", got=got, allowed=allowed, fix="run the same again"))
        with explained_write_errors(self._build.target):
            clear_all_but(self._build.store, shards.objects)
            root = write_metadata(self._build.store, attributes, layouts)
            write_meta_arrays(root, columns)
            objects = collect_objects(self._build.store, shards.objects)
        self._build.commit(
            Commit(
                num_rows=attributes.num_rows,
                num_episodes=self.num_episodes,
                shard_rows=next(iter(layouts.values())).shard_rows,
                objects=objects,
            )
        )
