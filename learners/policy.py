"""Policy: a trained module as a function from numpy observations to numpy actions."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from dask_rl.storage.transforms import Normalize

from .algorithm import AlgorithmConfig
from .algorithms.registry import build_algorithm
from .module import RLModuleSpec


class Policy:
    """Greedy actions of a module; picklable, needs neither learner nor cluster.

    Args:
        spec: the module's spaces.
        algorithm: the settings that the module was built with.
        weights: its parameters by name; those for inference are enough.
        normalize: the standardisation of observations that it was trained with.
    """

    def __init__(
        self,
        spec: RLModuleSpec,
        algorithm: AlgorithmConfig,
        weights: Mapping[str, Any],
        normalize: Normalize | None = None,
    ) -> None:
        self.observation_space: gymnasium.Space[Any] = spec.observation_space
        self.action_space: gymnasium.Space[Any] = spec.action_space
        self._normalize = normalize
        self._module = build_algorithm(algorithm).build_module(spec).eval()
        self._module.set_state({name: torch.as_tensor(value).float() for name, value in weights.items()})

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return actions (B, *act) in the action space for observations (B, *obs)."""
        inputs = np.asarray(observations, np.float32)
        if self._normalize is not None:
            inputs = self._normalize.apply(inputs)
        with torch.no_grad():
            actions = self._module.forward_inference(torch.from_numpy(inputs)).numpy()
        if isinstance(self.action_space, gymnasium.spaces.Box):
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        return actions.astype(self.action_space.dtype, copy=False)
