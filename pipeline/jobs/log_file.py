"""The log of a run: everything that its processes wrote, on a disk that may be full."""

import os
import sys
from pathlib import Path

from .times import iso, now

MAX_BYTES = 64 << 20
"""What comes beyond is left out: a loss that warns at every step must not fill the disk."""


class LogFile:
    """Appends to a file; where that is not possible the run goes on and the log says later how much it lacks."""

    def __init__(self, path: Path, *, echo: bool) -> None:
        """Name the file; `echo` copies everything to stderr."""
        self.path = path
        self._echo = echo
        self._num_lost = 0
        self._reason = ""

    def without_file(self) -> "LogFile":
        """Return one that copies as this does, and keeps nothing: for a run that has no directory."""
        return LogFile(Path(os.devnull), echo=self._echo)

    def say(self, text: str) -> None:
        """Add a line of our own."""
        self.write(f"[{iso(now())}] {text}\n".encode())

    def write(self, data: bytes) -> None:
        """Add some bytes."""
        if self._echo:
            self._copy(data)
        note = f"[{self._num_lost} bytes are missing here: {self._reason}]\n".encode() if self._num_lost else b""
        try:
            with self.path.open("ab", buffering=0) as file:
                if file.tell() > MAX_BYTES:
                    raise OSError(f"the log has more than {MAX_BYTES} bytes")
                written = file.write(note + data) - len(note)
        except OSError as error:
            self._num_lost += len(data)
            self._reason = error.strerror or str(error)
            return
        self._num_lost = max(len(data) - written, 0) if written < len(data) else 0

    def _copy(self, data: bytes) -> None:
        try:
            sys.stderr.buffer.write(data)
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it any more
            self._echo = False
