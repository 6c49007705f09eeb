"""Rows of one array straight from its shard files into the caller's buffer; checked, and without a copy."""

import threading
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.layout import CRC_BYTES, ArrayLayout, crc32c
from dask_rl.storage.location import LocalDirectory

from .open_shards import OpenShards
from .shard_file import ShardFile

Array = npt.NDArray[Any]
_MAX_RUN = 512  # chunks a call, two buffers each: the kernel takes at most 1024
_RUN_BYTES = 1 << 20  # a call: what was just read is still in the cache when its checksum is taken


class RowReader(Protocol):
    """Reads rows of one array."""

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the rows [start, stop), in `out` where it is given."""
        ...

    def close(self) -> None:
        """Let go of open files."""
        ...


class ShardReader:
    """The reader of a local array; safe to use from several threads.

    Every inner chunk's checksum is verified when it is first read, and again whenever it is read whole. Later
    reads of a part of a verified, uncompressed chunk read that part only.

    Args:
        location: the dataset.
        layout: the array.
    """

    def __init__(self, location: LocalDirectory, layout: ArrayLayout) -> None:
        """Nothing is opened before the first read."""
        self.layout = layout
        self._row_bytes = layout.row_bytes
        self._chunk_bytes = layout.chunk_bytes
        self._max_run = min(max(_RUN_BYTES // max(layout.chunk_bytes, 1), 1), _MAX_RUN)
        self._shards = OpenShards(location, layout)
        self._local = threading.local()

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return the rows [start, stop).

        Args:
            start: first row.
            stop: one after the last row.
            out: (stop - start, *row_shape) in the array's dtype, contiguous; filled and returned.

        Raises:
            CorruptDataError: stored bytes are not what was written; names file, array, rows and remedy.
            DatasetError: the file cannot be read, or is another one than when the dataset was opened.
        """
        layout = self.layout
        out = prepare_output(start, stop, layout.num_rows, layout.row_shape, layout.dtype, out)
        flat = out.reshape(-1).view(np.uint8)
        row = start
        while row < stop:
            shard = self._shards.get(row // layout.shard_rows)
            chunk, skip = divmod(row - shard.number * layout.shard_rows, layout.chunk_rows)
            shard.require(chunk)
            num_whole = 0 if skip else (stop - row) // layout.chunk_rows
            rows = min(layout.chunk_rows - skip, stop - row)
            at = (row - start) * self._row_bytes
            target = flat[at : at + rows * self._row_bytes]
            if layout.compressed:
                self._read_compressed(shard, chunk, skip * self._row_bytes, target)
            elif num_whole:
                num_whole = min(num_whole, shard.runs[chunk], self._max_run)
                self._read_run(shard, range(chunk, chunk + num_whole), flat[at:])
                rows = num_whole * layout.chunk_rows
            else:
                self._read_part(shard, chunk, skip * self._row_bytes, target)
            row += rows
        return out

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        self._shards.close()

    def stored_chunks(self, number: int) -> npt.NDArray[np.bool_]:
        """Return which inner chunks shard `number` stores, (chunks_per_shard,); for verification."""
        return self._shards.get(number).stored

    def _read_run(self, shard: ShardFile, chunks: range, target: npt.NDArray[np.uint8]) -> None:
        """Read whole chunks that lie one after another: the rows to the caller, the checksums beside them."""
        size = self._chunk_bytes
        tails = self._scratch("tails", self._max_run * CRC_BYTES)[: len(chunks) * CRC_BYTES]
        parts = [target[i * size : (i + 1) * size] for i in range(len(chunks))]
        buffers = []
        for i, part in enumerate(parts):
            buffers += [part.data, tails[i * CRC_BYTES : (i + 1) * CRC_BYTES].data]
        shard.read(chunks, buffers, shard.offsets[chunks.start], len(chunks) * (size + CRC_BYTES))
        for chunk, part, stored in zip(chunks, parts, tails.view("<u4").tolist(), strict=True):
            shard.check(chunk, crc32c(part), stored)

    def _read_part(self, shard: ShardFile, chunk: int, skip: int, target: npt.NDArray[np.uint8]) -> None:
        """Read a part of a chunk; all of it, the rest into a scratch buffer, while its checksum is unknown."""
        offset, chunks = shard.offsets[chunk], range(chunk, chunk + 1)
        if shard.verified[chunk]:
            shard.read(chunks, [target.data], offset + skip, target.nbytes)
            return
        tail, around = self._scratch("tails", CRC_BYTES), self._scratch("around", self._chunk_bytes)
        parts = [around[:skip], target, around[skip + target.nbytes :]]
        buffers = [part.data for part in (*parts, tail)]
        shard.read(chunks, buffers, offset, self._chunk_bytes + CRC_BYTES)
        checksum = 0
        for part in parts:
            checksum = crc32c(part, checksum)
        shard.check(chunk, checksum, int.from_bytes(tail.tobytes(), "little"))

    def _read_compressed(self, shard: ShardFile, chunk: int, skip: int, target: npt.NDArray[np.uint8]) -> None:
        """Decompress a chunk into the caller's rows; for a part of it, into a buffer that keeps the last chunk."""
        whole = target.nbytes == self._chunk_bytes
        decoded = target if whole else self._scratch("decoded", self._chunk_bytes)
        if whole or getattr(self._local, "held", None) != (shard.number, chunk):
            if not whole:
                self._local.held = None
            self._decompress(shard, chunk, decoded)
            if not whole:
                self._local.held = (shard.number, chunk)
        if not whole:
            target[:] = decoded[skip : skip + target.nbytes]

    def _decompress(self, shard: ShardFile, chunk: int, decoded: npt.NDArray[np.uint8]) -> None:
        chunks, length = range(chunk, chunk + 1), shard.lengths[chunk]
        stored = self._scratch("stored", length)
        shard.read(chunks, [stored.data], shard.offsets[chunk], length)
        body, tail = stored[:-CRC_BYTES], stored[-CRC_BYTES:]
        shard.check(chunk, crc32c(body), int.from_bytes(tail.tobytes(), "little"))
        shard.decompress(chunk, body, decoded)

    def _scratch(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        """Return a buffer of this thread, kept for the next read."""
        buffer: npt.NDArray[np.uint8] | None = getattr(self._local, name, None)
        if buffer is None or len(buffer) < size:
            buffer = np.empty(size, np.uint8)
            setattr(self._local, name, buffer)
        return buffer[:size]


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
