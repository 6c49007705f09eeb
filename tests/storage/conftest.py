"""Episodes and datasets for the tests of storage."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from dask_rl.storage import DatasetWriter, Episode, OfflineDataset


def generate(num_episodes: int = 12, seed: int = 0, max_length: int = 40, shape: tuple[int, ...] = (3,)):
    rng = np.random.default_rng(seed)
    for number in range(num_episodes):
        length = int(rng.integers(1, max_length + 1))
        ended = number % 2 == 0
        yield Episode(
            observations=rng.standard_normal((length + 1, *shape), dtype=np.float32),
            actions=rng.uniform(-2, 2, (length, 1)).astype(np.float32),
            rewards=rng.standard_normal(length, dtype=np.float32),
            terminations=np.arange(length) == (length - 1 if ended else -1),
            truncations=np.arange(length) == (-1 if ended else length - 1),
            infos={"behavior_logp": rng.standard_normal(length)},
            id=100 + number,
            seed=number if number % 3 else None,
        )


@pytest.fixture
def make_episodes() -> Callable[..., Iterator[Episode]]:
    """Random episodes, the same for the same arguments; even ones terminate, odd ones are truncated."""
    return generate


@pytest.fixture
def settings_of_pendulum() -> dict[str, Any]:
    """Spaces that fit `make_episodes`."""
    return {
        "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "action_space": spaces.Box(-2, 2, (1,), np.float32),
    }


@pytest.fixture
def dataset(tmp_path: Path, settings_of_pendulum: dict[str, Any]) -> OfflineDataset:
    """Twelve episodes in shards of 64 rows."""
    with DatasetWriter(tmp_path / "data.zarr", **settings_of_pendulum, shard_rows=64) as writer:
        writer.add_episodes(generate())
    return OfflineDataset.open(tmp_path / "data.zarr")
