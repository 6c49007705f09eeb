import numpy as np
import pytest
import yaml
from grid_environments import Grid, Rooms
from gymnasium import spaces

from dask_rl import transform_dataset
from dask_rl.pipeline.feed.frames import stack_space
from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.runs.job import parse_job
from dask_rl.pipeline.runs.standardisation import (
    collected_space,
    fit_normalizers,
    normalizers_from_json,
    normalizers_to_json,
    stored_normalizers,
)
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.runs.trained_policy import load_policy
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.transforming.config import TransformConfig
from dask_rl.storage.transforms import Normalize

NORMALIZE = Normalize(mean=(1.0, 2.0), std=(3.0, 4.0))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    config = CollectConfig(environment="grid_environments:Rooms-v0", num_episodes=8)
    with collect(config, tmp_path_factory.mktemp("rooms") / "x.zarr") as dataset:
        yield dataset


def test_parts_that_are_numbers_get_their_own_statistics(dataset):
    normalizers = fit_normalizers(dataset, dataset.observation_space)
    assert list(normalizers) == ["observations/goal"]
    goals = np.concatenate([episode.observations["goal"][:-1] for episode in dataset.episodes()])
    np.testing.assert_allclose(normalizers["observations/goal"].mean, goals.mean(0), rtol=1e-6)
    np.testing.assert_allclose(normalizers["observations/goal"].std, goals.std(0), rtol=1e-6)


def test_without_numbers_and_for_stacked_ones_it_is_refused(dataset):
    with pytest.raises(ConfigError, match=r"normalize_observations: got true, for Box\(0, 255.*a Box of numbers"):
        fit_normalizers(dataset, Grid.observation_space)
    stacked = stack_space(Rooms.observation_space, "observations", {"observations/goal": 3})
    with pytest.raises(ConfigError, match="got true, for observations/goal, whose frames are stacked"):
        fit_normalizers(dataset, stacked)
    of_images = stack_space(Rooms.observation_space, "observations", {"observations/camera": 3})
    assert list(fit_normalizers(dataset, of_images)) == ["observations/goal"]


def test_json_and_back():
    flat = spaces.Box(-9, 9, (2,), np.float32)
    assert normalizers_to_json({}) is None
    assert normalizers_to_json({"observations": NORMALIZE}) == NORMALIZE.to_json()  # as checkpoints always had it
    for normalizers, space in (
        ({}, flat),
        ({"observations": NORMALIZE}, flat),
        ({"observations/goal": NORMALIZE}, Rooms.observation_space),
    ):
        assert normalizers_from_json(normalizers_to_json(normalizers), space) == normalizers
    with pytest.raises(ValueError, match="reshape"):
        normalizers_from_json(NORMALIZE.to_json(), spaces.Box(-9, 9, (3,), np.float32))
    with pytest.raises(KeyError):
        normalizers_from_json({"observations/other": NORMALIZE.to_json()}, Rooms.observation_space)


def test_what_a_dataset_was_standardised_by_is_the_policys_not_the_feeds(tmp_path, dataset):
    path = tmp_path / "standardised.zarr"
    transform_dataset([dataset.path], str(path), config=TransformConfig(normalize=True))
    with OfflineDataset.open(path) as made:
        assert collected_space(made) == dataset.observation_space
        assert made.observation_space != dataset.observation_space
        for frames in (1, 3):
            delivered = stack_space(collected_space(made), "observations", {"observations/goal": frames})
            normalizers = stored_normalizers(made, delivered)
            assert list(normalizers) == ["observations/goal"]
            raw, standardised = (each.read("observations/goal", 0, 50) for each in (dataset, made))
            stacked, expected = (np.stack([rows] * frames, axis=1) for rows in (raw, standardised))
            np.testing.assert_allclose(normalizers["observations/goal"].apply(stacked), expected, atol=1e-5)
        with pytest.raises(ConfigError, match=r"got true, for a dataset that .* made; .*leave it out"):
            fit_normalizers(made, made.observation_space)
    assert stored_normalizers(dataset, dataset.observation_space) == {}


@pytest.mark.service
def test_a_policy_of_standardised_data_acts_on_what_its_environment_gives(tmp_path):
    config = CollectConfig(environment="Pendulum-v1", policy="pendulum-swing-up", num_episodes=2, max_episode_steps=40)
    collect(config, tmp_path / "raw.zarr").close()
    transform_dataset([str(tmp_path / "raw.zarr")], str(tmp_path / "made.zarr"), config=TransformConfig(normalize=True))
    policies = {}
    for name, normalize in (("raw", True), ("made", False)):
        job = {
            "dataset": str(tmp_path / f"{name}.zarr"),
            "algorithm": {"name": "bc", "hidden_sizes": [8], "normalize_observations": normalize},
            "num_steps": 40,
            "batch_size": 16,
            "learners": {"precision": "fp64"},
            "evaluation": {"environment": "Pendulum-v1", "num_episodes": 1, "max_episode_steps": 20},
            "run": str(tmp_path / name),
        }
        result = train(parse_job(yaml.safe_dump(job)))
        policies[name] = load_policy(result.run), result.evaluation["return_mean"]
    with OfflineDataset.open(tmp_path / "raw.zarr") as raw:
        observations = raw.read("observations", 0, 40)
    learned, made = (policies[name][0](observations) for name in ("raw", "made"))
    # the same data, standardised by the feed or on disk: the same policy but for rounding
    np.testing.assert_allclose(made, learned, atol=1e-3)
    assert policies["made"][1] == pytest.approx(policies["raw"][1], rel=1e-2)
