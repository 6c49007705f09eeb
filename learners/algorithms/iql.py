"""Implicit Q-learning (Kostrikov, Nair, Levine 2021, arXiv:2110.06169).

    u   = min_i Q̄_i(s, a) − V(s)
    L_V = |τ − 1(u < 0)| · u²
    L_Q = Σ_i (r + γ (1 − d) V(s′) − Q_i(s, a))²
    L_π = −min(exp(β u), 100) · log π(a|s)

Q̄ is the target network of both heads, moved by `target_rate` after each step; V(s′) and u carry no gradient. d is
terminated, never truncated. The policy is a Gaussian with a tanh mean that is *not* squashed (a squashed one scores 0
on antmaze), its log-std independent of the state. (τ, β): locomotion 0.7 and 3; antmaze 0.9 and 10; kitchen and adroit
0.7 and 0.5 with dropout 0.1. The policy's learning rate falls along a cosine to 0 at the end of the run.

By default all three losses read the parameters at the start of the step: one backward, one exchange. The order of the
authors' code, V → π with the new V → Q with the new V → Q̄, is `update_order: sequential`. For Discrete spaces Q has one
output per choice and the policy is a softmax.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium
import torch
from pydantic import Field

from dask_rl.learners.algorithm import Algorithm, AlgorithmConfig, OptimizerSpec, Phase, TargetUpdate
from dask_rl.learners.batch import Batch, Observations, observations_of
from dask_rl.learners.losses import dropout_masks, expectile_loss, masked_sum, row_mask
from dask_rl.learners.module import RLModule, RLModuleSpec
from dask_rl.learners.observation_networks import ObservationEnsemble, ObservationMLP
from dask_rl.learners.policies import ACTION_LIMIT, GaussianPolicy, stochastic_policy
from dask_rl.learners.schedules import Constant, Cosine
from dask_rl.learners.spaces import action_kind, action_size

MAX_WEIGHT = 100.0
"""Bound on exp(β·advantage), as in the authors' code."""
NUM_CRITICS = 2


class IQLConfig(AlgorithmConfig):
    """Settings of implicit Q-learning."""

    name: Literal["iql"] = "iql"
    expectile: float = Field(0.7, gt=0, lt=1)
    """τ of the value loss."""
    temperature: float = Field(3.0, ge=0)
    """β, the inverse temperature of the advantage weights; 0 is behaviour cloning."""
    target_rate: float = Field(0.005, gt=0, le=1)
    """Share by which the target critics move towards the critics after each step."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate of the policy's hidden layers."""
    policy_schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate of the policy over the run; cosine needs the run's length, else it is constant."""
    update_order: Literal["simultaneous", "sequential"] = "simultaneous"
    """All losses at the step's start, or V, then π, then Q, each with what the ones before it have learned."""


class IQLModule(RLModule):
    """Policy, two critics as one ensemble, their targets, and the value network."""

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], config: IQLConfig
    ) -> None:
        super().__init__(observation_space, action_space, config)
        hidden, images = config.hidden_sizes, config.images
        self.policy = stochastic_policy(observation_space, action_space, hidden, images)
        self.value = ObservationMLP(observation_space, hidden, 1, images)
        actions = action_size(action_space)
        is_gaussian = isinstance(self.policy, GaussianPolicy)
        others, outputs = (actions, 1) if is_gaussian else (0, actions)
        sizes = (NUM_CRITICS, observation_space, others, hidden, outputs, images)
        self.critic = ObservationEnsemble(*sizes)
        self.target_critic = ObservationEnsemble(*sizes).requires_grad_(False)
        self.target_critic.load_state_dict(self.critic.state_dict())

    def action_values(
        self, critic: ObservationEnsemble, observations: Observations, actions: torch.Tensor
    ) -> torch.Tensor:
        """Return Q_i(s, a) of the logged actions, (2, B)."""
        if isinstance(self.policy, GaussianPolicy):
            normalized = self.policy.scaling.normalize(actions)
            if self.policy.scaling.bounded:
                normalized = normalized.clamp(-ACTION_LIMIT, ACTION_LIMIT)
            values: torch.Tensor = critic(observations, normalized)
            return values.squeeze(-1)
        index = (actions.long() - self.policy.start).expand(NUM_CRITICS, -1).unsqueeze(-1)
        return critic(observations).gather(-1, index).squeeze(-1)


class IQL(Algorithm[IQLConfig]):
    """Implicit Q-learning."""

    name = "iql"
    Config = IQLConfig
    required_fields: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
        "next_valid",
    )
    takes_n_step: ClassVar[bool] = True

    def module_class(self, spec: RLModuleSpec) -> type[RLModule]:
        """Return IQLModule, for Box and Discrete actions."""
        action_kind(spec.action_space)
        return IQLModule

    def optimizers(self, num_steps: int) -> dict[str, OptimizerSpec]:
        """Return one Adam for each of policy, value and critics."""
        rate = self.config.learning_rate
        cosine = self.config.policy_schedule == "cosine" and num_steps > 0
        return {
            "critic": OptimizerSpec(("critic.",), Constant(rate)),
            "policy": OptimizerSpec(("policy.",), Cosine(rate, num_steps) if cosine else Constant(rate)),
            "value": OptimizerSpec(("value.",), Constant(rate)),
        }

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase, or value, policy, critic in the authors' order."""
        target = TargetUpdate("target_critic.", "critic.", self.config.target_rate)
        if self.config.update_order == "simultaneous":
            return (Phase("step", ("critic", "policy", "value"), (target,)),)
        return (
            Phase("value", ("value",)),
            Phase("policy", ("policy",)),
            Phase("critic", ("critic",), (target,)),
        )

    def noise_shapes(self, module: IQLModule) -> dict[str, tuple[int, ...]]:
        """Return the dropout noise of the policy's hidden layers, if there is any."""
        if self.config.dropout == 0:
            return {}
        return {name: (size,) for name, size in zip(self._dropout_names(), self.config.hidden_sizes, strict=True)}

    def losses(
        self, module: IQLModule, batch: Batch, noise: Mapping[str, torch.Tensor], phase: Phase
    ) -> dict[str, torch.Tensor]:
        """Return the losses of the phase's optimizers."""
        observations, actions, mask = observations_of(batch), batch["actions"], row_mask(batch)
        losses: dict[str, torch.Tensor] = {}
        if "value" in phase.optimizers or "policy" in phase.optimizers:
            with torch.no_grad():
                target = module.action_values(module.target_critic, observations, actions).amin(0)
            advantages = target - module.value(observations).squeeze(-1)
        if "value" in phase.optimizers:
            losses["value_loss"] = masked_sum(expectile_loss(advantages, self.config.expectile), mask)
        if "critic" in phase.optimizers:
            predicted = module.action_values(module.critic, observations, actions)
            errors = (self._targets(module, batch) - predicted).square().sum(0)
            losses["critic_loss"] = masked_sum(errors, _bootstrap_mask(batch, mask))
        if "policy" in phase.optimizers:
            weights = torch.exp(self.config.temperature * advantages.detach()).clamp(max=MAX_WEIGHT)
            masks = dropout_masks(noise, self._dropout_names(), self.config.dropout)
            losses["policy_loss"] = masked_sum(-weights * module.policy.log_prob(observations, actions, masks), mask)
        return losses

    def _targets(self, module: IQLModule, batch: Batch) -> torch.Tensor:
        """Return r + γ (1 − d) V(s′), with γ^m from the batch where r is of several steps.

        Where s′ is not real its value is left out, not multiplied by 0.
        V(s′) is a pass of its own: rows of s′ in the pass of V(s) would meet the gradient, and 0 · NaN is NaN.
        """
        with torch.no_grad():
            next_values = module.value(observations_of(batch, "next_observations")).squeeze(-1)
        bootstraps = batch["next_valid"].bool() & (batch["terminations"] == 0)
        bootstrap = torch.where(bootstraps, next_values, torch.zeros_like(batch["rewards"]))
        return batch["rewards"] + batch.get("discounts", self.config.discount) * bootstrap

    def _dropout_names(self) -> list[str]:
        return [f"policy_dropout_{index}" for index in range(len(self.config.hidden_sizes))]


def _bootstrap_mask(batch: Batch, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the rows whose critic target is known: those with a next observation, and terminated ones."""
    known = (batch["next_valid"].bool() | (batch["terminations"] > 0)).to(batch["rewards"].dtype)
    return known if mask is None else known * mask
