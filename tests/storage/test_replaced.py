"""A dataset that is replaced, or changed in place, while it is read: never half of each."""

import os
import pickle
import shutil

import gymnasium
import numpy as np
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.episode import Episode
from dask_rl.storage.errors import DatasetError
from dask_rl.storage.reading.reader import ZarrReader
from dask_rl.storage.writer import DatasetWriter

SHARD_ROWS = 32


def write(path, value):
    """100 rows of one value: files of other datasets are of the same sizes."""
    spaces = {
        "observation_space": gymnasium.spaces.Box(-1e4, 1e4, (2,), np.float32),
        "action_space": gymnasium.spaces.Discrete(2),
    }
    with DatasetWriter(path, **spaces, shard_rows=SHARD_ROWS) as writer:
        writer.add_episode(
            Episode(
                observations=np.full((100, 2), value, np.float32),
                actions=np.zeros(99, np.int64),
                rewards=np.ones(99, np.float32),
                terminations=np.arange(99) == 98,
                truncations=np.zeros(99, bool),
            )
        )
    return path


@pytest.fixture
def pair(tmp_path):
    return write(tmp_path / "data.zarr", 1), write(tmp_path / "new.zarr", 2)


def by_rename(old, new):
    old.rename(old.with_name("before.zarr"))
    new.rename(old)


def by_removal(old, new):
    shutil.rmtree(old)
    shutil.copytree(new, old)


def in_place(old, new):
    """As `cp -r new/. old` does: every file keeps its number."""
    for file in new.rglob("*"):
        if file.is_file():
            (old / file.relative_to(new)).write_bytes(file.read_bytes())


def in_place_with_old_times(old, new):
    """As `rsync -a` does: each file is another one, with the times of the new dataset."""
    for file in new.rglob("*"):
        target = old / file.relative_to(new)
        if file.is_file():
            shutil.copy2(file, target.with_name(target.name + "~"))
            os.replace(target.with_name(target.name + "~"), target)


@pytest.mark.parametrize("replace", [by_rename, by_removal, in_place, in_place_with_old_times])
def test_rows_of_another_dataset_are_refused(pair, replace):
    old, new = pair
    with OfflineDataset.open(old) as dataset:
        first = dataset.read("observations", 0, SHARD_ROWS)
        assert (first == 1).all()
        replace(old, new)
        with pytest.raises(DatasetError, match=r"data/observations/c/1/0 in dataset .*got another file than when it"):
            dataset.read("observations", SHARD_ROWS, 100)
    with OfflineDataset.open(old) as dataset:
        assert (dataset.read("observations", 0, 100) == 2).all()


def test_what_is_open_goes_on(pair):
    old, new = pair
    with OfflineDataset.open(old) as dataset:
        before = dataset.read("observations", 0, 100)
        by_rename(old, new)
        assert (dataset.read("observations", 0, 100) == before).all()


def test_an_untouched_dataset_is_read_although_its_directory_was_renamed_and_back(pair):
    old, _ = pair
    with OfflineDataset.open(old) as dataset:
        old.rename(old.with_name("away"))
        old.with_name("away").rename(old)
        assert (dataset.read("observations", 0, 100) == 1).all()


def test_a_reader_through_zarr_python_refuses_them_too(pair):
    old, new = pair
    with OfflineDataset.open(old) as dataset:
        reader = ZarrReader(dataset.location, "data/observations")
        assert (reader.read(0, 10) == 1).all()
        by_rename(old, new)
        with pytest.raises(DatasetError, match=r"data/observations/\S+ in dataset .*got another file"):
            reader.read(SHARD_ROWS, 100)


def test_a_dataset_that_travelled_is_read(pair):
    """Elsewhere files may have other numbers; what it is there is not known."""
    old, _ = pair
    with OfflineDataset.open(old) as dataset:
        travelled = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    shutil.copytree(old, old.with_name("copy"))
    shutil.rmtree(old)
    old.with_name("copy").rename(old)
    with travelled:
        assert (travelled.read("observations", 0, 100) == 1).all()


def test_a_dataset_that_is_replaced_while_it_is_opened_is_refused(pair, monkeypatch):
    old, new = pair
    sizes = type(OfflineDataset.open(old).location).sizes

    def slow(self, wanted=()):
        by_rename(old, new)
        return sizes(self)

    monkeypatch.setattr(type(OfflineDataset.open(old).location), "sizes", slow)
    with pytest.raises(DatasetError, match="another manifest than a moment ago"):
        OfflineDataset.open(old)
