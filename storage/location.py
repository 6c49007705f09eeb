"""Where the files of a dataset lie, read only; here a directory of this machine."""

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import CorruptDataError, DatasetError, explain
from .manifest import Commit, keeps_files_of
from .schema import COMMIT_NAME

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

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield a whole file in pieces."""
        yield self.read(key)

    def will_read(self, keys: Iterable[str]) -> None:
        """Hear that small files will be read one by one soon: elsewhere they can be fetched at once."""
        return

    def is_unfinished(self) -> bool:
        """Whether a dataset is being written here, or was by one that stopped; where that grows elsewhere it is not."""
        return False

    def expect(self, commit: Commit) -> None:
        """Hear which dataset was opened, here or by another process: what is read must be of that one."""
        return

    def forget(self) -> None:
        """Forget what was seen: the dataset is opened anew."""
        return


class LocalDirectory(Location):
    """A dataset in a directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the directory."""
        self.url = os.path.abspath(path)
        self._known: dict[str, _Identity] | None = None
        self._expected: Commit | None = None
        self._found: _Identity | None = None  # the manifest that was found to be that of the expected dataset

    def exists(self) -> bool:
        """Whether there is anything."""
        return os.path.lexists(self.url)

    def is_unfinished(self) -> bool:
        """Whether the dataset that was here gave way to a new one that did not come; see BuildDirectory."""
        place, name = os.path.split(self.url)
        return os.path.exists(os.path.join(place, f".{name}.partial", "old"))

    def read(self, key: str) -> bytes:
        """Return a whole file; only a plain one, of a size that metadata can have."""
        try:
            with os.fdopen(self.open_file(key), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > _MAX_READ_BYTES:
                    raise self._refusal(key, f"{size} bytes, more than any metadata have")
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreadable(key, error) from error

    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield a whole file in pieces.

        Raises:
            DatasetError: it is another one than at the first `sizes`, or cannot be read.
        """
        with os.fdopen(self.open_file(key), "rb", buffering=0) as file:
            self.check_same(key, os.fstat(file.fileno()))
            try:
                while piece := file.read(_PIECE_BYTES):
                    yield piece
            except OSError as error:
                raise self._unreadable(key, error) from error

    def open_file(self, key: str) -> int:
        """Return a descriptor for reading a plain file; it waits for nobody, as that of a pipe would.

        Raises:
            FileNotFoundError: there is none.
            CorruptDataError: it is a symbolic link, a device or a pipe.
            OSError: it cannot be opened.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.local_file(key), flags)
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._refusal(key, "a symbolic link") from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._refusal(key, "no plain file")
        return descriptor

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

    def expect(self, commit: Commit) -> None:
        """Hear which dataset was opened."""
        self._expected = commit

    def forget(self) -> None:
        """Forget what was seen."""
        self._known = None

    def check_same(self, key: str, status: os.stat_result) -> None:
        """Raise DatasetError where a file is another one than at the first `sizes`.

        Where a process did not open the dataset itself but was sent it, the manifest must be the one that is expected.

        Args:
            key: the file.
            status: what it is now; it has been opened.
        """
        if self._known is None:
            self.check_dataset()
        elif self._known.get(key, _identity(status)) != _identity(status):
            raise self._replaced(f"{key} in dataset {self.url}", "another file than when it was opened")

    def check_dataset(self) -> None:
        """Raise DatasetError where another dataset is here by now; one that was appended to is none."""
        if self._expected is None:
            return
        found = None
        with suppress(OSError):
            found = _identity(os.stat(self.local_file(COMMIT_NAME)))
            if found == self._found:
                return
        content = None
        with suppress(FileNotFoundError):
            content = self.read(COMMIT_NAME)
        if not keeps_files_of(content, self._expected):
            raise self._replaced(f"dataset {self.url}", "another one than when it was opened")
        self._found = found

    def __getstate__(self) -> dict[str, Any]:
        # Elsewhere the same file may have another number.
        return {"url": self.url, "_known": None, "_expected": None, "_found": None}

    def _replaced(self, subject: str, got: str) -> DatasetError:
        return DatasetError(
            explain(
                subject,
                got=got,
                allowed="a dataset that stays as it is while it is read",
                fix="put that dataset back, or start a new run on the new one",
            )
        )

    def _unreadable(self, key: str, error: OSError) -> DatasetError:
        return unreadable(f"{key} in dataset {self.url}", error)

    def _refusal(self, key: str, got: str) -> CorruptDataError:
        return CorruptDataError(
            explain(
                f"{key} in dataset {self.url}",
                got=got,
                allowed="plain files and directories",
                fix="replace it by the file it stands for, or import the source again",
            )
        )

    def local_file(self, key: str) -> Path:
        """Return the path of a file."""
        return Path(self.url, key)


def _identity(status: os.stat_result) -> _Identity:
    return status.st_size, status.st_ino, status.st_mtime_ns


def unreadable(subject: str, error: OSError) -> DatasetError:
    """Return the error for what the operating system does not let us read."""
    return DatasetError(
        explain(
            subject,
            got=error.strerror or str(error) or type(error).__name__,
            allowed="files that can be read",
            fix="look at the disk or mount, the permissions and the limit of open files, then try again",
        )
    )
