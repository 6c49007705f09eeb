"""The files of a dataset as a store of zarr-python, in which a file that is missing is an error and no fill value."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype

from dask_rl.storage.location import Location


class CommittedStore(Store):
    """Read only, and exactly the files that are known.

    Args:
        location: where they are.
        sizes: their sizes in bytes.
    """

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, location: Location, sizes: Mapping[str, int]) -> None:
        super().__init__(read_only=True)
        self._location = location
        self._sizes = sizes

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return a file or a range of it, None where none is known.

        Raises:
            OSError: the file is gone, or ends too early.
            DatasetError: it is another one than when the dataset was opened.
        """
        size = self._sizes.get(key)
        if size is None:
            return None
        start, stop = _bounds(byte_range, size)
        content = await asyncio.to_thread(self._read, key, start, stop)
        if len(content) != stop - start:
            raise OSError(f"{key} ends before byte {stop} of {size}")
        return prototype.buffer.from_bytes(content)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return several ranges."""
        return list(await asyncio.gather(*(self.get(key, prototype, asked) for key, asked in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether the file is known."""
        return key in self._sizes

    async def set(self, key: str, value: Buffer) -> None:
        """Refuse."""
        self._check_writable()

    async def delete(self, key: str) -> None:
        """Refuse."""
        self._check_writable()

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        for key in self._sizes:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin so."""
        for key in self._sizes:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a prefix."""
        below = prefix.rstrip("/") + "/" if prefix else ""
        for name in {key.removeprefix(below).split("/")[0] for key in self._sizes if key.startswith(below)}:
            yield name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommittedStore) and self._location.url == other._location.url

    def __getstate__(self) -> dict[str, Any]:
        return {"_location": self._location, "_sizes": self._sizes, "_read_only": True, "_is_open": False}

    def _read(self, key: str, start: int, stop: int) -> bytes:
        try:
            return self._location.read_range(key, start, stop)
        except FileNotFoundError as error:
            raise OSError(f"{key}: no such file") from error


def _bounds(asked: ByteRequest | None, size: int) -> tuple[int, int]:
    match asked:
        case RangeByteRequest(start, end):
            return start, min(end, size)
        case OffsetByteRequest(offset):
            return offset, size
        case SuffixByteRequest(suffix):
            return max(size - suffix, 0), size
    return 0, size
