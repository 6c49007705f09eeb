"""Action distributions: what a network says, its log-probability, its most likely action."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
import torch.nn.functional as F
from torch import nn

from .batch import Observations
from .images import ImageConfig
from .observation_networks import ObservationMLP
from .spaces import ActionScaling, action_kind, action_size

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
ACTION_LIMIT = 1 - 1e-5
"""Stored actions at the bounds are moved inside by this, as the mean of a tanh never reaches them."""
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class GaussianPolicy(nn.Module):
    """Diagonal Gaussian over actions in [-1, 1]: mean tanh(MLP), state-independent log-std in [-5, 2].

    The distribution itself is not squashed (Kostrikov et al. 2021, arXiv:2110.06169, appendix). Where the action
    space has no bounds, neither has the mean.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.spaces.Box,
        hidden_sizes: Sequence[int],
        images: ImageConfig | None = None,
    ) -> None:
        super().__init__()
        self.scaling = ActionScaling(action_space)
        self.network = ObservationMLP(observation_space, hidden_sizes, action_size(action_space), images)
        self.log_std = nn.Parameter(torch.zeros(action_size(action_space)))

    def mean(self, observations: Observations, masks: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """Return the mean in [-1, 1], (B, act_dim)."""
        mean: torch.Tensor = self.network(observations, masks)
        return torch.tanh(mean) if self.scaling.bounded else mean

    def log_prob(
        self, observations: Observations, actions: torch.Tensor, masks: Sequence[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return log π(a|s) of actions in their space, as a density over normalised actions; (B,)."""
        normalized = self.scaling.normalize(actions)
        if self.scaling.bounded:
            normalized = normalized.clamp(-ACTION_LIMIT, ACTION_LIMIT)
        log_std = self.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        z = (normalized - self.mean(observations, masks)) * torch.exp(-log_std)
        return -(0.5 * z.square() + log_std + HALF_LOG_2PI).sum(-1)

    def mode(self, observations: Observations) -> torch.Tensor:
        """Return the most likely action in its space, (B, act_dim)."""
        return self.scaling.denormalize(self.mean(observations))


class DeterministicPolicy(nn.Module):
    """One action per state: tanh(MLP) scaled to the action space."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.spaces.Box,
        hidden_sizes: Sequence[int],
        images: ImageConfig | None = None,
    ) -> None:
        super().__init__()
        self.scaling = ActionScaling(action_space)
        self.network = ObservationMLP(observation_space, hidden_sizes, action_size(action_space), images)

    def forward(self, observations: Observations) -> torch.Tensor:
        """Return the action in [-1, 1], (B, act_dim)."""
        action: torch.Tensor = self.network(observations)
        return torch.tanh(action) if self.scaling.bounded else action

    def mode(self, observations: Observations) -> torch.Tensor:
        """Return the action in its space, (B, act_dim)."""
        return self.scaling.denormalize(self(observations))


class CategoricalPolicy(nn.Module):
    """Softmax over the choices of a Discrete space; action i stands for `start + i`."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.spaces.Discrete,
        hidden_sizes: Sequence[int],
        images: ImageConfig | None = None,
    ) -> None:
        super().__init__()
        self.start = int(action_space.start)
        self.network = ObservationMLP(observation_space, hidden_sizes, action_size(action_space), images)

    def log_prob(
        self, observations: Observations, actions: torch.Tensor, masks: Sequence[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return log π(a|s); (B,)."""
        logits = self.network(observations, masks)
        index = (actions.long() - self.start).unsqueeze(-1)
        return F.log_softmax(logits, -1).gather(-1, index).squeeze(-1)

    def mode(self, observations: Observations) -> torch.Tensor:
        """Return the most likely action in its space, (B,) int64."""
        choice: torch.Tensor = self.network(observations).argmax(-1)
        return choice + self.start


def stochastic_policy(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    hidden_sizes: Sequence[int],
    images: ImageConfig | None = None,
) -> GaussianPolicy | CategoricalPolicy:
    """Return the policy with a log-probability that fits the action space."""
    policy = CategoricalPolicy if action_kind(action_space) == "discrete" else GaussianPolicy
    return policy(observation_space, action_space, hidden_sizes, images)  # type: ignore[arg-type]
