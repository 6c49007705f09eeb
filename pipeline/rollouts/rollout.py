"""Episodes of a behaviour in an environment: several at once, in lock-step, for one batched call a step."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import ConfigError, WaitTimeoutError, explain
from dask_rl.storage.nested import Columns, flatten, parts_of, take_element, unflatten
from dask_rl.storage.schema import ACTIONS, OBSERVATIONS
from dask_rl.storage.spaces import Space

from .controllers import Behaviour
from .environments import Environment, EnvironmentConfig, make_environment
from .stacked_frames import newest_frames

Parts = dict[str, npt.NDArray[Any]]
"""An observation or an action by path: one array, or one for each part of a nested one."""


@dataclass(frozen=True)
class RolloutTask:
    """Episodes `start` … `stop`−1 of a rollout; the unit of work, the same whatever the number of workers."""

    config: EnvironmentConfig
    start: int
    stop: int
    seed: int
    """Episode i is reset with seed + i."""
    observation_space: Space | None = None
    """What the behaviour sees, where that may be several frames of the environment's."""
    timeout_seconds: float = math.inf
    """After which episodes that have not ended are given up; looked at between two steps."""


def split_episodes(
    config: EnvironmentConfig,
    num_episodes: int,
    per_task: int,
    seed: int,
    observation_space: Space | None = None,
    timeout_seconds: float = math.inf,
) -> Iterator[RolloutTask]:
    """Cut a rollout into tasks of `per_task` episodes; the last may be smaller."""
    for start in range(0, num_episodes, per_task):
        stop = min(start + per_task, num_episodes)
        yield RolloutTask(config, start, stop, seed, observation_space, timeout_seconds)


@dataclass
class _Actor:
    """One episode under way."""

    environment: Environment
    keeps_all: bool
    """Or only what is needed to go on: frames of many episodes would fill the memory."""
    observation: Parts = field(default_factory=dict)
    """The last one, as the behaviour sees it."""
    observations: list[Parts] = field(default_factory=list)
    """All, as the environment gave them: frames that are stacked are kept once."""
    actions: list[Parts] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    def begin(self, seed: int) -> None:
        self._see(self.environment.reset(seed=seed)[0])

    def step(self, action: Any) -> None:
        observation, reward, self.terminated, self.truncated, _ = self.environment.step(action)
        self._see(observation)
        if self.keeps_all:
            self.actions.append(parts_of(ACTIONS, self.environment.action_space, action))
        self.rewards.append(float(reward))

    def _see(self, observation: Any) -> None:
        parts = parts_of(OBSERVATIONS, self.environment.observation_space, observation)
        self.observation = {path: np.array(part) for path, part in parts.items()}  # the environment may change its own
        if self.keeps_all:
            self.observations.append(newest_frames(self.environment, self.observation))

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def episode(self, number: int, seed: int) -> Episode:
        ends = np.zeros((2, len(self.rewards)), np.bool_)
        ends[:, -1] = self.terminated, self.truncated
        return Episode(
            observations=unflatten(OBSERVATIONS, _stacked(self.observations)),
            actions=unflatten(ACTIONS, _stacked(self.actions)),
            rewards=np.array(self.rewards, np.float32),
            terminations=ends[0],
            truncations=ends[1],
            id=number,
            seed=seed,
        )

    def score(self) -> tuple[float, int]:
        return float(np.sum(np.array(self.rewards, np.float32), dtype=np.float64)), len(self.rewards)


def roll_out(behaviour: Behaviour, task: RolloutTask) -> list[Episode]:
    """Play the task's episodes to their ends.

    Episode i depends on its number and the seed, and on the others of its task only as far as a batched call
    rounds otherwise than a single one.
    """
    actors = _play(behaviour, task, keeps_all=True)
    return [actor.episode(number, task.seed + number) for number, actor in enumerate(actors, task.start)]


def score(behaviour: Behaviour, task: RolloutTask) -> list[tuple[float, int]]:
    """Play the task's episodes to their ends; return the return and the length of each."""
    return [actor.score() for actor in _play(behaviour, task, keeps_all=False)]


def _play(behaviour: Behaviour, task: RolloutTask, *, keeps_all: bool) -> list[_Actor]:
    numbers, deadline = range(task.start, task.stop), time.monotonic() + task.timeout_seconds
    generators = [np.random.default_rng([task.seed, number]) for number in numbers]
    environments = [make_environment(task.config, task.observation_space) for _ in numbers]
    try:
        actors = [_Actor(environment, keeps_all) for environment in environments]
        for number, actor in zip(numbers, actors, strict=True):
            actor.begin(task.seed + number)
        active = list(range(len(actors)))
        while active:
            if time.monotonic() > deadline:
                raise _too_long(task, len(active))
            observations = unflatten(OBSERVATIONS, _stacked([actors[i].observation for i in active]))
            actions = behaviour.act(observations, [generators[i] for i in active])
            _check_rows(actions, len(active))
            for row, i in enumerate(active):
                actors[i].step(take_element(environments[i].action_space, actions, row))
            active = [i for i in active if not actors[i].done]
    finally:
        for environment in environments:
            environment.close()
    return actors


def _too_long(task: RolloutTask, num_active: int) -> WaitTimeoutError:
    got = f"{num_active} that have not ended after {task.timeout_seconds:g} s"
    subject = f"episodes {task.start} to {task.stop - 1} of {task.config.environment}"
    return WaitTimeoutError(explain(subject, got=got, fix="raise timeout_seconds, or set max_episode_steps"))


def _stacked(elements: list[Parts]) -> Parts:
    return {path: np.stack([element[path] for element in elements]) for path in elements[0]}


def _check_rows(actions: Columns, wanted: int) -> None:
    rows = {path: len(column) for path, column in flatten(ACTIONS, actions).items()}
    if set(rows.values()) != {wanted}:
        got, allowed = f"rows {rows} for {wanted} observations", "an action for each observation"
        raise ConfigError(
            explain("policy", got=got, allowed=allowed, fix="map observations (B, *obs) to actions (B, *act)")
        )
