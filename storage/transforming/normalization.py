"""Observations with mean 0 and standard deviation 1, and back: by statistics that the dataset keeps.

They stand in the provenance, under `normalization`. Only Boxes of numbers are changed: neither choices nor images.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from dask_rl.storage.errors import DatasetError, explain
from dask_rl.storage.nested import Columns, flatten_space, subspaces
from dask_rl.storage.schema import OBSERVATIONS, first_problem
from dask_rl.storage.spaces import Space, space_from_json

Array = npt.NDArray[Any]
PROVENANCE_KEY = "normalization"
EPS = 1e-3
"""As TD3+BC takes it (Fujimoto and Gu, 2021): a column that is constant becomes 0."""


class PartScaling(BaseModel):
    """How one part of the observations was standardised; its elements are flattened."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    name: Literal["normalize"] = "normalize"
    """Of the transform that does the same: `transform_from_json`."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    eps: float = Field(default=EPS, gt=0)
    dtype: Literal[
        "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"
    ]
    """Of the values as they were."""

    @property
    def new_dtype(self) -> np.dtype[Any]:
        """Of standardised values: float32, or float64 where they were of this type."""
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)

    def standardize(self, column: Array) -> Array:
        """Return (x - mean) / (std + eps), worked out in float64, in `new_dtype`.

        Args:
            column: (rows, *row_shape)
        """
        mean, scale = self._vectors(column)
        with np.errstate(over="ignore"):  # what becomes infinite is refused, with its place; a bound may be
            return ((column.astype(np.float64) - mean) / scale).astype(self.new_dtype)

    def undo(self, column: Array) -> Array:
        """Return x * (std + eps) + mean in `dtype`: the values as they were, but for rounding.

        Args:
            column: (rows, *row_shape)
        """
        mean, scale = self._vectors(column)
        values = column.astype(np.float64) * scale + mean
        dtype = np.dtype(self.dtype)
        return (values if dtype.kind == "f" else np.rint(values)).astype(dtype)

    def _vectors(self, column: Array) -> tuple[Array, Array]:
        shape = column.shape[1:]
        return np.reshape(self.mean, shape), np.reshape(self.std, shape) + self.eps


class Normalization(BaseModel):
    """How the observations of a dataset were standardised, and what they were."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    observation_space: dict[str, JsonValue]
    """The space as it was, as JSON."""
    environment: str | None
    """The environment, whose observations the dataset does not hold any more."""
    parts: Mapping[str, PartScaling]
    """By path."""

    def space(self) -> Space:
        """Return the space of the standardised observations."""
        return _scaled_space(space_from_json(self.observation_space), OBSERVATIONS, self.parts)

    def apply(self, observations: Columns, undo: bool, path: str = OBSERVATIONS) -> Columns:
        """Return observations standardised, or as they were.

        Args:
            observations: (rows, …); nested: by key.
            undo: whether they are standardised.
            path: of the part that these are.
        """
        if isinstance(observations, Mapping):
            return {key: self.apply(part, undo, f"{path}/{key}") for key, part in observations.items()}
        scaling = self.parts.get(path)
        if scaling is None:
            return observations
        return scaling.undo(observations) if undo else scaling.standardize(observations)


def parse_normalization(path: str, provenance: Mapping[str, Any]) -> Normalization | None:
    """Return how the observations of a dataset were standardised; None: not.

    Args:
        path: the dataset, for messages.
        provenance: of the dataset.

    Raises:
        DatasetError: what its provenance says of it makes no sense.
    """
    if provenance.get(PROVENANCE_KEY) is None:
        return None
    try:
        found = Normalization.model_validate(provenance[PROVENANCE_KEY])
    except ValidationError as error:
        raise _no_sense(path, first_problem(error)) from error
    parts = flatten_space(OBSERVATIONS, space_from_json(found.observation_space))
    for name, scaling in found.parts.items():
        size = int(np.prod(parts[name].shape or ())) if name in parts else 0
        if not size == len(scaling.mean) == len(scaling.std) or min(scaling.std) < 0:
            raise _no_sense(path, f"other statistics of {name} than its space has elements")
    return found


def scaled_parts(space: Space) -> list[str]:
    """Return the paths of the parts that can be standardised: Boxes of numbers that are no images."""
    return [path for path, part in flatten_space(OBSERVATIONS, space).items() if _is_number(part)]


def _is_number(space: Space) -> bool:
    is_image = space.dtype == np.uint8 and len(space.shape or ()) > 1
    return isinstance(space, spaces.Box) and not is_image


def _scaled_space(space: Space, path: str, parts: Mapping[str, PartScaling]) -> Space:
    inner = subspaces(space)
    if inner is not None:
        made = {key: _scaled_space(part, f"{path}/{key}", parts) for key, part in inner.items()}
        return spaces.Tuple(tuple(made.values())) if isinstance(space, spaces.Tuple) else spaces.Dict(OrderedDict(made))
    if path not in parts or not isinstance(space, spaces.Box):
        return space
    # The same arithmetic as for values: what was inside stays inside.
    low, high = (parts[path].standardize(bound[None])[0] for bound in (space.low, space.high))
    return spaces.Box(low, high, space.shape, parts[path].new_dtype.type)


def _no_sense(path: str, got: str) -> DatasetError:
    allowed = "what a transform wrote"
    return DatasetError(explain(f"normalization of {path}", got=got, allowed=allowed, fix="make the dataset anew"))
