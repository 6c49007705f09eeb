"""What differs between two jobs."""

from collections.abc import Mapping
from typing import Any

from .job import TrainJob


def job_differences(before: TrainJob, after: TrainJob) -> list[str]:
    """Return `key: before → after` for every setting that differs; `batch` changes no run, only what follows it."""
    old, new = (_flat(job.model_dump(mode="json", exclude={"batch"})) for job in (before, after))
    return [
        f"{key}: {old.get(key, 'unset')} → {new.get(key, 'unset')}"
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key, "unset") != new.get(key, "unset")
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
