"""Every fault is one line that names file, array, rows and the remedy."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import zarr

from dask_rl.storage import (
    CorruptDataError,
    DatasetWriter,
    InvalidDataError,
    OfflineDataset,
)
from dask_rl.storage.layout import crc32c, encode_index


def rot(path: Path, content: bytes) -> None:
    """Change a file as a bad disk does: no time in its directory entry tells."""
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    rot(path, content)


def recommit(root: Path, *keys: str) -> None:
    """Make the manifest agree with changed files, as a careless tool would."""
    commit = json.loads((root / "commit.json").read_text())
    for key in keys:
        content = (root / key).read_bytes()
        commit["objects"][key] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (root / "commit.json").write_text(json.dumps(commit))


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def link(path: Path) -> None:
    shutil.move(path, path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


OBSERVATIONS, REWARDS = "data/observations/c/1/0", "data/rewards/c/1"
AT_OPEN = {
    "deleted shard": (lambda root: (root / OBSERVATIONS).unlink(), "got no such file; allowed: "),
    "truncated shard": (lambda root: os.truncate(root / OBSERVATIONS, 100), "got 100 bytes; allowed: "),
    "empty shard": (lambda root: os.truncate(root / OBSERVATIONS, 0), "got 0 bytes; allowed: "),
    "longer shard": (lambda root: append(root / OBSERVATIONS), "bytes; allowed: "),
    "symlink": (lambda root: link(root / OBSERVATIONS), "got a symbolic link; allowed: plain files"),
}


@pytest.mark.parametrize("fault", AT_OPEN)
def test_found_when_opening(dataset, fault):
    spoil, message = AT_OPEN[fault]
    spoil(Path(dataset.path))
    with pytest.raises(CorruptDataError) as caught:
        OfflineDataset.open(dataset.path)
    text = str(caught.value)
    assert message in text
    assert OBSERVATIONS in text
    if fault != "symlink":
        assert "(observations, rows 64 to 127)" in text
    assert "import the source again" in text
    assert "\n" not in text


def drop_chunk(root: Path) -> None:
    """Take the only chunk out of a shard's index, checksums and all."""
    path = root / REWARDS
    content = path.read_bytes()
    index = np.full((1, 2), 2**64 - 1, np.uint64)
    rot(path, content[:-20] + encode_index(index))
    recommit(root, REWARDS)


def stretch_chunk(root: Path) -> None:
    path = root / REWARDS
    content = path.read_bytes()
    rot(path, content[:-20] + encode_index(np.array([[0, 2**40]], np.uint64)))
    recommit(root, REWARDS)


WHEN_READ = {
    "flip in the data": (lambda root: flip(root / REWARDS, 40), "checksum"),
    "flip in the chunk's checksum": (lambda root: flip(root / REWARDS, 64 * 4 + 1), "checksum"),
    "flip in the index": (lambda root: flip(root / REWARDS, -18), "a shard index with a wrong checksum"),
    "flip in the index checksum": (lambda root: flip(root / REWARDS, -1), "a shard index with a wrong checksum"),
    "missing chunk": (drop_chunk, "chunk"),
    "absurd length": (stretch_chunk, "1099511627776 bytes at 0"),
    "gone after the opening": (lambda root: (root / REWARDS).unlink(), "no such file"),
}


@pytest.mark.parametrize("fault", WHEN_READ)
@pytest.mark.parametrize("rows", [(0, 200), (70, 75)])
def test_found_when_read_and_by_a_deep_verification(dataset, fault, rows):
    spoil, message = WHEN_READ[fault]
    assert not dataset.contents.layouts["rewards"].compressed
    spoil(Path(dataset.path))
    with pytest.raises(CorruptDataError, match=message) as caught:
        dataset.read("rewards", *rows)
    text = str(caught.value)
    assert f"{REWARDS} in dataset {dataset.path} (rewards, rows 64 to 127)" in text
    assert "import the source again" in text
    assert "\n" not in text
    np.testing.assert_array_equal(dataset.read("rewards", 0, 64), zarr.open(dataset.path)["data/rewards"][:64])
    with pytest.raises(CorruptDataError, match=REWARDS):
        OfflineDataset.open(dataset.path).verify(deep=True)


def test_a_flip_in_compressed_data(dataset):
    assert dataset.contents.layouts["terminations"].compressed
    flip(Path(dataset.path, "data/terminations/c/2"), 3)
    with pytest.raises(CorruptDataError, match=r"terminations/c/2 .*\(terminations, rows 128 to 191\): got checksum"):
        dataset.read("terminations", 130, 140)
    dataset.read("terminations", 0, 128)


def test_an_absurd_length_in_compressed_data_reserves_no_memory(dataset):
    path = Path(dataset.path, "data/terminations/c/2")
    rot(path, path.read_bytes()[:-20] + encode_index(np.array([[0, 2**40]], np.uint64)))
    with pytest.raises(CorruptDataError, match=r"got 1099511627776 bytes at 0; allowed: a chunk inside the file"):
        dataset.read("terminations", 128, 192)


def test_a_chunk_beyond_the_last_row(tmp_path, settings_of_pendulum, make_episodes):
    with (
        mock.patch("dask_rl.storage.blocking.MAX_CHUNK_BYTES", 64),
        DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, shard_rows=1024) as writer,
    ):
        writer.add_episodes(make_episodes())
        dataset = writer.finish()
    layout, path = dataset.contents.layouts["rewards"], Path(dataset.path, "data/rewards/c/0")
    content = path.read_bytes()
    index = np.frombuffer(content[-layout.index_bytes : -4], "<u8").reshape(-1, 2).copy()
    index[-1] = index[0]
    path.write_bytes(content[: -layout.index_bytes] + encode_index(index))
    recommit(Path(dataset.path), "data/rewards/c/0")
    with pytest.raises(CorruptDataError, match=r"data/rewards/c/0 .*got a chunk beyond the last row"):
        OfflineDataset.open(dataset.path).verify(deep=True)


def test_a_stray_shard(dataset):
    stray = Path(dataset.path, "data/rewards/c/99")
    stray.write_bytes(b"x")
    with pytest.raises(CorruptDataError, match="data/rewards/c/99"):
        dataset.verify()


@pytest.mark.parametrize("key", ["commit.json", "zarr.json", "data/rewards/zarr.json"])
def test_absurdly_nested_metadata(dataset, key):
    Path(dataset.path, key).write_text("[" * 200_000)
    if key != "commit.json":
        recommit(Path(dataset.path), key)
    with pytest.raises(CorruptDataError, match=key):
        OfflineDataset.open(dataset.path)


def edit_metadata(dataset, field: str, edit) -> None:
    path = Path(dataset.path, f"data/{field}/zarr.json")
    metadata = json.loads(path.read_text())
    edit(metadata)
    path.write_text(json.dumps(metadata))
    recommit(Path(dataset.path), f"data/{field}/zarr.json")


def test_flags_and_rewards_of_another_type(dataset):
    edit_metadata(dataset, "terminations", lambda metadata: metadata.update(data_type="uint8"))
    with pytest.raises(CorruptDataError, match=r"data/terminations .*got uint8 rows .*; allowed: one bool a row"):
        OfflineDataset.open(dataset.path)


def test_a_chunk_that_would_take_all_memory(dataset):
    def grow(metadata):
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = [2**40]
        metadata["codecs"][0]["configuration"]["chunk_shape"] = [2**40]

    last = (dataset.num_rows - 1) // dataset.shard_rows
    edit_metadata(dataset, "terminations", grow)
    commit = json.loads(Path(dataset.path, "commit.json").read_text())
    for number in range(1, last + 1):
        del commit["objects"][f"data/terminations/c/{number}"]
    Path(dataset.path, "commit.json").write_text(json.dumps(commit))
    with pytest.raises(CorruptDataError, match=r"data/terminations .*got chunks of 1099511627776 bytes"):
        OfflineDataset.open(dataset.path)


def test_metadata_that_was_edited(dataset):
    path = Path(dataset.path, "data/rewards/zarr.json")
    text = path.read_text()
    path.write_text(text.replace("float32", "float16"))
    with pytest.raises(CorruptDataError, match=r"data/rewards/zarr.json .*got sha256"):
        OfflineDataset.open(dataset.path)
    path.write_text(text.replace("zstd", "blosc").replace("crc32c", "pickle"))
    recommit(Path(dataset.path), "data/rewards/zarr.json")
    with pytest.raises(CorruptDataError, match=r"got codec pickle; allowed: "):
        OfflineDataset.open(dataset.path)
    path.write_text(text.replace('"float32"', '"variable_length_utf8"'))
    recommit(Path(dataset.path), "data/rewards/zarr.json")
    with pytest.raises(CorruptDataError, match=r"got data type variable_length_utf8; allowed: "):
        OfflineDataset.open(dataset.path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda ends: ends - 1,  # the last is not the number of rows
        lambda ends: np.concatenate([[1], ends[1:]]),  # an episode of one row
        lambda ends: np.concatenate([ends[1::-1], ends[2:]]),  # backwards
    ],
)
def test_episode_ends_that_do_not_fit(dataset, edit):
    path = Path(dataset.path, "meta/episode_ends/c/0")
    raw = edit(dataset.episode_ends).astype("<i8").tobytes()
    path.write_bytes(raw + crc32c(raw).to_bytes(4, "little"))
    recommit(Path(dataset.path), "meta/episode_ends/c/0")
    with pytest.raises(CorruptDataError, match="got ends that do not fit"):
        OfflineDataset.open(dataset.path)


def overwrite_value(dataset, field: str, row: int, value) -> None:
    """Change one value with zarr-python and make every checksum agree again."""
    array = zarr.open_group(dataset.path, mode="r+")[f"data/{field}"]
    array[row] = value
    keys = [key for key in dataset.contents.commit.objects if key.startswith(f"data/{field}/c/")]
    recommit(Path(dataset.path), *keys)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite(dataset, value):
    overwrite_value(dataset, "rewards", 70, value)
    spoiled = OfflineDataset.open(dataset.path)
    spoiled.verify()
    episode = int(np.searchsorted(dataset.episode_ends, 70, side="right"))
    step = 70 - int(dataset.episode_starts[episode])
    place = (
        rf"{REWARDS} in dataset .* \(rewards, row 70, episode {episode}, step {step}\): got {value}; allowed: finite"
    )
    with pytest.raises(InvalidDataError, match=place) as caught:
        spoiled.verify(deep=True)
    assert "\n" not in str(caught.value)


def test_an_end_in_the_middle_and_a_final_row_that_is_not_empty(dataset):
    start = int(dataset.episode_starts[np.argmax(dataset.episode_lengths)])
    overwrite_value(dataset, "terminations", start, True)
    with pytest.raises(InvalidDataError, match="an end at an episode's last step only"):
        OfflineDataset.open(dataset.path).verify(deep=True)
    overwrite_value(dataset, "actions", int(dataset.episode_ends[0]) - 1, 1.0)
    with pytest.raises(InvalidDataError, match="0 in the row of a final observation"):
        OfflineDataset.open(dataset.path).verify(deep=True)
