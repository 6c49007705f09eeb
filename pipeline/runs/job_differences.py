"""What differs between two jobs."""

from .flat_settings import flat_settings
from .job import TrainJob

MAY_CHANGE = frozenset({"batch", "loggers"})
"""Settings that change no run: only what follows it, and who hears of it."""


def job_differences(before: TrainJob, after: TrainJob) -> list[str]:
    """Return `key: before → after` for every setting that differs, but those that may change."""
    old, new = (flat_settings(job.model_dump(mode="json", exclude=set(MAY_CHANGE))) for job in (before, after))
    return [
        f"{key}: {old.get(key, 'unset')} → {new.get(key, 'unset')}"
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key, "unset") != new.get(key, "unset")
    ]
