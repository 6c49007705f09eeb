"""The directory in which a dataset grows: locked, resumable, and renamed to its final name as a whole.

.NAME.partial/                  shards that one process writes (see shard_store.py)
              lock              held by the writer
              shards-CONTENT/   those that many processes write: late tasks of a dead driver cannot mix in others
              new/, old/        a dataset that is being put in place, and the one that had it
"""

import fcntl
import hashlib
import json
import os
import shutil
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import DatasetError, explain, taken_by_another_writer
from dask_rl.storage.files import exchange, fsync_path, fsync_paths, make_directory
from dask_rl.storage.manifest import Commit
from dask_rl.storage.schema import COMMIT_NAME, METADATA_NAME, is_ours

from .builds import check_objects
from .shard_store import ShardStore
from .write_errors import explained_write_errors

_DIGEST_LETTERS = 16
_LOCK = "lock"
_OLD = "old"  # what the target was, where the file system cannot exchange the two in one step
_NEW = "new"  # what the target is to be, and where it can, what it was
_REMOVED = "removed"
_LEFTOVERS = (_OLD, _NEW, _REMOVED)
_META = "meta"  # the arrays on the episode axis, which zarr-python writes


class BuildDirectory:
    """The hidden sibling `.NAME.partial` of a dataset under construction, held by one writer at a time.

    Raises:
        DatasetError: the dataset exists already, another writer is at work, or the place cannot be written.
    """

    def __init__(self, target: Path, overwrite: bool) -> None:
        """Take the directory, with what an interrupted writer left in it."""
        self.target = target
        self.path = target.with_name(f".{target.name}.partial")
        self.shards = ShardStore(self.path, target)
        self._overwrite = overwrite
        self._lock: Callable[[], Any] | None = None
        with explained_write_errors(target):
            if not any((self.path / name).exists() for name in _LEFTOVERS):  # they are looked after in any case
                self._check_target()
            make_directory(self.path)
            # A writer that nobody closes lets go with its last reference, not with its process.
            self._lock = weakref.finalize(self, os.close, _take_lock(self.path / _LOCK, target))
            try:
                self._settle_old()
                self._check_target()
            except BaseException:
                if self.has_receipts():
                    self.close()
                else:
                    self.abort()
                raise

    @property
    def store(self) -> Path:
        """The directory that becomes the dataset."""
        return self.shards.store

    def start(self, content: Mapping[str, Any], *, shared: bool = False) -> None:
        """Begin or go on: finished shards stay only if they belong to the same content.

        Args:
            content: what is built, JSON-able.
            shared: whether processes other than this one write shards too. `content` then tells all rows, as those
                processes do not compare them.
        """
        marker = json.dumps(content, sort_keys=True).encode()
        mine = f"shards-{hashlib.sha256(marker).hexdigest()[:_DIGEST_LETTERS]}"
        with explained_write_errors(self.target):
            if shared:
                self.shards = ShardStore(self.path / mine, self.target)
                self._clear_all_but({mine, *self._kept})
            else:
                self.shards = ShardStore(self.path, self.target)
                self._clear_all_but({"build.json", "receipts", "store", *self._kept})
            self.shards.prepare(marker)

    def has_receipts(self) -> bool:
        """Whether any shard is finished, by this writer or by one before."""
        return any(any(self.path.glob(f"{directory}receipts/*.json")) for directory in ("", "shards-*/"))

    def commit(self, manifest: Commit) -> None:
        """Write the manifest, make all names and files durable (shards are) and give the dataset its own."""
        with explained_write_errors(self.target):
            self._check_objects(manifest)
            # One wait of the disk for all of them: nothing is a dataset before its directory has its name.
            self.shards.write_file(self.store / COMMIT_NAME, [manifest.to_bytes()], flush=False)
            fsync_all_but_shards(self.store)
            self._check_target()
            if self.target.exists():
                self._replace_target()
            else:
                os.rename(self.store, self.target)
            fsync_path(self.target.parent)
        self.abort()

    def abort(self) -> None:
        """Remove everything that is unfinished; after `close` that is another writer's."""
        if self._lock is None:
            return
        try:
            with suppress(OSError):  # then the old dataset may still be in there
                self._settle_old()
                self._clear_all_but(())
                (self.path / _LOCK).unlink()  # last: from here on others may begin
        finally:
            self.close()
        with suppress(OSError):  # they have
            self.path.rmdir()

    def close(self) -> None:
        """Let go of the lock; what is finished stays for the next writer."""
        if self._lock is not None:
            self._lock()
            self._lock = None

    @property
    def _kept(self) -> Collection[str]:
        """Names in the directory that outlive a start with other content."""
        return ()

    def _clear_all_but(self, names: Collection[str]) -> None:
        for entry in self.path.iterdir():
            if entry.name in (*names, _LOCK):
                continue
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()

    def _check_objects(self, manifest: Commit) -> None:
        found = self.store.rglob("*")
        sizes = {path.relative_to(self.store).as_posix(): path.stat().st_size for path in found}
        check_objects(self.target, sizes, manifest)

    def _replace_target(self) -> None:
        """Put the new dataset in the place of the old one: in one step, where the file system has one."""
        new, old = self.path / _NEW, self.path / _OLD
        os.rename(self.store, new)  # receipts vouch for `store`, and after the step the old dataset would lie there
        if exchange(new, self.target):
            return
        os.rename(new, self.store)
        try:
            os.rename(self.target, old)
            os.rename(self.store, self.target)
        except BaseException:  # also of one who interrupts it
            with suppress(OSError):  # neither over the new one
                os.rename(old, self.target)
            raise

    def _settle_old(self) -> None:
        """Undo or finish an overwriting that stopped: what is being removed is never taken for a dataset again."""
        old, removed = self.path / _OLD, self.path / _REMOVED
        shutil.rmtree(self.path / _NEW, ignore_errors=True)
        shutil.rmtree(removed, ignore_errors=True)
        if old.exists():
            os.rename(old, removed if self.target.exists() else self.target)
            shutil.rmtree(removed, ignore_errors=True)

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
        if not is_dataset(self.target):
            raise DatasetError(
                explain(
                    f"dataset {self.target}",
                    got="something that is no dask-rl dataset",
                    allowed="a dataset to overwrite",
                    fix="choose another path; nothing was removed",
                )
            )


def fsync_all_but_shards(store: Path) -> None:
    """Make the names of all files of a dataset durable, and the files but its shards, which are."""
    fsync_paths(_unflushed(store))


def _unflushed(store: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(store):
        place = Path(directory)
        is_meta = place.relative_to(store).parts[:1] == (_META,)
        yield from (place / name for name in names if is_meta or name in (METADATA_NAME, COMMIT_NAME))
        yield place


def _take_lock(path: Path, target: Path) -> int:
    """Return a descriptor that holds the lock; it is gone with the process, however that ends.

    That of a file open for writing: NFS asks its server for no others, and hosts would not know of each other.
    """
    descriptor, locked = -1, False
    # The holder before us may have committed and removed the directory, or the file, just as we opened it.
    with suppress(BlockingIOError, FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(descriptor), path.stat())
    if not locked:
        if descriptor >= 0:
            os.close(descriptor)
        raise taken_by_another_writer(target, "path")
    return descriptor


def is_dataset(path: Path) -> bool:
    """Whether there is a dataset, complete or damaged: something that may be overwritten."""
    if path.is_symlink() or not path.is_dir():
        return False
    if (path / COMMIT_NAME).is_file():
        return True
    try:
        return is_ours((path / METADATA_NAME).read_bytes())
    except OSError:
        return False
