"""A user's own algorithm, outside the package: two optimizers, a loss and a module of its own."""

from collections.abc import Mapping
from typing import Any, Literal

import torch

from dask_rl.learners.algorithm import Algorithm, AlgorithmConfig, OptimizerSpec, Phase
from dask_rl.learners.algorithms.registry import register_algorithm
from dask_rl.learners.batch import Batch
from dask_rl.learners.losses import masked_sum, row_mask
from dask_rl.learners.module import RLModule, RLModuleSpec
from dask_rl.learners.networks import MLP
from dask_rl.learners.policies import stochastic_policy
from dask_rl.learners.spaces import observation_size

NAME: Any = "own-importable"


class OwnConfig(AlgorithmConfig):
    """Settings."""

    name: Literal[NAME] = NAME
    temperature: float = 1.0
    """How much better actions count for more."""


class OwnModule(RLModule):
    """A policy, and what it expects."""

    def __init__(self, observation_space: Any, action_space: Any, config: OwnConfig) -> None:
        super().__init__(observation_space, action_space, config)
        self.policy = stochastic_policy(observation_space, action_space, config.hidden_sizes)
        self.value = MLP(observation_size(observation_space), config.hidden_sizes, 1)


@register_algorithm
class Own(Algorithm[OwnConfig]):
    """Reward-weighted imitation with a baseline."""

    name = NAME
    Config = OwnConfig
    required_fields = ("observations", "actions", "rewards")

    def module_class(self, spec: RLModuleSpec) -> type[RLModule]:
        return OwnModule

    def optimizers(self, num_steps: int) -> dict[str, OptimizerSpec]:
        rate = self.config.learning_rate
        return {
            "policy": OptimizerSpec(("policy.",), [(0, rate), (100, 0.0)], torch.optim.AdamW, {"weight_decay": 1e-3}),
            "value": OptimizerSpec(("value.",), 3 * rate),
        }

    def losses(
        self, module: Any, batch: Batch, noise: Mapping[str, torch.Tensor], phase: Phase
    ) -> dict[str, torch.Tensor]:
        advantages = batch["rewards"] - module.value(batch["observations"].flatten(1)).squeeze(-1)
        weights = torch.exp(advantages.detach() / self.config.temperature).clamp(max=20.0)
        log_probs = module.policy.log_prob(batch["observations"], batch["actions"])
        mask = row_mask(batch)
        return {"policy_loss": masked_sum(-weights * log_probs, mask), "value_loss": masked_sum(advantages**2, mask)}
