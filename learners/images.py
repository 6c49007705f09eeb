"""Images to features: convolutions and a linear layer (Mnih et al. 2015, "Human-level control through deep RL")."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from dask_rl.storage.errors import ConfigError, explain

MIN_IMAGE_RANK, MAX_IMAGE_RANK = 3, 4
"""Axes of an image, and of a stack of them."""


class Convolution(NamedTuple):
    """One convolution, without padding."""

    channels: Annotated[int, Field(ge=1)]
    """Outputs."""
    kernel: Annotated[int, Field(ge=1)]
    """Pixels of a side."""
    stride: Annotated[int, Field(ge=1)] = 1
    """Pixels."""


_BY_SIZE = (
    (36, (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))),  # those of DQN
    (20, (Convolution(32, 4, 2), Convolution(64, 4, 2))),
    (8, (Convolution(32, 4, 2), Convolution(64, 3, 1))),
    (3, (Convolution(32, 3, 1),)),
)
"""Pixels of the shorter side from which on these are the default."""


class ImageConfig(BaseModel):
    """What becomes of observations that are images: uint8 Boxes of three axes, four where frames are stacked."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    convolutions: tuple[Convolution, ...] | None = Field(None, max_length=100)
    """[channels, kernel, stride] of each, ReLU behind it; default: DQN's from 36 pixels on, fewer for less."""
    num_features: int = Field(512, ge=1)
    """Outputs of the linear layer behind them, which go to the hidden layers."""


def is_image(space: gymnasium.Space[Any]) -> bool:
    """Tell whether a space is one of images: a Box of bytes, (H, W, C), (C, H, W), or a stack (k, …) of them."""
    is_bytes = isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8
    return is_bytes and MIN_IMAGE_RANK <= len(space.shape or ()) <= MAX_IMAGE_RANK


def brightest(space: gymnasium.spaces.Box) -> int:
    """Return the largest value that any pixel of a space of images may have: not 255 in all of them."""
    return max(1, int(space.high.max()))


class ImageEncoder(nn.Module):
    """Images of 0 … `brightest`, (B, *shape), to (B, num_features).

    The axis of channels is the last one of a frame, or the first where that is the shorter one of the two. The frames
    of a stack (k, …) become k times as many channels.

    Args:
        subject: the observations' name, for messages.
        shape: of one image or stack.
        config: the layers.
        brightest: the largest value of a pixel, which the layers get as 1.

    Raises:
        ConfigError: the layers do not fit the image.
    """

    def __init__(self, subject: str, shape: Sequence[int], config: ImageConfig, brightest: int = 255) -> None:
        super().__init__()
        self._scale = 1 / brightest
        *stack, first, _, last = shape
        self._channels_first = first < last
        channels, height, width = shape[-3:] if self._channels_first else (last, *shape[-3:-1])
        layers = config.convolutions
        if layers is None:
            layers = _default_layers(subject, height, width)
        height, width = _check_layers(subject, layers, height, width)
        inputs = [channels * math.prod(stack), *(layer.channels for layer in layers)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width_in, layer.channels, layer.kernel, layer.stride)
            for width_in, layer in zip(inputs, layers, strict=False)
        )
        self.linear = nn.Linear(inputs[-1] * height * width, config.num_features)
        self.size = config.num_features

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return (B, num_features), none below 0."""
        if not self._channels_first:
            images = images.movedim(-1, -3)
        x = images.flatten(1, -3).to(self.linear.weight.dtype) * self._scale  # (B, channels, height, width)
        for layer in self.convolutions:
            x = F.relu(layer(x))
        return F.relu(self.linear(x.flatten(1)))


def _default_layers(subject: str, height: int, width: int) -> tuple[Convolution, ...]:
    for pixels, layers in _BY_SIZE:
        if min(height, width) >= pixels:
            return layers
    raise ConfigError(
        explain(
            f"images of {subject}",
            got=f"{height} × {width} pixels",
            allowed=f"at least {_BY_SIZE[-1][0]} × {_BY_SIZE[-1][0]} for the default convolutions",
            fix="set algorithm.images.convolutions, or store them as floats if they are no images",
        )
    )


def _check_layers(subject: str, layers: Sequence[Convolution], height: int, width: int) -> tuple[int, int]:
    """Return the height and width behind the layers."""
    for number, layer in enumerate(layers, 1):
        if layer.kernel > min(height, width):
            raise ConfigError(
                explain(
                    f"algorithm.images.convolutions: layer {number}",
                    got=f"a kernel of {layer.kernel} over {height} × {width} pixels, of the images of {subject}",
                    allowed=f"at most {min(height, width)}",
                    fix="use fewer layers, or smaller kernels and strides, or leave them out for the default",
                )
            )
        height, width = ((side - layer.kernel) // layer.stride + 1 for side in (height, width))
    return height, width
