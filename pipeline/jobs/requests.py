"""What users ask about runs beside the schedule: another run, the end of one, a log."""

import contextlib
import os
import select
import signal
from datetime import timedelta
from pathlib import Path

from dask_rl.storage.errors import ConfigError, explain

from .history import History
from .home import JobsHome
from .run_record import RunRecord
from .times import iso, now, parse_time, whole_seconds

_MAX_LOG_BYTES = 64 << 20


def request_run(home: JobsHome, name: str, time: str | None) -> RunRecord:
    """Make a run due for the server to start; return it.

    Args:
        home: where the job is.
        name: the job's.
        time: of a run that did not end well, which is to go on; None: a new run, of now.

    Raises:
        ConfigError: there is no such run, or it is complete or at work.
    """
    history = History(home.database)
    if time is None:
        record = RunRecord(job=name, time=whole_seconds(now()), requested=True)
        while not history.add(record):  # one was due at this very second
            record = record.model_copy(update={"time": record.time + timedelta(seconds=1)})
        return record
    known = _find(history, name, time)
    if known.is_open or known.status == "complete":
        allowed = "one that came to an end other than complete"
        raise ConfigError(explain(f"run {iso(known.time)}", got=known.status, allowed=allowed, fix="choose another"))
    cleared = {"status": "due", "requested": True, "ended": None, "exit_code": None, "message": None}
    record = known.model_copy(update=cleared)
    history.put(record)
    return record


def stop_run(home: JobsHome, name: str, timeout_seconds: float) -> RunRecord:
    """Have a job's run that is at work save and end, as SIGTERM to its `exec` does; wait, and return its record.

    Raises:
        ConfigError: none is at work, or it is on another host.
    """
    history = History(home.database)
    at_work = {record.job: record for record in history.latest(statuses=("running",)) if record.is_at_work}
    record = at_work.get(name)
    if record is None:
        got, allowed = f"{name!r}, of which no run is at work", ", ".join(sorted(at_work)) or "none: no run is at work"
        raise ConfigError(explain("job", got=got, allowed=allowed, fix="see `dask-rl jobs list`"))
    if record.is_elsewhere:
        got, fix = f"{name!r}, whose run is at work on {record.host}", "give the same command there"
        raise ConfigError(explain("job", got=got, allowed="a run on this host", fix=fix))
    assert record.pid is not None
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        process = os.pidfd_open(record.pid)
        try:
            if record.is_alive:  # looked at once more: the pid cannot become another's from here on
                signal.pidfd_send_signal(process, signal.SIGTERM)
                select.select([process], [], [], timeout_seconds)
        finally:
            os.close(process)
    return history.get(record.job, record.time) or record


def check_known(history: History, name: str) -> None:
    """Raise ConfigError where no job of that name ran or stands in the schedule."""
    known = history.names()
    if name not in known:
        allowed = ", ".join(known) or "none: add one with `dask-rl jobs add`"
        raise ConfigError(explain("job", got=repr(name), allowed=allowed, fix="see `dask-rl jobs list`"))


def read_log(home: JobsHome, name: str, time: str | None) -> tuple[Path, str]:
    """Return the log of a run, by default of the last one that has one, with its path.

    Raises:
        ConfigError: there is none.
    """
    history = History(home.database)
    check_known(history, name)
    records = history.latest(name) if time is None else [_find(history, name, time)]
    for record in records:
        path = None if record.run is None else Path(record.run, "log.txt")
        if path is not None and path.is_file():
            with path.open("rb") as file:
                return path, file.read(_MAX_LOG_BYTES).decode(errors="replace")
    fix = "see `dask-rl jobs history`"
    raise ConfigError(explain(f"log of {name}", got="none", allowed="a job that has run", fix=fix))


def _find(history: History, name: str, time: str) -> RunRecord:
    due = parse_time(time)
    known = history.get(name, due)
    if known is None:
        fix = f"see `dask-rl jobs history {name}`"
        raise ConfigError(explain(f"run of {name}", got=iso(due), allowed="a time in the history", fix=fix))
    return known
