"""The runs that are due or at work, as a server sees them: starts them, and learns how they ended."""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from apscheduler.job import Job

from dask_rl.pipeline.runs.run_lock import is_silent
from dask_rl.storage.errors import ConfigError, RunStateError

from .batch_job import LOCK_FILE, load_batch_job
from .child_process import signal_name
from .history import History
from .home import JobsHome
from .job_store import entry_of
from .launcher import Process, last_words, launch
from .run_record import RunRecord, load_record
from .times import folder_name, iso, now

MAX_DEATHS = 10
"""How often the process of one run may be killed under one server; slower than the job's max_retries counts."""
_LOG = logging.getLogger("dask_rl.jobs")

Key = tuple[str, datetime]


class Running:
    """Compares the history with the processes that there are.

    Args:
        home: where the history is.
        history: it.
        find_job: returns a job of the schedule by its name, None where it was removed.
    """

    def __init__(self, home: JobsHome, history: History, find_job: Callable[[str], Job | None]) -> None:
        self._home = home
        self._history = history
        self._find_job = find_job
        self._processes: dict[Key, Process] = {}
        self._deaths: Counter[Key] = Counter()

    def at_work(self, name: str) -> RunRecord | None:
        """Return the run of a job that is due or at work, the one that came first."""
        return next((record for record in self._history.open() if record.job == name), None)

    def left_alone(self) -> list[str]:
        """Return the names of jobs whose runs are at work."""
        return sorted({name for (name, _), process in self._processes.items() if process.poll() is None})

    def settle(self) -> None:
        """Take in how runs ended; those whose process was killed become due again."""
        ended = {key: process for key, process in self._processes.items() if process.poll() is not None}
        for key, process in ended.items():
            record = self._history.get(*key)
            if record is not None and record.is_open and not record.is_alive:
                self._settle(record, process.returncode)
            del self._processes[key]
            self._say_end(key)
        for record in self._history.open():
            is_ours = (record.job, record.time) in self._processes
            if record.status == "running" and not is_ours and _is_gone(record):
                self._settle(record, None)  # its server was killed, and so was it

    def start_due(self) -> None:
        """Start what is due, one run of a job at a time."""
        busy = {name for name, _ in self._processes}
        for record in self._history.open():
            if record.status == "running":
                busy.add(record.job)
        for record in self._history.open():
            if record.status == "due" and record.job not in busy:
                busy.add(record.job)
                self._start(record)

    def _start(self, record: RunRecord) -> None:
        job = self._find_job(record.job)
        if job is None and record.run is not None:
            how = f"`dask-rl jobs exec … --time {iso(record.time)}` goes on"
            self._end(
                record, status="interrupted", message=f"its process died, and it is no job of this schedule: {how}"
            )
            return
        if job is None:
            self._end(record, status="skipped", message="the job was removed")
            return
        try:
            process = launch(self._home, entry_of(job), record)
        except OSError as error:
            self._end(record, status="failed", exit_code=1, message=f"{error.filename}: {error.strerror}")
            return
        self._processes[record.job, record.time] = process
        _LOG.info("%s: %s starts (pid %d)", record.job, iso(record.time), process.pid)

    def _settle(self, record: RunRecord, returncode: int | None) -> None:
        """Find out about a run whose process is gone without a word in the history."""
        found = self._look_into_run(record)
        key = record.job, record.time
        if found is not None and not found.is_open:
            self._history.put(found)
        elif returncode is None or returncode < 0:
            self._deaths[key] += 1
            how = "died with its server" if returncode is None else f"was ended by {signal_name(-returncode)}"
            if self._deaths[key] > MAX_DEATHS:
                self._end(record, status="failed", exit_code=returncode, message=f"its process {how}, again and again")
                return
            _LOG.warning("%s: the process of %s %s: the run goes on", record.job, iso(record.time), how)
            goes_on = {"status": "due", "pid": None, "message": f"its process {how}"}
            self._history.put(record.model_copy(update=goes_on))
        else:
            words = last_words(self._home, record.job)
            message = f"exec ended with exit code {returncode}{f': {words}' if words else ''}"
            self._end(record, status="failed", exit_code=returncode, message=message)

    def _look_into_run(self, record: RunRecord) -> RunRecord | None:
        """Return what a run's own directory says; its process may not have been able to write the history."""
        try:
            directory = Path(record.run) if record.run is not None else self._directory(record)
            found = None if directory is None else load_record(directory)
        except (ConfigError, RunStateError, OSError):
            return None
        return found if found is not None and (found.job, found.time) == (record.job, record.time) else None

    def _directory(self, record: RunRecord) -> Path | None:
        job = self._find_job(record.job)
        if job is None:
            return None
        entry = entry_of(job)
        return load_batch_job(entry.job_file, entry.directory).base / folder_name(record.time)

    def _end(self, record: RunRecord, **changes: Any) -> None:
        self._history.put(record.model_copy(update={"ended": now(), **changes}))
        _LOG.warning("%s: %s is %s: %s", record.job, iso(record.time), changes["status"], changes["message"])

    def _say_end(self, key: Key) -> None:
        record = self._history.get(*key)
        if record is not None and not record.is_open:
            reason = f": {record.message}" if record.message else ""
            _LOG.info("%s: %s is %s%s", record.job, iso(record.time), record.status, reason)


def _is_gone(record: RunRecord) -> bool:
    """Whether the process of a run is; of one on another host, or in a container that was, its lock tells."""
    if record.is_elsewhere:
        return record.run is None or is_silent(Path(record.run).with_name(LOCK_FILE))
    return not record.is_alive
