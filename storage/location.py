"""Where the files of a dataset lie, read only; here a directory of this machine."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from .errors import CorruptDataError, DatasetError, explain
from .manifest import Commit

_PIECE_BYTES = 1 << 22
_MAX_READ_BYTES = 1 << 30
REMEDY = "restore it from a copy, or import the source again"

_Identity = tuple[int, int, int]
"""Size, inode and time of the last change in nanoseconds."""


class Location(ABC):
    """The files of one dataset, read only."""

    url: str
    """What the user gave, made absolute where it is a path."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is anything."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return a whole file.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def sizes(self, wanted: Collection[str] = ()) -> dict[str, int]:
        """Return the size of every file; where the place cannot be listed, of those that are wanted.

        Raises:
            CorruptDataError: there are symbolic links inside.
        """

    @abstractmethod
    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file; fewer where it ends before.

        Raises:
            FileNotFoundError: there is none.
            DatasetError: it is another one than at the first `sizes`.
        """

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield a whole file in pieces."""
        yield self.read(key)

    def local_file(self, key: str) -> Path | None:
        """Return the path of a file that the direct reader can open, None if it cannot."""
        return None

    def check_same(self, key: str, status: os.stat_result | None = None) -> None:
        """Raise DatasetError where a file is another one than at the first `sizes`; elsewhere than here none is.

        Args:
            key: the file.
            status: what it is now, where it has been opened.
        """
        return

    def will_read(self, keys: Iterable[str]) -> None:
        """Hear that small files will be read one by one soon: elsewhere they can be fetched at once."""
        return

    def is_unfinished(self) -> bool:
        """Whether a dataset is being written here, or was by one that stopped; where that grows elsewhere it is not."""
        return False

    def check_current(self, commit: Commit) -> None:
        """Raise DatasetError where what was read before this call may be of another dataset than `commit`.

        Of a directory every file is checked by itself: see `check_same`.
        """
        return


class LocalDirectory(Location):
    """A dataset in a directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the directory."""
        self.url = os.path.abspath(path)
        self._known: dict[str, _Identity] | None = None

    def exists(self) -> bool:
        """Whether there is anything."""
        return os.path.lexists(self.url)

    def read(self, key: str) -> bytes:
        """Return a whole file; only a plain one, of a size that metadata can have."""
        path = self.local_file(key)
        if path.is_symlink():
            raise self._refusal(key, "a symbolic link")
        if path.exists() and not (path.is_file() and path.stat().st_size <= _MAX_READ_BYTES):
            raise self._refusal(key, "no plain file, or one of an absurd size")
        return path.read_bytes()

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield a whole file in pieces."""
        with self.local_file(key).open("rb", buffering=0) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def sizes(self, wanted: Collection[str] = ()) -> dict[str, int]:
        """Return the size of every file; symbolic links are refused (they could lead anywhere), and devices."""
        found: dict[str, _Identity] = {}
        pending = [self.url]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    key = os.path.relpath(entry.path, self.url).replace(os.sep, "/")
                    if entry.is_symlink():
                        raise self._refusal(key, "a symbolic link")
                    if entry.is_dir():
                        pending.append(entry.path)
                    elif entry.is_file():
                        found[key] = _identity(entry.stat())
                    else:
                        raise self._refusal(key, "a device or pipe")
        if self._known is None:
            self._known = found
        return {key: size for key, (size, _, _) in found.items()}

    def check_same(self, key: str, status: os.stat_result | None = None) -> None:
        """Raise DatasetError where a file is another one than at the first `sizes`."""
        known = None if self._known is None else self._known.get(key)
        if known is None:
            return
        try:
            now = _identity(os.stat(self.local_file(key)) if status is None else status)
        except OSError:
            now = None
        if now != known:
            raise DatasetError(
                explain(
                    f"{key} in dataset {self.url}",
                    got="another file than when it was opened",
                    allowed="a dataset that stays as it is while it is read",
                    fix="put that dataset back, or start a new run on the new one",
                )
            )

    def __getstate__(self) -> dict[str, Any]:
        # Elsewhere the same file may have another number.
        return {"url": self.url, "_known": None}

    def _refusal(self, key: str, got: str) -> CorruptDataError:
        return CorruptDataError(
            explain(
                f"{key} in dataset {self.url}",
                got=got,
                allowed="plain files and directories",
                fix="replace it by the file it stands for, or import the source again",
            )
        )

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file; fewer where it ends before."""
        descriptor = os.open(self.local_file(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.check_same(key, os.fstat(descriptor))
            return os.pread(descriptor, stop - start, start)
        finally:
            os.close(descriptor)

    def local_file(self, key: str) -> Path:
        """Return the path of a file."""
        return Path(self.url, key)


def _identity(status: os.stat_result) -> _Identity:
    return status.st_size, status.st_ino, status.st_mtime_ns
