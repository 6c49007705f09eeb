"""Due times become rows of the history: APScheduler's executor here starts nothing itself."""

import logging
from collections.abc import Callable
from datetime import datetime

from apscheduler.executors.base import BaseExecutor
from apscheduler.job import Job

from dask_rl.storage.errors import RunStateError

from .history import History
from .run_record import RunRecord
from .times import iso, now, whole_seconds

_LOG = logging.getLogger("dask_rl.jobs")


class Fires(BaseExecutor):
    """Writes what is due into the history; what cannot be written stays in memory and is tried again.

    Args:
        history: where to.
        at_work: which run of a job has not come to its end; None: none.
    """

    def __init__(self, history: History, at_work: Callable[[str], RunRecord | None]) -> None:
        super().__init__()
        self._history = history
        self._at_work = at_work
        self._unsaved: dict[str, tuple[Job, datetime]] = {}
        """By job; the last of several, as it stands for all."""

    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        self._fire(job, run_times[-1])
        self._run_job_success_later(job.id)

    def _run_job_success_later(self, name: str) -> None:
        """Count no instance of APScheduler's: it counts one after this call, and `at_work` knows better."""
        self._instances[name] -= 1

    def try_again(self) -> None:
        """Write what could not be written when it was due."""
        unsaved, self._unsaved = self._unsaved, {}
        for job, time in unsaved.values():
            self._fire(job, time)

    def _fire(self, job: Job, time: datetime) -> None:
        time = whole_seconds(time)
        try:
            record = self._judge(job, time)
            if self._history.add(record) and record.status != "due":
                _LOG.info("%s: %s is %s: %s", job.id, iso(time), record.status, record.message)
        except RunStateError as error:
            if job.id not in self._unsaved:
                _LOG.warning("%s: %s is due, and waits until it can be written: %s", job.id, iso(time), error)
            self._unsaved[job.id] = (job, time)

    def _judge(self, job: Job, time: datetime) -> RunRecord:
        late, grace = (now() - time).total_seconds(), job.misfire_grace_time
        record = RunRecord(job=job.id, time=time)
        if grace is not None and late > grace:
            message = f"{late:.0f} s late, more than the {grace} s that are allowed"
            return record.model_copy(update={"status": "missed", "ended": now(), "message": message})
        other = self._at_work(job.id)
        if other is not None and other.time != time:
            message = f"the run of {iso(other.time)} was not at its end"
            return record.model_copy(update={"status": "skipped", "ended": now(), "message": message})
        return record
