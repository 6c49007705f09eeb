"""One worker process per GPU of this machine, through dask-cuda."""

from contextlib import AbstractContextManager
from typing import Any

from distributed.security import Security

from dask_rl.storage.errors import ConfigError, explain

from .config import ClusterConfig
from .local import options_here, start_processes


def start_cuda(config: ClusterConfig, num_workers: int, security: Security | None) -> AbstractContextManager[Any]:
    """Start so many workers, each with a GPU of its own; see `start_local`.

    Raises:
        ConfigError: dask-cuda is not installed.
    """
    own = {"memory_limit": config.memory_per_worker, "resources": {"GPU": 1}}
    return start_processes(_cluster_class(), config, options_here(config, num_workers, security) | own)


def _cluster_class() -> Any:
    try:
        from dask_cuda import LocalCUDACluster
    except ImportError:
        message = explain(
            "cluster.kind",
            got="cuda, and dask-cuda is not installed",
            allowed="in_process, local, address, scheduler_file",
            fix="pip install 'dask-rl[cuda]'",
        )
        raise ConfigError(message) from None

    return LocalCUDACluster
