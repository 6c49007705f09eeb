"""A manifest or metadata that a bad tool or a bad person wrote: refused in one line, before anything of its size."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec

from dask_rl.storage import CorruptDataError, DatasetError, OfflineDataset
from dask_rl.storage.spaces import space_from_json

KEY = "data/rewards/zarr.json"


def recommit(root: Path, *keys: str) -> None:
    """Make the manifest agree with changed files, as a careless tool would."""
    commit = json.loads((root / "commit.json").read_text())
    for key in keys:
        content = (root / key).read_bytes()
        commit["objects"][key] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (root / "commit.json").write_text(json.dumps(commit))


def sharding(metadata) -> dict:
    return metadata["codecs"][0]["configuration"]


def set_shards(rows):
    def edit(metadata):
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = [rows]

    return edit


EDITS = {
    "an endless shape": (lambda it: it.update(shape=[math.inf]), "got metadata that is incomplete"),
    "a fill value that is no JSON": (lambda it: it.update(fill_value=math.nan), "got numbers that JSON lacks"),
    "a codec without settings": (
        lambda it: sharding(it)["codecs"][0].update(configuration=None),
        "got an array that is stored in another way",
    ),
    "a codec that is a number": (lambda it: it.update(codecs=[3]), "got metadata that is incomplete"),
    "gzip": (lambda it: sharding(it)["codecs"].insert(1, {"name": "gzip"}), "got codec gzip; allowed: "),
    "no checksums": (lambda it: sharding(it)["codecs"].pop(), "got an array that is stored in another way"),
    "no shards": (
        lambda it: it.update(codecs=[{"name": "bytes", "configuration": {"endian": "little"}}]),
        "got an array that is stored in another way",
    ),
    "other shards": (set_shards(128), r"got shards of 128 rows; allowed: 64 as in commit\.json"),
    "endless shards": (set_shards(2**62), r"got shards of 4611686018427387904 rows"),
    "smaller chunks": (lambda it: sharding(it).update(chunk_shape=[16]), r"c/0 .*got 280 bytes in commit\.json"),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_array_that_no_writer_of_ours_makes(dataset, case):
    edit, message = EDITS[case]
    path = Path(dataset.path, KEY)
    metadata = json.loads(path.read_text())
    edit(metadata)
    path.write_text(json.dumps(metadata))
    recommit(Path(dataset.path), KEY)
    with pytest.raises(CorruptDataError, match=message) as caught:
        OfflineDataset.open(dataset.path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("codecs", [[GzipCodec()], [GzipCodec(), Crc32cCodec()]])
def test_fill_values_never_stand_for_chunks_that_are_lost(dataset, codecs):
    """One of four chunks is there: zarr-python reads zeros in place of the others."""
    store = zarr.storage.LocalStore(Path(dataset.path, "data/rewards"))
    rows = dataset.num_rows
    array = zarr.create_array(
        store, shape=(rows,), shards=(64,), chunks=(16,), dtype="f4", compressors=codecs, fill_value=0.0,
        serializer=BytesCodec(endian="little"), overwrite=True,
    )  # fmt: skip
    for start in range(0, rows, 64):
        array[start : start + 16] = 1.0
    recommit(Path(dataset.path), KEY, *(f"data/rewards/c/{i}" for i in range(-(-rows // 64))))
    with pytest.raises(CorruptDataError, match="got codec gzip"):
        OfflineDataset.open(dataset.path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard_rows": 1}, "got shards of 64 rows; allowed: 1 as in commit.json"),
        ({"shard_rows": 128}, "got shards of 64 rows; allowed: 128 as in commit.json"),
        ({"generation": 7}, "generation 7 of a dataset with 0 segments"),
        ({"num_rows": 100}, "got .* rows; allowed: 100 rows"),
    ],
)
def test_numbers_of_the_manifest_that_were_changed(dataset, changes, message):
    path = Path(dataset.path, "commit.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CorruptDataError, match=message):
        OfflineDataset.open(dataset.path)


@pytest.mark.parametrize("length", [2**25, 2**45])
def test_negative_lengths_offset_no_others(length):
    box = {"type": "Box", "dtype": "float32", "low": 0, "high": 1}
    space = {"type": "Dict", "subspaces": {"a": {**box, "shape": [-length]}, "b": {**box, "shape": [length]}}}
    with pytest.raises(DatasetError, match=f"an axis of length -{length}"):
        space_from_json(space)
