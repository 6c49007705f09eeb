"""All runs of all jobs: what is due, at work, and done. One SQLite table; each call is one transaction."""

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from dask_rl.storage.errors import RunStateError, explain

from .run_record import OPEN, RunRecord, Status
from .times import iso

MAX_ROWS_PER_JOB = 1000
"""Rows of runs that have ended which are kept of a job; the runs' directories stay."""
_WAIT_SECONDS = 10.0
_LOG = logging.getLogger("dask_rl.jobs")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS runs"
    " (job TEXT NOT NULL, time TEXT NOT NULL, status TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (job, time))"
)
_OPEN = "status IN ('" + "', '".join(OPEN) + "')"
_PUT = (
    "INSERT INTO runs VALUES (?, ?, ?, ?)"
    " ON CONFLICT (job, time) DO UPDATE SET status = excluded.status, record = excluded.record"
)
_PRUNE = (
    f"DELETE FROM runs WHERE job = ?1 AND NOT {_OPEN} AND time < (SELECT min(time) FROM"
    f" (SELECT time FROM runs WHERE job = ?1 ORDER BY time DESC LIMIT {MAX_ROWS_PER_JOB}))"
)


class History:
    """The runs of a home. Safe to use from several processes.

    Rows that hold anything else are logged once and neither counted nor removed. Every method raises RunStateError
    where the file cannot be read or written, as on a full disk.
    """

    def __init__(self, database: Path) -> None:
        """Name the file; it is made at the first use."""
        self.database = database
        self._damaged: set[str] = set()

    @property
    def damaged(self) -> list[str]:
        """Job and time of the rows that held no run when they were read."""
        return sorted(self._damaged)

    def add(self, record: RunRecord) -> bool:
        """Add a run; return False, and change nothing, where one of this job and time is known."""
        with self._transaction() as connection:
            cursor = connection.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?)", _row(record))
            return cursor.rowcount == 1

    def put(self, record: RunRecord) -> None:
        """Set what is known about a run; the oldest rows of a job that has very many go."""
        with self._transaction() as connection:
            connection.execute(_PUT, _row(record))
            connection.execute(_PRUNE, (record.job,))

    def get(self, job: str, time: datetime) -> RunRecord | None:
        """Return what is known about a run, or None."""
        found = self._select("WHERE job = ? AND time = ?", (job, iso(time)))
        return found[0] if found else None

    def latest(
        self, job: str | None = None, limit: int = -1, statuses: Sequence[Status] | None = None
    ) -> list[RunRecord]:
        """Return runs, the one that was due last first; of one job or all; at most `limit`, unless that is -1."""
        conditions, values = ["1"], []
        if job is not None:
            conditions.append("job = ?")
            values.append(job)
        if statuses is not None:
            conditions.append(f"status IN ({', '.join('?' * len(statuses))})")
            values += statuses
        return self._select(f"WHERE {' AND '.join(conditions)} ORDER BY time DESC, job", values, limit)

    def at_work_or_last(self, job: str) -> RunRecord | None:
        """Return a job's run that is at work, else the one that was due last; None where there is none."""
        at_work = [record for record in self.latest(job, statuses=("running",)) if record.is_at_work]
        return next(iter(at_work or self.latest(job, 1)), None)

    def names(self) -> list[str]:
        """Return the names of the jobs that ran, or that stand in the schedule, which is in the same file."""
        tables = {"runs": "job", "apscheduler_jobs": "id"}
        with self._transaction() as connection:
            there = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            queries = [f"SELECT {tables[table]} FROM {table}" for table in tables if table in there]
            return sorted({str(name) for query in queries for (name,) in connection.execute(query)})

    def open(self) -> list[RunRecord]:
        """Return the runs that are due or at work, the one that was due first first."""
        return self._select(f"WHERE {_OPEN} ORDER BY time, job", ())

    def times_between(self, job: str, start: datetime, stop: datetime) -> set[str]:
        """Return the times in [start, stop) of which runs of a job are known."""
        query = "SELECT time FROM runs WHERE job = ? AND time >= ? AND time < ?"
        with self._transaction() as connection:
            return {time for (time,) in connection.execute(query, (job, iso(start), iso(stop)))}

    def _select(self, where: str, values: Sequence[object], limit: int = -1) -> list[RunRecord]:
        found: list[RunRecord] = []
        with self._transaction() as connection:
            for row in connection.execute(f"SELECT job, time, status, record FROM runs {where}", values):
                if len(found) == limit:
                    break
                if (record := self._restore(*row)) is not None:
                    found.append(record)
        return found

    def _restore(self, job: object, time: object, status: object, text: Any) -> RunRecord | None:
        """Return a row's run, None where it holds none: the runs of all other jobs stand in the same table."""
        name = f"{job} {time}"
        try:
            record = RunRecord.model_validate_json(text)
            if (job, time, status) != _row(record)[:3]:
                raise ValueError("another run's row")
        except (ValueError, OverflowError) as error:
            if name not in self._damaged:
                _LOG.error("run %r is left alone: its row holds no run (%s)", name, type(error).__name__)
            self._damaged.add(name)
            return None
        self._damaged.discard(name)
        return record

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.database, timeout=_WAIT_SECONDS)) as connection, connection:
                connection.text_factory = _decode
                if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchall():
                    connection.execute(_SCHEMA)
                yield connection
        except sqlite3.Error as error:
            got, fix = str(error), "mend that, then run the same command again"
            raise RunStateError(explain(str(self.database), got=got, allowed="a history of runs", fix=fix)) from error


def _decode(text: bytes) -> str:
    """Return what a row holds as text, also where it is none: that row is damaged, and no other."""
    return text.decode(errors="replace")


def _row(record: RunRecord) -> tuple[str, str, str, str]:
    return record.job, iso(record.time), record.status, record.model_dump_json()
