import json
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import import_dataset

pytestmark = pytest.mark.data


def write_buffer(path: Path, ends: tuple[int, ...] = (3, 7), num_rows: int = 7, **arrays: Any) -> Path:
    root = zarr.create_group(path, zarr_format=2)
    found = {
        "action": np.ones((num_rows, 2), np.float32),
        "state": np.arange(1.0, num_rows + 1, dtype=np.float32)[:, None],
    }
    for name, values in {**found, **arrays}.items():
        chunks = (3, *values.shape[1:])
        array = root.create_array(f"data/{name}", shape=values.shape, chunks=chunks, dtype=values.dtype)
        array[:] = values
    array = root.create_array("meta/episode_ends", shape=(len(ends),), dtype="i8")
    array[:] = ends
    return path


def test_several_arrays_are_nested_observations_and_missing_rewards_are_told(tmp_path: Path) -> None:
    source = write_buffer(tmp_path / "b.zarr", ends=(3, 6), img=np.ones((7, 8, 8, 3), np.uint8))
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_steps, summary.num_episodes, summary.num_truncated, summary.return_mean) == (6, 2, 2, 0)
    assert "no rewards: all are 0" in summary.rule
    assert "no flags: every end is a truncation" in summary.rule
    assert "no final observations" in summary.rule
    assert summary.notes == ("1 rows after the last of meta/episode_ends were left out",)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        observations = dataset.episode(1).observations
        assert observations["state"][:, 0].tolist() == [4, 5, 6, 6]
        assert observations["img"].shape == (4, 8, 8, 3)
        assert observations["img"].dtype == np.uint8


def test_a_missing_chunk_is_no_chunk_of_zeros(tmp_path: Path) -> None:
    source = write_buffer(tmp_path / "b.zarr")
    (source / "data/state/1.0").unlink()
    with pytest.raises(SourceFormatError, match="data/state: got 2 of 3 chunks; allowed: all chunks"):
        import_dataset(source, tmp_path / "d.zarr")


def test_what_only_stands_in_for_a_chunk_is_none(tmp_path: Path) -> None:
    for case, name in (("other", "1.0.bak"), ("outside", "9.0"), ("part", "1.0.partial")):
        source = write_buffer(tmp_path / f"{case}.zarr")
        (source / "data/state/1.0").rename(source / "data/state" / name)
        message = "data/state: got (2 of 3 chunks|no chunk 1.0 beside others)"
        with pytest.raises(SourceFormatError, match=message):
            import_dataset(source, tmp_path / "d.zarr")
    source = write_buffer(tmp_path / "sound.zarr")
    (source / "data/state/notes.txt").write_text("mine")
    assert import_dataset(source, tmp_path / "d.zarr").num_steps == 7


def zipped(folder: Path, path: Path, twice: str | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())
        if twice is not None:
            archive.writestr(twice, (folder / twice).read_bytes())
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_in_a_zip_counts_once(tmp_path: Path) -> None:
    source = write_buffer(tmp_path / "b.zarr")
    assert import_dataset(zipped(source, tmp_path / "b.zarr.zip"), tmp_path / "d.zarr").num_steps == 7
    (source / "data/state/1.0").unlink()
    with pytest.raises(SourceFormatError, match="data/state: got 2 of 3 chunks"):
        import_dataset(zipped(source, tmp_path / "c.zarr.zip", "data/state/0.0"), tmp_path / "e.zarr")


CODECS = {
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "bz2": numcodecs.BZ2(1),
    "lzma": numcodecs.LZMA(),
    "zstd": numcodecs.Zstd(1),
    "lz4": numcodecs.LZ4(),
    "blosc": numcodecs.Blosc(),
    "none": None,
}


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_larger_than_the_array_says_are_refused_unread(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_buffer(tmp_path / "b.zarr")
    group = zarr.open_group(source, zarr_format=2)
    for name in ("state", "action"):
        values = group["data"][name][:]
        del group["data"][name]
        array = group["data"].create_array(
            name, shape=values.shape, chunks=(3, values.shape[1]), dtype="f4", compressors=CODECS[codec]
        )
        array[:] = values
    assert import_dataset(source, tmp_path / "d.zarr").num_steps == 7
    large = np.zeros(2**20, np.uint8)
    data = large.tobytes() if CODECS[codec] is None else bytes(CODECS[codec].encode(large))
    (source / "data/state/0.0").write_bytes(data)
    monkeypatch.setattr(zarr.Array, "__getitem__", None)
    with pytest.raises(SourceFormatError, match=r"data/state: chunk 0\.0: got .* bytes.*; allowed: 12 bytes"):
        import_dataset(source, tmp_path / "e.zarr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunks": [2**40, 1]}, f"got chunks of {2**42} bytes"),
        ({"shape": [2**60, 1]}, "got 3 of 384307168202282326 chunks"),
        ({"dtype": "(1,,2)i4"}, "got an unreadable Zarr v2 group"),
        ({"filters": [{"id": "gzip", "level": 1}]}, "got codec gzip"),
        ({"filters": [{"id": "astype", "encode_dtype": "u1", "decode_dtype": "S999999"}]}, "of other values than num"),
    ],
)
def test_absurd_metadata_are_refused_before_anything_of_their_size(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = write_buffer(tmp_path / "b.zarr")
    path = source / "data/state/.zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SourceFormatError, match=message):
        import_dataset(source, tmp_path / "d.zarr")


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    source = write_buffer(tmp_path / "b.zarr")
    root = zarr.open_group(source, zarr_format=2)
    for name in ("data/deep/x", "meta/seed", "more/x"):
        root.create_array(name, shape=(7,), dtype="f4")[:] = 1
    root.create_array("data/text", shape=(7,), dtype="S3", chunks=(7,))[:] = b"abc"
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert summary.left_out == ("data/deep", "data/text", "meta/seed", "more")


@pytest.mark.parametrize(("one", "other"), [("action", "actions"), ("reward", "rewards")])
def test_two_spellings_are_refused(one: str, other: str, tmp_path: Path) -> None:
    values = np.ones((7, 2), np.float32) if one == "action" else np.ones(7, np.float32)
    source = write_buffer(tmp_path / "b.zarr", **{one: values, other: values})
    with pytest.raises(SourceFormatError, match=f"data: got both {one} and {other}"):
        import_dataset(source, tmp_path / "d.zarr")


def test_damaged_ends_are_named(tmp_path: Path) -> None:
    source = write_buffer(tmp_path / "b.zarr")
    ends = source / "meta/episode_ends/0"
    ends.write_bytes(ends.read_bytes()[:16] + bytes([255]) * (ends.stat().st_size - 16))
    with pytest.raises(
        SourceFormatError, match=r"b\.zarr/meta/episode_ends: got an unreadable|got meta/episode_ends up to"
    ):
        import_dataset(source, tmp_path / "d.zarr")


def test_a_codec_that_would_unpickle_is_refused(tmp_path: Path) -> None:
    source = write_buffer(tmp_path / "b.zarr")
    described = json.loads((source / "data/state/.zarray").read_text())
    described |= {"dtype": "|O", "filters": [{"id": "pickle", "protocol": 5}], "fill_value": None}
    for dtype in ("|O", "<f4"):
        (source / "data/state/.zarray").write_text(json.dumps(described | {"dtype": dtype}))
        (source / "data/state/0.0").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
        with pytest.raises(SourceFormatError, match=r"codec pickle|unreadable Zarr"):
            import_dataset(source, tmp_path / "d.zarr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ends": (3, 3)}, "got meta/episode_ends up to 3 for 7 rows"),
        ({"ends": (3, 8)}, "got meta/episode_ends up to 8 for 7 rows"),
        ({"reward": np.ones(6)}, "got rows .*'reward': 6"),
    ],
)
def test_ends_and_lengths_that_do_not_fit(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write_buffer(tmp_path / "b.zarr", **change)
    with pytest.raises(SourceFormatError, match=message):
        import_dataset(source, tmp_path / "d.zarr")


def test_real_pusht(sample_data: Path, tmp_path: Path) -> None:
    source = sample_data / "zarr_v2/pusht_cchi_v7_replay.zarr"
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_steps, summary.num_episodes, summary.num_terminated) == (25_650, 206, 0)
    assert (summary.return_min, summary.return_max) == (0, 0)
    assert "no rewards" in summary.rule
    group = zarr.open_group(source, mode="r", zarr_format=2)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert list(dataset.observation_space) == ["keypoint", "n_contacts", "state"]
        ends = group["meta/episode_ends"][:]
        for number in (0, 1, 100, 205):
            rows, episode = slice(ends[number - 1] if number else 0, ends[number]), dataset.episode(number)
            np.testing.assert_array_equal(episode.observations["keypoint"][:-1], group["data/keypoint"][rows])
            np.testing.assert_array_equal(episode.actions, group["data/action"][rows])
