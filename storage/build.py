"""The directory in which a dataset grows: locked, resumable, and renamed to its final name as a whole.

.NAME.partial/build.json     what is being built; another content starts from nothing
              receipts/K.json    shard K of all arrays is on disk, with these sizes and checksums
              tmp/               files being written
              store/             becomes NAME
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .encoding import EncodedShard
from .errors import DatasetError, explain
from .files import fsync_path, make_directory, write_atomically
from .schema import ATTRIBUTES_KEY, COMMIT_NAME, METADATA_NAME

Receipt = dict[str, dict[str, Any]]  # object key -> size, sha256 and digest (of the raw rows)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOENT, errno.EEXIST)


class BuildDirectory:
    """The hidden sibling `.NAME.partial` of a dataset under construction, held by one writer at a time.

    Raises:
        DatasetError: the dataset exists already, another writer is at work, or the place cannot be written.
    """

    def __init__(self, target: Path, overwrite: bool) -> None:
        """Take the directory, with what an interrupted writer left in it."""
        self.target = target
        self.path = target.with_name(f".{target.name}.partial")
        self.store = self.path / "store"
        self._overwrite = overwrite
        self._lock: int | None = None
        with explained_write_errors(target):
            self._check_target()
            make_directory(self.path)
            self._lock = _lock_directory(self.path, target)
            self._bring_back_old()

    def start(self, content: Mapping[str, Any]) -> None:
        """Begin or go on: finished shards stay only if they belong to the same content."""
        wanted = json.dumps(content, sort_keys=True).encode()
        marker = self.path / "build.json"
        with explained_write_errors(self.target):
            shutil.rmtree(self.path / "tmp", ignore_errors=True)
            if not marker.exists() or marker.read_bytes() != wanted:
                shutil.rmtree(self.path / "receipts", ignore_errors=True)
                shutil.rmtree(self.store, ignore_errors=True)
                self._write(marker, [wanted])
            make_directory(self.path / "receipts")
            make_directory(self.store)

    def find_receipt(self, shard: int, digests: Mapping[str, int]) -> Receipt | None:
        """Return the receipt of a finished shard if it holds exactly these rows and its files are there."""
        path = self._receipt_path(shard)
        try:
            receipt: Receipt = json.loads(path.read_bytes())
            same = {key: entry["digest"] for key, entry in receipt.items()} == dict(digests)
            complete = all((self.store / key).stat().st_size == entry["size"] for key, entry in receipt.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # a damaged receipt is as good as none: the shard is written again
        return receipt if same and complete else None

    def write_object(self, key: str, encoded: EncodedShard) -> None:
        """Write one shard file; after the return its bytes survive a loss of power."""
        with explained_write_errors(self.target):
            path = self.store / key
            make_directory(path.parent)
            self._write(path, encoded.buffers)

    def write_receipt(self, shard: int, receipt: Receipt) -> None:
        """Record that shard number `shard` of all arrays is finished."""
        with explained_write_errors(self.target):
            self._write(self._receipt_path(shard), [json.dumps(receipt).encode()])

    def has_receipts(self) -> bool:
        """Whether any shard is finished."""
        return any((self.path / "receipts").glob("*.json"))

    def commit(self, content: bytes) -> None:
        """Write commit.json, make all names durable (the files are) and give the dataset its own."""
        with explained_write_errors(self.target):
            self._write(self.store / COMMIT_NAME, [content])
            for directory, _, _ in os.walk(self.store):
                fsync_path(Path(directory))
            self._check_target()
            if self.target.exists():
                os.rename(self.target, self.path / "old")
            os.rename(self.store, self.target)
            fsync_path(self.target.parent)
        self.abort()

    def abort(self) -> None:
        """Remove everything that is unfinished."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Let go of the lock; what is finished stays for the next writer."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _bring_back_old(self) -> None:
        """Undo an overwriting that stopped between its two renames."""
        old = self.path / "old"
        if old.exists() and not self.target.exists():
            os.rename(old, self.target)
        shutil.rmtree(old, ignore_errors=True)
        try:
            self._check_target()
        except DatasetError:
            self.abort()
            raise

    def _receipt_path(self, shard: int) -> Path:
        return self.path / "receipts" / f"{shard}.json"

    def _write(self, path: Path, buffers: Any) -> None:
        write_atomically(path, buffers, self.path / "tmp")

    def _check_target(self) -> None:
        if not os.path.lexists(self.target):
            return
        if not self._overwrite:
            raise DatasetError(
                explain(
                    f"dataset {self.target}",
                    got="a path that exists already",
                    allowed="a new path",
                    fix="choose another path, or overwrite it (overwrite=True, --overwrite)",
                )
            )
        if not _is_dataset(self.target):
            raise DatasetError(
                explain(
                    f"dataset {self.target}",
                    got="something that is no dask-rl dataset",
                    allowed="a dataset to overwrite",
                    fix="choose another path; nothing was removed",
                )
            )


@contextmanager
def explained_write_errors(target: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do.

    Raises:
        DatasetError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in _NO_SPACE:
            fix = "free some space and run the same again: finished shards are kept"
            allowed = "room for the whole dataset"
        elif error.errno in _NOT_WRITABLE:
            fix, allowed = "choose a directory that you can write to", "a writable directory"
        else:
            fix, allowed = "check the disk and run the same again: finished shards are kept", "a working disk"
        raise DatasetError(
            explain(f"cannot write dataset {target}", got=f"{reason}{where}", allowed=allowed, fix=fix)
        ) from error


def _lock_directory(path: Path, target: Path) -> int:
    """Return a descriptor that holds the lock; it is gone with the process, however that ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us may have committed and removed the directory just as we opened it.
        locked = path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())
    except BlockingIOError:
        locked = False
    if not locked:
        os.close(descriptor)
        raise DatasetError(
            explain(
                f"dataset {target}",
                got="another process that writes it now",
                allowed="one writer at a time",
                fix="wait for it, or choose another path",
            )
        )
    return descriptor


def _is_dataset(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    if (path / COMMIT_NAME).is_file():
        return True
    try:
        attributes = json.loads((path / METADATA_NAME).read_bytes())["attributes"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return ATTRIBUTES_KEY in attributes
