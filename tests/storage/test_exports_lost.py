"""What an export loses is named, and what can be kept comes back."""

from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.exports import export_dataset
from dask_rl.storage.formats import import_arrays, import_dataset
from dask_rl.storage.transforming import TransformConfig, transform_datasets
from dask_rl.storage.writer import DatasetWriter

pytestmark = pytest.mark.data

MINARI = ("minari", "minari-arrow", "minari-parquet")


def copy_with(dataset: OfflineDataset, path: Path, **settings: Any) -> OfflineDataset:
    given = {"observation_space": dataset.observation_space, "action_space": dataset.action_space, **settings}
    with DatasetWriter(path, **given) as writer:
        writer.add_episodes(dataset.episodes())
    return OfflineDataset.open(path)


@pytest.mark.parametrize("name", MINARI)
def test_the_id_of_an_environment_that_is_not_installed_stays(
    name: str, dataset: OfflineDataset, tmp_path: Path
) -> None:
    foreign = copy_with(dataset, tmp_path / "foreign.zarr", environment="NotHere-v3")
    lost = export_dataset(foreign, tmp_path / "x-v0", format=name).lost
    assert lost == ("how to make NotHere-v3: it is not installed here, its id alone is kept",)
    assert minari.MinariDataset(tmp_path / "x-v0/data").env_spec.id == "NotHere-v3"
    import_dataset(tmp_path / "x-v0", tmp_path / "again.zarr")
    with OfflineDataset.open(tmp_path / "again.zarr") as again:
        assert again.environment == "NotHere-v3"


def test_an_id_that_gymnasium_does_not_read_is_named(dataset: OfflineDataset, tmp_path: Path) -> None:
    odd = copy_with(dataset, tmp_path / "odd.zarr", environment="no id!")
    assert export_dataset(odd, tmp_path / "x-v0", format="minari").lost == ("the environment no id!",)
    assert minari.MinariDataset(tmp_path / "x-v0/data").env_spec is None
    installed = copy_with(dataset, tmp_path / "installed.zarr", environment="Pendulum-v1")
    assert export_dataset(installed, tmp_path / "y-v0", format="minari").lost == ()


@pytest.mark.parametrize("name", ["minari", "zarr-v2"])
def test_standardised_observations_are_named(name: str, dataset: OfflineDataset, tmp_path: Path) -> None:
    transform_datasets(dataset.path, tmp_path / "n.zarr", config=TransformConfig(normalize=True))
    lost = export_dataset(tmp_path / "n.zarr", tmp_path / "x-v0", format=name).lost
    assert any(line.startswith("that observations are standardised, and by which statistics") for line in lost)


def test_what_a_replay_buffer_has_no_place_for(dataset: OfflineDataset, tmp_path: Path) -> None:
    named = copy_with(dataset, tmp_path / "named.zarr", environment="Pendulum-v1", ref_scores=(-3.0, 40.5))
    lost = export_dataset(named, tmp_path / "x.zarr", format="zarr-v2").lost
    assert lost[4:] == (
        "the space of observations Box(-inf, inf, (3,), float32)",
        "the space of actions Box(-2.0, 2.0, (1,), float32)",
        "the environment Pendulum-v1",
        "the reference scores -3 and 40.5",
        "12 numbers of episodes",
    )


def test_nothing_is_named_that_is_kept(tmp_path: Path) -> None:
    import_arrays(
        tmp_path / "plain.zarr",
        observations=np.ones((5, 2), np.float32),
        actions=np.zeros((4, 1), np.float32),
        truncations=np.arange(4) == 3,
        action_space=spaces.Box(-1, 1, (1,), np.float32),
    )
    assert export_dataset(tmp_path / "plain.zarr", tmp_path / "x-v0", format="minari").lost == ()
