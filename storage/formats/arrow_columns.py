"""Arrow's columns as arrays, with errors that name file and column."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dask_rl.storage.errors import ConfigError, DaskRLError, SourceFormatError, explain

from .base import Array
from .unreadable import NONSENSE

_SHAPE_KEY = b"ARROW:extension:metadata"
_NAME_KEY = b"ARROW:extension:name"


def guarded(path: Path, kind: str, call: Callable[[], Any]) -> Any:
    """Return what `call` returns; what goes wrong with the bytes becomes a SourceFormatError.

    Args:
        path: the file, for messages.
        kind: what it is, such as `Parquet`.
        call: reads it.

    Raises:
        SourceFormatError: the file is damaged.
        ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            explain(str(path), got=f"no pyarrow to read {kind} with", fix="pip install 'dask-rl[formats]'")
        ) from error
    try:
        return call()
    except DaskRLError:
        raise
    except (pyarrow.ArrowException, *NONSENSE) as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceFormatError(
            explain(
                str(path),
                got=f"unreadable {kind} ({reason})",
                allowed=f"a complete {kind} file",
                fix="fetch it again: it is damaged or incomplete",
            )
        ) from error


def to_array(path: Path, name: str, column: Any, metadata: Mapping[bytes, bytes] | None = None) -> Array:
    """Return a column of numbers, of lists of equal length, or of tensors, as one array.

    Args:
        path: the file, for messages.
        name: of the column.
        column: an Array or ChunkedArray.
        metadata: of its field: some tensors tell their shape there.

    Raises:
        SourceFormatError: it holds something else.
    """
    import pyarrow

    column = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    num_rows, metadata = len(column), metadata or {}
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


def _tensor_shape(metadata: Mapping[bytes, bytes], shape: list[int]) -> list[int]:
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
