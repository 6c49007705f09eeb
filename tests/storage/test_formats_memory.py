"""Episodes from Python: arrays, data frames, and environments that somebody plays in."""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import gymnasium
import numpy as np
import pandas as pd
import pyarrow
import pytest
from gymnasium import spaces

from dask_rl import EpisodeRecorder, ImportOptions, OfflineDataset, import_arrays, import_frame
from dask_rl.storage.errors import ConfigError, DatasetError, InvalidDataError, SourceFormatError

pytestmark = pytest.mark.data

LENGTHS = (3, 2, 4)
ENDS = np.cumsum(LENGTHS)
OBSERVATIONS = np.arange(9.0, dtype=np.float32)[:, None] * [1, 10]
ACTIONS = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
REWARDS = np.arange(9, dtype=np.float32)
TERMINATIONS = np.isin(np.arange(9), [2])
TRUNCATIONS = np.isin(np.arange(9), [4])


def episodes(path: Path) -> list[Any]:
    with OfflineDataset.open(path) as dataset:
        return list(dataset.episodes())


@pytest.mark.parametrize("ends", [{"episode_ends": ENDS}, {"truncations": TRUNCATIONS}])
def test_arrays_with_one_row_a_step(ends: dict[str, Any], tmp_path: Path) -> None:
    logp = {"behavior_logp": REWARDS - 9}
    columns = {"observations": OBSERVATIONS, "actions": ACTIONS, "rewards": REWARDS, "terminations": TERMINATIONS}
    summary = import_arrays(tmp_path / "d.zarr", **columns, infos=logp, **ends)
    assert (summary.num_steps, summary.num_episodes, summary.num_terminated) == (9, 3, 1)
    assert summary.action_space == "Box(-1.0, 1.0, (1,), float32)"
    assert "no final observations" in summary.rule
    got = episodes(tmp_path / "d.zarr")
    assert [e.rewards.tolist() for e in got] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    assert got[1].observations[:, 1].tolist() == [30, 40, 40]
    assert got[2].infos["behavior_logp"].tolist() == [-4, -3, -2, -1]
    assert [e.terminated for e in got] == [True, False, False]


@pytest.mark.parametrize("stored", ["T+1 rows", "next observations"])
def test_arrays_with_final_observations_and_parts(stored: str, tmp_path: Path) -> None:
    pose = np.concatenate([np.arange(length + 1) + 100.0 * number for number, length in enumerate(LENGTHS)])
    last = np.cumsum(np.array(LENGTHS) + 1) - 1
    steps, after = np.delete(np.arange(12), last), np.delete(np.arange(12), last) + 1
    columns: dict[str, Any] = {"observations": {"pose": pose, "seen": {"what": pose.astype(np.int64)}}}
    if stored == "next observations":
        columns = {
            name: {"pose": pose[rows], "seen": {"what": pose[rows].astype(np.int64)}}
            for name, rows in (("observations", steps), ("next_observations", after))
        }
    summary = import_arrays(tmp_path / "d.zarr", actions=np.arange(9) % 3, episode_ends=ENDS, **columns)
    assert (summary.num_truncated, summary.return_max) == (3, 0)
    assert "no rewards" in summary.rule
    got = episodes(tmp_path / "d.zarr")
    assert [e.observations["pose"].tolist() for e in got][1] == [100, 101, 102]
    assert got[2].observations["seen"]["what"].tolist() == [200, 201, 202, 203, 204]
    assert all(e.has_final_observation for e in got)


def test_what_is_declared_and_known_of_arrays_is_used(tmp_path: Path) -> None:
    columns = {"observations": OBSERVATIONS.astype(np.float64) + 0.1, "actions": 2 * ACTIONS, "rewards": REWARDS + 0.1}
    options = ImportOptions(max_episode_steps=3, clip_actions=True)
    summary = import_arrays(
        *(tmp_path / "d.zarr",),
        **{**columns, "terminations": TERMINATIONS, "episode_ends": ENDS, "options": options},
        observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float64),
        action_space=spaces.Box(-1, 1, (1,), np.float32),
    )
    assert (summary.num_terminated, summary.num_truncated) == (0, 3)
    assert summary.notes == ("actions were clipped at 4 steps",)
    assert episodes(tmp_path / "d.zarr")[0].observations[0, 0] == 0.1  # all 64 bits


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rewards": REWARDS[:-1]}, SourceFormatError, "got rows .*'rewards': 8"),
        (
            {"observations": OBSERVATIONS[:-1]},
            SourceFormatError,
            "got 8 rows; allowed: 9, or 12 with the final ones of 3",
        ),
        (
            {"episode_ends": [3, 9], "truncations": TRUNCATIONS},
            SourceFormatError,
            "flagged at row 4, inside an episode",
        ),
        ({"episode_ends": [3, 5]}, SourceFormatError, "got ends up to 5; allowed: growing ends, the last 9"),
        ({"episode_ends": None, "terminations": None}, SourceFormatError, "got no ends of episodes"),
        ({"rewards": REWARDS + np.nan}, InvalidDataError, "episode 0, step 0[:,] rewards: got nan"),
        ({"actions": np.array([{}] * 9)}, SourceFormatError, "actions: got values of type object"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    columns = {"observations": OBSERVATIONS, "actions": ACTIONS, "rewards": REWARDS, "terminations": TERMINATIONS}
    with pytest.raises(error, match=message):
        import_arrays(tmp_path / "d.zarr", **{**columns, "episode_ends": ENDS, **changes})
    assert list(tmp_path.iterdir()) == []


def frame(**changes: Any) -> pd.DataFrame:
    columns = {
        "run": np.repeat(["a", "b", "c"], LENGTHS),
        "t": np.concatenate([np.arange(length) for length in LENGTHS]),
        "x": OBSERVATIONS[:, 0],
        "y": OBSERVATIONS[:, 1],
        "observations": list(OBSERVATIONS),
        "following": list(OBSERVATIONS + np.array([1, 10], np.float32)),
        "torque": ACTIONS[:, 0],
        "rewards": REWARDS,
        "done": TERMINATIONS,
        "cut": TRUNCATIONS,
    }
    return pd.DataFrame({**columns, **changes})


@pytest.mark.parametrize("declared", [True, False])
def test_arrays_at_once_give_the_bits_of_episodes_one_by_one(declared: bool, tmp_path: Path) -> None:
    columns = {"observations": np.append(OBSERVATIONS, OBSERVATIONS[:3], axis=0), "actions": np.arange(9)[:, None] % 3}
    columns |= {
        "rewards": (REWARDS / 3).astype(np.float64)[:, None],
        "terminations": TERMINATIONS,
        "episode_ends": ENDS,
    }
    columns |= {"infos": {"behavior_logp": REWARDS / 7}}
    if declared:
        columns |= {"observation_space": spaces.Box(-99, 99, (2,), np.float32), "action_space": spaces.Discrete(3)}
    hashes = set()
    for limit in (None, 10**6):  # with one, each episode has to be looked at
        options = ImportOptions(max_episode_steps=limit, shard_rows=8)
        summary = import_arrays(tmp_path / f"{limit}.zarr", **columns, options=options)
        assert (summary.num_steps, summary.num_terminated, summary.num_truncated) == (9, 1, 2)
        hashes.add(summary.content_hash)
    assert len(hashes) == 1


SHUFFLED = np.random.default_rng(3).permutation(9)


def of_kind(kind: str, data: pd.DataFrame) -> Any:
    if kind == "pyarrow":
        return pyarrow.Table.from_pandas(data)
    return dd.from_pandas(data, npartitions=3, sort=False) if kind == "dask" else data


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "dask"])
def test_frames_whose_rows_are_ordered_by_a_column(kind: str, tmp_path: Path) -> None:
    data = of_kind(
        kind, frame()[["run", "t", "x", "y", "torque", "rewards", "done"]].iloc[SHUFFLED].reset_index(drop=True)
    )
    columns = {"observations": ["x", "y"], "actions": "torque", "terminations": "done", "episode": "run", "step": "t"}
    summary = import_frame(tmp_path / "d.zarr", data, **columns, infos=["x"])
    assert (summary.num_episodes, summary.num_terminated, summary.num_truncated) == (3, 1, 2)
    assert summary.rule.startswith(
        "episodes split by run and done, rows in the order of t; terminated where done is set"
    )
    got = sorted(episodes(tmp_path / "d.zarr"), key=lambda e: e.rewards[0])
    assert [e.rewards.tolist() for e in got] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    assert got[1].observations.tolist() == [[3, 30], [4, 40], [4, 40]]
    assert got[2].infos["x"].tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_frames_of_lists_whose_flags_end_episodes(kind: str, tmp_path: Path) -> None:
    columns = {"actions": "torque", "terminations": "done", "truncations": "cut", "next_observations": "following"}
    import_frame(tmp_path / "d.zarr", of_kind(kind, frame()), **columns)
    got = episodes(tmp_path / "d.zarr")
    assert [e.rewards.tolist() for e in got] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    assert got[0].observations.tolist() == [[0, 0], [1, 10], [2, 20], [3, 30]]
    assert [e.terminated for e in got] == [True, False, False]


def test_flags_of_a_dask_frame_end_episodes_across_partitions(tmp_path: Path) -> None:
    data = frame()[["x", "y", "torque", "rewards", "done", "cut"]]
    options = {"observations": ["x", "y"], "actions": ["torque"], "terminations": "done", "truncations": "cut"}
    for npartitions in (1, 4):
        dest = tmp_path / f"{npartitions}.zarr"
        import_frame(dest, dd.from_pandas(data, npartitions=npartitions), **options)
        assert [e.rewards.tolist() for e in episodes(dest)] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("data", "columns", "error", "message"),
    [
        ([1, 2], {}, ConfigError, "frame: got list; allowed: a pandas or dask DataFrame, or a pyarrow Table"),
        (frame(), {"actions": "torques"}, ConfigError, "frame: got no column torques; allowed: cut, done, "),
        (frame(), {"actions": "torque"}, ConfigError, "got no ends of episodes; allowed: episode, terminations"),
        (frame(observations=[[1], [1, 2]] + [[1]] * 7), {}, SourceFormatError, "'observations': got rows of different"),
        (frame(observations=[{}] * 9), {}, SourceFormatError, "'observations': got values of type object"),
        (frame(rewards=[np.inf] * 9), {}, InvalidDataError, "step 0, rewards: got inf"),
    ],
)
def test_frames_that_do_not_fit(data: Any, columns: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    found = columns if columns else {"actions": "torque", "episode": "run"}
    with pytest.raises(error, match=message):
        import_frame(tmp_path / "d.zarr", data, **found)
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_writes_what_was_played(tmp_path: Path) -> None:
    environment = gymnasium.make("CartPole-v1", max_episode_steps=7)
    seen: list[Any] = []
    with EpisodeRecorder(environment, tmp_path / "d.zarr") as recorder:
        for number, length in enumerate((7, 3, 40)):  # a time limit, a reset in between, a pole that falls
            observation, _ = recorder.reset(seed=number)
            played = [observation]
            for _ in range(length):
                observation, _, terminated, truncated, _ = recorder.step(
                    np.int64(number == 2) if number else len(played) % 2
                )
                played.append(observation)
                if terminated or truncated:
                    break
            seen.append(played)
        assert recorder.num_episodes >= 2
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert (dataset.environment, dataset.num_episodes) == ("CartPole-v1", 3)
        assert dataset.episode_seeds.tolist() == [0, 1, 2]
        for got, wanted in zip(dataset.episodes(), seen, strict=True):
            np.testing.assert_array_equal(got.observations, wanted)
        assert dataset.episode_truncations.tolist()[:2] == [True, True]
        dataset.verify(deep=True)


class Grid(gymnasium.Env[Any, Any]):
    """Observations in parts, which it hands out again and again, and a number as an info."""

    observation_space = spaces.Dict(at=spaces.Box(0, 9, (2,), np.float32), door=spaces.Discrete(2))
    action_space = spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (1,), np.float32)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = np.zeros(2, np.float32)
        return {"at": self.at, "door": 0}, {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return {"at": self.at, "door": 1}, 0.5, bool(self.at[0] == 3), False, {"energy": float(self.at[0])}


def test_a_recorder_of_parts_keeps_copies_and_infos(tmp_path: Path) -> None:
    for append in (False, True):
        with EpisodeRecorder(Grid(), tmp_path / "d.zarr", infos=["energy"], append=append) as recorder:
            recorder.reset()
            for _ in range(3):
                recorder.step((2, np.array([0.5], np.float32)))
    first, second = episodes(tmp_path / "d.zarr")
    assert first.observations["at"][:, 0].tolist() == [0, 1, 2, 3]
    assert first.observations["door"].tolist() == [0, 1, 1, 1]
    assert first.actions["0"].tolist() == [2, 2, 2]
    assert second.infos["energy"].tolist() == [1, 2, 3]
    assert (first.terminated, first.truncated) == (True, False)


def test_what_a_recorder_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="infos: got no heat at this step; allowed: energy"):
        play(EpisodeRecorder(Grid(), tmp_path / "d.zarr", infos=["heat"]))
    with pytest.raises(InvalidDataError, match="got 0 episodes"), EpisodeRecorder(Grid(), tmp_path / "d.zarr"):
        pass
    assert list(tmp_path.iterdir()) == []
    play(EpisodeRecorder(Grid(), tmp_path / "d.zarr"))
    with pytest.raises(DatasetError, match="exists"):
        EpisodeRecorder(Grid(), tmp_path / "d.zarr")


def play(recorder: EpisodeRecorder) -> None:
    with recorder:
        recorder.reset()
        recorder.step((2, np.array([0.5], np.float32)))
