"""Every importer reads the same three episodes from its own format, and fails in the same ways."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, DatasetError, InvalidDataError, SourceFormatError
from dask_rl.storage.formats import IMPORTERS, ImportOptions, detect_format, import_dataset

LENGTHS = (4, 6, 3)
TERMINATED = (True, False, True)


@dataclass
class Columns:
    observations: np.ndarray  # (T+1, 3)
    actions: np.ndarray  # (T, 2)
    rewards: np.ndarray  # (T,)
    terminated: bool


def make_columns() -> list[Columns]:
    rng = np.random.default_rng(0)
    return [
        Columns(
            rng.normal(size=(n + 1, 3)).astype(np.float32),
            rng.uniform(-1, 1, size=(n, 2)).astype(np.float32),
            rng.normal(size=n).astype(np.float32),
            terminated,
        )
        for n, terminated in zip(LENGTHS, TERMINATED, strict=True)
    ]


def rllib_rows(episodes: list[Columns]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {name: [] for name in ("eps_id", "obs", "new_obs", "actions", "rewards", "dones")}
    for number, episode in enumerate(episodes):
        length = len(episode.rewards)
        rows["eps_id"] += [number] * length
        rows["obs"] += episode.observations[:-1].tolist()
        rows["new_obs"] += episode.observations[1:].tolist()
        rows["actions"] += episode.actions.tolist()
        rows["rewards"] += episode.rewards.tolist()
        rows["dones"] += [False] * (length - 1) + [episode.terminated]
    return rows


def write_rllib_json(folder: Path, episodes: list[Columns]) -> Path:
    rows, path = rllib_rows(episodes), folder / "output.json"
    lines = [{name: column[part] for name, column in rows.items()} for part in (slice(0, 5), slice(5, None))]
    path.write_text("".join(json.dumps({"type": "SampleBatch", **line}) + "\n" for line in lines))
    return path


def write_rllib_parquet(folder: Path, episodes: list[Columns]) -> Path:
    table = pyarrow.table(rllib_rows(episodes))
    path = folder / "parts"
    path.mkdir()
    for number, start in enumerate(range(0, len(table), 5)):
        pq.write_table(table.slice(start, 5), path / f"{number}.parquet")
    return path


def write_d3rlpy_v1(folder: Path, episodes: list[Columns]) -> Path:
    path = folder / "data.h5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.concatenate([e.observations[:-1] for e in episodes])
        file["actions"] = np.concatenate([e.actions for e in episodes])
        file["rewards"] = np.concatenate([e.rewards for e in episodes])
        ends = [np.arange(len(e.rewards)) == len(e.rewards) - 1 for e in episodes]
        file["episode_terminals"] = np.concatenate(ends).astype(np.float32)
        flags = [end * e.terminated for end, e in zip(ends, episodes, strict=True)]
        file["terminals"] = np.concatenate(flags).astype(np.float32)
        file["discrete_action"] = False
        file["version"] = "1.0"
    return path


def write_d3rlpy_v2(folder: Path, episodes: list[Columns]) -> Path:
    path = folder / "data.h5"
    with h5py.File(path, "w") as file:
        for number, episode in enumerate(episodes):
            file[f"observations_{number}"] = episode.observations[:-1]
            file[f"actions_{number}"] = episode.actions
            file[f"rewards_{number}"] = episode.rewards[:, None]
            file[f"terminated_{number}"] = episode.terminated
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"] = len(episodes)
        file["version"] = "2.1"
    return path


def write_minari(folder: Path, episodes: list[Columns]) -> Path:
    data = folder / "ns/env/name-v0/data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for number, episode in enumerate(episodes):
            group, last = file.create_group(f"episode_{number}"), np.arange(len(episode.rewards)) + 1
            group["observations"] = episode.observations
            group["actions"] = episode.actions
            group["rewards"] = episode.rewards
            group["terminations"] = (last == len(last)) & episode.terminated
            group["truncations"] = (last == len(last)) & (not episode.terminated)
    metadata = {"total_episodes": len(episodes), "total_steps": sum(LENGTHS), "data_format": "hdf5"}
    (data / "metadata.json").write_text(json.dumps(metadata))
    return data.parent


@dataclass
class Case:
    name: str
    write: Callable[[Path, list[Columns]], Path]
    has_final_observation: bool
    data_file: Callable[[Path], Path]  # the file whose bytes are the data


CASES = {
    "rllib-json": Case("rllib", write_rllib_json, True, lambda p: p),
    "rllib-parquet": Case("rllib", write_rllib_parquet, True, lambda p: p / "1.parquet"),
    "d3rlpy-v1": Case("d3rlpy", write_d3rlpy_v1, False, lambda p: p),
    "d3rlpy-v2": Case("d3rlpy", write_d3rlpy_v2, False, lambda p: p),
    "minari": Case("minari", write_minari, True, lambda p: p / "data/main_data.hdf5"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "dest").mkdir()
    return tmp_path


def write(case: Case, folder: Path, episodes: list[Columns]) -> Path:
    return case.write(folder / "source", episodes)


def assert_nothing_left(folder: Path) -> None:
    assert list((folder / "dest").iterdir()) == []


def test_every_importer_has_a_case() -> None:
    assert {case.name for case in CASES.values()} == set(IMPORTERS)


def test_content_spaces_and_summary(case: Case, folder: Path) -> None:
    episodes = make_columns()
    path = write(case, folder, episodes)
    assert detect_format(path) == case.name
    seen: list[tuple[int, int | None]] = []
    dest = folder / "dest/d.zarr"
    summary = import_dataset(path, dest, progress=lambda done, total: seen.append((done, total)))
    with OfflineDataset.open(dest) as dataset:
        for got, wanted in zip(dataset.episodes(), episodes, strict=True):
            last = (
                wanted.observations
                if case.has_final_observation
                else wanted.observations[[0, *range(1, len(wanted.rewards)), -2]]
            )
            np.testing.assert_array_equal(got.observations, last)
            np.testing.assert_array_equal(got.actions, wanted.actions)
            np.testing.assert_array_equal(got.rewards, wanted.rewards)
            assert (got.terminated, got.truncated) == (wanted.terminated, not wanted.terminated)
            assert got.has_final_observation == case.has_final_observation
            assert got.observations.dtype == got.rewards.dtype == np.float32
        assert dataset.observation_space.shape == (3,)
        assert summary.content_hash == dataset.content_hash
        dataset.verify(deep=True)
    assert (summary.num_steps, summary.num_episodes) == (13, 3)
    assert (summary.num_terminated, summary.num_truncated) == (2, 1)
    returns = [float(e.rewards.sum(dtype=np.float64)) for e in episodes]
    assert summary.return_mean == pytest.approx(np.mean(returns))
    assert (summary.return_min, summary.return_max) == pytest.approx((min(returns), max(returns)))
    assert summary.action_space == "Box(-1.0, 1.0, (2,), float32)"
    assert summary.observation_space == "Box(-inf, inf, (3,), float32)"
    assert summary.dropped == {}
    done = [steps for steps, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (26, 26)


def test_time_limit_turns_terminations_into_truncations(case: Case, folder: Path) -> None:
    path = write(case, folder, make_columns())
    summary = import_dataset(path, folder / "dest/d.zarr", options=ImportOptions(max_episode_steps=4))
    assert (summary.num_terminated, summary.num_truncated) == (1, 2)
    assert "4 steps" in summary.rule


@pytest.mark.parametrize("field", ["observations", "actions", "rewards"])
def test_nan_is_named_and_nothing_is_left(case: Case, folder: Path, field: str) -> None:
    episodes = make_columns()
    getattr(episodes[1], field)[2] = np.nan
    path = write(case, folder, episodes)
    with pytest.raises(InvalidDataError, match=rf"episode 1, step \d, {field}: got nan") as caught:
        import_dataset(path, folder / "dest/d.zarr")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert_nothing_left(folder)


def test_invalid_episodes_are_dropped_and_counted_on_request(case: Case, folder: Path) -> None:
    episodes = make_columns()
    episodes[1].rewards[2] = np.inf
    path = write(case, folder, episodes)
    summary = import_dataset(path, folder / "dest/d.zarr", options=ImportOptions(on_invalid="drop"))
    assert (summary.num_steps, summary.num_episodes) == (7, 2)
    assert summary.dropped == {"rewards: not finite": 1}
    assert "had 6 steps; the first: " in summary.notes[0]
    for episode in episodes:
        episode.rewards[0] = np.inf
    (folder / "again").mkdir()
    path = case.write(folder / "again", episodes)
    with pytest.raises(SourceFormatError, match="3 episodes, all invalid"):
        import_dataset(path, folder / "dest/e.zarr", options=ImportOptions(on_invalid="drop"))
    assert [p.name for p in (folder / "dest").iterdir()] == ["d.zarr"]


def pendulum_like() -> list[Columns]:
    episodes = make_columns()
    for episode in episodes:
        episode.actions = episode.actions[:, :1].copy()
    return episodes


def test_actions_outside_the_space_are_refused_or_clipped(case: Case, folder: Path) -> None:
    episodes = pendulum_like()
    episodes[2].actions[1] = 9.5
    path = write(case, folder, episodes)
    options = ImportOptions(environment="Pendulum-v1")
    with pytest.raises(InvalidDataError, match=r"episode 2, step 1, actions: got \[9.5\]; allowed: Box\(-2.0, 2.0"):
        import_dataset(path, folder / "dest/d.zarr", options=options)
    assert_nothing_left(folder)
    clipped = options.model_copy(update={"clip_actions": True})
    assert import_dataset(path, folder / "dest/d.zarr", options=clipped).notes == ("actions were clipped at 1 steps",)
    with OfflineDataset.open(folder / "dest/d.zarr") as dataset:
        assert (dataset.environment, dataset.episode(2).actions[1]) == ("Pendulum-v1", 2.0)


def test_normalized_actions_are_mapped_to_the_bounds(case: Case, folder: Path) -> None:
    episodes = pendulum_like()
    path = write(case, folder, episodes)
    noted = import_dataset(path, folder / "dest/d.zarr", options=ImportOptions(environment="Pendulum-v1"))
    assert "normalized_actions" in noted.notes[0]
    options = ImportOptions(environment="Pendulum-v1", normalized_actions=True)
    summary = import_dataset(path, folder / "dest/d.zarr", options=options, overwrite=True)
    assert summary.notes == ()
    assert noted.content_hash != summary.content_hash
    with OfflineDataset.open(folder / "dest/d.zarr") as dataset:
        np.testing.assert_allclose(dataset.episode(0).actions, 2 * episodes[0].actions, rtol=1e-6)


def test_spaces_that_do_not_fit_are_named(case: Case, folder: Path) -> None:
    path = write(case, folder, make_columns())
    with pytest.raises(InvalidDataError, match=r"observations: got shape \(3,\); allowed: .*\(4,\)"):
        import_dataset(path, folder / "dest/d.zarr", options=ImportOptions(environment="CartPole-v1"))
    with pytest.raises(ConfigError, match="environment: got 'NoSuch-v0'"):
        import_dataset(path, folder / "dest/d.zarr", options=ImportOptions(environment="NoSuch-v0"))
    assert_nothing_left(folder)


def test_a_cut_off_file_is_named_and_nothing_is_left(case: Case, folder: Path) -> None:
    path = write(case, folder, make_columns())
    file = case.data_file(path)
    os.truncate(file, file.stat().st_size * 2 // 3)
    with pytest.raises(SourceFormatError, match=file.name) as caught:
        import_dataset(path, folder / "dest/d.zarr")
    assert "\n" not in str(caught.value)
    assert_nothing_left(folder)


def test_an_existing_dataset_is_refused_before_any_work(case: Case, folder: Path) -> None:
    path = write(case, folder, make_columns())
    dest = folder / "dest/d.zarr"
    first = import_dataset(path, dest)
    case.data_file(path).write_bytes(b"")
    with pytest.raises(DatasetError, match="exists"):
        import_dataset(path, dest)
    with OfflineDataset.open(dest) as dataset:
        assert dataset.content_hash == first.content_hash


def test_the_same_source_gives_the_same_dataset(case: Case, folder: Path) -> None:
    path = write(case, folder, make_columns())
    options = ImportOptions(shard_rows=8)
    hashes = {import_dataset(path, folder / f"dest/{i}.zarr", options=options).content_hash for i in range(2)}
    assert len(hashes) == 1
