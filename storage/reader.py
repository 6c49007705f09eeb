"""Rows of one array straight from its shard files into the caller's buffer; checked, and without a copy."""

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import zstd

from .errors import ConfigError, CorruptDataError, explain
from .layout import ABSENT, CRC_BYTES, ArrayLayout, crc32c, decode_index
from .location import REMEDY, Location

Array = npt.NDArray[Any]
_MAX_OPEN_SHARDS = 64


class RowReader(Protocol):
    """Reads rows of one array."""

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the rows [start, stop), in `out` where it is given."""
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...


@dataclass
class _Shard:
    """An open shard file."""

    name: str
    number: int
    descriptor: int
    index: npt.NDArray[np.uint64]  # (chunks_per_shard, 2): offset, length
    verified: npt.NDArray[np.bool_]  # (chunks_per_shard,): the checksum held once

    def __del__(self) -> None:
        os.close(self.descriptor)


class ShardReader:
    """The direct reader of a local array whose layout it knows; safe to use from several threads.

    Every inner chunk's checksum is verified when it is first read, and again whenever it is read whole. Later reads
    of a part of a verified, uncompressed chunk read that part only.

    Args:
        location: the dataset.
        layout: the array.
    """

    def __init__(self, location: Location, layout: ArrayLayout) -> None:
        """Nothing is opened before the first read."""
        self.layout = layout
        self._location = location
        self._shards: OrderedDict[int, _Shard] = OrderedDict()
        self._lock = threading.Lock()
        self._local = threading.local()

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the rows [start, stop).

        Args:
            start: first row.
            stop: one after the last row.
            out: (stop - start, *row_shape) in the array's dtype, contiguous; filled and returned.

        Raises:
            CorruptDataError: stored bytes are not what was written; names file, array, rows and remedy.
        """
        layout = self.layout
        out = prepare_output(start, stop, layout.num_rows, layout.row_shape, layout.dtype, out)
        flat = out.reshape(-1).view(np.uint8)
        row = start
        while row < stop:
            shard = self._shard(row // layout.shard_rows)
            first = shard.number * layout.shard_rows
            chunk, skip = divmod(row - first, layout.chunk_rows)
            rows = min(layout.chunk_rows - skip, stop - row)
            at = (row - start) * layout.row_bytes
            target = flat[at : at + rows * layout.row_bytes]
            if layout.compressed:
                self._read_compressed(shard, chunk, skip * layout.row_bytes, target)
            else:
                self._read_plain(shard, chunk, skip * layout.row_bytes, target)
            row += rows
        return out

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        with self._lock:
            self._shards.clear()

    def stored_chunks(self, number: int) -> npt.NDArray[np.bool_]:
        """Return which inner chunks shard `number` stores, (chunks_per_shard,); for verification."""
        stored: npt.NDArray[np.bool_] = self._shard(number).index[:, 1] != ABSENT
        return stored

    def _read_plain(self, shard: _Shard, chunk: int, skip: int, target: npt.NDArray[np.uint8]) -> None:
        """Scatter one chunk from the file into the caller's rows, a scratch buffer around them, and the checksum."""
        size = self.layout.chunk_bytes
        offset, _ = self._extent(shard, chunk)
        if target.nbytes < size and shard.verified[chunk]:
            if os.preadv(shard.descriptor, [target.data], offset + skip) != target.nbytes:
                raise self._corrupt(shard, chunk, "a file that ends too early", f"{size} bytes for this chunk")
            return
        tail = self._scratch("tail", CRC_BYTES)
        if target.nbytes == size:
            parts = [target]
        else:
            scratch = self._scratch("plain", size)
            parts = [scratch[:skip], target, scratch[skip + target.nbytes :]]
        if os.preadv(shard.descriptor, [part.data for part in (*parts, tail)], offset) != size + CRC_BYTES:
            raise self._corrupt(shard, chunk, "a file that ends too early", f"{size} bytes for this chunk")
        checksum = 0
        for part in parts:
            checksum = crc32c(part, checksum)
        self._check(shard, chunk, checksum, int.from_bytes(tail.tobytes(), "little"))

    def _read_compressed(self, shard: _Shard, chunk: int, skip: int, target: npt.NDArray[np.uint8]) -> None:
        """Decompress one chunk into the caller's rows, by way of a buffer that keeps the last chunk if need be."""
        size = self.layout.chunk_bytes
        whole = target.nbytes == size
        if not whole and getattr(self._local, "held", None) == (shard.number, chunk):
            target[:] = self._scratch("decoded", size)[skip : skip + target.nbytes]
            return
        offset, length = self._extent(shard, chunk)
        stored = self._scratch("stored", length)
        if os.preadv(shard.descriptor, [stored.data], offset) != length:
            raise self._corrupt(shard, chunk, "a file that ends too early", f"{length} bytes for this chunk")
        body, tail = stored[:-CRC_BYTES], stored[-CRC_BYTES:]
        self._check(shard, chunk, crc32c(body), int.from_bytes(tail.tobytes(), "little"))
        if not whole:
            self._local.held = None
        decoded = target if whole else self._scratch("decoded", size)
        try:
            done = memoryview(zstd.decompress(body, decoded)).nbytes
        except (RuntimeError, ValueError) as error:
            raise self._corrupt(shard, chunk, f"zstd: {error}", f"{size} bytes of rows") from error
        if done != size:
            raise self._corrupt(shard, chunk, f"{done} bytes of rows", f"{size} bytes of rows")
        if not whole:
            target[:] = decoded[skip : skip + target.nbytes]
            self._local.held = (shard.number, chunk)

    def _shard(self, number: int) -> _Shard:
        with self._lock:
            shard = self._shards.get(number)
            if shard is None:
                shard = self._shards[number] = self._open(number)
                if len(self._shards) > _MAX_OPEN_SHARDS:
                    # Closed when the last reader drops it: another thread may be reading it right now.
                    self._shards.popitem(last=False)
            else:
                self._shards.move_to_end(number)
            return shard

    def _open(self, number: int) -> _Shard:
        layout = self.layout
        name = layout.shard_key(number)
        path = self._location.local_file(name)
        try:
            descriptor = os.open(path or name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self._corrupt_shard(number, "no such file", "a shard file") from error
        shard = _Shard(name, number, descriptor, np.empty((0, 2), "<u8"), np.zeros(layout.chunks_per_shard, bool))
        size = os.fstat(descriptor).st_size
        begin = size - layout.index_bytes
        raw = os.pread(descriptor, layout.index_bytes, begin) if begin >= 0 else b""
        if len(raw) != layout.index_bytes:
            raise self._corrupt_shard(number, f"a file of {size} bytes", f"more than {layout.index_bytes} bytes")
        index = decode_index(raw)
        if index is None:
            raise self._corrupt_shard(number, "a shard index with a wrong checksum", "the index as it was written")
        shard.index = index
        return shard

    def _extent(self, shard: _Shard, chunk: int) -> tuple[int, int]:
        offset, length = (int(n) for n in shard.index[chunk])
        if offset == ABSENT or length == ABSENT:
            raise self._corrupt(shard, chunk, "no such chunk in the index", "every chunk that holds rows")
        wrong = length <= CRC_BYTES if self.layout.compressed else length != self.layout.chunk_bytes + CRC_BYTES
        # A length that no honest writer gives must not make us reserve memory for it.
        if wrong or offset + length > os.fstat(shard.descriptor).st_size:
            raise self._corrupt(shard, chunk, f"{length} bytes at {offset}", "a chunk inside the file")
        return offset, length

    def _check(self, shard: _Shard, chunk: int, found: int, stored: int) -> None:
        if found != stored:
            raise self._corrupt(shard, chunk, f"checksum {found:08x}", f"{stored:08x} as stored with it")
        shard.verified[chunk] = True

    def _scratch(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        """Return a buffer of this thread, kept for the next read."""
        buffer: npt.NDArray[np.uint8] | None = getattr(self._local, name, None)
        if buffer is None or len(buffer) < size:
            buffer = np.empty(size, np.uint8)
            setattr(self._local, name, buffer)
        return buffer[:size]

    def _corrupt(self, shard: _Shard, chunk: int, got: str, allowed: str) -> CorruptDataError:
        start = shard.number * self.layout.shard_rows + chunk * self.layout.chunk_rows
        return self._corrupt_rows(shard.name, start, start + self.layout.chunk_rows, got, allowed)

    def _corrupt_shard(self, number: int, got: str, allowed: str) -> CorruptDataError:
        start = number * self.layout.shard_rows
        return self._corrupt_rows(self.layout.shard_key(number), start, start + self.layout.shard_rows, got, allowed)

    def _corrupt_rows(self, name: str, start: int, stop: int, got: str, allowed: str) -> CorruptDataError:
        return corrupt(self._location, name, self.layout.key, (start, min(stop, self.layout.num_rows)), got, allowed)


class ZarrReader:
    """Reads an array through zarr-python: other codecs, other places; the same rows, more slowly."""

    def __init__(self, location: Location, key: str) -> None:
        """Open the array."""
        self._location = location
        self._key = key
        self._array = zarr.open_array(location.zarr_store(), path=key, mode="r")

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the rows [start, stop), in `out` where it is given."""
        array = self._array
        dtype = np.dtype(array.dtype).newbyteorder("<")
        out = prepare_output(start, stop, array.shape[0], array.shape[1:], dtype, out)
        try:
            out[...] = array[start:stop]
        except (ValueError, RuntimeError, OSError) as error:
            # What codecs raise on bytes that are not theirs.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise corrupt(self._location, self._key, self._key, (start, stop), reason, "bytes that decode") from error
        return out

    def close(self) -> None:
        """Nothing is kept open."""


def corrupt(location: Location, name: str, key: str, rows: tuple[int, int], got: str, allowed: str) -> CorruptDataError:
    """Return the error for a damaged file: which file, which array, which rows, what to do."""
    field = key.removeprefix("data/")
    subject = f"{name} in dataset {location.url} ({field}, rows {rows[0]} to {rows[1] - 1})"
    return CorruptDataError(explain(subject, got=got, allowed=allowed, fix=REMEDY))


def prepare_output(
    start: int,
    stop: int,
    num_rows: int,
    row_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    out: Array | None,
) -> Array:
    """Return the array to fill: `out` if it fits, a new one if it is None.

    Raises:
        ConfigError: the rows lie outside the dataset, or `out` does not fit.
    """
    if not 0 <= start <= stop <= num_rows:
        raise ConfigError(
            explain("rows", got=f"[{start}, {stop})", allowed=f"inside [0, {num_rows})", fix="ask for rows it has")
        )
    shape = (stop - start, *row_shape)
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise ConfigError(
            explain(
                "out",
                got=f"{out.dtype} {out.shape}{'' if out.flags.c_contiguous else ', not contiguous'}",
                allowed=f"contiguous {dtype} {shape}",
                fix="allocate it with np.empty",
            )
        )
    return out
