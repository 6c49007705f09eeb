"""Tells history and run directory what a run has come to; neither may be writable."""

import contextlib
import logging
import time
from pathlib import Path

from dask_rl.storage.errors import RunStateError

from .child_process import StopSignals
from .history import History
from .run_record import RunRecord, load_record, save_record
from .times import iso

NOTE_FILE = "unreported"
"""In the directory of a run whose end the history lacks: names that history."""
_LOG = logging.getLogger("dask_rl.jobs")
_AT_END_SECONDS, _EVERY_SECONDS = 60.0, 2.0


class Reporter:
    """Reports on one run. What cannot be written is left out until the end, which is tried for a minute."""

    def __init__(self, history: History, stop: StopSignals) -> None:
        self._history = history
        self._stop = stop
        self._lacking: str | None = None
        """Why the history could not be told the last time."""

    def known(self, record: RunRecord) -> RunRecord | None:
        """Return what the history knows about a run; None also where it cannot be read."""
        try:
            return self._history.get(record.job, record.time)
        except RunStateError:
            return None

    def report(self, record: RunRecord) -> str | None:
        """Tell both; return what went wrong, or None."""
        saved, self._lacking = self._save(record), self.tell_history(record)
        return self._lacking or saved

    def tell_history(self, record: RunRecord) -> str | None:
        """Tell the history alone; return what went wrong, or None."""
        try:
            self._history.put(record)
        except RunStateError as error:
            return str(error)
        return None

    def report_end(self, record: RunRecord) -> str | None:
        """Tell both, again and again where one is full; what the history lacks then is noted for `take_up`."""
        deadline = time.monotonic() + _AT_END_SECONDS
        while (problem := self.report(record)) is not None and time.monotonic() < deadline:
            if self._stop.wait(_EVERY_SECONDS):
                problem = self.report(record)
                break
        if self._lacking is not None:
            self._note(record)
        return problem

    def take_up(self, job: str, base: Path) -> None:
        """Bring runs of a job into the history that came to their end while it could not be written."""
        for note in sorted(base.glob(f"*/{NOTE_FILE}")):
            with contextlib.suppress(OSError, ValueError):  # it stays where it is until there is room
                if note.read_text() == str(self._history.database):
                    self._take_up(job, note.parent)
                    note.unlink()

    def _take_up(self, job: str, run: Path) -> None:
        record = load_record(run)
        if record is None or record.is_open or record.job != job:
            return
        known = self._history.get(record.job, record.time)
        if known is None or known.is_open:
            self._history.put(record)

    def _note(self, record: RunRecord) -> None:
        """Say on stderr and beside the run that the history lacks its end."""
        fix = ""
        if record.run is not None and Path(record.run).is_dir():
            with contextlib.suppress(OSError):
                Path(record.run, NOTE_FILE).write_text(str(self._history.database))
                fix = "; the next `dask-rl jobs exec` of this job brings it there"
        run = f"{record.job}: that {iso(record.time)} is {record.status}"
        _LOG.warning("%s is not in the history: %s%s", run, self._lacking, fix)

    def _save(self, record: RunRecord) -> str | None:
        if record.run is None or not Path(record.run).is_dir():
            return None
        try:
            save_record(record, Path(record.run))
        except OSError as error:
            return f"{record.run}: {error.strerror or error}"
        return None
