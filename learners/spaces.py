"""What networks need to know of Gymnasium spaces: sizes, kinds, and the scale of actions."""

from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import torch
from torch import nn

from dask_rl.storage.errors import ConfigError, explain

ActionKind = Literal["continuous", "discrete"]


def observation_size(space: gymnasium.Space[Any]) -> int:
    """Return the number of inputs of a network for this observation space."""
    refuse_scalar("observation space", space)
    if isinstance(space, gymnasium.spaces.Box):
        return int(np.prod(space.shape, dtype=np.int64))
    raise ConfigError(
        explain("observation space", got=space, allowed="a Box", fix="flatten the observations when importing")
    )


def refuse_scalar(name: str, space: gymnasium.Space[Any]) -> None:
    """Raise ConfigError for a Box without axes: a batch of its values has none that networks could take."""
    if isinstance(space, gymnasium.spaces.Box) and space.shape == ():
        raise ConfigError(explain(name, got=f"{space}, of shape ()", allowed="shape (1,) or more", fix="reshape it"))


def action_kind(space: gymnasium.Space[Any]) -> ActionKind:
    """Tell continuous (a Box) from discrete (a Discrete) action spaces; others raise ConfigError."""
    refuse_scalar("action space", space)
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return "continuous"
    if isinstance(space, gymnasium.spaces.Discrete):
        return "discrete"
    raise ConfigError(
        explain("action space", got=space, allowed="a Box of floats or a Discrete", fix="convert the actions")
    )


def action_size(space: gymnasium.Space[Any]) -> int:
    """Return the number of action dimensions of a Box, or of choices of a Discrete."""
    if action_kind(space) == "discrete":
        return int(space.n)  # type: ignore[attr-defined]
    return int(np.prod(space.shape or (), dtype=np.int64))


class ActionScaling(nn.Module):
    """The affine map between actions in their Box and in [-1, 1]; the identity where a bound is infinite."""

    has_constant_buffers: ClassVar[bool] = True
    """Whether no step changes its buffers, so that they need not be remembered."""
    center: torch.Tensor  # (act_dim,)
    half_range: torch.Tensor  # (act_dim,)

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__()
        low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
        self.bounded = bool(np.isfinite(low).all() and np.isfinite(high).all() and (high > low).all())
        center = (high + low) / 2 if self.bounded else np.zeros_like(low)
        half_range = (high - low) / 2 if self.bounded else np.ones_like(low)
        self.register_buffer("center", torch.from_numpy(center).float(), persistent=False)
        self.register_buffer("half_range", torch.from_numpy(half_range).float(), persistent=False)

    def normalize(self, actions: torch.Tensor) -> torch.Tensor:
        """Map (B, *act_shape) in the space to (B, act_dim) in [-1, 1]."""
        return (actions.flatten(1) - self.center) / self.half_range

    def denormalize(self, normalized: torch.Tensor) -> torch.Tensor:
        """Map (B, act_dim) in [-1, 1] to (B, act_dim) in the space."""
        return normalized * self.half_range + self.center
