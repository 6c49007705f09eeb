"""Frames stacked in an environment, against those that a feed stacks."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dask_rl.pipeline.feed.frames import stack_space
from dask_rl.pipeline.rollouts.stacked_frames import StackedFrames, newest_frames, stack_frames

CAMERA, POSE = spaces.Box(0, 255, (2, 3), np.uint8), spaces.Box(-9, 9, (2,), np.float32)


class Counting(gymnasium.Env[Any, Any]):
    """Observations say how many steps there have been."""

    action_space = spaces.Discrete(2)

    def __init__(self, nested: bool) -> None:
        self.nested = nested
        self.observation_space = spaces.Dict({"camera": CAMERA, "pose": spaces.Tuple((POSE,))}) if nested else CAMERA
        self.steps = 0
        self.camera = np.zeros((2, 3), np.uint8)  # one array for all observations, as some environments have it

    def _observe(self) -> Any:
        self.camera[:] = self.steps
        return {"camera": self.camera, "pose": (np.full(2, self.steps, np.float32),)} if self.nested else self.camera

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 7
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observe(), 0.0, False, False, {}


def test_what_a_policy_takes_in_stacks_is_stacked() -> None:
    wanted = stack_space(CAMERA, "observations", {"observations": 3})
    environment = stack_frames(Counting(nested=False), wanted)
    assert environment.observation_space == wanted
    seen = [environment.reset()[0]] + [environment.step(0)[0] for _ in range(3)] + [environment.reset()[0]]
    assert [frames[:, 0, 0].tolist() for frames in seen] == [
        [7, 7, 7],
        [7, 7, 8],
        [7, 8, 9],
        [8, 9, 10],
        [7, 7, 7],
    ]
    assert all(wanted.contains(frames) for frames in seen)


def test_parts_of_nested_observations_are_stacked_by_themselves() -> None:
    single = Counting(nested=True)
    wanted = stack_space(single.observation_space, "observations", {"observations/camera": 2})
    environment = stack_frames(single, wanted)
    environment.reset()
    observation = environment.step(1)[0]
    assert environment.observation_space == wanted
    assert observation["camera"][:, 0, 0].tolist() == [7, 8]
    assert observation["pose"][0].tolist() == [8, 8]
    assert wanted.contains(observation)


def test_an_environment_that_fits_is_left_as_it_is() -> None:
    for nested in (False, True):
        environment = Counting(nested)
        assert stack_frames(environment, environment.observation_space) is environment
    other = spaces.Box(0, 255, (3, 3, 4), np.uint8)
    assert not isinstance(stack_frames(Counting(nested=False), other), StackedFrames)


def test_a_newest_frame_that_is_kept_keeps_no_stack() -> None:
    environment = stack_frames(Counting(nested=False), stack_space(CAMERA, "observations", {"observations": 3}))
    stack = environment.reset()[0]
    newest = newest_frames(environment, {"observations": stack})["observations"]
    assert newest.base is None
    np.testing.assert_array_equal(newest, stack[-1])
