"""An environment whose observations stack the last frames, as the feed stacked those that a policy learned from."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dask_rl.pipeline.feed.frames import stack_space
from dask_rl.storage.nested import flatten_space, subspaces
from dask_rl.storage.schema import OBSERVATIONS
from dask_rl.storage.spaces import Space

Environment = gymnasium.Env[Any, Any]


def stack_frames(environment: Environment, observation_space: Space) -> Environment:
    """Return the environment, wrapped where a policy of `observation_space` takes several frames of it.

    Those parts of an observation are stacked whose shape in `observation_space` is (k, *shape). What differs in
    another way is left as it is: whoever compares the spaces finds it.
    """
    wanted = flatten_space(OBSERVATIONS, observation_space)
    frames = {
        path: wanted[path].shape[0]  # type: ignore[index]
        for path, single in flatten_space(OBSERVATIONS, environment.observation_space).items()
        if path in wanted and _is_stack(wanted[path], single)
    }
    return StackedFrames(environment, frames) if frames else environment


def _is_stack(wanted: Space, single: Space) -> bool:
    both = isinstance(wanted, spaces.Box) and isinstance(single, spaces.Box)
    return both and bool(wanted.shape) and wanted.shape[1:] == single.shape  # type: ignore[index]


class StackedFrames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations with the last frames, the oldest first; the first of an episode stands in for those before it.

    Args:
        environment: what is played.
        frames: how many frames of each part of an observation, by its path, such as observations/camera.
    """

    def __init__(self, environment: Environment, frames: Mapping[str, int]) -> None:
        super().__init__(environment)
        self.frames = frames
        self._last: dict[str, deque[Any]] = {}
        self.observation_space = stack_space(environment.observation_space, OBSERVATIONS, frames)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._last = {}
        return self._stack(OBSERVATIONS, self.env.observation_space, observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step; its frame comes last."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        stacked = self._stack(OBSERVATIONS, self.env.observation_space, observation)
        return stacked, reward, terminated, truncated, info

    def _stack(self, path: str, space: Space, observation: Any) -> Any:
        parts = subspaces(space)
        if parts is not None:
            is_tuple = isinstance(space, spaces.Tuple)
            made = {
                key: self._stack(f"{path}/{key}", part, observation[int(key) if is_tuple else key])
                for key, part in parts.items()
            }
            return tuple(made.values()) if is_tuple else made
        if path not in self.frames:
            return observation
        frame = np.array(observation)
        last = self._last.setdefault(path, deque([frame] * self.frames[path], self.frames[path]))
        if last[-1] is not frame:
            last.append(frame)
        return np.stack(last)


def newest_frames(environment: Environment, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation, by path, as the environment below a StackedFrames gave it; others as they are.

    Frames are copies: a view of the newest one would keep the whole stack.
    """
    if not isinstance(environment, StackedFrames):
        return dict(parts)
    return {path: part[-1].copy() if path in environment.frames else part for path, part in parts.items()}
