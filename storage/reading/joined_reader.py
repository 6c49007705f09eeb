"""Rows of one array that lies in several places: what was written first, and the segments that were appended."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_rl.storage.schema import ArraySpec

from .reader import RowReader, prepare_output

Array = npt.NDArray[Any]


class JoinedReader:
    """Reads the rows of several arrays laid end to end; safe to use from several threads, as its parts are.

    Args:
        spec: type and shape of a row, the same for all parts.
        parts: a reader of each part, in the order of their rows.
        first_rows: the row at which each part begins; the first is 0.
        num_rows: rows of all parts.
    """

    def __init__(self, spec: ArraySpec, parts: Sequence[RowReader], first_rows: Sequence[int], num_rows: int) -> None:
        """Nothing is opened before the first read."""
        self.parts = parts
        self._spec = spec
        self._first_rows = list(first_rows)
        self._num_rows = num_rows

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the rows [start, stop), in `out` where it is given.

        Raises:
            ConfigError: rows outside, or an `out` that does not fit.
            CorruptDataError: stored bytes are not what was written.
        """
        out = prepare_output(start, stop, self._num_rows, self._spec.row_shape, np.dtype(self._spec.dtype), out)
        row = start
        while row < stop:
            part = bisect_right(self._first_rows, row) - 1
            first = self._first_rows[part]
            end = self._first_rows[part + 1] if part + 1 < len(self.parts) else self._num_rows
            upto = min(stop, end)
            self.parts[part].read(row - first, upto - first, out[row - start : upto - start])
            row = upto
        return out

    def close(self) -> None:
        """Let go of open files."""
        for part in self.parts:
            part.close()
