"""The observation space that a learner sees where frames are stacked."""

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.nested import subspaces
from dask_rl.storage.schema import OBSERVATIONS, ArraySpec
from dask_rl.storage.spaces import Space, describe_space

from .sampling import Sampling


def stacked_space(sampling: Sampling, dataset: OfflineDataset, single: Space | None = None) -> Space:
    """Return the space of the observations that a feed of these settings delivers.

    Args:
        sampling: the settings.
        dataset: what is read.
        single: the space of single observations, where it is not the dataset's: one of the same parts and shapes.

    Raises:
        ConfigError: frames to stack that are no observations, or are no Boxes, or would pass for channels.
    """
    prefix = f"{OBSERVATIONS}/"
    specs = [spec for path, spec in dataset.arrays.items() if path == OBSERVATIONS or path.startswith(prefix)]
    frames = dict.fromkeys(sampling.stacked_fields(specs), sampling.frame_stack)
    for spec in specs:
        if spec.path in frames:
            _refuse_as_channels(spec, sampling.frame_stack)
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


def _refuse_as_channels(spec: ArraySpec, num_frames: int) -> None:
    """Refuse a stack (k, H, W) of images without channels that an encoder would take for one image (H, W, C)."""
    if spec.dtype != np.uint8 or len(spec.row_shape) != 2 or num_frames < spec.row_shape[1]:
        return
    height, width = spec.row_shape
    raise ConfigError(
        explain(
            f"frame_stack of {spec.path}",
            got=f"{num_frames} frames of {height} × {width} pixels",
            allowed=f"at most {width - 1}, or frames with an axis for their channels",
            fix=f"stack fewer, or store the frames as (1, {height}, {width})",
        )
    )
