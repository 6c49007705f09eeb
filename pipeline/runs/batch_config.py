"""What a job says about being run again and again: by `dask-rl jobs`, or by another scheduler that calls it."""

import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dask_rl.storage.errors import ConfigError, explain

PREVIOUS = "previous"
"""As initialize_from: the run that was promoted last."""


def _command(value: Any) -> Any:
    """Split a command line as a shell would, without being one: nothing is expanded, nothing is piped."""
    allowed = "a command line, or a list of a program and its arguments"
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            got = f"a command line with {str(error).lower()}"
            raise ConfigError(explain("batch command", got=got, allowed=allowed, fix="close the quotes")) from None
        if not value:
            raise ConfigError(explain("batch command", got="no words", allowed=allowed, fix="leave the key out"))
    is_list = isinstance(value, Sequence) and all(isinstance(word, str) and "\0" not in word for word in value)
    if not is_list or (len(value) and not value[0]):
        raise ConfigError(explain("batch command", got=repr(value), allowed=allowed, fix="correct it"))
    return tuple(value)


Command = Annotated[tuple[str, ...], BeforeValidator(_command)]


class BatchConfig(BaseModel):
    """The `batch` key of a job. `dask-rl train` does not look at it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    when: Literal["always", "dataset_changed"] = "always"
    """dataset_changed: run only where the content hash of a dataset differs from that of the last complete run."""
    initialize_from: str | None = Field(None, min_length=1)
    """Weights to begin with: `previous`, the run that `current` points to (the first run begins without), or the
    path of a run or checkpoint. Networks only: neither the optimizers' state nor counters."""
    keep_if: Literal["always", "better"] = "always"
    """When a complete run is promoted to `current`; better: where its last evaluation has no lower mean return than
    that of the run it would replace, or the two cannot be compared: that run has no evaluation that can be read, or
    one in another environment. Other runs stay where they are."""
    on_success: Command = ()
    """Run after a complete run, promoted or not; no shell. DASK_RL_RUN, DASK_RL_STATUS, … tell it about the run."""
    on_failure: Command = ()
    """Run after a run that failed or took too long."""
    command_time_limit_seconds: float = Field(600, gt=0)
    """After this on_success and on_failure are killed."""
    max_retries: int = Field(2, ge=0, le=1000)
    """How often a run that failed is started again; it goes on from its last checkpoint."""
    retry_wait_seconds: float = Field(30, ge=0, le=86400)
    """Wait before the first retry; before each further one twice as long, at most an hour."""
    time_limit_seconds: float | None = Field(None, gt=0)
    """Of a whole run, retries and waits included; then it is told to save and stop. Default: none."""
    stop_wait_seconds: float = Field(60, gt=0)
    """How long it may take for that before it is killed."""

    def check_evaluation(self, evaluation: object) -> None:
        """Raise ConfigError where runs are to be compared, and the job has no evaluation to compare them by."""
        if self.keep_if == "better" and evaluation is None:
            got, allowed = "better, in a job without evaluation", "always, or a job with evaluation"
            raise ConfigError(explain("batch.keep_if", got=got, allowed=allowed, fix="add `evaluation:`"))
