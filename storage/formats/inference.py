"""Spaces that a source does not declare, from a first pass over its values. Memory: one row of bounds."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from dask_rl.storage.errors import SourceFormatError, explain
from dask_rl.storage.nested import Columns, flatten, unflatten
from dask_rl.storage.spaces import infer_box

from .base import Array, RawEpisode, Space

RULE = (
    "spaces inferred from the data: float observations become unbounded float32, float actions a float32 Box of "
    "[-1, 1] if all lie in it and of their smallest and largest values otherwise, integer actions "
    "Discrete(largest + 1)"
)
_MAX_CHOICES = 2**53  # larger integers are not exact as float64, which bounds are kept as


class ColumnBounds:
    """Shape, type and running bounds of one column.

    Rows whose shape differs from the first are passed over: the checks of each episode report them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.shape: tuple[int, ...] | None = None
        self.dtype = np.dtype(np.bool_)
        self.low: Array = np.empty(0)
        self.high: Array = np.empty(0)

    def add(self, values: Array) -> None:
        """Take the rows of one episode into account."""
        if values.dtype.kind not in "biuf" or not values.ndim:
            got = f"values of type {values.dtype}" if values.ndim else "one value for all steps"
            raise SourceFormatError(explain(self.name, got=got, allowed="numbers", fix="convert the source first"))
        if self.shape is None:
            self.shape = values.shape[1:]
            self.low, self.high = np.full(self.shape, np.inf), np.full(self.shape, -np.inf)
        if values.shape[1:] == self.shape:
            self.dtype = np.promote_types(self.dtype, values.dtype)
            with np.errstate(invalid="ignore"):  # a signalling NaN: refused later, with its place
                wide = values.astype(np.float64)
            finite = np.isfinite(wide)
            self.low = np.minimum(self.low, wide.min(axis=0, where=finite, initial=np.inf))
            self.high = np.maximum(self.high, wide.max(axis=0, where=finite, initial=-np.inf))


class FieldBounds:
    """The bounds of a field: of its only column, or of every part of a nested one by path."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: dict[str, ColumnBounds] = {}

    def add(self, values: Columns) -> None:
        """Take the rows of one episode into account; parts that the first one lacks are passed over."""
        columns = flatten(self.name, values)
        if not self.parts:
            self.parts = {path: ColumnBounds(path) for path in columns}
        for path, column in columns.items():
            if path in self.parts:
                self.parts[path].add(column)


def scan(episodes: Iterable[RawEpisode], progress: Callable[[int], None]) -> tuple[FieldBounds, FieldBounds, int]:
    """Return the bounds of observations and actions, and the number of steps; `progress` gets the latter."""
    observations, actions, num_steps = FieldBounds("observations"), FieldBounds("actions"), 0
    for episode in episodes:
        observations.add(episode.observations)
        actions.add(episode.actions)
        num_steps += len(episode.rewards)
        progress(num_steps)
    return observations, actions, num_steps


def observation_space(field: FieldBounds) -> Space:
    """Return the space of the observations: bounds are only those of the type, data may exceed what was seen."""
    return _space(field, _observation_part)


def action_space(field: FieldBounds) -> Space:
    """Return the space of the actions; see RULE."""
    return _space(field, _action_part)


def _space(field: FieldBounds, part_space: Callable[[ColumnBounds], Space]) -> Space:
    if not field.parts:
        raise _nothing_seen(field.name)
    nested: Any = unflatten(field.name, {path: part_space(part) for path, part in field.parts.items()})  # type: ignore[misc]
    return _composite(nested)


def _composite(value: Any) -> Space:
    """Return a Dict of what is nested; a space is itself."""
    if isinstance(value, dict):
        return spaces.Dict({key: _composite(part) for key, part in value.items()})
    space: Space = value
    return space


def _observation_part(column: ColumnBounds) -> Space:
    shape, kind = _shape(column), column.dtype.kind
    if kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    if kind == "b":
        return spaces.Box(0, 1, shape, np.uint8)
    if column.dtype == np.uint8:
        return spaces.Box(0, 255, shape, np.uint8)
    if max(column.high.max(initial=0), -column.low.min(initial=0)) >= _MAX_CHOICES:
        got, fix = f"integers up to {column.high.max(initial=0):.3g}", "convert them to floats first"
        raise SourceFormatError(explain(column.name, got=got, allowed="integers below 2^53", fix=fix))
    if not shape and column.low.min(initial=0) >= 0:
        return spaces.Discrete(max(2, int(column.high) + 1))
    return infer_box(column.low, column.high, shape, column.dtype)


def _action_part(column: ColumnBounds) -> Space:
    shape = _shape(column)
    if column.dtype.kind in "iu":
        return _discrete(column, shape)
    if column.dtype.kind == "b":
        return spaces.MultiBinary(shape) if shape else spaces.Discrete(2)
    low, high = np.atleast_1d(column.low), np.atleast_1d(column.high)  # a scalar action is a Box of shape (1,)
    if low.min(initial=np.inf) >= -1 and high.max(initial=-np.inf) <= 1:
        return spaces.Box(-1, 1, low.shape, np.float32)
    with np.errstate(over="ignore"):  # what becomes infinite is refused later, with its place
        return infer_box(low, high, low.shape, np.float32)


def _discrete(column: ColumnBounds, shape: tuple[int, ...]) -> Space:
    if column.low.min(initial=0) < 0 or column.high.max(initial=0) >= _MAX_CHOICES:
        end = f"down to {int(column.low.min())}" if column.low.min(initial=0) < 0 else f"up to {column.high.max():.3g}"
        raise SourceFormatError(
            explain(
                column.name,
                got=f"integers {end}",
                allowed="integers from 0 (discrete), or floats (continuous)",
                fix="name the environment so that its action space is used",
            )
        )
    sizes = np.maximum(column.high.astype(np.int64) + 1, 2)
    if shape in ((), (1,)):
        return spaces.Discrete(int(sizes.max()))
    return spaces.MultiDiscrete(sizes)


def _shape(column: ColumnBounds) -> tuple[int, ...]:
    if column.shape is None or not np.all(np.isfinite([column.low, column.high])):
        raise _nothing_seen(column.name)
    return column.shape


def _nothing_seen(name: str) -> SourceFormatError:
    return SourceFormatError(
        explain(name, got="no finite values", allowed="at least one episode", fix="check the source")
    )
