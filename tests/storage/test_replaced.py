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
from dask_rl.storage.location import LocalDirectory
from dask_rl.storage.writer import DatasetWriter

SHARD_ROWS = 32


def write(path, value, num_steps=99):
    """Rows of one value: files of other datasets are of the same sizes."""
    spaces = {
        "observation_space": gymnasium.spaces.Box(-1e4, 1e4, (2,), np.float32),
        "action_space": gymnasium.spaces.Discrete(2),
    }
    with DatasetWriter(path, **spaces, shard_rows=SHARD_ROWS) as writer:
        writer.add_episode(
            Episode(
                observations=np.full((num_steps + 1, 2), value, np.float32),
                actions=np.zeros(num_steps, np.int64),
                rewards=np.ones(num_steps, np.float32),
                terminations=np.arange(num_steps) == num_steps - 1,
                truncations=np.zeros(num_steps, bool),
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


@pytest.mark.parametrize("replace", [by_rename, by_removal])
def test_a_dataset_that_travelled_refuses_rows_of_another_one(pair, replace):
    old, new = pair
    with OfflineDataset.open(old) as dataset:
        travelled = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    with travelled:
        assert (travelled.read("observations", 0, SHARD_ROWS) == 1).all()
        replace(old, new)
        for opened in (travelled, pickle.loads(pickle.dumps(dataset))):  # noqa: S301
            with pytest.raises(DatasetError, match=r"dataset .*got another one than when it was opened"):
                opened.read("observations", SHARD_ROWS, 100)


def test_a_dataset_that_travelled_is_read_after_an_appending(pair):
    old, new = pair
    with OfflineDataset.open(old) as dataset:
        travelled = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    with DatasetWriter(old, append=True) as writer, OfflineDataset.open(new) as other:
        writer.add_episode(other.episode(0))
    with travelled:
        assert (travelled.read("observations", 0, 100) == 1).all()


@pytest.mark.parametrize("replace", [by_rename, by_removal])
@pytest.mark.parametrize("moment", ["sizes", "zarr.json", "meta/episode_ends/c/0"])
def test_a_dataset_that_is_replaced_while_it_is_opened_is_opened_anew(tmp_path, monkeypatch, moment, replace):
    old, new = write(tmp_path / "data.zarr", 1), write(tmp_path / "new.zarr", 2, num_steps=79)
    whole = {name: getattr(LocalDirectory, name) for name in ("sizes", "read")}
    left = [new]

    def at(now):
        if left and now == moment:
            replace(old, left.pop())

    def sizes(self, wanted=()):
        at("sizes")
        return whole["sizes"](self, wanted)

    def read(self, key):
        at(key)
        return whole["read"](self, key)

    monkeypatch.setattr(LocalDirectory, "sizes", sizes)
    monkeypatch.setattr(LocalDirectory, "read", read)
    with OfflineDataset.open(old) as dataset:
        assert not left
        assert dataset.num_rows == 80
        assert (dataset.read("observations", 0, 80) == 2).all()


def test_a_dataset_that_is_replaced_again_and_again_is_refused(pair, monkeypatch):
    old, new = pair
    spare = old.with_name("spare")

    def slow(self, wanted=()):
        old.rename(spare)
        new.rename(old)
        spare.rename(new)
        return sizes(self)

    sizes = LocalDirectory.sizes
    monkeypatch.setattr(LocalDirectory, "sizes", slow)
    with pytest.raises(DatasetError, match="got another one at each of 8 looks"):
        OfflineDataset.open(old)


def test_a_shard_that_the_new_dataset_lacks_is_no_damage(pair):
    old, new = pair
    with OfflineDataset.open(old) as dataset:
        shutil.rmtree(new / "data/observations/c/1")
        by_rename(old, new)
        with pytest.raises(DatasetError, match="got another one than when it was opened"):
            dataset.read("observations", SHARD_ROWS, 100)


@pytest.mark.parametrize("deep", [False, True])
def test_what_took_its_place_is_not_verified(pair, deep):
    old, new = pair
    with OfflineDataset.open(old) as dataset:
        by_rename(old, new)
        with pytest.raises(DatasetError, match=r"got content hash .*which was asked for"):
            dataset.verify(deep=deep)


def test_between_the_two_renames_of_an_overwriting_opening_waits(pair, monkeypatch):
    old, new = pair
    place = old.with_name(f".{old.name}.partial")
    place.mkdir()
    old.rename(place / "old")
    monkeypatch.setattr("dask_rl.storage.reading.contents.time.sleep", lambda _: new.rename(old))
    with OfflineDataset.open(old) as dataset:
        assert (dataset.read("observations", 0, 100) == 2).all()
