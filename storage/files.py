"""Durable files: written aside, flushed to the disk, and moved into place in one step."""

import ctypes
import functools
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .encoding import Bytes
from .errors import ConfigError, explain
from .remote.address import redact

_SYNC_BYTES = 16 << 20
_SYNCS_AT_ONCE = 8
_MAX_BUFFERS = 512  # the kernel takes at most 1024 a call
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_AT_FDCWD = -100  # these two are Linux's
_RENAME_EXCHANGE = 2


def check_local(subject: str, path: str | os.PathLike[str]) -> None:
    """Raise ConfigError where something to be written is named by a URL: it would become a directory of that name."""
    if re.match(r"[a-z][a-z0-9+.-]+:/", os.fspath(path), re.IGNORECASE):
        allowed, fix = "a path on this machine", "write it here, then copy it there"
        raise ConfigError(explain(subject, got=f"the URL {redact(os.fspath(path))}", allowed=allowed, fix=fix))


def make_directory(path: Path) -> None:
    """Create a directory and its parents; one that exists is fine."""
    path.mkdir(parents=True, exist_ok=True)


def write_atomically(path: Path, buffers: Iterable[Bytes], temporary: Path, *, flush: bool = True) -> None:
    """Write a file so that it is there complete or not at all, also after a loss of power.

    Args:
        path: the file; its directory exists.
        buffers: its content.
        temporary: a directory that exists, on the same file system, for the unfinished file.
        flush: whether to wait for the disk; without, a loss of power may leave the file empty.
    """
    with _unfinished(path, temporary / uuid.uuid4().hex) as descriptor:
        _write_all(descriptor, list(buffers))
        if flush:
            os.fdatasync(descriptor)


def replace_file(path: Path, content: Bytes, unfinished: Path) -> None:
    """Write a file so that it is there as it was or as it is to be, also after a loss of power, and its name too.

    Args:
        path: the file; its directory exists.
        content: all of it.
        unfinished: a name on the same file system, of which at most one is left by processes that die.
    """
    with _unfinished(path, unfinished) as descriptor:
        _write_all(descriptor, [content])
        os.fdatasync(descriptor)
    fsync_path(path.parent)


def write_synced(path: Path, content: Bytes) -> None:
    """Write a new file, and its bytes through to the disk; for one whose directory gets its name when it is whole."""
    descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        _write_all(descriptor, [content])
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def write_stream(path: Path, parts: Iterable[Bytes], temporary: Path) -> None:
    """Write a file part by part as `parts` yields them, there complete or not at all.

    What is written goes to the disk meanwhile, so that little is left to wait for at the end.

    Args:
        path: the file; its directory exists.
        parts: its content; each is written before the next is asked for.
        temporary: as for `write_atomically`.
    """
    with _unfinished(path, temporary / uuid.uuid4().hex) as descriptor:
        with ThreadPoolExecutor(max_workers=1) as syncer:
            pending, under_way = 0, None
            for part in parts:
                _write_all(descriptor, [part])
                pending += len(part)
                if pending >= _SYNC_BYTES and (under_way is None or under_way.done()):
                    if under_way is not None:
                        under_way.result()  # the system tells once that the disk failed: later calls succeed
                    pending, under_way = 0, syncer.submit(os.fdatasync, descriptor)
            if under_way is not None:
                under_way.result()
        os.fdatasync(descriptor)


def exchange(path: Path, other: Path) -> bool:
    """Let two paths of one file system change places in one step; return whether that was done.

    Not every file system has such a step (NFS has none). What is refused for another reason is refused to a plain
    rename too, which says why.
    """
    rename = _renameat2()
    if rename is None:
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0


def fsync_path(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_paths(paths: Iterable[Path]) -> None:
    """Flush several files or directories: at once, as one wait of the disk then serves for many."""
    with ThreadPoolExecutor(max_workers=_SYNCS_AT_ONCE) as pool:
        for _ in pool.map(fsync_path, paths):
            pass


@contextmanager
def _unfinished(path: Path, unfinished: Path) -> Iterator[int]:
    """Give the descriptor of a new file that becomes `path` in the end; after an error nothing of it stays."""
    descriptor = os.open(unfinished, _NEW_FILE, 0o666)
    try:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


@functools.cache
def _renameat2() -> Callable[..., Any] | None:
    """Return the system's call, None where its library has none."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _write_all(descriptor: int, buffers: Sequence[Bytes]) -> None:
    views = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while views:
        written = os.writev(descriptor, views[:_MAX_BUFFERS])
        done = 0
        while done < len(views) and written >= views[done].nbytes:
            written -= views[done].nbytes
            done += 1
        views = views[done:]
        if written:
            views[0] = views[0][written:]
