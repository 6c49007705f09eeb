"""Workers as SLURM jobs, one each, through dask-jobqueue; the scheduler runs in this process."""

import logging
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed.core import Status
from distributed.security import Security

from dask_rl.learners.own_cluster import cluster_settings, keeping_places
from dask_rl.storage.errors import ConfigError, DaskRLError, explain

from .config import ClusterConfig
from .directives import directives, escape_file_pattern, quote_directive
from .environment import settings_environment
from .local import HOST, check_port, first_line
from .workers import PRELOAD

_SITE = "jobqueue.slurm"


@contextmanager
def start_slurm(config: ClusterConfig, num_workers: int, security: Security | None) -> Iterator[Any]:
    """Give a cluster to which so many jobs belong; at the end those that are left are cancelled.

    Raises:
        ConfigError: dask-jobqueue or sbatch is not there, or the dashboard's port is in use.
        DaskRLError: sbatch refuses a job.
    """
    if shutil.which("sbatch") is None:
        got, fix = "slurm, and there is no sbatch on the PATH", "start the job where sbatch works, as on a login node"
        raise ConfigError(explain("cluster.kind", got=got, fix=fix))
    check_port(config.dashboard_port)
    with open_slurm(config, security) as cluster:
        try:
            cluster.sync(_submit, cluster, num_workers)
        except (OSError, RuntimeError, ValueError) as error:
            got = f"no job: {_answer(error)}"
            raise DaskRLError(explain("sbatch", got=got, fix="correct cluster.slurm, or ask the site")) from None
        yield cluster


@contextmanager
def open_slurm(config: ClusterConfig, security: Security | None) -> Iterator[Any]:
    """Give a cluster without workers, whose `job_script()` is what `start_slurm` submits."""
    cluster_class = _cluster_class()
    options = _options(config, security)
    with dask.config.set(cluster_settings(config.worker_ttl_seconds)):
        cluster = cluster_class(**options)
    try:
        with cluster:
            yield cluster
    finally:
        for key in ("ca_file", "cert", "key"):  # temporary credentials, which would stay as long as the object
            file = getattr(cluster, f"_job_{key}", None)
            if file is not None:
                file.close()


async def _submit(cluster: Any, num_workers: int) -> None:
    """Do what `scale` only begins, which keeps sbatch's answer to itself."""
    for _ in range(num_workers):
        cluster.worker_spec.update(cluster.new_worker_spec())
    try:
        await cluster._correct_state()
    finally:
        for job in cluster._created:
            if job.status == Status.created:
                job.status = Status.failed  # close() would not believe that it never came to be


def _options(config: ClusterConfig, security: Security | None) -> dict[str, Any]:
    """Return the arguments of SLURMCluster, quoted for the places in its script where they are put as they are."""
    settings = config.slurm
    worker = ["--preload", PRELOAD, "--dashboard-address", f"{HOST}:0"]
    if settings.num_gpus:
        worker += ["--resources", f"GPU={settings.num_gpus}"]
    variables = settings_environment(config.worker_ttl_seconds)
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    options: dict[str, Any] = {
        "cores": config.threads_per_worker,
        "job_cpu": settings.cpus_per_worker or config.threads_per_worker,
        "memory": config.memory_per_worker,
        "processes": 1,
        "queue": _directive(settings.partition),
        "account": _directive(settings.account),
        "walltime": settings.walltime,
        "job_name": "dask-rl-worker",
        "job_extra_directives": [*_site("job-extra-directives"), *_directives(config)],
        "job_script_prologue": [*_site("job-script-prologue"), *exports, *settings.prologue],
        "worker_extra_args": [*_site("worker-extra-args"), *map(shlex.quote, worker)],
        "python": shlex.quote(settings.python or sys.executable),
        "local_directory": None if settings.local_directory is None else shlex.quote(settings.local_directory),
        "interface": settings.interface,
        "death_timeout": config.startup_timeout_seconds,
        "silence_logs": getattr(logging, config.log_level.upper()),
        "scheduler_options": {"dashboard_address": f"{HOST}:{config.dashboard_port}"},
    }
    if security is not None:
        options |= {"security": _for_shell(security), "protocol": "tls://", "shared_temp_directory": _here()}
    return options


def _directives(config: ClusterConfig) -> list[str]:
    settings = config.slurm
    output = None
    if settings.log_directory is not None:
        output = f"{escape_file_pattern(settings.log_directory)}/dask-rl-worker-%j.log"
    # A worker that is preempted comes back by itself: the run goes on with it where it was.
    return [*directives({"gres": settings.gres, "output": output, "requeue": True}), *settings.options]


def _directive(value: str | None) -> str | None:
    return None if value is None else quote_directive(value)


def _site(key: str) -> list[str]:
    """Return what the site's own configuration of dask-jobqueue adds."""
    return list(dask.config.get(f"{_SITE}.{key}", default=None) or ())


def _for_shell(security: Security) -> Security:
    """Refuse paths that dask-jobqueue would put into its script without quotes."""
    for value in security.get_tls_config_for_role("worker").values():
        if value is not None and "\n" not in value:
            _check_plain("cluster.security", value)
    return security


def _here() -> str:
    """Return the working directory, in which dask-jobqueue keeps temporary credentials for the workers."""
    return _check_plain("working directory", str(Path.cwd()))


def _check_plain(what: str, path: str) -> str:
    if shlex.quote(path) != path:
        allowed = "for kind slurm, a path that a shell takes without quotes"
        raise ConfigError(explain(what, got=repr(path), allowed=allowed, fix="choose another path"))
    return path


def _answer(error: Exception) -> str:
    """Return the last thing that sbatch said, which is what was wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else first_line(error)


def _cluster_class() -> Any:
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        got = f"slurm, and dask-jobqueue cannot be imported ({first_line(error)})"
        raise ConfigError(explain("cluster.kind", got=got, fix="pip install 'dask-rl[slurm]'")) from None
    return keeping_places(SLURMCluster)
