"""The loggers of a job, as it names them."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from dask_rl.pipeline.runs.config_errors import validate
from dask_rl.pipeline.runs.flat_settings import flat_settings
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import RunLogger
from dask_rl.storage.errors import ConfigError, explain

from .background import BackgroundLogger
from .mlflow import MLflowConfig, MLflowLogger
from .tensorboard import TensorBoardConfig, TensorBoardLogger

if TYPE_CHECKING:
    from dask_rl.pipeline.runs.job import TrainJob

LoggerConfig = TensorBoardConfig | MLflowConfig
_KINDS: Mapping[str, type[LoggerConfig]] = {"tensorboard": TensorBoardConfig, "mlflow": MLflowConfig}


def _loggers(value: Any) -> Any:
    """Choose each logger's settings class by its name; `tensorboard` alone is `{name: tensorboard}`."""
    if not isinstance(value, list | tuple):
        return value
    loggers = [_logger(item, number) for number, item in enumerate(value)]
    names = [logger.name for logger in loggers]
    if len(set(names)) < len(names):
        raise ConfigError(explain("loggers", got=", ".join(names), allowed="each once", fix="remove one"))
    return loggers


def _logger(value: Any, number: int) -> LoggerConfig:
    if isinstance(value, LoggerConfig):
        return value
    settings = {"name": value} if isinstance(value, str) else value
    name = settings.get("name") if isinstance(settings, Mapping) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        got, allowed = value if name is None else name, f"{{name: {' or '.join(_KINDS)}}}"
        raise ConfigError(explain(f"loggers.{number}", got=got, allowed=allowed, fix="correct its name"))
    return validate(kind, settings, f"loggers.{number}")


LoggerConfigs = Annotated[tuple[LoggerConfig, ...], BeforeValidator(_loggers)]
"""Of a job."""


def open_loggers(job: "TrainJob", run: RunDirectory) -> list[RunLogger]:
    """Return the loggers of a job; they begin with the run.

    Raises:
        ConfigError: the package that one needs is not installed.
    """
    for config in job.loggers:
        if find_spec(config.name) is None:
            fix = f"pip install 'dask-rl[{config.name}]', or remove it from loggers"
            raise ConfigError(explain(f"logger {config.name}", got="no package of this name", fix=fix))
    return [_open(config, job, run) for config in job.loggers]


def _open(config: LoggerConfig, job: "TrainJob", run: RunDirectory) -> RunLogger:
    if isinstance(config, TensorBoardConfig):
        return TensorBoardLogger(config, run, job.to_yaml())
    settings = flat_settings(job.model_dump(mode="json", exclude={"loggers"}))
    return BackgroundLogger(MLflowLogger(config, run, settings), config.timeout_seconds)
