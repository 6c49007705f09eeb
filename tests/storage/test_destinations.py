"""Where imports and transforms write: refused before hours of work, wherever it is, and nowhere else than asked."""

from pathlib import Path

import numpy as np
import pytest

from dask_rl.storage import ConfigError, DatasetError, OfflineDataset
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.transforming import TransformConfig, transform_datasets

pytestmark = pytest.mark.data


@pytest.fixture
def source(tmp_path):
    ends = np.arange(1, 41) % 10 == 0
    columns = {"observations": np.random.default_rng(0).normal(5, 2, (40, 2)).astype(np.float32)}
    columns |= {"actions": np.zeros((40, 1), np.float32), "rewards": np.ones(40, np.float32)}
    np.savez(tmp_path / "a.npz", **columns, terminals=ends)
    return tmp_path / "a.npz"


def fail(*_: object) -> None:
    raise AssertionError("the source was read")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_url_is_the_path_that_it_names(source, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    import_dataset(source, kind(f"file://{tmp_path}/deep/a.zarr"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "deep"]
    assert OfflineDataset.open(tmp_path / "deep/a.zarr").num_episodes == 4
    with pytest.raises(DatasetError, match="a path that exists already"):
        import_dataset(source, kind(f"file://{tmp_path}/deep/a.zarr"), progress=fail)


def test_a_taken_url_is_refused_before_the_source_is_read(source, memory, faults):
    for dest in (source.parent / "a.zarr", "faulty://bucket/a.zarr"):
        import_dataset(source, dest)
    with pytest.raises(DatasetError, match="a URL that exists already; allowed: a new URL"):
        import_dataset(source, "faulty://bucket/a.zarr", progress=fail)
    with pytest.raises(DatasetError, match="a URL that exists already"):
        transform_datasets(source.parent / "a.zarr", "faulty://bucket/a.zarr", progress=fail)


def test_nothing_raw_is_appended_to_standardised_observations(source, tmp_path):
    import_dataset(source, tmp_path / "a.zarr")
    transform_datasets(tmp_path / "a.zarr", tmp_path / "n.zarr", config=TransformConfig(normalize=True))
    with pytest.raises(ConfigError, match=r"n\.zarr to append to: got standardised observations; .*--denormalize"):
        import_dataset(source, tmp_path / "n.zarr", append=True)
    assert OfflineDataset.open(tmp_path / "n.zarr").num_episodes == 4
