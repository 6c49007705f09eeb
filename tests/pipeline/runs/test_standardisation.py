import numpy as np
import pytest
from grid_environments import Grid, Rooms
from gymnasium import spaces

from dask_rl.pipeline.feed.frames import stack_space
from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.runs.standardisation import fit_normalizers, normalizers_from_json, normalizers_to_json
from dask_rl.storage.errors import ConfigError
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
