"""Behaviour cloning: supervised learning of the logged actions.

L(π) = −mean log π(a|s) for a stochastic policy; L(π) = mean ‖π(s) − a‖² / act_dim (actions scaled to [−1, 1]) for a
deterministic one. With `top_fraction` below 1 only the episodes with the best returns are used (%BC: Chen et al.
2021, arXiv:2106.01345). A Gaussian policy has a tanh mean and a state-independent log-std.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium
import torch

from dask_rl.learners.algorithm import Algorithm, AlgorithmConfig, Phase
from dask_rl.learners.batch import Batch, observations_of
from dask_rl.learners.losses import masked_sum, row_mask
from dask_rl.learners.module import RLModule, RLModuleSpec
from dask_rl.learners.policies import DeterministicPolicy, stochastic_policy
from dask_rl.learners.spaces import action_kind


class BCConfig(AlgorithmConfig):
    """Settings of behaviour cloning."""

    name: Literal["bc"] = "bc"
    policy: Literal["stochastic", "deterministic"] = "stochastic"
    """Maximise the log-likelihood of the actions, or minimise their squared error; Discrete actions take the
    likelihood either way."""


class BCModule(RLModule):
    """A policy."""

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], config: BCConfig
    ) -> None:
        super().__init__(observation_space, action_space, config)
        if config.policy == "deterministic" and action_kind(action_space) == "continuous":
            self.policy: torch.nn.Module = DeterministicPolicy(
                observation_space,
                action_space,  # type: ignore[arg-type]
                config.hidden_sizes,
                config.images,
            )
        else:
            self.policy = stochastic_policy(observation_space, action_space, config.hidden_sizes, config.images)


class BC(Algorithm[BCConfig]):
    """Behaviour cloning."""

    name = "bc"
    Config = BCConfig
    required_fields: ClassVar[tuple[str, ...]] = ("observations", "actions")

    def module_class(self, spec: RLModuleSpec) -> type[RLModule]:
        """Return BCModule, for Box and Discrete actions."""
        action_kind(spec.action_space)
        return BCModule

    def losses(
        self, module: Any, batch: Batch, noise: Mapping[str, torch.Tensor], phase: Phase
    ) -> dict[str, torch.Tensor]:
        """Return the policy loss."""
        observations, actions = observations_of(batch), batch["actions"]
        if isinstance(module.policy, DeterministicPolicy):
            difference = module.policy(observations) - module.policy.scaling.normalize(actions)
            per_row = difference.square().mean(-1)
        else:
            per_row = -module.policy.log_prob(observations, actions)
        return {"policy_loss": masked_sum(per_row, row_mask(batch))}
