import gymnasium
import numpy as np
import numpy.testing as npt
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from dask_rl.learners.spaces import ActionScaling, action_kind, action_size, observation_size
from dask_rl.storage.errors import ConfigError


def test_sizes_and_kinds():
    assert observation_size(Box(-1, 1, (4, 2))) == 8
    assert observation_size(Box(0, 255, (3, 4), np.uint8)) == 12
    assert (action_kind(Box(-1, 1, (2, 3))), action_size(Box(-1, 1, (2, 3)))) == ("continuous", 6)
    assert (action_kind(Discrete(5, start=2)), action_size(Discrete(5, start=2))) == ("discrete", 5)


@pytest.mark.parametrize("space", [Discrete(3), Dict({"x": Box(-1, 1)}), MultiDiscrete([2, 2])])
def test_other_observation_spaces_are_refused(space):
    with pytest.raises(ConfigError, match=r"observation space: got .*; allowed: a Box"):
        observation_size(space)


@pytest.mark.parametrize("space", [Box(0, 4, (2,), np.int32), MultiDiscrete([2, 2]), gymnasium.spaces.Text(3)])
def test_other_action_spaces_are_refused(space):
    with pytest.raises(ConfigError, match=r"action space: got .*; allowed: a Box of floats or a Discrete"):
        action_kind(space)


def test_scaling_maps_the_box_to_minus_one_and_one_and_back():
    low, high = np.array([[-2.0, 0.0, 10.0]], np.float32), np.array([[2.0, 1.0, 30.0]], np.float32)
    scaling = ActionScaling(Box(low, high)).double()
    edges = torch.from_numpy(np.stack([low, high, (low + high) / 2])).double()  # (3, 1, 3)
    npt.assert_allclose(scaling.normalize(edges).numpy(), np.array([[-1.0] * 3, [1.0] * 3, [0.0] * 3]), atol=1e-12)
    npt.assert_allclose(scaling.denormalize(scaling.normalize(edges)).numpy(), edges.flatten(1).numpy())
    assert scaling.bounded
    assert not scaling.state_dict(), "the scale follows from the space: nothing to save"


@pytest.mark.parametrize("high", [np.inf, -2.0])
def test_a_box_without_a_range_is_left_as_it_is(high):
    scaling = ActionScaling(Box(np.array([-2.0, -2.0], np.float32), np.array([2.0, high], np.float32)))
    actions = torch.randn(5, 2)
    assert not scaling.bounded
    assert torch.equal(scaling.normalize(actions), actions)
    assert torch.equal(scaling.denormalize(actions), actions)
