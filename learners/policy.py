"""Policy: a trained module as a function from numpy observations to numpy actions."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from dask_rl.storage.html import html_table
from dask_rl.storage.spaces import describe_space
from dask_rl.storage.transforms import Normalize

from .algorithm import AlgorithmConfig
from .algorithms.registry import build_algorithm
from .module import RLModuleSpec
from .seeding import own_random_numbers


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
        self._algorithm = algorithm.name
        with own_random_numbers():
            self._module = build_algorithm(algorithm).build_module(spec).eval()
        self._module.set_state({name: torch.as_tensor(value).float() for name, value in weights.items()})

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return actions (B, *act) in the action space for observations (B, *obs), or one (*act) for one (*obs)."""
        inputs = np.asarray(observations, np.float32)
        if inputs.shape == self.observation_space.shape:
            one: np.ndarray = self(inputs[np.newaxis])[0]
            return one
        if self._normalize is not None:
            inputs = self._normalize.apply(inputs)
        with torch.no_grad():
            actions = self._module.forward_inference(torch.from_numpy(inputs)).numpy()
        if isinstance(self.action_space, gymnasium.spaces.Box):
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        return actions.astype(self.action_space.dtype, copy=False)

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self._facts().items())
        return f"Policy({facts})"

    def _repr_html_(self) -> str:
        return html_table("policy", self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "algorithm": self._algorithm,
            "observations": describe_space(self.observation_space),
            "actions": describe_space(self.action_space),
            "num_parameters": sum(parameter.numel() for parameter in self._module.parameters()),
        }
