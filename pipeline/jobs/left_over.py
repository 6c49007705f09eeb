"""What an earlier call of `exec` left unfinished."""

import os
from collections.abc import Iterable
from datetime import datetime

from dask_rl.storage.errors import ConfigError

from .batch_job import load_batch_job
from .run_record import RECORD_FILE, load_record


def newest_unfinished(job_file: str | os.PathLike[str], overrides: Iterable[str] = ()) -> datetime | None:
    """Return the time of the newest run of a job where it was interrupted or killed; else None.

    Older ones are overtaken. A job that cannot be read has none: whoever runs it will say what is wrong.

    Raises:
        RunStateError: the newest run has a record that is none.
    """
    try:
        base = load_batch_job(job_file, overrides=overrides).base
    except ConfigError:
        return None
    # Their names are times, which sort; `current` is a link to one of them.
    folders = sorted(file.parent for file in base.glob(f"*/{RECORD_FILE}") if not file.parent.is_symlink())
    newest = load_record(folders[-1]) if folders else None
    return newest.time if newest is not None and newest.status in ("interrupted", "running") else None
