"""Workers as pods of Kubernetes, through Dask's operator."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distributed.core import Status
from distributed.security import Security
from distributed.utils import silence_logging_cmgr

from dask_rl.learners.own_cluster import keeping_places
from dask_rl.storage.errors import ConfigError, DaskRLError, explain

from .config import ClusterConfig
from .kubernetes_spec import cluster_spec
from .local import first_line


@contextmanager
def start_kubernetes(config: ClusterConfig, num_workers: int, security: Security | None) -> Iterator[Any]:
    """Give a cluster of so many workers and a scheduler, all in pods; at the end it is deleted.

    Where this process runs outside of Kubernetes, the scheduler's port is forwarded to it.

    Raises:
        ConfigError: dask-kubernetes cannot be imported.
        DaskRLError: there is no Kubernetes, no operator in it, or the scheduler's pod did not come up.
    """
    cluster_class = _cluster_class()
    spec = cluster_spec(config, f"dask-rl-{uuid.uuid4().hex[:10]}", num_workers)
    with silence_logging_cmgr(getattr(logging, config.log_level.upper())):
        cluster = cluster_class.__new__(cluster_class)  # in two steps, to have it in hand where the second one fails
        try:
            cluster.__init__(
                custom_cluster_spec=spec,
                namespace=config.kubernetes.namespace,
                resource_timeout=config.kubernetes.pods_timeout_seconds,
                shutdown_on_close=True,
                quiet=True,
            )
        except Exception as error:  # of four libraries: kr8s, httpx, dask-kubernetes and distributed
            with suppress(Exception):  # what it has made already
                cluster.close(timeout=10)
            cluster.status = Status.closed
            cluster._loop_runner.stop()
            got = f"no cluster in Kubernetes ({type(error).__name__}: {first_line(error)})"
            fix = "see that `kubectl get daskclusters` answers, which Dask's operator provides, then run it again"
            raise DaskRLError(explain("cluster.kind", got=got, fix=fix)) from None
        with cluster:
            yield cluster


def _cluster_class() -> Any:
    try:
        from dask_kubernetes.operator import KubeCluster
    except ImportError as error:
        got = f"kubernetes, and dask-kubernetes cannot be imported ({first_line(error)})"
        raise ConfigError(explain("cluster.kind", got=got, fix="pip install 'dask-rl[kubernetes]'")) from None
    return keeping_places(KubeCluster)
