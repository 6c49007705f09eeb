"""Environments of images and mappings: collected, played, wrapped where a policy takes several frames."""

import gymnasium
import numpy as np
import pytest
from grid_environments import MAX_STEPS, Arms, Grid, GridWalker, Rooms
from gymnasium import spaces

from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.rollouts.controllers import NoisyPolicy, RandomActions
from dask_rl.pipeline.rollouts.environments import EnvironmentConfig, check_spaces, make_environment
from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig, evaluate
from dask_rl.pipeline.rollouts.rollout import RolloutTask, roll_out
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.nested import parts_of, take_element

GRID, ROOMS, ARMS = (f"grid_environments:{name}-v0" for name in ("Grid", "Rooms", "Arms"))


def replay(cls, episode, seed):
    """The observations, by path, that the actions of an episode lead to."""
    environment = cls()

    def copied(observation):
        return {
            path: part.copy() for path, part in parts_of("observations", cls.observation_space, observation).items()
        }

    seen = [copied(environment.reset(seed=seed)[0])]
    actions = [take_element(cls.action_space, episode.actions, t) for t in range(len(episode))]
    seen += [copied(environment.step(action)[0]) for action in actions]
    return seen


@pytest.mark.parametrize(("environment", "cls"), [(GRID, Grid), (ROOMS, Rooms), (ARMS, Arms)])
def test_what_is_collected_is_what_replaying_its_actions_gives(tmp_path, environment, cls):
    config = CollectConfig(environment=environment, num_episodes=5, seed=3, episodes_per_task=2)
    with collect(config, tmp_path / "x.zarr") as dataset:
        assert dataset.observation_space == cls.observation_space
        assert dataset.action_space == cls.action_space
        dataset.verify(deep=True)
        for number, episode in enumerate(dataset.episodes()):
            columns = episode.columns()
            for t, parts in enumerate(replay(cls, episode, 3 + number)):
                for path, part in parts.items():
                    np.testing.assert_array_equal(columns[path][t], part, err_msg=path)
            assert episode.truncated == (len(episode) == MAX_STEPS and not episode.terminated)


def test_a_policy_sees_and_gives_mappings():
    result = evaluate(GridWalker(Rooms.observation_space), EvaluationConfig(environment=ROOMS, num_episodes=12))
    assert result.returns == (1.0,) * 12
    alone = evaluate(GridWalker(Grid.observation_space), EvaluationConfig(environment=GRID, num_episodes=12))
    assert (alone.returns, alone.lengths) == (result.returns, result.lengths)


class ArmsWalker(GridWalker):
    action_space = Arms.action_space

    def __call__(self, observations):
        direction = super().__call__(observations)
        return {"direction": direction, "go": np.ones((len(direction), 1), np.int8)}


def test_nested_actions_are_played_and_disturbed_part_by_part():
    config = EvaluationConfig(environment=ARMS, num_episodes=8)
    assert evaluate(ArmsWalker(Arms.observation_space), config).return_mean == 1
    policy = NoisyPolicy(ArmsWalker(Rooms.observation_space), 0.5)
    (episode,) = roll_out(policy, RolloutTask(EnvironmentConfig(environment=ARMS), 0, 1, seed=0))
    assert episode.actions["go"].shape == (len(episode), 1)
    generators = [np.random.default_rng(i) for i in range(3000)]
    actions = RandomActions(Arms.action_space).act(np.zeros((3000, 1)), generators)
    assert actions["direction"].mean() == pytest.approx(1.5, abs=0.1)
    assert actions["go"].mean() == pytest.approx(0.5, abs=0.05)


def test_spaces_are_compared_part_by_part():
    environment = make_environment(EnvironmentConfig(environment=ROOMS))
    shown = {**Rooms.observation_space.spaces, "goal": spaces.Box(1, 2, (2,), np.float32)}  # bounds as data showed them
    check_spaces(GridWalker(spaces.Dict(shown)), environment, ROOMS)
    for other in (
        spaces.Dict({**shown, "goal": spaces.Box(1, 2, (3,), np.float32)}),
        spaces.Dict({**shown, "clock": spaces.Tuple((spaces.Discrete(5), spaces.MultiBinary(1)))}),
        spaces.Dict({key: part for key, part in shown.items() if key != "goal"}),
        Grid.observation_space,
    ):
        with pytest.raises(ConfigError, match="observation space of the policy"):
            check_spaces(GridWalker(other), environment, ROOMS)
    environment.close()


class FramesWalker(GridWalker):
    """Asserts that it sees the last three frames, and walks."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (3, *Grid.observation_space.shape), np.uint8))

    def __call__(self, observations):
        assert observations.shape[1:] == self.observation_space.shape
        steps = np.abs(np.diff(observations[..., 0].reshape(len(observations), 3, -1).argmax(2), axis=1))
        assert np.isin(steps, [0, 1, 6]).all()
        return super().__call__(observations[:, -1])


def test_a_policy_of_several_frames_gets_them_and_single_ones_are_stored(tmp_path):
    config = CollectConfig(environment=GRID, num_episodes=6, seed=1)
    frames = collect(config, tmp_path / "frames.zarr", policy=FramesWalker())
    single = collect(config, tmp_path / "single.zarr", policy=GridWalker(Grid.observation_space))
    assert frames.observation_space == Grid.observation_space
    assert frames.content_hash == single.content_hash
    result = evaluate(FramesWalker(), EvaluationConfig(environment=GRID, num_episodes=6, seed=1))
    assert result.lengths == tuple(single.episode_lengths)


def test_a_policy_with_too_few_actions_is_named():
    class Lazy(GridWalker):
        def __call__(self, observations):
            return super().__call__(observations)[:1]

    with pytest.raises(ConfigError, match=r"policy: got rows \{'actions': 1\} for 4 observations"):
        evaluate(Lazy(Grid.observation_space), EvaluationConfig(environment=GRID, num_episodes=4))


def test_text_has_no_place_in_a_dataset():
    with pytest.raises(ConfigError, match=r"observation space of grid_environments:Named-v0/name: got Text"):
        make_environment(EnvironmentConfig(environment="grid_environments:Named-v0"))
    assert "Named-v0" in gymnasium.registry
