"""What a feed reads and what it delivers: the columns in memory, and the batch fields made from them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import ArraySpec
from dask_rl.storage.transforms import Transform

from .config import INDEX_BYTES, FeedConfig

NEXT_PREFIX = "next_"
NEXT_VALID = "next_valid"
RETURNS_TO_GO = "returns_to_go"
FLAGS = ("terminations", "truncations")


@dataclass(frozen=True)
class Column:
    """One array of the rows in memory, in the type that is delivered."""

    name: str
    dtype: str
    row_shape: tuple[int, ...]
    transforms: tuple[Transform, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * math.prod(self.row_shape)


@dataclass(frozen=True)
class Output:
    """One field of a batch: row + `shift` of a column."""

    key: str
    column: str
    shift: int = 0


@dataclass(frozen=True)
class Layout:
    """The columns that are read, those that are derived, and the fields of a batch."""

    stored: tuple[Column, ...]
    """Read from the dataset, by the name of the array."""
    derived: tuple[Column, ...]
    """next_valid and returns_to_go, where asked for."""
    outputs: tuple[Output, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns in memory."""
        return self.stored + self.derived

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory, its place in the order included."""
        return sum(column.row_bytes for column in self.columns) + INDEX_BYTES

    @property
    def halo(self) -> int:
        """Rows needed behind a transition: 1 where next observations are delivered."""
        return max((output.shift for output in self.outputs), default=0)

    def allocate(self, num_rows: int) -> dict[str, npt.NDArray[Any]]:
        """Return uninitialised columns of `num_rows` rows."""
        return {column.name: np.empty((num_rows, *column.row_shape), column.dtype) for column in self.columns}


def plan_layout(config: FeedConfig, dataset: OfflineDataset) -> Layout:
    """Work out the columns and outputs of a feed.

    Raises:
        ConfigError: a field or a transform that the dataset cannot serve.
    """
    stored: dict[str, Column] = {}
    derived: dict[str, Column] = {}
    outputs: list[Output] = []
    for name in config.fields:
        if name == NEXT_VALID:
            derived[name] = Column(name, "bool", ())
            outputs.append(Output(name, name))
        elif name == RETURNS_TO_GO:
            derived[name] = Column(name, config.dtype, ())
            outputs.append(Output(name, name))
        else:
            source, shift = ("observations", 1) if name == "next_observations" else (name, 0)
            for spec in _arrays_of(dataset, source):
                stored.setdefault(spec.path, _column(config, dataset, spec))
                outputs.append(Output((NEXT_PREFIX if shift else "") + spec.path, spec.path, shift))
    reads = {*stored, *(("rewards",) if RETURNS_TO_GO in derived else ())}
    unknown = sorted(set(config.transforms) - reads)
    if unknown:
        raise ConfigError(
            explain("transforms", got=unknown, allowed=f"fields that are read: {sorted(reads)}", fix="remove them")
        )
    return Layout(tuple(stored.values()), tuple(derived.values()), tuple(outputs))


def _arrays_of(dataset: OfflineDataset, name: str) -> list[ArraySpec]:
    """Return the array of this name or, for a space of several parts, all arrays below it."""
    found = [spec for path, spec in sorted(dataset.arrays.items()) if path == name or path.startswith(f"{name}/")]
    if not found:
        known = [*sorted(dataset.arrays), "next_observations", NEXT_VALID, RETURNS_TO_GO]
        raise ConfigError(
            explain(
                f"field {name!r}",
                got="no such array in the dataset",
                allowed=known,
                fix="ask for one of these",
            )
        )
    return found


def _column(config: FeedConfig, dataset: OfflineDataset, spec: ArraySpec) -> Column:
    transforms = tuple(config.transforms.get(spec.path, ()))
    return Column(spec.path, _delivered_dtype(config, dataset, spec, bool(transforms)), spec.row_shape, transforms)


def _delivered_dtype(config: FeedConfig, dataset: OfflineDataset, spec: ArraySpec, transformed: bool) -> str:
    """Return floats and flags in the feed's type, images as bytes, choices as int64."""
    if transformed or spec.dtype.kind == "f" or spec.path in FLAGS:
        return config.dtype
    if spec.dtype.kind == "b":
        return "bool"
    part, *keys = spec.path.split("/")
    space: Any = {"observations": dataset.observation_space, "actions": dataset.action_space}.get(part)
    for key in keys:
        space = space[int(key) if isinstance(space, spaces.Tuple) else key] if space is not None else None
    if isinstance(space, spaces.Box):
        return "uint8" if spec.dtype == np.uint8 else config.dtype
    return "int64"
