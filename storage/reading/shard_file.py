"""One open shard file: its descriptor, and the index at its end."""

import os

from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.location import Location

from .shard_index import ShardIndex, corrupt_chunks


class ShardFile(ShardIndex):
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
        self.descriptor = -1
        everything = range(layout.chunks_per_shard)
        path = location.local_file(layout.shard_key(number))
        try:
            self.descriptor = os.open(path or "", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise corrupt_chunks(location, layout, number, everything, "no such file", "a shard file") from error
        status = os.fstat(self.descriptor)
        location.check_same(layout.shard_key(number), status)
        begin = status.st_size - layout.index_bytes
        tail = os.pread(self.descriptor, layout.index_bytes, begin) if begin >= 0 else b""
        super().__init__(location, layout, number, status.st_size, tail)
        self.verified = bytearray(layout.chunks_per_shard)
        """1 for each chunk whose checksum held once."""

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def check(self, chunk: int, found: int, stored: int) -> None:
        """Compare a chunk's checksum with the one that is stored behind it, and remember that it holds.

        Raises:
            CorruptDataError: they differ.
        """
        super().check(chunk, found, stored)
        self.verified[chunk] = 1
