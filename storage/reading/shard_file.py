"""One open shard file: its descriptor, and the index at its end."""

import os

from dask_rl.storage.layout import ArrayLayout
from dask_rl.storage.location import LocalDirectory, unreadable

from .shard_index import ShardIndex, corrupt_chunks, name_chunks


class ShardFile(ShardIndex):
    """An open shard; it closes its file when the last reader lets go of it.

    Args:
        location: the dataset.
        layout: the array.
        number: which shard.

    Raises:
        CorruptDataError: the file is missing, or its index is damaged.
        DatasetError: it cannot be read, or is another file than when the dataset was opened.
    """

    def __init__(self, location: LocalDirectory, layout: ArrayLayout, number: int) -> None:
        """Open the file and read its index."""
        self.descriptor = -1
        everything, key = range(layout.chunks_per_shard), layout.shard_key(number)
        try:
            self.descriptor = location.open_file(key)
            status = os.fstat(self.descriptor)
            location.check_same(key, status)
            begin = status.st_size - layout.index_bytes
            tail = os.pread(self.descriptor, layout.index_bytes, begin) if begin >= 0 else b""
        except FileNotFoundError as error:
            location.check_dataset()  # another dataset is no damage
            raise corrupt_chunks(location, layout, number, everything, "no such file", "a shard file") from error
        except OSError as error:
            raise unreadable(name_chunks(location, layout, number, everything), error) from error
        super().__init__(location, layout, number, status.st_size, tail)
        self.verified = bytearray(layout.chunks_per_shard)
        """1 for each chunk whose checksum held once."""

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def read(self, chunks: range, buffers: list[memoryview], offset: int, num_bytes: int) -> None:
        """Fill the buffers, `num_bytes` in all, from the file's byte `offset` on.

        Args:
            chunks: which chunks these are bytes of, for messages.
            buffers: what to fill.
            offset: where the bytes lie.
            num_bytes: of all buffers.

        Raises:
            CorruptDataError: the file ends before.
            DatasetError: the operating system does not read it.
        """
        try:
            done = os.preadv(self.descriptor, buffers, offset)
            while done < num_bytes:  # network file systems may give less than there is, and go on when asked again
                more = os.preadv(self.descriptor, _rest(buffers, done), offset + done)
                if not more:
                    raise self.corrupt(chunks, "a file that ends too early", f"{num_bytes} bytes at {offset}")
                done += more
        except OSError as error:
            raise unreadable(name_chunks(self._location, self._layout, self.number, chunks), error) from error

    def check(self, chunk: int, found: int, stored: int) -> None:
        """Compare a chunk's checksum with the one that is stored behind it, and remember that it holds.

        Raises:
            CorruptDataError: they differ.
        """
        super().check(chunk, found, stored)
        self.verified[chunk] = 1


def _rest(buffers: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return what the buffers hold behind their first bytes."""
    rest = []
    for buffer in buffers:
        flat = buffer.cast("B")
        rest.append(flat[min(num_bytes, len(flat)) :])
        num_bytes -= min(num_bytes, len(flat))
    return [part for part in rest if len(part)]
