from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.formats import ImportOptions, ImportSummary, import_dataset


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
