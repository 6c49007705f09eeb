"""Parquet files with one row a step, read one row group at a time."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import ConfigError, SourceFormatError, explain

from .base import Array

PARQUET_SUFFIXES = (".parquet",)
_SHAPE_KEY = b"ARROW:extension:metadata"
_NAME_KEY = b"ARROW:extension:name"


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
            with _open(path) as file:
                self._parts += [(path, group) for group in range(file.num_row_groups)]
                names = set(file.schema_arrow.names)
            columns = names if columns is None else columns & names
            every |= names
        self.names, self.all_names = frozenset(columns or ()), frozenset(every)
        if "item" in self.names:
            raise SourceFormatError(
                explain(
                    str(files[0]),
                    got="packed episodes in a column 'item'",
                    allowed="one row a step",
                    fix="write the data with output_write_episodes=False",
                )
            )

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
        with _open(path) as file:
            table = _guarded(path, partial(file.read_row_group, group, columns=list(columns)))
        return {name: _column(path, name, table) for name in columns}


def _open(path: Path) -> Any:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            explain(str(path), got="no pyarrow to read Parquet with", fix="pip install 'dask-rl[formats]'")
        ) from error
    return _guarded(path, partial(pq.ParquetFile, path))


def _guarded(path: Path, call: Any) -> Any:
    import pyarrow

    try:
        return call()
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceFormatError(
            explain(
                str(path),
                got=f"unreadable Parquet ({reason})",
                allowed="a complete Parquet file",
                fix="fetch it again: it is damaged or incomplete",
            )
        ) from error


def _column(path: Path, name: str, table: Any) -> Array:
    """Return a column of numbers, of lists of equal length, or of tensors, as one array."""
    import pyarrow

    column = table.column(name).combine_chunks()
    num_rows = len(column)
    metadata = table.schema.field(name).metadata or {}
    if isinstance(column, pyarrow.ExtensionArray):  # the process has ray's types registered
        metadata = {_NAME_KEY: b"ray", _SHAPE_KEY: column.type.__arrow_ext_serialize__()}
        column = column.storage
    shape: list[int] = []
    while pyarrow.types.is_list(column.type) or _is_other_list(column.type):
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if column.null_count or len(lengths) > 1:
            raise _unusable(path, name, "rows of different lengths")
        shape.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
    if not _is_numeric(column.type):
        raise _unusable(path, name, str(column.type))
    if column.null_count and not pyarrow.types.is_floating(column.type):  # a missing float is a NaN, as good
        raise _unusable(path, name, f"{column.null_count} missing values")
    values: Array = column.to_numpy(zero_copy_only=False)
    return values.reshape(num_rows, *_tensor_shape(metadata, shape))


def _is_other_list(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind))


def _is_numeric(kind: Any) -> bool:
    import pyarrow

    types = pyarrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _tensor_shape(metadata: Any, shape: list[int]) -> list[int]:
    """Return the row shape: a tensor extension type stores its rows flat and its shape beside them."""
    if _NAME_KEY not in metadata or _SHAPE_KEY not in metadata:
        return shape
    try:
        declared = [int(n) for n in json.loads(metadata[_SHAPE_KEY])]
    except (ValueError, TypeError, RecursionError):
        return shape
    fits = min(declared, default=1) >= 0 and math.prod(declared) == math.prod(shape)
    return declared if fits else shape


def _unusable(path: Path, name: str, got: str) -> SourceFormatError:
    return SourceFormatError(
        explain(f"{path}: column '{name}'", got=got, allowed="numbers, or arrays of one shape", fix="convert it first")
    )
