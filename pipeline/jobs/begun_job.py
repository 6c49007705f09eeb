"""The job that a run began with, as its directory has it: that may be a stranger's, the job file is the user's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_rl.pipeline.runs.flat_settings import flat_settings
from dask_rl.pipeline.runs.own_modules import modules_named
from dask_rl.pipeline.runs.yaml_file import parse_mapping, read_text
from dask_rl.storage.errors import ConfigError, explain

from .batch_job import BatchJob

_RUNS_CODE = tuple(
    f"cluster.{key}"
    for key in ("address", "scheduler_file", "slurm.python", "slurm.prologue", "kubernetes.image", "kubernetes.env")
)
"""Settings, or groups of them, that name programs, or schedulers, whose clients run what they are sent."""


def check_begun_job(file: Path, own: BatchJob) -> None:
    """Refuse a run whose job would import or run what the job file does not name.

    Raises:
        ConfigError: it would; or it is no job.
    """
    begun = parse_mapping(read_text(file), str(file))
    strange = _modules(begun) - _modules(own.values) - set(own.imports)
    if strange:
        name = min(strange)
        fix = f"if you know it, add it to `imports` in the job file: [{name}]"
        _refuse(file, f"an environment that imports {name!r}", fix)
    there, here = flat_settings(begun), flat_settings(own.values)
    for key, value in there.items():
        if key.startswith(_RUNS_CODE) and value and value != here.get(key):
            _refuse(file, f"{key}: {value}", "if you know it, set it in the job file, or with --set")


def _refuse(file: Path, got: str, fix: str) -> None:
    allowed = "what the job file names: a run's directory imports and starts nothing"
    raise ConfigError(explain(str(file), got=got, allowed=allowed, fix=fix))


def _modules(values: Mapping[str, Any]) -> set[str]:
    evaluation = values.get("evaluation")
    if not isinstance(evaluation, Mapping):
        return set()
    return modules_named(evaluation.get("environment"), evaluation.get("environment_kwargs"))
