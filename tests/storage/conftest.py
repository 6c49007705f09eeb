"""Episodes and datasets for the tests of storage."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from random_episodes import generate

from dask_rl.storage import DatasetWriter, Episode, OfflineDataset


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
