"""What Kubernetes is asked for."""

import math
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from dask_rl.learners.config import Seconds

from .directives import OneLine

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _is_a_label(value: str) -> str:
    if not _LABEL.fullmatch(value):
        raise ValueError("lower-case letters, digits and dashes, at most 63")
    return value


Label = Annotated[str, AfterValidator(_is_a_label)]
"""Name of an object in Kubernetes."""


class VolumeConfig(BaseModel):
    """A claim on storage that scheduler, workers and driver see at one path."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    claim: Label
    """Name of the PersistentVolumeClaim; for a run's directory one that several pods may write (ReadWriteMany)."""
    path: OneLine
    """Where it is mounted; relative paths of the job mean the first one."""
    read_only: bool = False
    """Mount it read-only."""

    @field_validator("path")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        if not value.startswith("/") or ":" in value:
            raise ValueError("an absolute path without colons")
        return value


class KubernetesConfig(BaseModel):
    """How Kubernetes is asked for pods: for kind kubernetes, and for `dask-rl jobs render kubernetes`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    image: OneLine | None = None
    """Container image with dask-rl, the same version as here."""
    namespace: Label | None = None
    """Default: that of the current context."""
    volumes: tuple[VolumeConfig, ...] = ()
    """What all pods see: datasets, and runs."""
    env: dict[str, str] = {}
    """Environment variables of all pods."""
    cpus_per_worker: int | None = Field(None, ge=1, le=4096)
    """CPUs of a worker; default: cluster.threads_per_worker."""
    gpus_per_worker: int | None = Field(None, ge=0, le=64)
    """GPUs of a worker; default: as learners.num_gpus_per_learner."""
    gpu_resource: OneLine = "nvidia.com/gpu"
    """What the cluster calls a GPU."""
    service_account: Label | None = None
    """Account of the pods; default: the namespace's. The driver of kind kubernetes needs one that may make clusters."""
    image_pull_secrets: tuple[Label, ...] = ()
    """Secrets for a private registry."""
    node_selector: dict[str, str] = {}
    """Labels of the nodes to run on."""
    user_id: int = Field(1000, ge=1)
    """User and group of all processes; none of them is root."""
    pods_timeout_seconds: Seconds = 600
    """Bound on the wait for the operator, and for pods with their images (kind kubernetes)."""

    @field_validator("env")
    @classmethod
    def _are_variables(cls, value: dict[str, str]) -> dict[str, str]:
        if not all(_VARIABLE.fullmatch(name) for name in value) or any("\0" in text for text in value.values()):
            raise ValueError("names of environment variables, and values without null bytes")
        return value

    def with_gpus(self, num_gpus: float) -> "KubernetesConfig":
        """Return a copy that asks for so many GPUs a worker, unless it says itself how many."""
        return (
            self
            if self.gpus_per_worker is not None
            else self.model_copy(update={"gpus_per_worker": math.ceil(num_gpus)})
        )
