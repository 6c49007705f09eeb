"""Statistics of a column, by a Dask reduction whose result does not depend on the scheduler."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

import dask
import numpy as np
import numpy.typing as npt

from .blocking import choose_block_rows
from .dataset import OfflineDataset

Float64 = npt.NDArray[np.float64]
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class FieldStatistics:
    """Moments of one field over all steps; the rows of final observations are left out."""

    mean: Float64  # (*row_shape,)
    std: Float64  # (*row_shape,): of the population, as numpy's default
    min: Float64  # (*row_shape,)
    max: Float64  # (*row_shape,)
    count: int
    """Number of steps."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that keeps every bit."""
        return {key: value if key == "count" else value.tolist() for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> Self:
        """Return what `to_json` was called on."""
        columns = {key: np.asarray(obj[key], np.float64) for key in ("mean", "std", "min", "max")}
        return cls(**columns, count=int(obj["count"]))


@dataclass(frozen=True)
class Moments:
    """Of some rows of a field: count, mean and sum of squared deviations."""

    count: int
    mean: Float64
    squares: Float64
    min: Float64
    max: Float64


def column_statistics(dataset: OfflineDataset, field: str) -> FieldStatistics:
    """Return the statistics of a field over all steps, in float64.

    Blocks depend on the dataset alone and are combined in order, so that every scheduler gives the same bits.

    Args:
        dataset: the dataset.
        field: one of `dataset.arrays`.
    """
    dataset.reader(field)
    block_rows = choose_block_rows(dataset.arrays[field].row_bytes, dataset.shard_rows)
    tasks = [
        dask.delayed(_block_moments)(dataset, field, start, stop) for start, stop in dataset.block_ranges(block_rows)
    ]
    return statistics_of(dask.compute(*tasks))


def statistics_of(parts: Iterable[Moments]) -> FieldStatistics:
    """Return the statistics of all rows whose moments these are; there is at least one row."""
    total = combine_moments(part for part in parts if part.count)
    std = np.sqrt(total.squares / total.count)
    return FieldStatistics(total.mean, std, total.min, total.max, total.count)


def _block_moments(dataset: OfflineDataset, field: str, start: int, stop: int) -> Moments:
    return moments_of(dataset.read(field, start, stop)[dataset.step_mask(start, stop)])


def moments_of(rows: npt.NDArray[Any]) -> Moments:
    """Return the moments of rows, in float64."""
    if not len(rows):  # of a block that holds one final row
        zero = np.zeros(rows.shape[1:])
        return Moments(0, zero, zero, zero, zero)
    piece = max(_PIECE_BYTES // (8 * max(rows[0].size, 1)), 1)  # of what is 8 bytes an element on the way
    return combine_moments(_piece_moments(rows[start : start + piece]) for start in range(0, len(rows), piece))


def _piece_moments(rows: npt.NDArray[Any]) -> Moments:
    values = rows.astype(np.float64)
    mean = values.mean(axis=0)
    squares = np.square(values - mean).sum(axis=0)
    return Moments(len(values), mean, squares, values.min(axis=0), values.max(axis=0))


def combine_moments(parts: Iterable[Moments]) -> Moments:
    """Merge moments one after another (Chan, Golub and LeVeque, 1979: no cancellation)."""
    zero = np.zeros(())
    total = Moments(0, zero, zero, np.full((), math.inf), np.full((), -math.inf))
    for part in parts:
        count = total.count + part.count
        delta = part.mean - total.mean
        total = Moments(
            count=count,
            mean=total.mean + delta * (part.count / count),
            squares=total.squares + part.squares + np.square(delta) * (total.count * part.count / count),
            min=np.minimum(total.min, part.min),
            max=np.maximum(total.max, part.max),
        )
    return total
