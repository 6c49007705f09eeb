from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import import_dataset

pytestmark = pytest.mark.data


def pack_array(value: Any) -> Any:
    if isinstance(value, np.generic):
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    return {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape, b"data": value.tobytes()}


def state(length: int = 3, **changes: Any) -> dict[str, Any]:
    """As an episode of RLlib gives it that was not turned to arrays: a list of values, one a step."""
    observations = [{"pose": np.full(2, t, np.float32), "seen": np.int64(t % 2)} for t in range(length + 1)]
    return {
        "id_": "ab12",
        "observations": {"data": observations, "lookback": 0},
        "actions": {"data": [np.int64(t % 3) for t in range(length)], "lookback": 0},
        "rewards": {"data": [float(t) for t in range(length)], "lookback": 0},
        "infos": {"data": [{}] * (length + 1), "lookback": 0},
        "extra_model_outputs": {
            "action_logp": {"data": np.full(length, -1.5, np.float32), "lookback": 0},
            "vf_preds": {"data": np.zeros(length, np.float32), "lookback": 0},
        },
        "is_terminated": True,
        "is_truncated": False,
        **changes,
    }


def write_items(path: Path, items: list[Any]) -> Path:
    packed = [item if isinstance(item, bytes) else msgpack.packb(item, default=pack_array) for item in items]
    pq.write_table(pyarrow.table({"item": packed}), path)
    return path


def test_episodes_in_lists_with_nested_observations(tmp_path: Path) -> None:
    chunk = state(2, is_terminated=False)
    source = write_items(tmp_path / "a.parquet", [state(), chunk])
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_steps, summary.num_terminated, summary.num_truncated) == (5, 1, 1)
    assert summary.left_out == ("infos", "vf_preds")
    assert "a chunk of a longer one, is truncated" in summary.rule
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        episode = dataset.episode(0)
        assert episode.observations["pose"][:, 0].tolist() == [0, 1, 2, 3]
        assert episode.observations["seen"].tolist() == [0, 1, 0, 1]
        assert episode.infos["behavior_logp"].tolist() == [-1.5] * 3
        assert dataset.has_final_observation.all()


@pytest.mark.parametrize(
    "item",
    [
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({"rewards": 1}),
        msgpack.packb(
            {**state(), "rewards": {"data": {b"nd": True, b"type": "|O", b"data": b"cos\nsystem\n"}}},
            default=pack_array,
        ),
        msgpack.packb(
            {**state(), "actions": {"data": {b"nd": True, b"type": "<f4", b"shape": (9,), b"data": b"1234"}}},
            default=pack_array,
        ),
        msgpack.packb(
            {**state(), "rewards": {"data": {b"nd": True, b"type": "(1,,2)i4", b"shape": (1,), b"data": b"1234"}}},
            default=pack_array,
        ),
        msgpack.packb({**state(), "extra_model_outputs": 5}, default=pack_array),
        msgpack.packb({**state(), "is_terminated": float("nan")}, default=pack_array),
        msgpack.packb({**state(), "actions": {"data": [0, 1, 2], "lookback": -1}}, default=pack_array),
    ],
)
def test_items_that_are_no_episode_are_named(item: bytes, tmp_path: Path) -> None:
    source = write_items(tmp_path / "a.parquet", [state(), item])
    with pytest.raises(SourceFormatError, match=r"a\.parquet, item 1: got a packed episode that cannot be read"):
        import_dataset(source, tmp_path / "d.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_a_first_item_with_odd_outputs_is_named(tmp_path: Path) -> None:
    source = write_items(tmp_path / "a.parquet", [state(extra_model_outputs=5)])
    with pytest.raises(SourceFormatError, match="item 0: got a packed episode that cannot be read"):
        import_dataset(source, tmp_path / "d.zarr")
