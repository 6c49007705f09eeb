"""Clusters in the words of Dask's operator for Kubernetes: pods that are nobody's root, nothing open to the outside."""

from collections.abc import Mapping, Sequence
from typing import Any

from dask.utils import parse_bytes

from .config import ClusterConfig
from .environment import settings_environment
from .workers import PRELOAD

_SCHEDULER_PORT, _DASHBOARD_PORT = 8786, 8787
_SCHEDULER_RESOURCES = {"cpu": "1", "memory": "2Gi"}


def cluster_spec(config: ClusterConfig, name: str, num_workers: int) -> dict[str, Any]:
    """Return a DaskCluster of one worker a pod; its Service is of type ClusterIP, which ends at the cluster's edge."""
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": name, "labels": labels(name)},
        "spec": {
            "scheduler": {"spec": _scheduler_pod(config), "service": _service(name)},
            "worker": {"replicas": num_workers, "spec": _worker_pod(config)},
        },
    }


def labels(name: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a job."""
    return {"app.kubernetes.io/name": "dask-rl", "app.kubernetes.io/instance": name}


def pod_spec(config: ClusterConfig, container: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod of one container, with what all pods of a job have: volumes, user, no rights to spare."""
    settings = config.kubernetes
    volumes = list(settings.volumes)
    mounts = [
        {"name": f"volume-{number}", "mountPath": volume.path, "readOnly": volume.read_only}
        for number, volume in enumerate(volumes)
    ]
    claims: list[dict[str, Any]] = [
        {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
        for number, volume in enumerate(volumes)
    ]
    own = {"image": settings.image, "volumeMounts": mounts, "securityContext": _no_rights()}
    spec: dict[str, Any] = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user_id,
            "runAsGroup": settings.user_id,
            "fsGroup": settings.user_id,
            # Else each mount opens the home of the history to the group again, and takes long with many files.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{**own, **container}],
        "volumes": claims,
    }
    optional = {
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
        "nodeSelector": dict(settings.node_selector),
    }
    return spec | {key: value for key, value in optional.items() if value}


def variables(config: ClusterConfig) -> list[dict[str, str]]:
    """Return the environment of all containers: Dask's settings for learners, then the user's own variables."""
    values = settings_environment(config.worker_ttl_seconds) | {"HOME": "/tmp"} | config.kubernetes.env
    return [{"name": name, "value": literal(value)} for name, value in values.items()]


def literal(text: str) -> str:
    """Return text for an argument or variable of a container, in which $(NAME) stands for a variable's value."""
    return text.replace("$", "$$")


def arguments(words: Sequence[str]) -> list[str]:
    """Return the words of a command as they are meant."""
    return [literal(word) for word in words]


def _scheduler_pod(config: ClusterConfig) -> dict[str, Any]:
    options = ["--host", "0.0.0.0", "--port", str(_SCHEDULER_PORT), "--dashboard-address", f":{_DASHBOARD_PORT}"]
    healthy = {"httpGet": {"port": "http-dashboard", "path": "/health"}, "periodSeconds": 5, "timeoutSeconds": 30}
    container = {
        "name": "scheduler",
        "command": ["dask", "scheduler"],
        "args": options,
        "env": variables(config),
        "resources": {"requests": _SCHEDULER_RESOURCES, "limits": {"memory": _SCHEDULER_RESOURCES["memory"]}},
        "ports": [
            {"name": "tcp-comm", "containerPort": _SCHEDULER_PORT, "protocol": "TCP"},
            {"name": "http-dashboard", "containerPort": _DASHBOARD_PORT, "protocol": "TCP"},
        ],
        "readinessProbe": healthy,
        "livenessProbe": healthy | {"initialDelaySeconds": 60, "periodSeconds": 30},
    }
    return pod_spec(config, container)


def _worker_pod(config: ClusterConfig) -> dict[str, Any]:
    settings = config.kubernetes
    options = ["--name", "$(DASK_WORKER_NAME)", "--nthreads", str(config.threads_per_worker)]
    options += ["--memory-limit", str(_memory_bytes(config)), "--preload", PRELOAD]
    options += ["--dashboard-address", "127.0.0.1:0", "--death-timeout", f"{config.startup_timeout_seconds:g}"]
    amounts = {"cpu": str(settings.cpus_per_worker or config.threads_per_worker), "memory": str(_memory_bytes(config))}
    if settings.gpus_per_worker:
        options += ["--resources", f"GPU={settings.gpus_per_worker}"]
        amounts[settings.gpu_resource] = str(settings.gpus_per_worker)
    # The same for both: a worker that was promised its memory is not the first to be evicted.
    resources = {"requests": amounts, "limits": amounts}
    container = {
        "name": "worker",
        "command": ["dask", "worker"],
        "args": options,
        "env": variables(config),
        "resources": resources,
    }
    return pod_spec(config, container)


def _memory_bytes(config: ClusterConfig) -> int:
    return int(parse_bytes(config.memory_per_worker))


def _service(name: str) -> dict[str, Any]:
    ports = (("tcp-comm", _SCHEDULER_PORT), ("http-dashboard", _DASHBOARD_PORT))
    return {
        "type": "ClusterIP",
        "selector": {"dask.org/cluster-name": name, "dask.org/component": "scheduler"},
        "ports": [{"name": port, "protocol": "TCP", "port": number, "targetPort": port} for port, number in ports],
    }


def _no_rights() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
