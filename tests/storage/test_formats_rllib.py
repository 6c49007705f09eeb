import base64
import gzip
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import ImportOptions, ImportSummary, import_dataset
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
        ({"obs": [[1.0, 2.0], [1.0], [1.0, 2.0], [1.0, 2.0]]}, "column 'obs': got rows of different lengths"),
        ({"actions": ["a", "b", "c", "d"]}, "column 'actions': got string"),
        ({"item": [b"x"] * 4}, "packed episodes in a column 'item'"),
        ({"actions": [0, -1, 1, 0]}, "integers down to -1"),
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


def import_sample(sample_data: Path, name: str, dest: Path, **options: Any) -> ImportSummary:
    return import_dataset(sample_data / "rllib" / name, dest, options=ImportOptions(**options))


def figures(summary: ImportSummary) -> tuple[int, int, int, int, int]:
    counts = (summary.num_steps, summary.num_episodes, summary.num_terminated, summary.num_truncated)
    return (*counts, round(summary.return_mean))


def test_real_cartpole(sample_data: Path, tmp_path: Path) -> None:
    parquet = import_sample(sample_data, "cartpole/cartpole-v1_large", tmp_path / "parquet.zarr")
    assert figures(parquet) == (4137, 21, 21, 0, 197)
    assert (parquet.return_min, parquet.return_max) == (137, 200)
    assert parquet.action_space == "Discrete(2)"
    limited = import_sample(sample_data, "cartpole/cartpole-v1_large", tmp_path / "limited.zarr", max_episode_steps=200)
    assert figures(limited) == (4137, 21, 1, 20, 197)
    lines = import_sample(sample_data, "cartpole/large.json", tmp_path / "json.zarr")
    assert figures(lines) == figures(parquet)
    with (
        OfflineDataset.open(tmp_path / "parquet.zarr") as left,
        OfflineDataset.open(tmp_path / "json.zarr") as right,
    ):
        assert left.episode_ids.tolist() == right.episode_ids.tolist()
        assert left.arrays.keys() == right.arrays.keys() > {"infos/behavior_logp"}
        for field in left.arrays:
            np.testing.assert_array_equal(left.read(field, 0, left.num_rows), right.read(field, 0, right.num_rows))
    small = import_sample(sample_data, "cartpole/small.json", tmp_path / "small.zarr")
    assert (small.num_steps, small.num_episodes) == (102, 3)


def test_real_pendulum_actions_are_torques_once_mapped(sample_data: Path, tmp_path: Path) -> None:
    name, dest = "pendulum/pendulum-v1_enormous", tmp_path / "d.zarr"
    summary = import_sample(sample_data, name, dest, environment="Pendulum-v1", normalized_actions=True)
    assert figures(summary) == (16231, 82, 0, 82, -143)
    assert round(summary.return_min) == -364
    assert round(summary.return_max, 2) == -0.34
    with OfflineDataset.open(dest) as dataset:
        lengths, counts = np.unique(dataset.episode_lengths, return_counts=True)
        assert dict(zip(lengths.tolist(), counts.tolist(), strict=True)) == {63: 1, 168: 1, 200: 80}
        assert dataset.has_final_observation.all()
        episode = dataset.episode(0)
    # Pendulum's own equations: reward = -(θ² + 0.1 θ̇² + 0.001 u²), θ̇′ = θ̇ + (15 sin θ + 3 u)/20
    cos, sin, speed = episode.observations[:-1].astype(np.float64).T
    torque = episode.actions[:, 0].astype(np.float64)
    reward = -(np.arctan2(sin, cos) ** 2 + 0.1 * speed**2 + 0.001 * torque**2)
    np.testing.assert_allclose(episode.rewards, reward, atol=1e-5)
    following = np.clip(speed + (15 * sin + 3 * torque) / 20, -8, 8)
    np.testing.assert_allclose(episode.observations[1:, 2], following, atol=1e-4)


def test_real_packed_json(sample_data: Path, tmp_path: Path) -> None:
    summary = import_sample(sample_data, "pendulum/small.json", tmp_path / "d.zarr")
    assert (summary.num_steps, summary.observation_space) == (40, "Box(-inf, inf, (3,), float32)")
