"""Worker processes on this machine."""

import logging
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import dask
from distributed import LocalCluster
from distributed.security import Security

from dask_rl.learners.own_cluster import cluster_settings, keeping_places
from dask_rl.pipeline.runs.spawning import environment_kept, failed_children_ended, interrupts_held
from dask_rl.storage.errors import ConfigError, DaskRLError, explain

from .config import ClusterConfig
from .workers import PRELOAD

HOST = "127.0.0.1"


def start_local(config: ClusterConfig, num_workers: int, security: Security | None) -> AbstractContextManager[Any]:
    """Start so many worker processes and their scheduler, all on 127.0.0.1.

    Raises:
        ConfigError: the dashboard's port is in use.
        DaskRLError: a worker died or hung while it started.
    """
    own: dict[str, Any] = {"processes": True}
    if config.memory_per_worker != "auto":  # LocalCluster's own "auto" divides by workers, not by cores
        own["memory_limit"] = config.memory_per_worker
    return start_processes(LocalCluster, config, options_here(config, num_workers, security) | own)


def options_here(config: ClusterConfig, num_workers: int, security: Security | None) -> dict[str, Any]:
    """Return the options of a cluster on this machine, whatever its workers run on."""
    options: dict[str, Any] = {
        "n_workers": num_workers,
        "threads_per_worker": config.threads_per_worker,
        "host": HOST,
        "dashboard_address": f"{HOST}:{config.dashboard_port}",
        "silence_logs": getattr(logging, config.log_level.upper()),
        "preload": [PRELOAD],
        "death_timeout": config.startup_timeout_seconds,
    }
    return options if security is None else options | {"security": security, "protocol": "tls://"}


def start_processes(
    cluster_class: Any, config: ClusterConfig, options: Mapping[str, Any]
) -> AbstractContextManager[Any]:
    """Start a cluster whose workers are children of this process; see `start_local`."""
    check_port(config.dashboard_port)
    began = time.monotonic()
    try:
        with (
            dask.config.set(cluster_settings(config.worker_ttl_seconds)),
            interrupts_held(),
            environment_kept(),
            failed_children_ended(),
        ):
            cluster: AbstractContextManager[Any] = keeping_places(cluster_class)(**options)
    except (AssertionError, OSError, RuntimeError) as error:  # Dask's words for a worker that died or hung
        got = f"no start in {time.monotonic() - began:.0f} s ({first_line(error)})"
        fix = "look at the load and memory of this machine, then run the same command again"
        raise DaskRLError(explain(f"{config.kind} cluster", got=got, fix=fix)) from None
    return cluster


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error) or type(error).__name__).splitlines()[0]


def check_port(port: int) -> None:
    """Refuse a port in use: Dask would warn and take another one."""
    if port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            message = explain(
                "cluster.dashboard_port",
                got=f"{port}: {error.strerror or error}",
                allowed="a free port, or 0 for any",
                fix="set cluster.dashboard_port=0 or stop what listens there",
            )
            raise ConfigError(message) from None
