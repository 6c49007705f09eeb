from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, SourceFormatError
from dask_rl.storage.formats import ImportOptions, import_dataset

pytestmark = pytest.mark.data


def write_d4rl(path: Path, num_rows: int = 7, **columns: Any) -> Path:
    """The observation and the reward of a row are its number."""
    found = {
        "observations": np.arange(2 * num_rows, dtype=np.float32).reshape(num_rows, 2) // 2,
        "actions": np.zeros((num_rows, 1), np.float32),
        "rewards": np.arange(num_rows, dtype=np.float32),
        "terminals": np.zeros(num_rows, bool),
    }
    with h5py.File(path, "w") as file:
        for name, column in {**found, **columns}.items():
            if column is not None:
                file[name] = column
    return path


def flags(*rows: int, num_rows: int = 7) -> np.ndarray:
    return np.isin(np.arange(num_rows), rows)


def rewards(path: Path) -> list[list[float]]:
    with OfflineDataset.open(path) as dataset:
        return [episode.rewards.tolist() for episode in dataset.episodes()]


def test_terminals_and_timeouts_end_episodes_and_the_rest_is_one(tmp_path: Path) -> None:
    source = write_d4rl(tmp_path / "hopper_medium-v0.hdf5", terminals=flags(1), timeouts=flags(4))
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert rewards(tmp_path / "d.zarr") == [[0, 1], [2, 3, 4], [5, 6]]
    assert (summary.num_terminated, summary.num_truncated) == (1, 2)
    assert "terminals and timeouts" in summary.rule
    assert "no final observations" in summary.rule
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert not dataset.has_final_observation.any()  # row 5 begins another episode: no successor of row 4
        assert dataset.episode(1).observations[:, 0].tolist() == [2, 3, 4, 4]
        assert dataset.ref_scores == (-20.27, 3234.3)


def test_without_timeouts_the_time_limit_cuts(tmp_path: Path) -> None:
    source = write_d4rl(tmp_path / "a.hdf5", terminals=flags(0, 6))
    with pytest.raises(ConfigError, match=r"got no timeouts.*--max-episode-steps"):
        import_dataset(source, tmp_path / "d.zarr")
    summary = import_dataset(source, tmp_path / "d.zarr", options=ImportOptions(max_episode_steps=4))
    assert rewards(tmp_path / "d.zarr") == [[0], [1, 2, 3, 4], [5, 6]]
    assert (summary.num_terminated, summary.num_truncated) == (2, 1)
    assert "after 4 steps" in summary.rule


def test_the_limit_of_the_environment_counts_too(tmp_path: Path) -> None:
    columns = {"observations": np.zeros((450, 3), np.float32), "terminals": np.zeros(450, bool)}
    source = write_d4rl(tmp_path / "a.hdf5", 450, **columns)
    summary = import_dataset(source, tmp_path / "d.zarr", options=ImportOptions(environment="Pendulum-v1"))
    assert (summary.num_episodes, summary.num_truncated) == (3, 3)
    assert "after 200 steps" in summary.rule


@pytest.mark.parametrize("with_timeouts", [True, False])
def test_next_observations_are_the_final_ones_and_their_breaks_end_episodes(
    with_timeouts: bool, tmp_path: Path
) -> None:
    observations = np.arange(14, dtype=np.float32).reshape(7, 2) // 2
    after = observations + 1
    after[3] = 100.0
    columns = {"timeouts": flags(3)} if with_timeouts else {}
    source = write_d4rl(tmp_path / "a.hdf5", next_observations=after, terminals=flags(6), **columns)
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_terminated, summary.num_truncated) == (1, 1)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.has_final_observation.all()
        assert dataset.episode(0).observations[:, 0].tolist() == [0, 1, 2, 3, 100]
        assert dataset.episode(1).observations[:, 0].tolist() == [4, 5, 6, 7]


def test_infos_with_a_number_a_row_are_kept(tmp_path: Path) -> None:
    infos = {"infos/action_log_probs": np.arange(7.0), "infos/qpos": np.zeros((7, 3)), "infos/few": np.zeros(3)}
    source = write_d4rl(tmp_path / "a.hdf5", timeouts=flags(3), **infos, **{"metadata/algorithm": "sac"})
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert summary.left_out == ("infos/few", "metadata")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.episode(1).infos["behavior_logp"].tolist() == [4, 5, 6]
        assert dataset.episode(1).infos["qpos"].shape == (3, 3)


@pytest.mark.parametrize("jumps", [True, False])
def test_timeouts_at_which_nothing_ends_are_pointed_out(jumps: bool, tmp_path: Path) -> None:
    ends = flags(*range(9, 200, 10), num_rows=200)
    steps = np.where(np.roll(ends, 1) & jumps, 50.0, np.random.default_rng(0).normal(size=200))
    observations = np.cumsum(steps)[:, None].astype(np.float32)
    source = write_d4rl(tmp_path / "a.hdf5", 200, observations=observations, timeouts=ends)
    notes = import_dataset(source, tmp_path / "d.zarr").notes
    assert bool(notes) is not jumps
    assert jumps or "antmaze-v0" in notes[0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rewards": np.zeros(6)}, "got rows .*'rewards': 6"),
        ({"timeouts": np.array([b"x"] * 7)}, "timeouts: got values of type"),
        ({"terminals": None}, "got no known format"),
    ],
)
def test_files_that_cannot_be_used_are_named(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write_d4rl(tmp_path / "a.hdf5", **columns)
    with pytest.raises(SourceFormatError, match=message):
        import_dataset(source, tmp_path / "d.zarr")


@pytest.mark.parametrize("chunks", [(3, 1), None])
def test_values_that_were_never_written_are_no_zeros(chunks: tuple[int, int] | None, tmp_path: Path) -> None:
    source = write_d4rl(tmp_path / "a.hdf5", timeouts=flags(4), actions=None)
    with h5py.File(source, "a") as file:
        actions = file.create_dataset("actions", (7, 1), "f4", chunks=chunks)
    with pytest.raises(SourceFormatError, match="/actions: got values that were never written"):
        import_dataset(source, tmp_path / "d.zarr")
    with h5py.File(source, "a") as file:
        actions = file["actions"]
        if chunks is not None:  # all but one
            actions[:6] = 0
    with pytest.raises(SourceFormatError, match="/actions: got values that were never written"):
        import_dataset(source, tmp_path / "d.zarr")
    with h5py.File(source, "a") as file:
        file["actions"][:] = 0
    assert import_dataset(source, tmp_path / "d.zarr").num_steps == 7


def test_absurd_shapes_without_values_are_refused_at_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            file.create_dataset(name, (10**13,), "u1", chunks=(2**20,))
    with pytest.raises(SourceFormatError, match="/observations: got values that were never written"):
        import_dataset(tmp_path / "a.hdf5", tmp_path / "d.zarr")


@pytest.mark.parametrize("name", ["terminals", "timeouts"])
def test_a_flag_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    columns = {"timeouts": flags(4), name: np.where(flags(2), np.nan, 0)}
    source = write_d4rl(tmp_path / "a.hdf5", **columns)
    with pytest.raises(
        SourceFormatError, match=rf"a\.hdf5: {name}: got no value in row 2; allowed: a flag in each row"
    ):
        import_dataset(source, tmp_path / "d.zarr")
