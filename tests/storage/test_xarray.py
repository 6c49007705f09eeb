"""Other programs that read Zarr: xarray names the arrays, their axes and what was appended."""

import dask
import numpy as np
import pytest
from random_episodes import generate

from dask_rl.storage import DatasetWriter, OfflineDataset
from dask_rl.storage.formats import import_dataset

xarray = pytest.importorskip("xarray")
pytestmark = pytest.mark.data


def test_it_opens_a_dataset_by_names(dataset):
    steps, episodes = (xarray.open_zarr(dataset.path, group=group) for group in ("data", "meta"))
    assert dict(steps.sizes) == {"row": dataset.num_rows, "observations_0": 3, "actions_0": 1}
    assert dict(episodes.sizes) == {"episode": dataset.num_episodes}
    for field in dataset.arrays:
        *nested, name = field.split("/")
        group = xarray.open_zarr(dataset.path, group="/".join(["data", *nested]))
        np.testing.assert_array_equal(group[name], dataset.read(field, 0, dataset.num_rows))
    np.testing.assert_array_equal(episodes["episode_ends"], dataset.episode_ends)


def test_segments_are_groups_of_their_own(dataset):
    with DatasetWriter(dataset.path, append=True) as writer:
        writer.add_episodes(generate(5, seed=1))
    grown = OfflineDataset.open(dataset.path)
    groups = [xarray.open_zarr(path, group="data") for path in (dataset.path, f"{dataset.path}/segments/0001")]
    joined = xarray.concat(groups, "row")
    assert joined.sizes["row"] == grown.num_rows
    np.testing.assert_array_equal(joined["observations"], grown.read("observations", 0, grown.num_rows))


def test_means_of_dask_arrays_are_those_of_numpy(sample_data, tmp_path):
    import_dataset(sample_data / "d3rlpy/pendulum_v1.1.0.h5", tmp_path / "data.zarr")
    dataset = OfflineDataset.open(tmp_path / "data.zarr")
    steps = xarray.open_zarr(dataset.path, group="data")
    for field in ("observations", "actions", "rewards"):
        rows = dataset.read(field, 0, dataset.num_rows)
        with dask.config.set(scheduler="threads"):
            mean = dataset.to_dask(field).mean(axis=0, dtype=np.float64).compute()
            of_xarray = steps[field].mean("row", dtype=np.float64)
        np.testing.assert_allclose(mean, rows.mean(axis=0, dtype=np.float64), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(of_xarray, mean, rtol=1e-12, atol=1e-12)
