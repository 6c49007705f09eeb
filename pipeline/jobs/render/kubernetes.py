"""Manifests for Kubernetes: a CronJob where the job is due at some time, else a DaskJob of Dask's operator or a Job."""

import hashlib
import math
import re
from typing import Any

from dask.utils import parse_bytes

from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.kubernetes_spec import arguments, cluster_spec, labels, pod_spec, variables
from dask_rl.storage.errors import ConfigError, explain

from .request import RenderRequest
from .schedules import to_kubernetes
from .templates import fill

_JOB_FOLDER = "/etc/dask-rl"
_SPARE_SECONDS = 30
_MAX_NAME = 45
_DRIVER_MEMORY = 2 * 2**30
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


def render_kubernetes(request: RenderRequest) -> dict[str, str]:
    """Return the manifests, all in one file.

    Raises:
        ConfigError: what pods need is not said: an image, a volume for the runs, workers' memory.
    """
    config = request.job.cluster.for_learners(request.job.learners)
    name = object_name(request.unit)
    has_learners = request.job.learners.num_learners > 0 and config.kind in ("local", "cuda", "kubernetes")
    is_dask_job = request.cron is None and has_learners
    has_operator = is_dask_job or config.kind == "kubernetes"
    _check(config, needs_memory=has_operator)
    num_workers = config.num_workers or max(1, request.job.learners.num_learners)
    text = fill(
        "kubernetes.jinja",
        name=name,
        file=f"{request.unit}.yaml",
        labels=labels(name),
        namespace=config.kubernetes.namespace,
        text=request.text,
        cron=request.cron,
        schedule=None if request.cron is None else to_kubernetes(request.cron),
        timezone=request.timezone,
        cluster=cluster_spec(config, name, num_workers)["spec"] if is_dask_job else None,
        pod=_driver(request, config, name, is_dask_job, num_workers),
        account=name if has_operator and not is_dask_job and config.kubernetes.service_account is None else None,
    )
    return {f"{request.unit}.yaml": text}


def object_name(unit: str) -> str:
    """Return a name for objects in Kubernetes; names that differ stay so."""
    name = _NOT_IN_NAMES.sub("-", unit.lower()).strip("-")
    if name == unit and len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 7].rstrip('-')}-{hashlib.sha256(unit.encode()).hexdigest()[:6]}"


def _check(config: ClusterConfig, *, needs_memory: bool) -> None:
    if config.kind == "slurm":
        fix = "take another kind, or `jobs render slurm`"
        raise ConfigError(explain("cluster.kind", got="slurm", allowed="what pods can reach", fix=fix))
    if needs_memory and config.security is not None:
        allowed = "none: Dask's operator starts schedulers without TLS"
        raise ConfigError(explain("cluster.security", got=config.security, allowed=allowed, fix="leave it out"))
    settings = config.kubernetes
    missing = {
        "kubernetes.image": (settings.image is None, "an image with dask-rl in it"),
        "kubernetes.volumes": (not settings.volumes, "[{claim: …, path: …}], the first for the runs"),
        "memory_per_worker": (needs_memory and config.memory_per_worker == "auto", 'a size, as in "16GB"'),
    }
    for key, (is_missing, allowed) in missing.items():
        if is_missing:
            fix = f"set it in the job, or with --set cluster.{key}=…"
            raise ConfigError(explain(f"cluster.{key}", got="nothing", allowed=allowed, fix=fix))


def _driver(
    request: RenderRequest, config: ClusterConfig, name: str, is_dask_job: bool, num_workers: int
) -> dict[str, Any]:
    """Return the pod that runs `jobs exec`; the learners are in it too where no operator makes other pods for them."""
    folder = config.kubernetes.volumes[0].path
    own = []
    if is_dask_job:  # the scheduler may take its time to come
        address, seconds = f"tcp://{name}-scheduler:8786", f"{config.kubernetes.pods_timeout_seconds:g}"
        own = ["--set=cluster.kind=address", f"--set=cluster.address={address}"]
        own += [f"--set=cluster.startup_timeout_seconds={seconds}"]
    file, home = f"{_JOB_FOLDER}/job.yaml", f"{folder}/.dask-rl"
    words = request.exec_words("--resume", *own, python="python", file=file, home=home)
    is_alone = not is_dask_job and config.kind in ("in_process", "local", "cuda")
    container = {
        "name": "driver",
        "command": arguments(words),
        "workingDir": folder,
        "env": variables(config),
        "resources": _resources(config, num_workers if is_alone else 0),
    }
    pod = pod_spec(config, container)
    pod["containers"][0]["volumeMounts"].append({"name": "job", "mountPath": _JOB_FOLDER, "readOnly": True})
    pod["volumes"].append({"name": "job", "configMap": {"name": name}})
    if config.kind == "kubernetes" and not is_dask_job:
        pod.setdefault("serviceAccountName", name)
    # A Job makes another Pod, and looks at exit codes before it does; a container that starts again looks at none.
    pod["restartPolicy"] = "Never"
    pod["terminationGracePeriodSeconds"] = math.ceil(request.job.batch.stop_wait_seconds) + _SPARE_SECONDS
    return pod


def _resources(config: ClusterConfig, num_workers: int) -> dict[str, Any]:
    """Return what the driver's pod asks for, with so many workers in it."""
    settings = config.kubernetes
    cpus = num_workers * (settings.cpus_per_worker or config.threads_per_worker)
    requests = {"cpu": str(max(1, cpus))}
    limits = {}
    if config.memory_per_worker != "auto" or not num_workers:
        workers = 0 if config.memory_per_worker == "auto" else num_workers * int(parse_bytes(config.memory_per_worker))
        requests["memory"] = limits["memory"] = str(_DRIVER_MEMORY + workers)
    if num_workers and settings.gpus_per_worker:
        requests[settings.gpu_resource] = limits[settings.gpu_resource] = str(num_workers * settings.gpus_per_worker)
    return {"requests": requests, "limits": limits}
