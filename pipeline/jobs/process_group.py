"""All that a program has started, as far as it did not leave the program's process group."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import psutil

from .kill_orphans import DONE

_KILLER = Path(__file__).with_name("kill_orphans.py")


class OrphanGuard:
    """Kills a process group if this process is killed within the `with` block, or leaves it with an error."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", str(_KILLER)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends this process is not to end it
        )

    def watch(self, group: int) -> None:
        """Name the group."""
        self._write(str(group))

    def __enter__(self) -> "OrphanGuard":
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group alone, unless there was an error."""
        if error is None:
            self._write(DONE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _write(self, word: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it
            self._process.stdin.write(f"{word}\n".encode())
            self._process.stdin.flush()


def is_group_alive(group: int) -> bool:
    """Whether somebody is left in a process group; zombies are not."""
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return True
    return False
