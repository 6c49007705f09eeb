"""APScheduler's job store on SQLite, with JSON in place of pickle: a row can only be a job, or be left alone."""

import logging
from datetime import datetime
from pathlib import Path
from typing import Any

from apscheduler.job import Job
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.util import datetime_to_utc_timestamp, utc_timestamp_to_datetime
from pydantic import ValidationError
from sqlalchemy import URL, event, select, type_coerce
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.types import NullType

from dask_rl.storage.errors import ConfigError

from .job_entry import JobEntry
from .job_trigger import JobTrigger

_WAIT_SECONDS = 10.0
_LOG = logging.getLogger("dask_rl.jobs")


def never_called() -> None:
    """Stand in for the function of APScheduler's jobs: what is due goes to the history, see Fires."""
    raise NotImplementedError


class JsonJobStore(SQLAlchemyJobStore):
    """Jobs as JobEntry. Rows that hold anything else are logged once and neither run nor removed.

    Args:
        database: the SQLite file.
        yields: whether a change that another process made since a job was read stands, as it should for a server:
            what a user said in between, such as pause, counts. Times that the disk has no room for are then kept in
            memory until it has.
    """

    def __init__(self, database: Path, *, yields: bool) -> None:
        url = URL.create("sqlite", database=str(database))
        super().__init__(url=url, engine_options={"connect_args": {"timeout": _WAIT_SECONDS}})
        event.listen(self.engine, "connect", _decode_everything)
        self._yields = yields
        self._read: dict[str, float | None] = {}
        """Next times as they were read, by job."""
        self._unsaved: dict[str, datetime] = {}
        self._damaged: set[str] = set()

    @property
    def damaged(self) -> set[str]:
        """Names of rows that hold no job."""
        return set(self._damaged)

    def add_job(self, job: Job) -> None:
        """Add a job; raise ConflictingIdError where the name is taken."""
        with self.engine.begin() as connection:
            try:
                connection.execute(self.jobs_t.insert().values(id=job.id, **_columns(job)))
            except IntegrityError:
                raise ConflictingIdError(job.id) from None

    def update_job(self, job: Job) -> None:
        """Save a job."""
        update = self.jobs_t.update().values(**_columns(job)).where(self.jobs_t.c.id == job.id)
        if not self._yields:
            with self.engine.begin() as connection:
                if connection.execute(update).rowcount == 0:
                    raise JobLookupError(job.id)
            return
        before = self.jobs_t.c.next_run_time.is_not_distinct_from(self._read.get(job.id))
        try:
            with self.engine.begin() as connection:
                connection.execute(update.where(before))
            self._unsaved.pop(job.id, None)
        except SQLAlchemyError as error:
            _LOG.warning("%s: its next time is not saved yet: %s", job.id, getattr(error, "orig", error))
            self._unsaved[job.id] = job.next_run_time

    def lookup_job(self, job_id: str) -> Job | None:
        """Return a job, None where there is none of that name."""
        found = self._get_jobs(self.jobs_t.c.id == job_id)
        return found[0] if found else None

    def get_due_jobs(self, now: datetime) -> list[Job]:
        """Return the jobs that are due; one that has been for long is due at the last of its times."""
        jobs = [job for job in super().get_due_jobs(now) if self._unsaved.get(job.id, now) <= now]
        for job in jobs:
            job.next_run_time = job.trigger.last_due(job.next_run_time, now)
        return jobs

    def get_next_run_time(self) -> datetime | None:
        """Return when the next job is due, None where there is none; a damaged row, which stays, is none."""
        jobs = self._get_jobs(self.jobs_t.c.next_run_time.is_not(None))
        return min((job.next_run_time for job in jobs), default=None)

    def _get_jobs(self, *conditions: Any) -> list[Job]:
        # As they stand there: of one value of another kind SQLAlchemy would raise for all rows.
        stored = (self.jobs_t.c.id, self.jobs_t.c.next_run_time, self.jobs_t.c.job_state)
        columns = [type_coerce(column, NullType()) for column in stored]
        query = select(*columns).where(*conditions).order_by(self.jobs_t.c.next_run_time)
        with self.engine.begin() as connection:
            rows = connection.execute(query).fetchall()
        return [job for row in rows if (job := self._restore(*row)) is not None]

    def _restore(self, key: Any, next_run_time: float | None, content: bytes) -> Job | None:
        name = key if isinstance(key, str) else repr(key)
        try:
            entry = JobEntry.model_validate_json(content)
            if entry.name != name:
                raise ValueError("another job's row")
            job = make_job(entry, utc_timestamp_to_datetime(next_run_time))
        except (ValidationError, ConfigError, ValueError, TypeError, OverflowError, OSError) as error:
            if name not in self._damaged:
                _LOG.error("job %r is left alone: its row holds no job (%s)", name, type(error).__name__)
            self._damaged.add(name)
            return None
        self._damaged.discard(name)
        self._read[name] = next_run_time
        job._scheduler, job._jobstore_alias = self._scheduler, self._alias
        return job


def make_job(entry: JobEntry, next_run_time: datetime | None) -> Job:
    """Return the entry as a job of APScheduler's."""
    job = Job.__new__(Job)
    job.__setstate__(
        {
            "version": 1,
            "id": entry.name,
            "func": f"{__name__}:{never_called.__name__}",
            "trigger": JobTrigger(entry.cron, entry.timezone),
            "executor": "default",
            "args": (),
            "kwargs": {"entry": entry},
            "name": entry.name,
            "misfire_grace_time": entry.misfire_grace_seconds,
            "coalesce": True,
            "max_instances": 1,
            "next_run_time": next_run_time,
        }
    )
    return job


def entry_of(job: Job) -> JobEntry:
    """Return the entry that a job was made of."""
    entry: JobEntry = job.kwargs["entry"]
    return entry


def _decode_everything(connection: Any, _record: object) -> None:
    """Have SQLite return text that is none: that row is damaged, and no other."""
    connection.text_factory = lambda text: text.decode(errors="replace")


def _columns(job: Job) -> dict[str, Any]:
    entry = entry_of(job).model_dump_json().encode()
    return {"next_run_time": datetime_to_utc_timestamp(job.next_run_time), "job_state": entry}
