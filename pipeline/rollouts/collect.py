"""Rolls a policy in an environment into a dataset."""

import functools
import os
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from distributed import Client
from pydantic import Field

from dask_rl.learners.config import Seconds, Seed
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter

from .controllers import Behaviour, NoisyPolicy, make_behaviour
from .environments import EnvironmentConfig, Policy, Space, check_spaces, make_environment
from .rollout import roll_out, split_episodes
from .stacked_frames import stack_frames
from .tasks import map_in_order


class CollectConfig(EnvironmentConfig):
    """What to collect, and how."""

    policy: str = "random"
    """Built-in behaviour: random, or pendulum-swing-up. Ignored where a policy is passed to `collect`."""
    action_noise: float = Field(0.0, ge=0)
    """Box: standard deviation of Gaussian noise, in half ranges; else: share of random actions."""
    num_episodes: int = Field(100, ge=1)
    """Episodes to collect."""
    seed: Seed = 0
    """Episode i is reset with seed + i; its noise follows from (seed, i)."""
    episodes_per_task: int = Field(10, ge=1)
    """Episodes of one task, played in lock-step. Results do not depend on the number of workers."""
    timeout_seconds: Seconds = 600
    """Bound on the time of one task, and on the wait for it."""
    shard_rows: int | None = Field(None, ge=1)
    """Rows of a shard on disk; default: chosen by size."""


def collect(
    config: CollectConfig,
    path: str | os.PathLike[str],
    *,
    policy: Policy | None = None,
    client: Client | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int | None], None] | None = None,
) -> OfflineDataset:
    """Collect `config.num_episodes` episodes into a new dataset at `path`.

    The data is a function of the config and the policy, not of the workers.

    Args:
        config: environment, behaviour, episodes.
        path: the dataset; nothing is left there where this fails.
        policy: acts instead of `config.policy`.
        client: where to play; None: here.
        overwrite: replace a dataset that is there.
        progress: called with (episodes done, all).

    Raises:
        ConfigError: an unknown environment or behaviour, or a policy that does not fit it.
        DatasetError: something is at `path` already, or it cannot be written.
        WaitTimeoutError: a task took longer than `config.timeout_seconds`.
    """
    environment = make_environment(config)
    try:
        behaviour: Behaviour
        if policy is None:
            behaviour = make_behaviour(config.policy, environment, config.action_noise)
        else:
            check_spaces(policy, stack_frames(environment, policy.observation_space), config.environment)
            behaviour = NoisyPolicy(policy, config.action_noise)
        writer = DatasetWriter(
            os.fspath(path),
            observation_space=environment.observation_space,
            action_space=environment.action_space,
            environment=config.environment,
            provenance=_provenance(config, policy),
            shard_rows=config.shard_rows,
            overwrite=overwrite,
        )
    finally:
        environment.close()
    with writer:
        seen = None if policy is None else policy.observation_space
        for number, episode in enumerate(_episodes(config, behaviour, seen, client), 1):
            writer.add_episode(episode)
            if progress is not None:
                progress(number, config.num_episodes)
        return writer.finish()


def _episodes(
    config: CollectConfig, behaviour: Behaviour, seen: Space | None, client: Client | None
) -> Iterator[Episode]:
    sizes = config.num_episodes, config.episodes_per_task, config.seed
    tasks = split_episodes(config, *sizes, seen, config.timeout_seconds)
    play = functools.partial(roll_out, behaviour)
    return chain.from_iterable(
        map_in_order(play, tasks, client=client, name="collect", timeout_seconds=config.timeout_seconds)
    )


def _provenance(config: CollectConfig, policy: Policy | None) -> dict[str, Any]:
    behaviour = config.policy if policy is None else type(policy).__qualname__
    return {"collected_by": "dask-rl data collect"} | config.model_dump(mode="json") | {"policy": behaviour}
