"""Every importer reads the same three episodes from its own format, and fails in the same ways."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import msgpack
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import zarr
import zarr.storage
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, DatasetError, InvalidDataError, SourceFormatError
from dask_rl.storage.formats import IMPORTERS, ImportOptions, detect_format, get_importer, import_dataset

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


def write_minari_arrow(folder: Path, episodes: list[Columns]) -> Path:
    return write_with_minari(folder, episodes, "arrow")


def write_minari_parquet(folder: Path, episodes: list[Columns]) -> Path:
    return write_with_minari(folder, episodes, "parquet")


def write_with_minari(folder: Path, episodes: list[Columns], kind: str) -> Path:
    """What the library itself writes."""
    box, data = gymnasium.spaces.Box, folder / "name-v0/data"
    data.parent.mkdir()
    actions = box(-1, 1, episodes[0].actions.shape[1:])
    storage = MinariStorage.new(data, box(-np.inf, np.inf, (3,)), actions, data_format=kind)
    for number, episode in enumerate(episodes):
        last = np.arange(len(episode.rewards)) == len(episode.rewards) - 1
        buffer = EpisodeBuffer(
            id=number,
            observations=episode.observations,
            actions=episode.actions,
            rewards=episode.rewards,
            terminations=last & episode.terminated,
            truncations=last & (not episode.terminated),
        )
        storage.update_episodes([buffer])
    return data.parent


def pack_array(value: Any) -> Any:
    """As msgpack-numpy packs arrays."""
    return {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape, b"data": value.tobytes()}


def write_rllib_episodes(folder: Path, episodes: list[Columns]) -> Path:
    items = []
    for number, episode in enumerate(episodes):
        columns = {"observations": episode.observations, "actions": episode.actions, "rewards": episode.rewards}
        # a lookback of one row, which belongs to the chunk before
        state = {
            name: {"data": np.concatenate([np.zeros_like(column[:1]), column]), "lookback": 1}
            for name, column in columns.items()
        }
        state |= {"id_": f"{number:x}", "is_terminated": episode.terminated, "is_truncated": False}
        items.append(msgpack.packb(state, default=pack_array))
    path = folder / "0.parquet"
    pq.write_table(pyarrow.table({"item": items}), path, row_group_size=2)
    return path


def flat_columns(episodes: list[Columns], num_rows: int) -> dict[str, np.ndarray]:
    """T or T+1 rows an episode, of which actions and rewards fill T."""

    def rows(column: np.ndarray, length: int) -> np.ndarray:
        return np.concatenate([column, np.zeros((1, *column.shape[1:]), column.dtype)])[: length + num_rows]

    lengths = [len(e.rewards) for e in episodes]
    return {
        "observations": np.concatenate(
            [e.observations[: n + num_rows] for e, n in zip(episodes, lengths, strict=True)]
        ),
        "actions": np.concatenate([rows(e.actions, n) for e, n in zip(episodes, lengths, strict=True)]),
        "rewards": np.concatenate([rows(e.rewards, n) for e, n in zip(episodes, lengths, strict=True)]),
        "ends": np.concatenate([np.arange(n + num_rows) == n - 1 + num_rows for n in lengths]),
        "terminals": np.concatenate(
            [(np.arange(n + num_rows) == n - 1) & e.terminated for e, n in zip(episodes, lengths, strict=True)]
        ),
    }


def write_d4rl(folder: Path, episodes: list[Columns]) -> Path:
    columns, path = flat_columns(episodes, 0), folder / "hopper.hdf5"
    columns["timeouts"] = columns.pop("ends") & ~columns["terminals"]
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
    return path


def write_ogbench(folder: Path, episodes: list[Columns]) -> Path:
    columns, path = flat_columns(episodes, 1), folder / "play-v0.npz"
    masks = 1.0 - columns.pop("terminals")
    np.savez_compressed(path, terminals=columns.pop("ends"), masks=masks, **columns)
    return path


def write_imitation(folder: Path, episodes: list[Columns]) -> Path:
    path = folder / "rollouts.npz"
    np.savez(
        path,
        obs=np.concatenate([e.observations for e in episodes]),
        acts=np.concatenate([e.actions for e in episodes]),
        rews=np.concatenate([e.rewards for e in episodes]),
        terminal=[e.terminated for e in episodes],
        indices=np.cumsum([len(e.rewards) for e in episodes])[:-1],
    )
    return path


def write_replay_buffer(folder: Path, episodes: list[Columns]) -> Path:
    return write_group(zarr.storage.LocalStore(folder / "buffer.zarr"), episodes, folder / "buffer.zarr")


def write_replay_buffer_zip(folder: Path, episodes: list[Columns]) -> Path:
    return write_group(
        zarr.storage.ZipStore(folder / "buffer.zarr.zip", mode="w"), episodes, folder / "buffer.zarr.zip"
    )


def write_group(store: Any, episodes: list[Columns], path: Path) -> Path:
    columns, root = flat_columns(episodes, 0), zarr.create_group(store, zarr_format=2)
    for name, column in {"obs": "observations", "action": "actions", "reward": "rewards"}.items():
        array = root.create_array(
            f"data/{name}", shape=columns[column].shape, chunks=(5, *columns[column].shape[1:]), dtype="f4"
        )
        array[:] = columns[column]
    ends = root.create_array("meta/episode_ends", shape=(3,), dtype="i8")
    ends[:] = np.cumsum([len(e.rewards) for e in episodes])
    store.close()
    return path


@dataclass
class Case:
    name: str
    write: Callable[[Path, list[Columns]], Path]
    has_final_observation: bool
    data_file: Callable[[Path], Path]  # the file whose bytes are the data
    has_terminations: bool = True
    declares_spaces: bool = False
    named: str | None = None  # what messages call the file, if not by its name


CASES = {
    "rllib-json": Case("rllib", write_rllib_json, True, lambda p: p),
    "rllib-parquet": Case("rllib", write_rllib_parquet, True, lambda p: p / "1.parquet"),
    "d3rlpy-v1": Case("d3rlpy", write_d3rlpy_v1, False, lambda p: p),
    "d3rlpy-v2": Case("d3rlpy", write_d3rlpy_v2, False, lambda p: p),
    "minari": Case("minari", write_minari, True, lambda p: p / "data/main_data.hdf5"),
    "minari-arrow": Case("minari", write_minari_arrow, True, lambda p: p / "data/1/part-0.arrow", declares_spaces=True),
    "minari-parquet": Case(
        "minari", write_minari_parquet, True, lambda p: p / "data/1/part-0.parquet", declares_spaces=True
    ),
    "rllib-episodes": Case("rllib", write_rllib_episodes, True, lambda p: p),
    "d4rl": Case("d4rl", write_d4rl, False, lambda p: p),
    "npz-ogbench": Case("npz", write_ogbench, True, lambda p: p),
    "npz-imitation": Case("npz", write_imitation, True, lambda p: p),
    "zarr-v2": Case(
        *("zarr-v2", write_replay_buffer, False, lambda p: p / "data/obs/1.0"), has_terminations=False, named="data/obs"
    ),
    "zarr-v2-zip": Case("zarr-v2", write_replay_buffer_zip, False, lambda p: p, has_terminations=False),
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
            terminated = wanted.terminated and case.has_terminations
            assert (got.terminated, got.truncated) == (terminated, not terminated)
            assert got.has_final_observation == case.has_final_observation
            assert got.observations.dtype == got.rewards.dtype == np.float32
        assert dataset.observation_space.shape == (3,)
        assert summary.content_hash == dataset.content_hash
        dataset.verify(deep=True)
    assert (summary.num_steps, summary.num_episodes) == (13, 3)
    assert (summary.num_terminated, summary.num_truncated) == ((2, 1) if case.has_terminations else (0, 3))
    returns = [float(e.rewards.sum(dtype=np.float64)) for e in episodes]
    assert summary.return_mean == pytest.approx(np.mean(returns))
    assert (summary.return_min, summary.return_max) == pytest.approx((min(returns), max(returns)))
    assert summary.action_space == "Box(-1.0, 1.0, (2,), float32)"
    assert summary.observation_space == "Box(-inf, inf, (3,), float32)"
    assert summary.dropped == {}
    done = [steps for steps, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == ((13, 13) if case.declares_spaces else (26, 26))


def test_time_limit_turns_terminations_into_truncations(case: Case, folder: Path) -> None:
    path = write(case, folder, make_columns())
    summary = import_dataset(path, folder / "dest/d.zarr", options=ImportOptions(max_episode_steps=4))
    assert (summary.num_terminated, summary.num_truncated) == ((1, 2) if case.has_terminations else (0, 3))
    assert "4 steps" in summary.rule


def test_ranges_of_a_pickled_source(case: Case, folder: Path) -> None:
    """What a process reads that gets the source with a range of episodes."""
    episodes = make_columns()
    source = get_importer(case.name).read(write(case, folder, episodes), ImportOptions())
    assert source.num_episodes == len(episodes)
    read = pickle.loads(pickle.dumps(source.episodes))  # noqa: S301
    for start, stop in ((0, None), (1, None), (2, 3), (1, 2), (0, 1), (3, None), (1, 1)):
        got = [episode.rewards.reshape(-1).tolist() for episode in read(start, stop)]
        assert got == [episode.rewards.tolist() for episode in episodes[start:stop]]


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
    with pytest.raises(SourceFormatError, match=case.named or file.name) as caught:
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
