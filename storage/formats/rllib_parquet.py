"""Parquet files with one row a step, read in pieces of row groups that fit in memory."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import SourceFormatError, explain

from .arrow_columns import guarded, to_array
from .base import Array
from .row_table import ColumnNames

PARQUET_SUFFIXES = (".parquet",)
_PART_BYTES = 2**26


@dataclass(frozen=True)
class _Part:
    path: Path
    group: int
    first: int  # row of the row group
    stop: int
    file_row: int  # row of the file
    whole: bool  # the row group is read at once

    @property
    def num_rows(self) -> int:
        return self.stop - self.first


class ParquetTable:
    """A `Table` (see row_table) whose parts are the row groups of the files, or pieces of large ones.

    Raises:
        SourceFormatError: a file is damaged, or its columns differ from the others'.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._parts: list[_Part] = []
        self._pieces = _PieceReader()
        columns = ColumnNames()
        for path in files:
            with open_parquet(path) as file:
                self._parts += _split(path, file.metadata)
                columns.add(_names(path, file), str(path))
        self.names, self.all_names, self.lacking = columns.common, columns.every, columns.lacking

    @property
    def num_parts(self) -> int:
        """Row groups in all files, or pieces of them."""
        return len(self._parts)

    def origin(self, part: int) -> str:
        """Return the file of a part, and its first row if the file has several parts."""
        found = self._parts[part]
        return f"{found.path}, from row {found.file_row}" if found.file_row else str(found.path)

    def read(self, part: int, columns: Sequence[str]) -> dict[str, Array]:
        """Return some columns of a part, each (rows, …).

        Raises:
            SourceFormatError: the file is damaged, or a column holds no numbers.
        """
        wanted = self._parts[part]
        if wanted.whole:
            with open_parquet(wanted.path) as file:
                table = _read_group(wanted, file, columns)
        else:
            table = self._pieces.read(wanted, columns)
        origin = Path(self.origin(part))
        return {name: to_array(origin, name, table.column(name), table.schema.field(name).metadata) for name in columns}


class _PieceReader:
    """Reads pieces of row groups. The last one stays open: Parquet decodes a row group from its start only."""

    def __init__(self) -> None:
        self._at: tuple[Any, ...] = ()  # path, row group, columns and row that come next
        self._open_files = ExitStack()
        self._batches: Iterator[Any] = iter(())

    def __reduce__(self) -> tuple[type["_PieceReader"], tuple[()]]:
        return _PieceReader, ()  # another process opens the files itself

    def read(self, part: _Part, columns: Sequence[str]) -> Any:
        """Return the columns of a piece as an Arrow table."""
        return guarded(part.path, "Parquet", partial(self._read, part, tuple(columns)))

    def _read(self, part: _Part, columns: tuple[str, ...]) -> Any:
        import pyarrow

        if self._at != (part.path, part.group, columns, part.first):
            self._open_files.close()
            file = self._open_files.enter_context(_open(part.path))
            size = _piece_rows(file.metadata.row_group(part.group))
            self._batches = file.iter_batches(size, row_groups=[part.group], columns=list(columns))
            for _ in range(part.first // size):
                next(self._batches, None)
        self._at = (part.path, part.group, columns, part.stop)
        batch = next(self._batches, None)
        if batch is None or len(batch) != part.num_rows:
            got, fix = "fewer rows than its metadata say", "fetch it again: it is damaged or incomplete"
            raise SourceFormatError(explain(f"{part.path}: row group {part.group}", got=got, fix=fix))
        return pyarrow.Table.from_batches([batch])


def _split(path: Path, metadata: Any) -> Iterator[_Part]:
    file_row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = _piece_rows(group)
        for first in range(0, max(group.num_rows, 1), size):
            stop = min(first + size, group.num_rows)
            yield _Part(path, number, first, stop, file_row + first, size >= group.num_rows)
        file_row += group.num_rows


def _piece_rows(group: Any) -> int:
    """Return how many rows of a row group are in memory together."""
    return max(1, _PART_BYTES * group.num_rows // max(group.total_byte_size, 1))


def _read_group(part: _Part, file: Any, columns: Sequence[str]) -> Any:
    return guarded(part.path, "Parquet", partial(file.read_row_group, part.group, columns=list(columns)))


def read_column(path: Path, file: Any, group: int, name: str) -> Iterator[Any]:
    """Yield the values of a column of a row group, as Python objects, a piece of it in memory; raises as `guarded`."""
    size = _piece_rows(file.metadata.row_group(group))
    batches = guarded(path, "Parquet", partial(file.iter_batches, size, row_groups=[group], columns=[name]))
    while (batch := guarded(path, "Parquet", partial(next, batches, None))) is not None:
        yield from batch.column(0)


def open_parquet(path: Path) -> Any:
    """Open a Parquet file; raises as `guarded`."""
    return guarded(path, "Parquet", partial(_open, path))


def _open(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path)


def column_names(path: Path) -> frozenset[str]:
    """Return the names of a file's columns; raises as `guarded`.

    Raises:
        SourceFormatError: two columns have the same name.
    """
    with open_parquet(path) as file:
        return _names(path, file)


def _names(path: Path, file: Any) -> frozenset[str]:
    names = file.schema_arrow.names
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        got, fix = f"several columns {', '.join(doubled)}", "write the file again with one of each"
        raise SourceFormatError(explain(str(path), got=got, allowed="one column of a name", fix=fix))
    return frozenset(names)
