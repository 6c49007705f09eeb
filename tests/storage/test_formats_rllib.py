import base64
import gzip
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import lz4.frame
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.formats.ordering import order_episodes


def make_rows(lengths: dict[int, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of episodes {eps_id: length} with distinct observations; the reward of a row is its number."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("eps_id", "obs", "new_obs", "actions")}
    for eps_id, length in lengths.items():
        observations = rng.normal(size=(length + 1, 3)).astype(np.float32)
        columns["eps_id"].append(np.full(length, eps_id))
        columns["obs"].append(observations[:-1])
        columns["new_obs"].append(observations[1:])
        columns["actions"].append(rng.integers(0, 3, size=length))
    rows = {name: np.concatenate(parts) for name, parts in columns.items()}
    return {**rows, "rewards": np.arange(len(rows["eps_id"]), dtype=np.float64)}


def as_lists(rows: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in rows.items()}


def write_parts(folder: Path, rows: dict[str, np.ndarray], order: list[slice]) -> Path:
    folder.mkdir()
    for number, part in enumerate(order):
        table = pyarrow.table({name: column[part].tolist() for name, column in rows.items()})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=3)
    return folder


def rewards_of(path: Path) -> list[list[float]]:
    with OfflineDataset.open(path) as dataset:
        return [episode.rewards.tolist() for episode in dataset.episodes()]


def test_parts_out_of_order_are_put_together_by_continuity(tmp_path: Path) -> None:
    rows = make_rows({7: 9, 3: 6})
    order = [slice(10, 15), slice(5, 10), slice(0, 5)]  # each part is in order, the files are not
    source = write_parts(tmp_path / "parts", rows, order)
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_episodes, summary.num_truncated) == (2, 2)
    assert "every end is a truncation" in summary.rule
    assert rewards_of(tmp_path / "d.zarr") == [list(range(9, 15)), list(range(9))]
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.episode_ids.tolist() == [3, 7]
        np.testing.assert_array_equal(dataset.episode(1).observations[1:], rows["new_obs"][:9])


def test_a_column_t_orders_the_rows(tmp_path: Path) -> None:
    rows = make_rows({7: 9})
    rows["t"] = np.arange(9)
    shuffled = {name: column[[4, 0, 8, 2, 1, 3, 7, 6, 5]] for name, column in rows.items()}
    source = write_parts(tmp_path / "parts", shuffled, [slice(0, 9)])
    assert "ordered by t" in import_dataset(source, tmp_path / "d.zarr").rule
    assert rewards_of(tmp_path / "d.zarr") == [list(range(9))]


def test_broken_continuity_and_flags_end_episodes(tmp_path: Path) -> None:
    rows = make_rows({7: 12})
    rows["new_obs"][3] += 1.0  # rows 4… do not follow row 3
    rows["terminateds"] = np.arange(12) == 7
    rows["truncateds"] = np.arange(12) == 11
    source = write_parts(tmp_path / "parts", rows, [slice(0, 12)])
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert rewards_of(tmp_path / "d.zarr") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert (summary.num_terminated, summary.num_truncated) == (1, 2)


def test_rows_that_cannot_be_ordered_are_refused(tmp_path: Path) -> None:
    rows = make_rows({7: 12})
    rows["new_obs"] += 1.0
    source = write_parts(tmp_path / "parts", rows, [slice(0, 12)])
    with pytest.raises(SourceFormatError, match="add a column t"):
        import_dataset(source, tmp_path / "d.zarr")


def test_ordering_survives_a_circle_and_equal_observations() -> None:
    states = np.array([[0.0], [1.0], [0.0], [1.0], [0.0]])
    pieces = order_episodes(states[:-1], states[1:], None, np.zeros(4, dtype=bool), "x")
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3]]
    swapped = np.array([2, 3, 0, 1])
    pieces = order_episodes(states[:-1][swapped], states[1:][swapped], None, np.zeros(4, dtype=bool), "x")
    assert sorted(np.concatenate(pieces).tolist()) == [0, 1, 2, 3]
    loop = np.array([[0.0], [5.0], [1.0]]), np.array([[5.0], [1.0], [0.0]])
    reordered = [column[[1, 0, 2]] for column in loop]
    pieces = order_episodes(reordered[0], reordered[1], None, np.zeros(3, dtype=bool), "x")
    assert sorted(np.concatenate(pieces).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("times", [[0] * 12, [2 * step for step in range(12)]])
def test_steps_whose_numbers_do_not_follow_each_other_are_refused(times: list[int], tmp_path: Path) -> None:
    rows = {**make_rows({7: 12}), "t": np.array(times)}
    source = write_parts(tmp_path / "parts", rows, [slice(0, 12)])
    with pytest.raises(SourceFormatError, match="add a column t with the number of the step, or correct it"):
        import_dataset(source, tmp_path / "d.zarr")


def test_episodes_of_one_step_may_share_an_id(tmp_path: Path) -> None:
    rows = make_rows({7: 12})
    rows["new_obs"] += 1.0
    rows["dones"] = np.arange(12) < 11
    source = write_parts(tmp_path / "parts", rows, [slice(0, 12)])
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_episodes, summary.num_terminated, summary.num_truncated) == (12, 11, 1)


def test_an_end_with_both_flags_counts_once(tmp_path: Path) -> None:
    rows = make_rows({7: 4, 8: 3})
    rows["terminateds"] = np.array([0, 0, 0, 1, 0, 0, 0], bool)
    rows["truncateds"] = np.array([0, 0, 0, 1, 0, 0, 1], bool)
    source = write_parts(tmp_path / "parts", rows, [slice(0, 7)])
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_terminated, summary.num_truncated) == (1, 1)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.episode_truncations.all()
        assert dataset.describe()["num_truncated"] == 1


def test_ids_beyond_63_bits_are_replaced_by_numbers(tmp_path: Path) -> None:
    rows = make_rows({7: 4, 8: 3})
    table = pyarrow.table({**as_lists(rows), "eps_id": pyarrow.array([2**63 + 5] * 4 + [8] * 3, pyarrow.uint64())})
    pq.write_table(table, tmp_path / "one.parquet")
    import_dataset(tmp_path / "one.parquet", tmp_path / "d.zarr")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.episode_ids.tolist() == [0, 8]


def test_columns_that_only_some_parts_have_are_reported(tmp_path: Path) -> None:
    rows = as_lists(make_rows({7: 4, 8: 3}))
    lines = [{name: column[part] for name, column in rows.items()} for part in (slice(0, 4), slice(4, 7))]
    lines[1]["action_logp"] = [0.5] * 3
    (tmp_path / "a.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert import_dataset(tmp_path / "a.json", tmp_path / "a.zarr").left_out == ("action_logp",)
    (tmp_path / "parts").mkdir()
    for number, line in enumerate(lines):
        pq.write_table(pyarrow.table(line), tmp_path / f"parts/{number}.parquet")
    assert import_dataset(tmp_path / "parts", tmp_path / "b.zarr").left_out == ("action_logp",)


def test_a_compressed_file_is_unpacked_a_few_times_and_not_once_a_line(tmp_path: Path) -> None:
    rows = as_lists(make_rows({7: 4}))
    lines = (json.dumps({**rows, "eps_id": [number] * 4}) for number in range(50))
    source = tmp_path / "a.json.gz"
    source.write_bytes(gzip.compress("\n".join(lines).encode()))
    with mock.patch("gzip.open", side_effect=gzip.open) as opened:
        assert import_dataset(source, tmp_path / "d.zarr").num_episodes == 50
    assert opened.call_count < 5


def test_keys_of_different_lengths_are_named(tmp_path: Path) -> None:
    rows = {**as_lists(make_rows({7: 4})), "agent_index": [0, 0, 0]}
    with pytest.raises(SourceFormatError, match=r"a\.json, line 1: got columns of .*; allowed: one length"):
        import_dataset(write_json(tmp_path / "a.json", rows), tmp_path / "d.zarr")


def test_keys_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    rows = as_lists(make_rows({1: 3})) | {"eps_id": [[], [], []]}
    (tmp_path / "rows.json").write_text(json.dumps({"type": "SampleBatch", **rows}))
    with pytest.raises(
        SourceFormatError, match=r"column 'eps_id': got a column of shape \(3, 0\); allowed: 3 numbers, one a row"
    ):
        import_dataset(tmp_path / "rows.json", tmp_path / "d.zarr")


def test_a_line_that_would_take_all_memory(tmp_path: Path) -> None:
    source = write_json(tmp_path / "a.json.gz", as_lists(make_rows({7: 4})))
    limited = mock.patch("dask_rl.storage.formats.rllib_json._MAX_LINE_BYTES", 100)
    with limited, pytest.raises(SourceFormatError, match="line 1: got more than 100 bytes; allowed: at most 100"):
        import_dataset(source, tmp_path / "d.zarr", format="rllib")


def test_agents_of_one_episode_are_kept_apart(tmp_path: Path) -> None:
    rows = make_rows({7: 4, 8: 4})
    rows["agent_index"] = rows["eps_id"] - 7
    rows["eps_id"][:] = 7
    source = write_parts(tmp_path / "parts", rows, [slice(0, 8)])
    import_dataset(source, tmp_path / "d.zarr")
    assert rewards_of(tmp_path / "d.zarr") == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_tensor_columns_get_their_shape(tmp_path: Path) -> None:
    rows = make_rows({7: 4})
    rows["obs"] = np.arange(24, dtype=np.float32).reshape(4, 6)
    rows["new_obs"] = rows["obs"] + 6
    metadata = {b"ARROW:extension:metadata": b"[2, 3]", b"ARROW:extension:name": b"ray.data.arrow_tensor"}
    table = pyarrow.table(as_lists(rows))
    for name in ("obs", "new_obs"):
        at = table.schema.get_field_index(name)
        kind = pyarrow.list_(pyarrow.float32())
        table = table.set_column(at, pyarrow.field(name, kind, metadata=metadata), table[name].cast(kind))
    pq.write_table(table, tmp_path / "one.parquet")
    import_dataset(tmp_path / "one.parquet", tmp_path / "d.zarr")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        np.testing.assert_array_equal(dataset.episode(0).observations, np.arange(30).reshape(5, 2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": None}, "no column actions"),
        ({name: pyarrow.array([], pyarrow.int64()) for name in make_rows({7: 1})}, "got no rows"),
        ({"obs": [[1.0, 2.0], [1.0], [1.0, 2.0], [1.0, 2.0]]}, "column 'obs': got rows of different lengths"),
        ({"actions": ["a", "b", "c", "d"]}, "column 'actions': got string"),
        ({"item": [b"x"] * 4}, "item 0: got a packed episode that cannot be read"),
        ({"actions": [0, -1, 1, 0]}, "integers down to -1"),
        ({"eps_id": [7, None, 7, 7]}, "column 'eps_id': got 1 missing values"),
        ({"dones": [False, None, False, True]}, "column 'dones': got 1 missing values"),
    ],
)
def test_parquet_that_cannot_be_read_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = {**as_lists(make_rows({7: 4})), **change}
    pq.write_table(pyarrow.table({k: v for k, v in rows.items() if v is not None}), tmp_path / "one.parquet")
    with pytest.raises(SourceFormatError, match=message):
        import_dataset(tmp_path / "one.parquet", tmp_path / "d.zarr")
    assert not list(tmp_path.glob("*.zarr*")) + list(tmp_path.glob(".*"))


def pack(array: np.ndarray, protocol: int = 5) -> str:
    return base64.b64encode(lz4.frame.compress(pickle.dumps(array, protocol=protocol))).decode()


def write_json(path: Path, rows: dict[str, Any], **wrapping: Any) -> Path:
    line = json.dumps({"type": "SampleBatch", **rows})
    line = json.dumps({"value": line}) if wrapping.get("value") else line
    line = (
        json.dumps({"type": "MultiAgentBatch", "policy_batches": {p: json.loads(line) for p in wrapping["policies"]}})
        if "policies" in wrapping
        else line
    )
    data = (line + "\n\n").encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inner.json", data)
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.json.zip"])
@pytest.mark.parametrize("wrapping", [{}, {"value": True}, {"policies": ["p"]}])
def test_json_in_its_wrappings(name: str, wrapping: dict[str, Any], tmp_path: Path) -> None:
    rows = make_rows({7: 4, 8: 3})
    packed = {**as_lists(rows), "obs": pack(rows["obs"]), "infos": [{}] * 7, "action_prob": [0.5] * 7}
    source = write_json(tmp_path / name, packed, **wrapping)
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert summary.action_space == "Discrete(3)"
    assert summary.left_out == ("infos",)
    assert rewards_of(tmp_path / "d.zarr") == [[0, 1, 2, 3], [4, 5, 6]]
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        np.testing.assert_allclose(dataset.episode(1).infos["behavior_logp"], np.log([0.5] * 3), rtol=1e-6)
        np.testing.assert_array_equal(dataset.episode(1).observations[:-1], rows["obs"][4:])


def test_several_policies_and_mixed_directories_are_refused(tmp_path: Path) -> None:
    rows = as_lists(make_rows({7: 4}))
    source = write_json(tmp_path / "two.json", rows, policies=["a", "b"])
    with pytest.raises(SourceFormatError, match=r"two\.json, line 1: got policies \['a', 'b'\]; allowed: one policy"):
        import_dataset(source, tmp_path / "d.zarr", format="rllib")
    pq.write_table(pyarrow.table(rows), tmp_path / "one.parquet")
    with pytest.raises(SourceFormatError, match="got 1 Parquet and 1 JSON files"):
        import_dataset(tmp_path, tmp_path / "d.zarr")
