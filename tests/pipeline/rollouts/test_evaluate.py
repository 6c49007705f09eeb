"""Rollouts without a cluster: seeds, chunks, spaces, scores."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.rollouts.controllers import NoisyPolicy, PendulumSwingUp, RandomActions
from dask_rl.pipeline.rollouts.environments import EnvironmentConfig, check_spaces, make_environment
from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig, evaluate
from dask_rl.pipeline.rollouts.rollout import RolloutTask, roll_out
from dask_rl.storage.errors import ConfigError, WaitTimeoutError


class PoleBalancer:
    """Pushes towards the side the pole leans to: some forty steps."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)  # bounds as some dataset showed them
    action_space = spaces.Discrete(2)

    def __call__(self, observations):
        return (observations[:, 2] > 0).astype(np.int64)


def play_alone(policy, environment, seed):
    env = gymnasium.make(environment)
    observation, _ = env.reset(seed=seed)
    total, steps, done = 0.0, 0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(policy(observation[None])[0])
        total, steps, done = total + float(reward), steps + 1, terminated or truncated
    env.close()
    return total, steps


def test_each_episode_is_the_one_of_its_seed_played_alone():
    config = EvaluationConfig(environment="CartPole-v1", num_episodes=7, seed=3, episodes_per_task=4)
    result = evaluate(PoleBalancer(), config)
    alone = [play_alone(PoleBalancer(), "CartPole-v1", 3 + i) for i in range(7)]
    assert list(zip(result.returns, result.lengths, strict=True)) == alone
    assert len(set(result.lengths)) > 1  # else lock-step would hide a mistake


def test_mean_standard_error_and_normalised_score():
    config = EvaluationConfig(environment="CartPole-v1", num_episodes=5)
    result = evaluate(PoleBalancer(), config, ref_scores=(20.0, 220.0))
    returns = np.array(result.returns)
    assert result.return_mean == returns.mean()
    assert result.return_standard_error == pytest.approx(math.sqrt(((returns - returns.mean()) ** 2).sum() / 4 / 5))
    assert result.normalized_score == pytest.approx((returns.mean() - 20) / 2)
    assert result.summary()["num_episodes"] == 5
    one = evaluate(PoleBalancer(), EvaluationConfig(environment="CartPole-v1", num_episodes=1))
    assert (one.return_standard_error, one.normalized_score) == (None, None)


def test_swing_up_reaches_the_known_return():
    result = evaluate(PendulumSwingUp(), EvaluationConfig(environment="Pendulum-v1", num_episodes=100))
    assert -175 < result.return_mean < -135


def test_a_policy_of_another_environment_is_refused_with_the_fix():
    with pytest.raises(ConfigError) as caught:
        evaluate(PendulumSwingUp(), EvaluationConfig(environment="CartPole-v1"))
    message = str(caught.value)
    assert "Box([-8.0..-1.0], [1.0..8.0], (3,), float32)" in message
    assert "dask-rl data import --environment CartPole-v1 [--normalized-actions]" in message
    assert "\n" not in message


def test_actions_in_other_units_are_refused():
    class Normalized(PendulumSwingUp):
        action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    env = make_environment(EnvironmentConfig(environment="Pendulum-v1"))
    with pytest.raises(ConfigError, match="action space of the policy"):
        check_spaces(Normalized(), env, "Pendulum-v1")
    env.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"environment": "CartPol-v1"},
        {"environment": "no_such_module:CartPole-v1"},
        {"environment": "CartPole-v1", "environment_kwargs": {"gravitation": 1}},
        {"environment": "grid_environments:Named-v0"},
    ],
)
def test_an_environment_that_cannot_be_used_is_one_line(settings):
    with pytest.raises(ConfigError) as caught:
        make_environment(EnvironmentConfig(**settings))
    assert "\n" not in str(caught.value)
    assert settings["environment"] in str(caught.value)


def test_a_time_limit_truncates_and_the_final_observation_is_kept():
    config = EnvironmentConfig(environment="Pendulum-v1", max_episode_steps=5)
    (episode,) = roll_out(NoisyPolicy(PendulumSwingUp()), RolloutTask(config, 2, 3, seed=10))
    assert (len(episode), episode.truncated, episode.terminated, episode.id, episode.seed) == (5, True, False, 2, 12)
    assert episode.observations.shape == (6, 3)
    assert episode.actions.shape == (5, 1)


def test_episodes_that_never_end_are_given_up(tmp_path):
    endless = {"environment": "Pendulum-v1", "max_episode_steps": 10**9, "num_episodes": 3, "timeout_seconds": 0.05}
    message = r"episodes 0 to 2 of Pendulum-v1: got 3 that have not ended after 0\.05 s; raise .*max_episode_steps"
    with pytest.raises(WaitTimeoutError, match=message):
        evaluate(PendulumSwingUp(), EvaluationConfig(**endless))
    with pytest.raises(WaitTimeoutError, match=message):
        collect(CollectConfig(**endless), tmp_path / "x.zarr")
    assert list(tmp_path.iterdir()) == []


def test_noise_belongs_to_the_episode_and_stays_in_bounds():
    config = EnvironmentConfig(environment="Pendulum-v1", max_episode_steps=50)
    noisy = NoisyPolicy(PendulumSwingUp(), 0.5)
    together = roll_out(noisy, RolloutTask(config, 0, 3, seed=1))
    (alone,) = roll_out(noisy, RolloutTask(config, 1, 2, seed=1))
    np.testing.assert_array_equal(together[1].actions, alone.actions)
    (calm,) = roll_out(NoisyPolicy(PendulumSwingUp()), RolloutTask(config, 1, 2, seed=1))
    assert not np.array_equal(alone.actions, calm.actions)
    assert np.abs(alone.actions).max() <= 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 7]),
        spaces.MultiBinary(4),
        spaces.Box(-3.0, 1.0, (2, 2), np.float64),
    ],
)
def test_random_actions_fill_their_space(space):
    generators = [np.random.default_rng(i) for i in range(300)]
    actions = RandomActions(space).act(np.zeros((300, 1)), generators)
    assert all(space.contains(action.astype(space.dtype)) for action in actions)
    if isinstance(space, spaces.Discrete):
        assert set(actions.tolist()) == {5, 6, 7}


def test_discrete_noise_replaces_that_share_of_actions():
    policy = NoisyPolicy(PoleBalancer(), 0.4)
    generators = [np.random.default_rng(i) for i in range(4000)]
    actions = policy.act(np.full((4000, 4), -1.0), generators)  # without noise: all 0
    assert actions.mean() == pytest.approx(0.2, abs=0.03)
