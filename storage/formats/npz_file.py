"""Arrays of an npz file by ranges of rows: nothing is unpickled, and no array is read as a whole."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from dask_rl.storage.errors import DaskRLError, SourceFormatError, explain

from .base import Array
from .unreadable import NONSENSE

NPZ_SUFFIX = ".npz"
_MEMBER_SUFFIX = ".npy"
_DAMAGED = "fetch it again: it is damaged or incomplete"
_MAX_COLUMN_MAJOR_BYTES = 2**30


class NpzFile:
    """The arrays of an open archive."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._path = path
        self.arrays: dict[str, NpzArray] = {}
        """Arrays of numbers by name."""
        self.others: list[str] = []
        """Members that are left unread: object arrays, which would have to be unpickled, text, or no arrays at all."""
        for member in archive.namelist():
            name = member.removesuffix(_MEMBER_SUFFIX)
            array = NpzArray.open(archive, member) if member.endswith(_MEMBER_SUFFIX) else None
            if array is None or array.dtype.kind not in "biuf":
                self.others.append(name)
            else:
                self.arrays[name] = array

    def __getitem__(self, name: str) -> "NpzArray":
        """Return an array by name.

        Raises:
            SourceFormatError: there is none.
        """
        if name not in self.arrays:
            got = "an array of objects or text" if name in self.others else "nothing"
            raise SourceFormatError(
                explain(f"{self._path}: {name}", got=got, allowed="an array of numbers", fix=_DAMAGED)
            )
        return self.arrays[name]


class NpzArray:
    """One array of numbers, sliced by rows. Reading forward in a compressed file does not start over."""

    def __init__(self, archive: zipfile.ZipFile, member: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._archive = archive
        self._member = member
        self._file: IO[bytes] | None = None
        self._offset = 0

    @classmethod
    def open(cls, archive: zipfile.ZipFile, member: str) -> "NpzArray | None":
        """Return the array of a member, None if it is not one of plain values in C order of rows."""
        with archive.open(member) as file:
            shape, fortran_order, dtype = _read_header(file)
            if dtype.hasobject:
                return None
            if archive.getinfo(member).file_size - file.tell() < dtype.itemsize * math.prod(shape):
                raise EOFError(f"{member} ends early")
        if not fortran_order or len(shape) < 2:
            return cls(archive, member, shape, dtype)
        if dtype.itemsize * math.prod(shape) > _MAX_COLUMN_MAJOR_BYTES:
            raise ValueError(f"{member} is in Fortran order and too large to be read at once: save it in C order")
        return _ColumnMajor(archive, member, shape, dtype)

    def __getitem__(self, rows: slice) -> Array:
        """Return some rows.

        Raises:
            EOFError: the file ends before them.
        """
        start, stop, _ = rows.indices(self.shape[0])
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        if self._file is None:
            self._file = self._archive.open(self._member)
            _read_header(self._file)
            self._offset = self._file.tell()
        self._file.seek(self._offset + start * row_bytes)
        data = self._file.read(max(0, stop - start) * row_bytes)
        if len(data) != max(0, stop - start) * row_bytes:
            raise EOFError(f"{self._member} ends early")
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:]) if data else self._empty()

    def _empty(self) -> Array:
        return np.empty((0, *self.shape[1:]), self.dtype)


class _ColumnMajor(NpzArray):
    """An array whose rows do not lie together: it is read as a whole, once."""

    _values: Array | None = None

    def __getitem__(self, rows: slice) -> Array:
        if self._values is None:
            with self._archive.open(self._member) as file:
                self._values = npy.read_array(file, allow_pickle=False)
        return self._values[rows]


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    shape, fortran_order, dtype = (
        npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    )
    return tuple(shape), bool(fortran_order), np.dtype(dtype)


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open an archive; what goes wrong with its bytes becomes a SourceFormatError, also while the block reads.

    Raises:
        SourceFormatError: no npz, truncated or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield NpzFile(archive, path)
    except DaskRLError:
        raise
    except NONSENSE as error:
        reason = " ".join(str(error).split())[:160]
        raise SourceFormatError(
            explain(str(path), got=f"unreadable npz ({reason})", allowed="a complete npz file", fix=_DAMAGED)
        ) from error
