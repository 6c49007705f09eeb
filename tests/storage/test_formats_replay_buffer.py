import json
from pathlib import Path
from typing import Any

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
