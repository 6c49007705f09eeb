import errno
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from dask_rl.storage import DatasetError, DatasetNotFoundError, DatasetWriter, InvalidDataError, OfflineDataset
from dask_rl.storage.building.build import BuildDirectory
from dask_rl.storage.building.shard_store import ShardStore
from dask_rl.storage.building.step_columns import StepColumns
from dask_rl.storage.building.write_errors import explained_write_errors

SHARD_ROWS = 64
SUPPORT = Path(__file__).parents[1] / "support"
# Writes what `make_episodes(200)` gives; argv: the path, the folder of the episodes.
PROGRAM = """
import sys, numpy as np
sys.path.insert(0, sys.argv[2])
from random_episodes import generate
from gymnasium import spaces
from dask_rl.storage import DatasetError, DatasetWriter
settings = dict(observation_space=spaces.Box(-np.inf, np.inf, (3,), np.float32),
                action_space=spaces.Box(-2, 2, (1,), np.float32), shard_rows=64)
try:
    with DatasetWriter(sys.argv[1], **settings) as writer:
        writer.add_episodes(generate(200))
except DatasetError as error:
    print(error)
    sys.exit(1)
"""


def command(path):
    return [sys.executable, "-c", PROGRAM, str(path), str(SUPPORT)]


def inodes(directory):
    return {p.relative_to(directory): p.stat().st_ino for p in directory.rglob("*") if p.parent.name == "c"}


class Crash(Exception):
    pass


def crashing(episodes, number):
    yield from islice(episodes, number)
    raise Crash


@pytest.fixture
def settings(settings_of_pendulum):
    return {**settings_of_pendulum, "shard_rows": SHARD_ROWS}


def test_a_crash_between_shards_costs_only_the_open_shard(tmp_path, make_episodes, settings):
    with DatasetWriter(tmp_path / "whole.zarr", **settings) as writer:
        writer.add_episodes(make_episodes(60))
    path = tmp_path / "data.zarr"
    with pytest.raises(Crash), DatasetWriter(path, **settings) as writer:
        writer.add_episodes(crashing(make_episodes(60), 40))
    with pytest.raises(DatasetNotFoundError):
        OfflineDataset.open(path)
    done = inodes(tmp_path / ".data.zarr.partial/store")
    assert len(done) > 5 * 5
    with DatasetWriter(path, **settings) as writer:
        writer.add_episodes(make_episodes(60))
    assert done.items() <= inodes(path).items()
    assert OfflineDataset.open(path).content_hash == OfflineDataset.open(tmp_path / "whole.zarr").content_hash
    OfflineDataset.open(path).verify(deep=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data.zarr", "whole.zarr"]


def test_other_data_after_a_crash_takes_over_no_shard(tmp_path, make_episodes, settings):
    path = tmp_path / "data.zarr"
    with pytest.raises(Crash), DatasetWriter(path, **settings) as writer:
        writer.add_episodes(crashing(make_episodes(60), 40))
    with DatasetWriter(path, **settings) as writer:
        writer.add_episodes(make_episodes(10, seed=7))
    dataset = OfflineDataset.open(path)
    dataset.verify(deep=True)  # no shard of the longer run may be left either
    again = list(dataset.episodes())
    assert [e.return_ for e in again] == [e.return_ for e in make_episodes(10, seed=7)]


def test_a_shard_that_is_not_what_its_receipt_says_is_written_again(tmp_path, make_episodes, settings):
    path = tmp_path / "data.zarr"
    with pytest.raises(Crash), DatasetWriter(path, **settings) as writer:
        writer.add_episodes(crashing(make_episodes(60), 40))
    store = tmp_path / ".data.zarr.partial/store/data"
    os.truncate(store / "rewards/c/1", 10)
    (store / "observations/c/2/0").unlink()
    (tmp_path / ".data.zarr.partial/receipts/3.json").write_text("{")
    with DatasetWriter(path, **settings) as writer:
        writer.add_episodes(make_episodes(60))
    OfflineDataset.open(path).verify(deep=True)


def die_before_receipt(number):
    """Stop the writer when all files of a shard are there, and the receipt is not."""
    write_receipt = ShardStore.write_receipt

    def write(shards, shard, receipt):
        if shard == number:
            raise Crash
        write_receipt(shards, shard, receipt)

    return mock.patch.object(ShardStore, "write_receipt", write)


@pytest.mark.parametrize("columns", [False, True])
def test_a_receipt_vouches_for_no_file_that_was_written_after_it(columns, tmp_path, make_episodes, settings):
    """Three runs in one place: of these data, of others of the same lengths, and of these data again."""
    path = tmp_path / "data.zarr"
    others = [replace(episode, observations=-episode.observations) for episode in make_episodes()]

    def write(episodes):
        with DatasetWriter(path, **settings) as writer:
            if columns:
                writer.add_steps(columns_of(list(episodes)))
            else:
                writer.add_episodes(episodes)

    for number, episodes in ((2, make_episodes()), (0, others)):
        with die_before_receipt(number), pytest.raises(Crash):
            write(episodes)
    write(make_episodes())
    dataset = OfflineDataset.open(path)
    dataset.verify(deep=True)
    for found, wanted in zip(dataset.episodes(), make_episodes(), strict=True):
        assert np.array_equal(found.observations, wanted.observations)


def columns_of(episodes):
    columns = {"observations": np.concatenate([e.observations for e in episodes])}
    for name in ("actions", "rewards", "terminations", "truncations"):
        columns[name] = np.concatenate([getattr(e, name) for e in episodes])
    return StepColumns(columns, np.array([len(e) for e in episodes]))


@pytest.mark.parametrize("place", ["writer.write_meta_arrays", "writer.collect_objects", "building.build.os.rename"])
def test_a_crash_while_finalising_costs_no_shard(place, tmp_path, make_episodes, settings):
    path = tmp_path / "data.zarr"
    crash = mock.patch(f"dask_rl.storage.{place}", side_effect=Crash)
    with crash, pytest.raises(Crash), DatasetWriter(path, **settings) as writer:
        writer.add_episodes(make_episodes())
    done = inodes(tmp_path / ".data.zarr.partial/store")
    done = {key: inode for key, inode in done.items() if key.is_relative_to("data")}
    assert done
    with DatasetWriter(path, **settings) as writer:
        writer.add_episodes(make_episodes())
    assert done.items() <= inodes(path).items()
    OfflineDataset.open(path).verify(deep=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.zarr"]


def test_kill_9_while_writing_leaves_no_dataset_and_the_next_run_completes(tmp_path, make_episodes, settings):
    path, partial = tmp_path / "data.zarr", tmp_path / ".data.zarr.partial"
    process = subprocess.Popen(command(path))
    while not (partial / "receipts/3.json").exists():
        assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert not path.exists()
    with pytest.raises(DatasetNotFoundError):
        OfflineDataset.open(path)
    finished = {str(number) for number in range(4)}
    done = {key: inode for key, inode in inodes(partial / "store").items() if key.name in finished}
    assert done
    subprocess.run(command(path), check=True)
    assert done.items() <= inodes(path).items()
    assert not partial.exists()
    again = OfflineDataset.open(path)
    again.verify(deep=True)
    with DatasetWriter(tmp_path / "whole.zarr", **settings) as writer:
        writer.add_episodes(make_episodes(200))
    assert again.content_hash == OfflineDataset.open(tmp_path / "whole.zarr").content_hash


def test_one_writer_at_a_time(tmp_path, make_episodes, settings):
    path = tmp_path / "data.zarr"
    with DatasetWriter(path, **settings) as first:
        first.add_episodes(make_episodes(20))
        with pytest.raises(DatasetError, match="got another process that writes it now") as caught:
            DatasetWriter(path, **settings)
        assert "\n" not in str(caught.value)
    assert OfflineDataset.open(path).num_episodes == 20


@pytest.mark.parametrize("end", ["finish", "close"])
def test_who_is_done_leaves_the_next_writer_its_place(end, tmp_path, make_episodes, settings):
    path, partial = tmp_path / "data.zarr", tmp_path / ".data.zarr.partial"
    first, following = DatasetWriter(path, **settings), []
    first.add_episodes(make_episodes())
    let_go = BuildDirectory.close

    def close(build):
        let_go(build)
        if build is first._build and not following:
            following.append(DatasetWriter(path, **settings, overwrite=True))

    with mock.patch.object(BuildDirectory, "close", close):
        getattr(first, end)()
    first.abort()
    first.close()
    assert partial.exists()
    with pytest.raises(DatasetError, match="got another process that writes it now"):
        DatasetWriter(path, **settings, overwrite=True)
    following[0].add_episodes(make_episodes(5))
    assert following[0].finish().num_episodes == 5
    assert not partial.exists()


def test_the_first_to_commit_wins(tmp_path, make_episodes, settings, dataset):
    late = DatasetWriter(tmp_path / "late.zarr", **settings)
    late.add_episodes(make_episodes(3))
    os.rename(dataset.path, tmp_path / "late.zarr")
    with pytest.raises(DatasetError, match="exists already"):
        late.finish()
    assert OfflineDataset.open(tmp_path / "late.zarr").content_hash == dataset.content_hash


def test_abort_and_errors_in_the_data_leave_nothing(tmp_path, make_episodes, settings):
    writer = DatasetWriter(tmp_path / "data.zarr", **settings)
    writer.add_episodes(make_episodes())
    writer.abort()
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidDataError), DatasetWriter(tmp_path / "data.zarr", **settings) as writer:
        writer.add_episodes([*make_episodes(12), *make_episodes(1, shape=(4,))])
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(tmp_path, settings):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file/data.zarr", Path("/proc/data.zarr")):
        with pytest.raises(DatasetError, match="choose a directory that you can write to") as caught:
            DatasetWriter(path, **settings)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR])
def test_every_refusal_of_the_system_says_what_to_do(code, tmp_path):
    refused = pytest.raises(DatasetError, match="choose a directory that you can write to")
    with refused as caught, explained_write_errors(tmp_path / "data.zarr"):
        raise OSError(code, os.strerror(code), str(tmp_path))
    assert os.strerror(code) in str(caught.value)
    failed = pytest.raises(DatasetError, match="check the disk and run the same again")
    with failed, explained_write_errors(tmp_path / "data.zarr"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_size_limit_is_no_dataset_and_a_clear_line(tmp_path):
    path = tmp_path / "data.zarr"

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))

    result = subprocess.run(command(path), preexec_fn=limit, capture_output=True, text=True)
    check_no_room(result, path)


def test_a_full_disk_is_no_dataset_and_a_clear_line(small_disk):
    path = small_disk / "data.zarr"
    check_no_room(subprocess.run(command(path), capture_output=True, text=True), path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 KiB; where mounting is not allowed, the limit on file sizes is all that is tested."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", place], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", place], check=True)


def check_no_room(result, path):
    assert result.returncode == 1, result.stderr
    assert "free some space and run the same again: finished shards are kept" in result.stdout
    assert result.stdout.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert not path.exists()
