"""The Dask cluster of a job: started here, or somebody else's."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from distributed import Client
from distributed.security import Security
from distributed.utils import silence_logging_cmgr

from dask_rl.learners.own_cluster import KeepLearners
from dask_rl.pipeline.runs.security import open_security

from .config import JOINED_KINDS, ClusterConfig
from .cuda import start_cuda
from .joined import connect
from .kubernetes import start_kubernetes
from .local import start_local
from .slurm import start_slurm
from .workers import num_workers_to_start, wait_for_workers

_Start = Callable[[ClusterConfig, int, Security | None], AbstractContextManager[Any]]
_STARTS: dict[str, _Start] = {
    "local": start_local,
    "cuda": start_cuda,
    "slurm": start_slurm,
    "kubernetes": start_kubernetes,
}


@contextmanager
def open_cluster(
    config: ClusterConfig,
    *,
    num_workers: int = 1,
    set_as_default: bool = True,
    is_stopped: Callable[[], bool] = bool,
) -> Iterator[Client | None]:
    """Give a client of a cluster with at least `num_workers` workers; None for in_process.

    What was started here is closed at the end, and no process stays behind; a cluster that was running before
    stays as it was.

    Args:
        config: the cluster.
        num_workers: workers that the job needs, one per learner.
        set_as_default: whether Dask's own functions use the client meanwhile.
        is_stopped: asked while workers are waited for; ends the wait.

    Raises:
        ConfigError: fewer workers than learners, a port in use, no scheduler at the address.
        WaitTimeoutError, DaskRLError: workers that were started here did not come up.
        KeyboardInterrupt: `is_stopped` said so.
    """
    if config.kind == "in_process":
        yield None
        return
    security = open_security(config.security)
    with ExitStack() as stack:
        if config.kind in JOINED_KINDS:
            stack.enter_context(silence_logging_cmgr(config.log_level))
            client = stack.enter_context(connect(config, security, set_as_default=set_as_default))
        else:
            start = _STARTS[config.kind]
            cluster = stack.enter_context(start(config, num_workers_to_start(config, num_workers), security))
            options = {"timeout": config.startup_timeout_seconds, "set_as_default": set_as_default}
            client = stack.enter_context(Client(cluster, **options))
        client.register_plugin(KeepLearners())
        wait_for_workers(client, num_workers, config, is_stopped)
        yield client


def open_workers(num_workers: int) -> AbstractContextManager[Client | None]:
    """Give a client of so many worker processes of our own; None for 0."""
    if num_workers == 0:
        return open_cluster(ClusterConfig(kind="in_process"))
    return open_cluster(ClusterConfig(num_workers=num_workers), num_workers=num_workers)
