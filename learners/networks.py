"""Networks: a multi-layer perceptron, and an ensemble of them as batched matrix products."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    """ReLU perceptron, (B, inputs) to (B, outputs).

    Dropout comes in as `masks`, one (B, hidden) tensor a hidden layer that already holds 0 or 1 / (1 - p): a
    module that drew its own would depend on the number of learners.
    """

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = [inputs, *hidden_sizes, outputs]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor, masks: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """Return (B, outputs)."""
        *hidden, last = self.layers
        for index, layer in enumerate(hidden):
            x = F.relu(layer(x))
            if masks is not None:
                x = x * masks[index]
        return _in_full_precision(last, x)


class EnsembleLinear(nn.Module):
    """`members` linear layers side by side: (E, B, inputs) to (E, B, outputs) in one batched product."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # the distribution of torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (E, B, outputs)."""
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleMLP(nn.Module):
    """`members` ReLU perceptrons on the same input, (B, inputs) to (E, B, outputs)."""

    def __init__(self, members: int, inputs: int, hidden_sizes: Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = [inputs, *hidden_sizes, outputs]
        self.members = members
        self.layers = nn.ModuleList(EnsembleLinear(members, a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (E, B, outputs)."""
        x = x.expand(self.members, *x.shape)
        *hidden, last = self.layers
        for layer in hidden:
            x = F.relu(layer(x))
        return _in_full_precision(last, x)


def _in_full_precision(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Apply an output layer in the precision of its parameters, whatever autocast says.

    bfloat16 holds three digits, and losses take differences of outputs that are nearly equal: Q = 100 and V = 100.2
    would be the same number.
    """
    bias: Any = layer.bias
    with torch.autocast(x.device.type, enabled=False):
        out: torch.Tensor = layer(x.to(bias.dtype))
    return out
