"""Episodes of a behaviour in an environment: several at once, in lock-step, for one batched call a step."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.episode import Episode

from .controllers import Behaviour
from .environments import Environment, EnvironmentConfig, make_environment

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RolloutTask:
    """Episodes `start` … `stop`−1 of a rollout; the unit of work, the same whatever the number of workers."""

    config: EnvironmentConfig
    start: int
    stop: int
    seed: int
    """Episode i is reset with seed + i."""


def split_episodes(config: EnvironmentConfig, num_episodes: int, per_task: int, seed: int) -> Iterator[RolloutTask]:
    """Cut a rollout into tasks of `per_task` episodes; the last may be smaller."""
    for start in range(0, num_episodes, per_task):
        yield RolloutTask(config, start, min(start + per_task, num_episodes), seed)


@dataclass
class _Actor:
    """One episode under way."""

    environment: Environment
    observations: list[Array]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    def step(self, action: Any) -> None:
        space = self.environment.action_space
        action = np.asarray(action, space.dtype).reshape(space.shape or ())
        observation, reward, self.terminated, self.truncated, _ = self.environment.step(
            action if space.shape else action[()]
        )
        self.observations.append(np.array(observation))
        self.actions.append(action)
        self.rewards.append(float(reward))

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def episode(self, number: int, seed: int) -> Episode:
        ends = np.zeros((2, len(self.rewards)), np.bool_)
        ends[:, -1] = self.terminated, self.truncated
        return Episode(
            observations=np.stack(self.observations),
            actions=np.stack(self.actions),
            rewards=np.array(self.rewards, np.float32),
            terminations=ends[0],
            truncations=ends[1],
            id=number,
            seed=seed,
        )


def roll_out(behaviour: Behaviour, task: RolloutTask) -> list[Episode]:
    """Play the task's episodes to their ends.

    Episode i depends on its number and the seed, and on the others of its task only as far as a batched call
    rounds otherwise than a single one.
    """
    numbers = range(task.start, task.stop)
    generators = [np.random.default_rng([task.seed, number]) for number in numbers]
    environments = [make_environment(task.config) for _ in numbers]
    try:
        actors = [
            _Actor(environment, [np.array(environment.reset(seed=task.seed + number)[0])])
            for number, environment in zip(numbers, environments, strict=True)
        ]
        active = list(range(len(actors)))
        while active:
            observations = np.stack([actors[i].observations[-1] for i in active])
            actions = behaviour.act(observations, [generators[i] for i in active])
            for i, action in zip(active, actions, strict=True):
                actors[i].step(action)
            active = [i for i in active if not actors[i].done]
    finally:
        for environment in environments:
            environment.close()
    return [actor.episode(number, task.seed + number) for number, actor in zip(numbers, actors, strict=True)]
