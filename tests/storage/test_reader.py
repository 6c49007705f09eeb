import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import zarr
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec

from dask_rl.storage import ConfigError, DatasetWriter, Episode, OfflineDataset
from dask_rl.storage.layout import ArrayLayout, parse_layout
from dask_rl.storage.location import LocalDirectory
from dask_rl.storage.reading.reader import ShardReader

DTYPES = ["bool", "uint8", "int16", "int64", "float16", "float32", "float64"]
CODECS = {"raw": [], "zstd": [ZstdCodec(level=1)], "gzip": [GzipCodec(level=1)]}


@st.composite
def stored_arrays(draw):
    """A random array, how it is stored, and row ranges of it in random order."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    row_shape = tuple(draw(st.lists(st.integers(1, 5), max_size=2)))
    num_rows = draw(st.integers(1, 300))
    chunk_rows = 2 ** draw(st.integers(0, 5))
    shard_rows = chunk_rows * 2 ** draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    # Few different values, so that zstd makes chunks of different lengths.
    data = rng.integers(0, 3, (num_rows, *row_shape)).astype(dtype)
    bounds = st.tuples(st.integers(0, num_rows), st.integers(0, num_rows)).map(sorted)
    ranges = draw(st.lists(bounds, min_size=1, max_size=8))
    return data, shard_rows, chunk_rows, draw(st.sampled_from(sorted(CODECS))), draw(st.booleans()), ranges


@given(stored_arrays())
def test_direct_reader_and_zarr_python_agree(tmp_path_factory, case):
    data, shard_rows, chunk_rows, codec, sharded, ranges = case
    path = tmp_path_factory.mktemp("store")
    group = zarr.create_group(path, zarr_format=3)
    array = group.create_array(
        "data/x",
        shape=data.shape,
        shards=(shard_rows, *data.shape[1:]) if sharded else None,
        chunks=(chunk_rows, *data.shape[1:]),
        dtype=data.dtype,
        serializer=BytesCodec(endian="little" if data.dtype.itemsize > 1 else None),
        compressors=[*CODECS[codec], Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    array[:] = data
    layout = parse_layout("data/x", array.metadata.to_dict())
    assert (layout is not None) == (sharded and codec != "gzip")
    np.testing.assert_array_equal(array[:], data)
    if layout is None:
        return
    reader = ShardReader(LocalDirectory(path), layout)
    for start, stop in ranges:
        rows = reader.read(start, stop)
        assert rows.dtype == data.dtype
        np.testing.assert_array_equal(rows, data[start:stop])
        out = np.full_like(rows, 1)
        assert reader.read(start, stop, out) is out
        np.testing.assert_array_equal(out, data[start:stop])
    # Single rows, here and there: parts of chunks that are held or known to be good.
    for row in np.random.default_rng(0).permutation(len(data))[:60].tolist():
        np.testing.assert_array_equal(reader.read(row, row + 1), data[row : row + 1])
    reader.close()


@settings(max_examples=15)
@given(
    dtype=st.sampled_from(["uint8", "float32", "float64"]),
    shape=st.lists(st.integers(1, 4), max_size=2).map(tuple),
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    shard_rows=st.sampled_from([None, 1, 16, 64, 256]),
    chunk_bytes=st.sampled_from([64, 1 << 20]),
    data=st.data(),
)
def test_what_the_writer_wrote_reads_equal_both_ways(
    tmp_path_factory, dtype, shape, lengths, shard_rows, chunk_bytes, data
):
    path = tmp_path_factory.mktemp("written") / "d.zarr"
    with mock.patch("dask_rl.storage.blocking.MAX_CHUNK_BYTES", chunk_bytes):
        write_random(path, np.dtype(dtype), shape, lengths, shard_rows)
    dataset, group = OfflineDataset.open(path), zarr.open_group(path, mode="r")
    dataset.verify(deep=True)
    for field in dataset.arrays:
        stored = group[f"data/{field}"][:]
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, dataset.num_rows)] * 2)))
        np.testing.assert_array_equal(dataset.read(field, start, stop), stored[start:stop])
        np.testing.assert_array_equal(dataset.read(field, 0, dataset.num_rows), stored)


def write_random(path, dtype, shape, lengths, shard_rows):
    rng = np.random.default_rng(0)
    space = spaces.Box(0, 255, shape, dtype.type)
    with DatasetWriter(path, observation_space=space, action_space=spaces.Discrete(3), shard_rows=shard_rows) as writer:
        for length in lengths:
            flags = np.zeros(length, bool)
            observations = rng.integers(0, 255, (length + 1, *shape)).astype(dtype)
            columns = rng.integers(0, 3, length), rng.random(length), flags, flags
            writer.add_episode(Episode(observations, *columns))


def test_chunks_wholly_beyond_the_end_are_absent(tmp_path):
    with mock.patch("dask_rl.storage.blocking.MAX_CHUNK_BYTES", 64):
        write_random(tmp_path / "d.zarr", np.dtype("f4"), (3,), [40, 40], 64)
    dataset = OfflineDataset.open(tmp_path / "d.zarr")
    reader = dataset.reader("observations")
    assert reader.layout.chunks_per_shard == 4
    assert reader.stored_chunks(0).tolist() == [True] * 4
    assert reader.stored_chunks(1).tolist() == [True, True, False, False]  # rows 64 to 81


def test_out_must_fit(dataset):
    for out in (np.empty((5, 3)), np.empty((4, 3), np.float32), np.empty((5, 6), np.float32)[:, ::2]):
        with pytest.raises(ConfigError, match=r"out: got .*; allowed: contiguous float32 \(5, 3\)"):
            dataset.read("observations", 0, 5, out)


def test_rows_outside_and_unknown_fields(dataset):
    with pytest.raises(ConfigError, match=rf"rows: got \[0, {dataset.num_rows + 1}\)"):
        dataset.read("rewards", 0, dataset.num_rows + 1)
    with pytest.raises(ConfigError, match=r"field: got 'reward'; allowed: .*rewards"):
        dataset.read("reward", 0, 1)


def test_many_threads_read_the_same(dataset):
    wanted = {field: dataset.read(field, 0, dataset.num_rows) for field in dataset.arrays}
    faults: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            field = str(rng.choice(list(wanted)))
            start, stop = sorted(rng.integers(0, dataset.num_rows + 1, 2).tolist())
            if rng.random() < 0.05:
                dataset.close()
            if not np.array_equal(dataset.read(field, start, stop), wanted[field][start:stop]):
                faults.append(field)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def open_shards(dataset_path) -> list[str]:
    """Files below the dataset that this process holds open (other descriptors may come and go)."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(entry))
    return [link for link in links if link.startswith(f"{dataset_path}/")]


@pytest.fixture
def few_descriptors(monkeypatch):
    """As if the process had 100: a quarter of them is for shards."""
    monkeypatch.setattr("dask_rl.storage.reading.open_shards.resource.getrlimit", lambda _: (100, 100))


def test_more_shards_than_open_files(tmp_path, settings_of_pendulum, make_episodes, few_descriptors):
    with DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, shard_rows=4) as writer:
        writer.add_episodes(make_episodes(20))
    dataset = OfflineDataset.open(tmp_path / "d.zarr")
    stored = zarr.open_group(dataset.path, mode="r")["data/observations"][:]
    assert dataset.num_rows > 4 * 70
    assert not open_shards(dataset.path)
    np.testing.assert_array_equal(dataset.read("observations", 0, dataset.num_rows), stored)
    assert 0 < len(open_shards(dataset.path)) <= 25
    dataset.close()
    assert not open_shards(dataset.path)


def test_all_arrays_of_all_datasets_share_the_open_files(dataset, tmp_path, few_descriptors):
    for _ in range(9):
        with DatasetWriter(dataset.path, append=True) as writer:
            writer.add_episode(dataset.episode(0))
    grown, other = (OfflineDataset.open(dataset.path) for _ in range(2))
    wanted = {field: zarr.open_group(grown.path, mode="r")[f"data/{field}"][:] for field in grown.arrays}
    for _ in range(2):
        for field, rows in wanted.items():
            for opened in (grown, other):
                np.testing.assert_array_equal(opened.read(field, 0, grown.num_rows)[: len(rows)], rows)
    assert 20 < len(open_shards(dataset.path)) <= 25
    del opened, other
    grown.close()
    assert not open_shards(dataset.path)


def test_more_chunks_than_the_kernel_takes_in_one_call(tmp_path):
    data = np.arange(3000, dtype=np.uint8)
    array = zarr.create_group(tmp_path / "g.zarr").create_array(
        "x", shape=(3000,), shards=(4096,), chunks=(1,), dtype="u1", serializer=BytesCodec(),
        compressors=[Crc32cCodec()], config={"write_empty_chunks": True},
    )  # fmt: skip
    array[:] = data
    layout = parse_layout("x", json.loads((tmp_path / "g.zarr/x/zarr.json").read_text()))
    reader = ShardReader(LocalDirectory(tmp_path / "g.zarr"), layout)
    np.testing.assert_array_equal(reader.read(0, 3000), data)


def test_unknown_layouts_are_left_to_zarr_python():
    assert parse_layout("x", {}) is None
    assert parse_layout("x", {"codecs": [{"name": "bytes", "configuration": {}}], "shape": [3]}) is None


def test_layout_counts_chunks():
    layout = ArrayLayout("data/x", np.dtype("<f4"), (3,), num_rows=100, shard_rows=64, chunk_rows=16, compressed=False)
    assert layout.num_shards == 2
    assert [layout.chunks_in_shard(number) for number in range(2)] == [4, 3]
    assert layout.shard_key(1) == "data/x/c/1/0"
