"""RLlib's packed columns: base64 of an LZ4 frame of a pickled array. The only place that touches pickle.

The unpickler resolves no name by importing: it knows four names of NumPy, and hands out its own functions for
them. Everything else, `os.system` first of all, is refused before it is looked up.
"""

import base64
import binascii
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_rl.storage.errors import ConfigError, SourceFormatError, explain

from .base import Array

_MAX_BYTES = 2**30
_PREFIX = "BCJNG"  # base64 of the LZ4 frame magic; what follows depends on the size of the data


def is_packed(value: Any) -> bool:
    """Whether a JSON value is a packed column."""
    return isinstance(value, str) and value.startswith(_PREFIX)


def unpack_array(text: str, origin: str) -> Array:
    """Return the array in a packed column; `origin` is for messages.

    Raises:
        SourceFormatError: it is damaged, or holds anything but one array of numbers.
        ConfigError: lz4 is not installed.
    """
    data = _decompress(text, origin)
    try:
        value = _ArrayUnpickler(io.BytesIO(data)).load()
    except (
        *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError),
        *(IndexError, OverflowError, MemoryError, UnicodeDecodeError, RuntimeError),
    ) as error:
        reason = " ".join(str(error).split())[:120]
        raise SourceFormatError(
            explain(origin, got=f"a packed column that is refused ({reason})", allowed=_ALLOWED, fix=_FIX)
        ) from error
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        got = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise SourceFormatError(explain(origin, got=f"a packed {got}", allowed=_ALLOWED, fix=_FIX))
    return value


_ALLOWED = "a pickled NumPy array of numbers"
_FIX = "do not trust this file, or write it again with plain lists"


def _decompress(text: str, origin: str) -> bytes:
    try:
        import lz4.frame
    except ImportError as error:
        raise ConfigError(
            explain(origin, got="no lz4 to read packed columns with", fix="pip install 'dask-rl[formats]'")
        ) from error
    try:
        decompressor = lz4.frame.LZ4FrameDecompressor()
        data: bytes = decompressor.decompress(base64.b64decode(text, validate=True), max_length=_MAX_BYTES)
    except (binascii.Error, RuntimeError, EOFError) as error:
        raise SourceFormatError(
            explain(origin, got="a damaged packed column", allowed="base64 of LZ4", fix="fetch the file again")
        ) from error
    if not decompressor.eof:
        raise SourceFormatError(
            explain(origin, got="a cut off packed column", allowed="at most 1 GiB", fix="fetch the file again")
        )
    return data


class _NdarrayMark:
    """Stands for the class `numpy.ndarray`, which a pickle may name but must not call."""


def _from_buffer(buffer: Any, dtype: Any, shape: Any, order: Any = "C", axis_order: Any = None) -> Array:
    """Do what numpy._core.numeric._frombuffer does."""
    array: Array = np.frombuffer(buffer, dtype=dtype)
    if order == "K" and axis_order is not None:
        return array.reshape(shape, order="C").transpose(axis_order)
    return array.reshape(shape, order=order)


def _reconstruct(kind: Any, shape: Any, _typecode: Any) -> Array:
    """Return the empty array that a pickle's state then fills; what numpy's _reconstruct does."""
    if kind is not _NdarrayMark or shape != (0,):
        raise pickle.UnpicklingError("an unexpected array")
    return np.ndarray((0,), dtype=np.int8)


_NAMES: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): _NdarrayMark,
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return our stand-in for an allowed name.

        Raises:
            pickle.UnpicklingError: any other name.
        """
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _NAMES[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to outside objects."""
        raise pickle.UnpicklingError("it refers to an outside object")
