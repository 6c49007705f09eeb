"""One writer at a time at a URL: an object that names it, and on one machine a lock that ends with its process."""

import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dask_rl.storage.errors import DatasetError, explain, taken_by_another_writer

from .directory import RemoteDirectory

CLAIM_NAME = "writer.json"
_LOCK_NAME = re.compile(r"[0-9a-f]{64}\.lock")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ClaimTicket:
    """Tells whether a writer still holds the place; picklable."""

    notes: RemoteDirectory
    content: bytes
    """What the object says."""
    target: str
    """The dataset to be, for messages."""

    def check(self) -> None:
        """Raise DatasetError where another writer has the place now, or none."""
        found = None
        with suppress(FileNotFoundError):
            found = self.notes.read(CLAIM_NAME)
        if found != self.content:
            raise DatasetError(
                explain(
                    f"dataset {self.target}",
                    got="a writer that does not hold the place any more",
                    allowed="one writer at a time",
                    fix="run the same again when no other one writes there",
                )
            )


class WriterClaim:
    """Holds the place of a dataset for this process.

    Stores of objects know no locks that end with their holder. So the object stays where a writer died: on the same
    machine the next one sees that and takes over; elsewhere it cannot know, and says what to remove.

    Raises:
        DatasetError: another process writes there, or died there on another machine.
    """

    def __init__(self, notes: RemoteDirectory, target: str) -> None:
        """Take the place."""
        self._descriptor: int | None = _lock(target, _lock_name(target))
        try:
            self.ticket = _claim(notes, target)
        except BaseException:
            self._unlock()
            raise

    def release(self) -> None:
        """Let others write."""
        if self._descriptor is None:
            return
        try:
            with suppress(DatasetError):  # it is gone, or somebody else's
                self.ticket.check()
                self.ticket.notes.delete([CLAIM_NAME])
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _claim(notes: RemoteDirectory, target: str) -> ClaimTicket:
    mine = {"id": uuid.uuid4().hex, "host": os.uname().nodename, "process": os.getpid(), "locks": _lock_domain(),
            "lock": _lock_name(target), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
    content = json.dumps(mine).encode()
    try:
        notes.put(CLAIM_NAME, [content], create=True)
    except FileExistsError as error:
        other = notes.read(CLAIM_NAME)
        if other != content:
            _check_dead(other, notes, target, error)
            notes.put(CLAIM_NAME, [content])
    ticket = ClaimTicket(notes, content, target)
    ticket.check()  # where a store cannot create only, two may have looked at the same time: the later one has it
    return ticket


def _check_dead(other: bytes, notes: RemoteDirectory, target: str, error: Exception) -> None:
    try:
        holder = json.loads(other)
        domain, name = holder["locks"], str(holder["lock"])
        who = f"process {holder['process']} on {holder['host']}, which writes it since {holder['since']}, or died"
    except (ValueError, KeyError, TypeError):
        domain, name, who = None, "", "another writer that cannot be read"
    if domain == _lock_domain() and _LOCK_NAME.fullmatch(name):
        if name != _lock_name(target):  # it wrote the URL in another way
            os.close(_lock(target, name))
        return  # its lock, which nobody holds or we do, ended with it
    raise DatasetError(
        explain(
            f"dataset {target}",
            got=who,
            allowed="one writer at a time",
            fix=f"wait for it; if it is dead, remove {notes.url}/{CLAIM_NAME}: finished shards are kept",
        )
    ) from error


def _lock_name(target: str) -> str:
    return f"{hashlib.sha256(target.encode()).hexdigest()}.lock"


def _lock(target: str, name: str) -> int:
    """Return a descriptor that holds the lock of a URL among the processes of this machine.

    Raises:
        DatasetError: another process holds it.
    """
    path = _lock_directory() / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise taken_by_another_writer(target, "URL") from error
    return descriptor


def _lock_directory() -> Path:
    directory = Path(tempfile.gettempdir(), f"dask-rl-locks-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        allowed = "a directory of your own for locks"
        fix = "remove it, or set TMPDIR to a directory that you own"
        raise DatasetError(explain(str(directory), got="somebody else's", allowed=allowed, fix=fix))
    return directory


def _lock_domain() -> str:
    """Return what all processes know that see the same locks, and nobody else."""
    path = _lock_directory() / "domain"
    unfinished = path.with_name(f"domain-{uuid.uuid4().hex}")
    if not path.exists():
        unfinished.write_text(uuid.uuid4().hex)
        with suppress(FileExistsError):
            os.link(unfinished, path)
        unfinished.unlink()
    # A disk that was copied with this file in it is another machine; locks do not outlive a start anyway.
    return path.read_text() + (_BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "")
