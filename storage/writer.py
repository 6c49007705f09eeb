"""Episodes in, a committed dataset out: the only way a dataset comes into being."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from pydantic import ValidationError

from .assembly import ShardAssembler
from .blocking import check_shard_rows
from .build import BuildDirectory, explained_write_errors
from .dataset import OfflineDataset
from .episode import Episode
from .errors import ConfigError, DatasetError, InvalidDataError, SourceFormatError, explain
from .files import check_local
from .finalize import clear_all_but, collect_objects, write_meta_arrays, write_metadata
from .manifest import Commit
from .schema import (
    EPISODE_ENDS,
    EPISODE_HAS_FINAL_OBSERVATION,
    EPISODE_ID,
    EPISODE_SEED,
    META_DTYPES,
    DatasetAttributes,
    first_problem,
)
from .spaces import Space, space_to_json
from .validation import EpisodeChecker, array_specs, check_space

# The same run would fail again: there is nothing to go on from.
_HOPELESS = (InvalidDataError, SourceFormatError, ConfigError)


@dataclass(eq=False)
class DatasetWriter:
    """Writes a dataset from a stream of episodes, in memory bounded by one shard.

    Used as a context manager; leaving it finishes the dataset. The dataset appears at its path complete or not at
    all. After a crash, or an error of the machine, finished shards stay in a hidden sibling directory and the same
    run again goes on from them; after an error in the data nothing stays.

    Raises:
        DatasetError: the path exists, cannot be written, or another writer is at work on it.
        InvalidDataError: an episode holds what no learner may see.
    """

    path: str | os.PathLike[str]
    """Where the dataset will be, such as `pendulum.zarr`."""
    _: KW_ONLY
    observation_space: Space
    """Box, Discrete, MultiDiscrete or MultiBinary, or Dict and Tuple of them."""
    action_space: Space
    """Of these, too; every action is checked against it."""
    environment: str | None = None
    """Gymnasium id of the environment, if there is one."""
    ref_scores: tuple[float, float] | None = None
    """Returns of a random policy and of an expert, for normalised scores."""
    provenance: Mapping[str, Any] | None = None
    """Where the data comes from, JSON-able; no part of the dataset's identity."""
    shard_rows: int | None = None
    """Rows of a shard, a power of two; None chooses."""
    overwrite: bool = False
    """Replace a dataset at this path, at the moment the new one is complete."""
    num_steps: int = field(default=0, init=False)
    """Steps added so far."""
    num_episodes: int = field(default=0, init=False)
    """Episodes added so far."""

    def __post_init__(self) -> None:
        """Check the settings and take the place, before any work."""
        if self.shard_rows is not None:
            check_shard_rows(self.shard_rows)
        check_local("dataset", self.path)
        check_space("observation_space", self.observation_space)
        check_space("action_space", self.action_space)
        self._attributes(num_steps=1, num_episodes=1)  # what is wrong with them is wrong now, not hours later
        self._build = BuildDirectory(Path(os.path.abspath(self.path)), self.overwrite)
        self._checker: EpisodeChecker | None = None
        self._shards: ShardAssembler | None = None
        self._meta: dict[str, list[int]] = {key: [] for key in META_DTYPES}
        self._closed = False

    def add_episode(self, episode: Episode) -> None:
        """Add one episode.

        Raises:
            InvalidDataError: naming the episode, the step, the field and the value.
            DatasetError: the disk refuses.
        """
        if self._closed:
            raise DatasetError(
                explain(f"writer of {self.path}", got="an episode after the end", fix="open a new writer")
            )
        if self._shards is None or self._checker is None:
            specs = array_specs(episode, self.observation_space, self.action_space)
            self._checker = EpisodeChecker(specs, self.observation_space, self.action_space)
            self._shards = ShardAssembler(specs, self.shard_rows, self._build)
        columns = self._checker.columns(episode, self.num_episodes)
        self._shards.append(columns, len(episode) + 1)
        ends = self._meta[EPISODE_ENDS]
        ends.append((ends[-1] if ends else 0) + len(episode) + 1)
        self._meta[EPISODE_ID].append(self.num_episodes if episode.id < 0 else episode.id)
        self._meta[EPISODE_SEED].append(-1 if episode.seed is None else episode.seed)
        self._meta[EPISODE_HAS_FINAL_OBSERVATION].append(episode.has_final_observation)
        self.num_episodes += 1
        self.num_steps += len(episode)

    def add_episodes(self, episodes: Iterable[Episode]) -> None:
        """Add every episode of an iterable; see `add_episode`."""
        for episode in episodes:
            self.add_episode(episode)

    def finish(self) -> OfflineDataset:
        """Write what is left, commit the dataset and open it.

        Raises:
            InvalidDataError: there is no episode.
            DatasetError: the disk refuses, or another writer was first.
        """
        if not self._closed:
            self._commit()
        return OfflineDataset.open(self.path)

    def abort(self) -> None:
        """Give up: nothing stays on the disk."""
        self._build.abort()
        self._closed = True

    def close(self) -> None:
        """Stop without a dataset; finished shards stay, so that the same run again goes on from them."""
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

    def _commit(self) -> None:
        if self._shards is None:
            self.abort()
            raise InvalidDataError(
                explain(f"dataset {self.path}", got="0 episodes", allowed="at least 1", fix="check the source")
            )
        try:
            layouts = self._shards.finish()
            attributes = self._attributes(self.num_steps, self.num_episodes)
            with explained_write_errors(self._build.target):
                clear_all_but(self._build.store, self._shards.objects)
                root = write_metadata(self._build.store, attributes, layouts)
                write_meta_arrays(root, {k: np.array(self._meta[k], dtype) for k, dtype in META_DTYPES.items()})
                objects = collect_objects(self._build.store, self._shards.objects)
            commit = Commit(
                num_rows=attributes.num_rows,
                num_episodes=self.num_episodes,
                shard_rows=next(iter(layouts.values())).shard_rows,
                objects=objects,
            )
            self._build.commit(commit.to_bytes())
        finally:
            if not self._closed:
                self.close()

    def _attributes(self, num_steps: int, num_episodes: int) -> DatasetAttributes:
        minimum, maximum = self.ref_scores or (None, None)
        try:
            provenance = json.loads(json.dumps(dict(self.provenance or {}), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise DatasetError(
                explain("provenance", got=str(error), allowed="finite JSON values", fix="convert them to text")
            ) from error
        try:
            return DatasetAttributes(
                observation_space=space_to_json(self.observation_space),
                action_space=space_to_json(self.action_space),
                environment=self.environment,
                ref_min_score=minimum,
                ref_max_score=maximum,
                provenance=provenance,
                num_steps=num_steps,
                num_episodes=num_episodes,
            )
        except ValidationError as error:
            raise DatasetError(
                explain(f"dataset {self.path}", got=first_problem(error), fix="correct this setting of the writer")
            ) from error
