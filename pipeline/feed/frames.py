"""The observation space that a learner sees where frames are stacked."""

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.nested import subspaces
from dask_rl.storage.schema import OBSERVATIONS
from dask_rl.storage.spaces import Space, describe_space

from .sampling import Sampling


def stacked_space(sampling: Sampling, dataset: OfflineDataset, single: Space | None = None) -> Space:
    """Return the space of the observations that a feed of these settings delivers.

    Args:
        sampling: the settings.
        dataset: what is read.
        single: the space of single observations, where it is not the dataset's: one of the same parts and shapes.

    Raises:
        ConfigError: frames to stack that are no observations, or are no Boxes.
    """
    prefix = f"{OBSERVATIONS}/"
    specs = [spec for path, spec in dataset.arrays.items() if path == OBSERVATIONS or path.startswith(prefix)]
    frames = dict.fromkeys(sampling.stacked_fields(specs), sampling.frame_stack)
    return stack_space(dataset.observation_space if single is None else single, OBSERVATIONS, frames)


def stack_space(space: Space, path: str, frames: Mapping[str, int]) -> Space:
    """Return the space at `path` with those of its parts that `frames` names as (frames, …), the oldest first."""
    parts = subspaces(space)
    if parts is not None:
        made = {key: stack_space(part, f"{path}/{key}", frames) for key, part in parts.items()}
        return spaces.Tuple(tuple(made.values())) if isinstance(space, spaces.Tuple) else spaces.Dict(made)
    if path not in frames:
        return space
    if not isinstance(space, spaces.Box):
        fix = "leave it out of frame_stack_fields"
        raise ConfigError(explain(f"frame_stack of {path}", got=describe_space(space), allowed="a Box", fix=fix))
    low, high = (np.repeat(bound[None], frames[path], axis=0) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)
