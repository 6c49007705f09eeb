"""Workers of a cluster that we start: how many, with what, and the wait for them."""

import time
from collections.abc import Callable

from distributed import Client

from dask_rl.storage.errors import ConfigError, WaitTimeoutError, explain

from .config import JOINED_KINDS, ClusterConfig

PRELOAD = "dask_rl.pipeline.runs.worker_preload"
"""Module that each worker loads first."""
_LOOK_SECONDS = 1.0
_WAITS = {
    "slurm": ("slurm.queue_timeout_seconds", "see what `squeue --me` says, "),
    "kubernetes": ("kubernetes.pods_timeout_seconds", "see what `kubectl get pods` says, "),
}


def num_workers_to_start(config: ClusterConfig, num_needed: int) -> int:
    """Return how many workers to start: as many as the job needs, or more where the config says so.

    Raises:
        ConfigError: the config says fewer.
    """
    num_workers = config.num_workers or num_needed
    if num_workers < num_needed:
        message = explain(
            "cluster.num_workers",
            got=num_workers,
            allowed=f"at least learners.num_learners={num_needed}: one learner a worker",
            fix="raise it, leave it out, or lower learners.num_learners",
        )
        raise ConfigError(message)
    return num_workers


def wait_for_workers(
    client: Client, num_workers: int, config: ClusterConfig, is_stopped: Callable[[], bool] = bool
) -> None:
    """Wait until `client` has `num_workers` workers, at most `config.workers_timeout_seconds`.

    Raises:
        ConfigError: a running cluster does not have so many.
        WaitTimeoutError: a cluster that we started did not bring them up.
        KeyboardInterrupt: `is_stopped` said so.
    """
    deadline = time.monotonic() + config.workers_timeout_seconds
    while (left := deadline - time.monotonic()) > 0:
        if is_stopped():
            raise KeyboardInterrupt
        try:
            client.wait_for_workers(num_workers, timeout=min(left, _LOOK_SECONDS))
            return
        except TimeoutError:
            continue
    got = len(client.scheduler_info(n_workers=-1)["workers"])
    waited = f"{got} after {config.workers_timeout_seconds:g} s"
    if config.kind not in JOINED_KINDS:
        limit, look = _WAITS.get(config.kind, ("startup_timeout_seconds", ""))
        message = explain(
            f"workers of the {config.kind} cluster",
            got=waited,
            allowed=f"{num_workers}, one per learner",
            fix=f"{look}raise cluster.{limit} or ask for fewer learners",
        )
        raise WaitTimeoutError(message)
    message = explain(
        f"workers of the cluster at {client.scheduler.address}",
        got=waited,
        allowed=f"at least {num_workers}, one per learner",
        fix="start more workers or lower learners.num_learners",
    )
    raise ConfigError(message)
