"""Appending when something goes wrong: nothing is lost, doubled, or held for ever."""

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest
from gymnasium import spaces
from random_episodes import generate

from dask_rl.storage import ConfigError, DatasetError, DatasetWriter, InvalidDataError, OfflineDataset

pytestmark = pytest.mark.data


class Crash(BaseException):
    pass


def append(path, seed=1, num_episodes=3):
    with DatasetWriter(path, append=True, shard_rows=16) as writer:
        writer.add_episodes(generate(num_episodes, seed=seed))
        return writer.finish()


@pytest.fixture
def link(dataset, tmp_path):
    os.symlink(dataset.path, tmp_path / "current.zarr")
    return tmp_path / "current.zarr"


def test_a_link_to_a_dataset_has_no_lock_of_its_own(dataset, link):
    with DatasetWriter(dataset.path, append=True) as writer:
        writer.add_episodes(generate(3, seed=1))
        with pytest.raises(DatasetError, match="another process that writes it now"):
            DatasetWriter(link, append=True)
    assert append(link, seed=2).num_episodes == 18
    assert link.is_symlink()
    assert OfflineDataset.open(dataset.path).num_episodes == 18


def test_a_segment_that_a_manifest_names_is_never_removed(dataset):
    """Somebody who gets round the lock, as another host may, comes first: the later one is told."""
    writer = DatasetWriter(dataset.path, append=True)
    writer.add_episodes(generate(3, seed=1))
    place = Path(dataset.path)
    other = shutil.copytree(place, place.with_name("other.zarr"))
    append(other, seed=2)

    def come_first(path):
        path.mkdir(exist_ok=True)
        shutil.copytree(other, place, dirs_exist_ok=True)

    with (
        mock.patch("dask_rl.storage.building.append.make_directory", come_first),
        pytest.raises(DatasetError, match="another manifest than when the appending began"),
    ):
        writer.finish()
    found = OfflineDataset.open(dataset.path)
    found.verify(deep=True)
    assert found.num_episodes == 15


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_death_while_it_clears_up_doubles_nothing(dataset, call):
    """What tells that the segment is in place is the last to go."""
    partial, remove, calls = Path(dataset.path).with_name(".data.zarr.partial"), shutil.rmtree, []

    def die_behind_one(path, *args, **kwargs):
        if partial in (path, *path.parents):
            calls.append(path)
        remove(path, *args, **kwargs)
        if len(calls) == call:
            raise Crash

    writer = DatasetWriter(dataset.path, append=True, shard_rows=16)
    writer.add_episodes(generate(3, seed=1))
    with (
        mock.patch("shutil.rmtree", die_behind_one),
        mock.patch.object(writer, "close", writer._build.close),  # the dead do not close
        pytest.raises(Crash),
    ):
        writer.finish()
    assert OfflineDataset.open(dataset.path).num_episodes == 15
    assert (partial / "appending.json").exists()
    assert append(dataset.path).num_episodes == 15
    assert not partial.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, InvalidDataError], ids=["stopped", "wrong data"])
def test_a_run_that_stops_early_keeps_what_tells_of_the_segment(dataset, error):
    with mock.patch("dask_rl.storage.building.append.BuildDirectory.abort", side_effect=Crash), pytest.raises(Crash):
        append(dataset.path)
    with pytest.raises(error), DatasetWriter(dataset.path, append=True):
        raise error
    assert append(dataset.path).num_episodes == 15
    assert append(dataset.path).num_episodes == 18


def test_a_refusal_lets_go_of_the_dataset(dataset):
    graph = spaces.Graph(spaces.Box(0, 1, (1,)), None)
    with pytest.raises(DatasetError, match="space: got Graph"):
        DatasetWriter(dataset.path, append=True, observation_space=graph)
    assert append(dataset.path).num_episodes == 15


def test_a_file_url_is_a_path(dataset):
    assert append(f"file://{dataset.path}").num_episodes == 15
    with pytest.raises(ConfigError, match=r"got the URL s3://bucket/d\.zarr; allowed: a dataset on this machine"):
        DatasetWriter("s3://bucket/d.zarr", append=True)
