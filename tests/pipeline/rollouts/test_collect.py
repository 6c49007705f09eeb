"""Collecting without a cluster."""

import gymnasium
import numpy as np
import pytest
from pydantic import ValidationError

from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.rollouts.controllers import PendulumSwingUp
from dask_rl.storage.errors import ConfigError, DatasetError


def swing(**settings):
    return CollectConfig(environment="Pendulum-v1", policy="pendulum-swing-up", **settings)


def test_the_dataset_holds_the_episodes_that_replaying_its_actions_gives(tmp_path):
    config = swing(num_episodes=3, action_noise=0.4, seed=11, episodes_per_task=2)
    with collect(config, tmp_path / "pendulum.zarr") as dataset:
        assert (dataset.num_episodes, dataset.num_steps, dataset.environment) == (3, 600, "Pendulum-v1")
        assert dataset.provenance["policy"] == "pendulum-swing-up"
        for number, episode in enumerate(dataset.episodes()):
            env = gymnasium.make("Pendulum-v1")
            observations = [env.reset(seed=11 + number)[0]]
            rewards = []
            for action in episode.actions:
                observation, reward, *_ = env.step(action)
                observations.append(observation)
                rewards.append(reward)
            env.close()
            np.testing.assert_array_equal(episode.observations, np.stack(observations))
            np.testing.assert_allclose(episode.rewards, rewards, rtol=1e-6)
            assert (episode.truncated, episode.terminated) == (True, False)
            assert episode.seed == 11 + number


def test_random_actions_in_a_discrete_environment(tmp_path):
    config = CollectConfig(environment="CartPole-v1", num_episodes=20)
    with collect(config, tmp_path / "cartpole.zarr") as dataset:
        assert 15 < dataset.episode_lengths.mean() < 30  # what random pushes are known to reach
        assert all(episode.terminated for episode in dataset.episodes())
        assert set(np.unique(dataset.episode(0).actions)) == {0, 1}


def test_a_given_policy_acts(tmp_path):
    config = CollectConfig(environment="Pendulum-v1", num_episodes=2)
    by_policy = collect(config, tmp_path / "a.zarr", policy=PendulumSwingUp())
    by_name = collect(swing(num_episodes=2), tmp_path / "b.zarr")
    assert by_policy.content_hash == by_name.content_hash
    assert by_policy.provenance["policy"] == "PendulumSwingUp"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CollectConfig(environment="Pendulum-v1", policy="swing"), "policy: got 'swing'; allowed: random"),
        (CollectConfig(environment="CartPole-v1", policy="pendulum-swing-up"), "for CartPole-v1"),
        (CollectConfig(environment="Nope-v1"), "'Nope-v1'"),
    ],
)
def test_what_cannot_be_collected_leaves_nothing(tmp_path, config, words):
    with pytest.raises(ConfigError, match=words):
        collect(config, tmp_path / "x.zarr")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_dataset_is_kept_unless_asked_otherwise(tmp_path):
    first = collect(swing(num_episodes=1), tmp_path / "x.zarr")
    with pytest.raises(DatasetError, match="exists"):
        collect(swing(num_episodes=2), tmp_path / "x.zarr")
    assert first.verify(deep=True).num_rows == 201
    assert collect(swing(num_episodes=2), tmp_path / "x.zarr", overwrite=True).num_episodes == 2


def test_settings_are_checked():
    with pytest.raises(ValidationError, match="num_episodes"):
        CollectConfig(environment="Pendulum-v1", num_episodes=0)
