from pathlib import Path

import h5py
import numpy as np
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import InvalidDataError, SourceFormatError
from dask_rl.storage.formats import ImportOptions, import_dataset


def write_v1(path: Path, terminals: list[int], episode_terminals: list[int]) -> Path:
    num_rows = len(terminals)
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(num_rows * 2, dtype=np.float32).reshape(num_rows, 2)
        file["actions"] = np.arange(num_rows, dtype=np.int32) % 3
        file["rewards"] = np.arange(num_rows, dtype=np.float32)
        file["terminals"] = np.array(terminals, dtype=np.float32)
        file["episode_terminals"] = np.array(episode_terminals, dtype=np.float32)
        file["discrete_action"] = True
        file["version"] = "1.0"
    return path


def test_v1_splits_on_episode_terminals_only(tmp_path: Path) -> None:
    # terminals on two consecutive rows at a terminated end, as in the real file; the last rows have no end
    source = write_v1(tmp_path / "a.h5", [0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 0])
    with h5py.File(source, "a") as file:
        file["weights"] = np.ones(7)
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_episodes, summary.num_terminated, summary.num_truncated) == (3, 1, 2)
    assert summary.left_out == ("weights",)
    assert summary.notes == ("terminals is also set where no episode ends (rows: 1); there it is not used",)
    assert summary.action_space == "Discrete(3)"
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        episodes = list(dataset.episodes())
        assert [e.rewards.tolist() for e in episodes] == [[0, 1, 2], [3, 4], [5, 6]]
        assert [e.terminated for e in episodes] == [True, False, False]
        assert not dataset.has_final_observation.any()
        np.testing.assert_array_equal(episodes[0].observations[-2:], [[4, 5], [4, 5]])
        assert episodes[0].terminations.tolist() == [False, False, True]


def test_v2_discrete_actions_with_an_axis_of_one(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(11):  # keys sort as text: 10 comes before 2
            file[f"observations_{number}"] = np.full((3, 4), number, dtype=np.uint8)
            file[f"actions_{number}"] = np.array([[0], [4], [1]])
            file[f"rewards_{number}"] = np.full((3, 1), number, dtype=np.float32)
            file[f"terminated_{number}"] = number % 2
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"] = 11
        file["version"] = "2.1"
    summary = import_dataset(tmp_path / "a.h5", tmp_path / "d.zarr")
    assert (summary.num_steps, summary.num_terminated, summary.num_truncated) == (33, 5, 6)
    assert (summary.action_space, summary.observation_space) == ("Discrete(5)", "Box(0, 255, (4,), uint8)")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert [int(e.rewards[0]) for e in dataset.episodes()] == list(range(11))
        assert dataset.episode(10).actions.tolist() == [0, 4, 1]
        assert dataset.episode(10).observations.dtype == np.uint8


def test_a_signalling_nan_is_an_error_and_no_warning(tmp_path: Path) -> None:
    source = write_v1(tmp_path / "a.h5", [0, 0, 1], [0, 0, 1])
    with h5py.File(source, "a") as file:
        bits = file["observations"][()]
        bits.view(np.uint32)[1, 1] = 0x7F800001
        file["observations"][...] = bits
    with pytest.raises(InvalidDataError, match="step 1, observations: got nan"):
        import_dataset(source, tmp_path / "d.zarr")


def test_v2_tuples_are_parts_by_number(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations_0_0"], file["observations_0_1"] = np.ones((2, 3)), np.full((2, 4), 7, np.uint8)
        file["actions_0"] = file["rewards_0"] = np.zeros((2, 1))
        file["terminated_0"] = True
        file["columns"], file["num_episodes"], file["version"] = ["observations"], 1, "2.1"
    import_dataset(tmp_path / "a.h5", tmp_path / "d.zarr")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        observations = dataset.episode(0).observations
        assert observations["0"].tolist() == [[1, 1, 1]] * 3
        assert observations["1"].tolist() == [[7, 7, 7, 7]] * 3


def test_v2_rewards_without_an_axis_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["columns"], file["num_episodes"], file["version"] = ["observations"], 1, "2.1"
        file["observations_0"], file["actions_0"], file["rewards_0"] = np.zeros((3, 2)), np.zeros((3, 1)), 1.0
        file["terminated_0"] = True
    with pytest.raises(SourceFormatError, match=r"a\.h5/rewards_0: got a single number"):
        import_dataset(tmp_path / "a.h5", tmp_path / "d.zarr")


def test_uneven_columns_are_refused(tmp_path: Path) -> None:
    source = write_v1(tmp_path / "b.h5", [0, 1], [0, 1])
    with h5py.File(source, "a") as file:
        del file["rewards"]
        file["rewards"] = np.zeros(3)
    with pytest.raises(SourceFormatError, match=r"b\.h5: got rows.*'rewards': 3"):
        import_dataset(source, tmp_path / "d.zarr")


@pytest.mark.parametrize(
    ("name", "figures", "action_space"),
    [
        ("cartpole_v1.1.0.h5", (99_866, 1582, 1448, 134, 63), "Discrete(2)"),
        ("pendulum_v1.1.0.h5", (99_500, 500, 0, 500, -180), "Box(-1.9999971, 2.0, (1,), float32)"),
    ],
)
def test_real_files(name: str, figures: tuple[int, ...], action_space: str, sample_data: Path, tmp_path: Path) -> None:
    summary = import_dataset(sample_data / "d3rlpy" / name, tmp_path / "d.zarr")
    counts = (summary.num_steps, summary.num_episodes, summary.num_terminated, summary.num_truncated)
    assert (*counts, round(summary.return_mean)) == figures
    assert summary.action_space == action_space


@pytest.mark.parametrize(("limit", "counts"), [(200, (1448, 134)), (199, (1446, 136))])
def test_real_file_with_a_time_limit(limit: int, counts: tuple[int, int], sample_data: Path, tmp_path: Path) -> None:
    # no episode has 200 steps; two of those with 199 are flagged as terminated, and the option overrides that
    options = ImportOptions(max_episode_steps=limit)
    summary = import_dataset(sample_data / "d3rlpy/cartpole_v1.1.0.h5", tmp_path / "d.zarr", options=options)
    assert (summary.num_terminated, summary.num_truncated) == counts
