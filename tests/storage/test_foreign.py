"""What lies at a path is no dataset, or one whose manifest is not to be trusted."""

import json
import os
from pathlib import Path

import pytest
import zarr

from dask_rl.storage import CorruptDataError, DatasetError, DatasetNotFoundError, OfflineDataset


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_missing_commit(dataset):
    Path(dataset.path, "commit.json").unlink()
    with pytest.raises(CorruptDataError, match=r"commit.json .*got no such file; allowed: a dataset that was written"):
        OfflineDataset.open(dataset.path)


def test_garbled_commit(dataset):
    Path(dataset.path, "commit.json").write_text("{")
    with pytest.raises(CorruptDataError, match=r"commit\.json"):
        OfflineDataset.open(dataset.path)
    Path(dataset.path, "commit.json").write_text('{"schema": 1, "num_rows": "many"}')
    with pytest.raises(CorruptDataError, match=r"commit\.json"):
        OfflineDataset.open(dataset.path)


def test_a_manifest_that_is_no_plain_file(dataset):
    path = Path(dataset.path, "commit.json")
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(CorruptDataError, match=r"commit\.json .*got a symbolic link"):
        OfflineDataset.open(dataset.path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptDataError, match=r"commit\.json .*got no plain file"):
        OfflineDataset.open(dataset.path)


def test_a_pipe_among_the_files(dataset):
    os.mkfifo(Path(dataset.path, "data/pipe"))
    with pytest.raises(CorruptDataError, match=r"data/pipe .*got a device or pipe"):
        OfflineDataset.open(dataset.path)


def test_commit_that_leads_outside(dataset):
    path = Path(dataset.path, "commit.json")
    objects = json.loads(path.read_text())["objects"]
    edit_json(path, objects={**objects, "../../etc/passwd": {"size": 1, "sha256": "0" * 64}})
    with pytest.raises(CorruptDataError, match="lies outside the dataset"):
        OfflineDataset.open(dataset.path)


def test_another_schema_version(dataset):
    edit_json(Path(dataset.path, "commit.json"), schema=2)
    with pytest.raises(DatasetError, match="got schema version 2; allowed: 1; use the release of dask-rl that wrote"):
        OfflineDataset.open(dataset.path)


def test_paths_that_are_no_dataset(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="got no such path; allowed: a dask-rl dataset; check the path"):
        OfflineDataset.open(tmp_path / "nothing.zarr")
    zarr.create_group(tmp_path / "foreign.zarr").create_array("x", shape=(3,), dtype="i4")
    with pytest.raises(DatasetError, match=r"got a Zarr store of another kind; .*dask-rl data import"):
        OfflineDataset.open(tmp_path / "foreign.zarr")
    with pytest.raises(DatasetError, match="got something that is no Zarr store"):
        OfflineDataset.open(tmp_path)
    (tmp_path / "file.h5").write_text("x")
    with pytest.raises(DatasetError, match="got something that is no Zarr store"):
        OfflineDataset.open(tmp_path / "file.h5")


def test_a_zarr_v2_store_is_foreign(sample_data):
    with pytest.raises(DatasetError, match="got a Zarr store of another kind"):
        OfflineDataset.open(sample_data / "zarr_v2/pusht_cchi_v7_replay.zarr")
