"""What a writer and a recorder refuse, rather than to write what nobody can read or to hold a place for ever."""

import fcntl
from dataclasses import replace
from pathlib import Path
from unittest import mock

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dask_rl import EpisodeRecorder
from dask_rl.storage import DatasetError, DatasetWriter, InvalidDataError, OfflineDataset
from dask_rl.storage.building.shard_store import ShardStore


def test_the_lock_is_a_file_and_goes_with_its_holder(tmp_path, settings_of_pendulum):
    """NFS tells other hosts of locks of files that are open for writing, and of no others."""
    lock = tmp_path / ".d.zarr.partial/lock"
    writer = DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum)
    with lock.open("ab") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(DatasetError, match="another process that writes it now"):
        DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum)
    del writer  # nobody closed it
    DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum).abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [{"overwrite": True}, {"append": True}], ids=lambda given: next(iter(given)))
def test_after_a_refusal_of_the_disk_nothing_more_is_taken(dataset, make_episodes, settings_of_pendulum, given):
    """Part of an episode is in the shards: taken again, its rows would be there twice."""
    refusal = mock.patch.object(ShardStore, "write_object", side_effect=DatasetError("no space left"))
    settings = {} if "append" in given else settings_of_pendulum
    writer = DatasetWriter(dataset.path, **settings, **given, shard_rows=16)
    (episode,) = make_episodes(1, seed=3)
    with refusal, pytest.raises(DatasetError, match="no space left"):
        writer.add_episodes([episode] * 16)
    with pytest.raises(DatasetError, match=r"an episode that was written in part; .*run the same again"):
        writer.add_episode(episode)
    for message in ("written in part", "got an end without a dataset before"):
        with pytest.raises(DatasetError, match=message):
            writer.finish()
    found = OfflineDataset.open(dataset.path)
    found.verify(deep=True)
    assert found.content_hash == dataset.content_hash
    DatasetWriter(dataset.path, append=True).abort()  # and the place is free


@pytest.mark.data
@pytest.mark.parametrize("append", [False, True], ids=["overwrite", "append"])
def test_what_is_not_all_there_replaces_nothing(dataset, make_episodes, settings_of_pendulum, append):
    given = {"append": True} if append else {**settings_of_pendulum, "overwrite": True}
    shard = Path(dataset.path).with_name(".data.zarr.partial") / "store/data/rewards/c/0"
    episodes = list(make_episodes())

    def lose_a_row(writer):
        writer._stream.append(writer._checker.columns(episodes[0], 0), 1)

    for spoil, message in (
        (lambda writer: shard.unlink(), "data/rewards/c/0 in dataset .*: got no such object"),
        (lambda writer: shard.write_bytes(b"x"), "got 1 bytes; allowed: .* as they were written"),
        (lose_a_row, "got .* rows of its episodes; allowed: .*, all of them"),
    ):
        writer = DatasetWriter(dataset.path, **given, shard_rows=16)
        writer.add_episodes(episodes)
        spoil(writer)
        with pytest.raises(DatasetError, match=message):
            writer.finish()
        assert OfflineDataset.open(dataset.path).content_hash == dataset.content_hash


@pytest.mark.data
def test_a_space_that_is_too_large_to_be_read_back(dataset, settings_of_pendulum):
    large = spaces.Box(0, 255, (2160, 3840, 3), np.uint8)
    with pytest.raises(InvalidDataError, match=r"observation_space: got Box.*elements, more than 8388608.*crop"):
        DatasetWriter(dataset.path, **{**settings_of_pendulum, "observation_space": large}, overwrite=True)
    assert OfflineDataset.open(dataset.path).content_hash == dataset.content_hash
    assert len(list(Path(dataset.path).parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("row_bytes", "shard_rows", "fix"),
    [(65 << 20, 32, "leave shard_rows to be chosen"), (2 << 30, None, "make its rows smaller")],
)
def test_rows_too_large_to_be_read_back(tmp_path, make_episodes, settings_of_pendulum, row_bytes, shard_rows, fix):
    (episode,) = make_episodes(1)
    wide = np.broadcast_to(np.zeros(1, np.uint8), (len(episode), row_bytes))
    given = replace(episode, infos={"frame": wide})
    with (
        pytest.raises(InvalidDataError, match=rf"infos/frame: got chunks of \d+ bytes; allowed: at most .*; {fix}"),
        DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, shard_rows=shard_rows) as writer,
    ):
        writer.add_episode(given)
    assert list(tmp_path.iterdir()) == []


class Line(gymnasium.Env):
    """Never ends; observes `end`."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, end=0.0):
        self.end = end

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.full(1, self.end, np.float32), 1.0, False, False, {}


def play(recorder):
    recorder.reset()
    recorder.step(0)


def test_an_invalid_last_episode_gives_the_place_free(tmp_path):
    with (
        pytest.raises(InvalidDataError, match="got nan"),
        EpisodeRecorder(Line(end=np.nan), tmp_path / "d.zarr") as recorder,
    ):
        play(recorder)
    assert list(tmp_path.iterdir()) == []
    with EpisodeRecorder(Line(), tmp_path / "d.zarr") as recorder:
        play(recorder)
        recorder.close()  # the block completes it all the same
    assert OfflineDataset.open(tmp_path / "d.zarr").num_episodes == 1


def test_closing_a_recorder_without_a_block_tells_what_is_missing(tmp_path):
    recorder = EpisodeRecorder(Line(), tmp_path / "d.zarr")
    recorder.close()  # nothing was played
    play(recorder)
    with pytest.warns(UserWarning, match=r"episodes that are in no dataset; call finish\(\)"):
        recorder.close()
    assert recorder.finish().num_episodes == 1
    recorder.close()
