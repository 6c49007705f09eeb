"""Each way in which stores of arrays lose data without a word: found, with file, array and rows, or impossible.

Here in a directory and behind a URL; what is particular to one of them is in test_faults.py, test_foreign.py,
test_replaced.py, test_remote_reader.py and test_remote_writer.py.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr

from dask_rl.storage import CorruptDataError, DatasetError, DatasetWriter, OfflineDataset
from dask_rl.storage.layout import encode_index

pytestmark = pytest.mark.data

REWARDS = "data/rewards/c/1"
SUPPORT = Path(__file__).parents[1] / "support"
ROWS = r"data/rewards/c/1 .*\(rewards, rows 64 to 127\)|data/rewards/c/1 \(rewards, rows 64 to 127\) in dataset"


def edit(root: Path, key: str, change, *, recommit: bool = True) -> None:
    """Change a file; the manifest agrees, as after a careless tool, or does not."""
    content = bytes(change((root / key).read_bytes()))
    (root / key).write_bytes(content)
    if recommit:
        commit = json.loads((root / "commit.json").read_text())
        commit["objects"][key] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (root / "commit.json").write_text(json.dumps(commit))


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 0x10
    return bytes(changed)


def without_chunks(content: bytes) -> bytes:
    return content[:-20] + encode_index(np.full((1, 2), 2**64 - 1, np.uint64))


def metadata(**changes):
    def change(content: bytes) -> bytes:
        return json.dumps(json.loads(content) | changes).encode()

    return change


def codec(content: bytes) -> bytes:
    return content.replace(b'"crc32c"', b'"pickle"')


def consolidated(content: bytes) -> bytes:
    """What the root says of an array is what it was before something was appended."""
    root = json.loads(content)
    root["consolidated_metadata"]["metadata"]["data/rewards"]["shape"] = [64]
    return json.dumps(root).encode()


def forget(root: Path, key: str) -> None:
    commit = json.loads((root / "commit.json").read_text())
    del commit["objects"][key]
    (root / "commit.json").write_text(json.dumps(commit))


ARRAY = "data/rewards/zarr.json"
# How it is done, and what is said; most are found when the dataset is opened, the others when rows are read.
LOSSES = {
    "missing shard": (lambda root: (root / REWARDS).unlink(), ROWS),
    "missing shard, and nobody listed it": (
        lambda root: ((root / REWARDS).unlink(), forget(root, REWARDS)),
        r"data/rewards in dataset .*got 4 shards in commit.json; allowed: 5 shards",
    ),
    "zero-length shard": (lambda root: edit(root, REWARDS, lambda c: b"", recommit=False), ROWS),
    "truncated shard": (lambda root: edit(root, REWARDS, lambda c: c[:100], recommit=False), ROWS),
    "truncated shard, and the manifest agrees": (lambda root: edit(root, REWARDS, lambda c: c[:100]), ROWS),
    "missing inner chunk": (lambda root: edit(root, REWARDS, without_chunks), ROWS),
    "bit flip in the data": (lambda root: edit(root, REWARDS, lambda c: flipped(c, 40)), ROWS),
    "bit flip in the index": (lambda root: edit(root, REWARDS, lambda c: flipped(c, -18)), ROWS),
    "bit flip in metadata": (
        lambda root: edit(root, ARRAY, lambda c: flipped(c, 10), recommit=False),
        r"data/rewards/zarr.json in dataset .*got sha256",
    ),
    "a shape beyond the data": (
        lambda root: edit(root, ARRAY, metadata(shape=[2**40])),
        r"data/rewards/zarr.json in dataset .*got shape \[1099511627776\]",
    ),
    "a shape of nothing": (lambda root: edit(root, ARRAY, metadata(shape=[0])), r"data/rewards/zarr.json .*got shape"),
    "a negative shape": (lambda root: edit(root, ARRAY, metadata(shape=[-1])), r"data/rewards/zarr.json .*got shape"),
    "an object dtype": (lambda root: edit(root, ARRAY, metadata(data_type="object")), r"zarr.json .*got data type obj"),
    "a pickle codec": (lambda root: edit(root, ARRAY, codec), r"data/rewards/zarr.json .*got codec pickle"),
    "a path that leads outside": (
        lambda root: edit(root, "commit.json", lambda c: c.replace(REWARDS.encode(), b"../../secret"), recommit=False),
        r"commit.json in dataset .*lies outside",
    ),
    "no manifest": (lambda root: (root / "commit.json").unlink(), r"commit.json in dataset .*got no such file"),
}


@pytest.fixture(params=["directory", "URL"])
def place(request):
    """Returns what to open for the files in a directory."""
    if request.param == "directory":
        yield lambda root: root
        return
    files = fsspec.filesystem("memory")

    def copy(root: Path) -> str:
        files.put(str(root), "/losses/data.zarr", recursive=True)
        return "memory://losses/data.zarr"

    yield copy
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.mark.parametrize("loss", LOSSES)
def test_found(dataset, place, loss):
    spoil, message = LOSSES[loss]
    spoil(Path(dataset.path))
    with pytest.raises(CorruptDataError, match=message) as caught, OfflineDataset.open(place(dataset.path)) as spoiled:
        spoiled.read("rewards", 70, 80)
    assert "\n" not in str(caught.value)


def test_stale_consolidated_metadata_is_not_believed(dataset, place):
    wanted = dataset.read("rewards", 0, dataset.num_rows)
    edit(Path(dataset.path), "zarr.json", consolidated)
    with OfflineDataset.open(place(dataset.path)) as opened:
        np.testing.assert_array_equal(opened.read("rewards", 0, dataset.num_rows), wanted)
        opened.verify(deep=True)


def test_what_another_tool_appended_or_cut_in_place_is_refused(dataset, place):
    array = zarr.open_group(dataset.path, mode="r+")["data/rewards"]
    array.append(np.ones(70, np.float32))
    with pytest.raises(CorruptDataError, match=r"data/rewards/\S+ .*got "):
        OfflineDataset.open(place(dataset.path))


def test_shards_that_two_writers_share_cannot_be(tmp_path, settings_of_pendulum, make_episodes):
    """Rows of one shard come from one writer: a second one is told, and its rows are in a dataset of their own."""
    first = DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, shard_rows=64)
    first.add_episodes(make_episodes(5))
    with pytest.raises(DatasetError, match="another process that writes it now"):
        DatasetWriter(tmp_path / "d.zarr", **settings_of_pendulum, shard_rows=32)
    assert first.finish().num_episodes == 5


@pytest.mark.parametrize(
    ("how", "stride"),
    [
        ("local", 131),
        ("remote", 61),
        pytest.param("local", 3, marks=pytest.mark.storm),
        pytest.param("remote", 3, marks=pytest.mark.storm),
    ],
)
def test_kill_9_in_every_phase_of_writing(tmp_path, how, stride):
    """Before and after every call that changes the disk, or the store: complete or not at all, and then completed."""
    program = [sys.executable, str(SUPPORT / "killed_writers.py"), str(tmp_path), how, str(stride)]
    result = subprocess.run(program, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > (1 if stride > 3 else 20)
