from pathlib import Path

import gymnasium
import numpy as np
import pytest

from dask_rl.storage.episode import Episode
from dask_rl.storage.writer import DatasetWriter


def write_dataset(path: Path, num_episodes: int = 40, seed: int = 0) -> Path:
    """Write episodes whose observations name their episode and step; every third has no final observation."""
    rng = np.random.default_rng(seed)
    writer = DatasetWriter(
        path,
        observation_space=gymnasium.spaces.Box(-1e4, 1e4, (3,), np.float32),
        action_space=gymnasium.spaces.Discrete(5),
        shard_rows=128,
    )
    with writer:
        for number in range(num_episodes):
            length = int(rng.integers(1, 30))
            observations = np.empty((length + 1, 3), np.float32)
            observations[:, 0], observations[:, 1] = number, np.arange(length + 1)
            observations[:, 2] = length
            has_final = number % 3 != 0
            if not has_final:
                observations[-1] = observations[-2]
            ended = np.arange(length) == length - 1
            terminated = number % 2 == 0
            writer.add_episode(
                Episode(
                    observations=observations,
                    actions=rng.integers(0, 5, length),
                    rewards=rng.normal(size=length).astype(np.float32),
                    terminations=ended & terminated,
                    truncations=ended & (not terminated),
                    has_final_observation=has_final,
                    id=number,
                )
            )
    return path


@pytest.fixture(scope="session")
def feed_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("feed") / "data.zarr")


@pytest.fixture(scope="session")
def other_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another length and other spaces than those of `feed_dataset`: observation 2, a Box action."""
    path = tmp_path_factory.mktemp("other") / "other.zarr"
    rng = np.random.default_rng(3)
    writer = DatasetWriter(
        path,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        action_space=gymnasium.spaces.Box(-1, 1, (1,), np.float32),
        shard_rows=128,
    )
    with writer:
        for length in rng.integers(5, 40, 25).tolist():
            last = np.arange(length) == length - 1
            writer.add_episode(
                Episode(
                    observations=rng.normal(size=(length + 1, 2)).astype(np.float32),
                    actions=rng.uniform(-1, 1, (length, 1)).astype(np.float32),
                    rewards=rng.normal(size=length).astype(np.float32),
                    terminations=last,
                    truncations=np.zeros(length, np.bool_),
                )
            )
    return path
