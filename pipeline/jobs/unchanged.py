"""Whether there is anything new to learn from."""

from dask_rl.storage.dataset import OfflineDataset

from .batch_job import BatchJob
from .run_record import load_record
from .times import parse_time


def reason_not_to_run(job: BatchJob) -> str | None:
    """Return why a run would only repeat the last complete one: its datasets are those of now; None where they differ.

    Raises:
        DatasetError: a dataset cannot be opened.
    """
    before = _hashes_of_last_run(job)
    if before is None:
        return None
    hashes = []
    for path in job.datasets:
        with OfflineDataset.open(path) as dataset:
            hashes.append(dataset.content_hash)
    return "no dataset has changed" if sorted(hashes) == before else None


def _hashes_of_last_run(job: BatchJob) -> list[str] | None:
    for run in sorted(job.base.iterdir(), reverse=True):
        if run.is_dir() and not run.is_symlink() and _is_time(run.name):
            record = load_record(run)
            if record is not None and record.status == "complete":
                return sorted(record.datasets.values())
    return None


def _is_time(name: str) -> bool:
    try:
        parse_time(name)
    except ValueError:
        return False
    return True
