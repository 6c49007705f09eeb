"""Networks on observations: the perceptrons of networks.py behind an encoder of their own."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import torch

from .batch import Observations
from .encoders import encode, encoded_size, make_encoder
from .images import ImageConfig
from .networks import MLP, EnsembleMLP


class ObservationMLP(MLP):
    """A perceptron on observations of a space, to (B, outputs)."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        hidden_sizes: Sequence[int],
        outputs: int,
        images: ImageConfig | None = None,
    ) -> None:
        encoder = make_encoder(observation_space, images or ImageConfig())
        super().__init__(encoded_size(encoder, observation_space), hidden_sizes, outputs)
        self.encoder = encoder

    def forward(self, observations: Observations, masks: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """Return (B, outputs); `masks` are those of the hidden layers."""
        return super().forward(encode(self.encoder, observations), masks)


class ObservationEnsemble(EnsembleMLP):
    """`members` perceptrons on the same observations, behind one encoder, to (E, B, outputs).

    Args:
        members: number of perceptrons.
        observation_space: what they see.
        num_others: further inputs, such as the dimensions of an action.
        hidden_sizes: widths of the hidden layers.
        outputs: outputs of each.
        images: layers of the encoder where there are images.
    """

    def __init__(
        self,
        members: int,
        observation_space: gymnasium.Space[Any],
        num_others: int,
        hidden_sizes: Sequence[int],
        outputs: int,
        images: ImageConfig | None = None,
    ) -> None:
        encoder = make_encoder(observation_space, images or ImageConfig())
        super().__init__(members, encoded_size(encoder, observation_space) + num_others, hidden_sizes, outputs)
        self.encoder = encoder

    def forward(self, observations: Observations, others: torch.Tensor | None = None) -> torch.Tensor:
        """Return (E, B, outputs) for observations and (B, num_others)."""
        x = encode(self.encoder, observations)
        return super().forward(x if others is None else torch.cat([x, others], -1))
