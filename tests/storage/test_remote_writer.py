"""Writing to URLs: complete or not at all, one writer at a time, and what is finished is not written again."""

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from supplies import SPACES, RandomSupply, run_as_if_elsewhere

from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.storage import DatasetError, DatasetWriter, InvalidDataError, OfflineDataset
from dask_rl.storage.building.remote_build import RemoteBuild, RemoteShards
from dask_rl.storage.encoding import EncodedShard
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.remote.claim import CLAIM_NAME

pytestmark = pytest.mark.data

URL = "faulty://bucket/data.zarr"


class Crash(BaseException):
    pass


@pytest.fixture
def settings(settings_of_pendulum, memory, faults):
    return {**settings_of_pendulum, "shard_rows": 64}


def write(url, episodes, settings, **more):
    with DatasetWriter(url, **settings, **more) as writer:
        writer.add_episodes(episodes)
        return writer.finish()


def keys(memory, below="/bucket/"):
    return sorted(key for key in memory.store if key.startswith(below))


def put_shards(faults):
    return [path for method, path in faults.requests if method == "PUT" and "/c/" in path and "/data/" in path]


def crashing(episodes, number):
    yield from islice(episodes, number)
    raise Crash


def test_the_same_dataset_as_in_a_directory(tmp_path, memory, make_episodes, settings):
    local = write(tmp_path / "data.zarr", make_episodes(), settings)
    remote = write(URL, make_episodes(), settings)
    assert remote.content_hash == local.content_hash
    remote.verify(deep=True)
    assert [key.removeprefix("/bucket/data.zarr/") for key in keys(memory)] == sorted(
        path.relative_to(local.path).as_posix() for path in Path(local.path).rglob("*") if path.is_file()
    )
    for field in local.arrays:
        np.testing.assert_array_equal(remote.read(field, 0, 200), local.read(field, 0, 200))


def test_failing_requests_lose_nothing(tmp_path, faults, make_episodes, settings):
    faults.share = 0.1
    remote = write(URL, make_episodes(60), settings)
    assert faults.num_failed > 10
    faults.share = 0
    remote.verify(deep=True)
    assert remote.content_hash == write(tmp_path / "d.zarr", make_episodes(60), settings).content_hash


def test_a_crash_costs_only_the_open_shard(tmp_path, faults, memory, make_episodes, settings):
    with pytest.raises(Crash), DatasetWriter(URL, **settings) as writer:
        writer.add_episodes(crashing(make_episodes(60), 40))
    with pytest.raises(DatasetError, match=r"got a dataset that is not complete; .*run again what writes it"):
        OfflineDataset.open(URL)
    done = put_shards(faults)
    assert len(done) > 5 * 5
    faults.requests.clear()
    again = write(URL, make_episodes(60), settings)
    assert not set(done) & set(put_shards(faults))
    again.verify(deep=True)
    assert again.content_hash == write(tmp_path / "d.zarr", make_episodes(60), settings).content_hash
    assert not keys(memory, "/bucket/data.zarr.partial/")


def test_other_data_after_a_crash_takes_over_no_shard(tmp_path, make_episodes, settings):
    with pytest.raises(Crash), DatasetWriter(URL, **settings) as writer:
        writer.add_episodes(crashing(make_episodes(60), 40))
    remote = write(URL, make_episodes(12, seed=5), settings)
    remote.verify(deep=True)
    assert remote.content_hash == write(tmp_path / "d.zarr", make_episodes(12, seed=5), settings).content_hash


def test_a_receipt_vouches_for_no_object_that_was_written_after_it(make_episodes, settings, monkeypatch):
    """Three runs in one place: of these data, of others of the same lengths, and of these data again."""
    write_receipt = RemoteShards.write_receipt
    others = [replace(episode, observations=-episode.observations) for episode in make_episodes()]
    for number, episodes in ((2, make_episodes()), (0, others)):

        def die(shards, shard, receipt, last=number):
            if shard == last:
                raise Crash
            write_receipt(shards, shard, receipt)

        monkeypatch.setattr(RemoteShards, "write_receipt", die)
        with pytest.raises(Crash):
            write(URL, episodes, settings)
    monkeypatch.setattr(RemoteShards, "write_receipt", write_receipt)
    dataset = write(URL, make_episodes(), settings)
    dataset.verify(deep=True)
    for found, wanted in zip(dataset.episodes(), make_episodes(), strict=True):
        assert np.array_equal(found.observations, wanted.observations)


def test_abort_and_errors_in_the_data_leave_nothing(memory, make_episodes, settings):
    with pytest.raises(InvalidDataError), DatasetWriter(URL, **settings) as writer:
        writer.add_episodes([*make_episodes(12), *make_episodes(1, shape=(4,))])
    assert not keys(memory)
    writer = DatasetWriter(URL, **settings)
    writer.add_episodes(make_episodes())
    writer.abort()
    assert not keys(memory)


def test_an_existing_dataset_is_refused_or_replaced(memory, make_episodes, settings):
    first = write(URL, make_episodes(), settings)
    before = keys(memory)
    with pytest.raises(DatasetError, match=r"a dataset that exists already; .*overwrite=True"):
        DatasetWriter(URL, **settings)
    assert keys(memory) == before
    after = write(URL, make_episodes(3, seed=5), settings, overwrite=True)
    assert after.content_hash != first.content_hash
    after.verify(deep=True)
    with pytest.raises(DatasetError, match="another dataset than when it was opened"):
        first.read("rewards", 0, 10)


def test_readers_of_a_dataset_that_is_being_replaced_get_its_rows_or_an_error(make_episodes, settings):
    """The same shapes: nothing but commit.json tells the rows of one from those of the other."""
    old = write(URL, make_episodes(30), settings)
    rows = old.read("observations", 0, 64)
    old.close()
    writer = DatasetWriter(URL, **settings, overwrite=True)
    np.testing.assert_array_equal(old.read("observations", 0, 64), rows)
    old.close()
    writer.add_episodes(make_episodes(10, seed=9))
    with pytest.raises(DatasetError, match="one that is being written"):
        old.read("observations", 0, 64)
    writer.add_episodes(make_episodes(20, seed=10))
    new = writer.finish()
    with pytest.raises(DatasetError, match="another dataset than when it was opened"):
        old.read("observations", 0, 64)
    assert not np.array_equal(new.read("observations", 0, 64), rows)


def test_what_is_no_dataset_is_not_removed(memory, make_episodes, settings):
    memory.pipe_file("/bucket/data.zarr/letter", b"dear")
    with pytest.raises(DatasetError, match="objects that exist already"):
        DatasetWriter(URL, **settings)
    with pytest.raises(DatasetError, match=r"no dask-rl dataset; .*nothing was removed"):
        DatasetWriter(URL, **settings, overwrite=True)
    assert memory.cat_file("/bucket/data.zarr/letter") == b"dear"


def test_one_writer_at_a_time(memory, make_episodes, settings):
    with DatasetWriter(URL, **settings) as first:
        first.add_episodes(make_episodes(20))
        with pytest.raises(DatasetError, match="another process that writes it now"):
            DatasetWriter(URL, **settings)
    assert OfflineDataset.open(URL).num_episodes == 20


def test_one_writer_at_a_time_however_its_url_is_written(memory, make_episodes, settings):
    other = URL.replace("://", ":///")
    with DatasetWriter(URL, **settings) as first:
        first.add_episodes(make_episodes(20))
        with pytest.raises(DatasetError, match="another process that writes it now"):
            DatasetWriter(other, **settings)
    dead = DatasetWriter(URL, **settings, overwrite=True)
    dead._build._claim._unlock()  # as the end of its process does
    dead._build._local.cleanup()
    write(other, make_episodes(3), settings, overwrite=True).verify(deep=True)


def test_a_writer_on_another_machine_is_named(memory, make_episodes, settings, monkeypatch, tmp_path):
    dead = DatasetWriter(URL, **settings)
    dead.add_episodes(make_episodes(20))
    dead._build._claim._unlock()  # as the end of its process does
    dead._build._local.cleanup()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # other locks: another machine
    with pytest.raises(
        DatasetError, match=rf"got process {os.getpid()} on \S+, which writes it since .*, or died"
    ) as e:
        DatasetWriter(URL, **settings)
    assert f"remove {URL}.partial/{CLAIM_NAME}: finished shards are kept" in str(e.value)
    memory.rm(f"/bucket/data.zarr.partial/{CLAIM_NAME}")
    write(URL, make_episodes(20), settings).verify(deep=True)


def test_a_late_task_of_a_dead_driver_changes_nothing(memory, make_episodes, settings):
    dead = RemoteBuild(URL, overwrite=False)
    dead.start({"content": 1})
    late = pickle.loads(pickle.dumps(dead.shards))  # noqa: S301
    dead.close()
    dataset = write(URL, make_episodes(), settings)
    key = "data/rewards/c/0"
    with pytest.raises(DatasetError, match="a writer that does not hold the place any more"):
        late.require()
    with pytest.raises(DatasetError, match="a writer that does not hold the place any more"):
        late.write_object(key, EncodedShard([b"x" * 10], 10, "0" * 64))
    dataset.verify(deep=True)


def test_the_first_to_commit_wins(memory, make_episodes, settings):
    late = DatasetWriter(URL, **settings)
    late.add_episodes(make_episodes(3))
    write("faulty://bucket/other.zarr", make_episodes(3, seed=1), settings)
    for key in keys(memory, "/bucket/other.zarr/"):
        memory.pipe_file(key.replace("other", "data"), memory.cat_file(key))
    with pytest.raises(DatasetError, match=r"exists already|was complete first|as they were written"):
        late.finish()


PROGRAM = """
import sys, numpy as np
sys.path[:0] = sys.argv[2:]
import faulty_stores
from conftest import generate
from gymnasium import spaces
from dask_rl.storage import DatasetWriter
settings = dict(observation_space=spaces.Box(-np.inf, np.inf, (3,), np.float32),
                action_space=spaces.Box(-2, 2, (1,), np.float32), shard_rows=64)
with DatasetWriter(sys.argv[1], **settings) as writer:
    writer.add_episodes(generate(200))
"""


@pytest.mark.storm
def test_kill_9_of_a_writer_and_the_next_run_completes(tmp_path, make_episodes, settings_of_pendulum):
    """Through fsspec's local files behind a URL of another protocol: a store that outlives the process."""
    target = tmp_path / "store"
    target.mkdir()
    command = [sys.executable, "-c", PROGRAM, f"local-store://{target}/data.zarr", str(Path(__file__).parent)]
    command.append(str(Path(__file__).parents[1] / "support"))
    process = subprocess.Popen(command)
    while not list(target.glob("data.zarr.partial/receipts-*/3.json")):
        assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    with pytest.raises(DatasetError):
        OfflineDataset.open(f"local-store://{target}/data.zarr")
    subprocess.run(command, check=True)
    again = OfflineDataset.open(f"local-store://{target}/data.zarr")
    again.verify(deep=True)
    with DatasetWriter(tmp_path / "whole.zarr", **settings_of_pendulum, shard_rows=64) as writer:
        writer.add_episodes(make_episodes(200))
    assert again.content_hash == OfflineDataset.open(tmp_path / "whole.zarr").content_hash


def test_imports_and_collected_episodes_go_to_urls(tmp_path, faults, memory, sample_data):
    source = sample_data / "rllib/pendulum/small.json"
    local = import_dataset(source, tmp_path / "d.zarr")
    assert import_dataset(source, Path("faulty://bucket/imported.zarr")).content_hash == local.content_hash
    with pytest.raises(DatasetError, match="exists already"):
        import_dataset(source, "faulty://bucket/imported.zarr")
    config = CollectConfig(environment="CartPole-v1", num_episodes=3)
    with collect(config, "faulty://bucket/collected.zarr") as dataset:
        assert dataset.num_episodes == 3


def test_shards_that_tasks_write_are_those_of_a_directory(tmp_path, faults, memory):
    """The tasks get the place pickled, as in other processes; what is finished is not written again."""
    supply = RandomSupply((20, 3, 40, 7, 33, 12, 30))

    def write_by_tasks(path, run=run_as_if_elsewhere):
        with DatasetWriter(path, **SPACES, shard_rows=16) as writer:
            writer.add_supply(supply, supply.survey(), run)
            return writer.finish()

    def crashing(function, items, name):
        yield from islice(run_as_if_elsewhere(function, items, name), 4)
        raise Crash

    with pytest.raises(Crash):
        write_by_tasks(
            URL, lambda f, items, name: (crashing if name == "write-shard" else run_as_if_elsewhere)(f, items, name)
        )
    done = put_shards(faults)
    faults.requests.clear()
    remote = write_by_tasks(URL)
    assert done
    assert not set(done) & set(put_shards(faults))
    remote.verify(deep=True)
    assert remote.content_hash == write_by_tasks(tmp_path / "d.zarr").content_hash
