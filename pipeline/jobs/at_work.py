"""Which run of a job is at work, as its directory tells: who called for it may keep another history."""

from pathlib import Path

from dask_rl.storage.errors import RunStateError

from .run_record import RECORD_FILE, RunRecord, load_record
from .times import iso


def run_at_work(base: Path) -> RunRecord | None:
    """Return the run in the directory of a job's runs that a process has at work; None: none, or it just begins."""
    for file in sorted(base.glob(f"*/{RECORD_FILE}"), reverse=True):
        record = None if file.parent.is_symlink() else _record(file.parent)
        if record is not None and record.is_at_work:
            return record
    return None


def same_at_work(record: RunRecord, directory: Path) -> RunRecord | None:
    """Return what is known about this very run where another process has it at work."""
    left = _record(directory)
    return left if left is not None and left.is_at_work and left.job == record.job else None


def describe(record: RunRecord | None, job: str, who: str) -> str:
    """Return for whom a run of a job is skipped; `who` has the directory of its runs."""
    if record is None:
        return f"a run of this job begins ({who})"
    whose = "" if record.job == job else f" of the job {record.job}, with the same `run`,"
    return f"the run of {iso(record.time)}{whose} is at work ({who})"


def _record(directory: Path) -> RunRecord | None:
    try:
        return load_record(directory)
    except (RunStateError, OSError):
        return None
