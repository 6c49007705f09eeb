"""Parquet files with one row a step, read one row group at a time."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .arrow_columns import guarded, to_array
from .base import Array

PARQUET_SUFFIXES = (".parquet",)


class ParquetTable:
    """A `Table` (see rllib_rows) whose parts are the row groups of the files.

    Raises:
        SourceFormatError: a file is damaged, or its columns differ from the others'.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._parts: list[tuple[Path, int]] = []
        columns: set[str] | None = None
        every: set[str] = set()
        for path in files:
            with open_parquet(path) as file:
                self._parts += [(path, group) for group in range(file.num_row_groups)]
                names = set(file.schema_arrow.names)
            columns = names if columns is None else columns & names
            every |= names
        self.names, self.all_names = frozenset(columns or ()), frozenset(every)

    @property
    def num_parts(self) -> int:
        """Row groups in all files."""
        return len(self._parts)

    def origin(self, part: int) -> str:
        """Return the file of a part."""
        return str(self._parts[part][0])

    def read(self, part: int, columns: Sequence[str]) -> dict[str, Array]:
        """Return some columns of a part, each (rows, …).

        Raises:
            SourceFormatError: the file is damaged, or a column holds no numbers.
        """
        path, group = self._parts[part]
        with open_parquet(path) as file:
            table = guarded(path, "Parquet", partial(file.read_row_group, group, columns=list(columns)))
        return {name: to_array(path, name, table.column(name), table.schema.field(name).metadata) for name in columns}


def open_parquet(path: Path) -> Any:
    """Open a Parquet file; raises as `guarded`."""
    return guarded(path, "Parquet", partial(_open, path))


def _open(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path)


def column_names(path: Path) -> frozenset[str]:
    """Return the names of a file's columns; raises as `guarded`."""
    with open_parquet(path) as file:
        return frozenset(file.schema_arrow.names)
