"""`dask-rl jobs exec`: the run of a job file for one time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dask_rl.storage.errors import ConfigError

from .batch_job import BatchJob, load_batch_job
from .child_process import StopSignals
from .log_file import LogFile
from .reporter import Reporter
from .run_record import RunRecord
from .scheduled_run import ScheduledRun
from .times import folder_name, now

_FAILED, _USAGE = 1, 2


def execute(
    job_file: Path,
    record: RunRecord,
    reporter: Reporter,
    stop: StopSignals,
    *,
    echo: bool,
    overrides: Sequence[str] = (),
) -> RunRecord:
    """Run the job of a file for the time of `record`; return what it came to.

    The same time again goes on with its run where that did not end well, and does nothing where it is complete.

    Args:
        job_file: the job; relative paths in it mean the working directory.
        record: name and time.
        reporter: is told as it goes on.
        stop: asks it to save and stop.
        echo: copy the run's output to stderr.
        overrides: `a.b=c` for each value of the job that differs from the file's, where the run begins.
    """
    known = reporter.known(record) or record
    try:
        job = load_batch_job(job_file, overrides=overrides)
        job, directory = _placed(job, known)
        reporter.take_up(record.job, job.base)
    except ConfigError as error:
        return _failed(known, reporter, _USAGE, "; ".join(str(error).splitlines()))
    except Exception as error:  # ours: the history is told of it as of any other
        return _failed(known, reporter, _FAILED, f"{type(error).__name__}: {error}")
    log = LogFile(directory / "log.txt", echo=echo)
    return ScheduledRun(job, known, directory, log, reporter, stop).execute()


def _placed(job: BatchJob, known: RunRecord) -> tuple[BatchJob, Path]:
    """Return the job, and the directory of its run: the one in which it began, wherever new ones are by now."""
    if known.run is not None and Path(known.run).is_dir():
        return replace(job, base=Path(known.run).parent), Path(known.run)
    return job, job.base / folder_name(known.time)


def _failed(known: RunRecord, reporter: Reporter, exit_code: int, message: str) -> RunRecord:
    end = {"status": "failed", "exit_code": exit_code, "message": message, "started": now(), "ended": now()}
    failed = known.mine().model_copy(update=end)
    reporter.report_end(failed)
    return failed
