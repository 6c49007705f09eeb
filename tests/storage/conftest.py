"""Episodes and datasets for the tests of storage."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from faulty_stores import Faults, FaultyFileSystem
from gymnasium import spaces
from random_episodes import generate

from dask_rl.storage import DatasetWriter, Episode, OfflineDataset
from dask_rl.storage.remote.requests import RequestPolicy


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


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system behind `faulty://`, empty again afterwards."""
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """What goes wrong on `faulty://`; requests are tried again without much delay."""
    faults = Faults()
    monkeypatch.setattr(FaultyFileSystem, "faults", faults)
    monkeypatch.setattr(
        "dask_rl.storage.remote.directory.RequestPolicy", lambda: RequestPolicy(first_delay_seconds=0.001)
    )
    return faults
