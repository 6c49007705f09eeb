"""What a feed reads and what it delivers: the columns in memory, and the batch fields made from them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.schema import OBSERVATIONS, ArraySpec
from dask_rl.storage.transforms import Transform

from .config import INDEX_BYTES, FeedConfig
from .sampling import Halo, Sampling

NEXT_PREFIX = "next_"
NEXT_OBSERVATIONS = NEXT_PREFIX + OBSERVATIONS
NEXT_VALID = "next_valid"
RETURNS_TO_GO = "returns_to_go"
TIMESTEPS = "timesteps"
SEQUENCE_MASK = "sequence_mask"
DISCOUNTS = "discounts"
STEPS_LEFT = "steps_left"
"""Steps from a transition to the end of its episode, its own counted; delivered to nobody."""
FLAGS = ("terminations", "truncations")
_DERIVED = (NEXT_VALID, RETURNS_TO_GO, TIMESTEPS, STEPS_LEFT)

Place = Literal["row", "next", "last", "row_stack", "next_stack"]
"""Which rows an output takes: those of the sample's steps, the ones behind them, the last of n steps, stacks."""


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
    """One field of a batch: rows of a column, or numbers that follow from the sample alone."""

    key: str
    column: str | None
    """None: the field is what the indexer gives under its key."""
    place: Place = "row"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Of one sample."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The columns that are read, those that are derived, and the fields of a batch."""

    stored: tuple[Column, ...]
    """Read from the dataset, by the name of the array."""
    derived: tuple[Column, ...]
    """next_valid, returns_to_go and timesteps where asked for, and what the sampler needs to find its rows."""
    outputs: tuple[Output, ...]
    sampling: Sampling = field(default_factory=Sampling)
    discount: float = 1.0
    """Of n steps."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns in memory."""
        return self.stored + self.derived

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory, its place in the order included."""
        return sum(column.row_bytes for column in self.columns) + INDEX_BYTES

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample of a batch."""
        return sum(output.sample_bytes for output in self.outputs)

    @cached_property
    def halo(self) -> Halo:
        """Rows needed around a transition."""
        return self.sampling.halo(
            reads_next=any(output.place in ("next", "next_stack") for output in self.outputs),
            stacks=any(output.place in ("row_stack", "next_stack") for output in self.outputs),
        )

    def allocate(self, num_rows: int) -> dict[str, npt.NDArray[Any]]:
        """Return uninitialised columns of `num_rows` rows; for sequences with one of zeros behind them."""
        num_zeros = 0 if self.sampling.offsets is None else 1
        rows = num_rows + num_zeros
        columns = {column.name: np.empty((rows, *column.row_shape), column.dtype) for column in self.columns}
        for column in columns.values():
            column[num_rows:] = 0
        return columns


def plan_layout(config: FeedConfig, dataset: OfflineDataset) -> Layout:
    """Work out the columns and outputs of a feed.

    Raises:
        ConfigError: a field or a transform that the dataset cannot serve.
    """
    sampling, length = config.sampling, config.sampling.sequence_length
    fields = list(_fields(config, dataset))
    columns = {column.name: column for _, column, _ in fields}
    stacks = any(place in ("row_stack", "next_stack") for *_, place in fields)
    if length is not None or stacks:
        columns.setdefault(TIMESTEPS, Column(TIMESTEPS, "int64", ()))
    if sampling.n_step > 1 or (length is not None and sampling.padding == "right"):
        columns[STEPS_LEFT] = Column(STEPS_LEFT, "int64", ())
    stored = tuple(column for name, column in columns.items() if name not in _DERIVED)
    reads = {column.name for column in stored} | ({"rewards"} if RETURNS_TO_GO in columns else set())
    unknown = sorted(set(config.transforms) - reads)
    if unknown:
        raise ConfigError(
            explain("transforms", got=unknown, allowed=f"fields that are read: {sorted(reads)}", fix="remove them")
        )
    outputs = [
        Output(key, column.name, place, column.dtype, _sample_shape(sampling, place) + column.row_shape)
        for key, column, place in fields
        if length is None or key != TIMESTEPS  # those of its elements are worked out
    ]
    if length is not None:
        outputs += [Output(SEQUENCE_MASK, None, dtype="bool", shape=(length,))]
        outputs += [Output(TIMESTEPS, None, dtype="int64", shape=(length,))]
    if sampling.n_step > 1:
        outputs += [Output(DISCOUNTS, None, dtype=config.dtype)]
    derived = tuple(column for name, column in columns.items() if name in _DERIVED)
    return Layout(stored, derived, tuple(outputs), sampling, config.discount)


def _fields(config: FeedConfig, dataset: OfflineDataset) -> Iterator[tuple[str, Column, Place]]:
    """Yield what the fields deliver: the key in a batch, its column, and which rows of it."""
    sampling = config.sampling
    stacked = sampling.stacked_fields(_arrays_of(dataset, OBSERVATIONS))
    last: Place = "last" if sampling.n_step > 1 else "row"
    for name in config.fields:
        if name == NEXT_VALID:
            yield name, Column(name, "bool", ()), last
        elif name == RETURNS_TO_GO:
            yield name, Column(name, config.dtype, ()), "row"
        elif name == TIMESTEPS:
            yield name, Column(name, "int64", ()), "row"
        elif name == NEXT_OBSERVATIONS:
            for spec in _arrays_of(dataset, OBSERVATIONS):
                place: Place = "next_stack" if spec.path in stacked else "next"
                yield NEXT_PREFIX + spec.path, _column(config, dataset, spec), place
        else:
            for spec in _arrays_of(dataset, name):
                place = "row_stack" if spec.path in stacked else last if spec.path in FLAGS else "row"
                yield spec.path, _column(config, dataset, spec), place


def _sample_shape(sampling: Sampling, place: Place) -> tuple[int, ...]:
    length = () if sampling.sequence_length is None else (sampling.sequence_length,)
    return (*length, sampling.frame_stack) if place in ("row_stack", "next_stack") else length


def _arrays_of(dataset: OfflineDataset, name: str) -> list[ArraySpec]:
    """Return the array of this name or, for a space of several parts, all arrays below it."""
    found = [spec for path, spec in sorted(dataset.arrays.items()) if path == name or path.startswith(f"{name}/")]
    if not found:
        known = [*sorted(dataset.arrays), NEXT_OBSERVATIONS, NEXT_VALID, RETURNS_TO_GO, TIMESTEPS]
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
