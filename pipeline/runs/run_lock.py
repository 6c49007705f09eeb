"""One job at a time on a run directory."""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from dask_rl.storage.errors import RunStateError, explain

HEARTBEAT_SECONDS = 10.0
SILENT_SECONDS = 60.0
"""A holder on another host that has been silent for so long counts as dead."""


class LockHeldError(RunStateError):
    """Somebody else is at work; `who` names the process."""

    def __init__(self, message: str, who: str) -> None:
        super().__init__(message)
        self.who = who


class RunLock:
    """Holds a lock file with `{host, pid, heartbeat}` while the `with` block runs.

    The kernel's flock decides on one host: it ends with its process, however that dies. The heartbeat decides
    between hosts whose shared file system does not carry flock.
    """

    def __init__(self, path: Path, *, subject: str | None = None, holder: str = "job") -> None:
        """Name the file; `subject` and `holder` say in errors what it is for and who holds it."""
        self._path = path
        self._subject = subject or f"run {path.parent}"
        self._kind = holder
        self._descriptor = -1
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="run-lock heartbeat", daemon=True)

    def __enter__(self) -> "RunLock":
        """Take the lock; raise RunStateError, naming the holder, where a live job has it."""
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunStateError(
                explain(
                    "run",
                    got=f"{self._path}: {error.strerror or error}",
                    allowed="a directory that can be written",
                    fix="choose another path for run",
                )
            ) from None
        try:
            self._take()
        except (RunStateError, OSError):  # the latter on a full disk
            os.close(self._descriptor)
            raise
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back. The file stays: unlinking it would let two jobs lock two files of one name."""
        self._stop.set()
        self._heart.join()
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(self._holder(), "stop it or wait for its end") from None
        holder = self._holder()
        silent_for = time.time() - float(holder.get("heartbeat", 0))
        if holder.get("host", socket.gethostname()) != socket.gethostname() and silent_for < SILENT_SECONDS:
            raise self._refusal(
                holder, f"stop it; if that host is dead, try again in {SILENT_SECONDS - silent_for:.0f} s"
            )
        self._write()

    def _refusal(self, holder: dict[str, Any], fix: str) -> LockHeldError:
        who = f"pid {holder.get('pid', 'unknown')} on {holder.get('host', 'unknown')}"
        message = explain(
            self._subject,
            got=f"a directory on which another {self._kind} is at work ({who})",
            allowed=f"one {self._kind} at a time",
            fix=fix,
        )
        return LockHeldError(message, who)

    def _holder(self) -> dict[str, Any]:
        try:
            holder = json.loads(os.pread(self._descriptor, 4096, 0))
        except ValueError:  # empty, or being written
            return {}
        return holder if isinstance(holder, dict) else {}

    def _write(self) -> None:
        me = {"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": round(time.time(), 3)}
        text = json.dumps(me).encode()
        # In place and of one length, so that no reader sees an empty file: a rename would lose the lock.
        os.pwrite(self._descriptor, text.ljust(256), 0)
        os.ftruncate(self._descriptor, 256)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):  # a full disk: the next beat may find room
                self._write()


def is_silent(path: Path) -> bool:
    """Whether the holder of a lock file, which may be on another host, has not been heard of for long."""
    try:
        holder = json.loads(path.read_bytes())
        return time.time() - float(holder["heartbeat"]) >= SILENT_SECONDS
    except (OSError, ValueError, KeyError, TypeError):  # given back, or never taken
        return True
