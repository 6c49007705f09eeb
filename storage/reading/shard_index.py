"""Where the chunks of one shard file lie, wherever the file is. Damage is found here or named from here."""

import numpy as np
import numpy.typing as npt
from numcodecs import zstd

from dask_rl.storage.errors import CorruptDataError, explain
from dask_rl.storage.layout import ABSENT, CRC_BYTES, ArrayLayout, decode_index
from dask_rl.storage.location import REMEDY, Location


class ShardIndex:
    """The index of a shard, read and checked.

    Args:
        location: the dataset.
        layout: the array.
        number: which shard.
        size: bytes of the file.
        tail: its last `layout.index_bytes` bytes.

    Raises:
        CorruptDataError: the file is too short, or the index is damaged.
    """

    def __init__(self, location: Location, layout: ArrayLayout, number: int, size: int, tail: bytes) -> None:
        """Decode the index."""
        self.number = number
        self._location = location
        self._layout = layout
        self._size = size
        index = self._decode(tail)
        self.stored: npt.NDArray[np.bool_] = (index != ABSENT).any(axis=1)
        """Which chunks the index lists, (chunks_per_shard,)."""
        self.offsets: list[int] = index[:, 0].tolist()
        self.lengths: list[int] = index[:, 1].tolist()
        self.runs = self._find_runs()
        """For each chunk, how many usable ones lie one after another in the file from here on; 0: it is damaged."""

    def require(self, chunk: int) -> None:
        """Check that the index lists the chunk, inside the file and with a length that can be.

        Raises:
            CorruptDataError: it does not.
        """
        if self.runs[chunk]:
            return
        if not self.stored[chunk]:
            raise self.corrupt(range(chunk, chunk + 1), "no such chunk in the index", "every chunk that holds rows")
        got = f"{self.lengths[chunk]} bytes at {self.offsets[chunk]}"
        raise self.corrupt(range(chunk, chunk + 1), got, f"a chunk inside the file of {self._size} bytes")

    def check(self, chunk: int, found: int, stored: int) -> None:
        """Compare a chunk's checksum with the one that is stored behind it.

        Raises:
            CorruptDataError: they differ.
        """
        if found != stored:
            allowed = f"{stored:08x} as stored with it"
            raise self.corrupt(range(chunk, chunk + 1), f"checksum {found:08x}", allowed)

    def decompress(
        self, chunk: int, body: npt.NDArray[np.uint8], decoded: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """Decompress a chunk into `decoded`, which has the size that it must have, and return that.

        Raises:
            CorruptDataError: it does not fit.
        """
        chunks, wanted = range(chunk, chunk + 1), f"{decoded.nbytes} bytes of rows"
        try:
            done = memoryview(zstd.decompress(body, decoded)).nbytes
        except (RuntimeError, ValueError) as error:
            raise self.corrupt(chunks, f"zstd: {error}", wanted) from error
        if done != decoded.nbytes:
            raise self.corrupt(chunks, f"{done} bytes of rows", wanted)
        return decoded

    def corrupt(self, chunks: range, got: str, allowed: str) -> CorruptDataError:
        """Return the error for damaged chunks of this file."""
        return corrupt_chunks(self._location, self._layout, self.number, chunks, got, allowed)

    def _decode(self, tail: bytes) -> npt.NDArray[np.uint64]:
        layout, everything = self._layout, range(self._layout.chunks_per_shard)
        if self._size < layout.index_bytes or len(tail) != layout.index_bytes:
            raise self.corrupt(everything, f"a file of {self._size} bytes", f"at least {layout.index_bytes} bytes")
        index = decode_index(tail)
        if index is None:
            raise self.corrupt(everything, "a shard index with a wrong checksum", "the index as it was written")
        return index

    def _find_runs(self) -> list[int]:
        layout = self._layout
        runs = [0] * (layout.chunks_per_shard + 1)
        for i in range(layout.chunks_per_shard - 1, -1, -1):
            offset, length = self.offsets[i], self.lengths[i]
            plausible = length > CRC_BYTES if layout.compressed else length == layout.chunk_bytes + CRC_BYTES
            # A length that no honest writer gives must not make a reader reserve memory for it.
            if plausible and offset + length <= self._size:
                follows = i + 1 < layout.chunks_per_shard and self.offsets[i + 1] == offset + length
                runs[i] = 1 + (runs[i + 1] if follows else 0)
        return runs[:-1]


def corrupt_chunks(
    location: Location, layout: ArrayLayout, number: int, chunks: range, got: str, allowed: str
) -> CorruptDataError:
    """Return the error for damaged chunks of shard `number`."""
    subject = name_chunks(location, layout, number, chunks)
    return CorruptDataError(explain(subject, got=got, allowed=allowed, fix=REMEDY))


def name_chunks(location: Location, layout: ArrayLayout, number: int, chunks: range) -> str:
    """Return what messages call chunks of shard `number`: which file, which array, which rows."""
    start = layout.first_row + number * layout.shard_rows
    first, last = (start + i * layout.chunk_rows for i in (chunks.start, chunks.stop))
    rows = first, min(last, layout.first_row + layout.num_rows)
    return _name_rows(location, layout.shard_key(number), layout.key, rows)


def corrupt(location: Location, name: str, key: str, rows: tuple[int, int], got: str, allowed: str) -> CorruptDataError:
    """Return the error for a damaged file: which file, which array, which rows, what to do."""
    return CorruptDataError(explain(_name_rows(location, name, key, rows), got=got, allowed=allowed, fix=REMEDY))


def _name_rows(location: Location, name: str, key: str, rows: tuple[int, int]) -> str:
    field = key.rpartition("data/")[2]
    return f"{name} in dataset {location.url} ({field}, rows {rows[0]} to {rows[1] - 1})"
