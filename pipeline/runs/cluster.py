"""The Dask cluster of a job: started here, or somebody else's."""

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import dask
from dask.utils import parse_bytes
from distributed import Client, LocalCluster
from distributed.security import Security
from distributed.utils import silence_logging_cmgr
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dask_rl.learners.config import Seconds
from dask_rl.learners.own_cluster import (
    WORKER_TTL_SECONDS,
    KeepLearners,
    cluster_settings,
    keep_workers_that_die_twice,
)
from dask_rl.storage.errors import ConfigError, DaskRLError, WaitTimeoutError, explain

from .security import SecurityConfig, open_security
from .spawning import environment_kept, failed_children_ended, interrupts_held

_HOST = "127.0.0.1"
_PRELOAD = "dask_rl.pipeline.runs.worker_preload"

ClusterKind = Literal["in_process", "local", "cuda", "address", "scheduler_file"]


class ClusterConfig(BaseModel):
    """Where tasks and learners run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    kind: ClusterKind = "local"
    """in_process: no Dask; local: worker processes here; cuda: one worker per GPU here (needs dask-cuda);
    address, scheduler_file: a running cluster, which is left running."""
    num_workers: int | None = Field(None, ge=1, le=4096)
    """Worker processes to start (local, cuda); default: one per learner. One learner runs on each."""
    address: str | None = Field(None, min_length=1)
    """Scheduler address such as tcp://10.0.0.1:8786; for kind address."""
    scheduler_file: str | None = Field(None, min_length=1)
    """File that `dask scheduler --scheduler-file` wrote; for kind scheduler_file."""
    threads_per_worker: int = Field(1, ge=1, le=4096)
    """Tasks that a worker runs at a time (local, cuda); at least learners.num_cpus_per_learner where that is set."""
    dashboard_port: int = Field(0, ge=0, le=65535)
    """Port of the dashboard on 127.0.0.1 (local, cuda); 0: a free one."""
    memory_per_worker: int | str = "auto"
    """Memory limit of a worker (local, cuda) in bytes or as in "4GB"; auto: an even share."""
    worker_ttl_seconds: Seconds = WORKER_TTL_SECONDS
    """A worker that is silent for so long is given up for dead and replaced (local, cuda)."""
    startup_timeout_seconds: Seconds = 60
    """Bound on reaching the scheduler, on the start of a worker and on the wait for enough of them."""
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "critical"
    """Least severe of Dask's log lines that reach the terminal."""
    security: SecurityConfig = None
    """TLS between client, scheduler and workers. temporary: credentials for this one cluster (local, cuda; needs the
    package cryptography); {ca_file, cert, key}: PEM files; default: as Dask is configured. Dashboards and the exchange
    between learners are not encrypted."""

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
        if self.security == "temporary" and self.kind not in ("local", "cuda"):
            raise ValueError(f"security=temporary is for kinds local and cuda; kind {self.kind} needs the files")
        return self


@contextmanager
def open_cluster(config: ClusterConfig, *, num_workers: int = 1) -> Iterator[Client | None]:
    """Give a client of a cluster with at least `num_workers` workers; None for in_process.

    What was started here is closed at the end, and no process stays behind; a cluster that was running before
    stays as it was.

    Args:
        config: the cluster.
        num_workers: workers that the job needs, one per learner.

    Raises:
        ConfigError: fewer workers than learners, a port in use, no scheduler at the address.
        WaitTimeoutError, DaskRLError: workers that were started here did not come up.
    """
    if config.kind == "in_process":
        yield None
        return
    security = open_security(config.security)
    with ExitStack() as stack:
        if config.kind in ("local", "cuda"):
            cluster = stack.enter_context(_start_cluster(config, num_workers, security))
            client = stack.enter_context(Client(cluster, timeout=config.startup_timeout_seconds))
        else:
            stack.enter_context(silence_logging_cmgr(config.log_level))
            client = stack.enter_context(_connect(config, security))
        client.register_plugin(KeepLearners())
        wait_for_workers(client, num_workers, config)
        yield client


def open_workers(num_workers: int) -> AbstractContextManager[Client | None]:
    """Give a client of so many worker processes of our own; None for 0."""
    if num_workers == 0:
        return open_cluster(ClusterConfig(kind="in_process"))
    return open_cluster(ClusterConfig(num_workers=num_workers), num_workers=num_workers)


def wait_for_workers(client: Client, num_workers: int, config: ClusterConfig) -> None:
    """Wait until `client` has `num_workers` workers, at most `config.startup_timeout_seconds`.

    Raises:
        ConfigError: a running cluster does not have so many.
        WaitTimeoutError: a cluster that we started did not bring them up.
    """
    try:
        client.wait_for_workers(num_workers, timeout=config.startup_timeout_seconds)
    except TimeoutError:
        got = len(client.scheduler_info(n_workers=-1)["workers"])
        waited = f"{got} after {config.startup_timeout_seconds:g} s"
        if config.kind in ("local", "cuda"):
            message = explain(
                "workers of the local cluster",
                got=waited,
                allowed=f"{num_workers}, one per learner",
                fix="raise cluster.startup_timeout_seconds or ask for fewer learners",
            )
            raise WaitTimeoutError(message) from None
        message = explain(
            f"workers of the cluster at {client.scheduler.address}",
            got=waited,
            allowed=f"at least {num_workers}, one per learner",
            fix="start more workers or lower learners.num_learners",
        )
        raise ConfigError(message) from None


def _start_cluster(config: ClusterConfig, num_needed: int, security: Security | None) -> AbstractContextManager[Any]:
    num_workers = config.num_workers or num_needed
    if num_workers < num_needed:
        message = explain(
            "cluster.num_workers",
            got=num_workers,
            allowed=f"at least learners.num_learners={num_needed}: one learner a worker",
            fix="raise it, leave it out, or lower learners.num_learners",
        )
        raise ConfigError(message)
    _check_port(config.dashboard_port)
    options: dict[str, Any] = {
        "n_workers": num_workers,
        "threads_per_worker": config.threads_per_worker,
        "host": _HOST,
        "dashboard_address": f"{_HOST}:{config.dashboard_port}",
        "silence_logs": getattr(logging, config.log_level.upper()),
        "memory_limit": config.memory_per_worker,
        "preload": [_PRELOAD],
        "death_timeout": config.startup_timeout_seconds,
    }
    if security is not None:
        options |= {"security": security, "protocol": "tls://"}
    cluster_class = LocalCluster
    if config.kind == "cuda":
        cluster_class = _cuda_cluster_class()
        options["resources"] = {"GPU": 1}
    else:
        options["processes"] = True
        if config.memory_per_worker == "auto":
            del options["memory_limit"]  # LocalCluster's own "auto" divides by workers, not by cores
    keep_workers_that_die_twice()
    began = time.monotonic()
    try:
        with (
            dask.config.set(cluster_settings(config.worker_ttl_seconds)),
            interrupts_held(),
            environment_kept(),
            failed_children_ended(),
        ):
            cluster: AbstractContextManager[Any] = cluster_class(**options)
    except (AssertionError, OSError, RuntimeError) as error:  # Dask's words for a worker that died or hung
        got = f"no start in {time.monotonic() - began:.0f} s ({_first_line(error)})"
        fix = "look at the load and memory of this machine, then run the same command again"
        raise DaskRLError(explain(f"{config.kind} cluster", got=got, fix=fix)) from None
    return cluster


def _cuda_cluster_class() -> Any:
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


def _connect(config: ClusterConfig, security: Security | None) -> Client:
    if config.scheduler_file is not None:
        _check_scheduler_file(Path(config.scheduler_file))
    asked = config.address or config.scheduler_file
    try:
        return Client(**{config.kind: asked}, timeout=config.startup_timeout_seconds, security=security)
    except (OSError, ValueError, RuntimeError, TypeError) as error:  # the last two: TLS on one side only
        message = explain(
            f"cluster.{config.kind}",
            got=f"{asked}, where no scheduler answers ({_first_line(error)})",
            fix="start `dask scheduler`, or correct it; where it uses TLS, set cluster.security",
        )
        raise ConfigError(message) from None


def _check_scheduler_file(path: Path) -> None:
    """Refuse what no scheduler wrote: Dask would start one of its own, or fail without a word."""
    try:
        json.loads(path.read_bytes())["address"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        got = f"{path}: {getattr(error, 'strerror', None) or 'no file of a scheduler'}"
        fix = "start `dask scheduler --scheduler-file FILE` first, or correct the path"
        raise ConfigError(explain("cluster.scheduler_file", got=got, fix=fix)) from None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _check_port(port: int) -> None:
    """Refuse a port in use: Dask would warn and take another one."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            message = explain(
                "cluster.dashboard_port",
                got=f"{port}: {error.strerror or error}",
                allowed="a free port, or 0 for any",
                fix="set cluster.dashboard_port=0 or stop what listens there",
            )
            raise ConfigError(message) from None
