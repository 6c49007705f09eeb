"""Tells history and run directory what a run has come to; neither may be writable."""

import time
from pathlib import Path

from dask_rl.storage.errors import RunStateError

from .child_process import StopSignals
from .history import History
from .run_record import RunRecord, save_record

_AT_END_SECONDS, _EVERY_SECONDS = 60.0, 2.0


class Reporter:
    """Reports on one run. What cannot be written is left out until the end, which is tried for a minute."""

    def __init__(self, history: History, stop: StopSignals) -> None:
        self._history = history
        self._stop = stop

    def known(self, record: RunRecord) -> RunRecord | None:
        """Return what the history knows about a run; None also where it cannot be read."""
        try:
            return self._history.get(record.job, record.time)
        except RunStateError:
            return None

    def report(self, record: RunRecord) -> str | None:
        """Tell both; return what went wrong, or None."""
        problem = self._save(record)
        try:
            self._history.put(record)
        except RunStateError as error:
            problem = str(error)
        return problem

    def report_end(self, record: RunRecord) -> str | None:
        """Tell both, again and again where one is full; a server finds in batch.json what the history lacks."""
        deadline = time.monotonic() + _AT_END_SECONDS
        while (problem := self.report(record)) is not None and time.monotonic() < deadline:
            if self._stop.wait(_EVERY_SECONDS):
                return self.report(record)
        return problem

    def _save(self, record: RunRecord) -> str | None:
        if record.run is None or not Path(record.run).is_dir():
            return None
        try:
            save_record(record, Path(record.run))
        except OSError as error:
            return f"{record.run}: {error.strerror or error}"
        return None
