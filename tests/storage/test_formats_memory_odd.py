"""Arrays and frames that are odd: flags and ids that are missing, columns of other shapes, gaps."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
from gymnasium import spaces

from dask_rl import ImportOptions, OfflineDataset, import_arrays, import_frame
from dask_rl.storage.errors import ConfigError, InvalidDataError, SourceFormatError

pytestmark = pytest.mark.data

NAN = float("nan")
STEPS = np.arange(10.0)
OBSERVATIONS = np.stack([STEPS, STEPS], axis=1)
LAST = STEPS == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminations": np.where(STEPS == 4, NAN, 0)}, "terminations: got no value in row 4; allowed: a flag in"),
        ({"terminations": np.zeros((10, 2))}, r"terminations: got values of type float64 and shape \(10, 2\)"),
        ({"next_observations": np.zeros((10, 3))}, r"next_observations: got rows of shape \(3,\); allowed: \(2,\)"),
        ({"next_observations": {"a": STEPS}}, "next observations: got observations/a; allowed: observations"),
        ({"episode_ends": [2.5, 10]}, "episode_ends: got .* allowed: whole numbers"),
        ({"episode_ends": [NAN, 10]}, "episode_ends: got .* allowed: whole numbers"),
        ({"episode_ends": ["a", "b"]}, "episode_ends: got .* allowed: whole numbers"),
        ({"actions": np.full(10, 2**60)}, r"actions: got integers up to 1.15e\+18"),
    ],
)
def test_arrays_that_say_nothing_sure_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    columns = {"observations": OBSERVATIONS, "actions": STEPS.astype(int), "terminations": LAST}
    with pytest.raises(SourceFormatError, match=message):
        import_arrays(tmp_path / "d.zarr", **{**columns, **changes})
    assert list(tmp_path.iterdir()) == []


def test_fractions_are_not_clipped_into_whole_numbers(tmp_path: Path) -> None:
    actions = np.array([[0.7], [1.9], [-5], [2]])
    columns = {"observations": np.zeros((4, 1)), "terminations": np.arange(4) == 3}
    options: dict[str, Any] = {
        "action_space": spaces.Box(0, 3, (1,), np.int64),
        "options": ImportOptions(clip_actions=True),
    }
    with pytest.raises(InvalidDataError, match=r"step 0, actions: got \[0.7\]; allowed: Box\(0, 3, \(1,\), int64\)"):
        import_arrays(tmp_path / "d.zarr", actions=actions, **columns, **options)
    summary = import_arrays(tmp_path / "d.zarr", actions=np.floor(actions), **columns, **options)
    assert summary.notes == ("actions were clipped at 1 steps",)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.episode(0).actions.ravel().tolist() == [0, 1, 0, 2]


def frame(**changes: Any) -> pd.DataFrame:
    columns = {
        **{"observations": list(OBSERVATIONS), "following": list(OBSERVATIONS + 1), "actions": [0, 1] * 5},
        **{"rewards": STEPS, "done": LAST, "run": [1.0] * 10, "t": STEPS, "text": ["1"] * 10},
    }
    return pd.DataFrame({**columns, **changes})


COLUMNS = {"terminations": "done", "episode": "run"}


@pytest.mark.parametrize(
    ("changes", "columns", "error", "message"),
    [
        ({"done": np.where(STEPS == 4, NAN, 0)}, COLUMNS, SourceFormatError, "column 'done': got no value in row 4"),
        (
            {"done": np.where(STEPS == 4, NAN, 0)},
            {"terminations": "done"},
            SourceFormatError,
            "column 'done': got no value in row 4",
        ),
        ({"run": np.where(STEPS < 5, 1, NAN)}, COLUMNS, SourceFormatError, "column 'run': got no value in row 5"),
        (
            {"t": np.where(STEPS < 5, 1, NAN)},
            {**COLUMNS, "step": "t"},
            SourceFormatError,
            "column 't': got no value in row 5",
        ),
        ({}, {**COLUMNS, "terminations": "text"}, SourceFormatError, "column 'text': got values of type <U1; allowed"),
        ({}, {**COLUMNS, "step": "text"}, SourceFormatError, "column 'text': got values of type <U1; allowed: numbers"),
        ({}, {**COLUMNS, "infos": ["text"]}, SourceFormatError, "column 'text': got values of type <U1; allowed"),
        ({}, {**COLUMNS, "observations": "text"}, SourceFormatError, "column 'text': got values of type <U1"),
        ({}, {**COLUMNS, "observations": ["t", "following"]}, SourceFormatError, r"got arrays of shape \(2,\)"),
        ({}, {**COLUMNS, "observations": []}, ConfigError, "frame: got an empty list of columns"),
        (
            {"t": pd.date_range("2020", periods=10)},
            {**COLUMNS, "step": "t"},
            SourceFormatError,
            "values of type dateti",
        ),
        (
            {"following": [np.zeros(3)] * 10},
            {**COLUMNS, "next_observations": "following"},
            SourceFormatError,
            r"'new_obs': got shape \(10, 3\); allowed: that of obs",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_frames_that_say_nothing_sure_are_refused(
    changes: Any, columns: Any, error: type[Exception], message: str, kind: str, tmp_path: Path
) -> None:
    data = frame(**changes)
    if kind == "pyarrow":
        data = pyarrow.Table.from_pandas(data)
        message = message.replace("<U1", r"(<U1|string)").replace("values of type dateti", "timestamp")
    with pytest.raises(error, match=message):
        import_frame(tmp_path / "d.zarr", data, **columns)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_doubled_columns_of_a_frame_are_refused(kind: str, tmp_path: Path) -> None:
    data = pd.concat([frame(), frame()[["rewards"]]], axis=1)
    if kind == "pyarrow":
        data = pyarrow.Table.from_arrays([pyarrow.array(data.iloc[:, at]) for at in range(9)], names=list(data.columns))
    with pytest.raises(ConfigError, match="frame: got several column rewards"):
        import_frame(tmp_path / "d.zarr", data, **COLUMNS)


def test_frames_without_ids_stay_in_their_order(tmp_path: Path) -> None:
    following = OBSERVATIONS + 1
    following[4] += 0.5  # another observation than that of row 5
    data = frame(following=list(following))
    options: dict[str, Any] = {"terminations": "done", "next_observations": "following"}
    summary = import_frame(tmp_path / "d.zarr", data, **options)
    assert (summary.num_episodes, summary.num_terminated, summary.notes) == (1, 1, ())
    summary = import_frame(tmp_path / "e.zarr", data, **options, episode="run")
    assert summary.num_episodes == 2
    assert summary.notes[0].startswith("1 episodes end where rows of their id do not follow each other")


def test_interleaved_rows_are_gathered(tmp_path: Path) -> None:
    num_rows = 3000
    rows = np.arange(num_rows)
    data = pd.DataFrame({"observations": rows * 1.0, "actions": rows % 2, "rewards": rows * 1.0, "run": rows % 10})
    import_frame(tmp_path / "d.zarr", data, episode="run")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.episode_ids.tolist() == list(range(10))
        assert all(
            e.rewards.tolist() == list(range(number, num_rows, 10)) for number, e in enumerate(dataset.episodes())
        )
