"""Where a dataset lies: a local directory, or a URL that fsspec knows."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
from zarr.storage import FsspecStore, LocalStore

from .errors import CorruptDataError, DatasetError, explain

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
    def sizes(self) -> dict[str, int]:
        """Return the size of every file.

        Raises:
            CorruptDataError: there are symbolic links inside.
        """

    @abstractmethod
    def zarr_store(self) -> Any:
        """Return the same files as a store of zarr-python."""

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

    def sizes(self) -> dict[str, int]:
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

    def zarr_store(self) -> LocalStore:
        """Return the same files as a store of zarr-python."""
        return LocalStore(self.url, read_only=True)

    def local_file(self, key: str) -> Path:
        """Return the path of a file."""
        return Path(self.url, key)


class RemoteDirectory(Location):
    """A dataset behind a URL such as s3://bucket/name.zarr; its protocol's package must be installed."""

    def __init__(self, url: str) -> None:
        """Name the place."""
        self.url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DatasetError(
                explain(
                    f"dataset {url}",
                    got=reason,
                    allowed="a path, or a URL whose protocol fsspec knows",
                    fix="install the protocol's package, or correct the URL",
                )
            ) from error

    def exists(self) -> bool:
        """Whether there is anything."""
        return bool(self._files.exists(self._root))

    def read(self, key: str) -> bytes:
        """Return a whole file."""
        return bytes(self._files.cat_file(f"{self._root}/{key}"))

    def sizes(self) -> dict[str, int]:
        """Return the size of every file."""
        found = self._files.find(self._root, detail=True)
        prefix = self._root.strip("/") + "/"
        return {name.lstrip("/").removeprefix(prefix): int(info["size"]) for name, info in found.items()}

    def zarr_store(self) -> FsspecStore:
        """Return the same files as a store of zarr-python."""
        return FsspecStore.from_url(self.url, read_only=True)


def _identity(status: os.stat_result) -> _Identity:
    return status.st_size, status.st_ino, status.st_mtime_ns


def locate(path: str | os.PathLike[str]) -> Location:
    """Return the location of a dataset from a path or a URL."""
    text = os.fspath(path)
    if "://" not in text:
        return LocalDirectory(text)
    if text.startswith("file://"):
        return LocalDirectory(text.removeprefix("file://"))
    return RemoteDirectory(text)
