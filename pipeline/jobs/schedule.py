"""The schedule of a home: which jobs there are, and when each is due next."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from apscheduler.executors.base import BaseExecutor
from apscheduler.job import Job
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.schedulers.base import BaseScheduler
from sqlalchemy.exc import SQLAlchemyError

from dask_rl.storage.errors import ConfigError, RunStateError, explain

from .batch_job import load_batch_job
from .home import JobsHome
from .job_entry import JobEntry
from .job_store import JsonJobStore, entry_of, make_job
from .job_trigger import JobTrigger
from .times import now


class StepwiseScheduler(BaseScheduler):
    """An APScheduler without a thread of its own: whoever has it calls `process`."""

    def wakeup(self) -> None:
        """Do nothing: the next `process` comes by itself."""

    def shutdown(self, wait: bool = True) -> None:
        """End; what runs goes on."""
        super().shutdown(wait)

    def process(self) -> float | None:
        """Submit what is due; return the seconds until the next job is, None where there is none."""
        seconds: float | None = self._process_jobs()
        return seconds


class _NoExecutor(BaseExecutor):
    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        raise NotImplementedError


class Schedule:
    """The jobs of a home; see `open_schedule`.

    All methods raise RunStateError where the store cannot be read or written.
    """

    def __init__(self, scheduler: StepwiseScheduler, store: JsonJobStore) -> None:
        self._scheduler = scheduler
        self._store = store

    def add(self, entry: JobEntry) -> datetime | None:
        """Add a job, or replace the one of that name and file; return when it is due, None where it stays paused.

        Raises:
            ConfigError: the name is taken by another file's job, or the directory of its runs by another job.
        """
        job = make_job(entry, None)
        known = self._scheduler.get_job(entry.name)
        is_paused = known is not None and known.next_run_time is None
        due: datetime | None = None if is_paused else job.trigger.get_next_fire_time(None, now())
        job.next_run_time = due
        if known is not None and entry_of(known).job_file != entry.job_file:
            got, fix = f"{entry.name}, that of {entry_of(known).job_file}", "give another --name, or remove that job"
            raise ConfigError(explain("job name", got=got, allowed="a new one", fix=fix))
        self._refuse_shared_runs(entry)
        if known is not None:
            self._store.update_job(job)
            return due
        try:
            self._store.add_job(job)
        except ConflictingIdError:  # a row that holds no job
            fix = f"dask-rl jobs remove {entry.name}"
            raise ConfigError(explain("job name", got=f"{entry.name}, which is damaged", fix=fix)) from None
        return due

    def _refuse_shared_runs(self, entry: JobEntry) -> None:
        """Let no two jobs have one directory: of one time both would be one run, and both would promote theirs."""
        base = _directory_of_runs(entry)
        for other, _ in self.jobs():
            if base is not None and other.name != entry.name and _directory_of_runs(other) == base:
                got, fix = f"{base}, that of the job {other.name}", "name another directory, or remove that job"
                raise ConfigError(explain("run", got=got, allowed="a directory for each job", fix=fix))

    def jobs(self) -> list[tuple[JobEntry, datetime | None]]:
        """Return all jobs by name, each with its next due time in its zone; None: it is paused."""
        jobs = [(entry_of(job), _due(job)) for job in self._scheduler.get_jobs()]
        return sorted(jobs, key=lambda pair: pair[0].name)

    def damaged(self) -> list[str]:
        """Return the names of rows that hold no job."""
        self.jobs()
        return sorted(self._store.damaged)

    def get(self, name: str) -> tuple[JobEntry, datetime | None]:
        """Return a job and its next due time in its zone.

        Raises:
            ConfigError: there is none of that name.
        """
        job = self._scheduler.get_job(name)
        if job is None:
            raise self._unknown(name)
        return entry_of(job), _due(job)

    def pause(self, name: str) -> None:
        """Let no due time of a job count until it is resumed."""
        self.get(name)
        self._scheduler.pause_job(name)

    def resume(self, name: str) -> datetime | None:
        """Let its due times count again, from the next one on; return that."""
        self.get(name)
        self._scheduler.resume_job(name)
        return self.get(name)[1]

    def remove(self, name: str) -> None:
        """Forget a job, also a damaged one."""
        try:
            self._scheduler.remove_job(name)
        except JobLookupError:
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> ConfigError:
        known = ", ".join(entry.name for entry, _ in self.jobs()) or "none: add one with `dask-rl jobs add`"
        return ConfigError(explain("job", got=repr(name), allowed=known, fix="see `dask-rl jobs list`"))


def _directory_of_runs(entry: JobEntry) -> Path | None:
    try:
        return load_batch_job(entry.job_file, entry.directory).base.resolve()
    except (ConfigError, OSError):
        return None


def _due(job: Job) -> datetime | None:
    """Return when a job is due, as the clocks show it that its cron expression means."""
    time: datetime | None = job.next_run_time
    return None if time is None else time.astimezone(job.trigger.zone)


def next_times(entry: JobEntry, count: int) -> list[datetime]:
    """Return the next due times of a job, in its time zone."""
    trigger = JobTrigger(entry.cron, entry.timezone)
    times: list[datetime] = []
    due = trigger.get_next_fire_time(None, now())
    while due is not None and len(times) < count:
        times.append(due)
        due = trigger.get_next_fire_time(due, due)
    return times


def make_scheduler(store: JsonJobStore, executor: BaseExecutor) -> StepwiseScheduler:
    """Return a scheduler on a store; it has to be started."""
    return StepwiseScheduler(jobstores={"default": store}, executors={"default": executor}, timezone="UTC")


@contextmanager
def open_schedule(home: JobsHome) -> Iterator[Schedule]:
    """Open the schedule of a home, beside a server or without one."""
    with database_errors(home.database):
        store = JsonJobStore(home.database, yields=False)
        scheduler = make_scheduler(store, _NoExecutor())
        scheduler.start(paused=True)
        try:
            yield Schedule(scheduler, store)
        finally:
            scheduler.shutdown()


@contextmanager
def database_errors(database: Path) -> Iterator[None]:
    """Turn what SQLAlchemy raises into RunStateError."""
    try:
        yield
    except SQLAlchemyError as error:
        got, fix = str(getattr(error, "orig", None) or error), "mend that, then run the same command again"
        raise RunStateError(explain(str(database), got=got, allowed="a schedule of jobs", fix=fix)) from error
