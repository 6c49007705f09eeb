"""A script for sbatch: the whole cluster in one allocation, or the driver alone where others run the workers."""

import math
import sys
from pathlib import Path
from typing import Any

from dask.utils import parse_bytes

from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.directives import directives, escape_file_pattern
from dask_rl.pipeline.runs.clusters.environment import settings_environment
from dask_rl.pipeline.runs.clusters.workers import PRELOAD
from dask_rl.storage.errors import ConfigError, explain

from .request import RenderRequest
from .templates import fill
from .yaml_text import yaml_value

_SPARE_SECONDS = 60
_START_SECONDS = 300
_MIB = 2**20


def render_slurm(request: RenderRequest) -> dict[str, str]:
    """Return the script.

    Raises:
        ConfigError: temporary credentials, which nobody in an allocation could hand out; a path that cannot stand in
            the script.
    """
    config = request.job.cluster.for_learners(request.job.learners)
    num_workers = config.num_workers or request.job.learners.num_learners
    is_whole = request.job.learners.num_learners > 0 and config.kind in ("local", "cuda")
    python, state = config.slurm.python or sys.executable, request.base / ".slurm"
    own = []
    if is_whole:
        _check_security(config)
        file = yaml_value(str(state / "scheduler.json"))
        own = ["--set=cluster.kind=scheduler_file", f"--set=cluster.scheduler_file={file}"]
    script = fill(
        "sbatch.jinja",
        name=request.name,
        unit=request.unit,
        cron=request.cron,
        directives=_directives(request, config, num_workers if is_whole else 1),
        directory=str(request.directory),
        state=str(state),
        variables=settings_environment(config.worker_ttl_seconds),
        prologue=config.slurm.prologue,
        is_whole=is_whole,
        python=python,
        scheduler=_scheduler_options(config),
        worker=_worker_options(config),
        num_workers=num_workers,
        words=request.exec_words("--resume", "--quiet", *own, python=python),
    )
    return {f"{request.unit}.sbatch": script}


def _directives(request: RenderRequest, config: ClusterConfig, num_tasks: int) -> list[str]:
    settings = config.slurm
    stop_seconds = math.ceil(request.job.batch.stop_wait_seconds) + _SPARE_SECONDS
    logs = Path(settings.log_directory or request.directory)
    options: dict[str, Any] = {
        "job-name": request.unit,
        "output": f"{escape_file_pattern(str(logs))}/%x-%j.log",
        "open-mode": "append",
        "dependency": "singleton",
        "requeue": True,
        "signal": f"B:TERM@{stop_seconds}",
        "partition": settings.partition,
        "account": settings.account,
        "time": _walltime(request, config, stop_seconds),
        "ntasks": num_tasks,
    }
    if config.kind in ("local", "cuda", "in_process"):  # else the work is done elsewhere
        cpus = settings.cpus_per_worker or config.threads_per_worker
        options |= {"cpus-per-task": cpus, "mem-per-cpu": _memory(config, cpus)} | _gpus(settings.gres)
    return [*directives(options), *settings.options]


def _walltime(request: RenderRequest, config: ClusterConfig, stop_seconds: int) -> str:
    """Return how long the allocation lasts: the job's own time limit, and what starting and saving take besides."""
    limit = request.job.batch.time_limit_seconds
    if limit is None or "walltime" in config.slurm.model_fields_set:
        return config.slurm.walltime
    minutes = math.ceil((limit + stop_seconds + _START_SECONDS) / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


def _memory(config: ClusterConfig, cpus: int) -> str | None:
    if config.memory_per_worker == "auto":
        return None
    return f"{math.ceil(parse_bytes(config.memory_per_worker) / cpus / _MIB)}M"


def _gpus(gres: str | None) -> dict[str, str | None]:
    """Return what each task gets; --gres alone counts for nodes, however many tasks they have."""
    items = (gres or "").split(",")
    gpus = [item.partition(":")[2] or "1" for item in items if item.partition(":")[0] == "gpu"]
    others = [item for item in items if item and item.partition(":")[0] != "gpu"]
    return {"gpus-per-task": ",".join(gpus) or None, "gres": ",".join(others) or None}


def _scheduler_options(config: ClusterConfig) -> list[str]:
    return ["--port", "0", "--dashboard-address", f"127.0.0.1:{config.dashboard_port}", *_network_options(config)]


def _worker_options(config: ClusterConfig) -> list[str]:
    settings = config.slurm
    # SLURM sees to the memory of a task; where it was told none, Dask would divide the node's by nobody.
    memory = "0" if config.memory_per_worker == "auto" else str(int(parse_bytes(config.memory_per_worker)))
    options = ["--nthreads", str(config.threads_per_worker), "--memory-limit", memory, "--preload", PRELOAD]
    options += ["--dashboard-address", "127.0.0.1:0", "--death-timeout", f"{config.startup_timeout_seconds:g}"]
    if settings.num_gpus:
        options += ["--resources", f"GPU={settings.num_gpus}"]
    if settings.local_directory is not None:
        options += ["--local-directory", settings.local_directory]
    return [*options, *_network_options(config)]


def _network_options(config: ClusterConfig) -> list[str]:
    options = [] if config.slurm.interface is None else ["--interface", config.slurm.interface]
    files = config.security
    if files is not None and files != "temporary":
        options += ["--protocol", "tls"]
        named = {"--tls-ca-file": files.ca_file, "--tls-cert": files.cert, "--tls-key": files.key}
        for option, file in named.items():
            options += [option, str(Path(file).absolute())]
    return options


def _check_security(config: ClusterConfig) -> None:
    if config.security == "temporary":
        got, allowed = "temporary", "for an allocation: files, {ca_file, cert, key}"
        raise ConfigError(explain("cluster.security", got=got, allowed=allowed, fix="use files, or kind slurm"))
