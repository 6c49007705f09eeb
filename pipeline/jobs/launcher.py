"""Starts `dask-rl jobs exec` for a run, as a process that outlives the server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .home import JobsHome
from .job_entry import JobEntry
from .run_record import RunRecord
from .times import iso

_MAX_LOG_BYTES = 1 << 20
_TAIL_BYTES = 2000

Process = subprocess.Popen[bytes]


def launch(home: JobsHome, entry: JobEntry, record: RunRecord) -> Process:
    """Start the run.

    Raises:
        OSError: the job's working directory is gone, or there are no more processes.
    """
    command = [sys.executable, "-P", "-m", "dask_rl", "jobs", "exec", entry.job_file, "--name", entry.name]
    command += ["--time", iso(record.time), "--home", str(home.path), "--quiet", "--json"]
    with _log(home, entry.name) as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=entry.directory,
            start_new_session=True,  # neither a Ctrl-C nor the end of the server's terminal ends it
        )


def last_words(home: JobsHome, name: str) -> str:
    """Return the last line that a job's `exec` wrote; its run writes into the run's own log."""
    try:
        text = (home.logs / f"{name}.txt").read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@contextmanager
def _log(home: JobsHome, name: str) -> Iterator[Any]:
    """Open the log of a job's `exec`; nothing where the disk has no room."""
    path = home.logs / f"{name}.txt"
    try:
        home.logs.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
            path.replace(path.with_suffix(".old.txt"))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        yield subprocess.DEVNULL
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
