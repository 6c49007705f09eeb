"""Policy: a trained module as a function from numpy observations to numpy actions."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from dask_rl.storage.html import html_table
from dask_rl.storage.nested import flatten_space, parts_of
from dask_rl.storage.spaces import Space, describe_space
from dask_rl.storage.transforms import Normalize

from .algorithm import AlgorithmConfig
from .algorithms.registry import build_algorithm
from .batch import observations_of
from .images import is_image
from .module import RLModuleSpec
from .seeding import own_random_numbers

_NAME = "observations"


class Policy:
    """Greedy actions of a module; picklable, needs neither learner nor cluster.

    Args:
        spec: the module's spaces.
        algorithm: the settings that the module was built with.
        weights: its parameters by name; those for inference are enough.
        normalize: the standardisation of observations that it was trained with; of nested ones by path, such as
            observations/pose.
    """

    def __init__(
        self,
        spec: RLModuleSpec,
        algorithm: AlgorithmConfig,
        weights: Mapping[str, Any],
        normalize: Normalize | Mapping[str, Normalize] | None = None,
    ) -> None:
        self.observation_space: gymnasium.Space[Any] = spec.observation_space
        self.action_space: gymnasium.Space[Any] = spec.action_space
        self._parts = flatten_space(_NAME, spec.observation_space)
        self._normalize = {_NAME: normalize} if isinstance(normalize, Normalize) else dict(normalize or {})
        self._algorithm = algorithm.name
        with own_random_numbers():
            self._module = build_algorithm(algorithm).build_module(spec).eval()
        self._module.set_state({name: torch.as_tensor(value).float() for name, value in weights.items()})

    def __call__(self, observations: Any) -> np.ndarray:
        """Return actions (B, *act) in the action space for observations (B, *obs), or one (*act) for one (*obs).

        Args:
            observations: an array; of a Dict space a mapping of arrays, of a Tuple space a tuple, or a mapping by "0",
                "1", ….
        """
        given = parts_of(_NAME, self.observation_space, observations)
        inputs = {path: _as_input(self._parts[path], values) for path, values in given.items()}
        if all(inputs[path].shape == space.shape for path, space in self._parts.items()):
            one: np.ndarray = self._act({path: values[np.newaxis] for path, values in inputs.items()})[0]
            return one
        return self._act(inputs)

    def _act(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        for path, normalize in self._normalize.items():
            inputs[path] = normalize.apply(inputs[path])
        tensors = {path: torch.from_numpy(values) for path, values in inputs.items()}
        with torch.no_grad():
            actions: np.ndarray = self._module.forward_inference(observations_of(tensors)).numpy()
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


def _as_input(space: Space, values: np.ndarray) -> np.ndarray:
    """Return floats for numbers; images and choices as they are, for the encoder."""
    if isinstance(space, gymnasium.spaces.Box) and not is_image(space):
        return np.asarray(values, np.float32)
    return values if values.flags.writeable else values.copy()  # torch takes no memory that it must not write to
