"""What users ask about runs beside the schedule: another run, a log."""

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


def read_log(home: JobsHome, name: str, time: str | None) -> tuple[Path, str]:
    """Return the log of a run, by default of the last one that has one, with its path.

    Raises:
        ConfigError: there is none.
    """
    history = History(home.database)
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
