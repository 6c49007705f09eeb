"""The spaces of stacked frames, which encoders must be able to tell from images with channels."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces

from dask_rl.pipeline.feed.frames import stacked_space
from dask_rl.pipeline.feed.sampling import Sampling
from dask_rl.storage.errors import ConfigError
from dask_rl.storage.schema import ArraySpec

PATH = "observations/board"


def stacked(shape: tuple[int, ...], num_frames: int, dtype: Any = np.uint8) -> tuple[int, ...] | None:
    sampling = Sampling(frame_stack=num_frames, frame_stack_fields=(PATH,))
    dataset = SimpleNamespace(
        arrays={PATH: ArraySpec(PATH, np.dtype(dtype), shape)},
        observation_space=spaces.Dict({"board": spaces.Box(0, 1, shape, dtype)}),
    )
    return cast(spaces.Dict, stacked_space(sampling, cast(Any, dataset)))["board"].shape


def test_stacks_that_would_pass_for_one_image_with_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match=rf"frame_stack of {PATH}: got 8 frames of 9 × 8 .*at most 7.*\(1, 9, 8\)"):
        stacked((9, 8), 8)
    assert stacked((9, 8), 7) == (7, 9, 8)
    assert stacked((1, 9, 8), 8) == (8, 1, 9, 8)
    assert stacked((9, 8), 8, np.float32) == (8, 9, 8)
