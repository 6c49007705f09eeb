"""Observations to the inputs of a network: the one place that knows what they are made of."""

from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from dask_rl.storage.errors import ConfigError, InvalidDataError, explain
from dask_rl.storage.nested import flatten_space, is_nested

from .batch import Observations
from .images import ImageConfig, ImageEncoder, brightest, is_image
from .spaces import refuse_scalar

_ALLOWED = "Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them"


class _Typed(nn.Module):
    """Knows the type of the network's parameters, having none itself."""

    has_constant_buffers: ClassVar[bool] = True
    size: int
    """Numbers a row that `forward` returns."""
    _one: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_one", torch.ones(()), persistent=False)


class NumberEncoder(_Typed):
    """Numbers and flags, (B, *shape), as they are, (B, size)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.size = int(np.prod(shape, dtype=np.int64))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return (B, size) in the network's type."""
        return numbers.reshape(len(numbers), self.size).to(self._one.dtype)


class ChoiceEncoder(_Typed):
    """Choices of a Discrete, (B,), or a MultiDiscrete, (B, *shape), as one-hot vectors end to end, (B, size)."""

    _offsets: torch.Tensor  # (choices,) int64: where the vector of each begins, less its smallest value

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
        sizes, starts = (np.asarray(part, np.int64).reshape(-1) for part in (counts, space.start))
        self.size = int(sizes.sum())
        self.register_buffer("_offsets", torch.from_numpy(np.cumsum(sizes) - sizes - starts), persistent=False)

    def forward(self, choices: torch.Tensor) -> torch.Tensor:
        """Return (B, size) of 0 and 1."""
        places = choices.reshape(len(choices), len(self._offsets)).long() + self._offsets  # (B, choices)
        columns = torch.arange(self.size, device=places.device)
        return (places.unsqueeze(-1) == columns).any(1).to(self._one.dtype)


class NestedEncoder(nn.Module):
    """The parts of a Dict or Tuple, each encoded on its own, side by side in the order of their paths."""

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._paths = tuple(parts)
        self.parts = nn.ModuleList(parts.values())
        self.size = sum(_size(part) for part in self.parts)

    def forward(self, observations: Observations) -> torch.Tensor:
        """Return (B, size)."""
        given: Mapping[str, torch.Tensor] = {} if isinstance(observations, torch.Tensor) else observations
        missing = [path for path in self._paths if path not in given]
        if missing:
            fix = "give a tensor for each of them, such as observations/" + missing[0]
            raise ConfigError(
                explain("batch: observations", got=f"no part {', '.join(missing)}", allowed=list(self._paths), fix=fix)
            )
        encoded = [part(given[path]) for path, part in zip(self._paths, self.parts, strict=True)]
        return torch.cat(encoded, 1)


def make_encoder(space: gymnasium.Space[Any], images: ImageConfig) -> nn.Module | None:
    """Return what turns observations of a space into the inputs of a network; None where flattening them does.

    It has parameters of its own where there are images: each network has its own encoder, so that a loss reaches
    the parameters of its network only.

    Raises:
        ConfigError: the space holds what is no number, or images that are too small for the convolutions.
    """
    refuse_scalar("observation space", space)
    if isinstance(space, spaces.Box) and not is_image(space):
        return None
    if not is_nested(space):
        return _encoder_of("observations", space, images)
    try:
        parts = flatten_space("observations", space)
    except InvalidDataError as error:
        raise ConfigError(f"observation space: {error}") from None
    prefix = len("observations/")
    return NestedEncoder({path[prefix:]: _encoder_of(path, parts[path], images) for path in sorted(parts)})


def encoded_size(encoder: nn.Module | None, space: gymnasium.Space[Any]) -> int:
    """Return the number of inputs that a network gets."""
    return int(np.prod(space.shape or (), dtype=np.int64)) if encoder is None else _size(encoder)


def encode(encoder: nn.Module | None, observations: Observations) -> torch.Tensor:
    """Return the inputs of a network, (B, size)."""
    if encoder is not None:
        inputs: torch.Tensor = encoder(observations)
        return inputs
    if not isinstance(observations, torch.Tensor):
        got = f"parts {', '.join(observations) or '(none)'}"
        raise ConfigError(explain("batch: observations", got=got, allowed="one tensor", fix="give it as a whole"))
    return observations.flatten(1)


def _encoder_of(path: str, space: gymnasium.Space[Any], images: ImageConfig) -> nn.Module:
    match space:
        case spaces.Box() if is_image(space):
            return ImageEncoder(path, space.shape, images, brightest(space))
        case spaces.Discrete() | spaces.MultiDiscrete():
            return ChoiceEncoder(space)
        case spaces.Box() | spaces.MultiBinary():
            return NumberEncoder(tuple(space.shape or ()))
    subject = "observation space" if path == "observations" else f"observation space: {path}"
    raise ConfigError(explain(subject, got=space, allowed=_ALLOWED, fix="convert the observations when importing"))


def _size(encoder: nn.Module) -> int:
    size: Any = encoder.size
    return int(size)
