"""Supplies of random episodes, and ways to run tasks without a cluster."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from dask_rl.storage.building.supply import Survey, survey
from dask_rl.storage.episode import Episode

OBSERVATION_SPACE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION_SPACE = spaces.Box(-2, 2, (1,), np.float32)
SPACES = {"observation_space": OBSERVATION_SPACE, "action_space": ACTION_SPACE}


@dataclass(frozen=True)
class RandomSupply:
    """Random episodes, each a function of its number."""

    lengths: tuple[int, ...]
    left_out: frozenset[int] = field(default_factory=frozenset)
    spoiled: frozenset[int] = field(default_factory=frozenset)
    """Those whose rewards are not finite."""

    def episodes(self, start: int, stop: int) -> Iterator[Episode | None]:
        for number in range(start, stop):
            yield None if number in self.left_out else self._episode(number)

    def _episode(self, number: int) -> Episode:
        rng, length, ended = np.random.default_rng(number), self.lengths[number], number % 2 == 0
        rewards = rng.standard_normal(length, dtype=np.float32)
        if number in self.spoiled:
            rewards[-1] = np.nan
        return Episode(
            observations=rng.standard_normal((length + 1, 3), dtype=np.float32),
            actions=rng.uniform(-2, 2, (length, 1)).astype(np.float32),
            rewards=rewards,
            terminations=np.arange(length) == (length - 1 if ended else -1),
            truncations=np.arange(length) == (-1 if ended else length - 1),
            infos={"behavior_logp": rng.standard_normal(length)},
            has_final_observation=number % 3 != 1,
            id=number if number % 4 else -1,
            seed=None if number % 5 else number,
        )

    def kept(self) -> list[Episode]:
        return [episode for episode in self.episodes(0, len(self.lengths)) if episode is not None]

    def survey(self, num_parts: int = 1) -> Survey:
        size = -(-len(self.lengths) // num_parts)
        ranges = [(i, min(i + size, len(self.lengths))) for i in range(0, len(self.lengths), size)]
        return Survey.join(survey(self.episodes(*it), it[0], OBSERVATION_SPACE, ACTION_SPACE) for it in ranges)

    def changed(self) -> "RandomSupply":
        """The same shapes, other values."""
        return replace(self, spoiled=frozenset({len(self.lengths) - 1}))


def run_as_if_elsewhere(function: Callable[[Any], Any], items: Iterable[Any], name: str) -> Iterator[Any]:
    """Run tasks here; everything travels as it does to a worker and back."""
    for item in items:
        there, argument = pickle.loads(pickle.dumps((function, item)))  # noqa: S301
        yield pickle.loads(pickle.dumps(there(argument)))  # noqa: S301
