"""RLlib's packed columns: base64 of an LZ4 frame of a pickled array. The only place that touches pickle.

The unpickler resolves no name by importing, and hands out nothing of NumPy's: a pickle may call any method of what it
is given, and NumPy's own `dtype.__setstate__` makes types that read beyond their buffer. It knows four names and gets
stand-ins for them, which only note what an array is to be; the array is made here, once its size fits its bytes.
"""

import base64
import io
import itertools
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_rl.storage.errors import ConfigError, SourceFormatError, explain

from .base import Array

_MAX_BYTES = 2**30
_PREFIX = "BCJNG"  # base64 of the LZ4 frame magic; what follows depends on the size of the data
_MAX_OPCODES = 500  # an array takes about 40
_MAX_DIMENSIONS = 32
_TYPE = re.compile(r"[biuf]\d{1,2}")


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
        _check_size(data)
        value = _ArrayUnpickler(io.BytesIO(data)).load()
    except (
        *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError),
        *(IndexError, OverflowError, MemoryError, UnicodeDecodeError, RuntimeError),
    ) as error:
        reason = " ".join(str(error).split())[:120]
        raise SourceFormatError(
            explain(origin, got=f"a packed column that is refused ({reason})", allowed=_ALLOWED, fix=_FIX)
        ) from error
    if not isinstance(value, _PackedArray) or value.values is None:
        raise SourceFormatError(explain(origin, got=f"a packed {type(value).__name__}", allowed=_ALLOWED, fix=_FIX))
    return value.values


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
    except (ValueError, RuntimeError, EOFError) as error:  # ValueError: no base64, or no ASCII
        raise SourceFormatError(
            explain(origin, got="a damaged packed column", allowed="base64 of LZ4", fix="fetch the file again")
        ) from error
    if not decompressor.eof:
        raise SourceFormatError(
            explain(origin, got="a cut off packed column", allowed="at most 1 GiB", fix="fetch the file again")
        )
    return data


def _check_size(data: bytes) -> None:
    """Refuse pickles longer than an array's, and slots of the memo so far out that they would take all memory."""
    for number, (opcode, argument, _) in enumerate(itertools.islice(pickletools.genops(data), _MAX_OPCODES + 1)):
        far = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > _MAX_OPCODES
        if far or number == _MAX_OPCODES:
            raise pickle.UnpicklingError("longer than an array")


class _StandIn:
    """What a pickle gets for a name of NumPy's: it can be called, and not be changed."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        """Note what is to be made."""
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        """Refuse a state."""
        raise pickle.UnpicklingError("a state for a name")


class _Type:
    """Stands for a `numpy.dtype` of numbers."""

    __slots__ = ("dtype",)

    def __init__(self, name: Any, align: Any = False, copy: Any = True) -> None:
        if not isinstance(name, str) or not _TYPE.fullmatch(name):
            raise pickle.UnpicklingError(f"values of type {str(name)[:20]!r}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        """Take the byte order from (version, byte order, subarray, names, fields, …)."""
        if not isinstance(state, tuple) or state[1] not in tuple("<>=|") or state[2:5] != (None,) * 3:
            raise pickle.UnpicklingError("a type that is no plain number")
        self.dtype = self.dtype.newbyteorder(state[1])


class _PackedArray:
    """Stands for a `numpy.ndarray`, with its values once they are known."""

    __slots__ = ("values",)

    def __init__(self, values: Array | None = None) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        """Take (version, shape, type, whether in Fortran's order, bytes)."""
        _, shape, kind, fortran, content = state
        self.values = _make_array(content, kind, shape, bool(fortran))


def _make_array(content: Any, kind: Any, shape: Any, fortran: bool) -> Array:
    if not isinstance(content, bytes | bytearray) or not isinstance(kind, _Type) or not isinstance(shape, tuple):
        raise pickle.UnpicklingError("an array without bytes, type or shape")
    if len(shape) > _MAX_DIMENSIONS or not all(type(size) is int and 0 <= size <= _MAX_BYTES for size in shape):
        raise pickle.UnpicklingError("a shape of other than a few sizes")
    if math.prod(shape) * kind.dtype.itemsize != len(content):
        raise pickle.UnpicklingError(f"{len(content)} bytes for an array of {shape} {kind.dtype}")
    flat = np.frombuffer(content, np.uint8) != 0 if kind.dtype == np.bool_ else np.frombuffer(content, kind.dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any = "C", axis_order: Any = None) -> _PackedArray:
    """Do what numpy._core.numeric._frombuffer does."""
    if order not in ("C", "F", "K") or (order == "K") != (axis_order is not None):
        raise pickle.UnpicklingError("an unexpected order of axes")
    values = _make_array(content, kind, shape, order == "F")
    return _PackedArray(values.transpose(axis_order) if order == "K" else values)


def _reconstruct(kind: Any, shape: Any, _typecode: Any) -> _PackedArray:
    """Return the array that a pickle's state then fills, as numpy._core.multiarray._reconstruct does."""
    if kind is not _NDARRAY or shape != (0,):
        raise pickle.UnpicklingError("an unexpected array")
    return _PackedArray()


def _refuse(*args: Any) -> None:
    raise pickle.UnpicklingError("it calls numpy.ndarray")


_NDARRAY = _StandIn(_refuse)
_NAMES = {
    ("numpy", "dtype"): _StandIn(_Type),
    ("numpy", "ndarray"): _NDARRAY,
    **{(f"numpy.{core}.numeric", "_frombuffer"): _StandIn(_from_buffer) for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _StandIn(_reconstruct) for core in ("core", "_core")},
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
