"""The evaluation that a job and a user ask for together."""

import os
from collections.abc import Mapping
from typing import Any

from dask_rl.pipeline.rollouts.evaluate import EvaluationConfig
from dask_rl.storage.errors import ConfigError, explain

from .config_errors import validate
from .job import TrainJob
from .own_modules import refuse_modules


def choose_evaluation(
    job: TrainJob, given: Mapping[str, Any], *, directory: str | os.PathLike[str] | None, fix: str
) -> EvaluationConfig:
    """Return the job's evaluation, with what the user says otherwise.

    Args:
        job: the job.
        given: settings of the user's own; None: as the job has it.
        directory: the run that the job was read from; None: it is the user's own, and may import modules.
        fix: how an environment is named.

    Raises:
        ConfigError: neither names an environment; one of a run's directory would import a module.
    """
    settings = {} if job.evaluation is None else job.evaluation.model_dump()
    settings |= {key: value for key, value in given.items() if value is not None}
    if "environment" not in settings:
        got = "a job without evaluation"
        raise ConfigError(explain("environment", got=got, allowed="a Gymnasium id", fix=fix))
    config = validate(EvaluationConfig, settings)
    if directory is not None:
        named = None if given.get("environment") is not None else config.environment
        refuse_modules(named, config.environment_kwargs, directory)
    return config
