"""One open shard file: its descriptor, and where its chunks lie. Damage is found here or named from here."""

import os

import numpy as np
import numpy.typing as npt

from .errors import CorruptDataError, explain
from .layout import ABSENT, CRC_BYTES, ArrayLayout, decode_index
from .location import REMEDY, Location


class ShardFile:
    """An open shard; it closes its file when the last reader lets go of it.

    Args:
        location: the dataset.
        layout: the array.
        number: which shard.

    Raises:
        CorruptDataError: the file is missing, or its index is damaged.
        DatasetError: it is another file than when the dataset was opened.
    """

    def __init__(self, location: Location, layout: ArrayLayout, number: int) -> None:
        """Open the file and read its index."""
        self.number = number
        self.descriptor = -1
        self._location = location
        self._layout = layout
        path = location.local_file(layout.shard_key(number))
        try:
            self.descriptor = os.open(path or "", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self.corrupt(range(layout.chunks_per_shard), "no such file", "a shard file") from error
        status = os.fstat(self.descriptor)
        location.check_same(layout.shard_key(number), status)
        self._size = status.st_size
        index = self._read_index()
        self.stored: npt.NDArray[np.bool_] = (index != ABSENT).any(axis=1)
        """Which chunks the index lists, (chunks_per_shard,)."""
        self.offsets: list[int] = index[:, 0].tolist()
        self.lengths: list[int] = index[:, 1].tolist()
        self.runs = self._find_runs()
        """For each chunk, how many usable ones lie one after another in the file from here on; 0: it is damaged."""
        self.verified = bytearray(layout.chunks_per_shard)
        """1 for each chunk whose checksum held once."""

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

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
        self.verified[chunk] = 1

    def corrupt(self, chunks: range, got: str, allowed: str) -> CorruptDataError:
        """Return the error for damaged chunks of this file."""
        start = self.number * self._layout.shard_rows
        first, last = (start + i * self._layout.chunk_rows for i in (chunks.start, chunks.stop))
        rows = first, min(last, self._layout.num_rows)
        name = self._layout.shard_key(self.number)
        return corrupt(self._location, name, self._layout.key, rows, got, allowed)

    def _read_index(self) -> npt.NDArray[np.uint64]:
        layout, everything = self._layout, range(self._layout.chunks_per_shard)
        begin = self._size - layout.index_bytes
        raw = os.pread(self.descriptor, layout.index_bytes, begin) if begin >= 0 else b""
        if len(raw) != layout.index_bytes:
            raise self.corrupt(everything, f"a file of {self._size} bytes", f"at least {layout.index_bytes} bytes")
        index = decode_index(raw)
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


def corrupt(location: Location, name: str, key: str, rows: tuple[int, int], got: str, allowed: str) -> CorruptDataError:
    """Return the error for a damaged file: which file, which array, which rows, what to do."""
    field = key.removeprefix("data/")
    subject = f"{name} in dataset {location.url} ({field}, rows {rows[0]} to {rows[1] - 1})"
    return CorruptDataError(explain(subject, got=got, allowed=allowed, fix=REMEDY))
