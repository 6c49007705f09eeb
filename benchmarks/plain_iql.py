"""IQL as one writes it by hand in plain torch: a network a module, an optimizer a network, a loop over the target."""

import copy
from collections.abc import Mapping

import torch
from problem import ACTION_SIZE, HIDDEN_SIZES, OBSERVATION_SIZE
from torch import nn

from dask_rl.learners.batch import Batch

EXPECTILE, TEMPERATURE, MAX_WEIGHT, DISCOUNT, TARGET_RATE, LEARNING_RATE = 0.7, 3.0, 100.0, 0.99, 0.005, 3e-4
ACTION_LIMIT = 1 - 1e-5


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a perceptron with two hidden layers."""
    first, second = HIDDEN_SIZES
    return nn.Sequential(
        nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)
    )


class PlainIQL:
    """The same maths as dask_rl's IQL with `update_order: simultaneous`."""

    def __init__(self) -> None:
        self.policy, self.value = mlp(OBSERVATION_SIZE, ACTION_SIZE), mlp(OBSERVATION_SIZE, 1)
        self.critics = [mlp(OBSERVATION_SIZE + ACTION_SIZE, 1) for _ in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.log_std = nn.Parameter(torch.zeros(ACTION_SIZE))
        critic_parameters = [p for critic in self.critics for p in critic.parameters()]
        self.policy_optimizer = torch.optim.Adam([*self.policy.parameters(), self.log_std], LEARNING_RATE)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), LEARNING_RATE)
        self.critic_optimizer = torch.optim.Adam(critic_parameters, LEARNING_RATE)

    def step(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Take one gradient step; return the losses."""
        observations, rewards, terminations = batch["observations"], batch["rewards"], batch["terminations"]
        actions = batch["actions"].clamp(-ACTION_LIMIT, ACTION_LIMIT)
        both = torch.cat([observations, actions], 1)
        with torch.no_grad():
            target = torch.min(*(critic(both) for critic in self.targets)).squeeze(1)
            next_value = self.value(batch["next_observations"]).squeeze(1)
        advantage = target - self.value(observations).squeeze(1)
        value_loss = ((EXPECTILE - (advantage < 0).float()).abs() * advantage**2).mean()
        self.value_optimizer.zero_grad()
        value_loss.backward()
        self.value_optimizer.step()

        wanted = rewards + DISCOUNT * (1 - terminations) * next_value
        critic_loss = sum(((critic(both).squeeze(1) - wanted) ** 2).mean() for critic in self.critics)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        weights = torch.exp(TEMPERATURE * advantage.detach()).clamp(max=MAX_WEIGHT)
        distribution = torch.distributions.Normal(
            torch.tanh(self.policy(observations)), self.log_std.clamp(-5, 2).exp(), validate_args=False
        )
        policy_loss = -(weights * distribution.log_prob(actions).sum(1)).mean()
        self.policy_optimizer.zero_grad()
        policy_loss.backward()
        self.policy_optimizer.step()

        with torch.no_grad():
            for critic, target_critic in zip(self.critics, self.targets, strict=True):
                for parameter, target_parameter in zip(critic.parameters(), target_critic.parameters(), strict=True):
                    target_parameter.lerp_(parameter, TARGET_RATE)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "policy_loss": policy_loss.detach(),
        }

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of an IQLModule."""
        with torch.no_grad():
            for (own, other), index in ((pair, i) for pair in self._pairs() for i in range(3)):
                layer, prefix = own[2 * index], f"{other[0]}layers.{index}."
                weight, bias = weights[prefix + "weight"], weights[prefix + "bias"]
                if other[1] is not None:
                    weight, bias = weight[other[1]].T, bias[other[1], 0]
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            self.log_std.copy_(weights["policy.log_std"])

    def difference(self, weights: Mapping[str, torch.Tensor]) -> float:
        """Return the largest difference of any of its weights from those of an IQLModule."""
        other = PlainIQL()
        other.load(weights)
        return max(
            float((own - its).detach().abs().max())
            for (mine, _), (theirs, _) in zip(self._pairs(), other._pairs(), strict=True)
            for own, its in zip(mine.parameters(), theirs.parameters(), strict=True)
        )

    def _pairs(self) -> list[tuple[nn.Sequential, tuple[str, int | None]]]:
        """Return each network with its name in an IQLModule, and its place in an ensemble."""
        return [
            (self.policy, ("policy.network.", None)),
            (self.value, ("value.", None)),
            *((critic, ("critic.", i)) for i, critic in enumerate(self.critics)),
            *((critic, ("target_critic.", i)) for i, critic in enumerate(self.targets)),
        ]
