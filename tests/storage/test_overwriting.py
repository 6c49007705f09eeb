"""Datasets that are overwritten by writers that stop: the old one or the new one is there, and never half of one."""

import errno
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from dask_rl.storage import DatasetError, DatasetNotFoundError, DatasetWriter, OfflineDataset
from dask_rl.storage.building import build

pytestmark = pytest.mark.data

SUPPORT = Path(__file__).parents[1] / "support"


class Crash(BaseException):
    pass


def by_exchange():
    """A file system that exchanges two directories in one step."""
    return nullcontext()


def by_renames():
    """One that cannot."""
    return mock.patch.object(build, "exchange", return_value=False)


@pytest.fixture
def write(dataset, make_episodes, settings_of_pendulum):
    """Write five episodes where a dataset of twelve lies."""

    def call(**more):
        with DatasetWriter(dataset.path, **settings_of_pendulum, shard_rows=32, **more) as writer:
            writer.add_episodes(make_episodes(5, seed=1))
            return writer.finish()

    return call


@pytest.fixture
def partial(dataset):
    return Path(dataset.path).with_name(".data.zarr.partial")


def num_episodes(path):
    with OfflineDataset.open(path) as opened:
        opened.verify(deep=True)
        return opened.num_episodes


def stopping(place, number=1, error=Crash, after=True):
    """Stop the writer before or after a call, by what `except OSError` lets through."""
    function, count = getattr(*place), 0

    def call(*args, **kwargs):
        nonlocal count
        count += 1
        if count == number and not after:
            raise error
        result = function(*args, **kwargs)
        if count == number:
            raise error
        return result

    return mock.patch.object(*place, call)


def check_next_writers(path, write, partial):
    """What follows a death does its work: one that is refused, one that overwrites, one that finds the path free."""
    before = num_episodes(path)
    with pytest.raises(DatasetError, match="exists already"):
        write()
    assert num_episodes(path) == before
    assert not [entry for entry in ("old", "new", "removed") if (partial / entry).exists()]
    write(overwrite=True)
    assert num_episodes(path) == 5
    assert not partial.exists()


@pytest.mark.parametrize("after", [False, True])
def test_it_is_one_step(dataset, write, partial, after):
    with stopping((build, "exchange"), after=after), pytest.raises(Crash):
        write(overwrite=True)
    assert num_episodes(dataset.path) == (5 if after else 12)
    assert (partial / "new").exists()
    check_next_writers(dataset.path, write, partial)


@pytest.mark.parametrize("way", [by_exchange, by_renames])
def test_what_is_half_removed_is_never_brought_back(dataset, write, partial, way, tmp_path):
    """The new dataset is moved away before the next writer comes."""
    rmtree = shutil.rmtree

    def half(path, **kwargs):
        if Path(path, "data").exists():
            rmtree(Path(path, "data"))
            raise Crash
        if Path(path) == partial:
            raise Crash
        rmtree(path, **kwargs)

    with way(), mock.patch.object(shutil, "rmtree", half), pytest.raises(Crash):
        write(overwrite=True)
    os.rename(dataset.path, tmp_path / "archived.zarr")
    assert num_episodes(tmp_path / "archived.zarr") == 5
    assert len(list(partial.glob("*/meta"))) == 1
    write()
    assert num_episodes(dataset.path) == 5
    assert not partial.exists()


@pytest.mark.parametrize("error", [Crash, OSError(errno.EIO, os.strerror(errno.EIO))])
@pytest.mark.parametrize("number", [3, 4])
def test_renames_are_undone(dataset, write, partial, error, number):
    """Where two are needed, who interrupts it between them and a disk that fails find the old dataset."""
    with by_renames(), stopping((os, "rename"), number, error, after=False), pytest.raises((Crash, DatasetError)):
        write(overwrite=True)
    assert num_episodes(dataset.path) == 12
    done = {path.name: path.stat().st_ino for path in partial.glob("store/data/rewards/c/*")}
    assert done
    write(overwrite=True)
    assert done == {path.name: path.stat().st_ino for path in Path(dataset.path).glob("data/rewards/c/*")}


def test_one_that_was_killed_between_renames_is_undone_by_the_next_writer(dataset, write, partial):
    partial.mkdir()
    os.rename(dataset.path, partial / "old")
    with pytest.raises(DatasetNotFoundError, match=r"got no such path; .*; run again what was writing it"):
        OfflineDataset.open(dataset.path)
    with pytest.raises(DatasetError, match="exists already"):
        write()
    assert num_episodes(dataset.path) == 12
    assert not partial.exists()


@pytest.mark.service
@pytest.mark.parametrize(
    ("how", "stride"),
    [
        ("overwrite", 53),
        ("overwrite-by-renames", 53),
        ("after-others", 151),
        pytest.param("overwrite", 1, marks=pytest.mark.storm),
        pytest.param("overwrite-by-renames", 1, marks=pytest.mark.storm),
        pytest.param("after-others", 3, marks=pytest.mark.storm),
    ],
)
def test_kill_9_while_another_dataset_gives_way(tmp_path, how, stride):
    """Before and after every call that changes the disk: the old dataset or the new one, never rows of both."""
    program = [sys.executable, str(SUPPORT / "killed_writers.py"), str(tmp_path), how, str(stride)]
    result = subprocess.run(program, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 1
