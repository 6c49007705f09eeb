"""What a job says about its cluster."""

from typing import Literal

from dask.utils import parse_bytes
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dask_rl.learners.config import LearnersConfig, Seconds
from dask_rl.learners.own_cluster import WORKER_TTL_SECONDS
from dask_rl.pipeline.runs.security import SecurityConfig

from .kubernetes_config import KubernetesConfig
from .slurm_config import SlurmConfig

ClusterKind = Literal["in_process", "local", "cuda", "address", "scheduler_file", "slurm", "kubernetes"]
JOINED_KINDS = ("address", "scheduler_file")
"""Kinds whose cluster somebody else started: it has the workers that it has, and is left running."""


class ClusterConfig(BaseModel):
    """Where tasks and learners run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    kind: ClusterKind = "local"
    """in_process: no Dask; local: worker processes here; cuda: one worker per GPU here (needs dask-cuda);
    address, scheduler_file: a running cluster, which is left running; slurm: a SLURM job for each worker (needs
    dask-jobqueue); kubernetes: pods, through Dask's operator (needs dask-kubernetes)."""
    num_workers: int | None = Field(None, ge=1, le=4096)
    """Workers to start, of all kinds that start some; default: one per learner. One learner runs on each."""
    address: str | None = Field(None, min_length=1)
    """Scheduler address such as tcp://10.0.0.1:8786; for kind address."""
    scheduler_file: str | None = Field(None, min_length=1)
    """File that `dask scheduler --scheduler-file` wrote; for kind scheduler_file."""
    threads_per_worker: int = Field(1, ge=1, le=4096)
    """Tasks that a worker that is started runs at a time; at least learners.num_cpus_per_learner where that is set."""
    dashboard_port: int = Field(0, ge=0, le=65535)
    """Port of the dashboard on 127.0.0.1 (local, cuda, slurm); 0: a free one."""
    memory_per_worker: int | str = "auto"
    """Memory limit of a worker that is started, in bytes or as in "4GB"; auto (local, cuda): an even share."""
    worker_ttl_seconds: Seconds = WORKER_TTL_SECONDS
    """A worker that is silent for so long is given up for dead and replaced."""
    startup_timeout_seconds: Seconds = 60
    """Bound on reaching the scheduler, on the start of a worker and on the wait for enough of them."""
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "critical"
    """Least severe of Dask's log lines that reach the terminal."""
    security: SecurityConfig = None
    """TLS between client, scheduler and workers. temporary: credentials for this one cluster (local, cuda, slurm; needs
    the package cryptography); {ca_file, cert, key}: PEM files; default: as Dask is configured. Dashboards and the
    exchange between learners are not encrypted. Not for kubernetes, whose operator knows no TLS."""
    slurm: SlurmConfig = SlurmConfig()
    """What SLURM is asked for; for kind slurm and `dask-rl jobs render slurm`."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """Images, namespace and volumes; for kind kubernetes and `dask-rl jobs render kubernetes`."""

    @field_validator("memory_per_worker")
    @classmethod
    def _is_a_size(cls, value: int | str) -> int | str:
        try:
            fits = value == "auto" or parse_bytes(value) >= 0
        except (ValueError, OverflowError):
            fits = False
        if not fits:
            raise ValueError('a number of bytes, as in "4GB", or auto')
        return value

    @model_validator(mode="after")
    def _needs_its_place(self) -> "ClusterConfig":
        for name in ("address", "scheduler_file"):
            if (self.kind == name) != (getattr(self, name) is not None):
                raise ValueError(f"{name} is for kind {name}, and that kind needs it")
        if self.security is not None and self.kind == "in_process":
            raise ValueError("security is for clusters, and kind in_process has none")
        if self.security == "temporary" and self.kind not in ("local", "cuda", "slurm"):
            raise ValueError(f"security=temporary is for kinds local, cuda and slurm; kind {self.kind} needs the files")
        if self.security is not None and self.kind == "kubernetes":
            raise ValueError("Dask's operator starts schedulers without TLS; keep others out with a NetworkPolicy")
        if self.kind in ("slurm", "kubernetes") and self.memory_per_worker == "auto":
            raise ValueError(f'kind {self.kind} needs memory_per_worker, as in "16GB"')
        if self.kind == "kubernetes" and self.kubernetes.image is None:
            raise ValueError("kind kubernetes needs kubernetes.image: one that has dask-rl in it")
        return self

    @property
    def workers_timeout_seconds(self) -> float:
        """Bound on the wait for workers, which may have to queue."""
        if self.kind == "slurm":
            return self.slurm.queue_timeout_seconds
        return self.kubernetes.pods_timeout_seconds if self.kind == "kubernetes" else self.startup_timeout_seconds

    def for_learners(self, learners: LearnersConfig) -> "ClusterConfig":
        """Return a copy whose workers have the CPUs and GPUs that each learner needs."""
        cpus, gpus = learners.num_cpus_per_learner, learners.num_gpus_per_learner
        changes = {
            "threads_per_worker": max(self.threads_per_worker, cpus if isinstance(cpus, int) else 1),
            "slurm": self.slurm.with_gpus(gpus),
            "kubernetes": self.kubernetes.with_gpus(gpus),
        }
        return self.model_copy(update=changes)
