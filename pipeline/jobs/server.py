"""The server: looks once a second at what is due and at what has ended."""

import logging

from apscheduler.job import Job
from sqlalchemy.exc import SQLAlchemyError

from dask_rl.pipeline.runs.run_lock import RunLock
from dask_rl.storage.errors import RunStateError

from .child_process import StopSignals
from .fires import Fires
from .history import History
from .home import JobsHome
from .job_store import JsonJobStore
from .opened_file import OpenedFile
from .running import Running
from .schedule import StepwiseScheduler, database_errors, make_scheduler
from .times import iso, now

_LOOK_SECONDS = 1.0
_LOG = logging.getLogger("dask_rl.jobs")


class JobsServer:
    """Starts the runs of a home when they are due; one server a home.

    It keeps nothing that is not on disk: killed at any point and started again, it goes on with what it finds.
    """

    def __init__(self, home: JobsHome) -> None:
        self._home = home
        self._history = History(home.database)
        self._store = JsonJobStore(home.database, yields=True)
        self._running = Running(home, self._history, self._store.lookup_job)
        self._fires = Fires(self._history, self._running.at_work)
        self._scheduler = make_scheduler(self._store, self._fires)

    def serve(self, stop: StopSignals) -> list[str]:
        """Serve until a signal; return the names of jobs whose runs go on without a server.

        Raises:
            RunStateError: another server is at work on this home, or its files cannot be used, or were replaced.
        """
        with _lock(self._home), database_errors(self._home.database):
            self._scheduler.start()
            database = OpenedFile(self._home.database)
            try:
                _LOG.info("serving %s", self._home.path)
                while not stop.requested:
                    database.check()
                    stop.wait(self._look())
            finally:
                self._scheduler.shutdown()
        return self._running.left_alone()

    def _look(self) -> float:
        """Do what there is to do; return the seconds until it should be looked again."""
        try:
            self._running.settle()
            self._turn_back_clocks()
            self._fires.try_again()
            seconds = self._scheduler.process()
            self._running.start_due()
        except (RunStateError, SQLAlchemyError) as error:  # a full disk, or one that is not there for a while
            _LOG.warning("%s", error)
            return _LOOK_SECONDS
        return _LOOK_SECONDS if seconds is None else min(max(seconds, 0.0), _LOOK_SECONDS)

    def _turn_back_clocks(self) -> None:
        """Bring jobs back that would wait for a time which a wrong clock once showed; no time is run twice."""
        for job in _scheduled(self._scheduler):
            due = job.trigger.get_next_fire_time(None, now())
            if due is None or due >= job.next_run_time:
                continue
            known = self._history.times_between(job.id, due, job.next_run_time)
            while due is not None and iso(due) in known:
                due = job.trigger.get_next_fire_time(due, due)
            if due is not None and due < job.next_run_time:
                _LOG.warning("%s: due at %s, not at %s: the clock went back", job.id, iso(due), iso(job.next_run_time))
                job.next_run_time = due
                self._store.update_job(job)


def _scheduled(scheduler: StepwiseScheduler) -> list[Job]:
    return [job for job in scheduler.get_jobs() if job.next_run_time is not None]


def _lock(home: JobsHome) -> RunLock:
    """Return the lock of a home's server."""
    return RunLock(home.server_lock, subject=f"jobs in {home.path}", holder="server")
