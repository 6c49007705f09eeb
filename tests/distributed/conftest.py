"""A dataset to train on."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from dask_rl.pipeline.runs.collect import CollectConfig, collect
from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter


@pytest.fixture(scope="session")
def continuous_dataset(tmp_path_factory) -> Path:
    """40 episodes of 20 to 60 steps, observation 5, action 2, a third of which end in a termination."""
    path = tmp_path_factory.mktemp("data") / "continuous.zarr"
    rng = np.random.default_rng(7)
    writer = DatasetWriter(
        path,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32),
        action_space=gymnasium.spaces.Box(-2, 2, (2,), np.float32),
        shard_rows=512,
    )
    with writer:
        for number in range(40):
            length = int(rng.integers(20, 60))
            last = np.arange(length) == length - 1
            never = np.zeros(length, np.bool_)
            terminated = number % 3 == 0
            writer.add_episode(
                Episode(
                    observations=rng.normal(size=(length + 1, 5)).astype(np.float32),
                    actions=rng.uniform(-2, 2, (length, 2)).astype(np.float32),
                    rewards=rng.normal(size=length).astype(np.float32),
                    terminations=last if terminated else never,
                    truncations=never if terminated else last,
                    id=number,
                )
            )
        writer.finish()
    return path


@pytest.fixture(scope="session")
def cartpole_dataset(tmp_path_factory) -> Path:
    """30 episodes of CartPole-v1 by chance."""
    path = tmp_path_factory.mktemp("data") / "cartpole.zarr"
    collect(CollectConfig(environment="CartPole-v1", num_episodes=30), path).close()
    return path
