"""The part of a job file that must be known to run it again and again; it loads no torch. `train` checks the rest."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dask_rl.pipeline.runs.batch_config import BatchConfig
from dask_rl.pipeline.runs.config_errors import validate
from dask_rl.pipeline.runs.own_modules import ImportName
from dask_rl.pipeline.runs.yaml_file import override_value, parse_mapping, read_text
from dask_rl.storage.errors import ConfigError, explain
from dask_rl.storage.files import check_local

LOCK_FILE = "batch.lock"
"""Beside a job's runs: held by the one at work."""


class _Head(BaseModel):
    """Keys of a TrainJob."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str = Field(min_length=1)
    imports: tuple[ImportName, ...] = ()
    batch: BatchConfig = BatchConfig()
    dataset: str | dict[str, str] = {}
    evaluation: Any = None

    @model_validator(mode="after")
    def _can_be_compared(self) -> "_Head":
        self.batch.check_evaluation(self.evaluation)
        return self


@dataclass(frozen=True)
class BatchJob:
    """A job file as it stands."""

    base: Path
    """Directory of all its runs, absolute."""
    imports: tuple[str, ...]
    """Modules of the user's own."""
    batch: BatchConfig
    """What it says about being run again and again."""
    datasets: tuple[str, ...]
    """Paths or URLs."""
    values: dict[str, Any]
    """Everything that the file says."""

    def to_yaml(self, run: Path, initial_weights: str | None) -> str:
        """Return the job of one of its runs."""
        values = self.values | {"run": str(run)}
        if initial_weights is not None:
            values["initial_weights"] = initial_weights
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def load_batch_job(
    path: str | os.PathLike[str], directory: str | os.PathLike[str] = ".", overrides: Iterable[str] = ()
) -> BatchJob:
    """Read a job file, with `a.b=c` for each value that differs; relative paths in it mean `directory`.

    Raises:
        ConfigError: it is missing, no YAML, or says something wrong about batches.
    """
    values = parse_mapping(read_text(path), str(path))
    for override in overrides:
        override_value(values, override)
    head = validate(_Head, values)
    check_local("run", head.run)
    if "\0" in head.run:
        raise ConfigError(explain("run", got=repr(head.run), allowed="a path without null bytes", fix="correct it"))
    datasets = (head.dataset,) if isinstance(head.dataset, str) else tuple(head.dataset.values())
    return BatchJob(Path(directory, head.run).absolute(), head.imports, head.batch, datasets, values)
