import json
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import SourceFormatError
from dask_rl.storage.formats import import_dataset
from dask_rl.storage.spaces import space_to_json

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
ACTION = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)


def write_minari(folder: Path, num_episodes: int = 12, **metadata: Any) -> Path:
    data = folder / "ns/env/name-v0/data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for number in range(num_episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs["seed"] = np.uint64(2**64 - 1) if number == 1 else np.int64(100 + number)
            group["observations"] = np.full((5, 3), number + 0.1)
            group["actions"] = np.ones((4, 1), dtype=np.float32)
            group["rewards"] = np.full(4, number + 0.1)
            group["terminations"] = np.array([False, False, False, number == 2])
            group["truncations"] = np.array([False, False, False, number == 3])
            group["infos/success"] = np.array([False, False, False, True, True])
            group["infos/deep/mass"] = np.arange(4.0)
            group["infos/text"] = np.array([b"x"] * 5)
            if number == 5:
                group["infos/only_here"] = np.arange(5)
    described = {
        "dataset_id": "ns/env/name-v0",
        "total_episodes": num_episodes,
        "total_steps": num_episodes * 4,
        "data_format": "hdf5",
        "observation_space": json.dumps(space_to_json(BOX)),
        "action_space": json.dumps(space_to_json(ACTION)),
        "env_spec": json.dumps({"id": "Pendulum-v1", "max_episode_steps": 200}),
        "ref_min_score": -10.0,
        "ref_max_score": 90.0,
        **metadata,
    }
    (data / "metadata.json").write_text(json.dumps({k: v for k, v in described.items() if v is not None}))
    return data.parent


@pytest.mark.parametrize("below", [".", "data", "data/main_data.hdf5"])
def test_what_a_minari_dataset_declares_is_kept(below: str, tmp_path: Path) -> None:
    source = write_minari(tmp_path) / below
    summary = import_dataset(source, tmp_path / "d.zarr")
    assert (summary.num_terminated, summary.num_truncated) == (1, 11)
    assert summary.left_out == ("infos/only_here", "infos/text")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.observation_space == BOX
        assert dataset.action_space == ACTION
        assert dataset.environment == "Pendulum-v1"
        assert dataset.ref_scores == (-10.0, 90.0)
        assert dataset.has_final_observation.all()
        episodes = list(dataset.episodes())
    assert [e.id for e in episodes] == list(range(12))  # HDF5 sorts episode_10 before episode_2
    assert [e.observations[0, 0] for e in episodes] == [n + 0.1 for n in range(12)]  # float64, every bit
    assert episodes[7].rewards.tolist() == [7.1] * 4
    assert [episodes[i].seed for i in (0, 2)] == [100, 102]
    assert episodes[0].infos.keys() == {"success", "deep.mass"}
    assert episodes[0].infos["success"].tolist() == [False, False, True, True]  # row 0 came from the reset
    assert episodes[0].infos["deep.mass"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("score", [float("nan"), "high", 10**400])
def test_what_minari_does_not_know_is_unknown(score: Any, tmp_path: Path) -> None:
    source = write_minari(tmp_path, ref_min_score=score, total_steps="many")
    with h5py.File(source / "data/main_data.hdf5", "a") as file:
        file["episode_0"].attrs["seed"] = "None"
    import_dataset(source, tmp_path / "d.zarr")
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset:
        assert dataset.ref_scores is None
        assert dataset.episode(0).seed is None


def test_values_in_other_files_are_refused(tmp_path: Path) -> None:
    source = write_minari(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(64))
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["rewards"] = np.zeros(4)
    with h5py.File(source / "data/main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "rewards")
    with pytest.raises(SourceFormatError, match="rewards: got a link to another file"):
        import_dataset(source, tmp_path / "d.zarr")
    with h5py.File(source / "data/main_data.hdf5", "a") as file:
        del file["episode_0/rewards"]
        file["episode_0"].create_dataset("rewards", (4,), "f8", external=str(tmp_path / "secret"))
    with pytest.raises(SourceFormatError, match="rewards: got a link to another file"):
        import_dataset(source, tmp_path / "d.zarr")


@pytest.mark.data
@pytest.mark.parametrize("group", ["episode_0", "episode_3/infos", "episode_0/observations"])
def test_groups_in_other_files_are_refused(group: str, tmp_path: Path) -> None:
    source = write_minari(tmp_path, observation_space=None)
    with h5py.File(source / "data/main_data.hdf5", "a") as file, h5py.File(tmp_path / "other.h5", "w") as other:
        if group == "episode_0/observations":
            other.create_group("stolen")["a"] = np.zeros((5, 3))
        else:
            file.copy(group, other, "stolen")
        del file[group]
        file[group] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/stolen")
    with pytest.raises(SourceFormatError, match=f"{group}: got a link to another file"):
        import_dataset(source, tmp_path / "d.zarr")


def test_flags_before_the_end_are_refused(tmp_path: Path) -> None:
    source = write_minari(tmp_path)
    with h5py.File(source / "data/main_data.hdf5", "a") as file:
        file["episode_4/terminations"][1] = True
    with pytest.raises(ValueError, match=r"main_data\.hdf5: episode 4: got an end flagged at step 1 of 4"):
        import_dataset(source, tmp_path / "d.zarr")


TEXT = gymnasium.spaces.Text(8)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"observation_space": json.dumps(space_to_json(TEXT))}, "observation_space: got Text.*allowed: numbers"),
        (
            {"action_space": json.dumps(space_to_json(gymnasium.spaces.Dict(a=ACTION, b=TEXT)))},
            "action_space: got Dict",
        ),
        ({"action_space": json.dumps(space_to_json(ACTION) | {"dtype": "(1,,2)i4"})}, r"dtype '\(1,,2\)i4'"),
        ({"action_space": "{"}, "action_space: got unreadable JSON"),
        ({"action_space": '{"type": "Unknown"}'}, r"metadata\.json: action_space: "),
        ({"data_format": "csv"}, "got data_format 'csv'; allowed: hdf5, arrow, parquet"),
        ({"data_format": "arrow"}, "got 0 episodes; allowed: 12"),
        ({"data_format": "parquet", "action_space": None}, "got no spaces; allowed: both spaces"),
        ({"total_episodes": 13}, "got 12 episodes; allowed: 13"),
    ],
)
def test_metadata_that_cannot_be_used_is_named(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write_minari(tmp_path, **metadata)
    with pytest.raises(SourceFormatError, match=message):
        import_dataset(source, tmp_path / "d.zarr")


def test_groups_where_arrays_should_be_are_refused(tmp_path: Path) -> None:
    source = write_minari(tmp_path)
    with h5py.File(source / "data/main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations/a"] = np.zeros((5, 2))
    with pytest.raises(SourceFormatError, match=r"episode_0/observations: got a nested value; allowed: one array"):
        import_dataset(source, tmp_path / "d.zarr")
    (source / "data/metadata.json").write_text("[")
    with pytest.raises(SourceFormatError, match=r"metadata\.json: got unreadable JSON"):
        import_dataset(source, tmp_path / "d.zarr")


def test_real_door(sample_data: Path, tmp_path: Path) -> None:
    source = sample_data / "minari/D4RL/door/human-v2"
    summary = import_dataset(source, tmp_path / "d.zarr")
    counts = (summary.num_steps, summary.num_episodes, summary.num_terminated, summary.num_truncated)
    assert (*counts, round(summary.return_mean)) == (6729, 25, 0, 25, 803)
    with OfflineDataset.open(tmp_path / "d.zarr") as dataset, h5py.File(source / "data/main_data.hdf5") as file:
        assert dataset.observation_space.dtype == np.float64
        assert dataset.environment == "AdroitHandDoor-v1"
        assert dataset.ref_scores == (-45.80706024169922, 2940.578369140625)
        for number in (0, 2, 10, 24):
            episode, group = dataset.episode(number), file[f"episode_{number}"]
            np.testing.assert_array_equal(episode.observations, group["observations"])
            np.testing.assert_array_equal(episode.actions, group["actions"])
            np.testing.assert_array_equal(episode.rewards, group["rewards"])
