import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.formats.npz_file import open_npz

pytestmark = pytest.mark.data


def play(num_rows: int = 9, last: tuple[int, ...] = (3, 8), **more: Any) -> dict[str, np.ndarray]:
    """As OGBench has it; observation and reward of a row are its number."""
    return {
        "observations": np.arange(num_rows, dtype=np.float32)[:, None],
        "actions": np.zeros((num_rows, 2), np.float32),
        "terminals": np.isin(np.arange(num_rows), last),
        **more,
    }


def test_ogbench_masks_end_the_bootstrap_also_inside_a_trajectory(tmp_path: Path) -> None:
    masks = np.ones(9)
    masks[[2, 5]] = 0  # the last step of the first trajectory, and one inside the second
    np.savez(tmp_path / "play.npz", **play(masks=masks, rewards=np.arange(9.0), qpos=np.zeros((9, 4))))
    np.savez(tmp_path / "play-val.npz", **play())
    summary = import_dataset(tmp_path / "play.npz", tmp_path / "d.zarr")
    assert summary.notes == ("the validation episodes in play-val.npz are a dataset of their own",)
    assert (summary.num_steps, summary.num_terminated, summary.num_truncated) == (7, 2, 1)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert [e.observations[:, 0].tolist() for e in dataset.episodes()] == [[0, 1, 2, 3], [4, 5, 6], [6, 7, 8]]
        assert [e.rewards.tolist() for e in dataset.episodes()] == [[0, 1, 2], [4, 5], [6, 7]]
        assert dataset.has_final_observation.all()
        assert dataset.episode(1).infos["qpos"].shape == (2, 4)


def test_ogbench_without_masks_and_rewards(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **play(last=(0, 4, 5)))
    summary = import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr")
    assert (summary.num_steps, summary.num_terminated, summary.num_truncated) == (5, 0, 2)
    assert summary.notes == ("2 trajectories of one row, without a step, were left out",)
    assert "the source stores no rewards: all are 0" in summary.rule
    assert "without masks all are truncated" in summary.rule


@pytest.mark.parametrize(("num_returns", "terminated"), [(2, 2), (1, 1)])
def test_stable_baselines_does_not_tell_time_limits(num_returns: int, terminated: int, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "expert.npz",
        obs=np.arange(10).reshape(5, 2),
        actions=np.array([[0], [1], [1], [0], [2]]),
        rewards=np.arange(5.0),
        episode_returns=np.zeros(num_returns),
        episode_starts=np.array([True, False, False, True, False]),
    )
    summary = import_dataset(tmp_path / "expert.npz", tmp_path / "d.zarr")
    assert (summary.num_episodes, summary.num_terminated) == (2, terminated)
    assert summary.action_space == "Discrete(3)"
    assert "does not tell it from a time limit" in summary.rule
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert [e.rewards.tolist() for e in dataset.episodes()] == [[0, 1, 2], [3, 4]]


def test_arrays_of_objects_are_left_out_unread(tmp_path: Path) -> None:
    rollouts = {
        "obs": np.arange(16.0).reshape(8, 2),
        "acts": np.zeros((5, 1), np.int64),
        "indices": np.array([3, 3]),  # the second episode has no step
        "terminal": np.array([True, True, False]),
    }
    np.savez(tmp_path / "a.npz", **rollouts)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive, archive.open("infos.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (5,)})
        file.write(b"cos\nsystem\n(S'touch pwned'\ntR.")
    summary = import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr")
    assert summary.left_out == ("infos",)
    assert summary.notes == ("1 episodes without a step were left out",)
    assert (summary.num_terminated, summary.num_truncated) == (1, 1)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert [e.observations[:, 0].tolist() for e in dataset.episodes()] == [[0, 2, 4, 6], [10, 12, 14]]


def test_needed_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **play(observations=np.array([{}] * 9)))
    with pytest.raises(SourceFormatError, match=r"a\.npz: got no known format"):
        import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr")
    with pytest.raises(SourceFormatError, match="got arrays actions, terminals; allowed: imitation: obs, acts"):
        import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr", format="npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_are_read_without_the_rest(save: Any, tmp_path: Path) -> None:
    values = {
        "c": np.arange(60).reshape(20, 3),
        "f": np.asfortranarray(np.arange(60.0).reshape(20, 3)),
        "s": np.int8(3),
    }
    save(tmp_path / "a.npz", **values)
    with open_npz(tmp_path / "a.npz") as file:
        for start, stop in ((0, 20), (5, 9), (2, 4), (18, 30), (7, 7)):
            for name in "cf":
                np.testing.assert_array_equal(file[name][start:stop], values[name][start:stop])
        assert file["s"].shape == ()
        with pytest.raises(SourceFormatError, match="x: got nothing"):
            file["x"]


def test_indices_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", obs=np.zeros((7, 1)), acts=np.zeros((5, 1)), indices=np.array([4, 2]))
    with pytest.raises(SourceFormatError, match="got 5 actions in 3 episodes and 7 observations"):
        import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": np.int64(3)}, "indices: got a single number; allowed: one for each episode"),
        ({"indices": np.array([3.5])}, "indices: got values of type float64; allowed: whole numbers"),
        ({"terminal": np.bool_(True)}, "terminal: got a single number"),
    ],
)
def test_cuts_and_flags_that_make_no_sense_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rollouts = {"obs": np.zeros((7, 1)), "acts": np.zeros((5, 1)), "indices": np.array([3])}
    np.savez(tmp_path / "a.npz", **rollouts | change)
    with pytest.raises(SourceFormatError, match=message):
        import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr")
    returns = {"obs": np.zeros((5, 1)), "actions": np.zeros(5), "episode_starts": np.arange(5) == 0}
    np.savez(tmp_path / "b.npz", **returns, episode_returns=np.float32(1))
    with pytest.raises(SourceFormatError, match="episode_returns: got a single number"):
        import_dataset(tmp_path / "b.npz", tmp_path / "d.zarr")


def test_fortran_order_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", **play(actions=np.asfortranarray(np.zeros((9, 2), np.float32))))
    assert import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr").num_steps == 7
    monkeypatch.setattr("dask_rl.storage.formats.npz_file._MAX_COLUMN_MAJOR_BYTES", 71)
    with pytest.raises(SourceFormatError, match=r"actions\.npy is in Fortran order and too large"):
        import_dataset(tmp_path / "a.npz", tmp_path / "e.zarr")


def test_a_header_that_promises_more_than_there_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("observations.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**15, 3)})
    with pytest.raises(SourceFormatError, match=r"observations\.npy ends early"):
        import_dataset(tmp_path / "a.npz", tmp_path / "d.zarr")
    (tmp_path / "b.npz").write_bytes(pickle.dumps({"obs": 1}))
    with pytest.raises(SourceFormatError, match=r"b\.npz: got unreadable npz"):
        import_dataset(tmp_path / "b.npz", tmp_path / "d.zarr")
