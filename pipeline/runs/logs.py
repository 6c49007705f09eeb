"""What a command says on stderr as records, one JSON object a line: `{"time", "level", "event", "fields"}`.

Everything that comes on file descriptor 2 becomes such a record, also what libraries, worker processes and Dask's own
loggers write there; stdout is left alone. Events: progress, note, error, log (of a logger), output (any other line).
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import sys
import threading
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from .run_directory import json_value

_MAX_LINE_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
"""Room for what native code writes while it holds Python's lock, and nobody can read."""
_DRAIN_SECONDS = 5
_DASK_LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (?P<logger>[\w.]+) - (?P<level>[A-Z]+) - (?P<message>.*)"
)

_current: ContextVar["RecordStream | None"] = ContextVar("dask_rl_record_stream", default=None)


def current_records() -> "RecordStream | None":
    """Return where records go; None where people read stderr as text."""
    return _current.get()


@contextlib.contextmanager
def records_on_stderr() -> Iterator["RecordStream"]:
    """Make all that comes to stderr in the meantime records."""
    sys.stderr.flush()
    stream = RecordStream(os.dup(2))
    collector = _Collector(stream)
    handler = _Handler(stream)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    token = _current.set(stream)
    try:
        yield stream
    finally:
        _current.reset(token)
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(handler)
        collector.close()


class RecordStream:
    """Writes records to a file descriptor, each whole; safe from several threads."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._lock = threading.Lock()

    def write(self, level: str, event: str, **fields: Any) -> None:
        """Write one record; what is no JSON value is written as text."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"time": time, "level": level, "event": event, "fields": json_value(fields)}
        self.write_line(json.dumps(record, default=str, allow_nan=False))

    def write_line(self, line: str) -> None:
        """Write a record that is one already."""
        data = line.encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self.descriptor, data) :]


class _Handler(logging.Handler):
    """Makes Python's log records and warnings records."""

    def __init__(self, stream: RecordStream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._stream.write(record.levelname.lower(), "log", **fields)


class _Collector:
    """Takes the place of stderr: reads in a thread what anybody writes there, processes that are started too."""

    def __init__(self, stream: RecordStream) -> None:
        self._stream = stream
        self._reading, writing = os.pipe()
        with contextlib.suppress(OSError):  # more than an ordinary user may have
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.dup2(writing, 2)
        os.close(writing)
        self._end = f"end of stderr {uuid.uuid4().hex}"
        # A daemon: a process that is left over holds the other end, and reading would never be over.
        self._thread = threading.Thread(target=self._read, name="stderr-records", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give stderr back once all is read that was written before."""
        sys.stderr.flush()
        os.write(2, f"\n{self._end}\n".encode())
        self._thread.join(_DRAIN_SECONDS)
        os.dup2(self._stream.descriptor, 2)
        os.close(self._stream.descriptor)

    def _read(self) -> None:
        with os.fdopen(self._reading, "rb") as file:
            while data := file.readline(_MAX_LINE_BYTES):
                line = data.decode(errors="replace").rstrip()
                if line == self._end:
                    return
                if line:
                    with contextlib.suppress(OSError):  # nobody reads them any more; those who write must not wait
                        self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        found = _DASK_LINE.fullmatch(line)
        if found:
            fields = {"logger": found["logger"], "message": found["message"]}
            self._stream.write(found["level"].lower(), "log", **fields)
        elif _is_record(line):
            self._stream.write_line(line)
        else:
            self._stream.write("info", "output", text=line)


def _is_record(line: str) -> bool:
    """Whether it is a record of another command, started by this one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.keys() == {"time", "level", "event", "fields"}
