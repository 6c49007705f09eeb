"""What SLURM is asked for."""

import math
import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dask_rl.learners.config import Seconds

from .directives import OneLine, SbatchOption

_WALLTIME = re.compile(r"[0-9]{1,6}(-[0-9]{1,2}(:[0-9]{1,2}){0,2}|(:[0-9]{1,2}){0,2})")
_NUMBER_AT_END = re.compile(r"(?:^|:)([0-9]+)$")


class SlurmConfig(BaseModel):
    """How SLURM is asked for workers (kind slurm: a job for each; `dask-rl jobs render slurm`: one for all).

    What is left out, and has no default here, is as `jobqueue.slurm` of Dask's own configuration says, for kind slurm,
    and else as the site does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    partition: OneLine | None = None
    """Partition, also called queue."""
    account: OneLine | None = None
    """Account that is charged."""
    walltime: str = "01:00:00"
    """Longest time that a job may take, in SLURM's forms: minutes, hours:minutes:seconds, days-hours. Where it is left
    out, `jobs render slurm` takes `batch.time_limit_seconds` and some minutes, if that is set."""
    cpus_per_worker: int | None = Field(None, ge=1, le=4096)
    """Cores of a worker; default: cluster.threads_per_worker."""
    gres: OneLine | None = None
    """Generic resources of a worker, such as gpu:1 or gpu:a100:1; default: GPUs as learners.num_gpus_per_learner."""
    options: tuple[SbatchOption, ...] = ()
    """Further options of sbatch, as they stand behind #SBATCH: ["--qos=high", "--constraint=skylake"]."""
    prologue: tuple[str, ...] = ()
    """Lines of shell before a worker starts: ["module load cuda"]."""
    interface: OneLine | None = None
    """Network interface on which scheduler and workers listen, such as ib0; default: that of the host's name."""
    log_directory: OneLine | None = None
    """Where jobs write their output; default: the working directory."""
    local_directory: OneLine | None = None
    """Fast local directory of the nodes, for workers' files."""
    python: OneLine | None = None
    """Python on the nodes; default: the one that runs here."""
    queue_timeout_seconds: Seconds = 3600
    """Bound on the wait for workers from their submission on (kind slurm)."""

    @field_validator("walltime")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        if not _WALLTIME.fullmatch(value):
            raise ValueError("a time of SLURM's: minutes, hours:minutes:seconds or days-hours")
        return value

    @property
    def num_gpus(self) -> int:
        """GPUs that `gres` asks for."""
        asked = (item for item in (self.gres or "").split(",") if item.partition(":")[0] == "gpu")
        return sum(int(match[1]) if (match := _NUMBER_AT_END.search(item)) else 1 for item in asked)

    def with_gpus(self, num_gpus: float) -> "SlurmConfig":
        """Return a copy that asks for so many GPUs a worker, unless it says itself what to ask for."""
        if self.gres is not None or not num_gpus:
            return self
        return self.model_copy(update={"gres": f"gpu:{math.ceil(num_gpus)}"})
