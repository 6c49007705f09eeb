"""Datasets behind URLs: the same rows and the same errors as in a directory, in few requests."""

import pickle
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from faulty_stores import Faults, web_server
from gymnasium import spaces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dask_rl.storage import CorruptDataError, DatasetError, DatasetNotFoundError, DatasetWriter, Episode, OfflineDataset
from dask_rl.storage.errors import StoreAccessError, StoreUnreachableError
from dask_rl.storage.remote.directory import RemoteDirectory
from dask_rl.storage.remote.requests import RequestPolicy

pytestmark = pytest.mark.data

MEGABYTE = 1 << 20
FAST = RequestPolicy(num_attempts=3, first_delay_seconds=0.01, timeout_seconds=5)


def copy_to(files, path, name="data.zarr") -> str:
    files.put(str(path), f"/bucket/{name}", recursive=True)
    return f"faulty://bucket/{name}"


def write(path, num_rows, shard_rows=None, width=16, value=None):
    """One episode of float32 rows."""
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((num_rows, width), dtype=np.float32)
    if value is not None:
        observations[:] = value
    flags = np.zeros(num_rows - 1, bool)
    box = spaces.Box(-np.inf, np.inf, (width,), np.float32)
    with DatasetWriter(
        path, observation_space=box, action_space=spaces.Discrete(2), shard_rows=shard_rows, overwrite=True
    ) as writer:
        actions = np.zeros(num_rows - 1, np.int64)
        writer.add_episode(Episode(observations, actions, np.ones(num_rows - 1, np.float32), flags, flags))
    return OfflineDataset.open(path)


@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    shard_rows=st.sampled_from([32, 128]),
    chunk_bytes=st.sampled_from([64, 1024, MEGABYTE]),
    share=st.sampled_from([0.0, 0.1]),
    data=st.data(),
)
def test_the_same_rows_as_in_the_directory(
    tmp_path_factory, memory, faults, settings_of_pendulum, make_episodes, lengths, shard_rows, chunk_bytes, share, data
):
    path = tmp_path_factory.mktemp("remote") / "d.zarr"
    with (
        mock.patch("dask_rl.storage.blocking.MAX_CHUNK_BYTES", chunk_bytes),
        DatasetWriter(path, **settings_of_pendulum, shard_rows=shard_rows) as writer,
    ):
        for number, length in enumerate(lengths):
            writer.add_episodes(make_episodes(1, seed=number, max_length=length))
    local = OfflineDataset.open(path)
    faults.share = share
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    with (
        mock.patch("dask_rl.storage.reading.remote_reader.REQUEST_BYTES", 4096),
        mock.patch("dask_rl.storage.reading.remote_reader.GAP_BYTES", 100),
    ):
        remote = OfflineDataset.open(copy_to(memory, path))
        assert remote.content_hash == local.content_hash
        for field in local.arrays:
            for _ in range(3):
                start, stop = sorted(data.draw(st.tuples(*[st.integers(0, local.num_rows)] * 2)))
                out = np.full((stop - start, *local.arrays[field].row_shape), 1, local.arrays[field].dtype)
                assert remote.reader(field).read(start, stop, out) is out
                np.testing.assert_array_equal(out, local.read(field, start, stop))
        remote.verify(deep=True)


def test_blocks_come_in_few_requests_many_at_once(tmp_path, memory, faults):
    """64 MB in blocks of 16 MB, 20 ms a request: a few round trips a block, not one for each of 1024 chunks."""
    with mock.patch("dask_rl.storage.blocking.MAX_CHUNK_BYTES", 64 << 10):
        local = write(tmp_path / "d.zarr", MEGABYTE, shard_rows=1 << 18)
    assert local.reader("observations").layout.chunk_bytes == 64 << 10
    remote = OfflineDataset.open(copy_to(memory, local.path))
    faults.requests.clear()
    faults.latency_seconds = 0.02
    block_rows = 1 << 18
    num_blocks = local.num_rows // block_rows
    began = time.perf_counter()
    rows = [remote.read("observations", i * block_rows, (i + 1) * block_rows) for i in range(num_blocks)]
    seconds = time.perf_counter() - began
    np.testing.assert_array_equal(np.concatenate(rows), local.read("observations", 0, num_blocks * block_rows))
    # Of each block: an index, three requests for the data, and whether the dataset is still the same.
    assert len(faults.requests) <= 5 * num_blocks + 2
    print(f"64 MB with 20 ms a request: {seconds:.2f} s, {len(faults.requests)} requests")
    assert seconds < 1024 * 0.02 / 4


def test_a_tenth_of_the_requests_fails_and_nothing_is_lost(tmp_path, memory, faults):
    local = write(tmp_path / "d.zarr", 20_000, shard_rows=1024)
    url = copy_to(memory, local.path)
    faults.share = 0.1
    remote = OfflineDataset.open(url)
    for start in range(0, local.num_rows, 777):
        stop = min(start + 777, local.num_rows)
        rows = remote.read("observations", start, stop)
        np.testing.assert_array_equal(rows, local.read("observations", start, stop))
    assert faults.num_failed > 5


def test_neighbouring_rows_cost_no_more_requests(tmp_path, memory, faults):
    local = write(tmp_path / "d.zarr", 5000)
    remote = OfflineDataset.open(copy_to(memory, local.path))
    remote.read("observations", 0, 1)
    faults.requests.clear()
    for row in range(1, 300):
        np.testing.assert_array_equal(
            remote.read("observations", row, row + 1), local.read("observations", row, row + 1)
        )
    assert not faults.requests
    remote.close()
    remote.read("observations", 0, 1)
    assert faults.requests


def test_a_web_server_reads_the_same(tmp_path, faults, make_episodes, settings_of_pendulum):
    with DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, shard_rows=64) as writer:
        writer.add_episodes(make_episodes())
    local = OfflineDataset.open(tmp_path / "d.zarr")
    faults.share = 0.1
    with web_server(tmp_path, faults) as address:
        remote = OfflineDataset.open(f"{address}/d.zarr")
        assert remote.content_hash == local.content_hash
        for field in local.arrays:
            np.testing.assert_array_equal(remote.read(field, 3, 200), local.read(field, 3, 200))
        travelled = pickle.loads(pickle.dumps(remote))  # noqa: S301
        np.testing.assert_array_equal(travelled.read("rewards", 0, 64), local.read("rewards", 0, 64))
        remote.verify(deep=True)
        with pytest.raises(DatasetError, match="the URL of a web server"):
            DatasetWriter(f"{address}/new.zarr", **settings_of_pendulum)
    assert faults.num_failed


def test_not_found_no_permission_and_not_to_be_reached_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_rl.storage.remote.directory.RequestPolicy", lambda: FAST)
    faults = Faults()
    with web_server(tmp_path, faults) as address:
        with pytest.raises(DatasetNotFoundError, match=r"dataset http://127.0.0.1:\d+/d.zarr: got no such path"):
            OfflineDataset.open(f"{address}/d.zarr")
        for status in (401, 403):
            faults.status = status
            with pytest.raises(StoreAccessError, match=r"commit.json in dataset http://\S+/d.zarr: got no permission"):
                OfflineDataset.open(f"{address}/d.zarr")
        faults.status = 503
        faults.requests.clear()
        with pytest.raises(StoreUnreachableError, match=r"commit.json in dataset \S+: got no answer .* in 3 tries"):
            OfflineDataset.open(f"{address}/d.zarr")
        faults.status, faults.latency_seconds = None, 60
        monkeypatch.setattr(
            "dask_rl.storage.remote.directory.RequestPolicy",
            lambda: RequestPolicy(num_attempts=2, first_delay_seconds=0.01, timeout_seconds=0.2),
        )
        with pytest.raises(StoreUnreachableError, match=r"commit.json in dataset \S+: got no answer .* in 2 tries"):
            OfflineDataset.open(f"{address}/d.zarr")
        faults.latency_seconds = 0
    with pytest.raises(StoreUnreachableError, match=r"commit.json in dataset \S+: got no answer"):
        OfflineDataset.open(f"{address}/d.zarr")


def test_secrets_in_urls_are_not_shown(tmp_path, make_episodes, settings_of_pendulum, monkeypatch):
    monkeypatch.setattr("dask_rl.storage.remote.directory.RequestPolicy", lambda: FAST)
    with DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum) as writer:
        writer.add_episodes(make_episodes(2))
    faults = Faults()
    with web_server(tmp_path, faults) as address:
        url = address.replace("//", "//me:secret@") + "/d.zarr?sig=hidden"
        dataset = OfflineDataset.open(url)
        assert dataset.path == f"{address}/d.zarr"
        assert dataset.read("rewards", 0, 5).shape == (5,)
        for shown in (repr(dataset), str(dataset.describe())):
            assert "secret" not in shown
            assert "hidden" not in shown
        for status in (403, 503):
            faults.status = status
            with pytest.raises(DatasetError) as caught:
                OfflineDataset.open(url)
            assert "secret" not in str(caught.value)
            assert "hidden" not in str(caught.value)


def test_names_that_lead_elsewhere(memory):
    place = RemoteDirectory("memory://bucket/data.zarr")
    for key in ("../other.zarr/commit.json", "data/../../x", "a//b", "/etc/passwd", "data/%2e%2e/x", "a?b", "a#b", "."):
        with pytest.raises(CorruptDataError, match=r"a file of dataset memory://bucket/data.zarr: got"):
            place.read(key)


FAULTS = {
    "missing shard": (lambda files, key: files.rm(key), "no such file"),
    "truncated shard": (lambda files, key: files.pipe_file(key, files.cat_file(key)[:100]), "got "),
    "empty shard": (lambda files, key: files.pipe_file(key, b""), "got "),
    "flip in the data": (lambda files, key: flip(files, key, 40), "checksum"),
    "flip in the index": (lambda files, key: flip(files, key, -18), "a shard index with a wrong checksum"),
}


def flip(files, key, offset):
    content = bytearray(files.cat_file(key))
    content[offset] ^= 0x10
    files.pipe_file(key, bytes(content))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("opened", ["before", "after"])
def test_damage_names_file_array_and_rows(dataset, memory, fault, opened):
    spoil, message = FAULTS[fault]
    url = copy_to(memory, dataset.path).replace("faulty", "memory")
    key = "/bucket/data.zarr/data/rewards/c/1"
    place = r"data/rewards/c/1 .*\(rewards, rows 64 to 127\)"
    if opened == "before":
        remote = OfflineDataset.open(url)
        spoil(memory, key)
    else:
        spoil(memory, key)
        if "flip" not in fault:
            with pytest.raises(CorruptDataError, match=r"data/rewards/c/1 \(rewards, rows 64 to 127\) in dataset"):
                OfflineDataset.open(url)
            return
        remote = OfflineDataset.open(url)
    with pytest.raises(CorruptDataError, match=place) as caught:
        remote.read("rewards", 70, 80)
    assert message in str(caught.value)
    with pytest.raises(CorruptDataError, match=r"data/rewards/c/1"):
        remote.verify(deep=True)
    np.testing.assert_array_equal(remote.read("rewards", 0, 64), dataset.read("rewards", 0, 64))


def test_rows_of_another_dataset_are_refused(tmp_path, memory):
    write(tmp_path / "old.zarr", 400, shard_rows=64, value=1)
    write(tmp_path / "new.zarr", 400, shard_rows=64, value=2)
    url = copy_to(memory, tmp_path / "old.zarr").replace("faulty", "memory")
    remote = OfflineDataset.open(url)
    assert (remote.read("observations", 0, 64) == 1).all()
    travelled = pickle.loads(pickle.dumps(remote))  # noqa: S301
    memory.rm("/bucket/data.zarr", recursive=True)
    copy_to(memory, tmp_path / "new.zarr")
    for dataset in (remote, travelled):
        with pytest.raises(DatasetError, match="another dataset than when it was opened"):
            dataset.read("observations", 64, 200)
    assert (OfflineDataset.open(url).read("observations", 0, 400) == 2).all()


def test_an_unknown_protocol_and_the_spellings_of_places(tmp_path, dataset):
    with pytest.raises(DatasetError, match="install the protocol's package"):
        OfflineDataset.open("nonsense://bucket/other.zarr")
    assert OfflineDataset.open(f"file://{dataset.path}").content_hash == dataset.content_hash
    odd = tmp_path / "a:b" / "d.zarr"
    odd.parent.mkdir()
    Path(dataset.path).rename(odd)
    assert OfflineDataset.open(odd).content_hash == dataset.content_hash
