"""Gymnasium environments whose episodes become a dataset while somebody plays in them."""

import copy
import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal, Self

import gymnasium
import numpy as np

from .dataset import OfflineDataset
from .episode import Episode
from .errors import ConfigError, explain
from .nested import stack_elements
from .writer import DatasetWriter


class EpisodeRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that writes every episode played in it; a context manager.

    An episode is written when it ends; one that a reset or the end of the recording cuts off is truncated there.
    Leaving the block completes the dataset, and closes the environment; without a block, `finish` completes it.

    Args:
        environment: a Gymnasium environment; its spaces become those of the dataset.
        path: the new dataset, such as `mine.zarr`.
        infos: names of infos of each step to store: numbers, in one shape.
        overwrite: replace a dataset at `path`.
        append: add the episodes to the dataset at `path`.
        shard_rows: rows of a shard, a power of two; None chooses.

    Raises:
        DatasetError: the path exists, cannot be written, or another writer is at work on it.
        InvalidDataError: the environment gave what no learner may see.
    """

    def __init__(
        self,
        environment: gymnasium.Env[Any, Any],
        path: str | os.PathLike[str],
        *,
        infos: Sequence[str] = (),
        overwrite: bool = False,
        append: bool = False,
        shard_rows: int | None = None,
    ) -> None:
        super().__init__(environment)
        self._infos = tuple(infos)
        self._writer = DatasetWriter(
            path,
            observation_space=environment.observation_space,
            action_space=environment.action_space,
            environment=None if environment.spec is None or append else environment.spec.id,
            provenance={"recorded": True},
            shard_rows=shard_rows,
            overwrite=overwrite,
            append=append,
        )
        self._needs_finish = True
        self._seed: int | None = None
        self._observations: list[Any] = []
        self._steps: list[tuple[Any, float, bool, bool, dict[str, Any]]] = []

    @property
    def num_episodes(self) -> int:
        """Episodes written so far."""
        return self._writer.num_episodes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that is under way is written as truncated."""
        self._write(cut_off=True)
        observation, info = super().reset(seed=seed, options=options)
        self._seed, self._observations = seed, [copy.deepcopy(observation)]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and remember it.

        Raises:
            ConfigError: an info to be stored is missing.
        """
        kept = copy.deepcopy(action)
        observation, reward, terminated, truncated, info = super().step(action)
        missing = [name for name in self._infos if name not in info]
        if missing:
            allowed, fix = ", ".join(info) or "none", "leave it out of infos"
            raise ConfigError(explain("infos", got=f"no {missing[0]} at this step", allowed=allowed, fix=fix))
        self._observations.append(copy.deepcopy(observation))
        values = {name: copy.deepcopy(info[name]) for name in self._infos}
        self._steps.append((kept, float(reward), bool(terminated), bool(truncated), values))
        if terminated or truncated:
            self._write()
        return observation, reward, terminated, truncated, info

    def finish(self) -> OfflineDataset:
        """Write what is under way, complete the dataset and open it.

        Raises:
            InvalidDataError: no step was taken.
        """
        self._write(cut_off=True)
        self._needs_finish = False
        return self._writer.finish()

    def close(self) -> None:
        """Close the environment; without a block, warn where `finish` is still to be called: it can be afterwards."""
        if self._needs_finish and (self.num_episodes or self._steps):
            got, fix = "closed with episodes that are in no dataset", "call finish(), or record in a with block"
            warnings.warn(explain("EpisodeRecorder", got=got, fix=fix), stacklevel=2)
        super().close()

    def __enter__(self) -> Self:
        self._writer.__enter__()
        self._needs_finish = False
        return self

    def __exit__(self, *args: Any) -> Literal[False]:
        try:
            if args[0] is None:
                self._write_last()
            self._writer.__exit__(*args)
        finally:
            self.close()
        return False

    def _write_last(self) -> None:
        """Write what is under way; the writer hears of what is wrong with it, as of any error in the block."""
        try:
            self._write(cut_off=True)
        except BaseException as error:
            self._writer.__exit__(type(error), error, error.__traceback__)
            raise

    def _write(self, *, cut_off: bool = False) -> None:
        """Write the episode that is under way, if it has a step, and forget it."""
        steps, observations = self._steps, self._observations
        self._steps, self._observations = [], []
        if not steps:
            return
        actions, rewards, terminations, truncations, infos = zip(*steps, strict=True)
        truncated = np.array(truncations)
        truncated[-1] |= cut_off
        self._writer.add_episode(
            Episode(
                observations=stack_elements("observations", self.observation_space, observations),
                actions=stack_elements("actions", self.action_space, actions),
                rewards=np.array(rewards, np.float64).astype(np.float32),
                terminations=np.array(terminations),
                truncations=truncated,
                infos={name: np.stack([np.asarray(values[name]) for values in infos]) for name in self._infos},
                seed=self._seed,
            )
        )
        self._seed = None
