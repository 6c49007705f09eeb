"""The whole story on one machine: collect data, train on it, evaluate, report. Nothing is downloaded."""

import os
import time
from pathlib import Path
from typing import Any

import yaml
from distributed import Client
from pydantic import BaseModel, ConfigDict, Field

from dask_rl.learners.config import Seed
from dask_rl.pipeline.rollouts.collect import CollectConfig, collect
from dask_rl.pipeline.runs.clusters.config import ClusterConfig
from dask_rl.pipeline.runs.clusters.opened import open_cluster
from dask_rl.pipeline.runs.job import TrainJob, parse_job
from dask_rl.pipeline.runs.progress import no_progress
from dask_rl.pipeline.runs.run_directory import RunDirectory, write_atomic
from dask_rl.pipeline.runs.train import MakeProgress, train
from dask_rl.pipeline.runs.train_result import TrainResult
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError, explain

from .report import write_report

ENVIRONMENT = "Pendulum-v1"
EVALUATION_SEED = 10_000
"""Far from the seeds of the data: the policy is judged on starts that it has not seen."""


class DemoConfig(BaseModel):
    """Sizes of the demo; the defaults take about a minute on two cores."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    num_episodes: int = Field(100, ge=1)
    """Episodes to collect, of 200 steps each."""
    action_noise: float = Field(0.7, ge=0)
    """Noise of the controller that collects, in half ranges: enough to leave the policy something to improve."""
    num_steps: int = Field(3000, ge=1)
    """Gradient steps."""
    num_learners: int = Field(2, ge=0)
    """Learner processes; 0: all in this process."""
    num_evaluation_episodes: int = Field(20, ge=1)
    """Episodes of each evaluation."""
    seed: Seed = 0
    """Seed of the data and of the training."""


def run_demo(
    directory: str | os.PathLike[str],
    *,
    config: DemoConfig | None = None,
    progress: MakeProgress = no_progress,
) -> dict[str, Any]:
    """Collect Pendulum-v1 data with a noisy swing-up controller, train IQL on it, evaluate, write the report.

    What an earlier call in the same directory has done is not done again: an interrupted demo goes on, a complete
    one is only reported.

    Args:
        directory: holds the dataset, the job and the run afterwards.
        config: sizes and seed.
        progress: makes the progress displays.

    Returns:
        Paths (dataset, job, run, report), mean returns of the data and of the policy, steps, seconds; JSON-able.

    Raises:
        ConfigError: the directory cannot be written, or holds a demo of other sizes.
    """
    began = time.monotonic()
    config = config or DemoConfig()
    root = _make_directory(Path(directory).absolute())
    run, path, job_file = RunDirectory(root / "run"), root / "pendulum.zarr", root / "job.yaml"
    was_complete = path.exists() and run.is_complete
    in_process = was_complete or config.num_learners == 0
    cluster = ClusterConfig(kind="in_process" if in_process else "local")
    with open_cluster(cluster, num_workers=max(1, config.num_learners)) as client:
        with _open_data(path, config, client, progress) as dataset:
            data = dataset.describe()
        job = _write_job(job_file, path, run.path, config)
        result = train(job, client=client, progress=progress)
    return {
        "directory": str(root),
        "dataset": str(path),
        "job": str(job_file),
        "run": str(run.path),
        "report": str(write_report(run)),
        "num_episodes": data["num_episodes"],
        "num_transitions": data["num_steps"],
        "data_return_mean": data["return_mean"],
        **_policy(result),
        "num_learners": config.num_learners,
        "was_complete": was_complete,
        "interrupted": result.interrupted,
        "seconds": round(time.monotonic() - began, 1),
    }


def describe_demo(values: dict[str, Any]) -> str:
    """Return what `run_demo` returned as text: what came out, where it lies, how to go on."""
    here = {key: _short(values[key]) for key in ("directory", "dataset", "job", "run", "report")}
    data = f"{values['num_episodes']:,} episodes, {values['num_transitions']:,} steps"
    learned = f"{values['num_steps']:,} steps with {values['num_learners']} learners"
    if values["interrupted"]:
        return f"interrupted after {learned}; `dask-rl demo {here['directory']}` goes on"
    error = values["policy_return_standard_error"]
    spread = "" if error is None else f" ± {error:.1f}"
    over = f"over {values['num_evaluation_episodes']} episodes"
    took = "was complete, nothing was done again" if values["was_complete"] else f"took {values['seconds']:.0f} s"
    return "\n".join(
        [
            f"data    mean return {values['data_return_mean']:.1f}  ({data}: {here['dataset']})",
            f"policy  mean return {values['policy_return_mean']:.1f}{spread} {over}  ({learned}: {here['run']})",
            f"report  {here['report']}",
            f"{took}; go on with",
            f"  dask-rl data info {here['dataset']}",
            f"  dask-rl eval {here['run']} --episodes 50",
            f"  dask-rl train {here['job']} --set run={here['directory']}/other --set algorithm.expectile=0.9",
        ]
    )


def _make_directory(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            explain(
                "directory of the demo",
                got=f"{directory}: {error.strerror or error}",
                allowed="a directory that can be written",
                fix="name another: dask-rl demo DIRECTORY",
            )
        ) from None
    return directory


def _open_data(path: Path, config: DemoConfig, client: Client | None, progress: MakeProgress) -> OfflineDataset:
    collecting = CollectConfig(
        environment=ENVIRONMENT,
        policy="pendulum-swing-up",
        action_noise=config.action_noise,
        num_episodes=config.num_episodes,
        seed=config.seed,
    )
    if not path.exists():
        with progress("collect", config.num_episodes, "episodes") as display:
            return collect(collecting, path, client=client, progress=display.update)
    dataset = OfflineDataset.open(path)
    wanted = collecting.model_dump(
        mode="json", include={"environment", "policy", "action_noise", "num_episodes", "seed"}
    )
    got = {key: dataset.provenance.get(key) for key in wanted}
    if got != wanted:
        dataset.close()
        raise ConfigError(
            explain(
                str(path), got=f"data with {got}", allowed=wanted, fix="name another directory: dask-rl demo DIRECTORY"
            )
        )
    return dataset


def _write_job(file: Path, dataset: Path, run: Path, config: DemoConfig) -> TrainJob:
    """Write the job as a user would write it, unless it is there, and return it."""
    settings = {
        "dataset": str(dataset),
        "algorithm": {"name": "iql", "hidden_sizes": [128, 128], "learning_rate": 1e-3},
        "num_steps": config.num_steps,
        "batch_size": 256,
        "seed": config.seed,
        "data": {"reward_scale": 0.1},
        "learners": {"num_learners": config.num_learners},
        "evaluation": {
            "environment": ENVIRONMENT,
            "num_episodes": config.num_evaluation_episodes,
            "every_steps": max(1, config.num_steps // 4),
            "seed": EVALUATION_SEED,
        },
        "checkpoint": {"every_steps": max(1, config.num_steps // 4)},
        "run": str(run),
    }
    text = "# Train again, or with other settings: dask-rl train THIS_FILE --set run=ELSEWHERE\n"
    text += yaml.safe_dump(settings, sort_keys=False, default_flow_style=None)
    if not file.exists():
        write_atomic(file, text)
    return parse_job(text)


def _policy(result: TrainResult) -> dict[str, Any]:
    evaluation = result.evaluation or {}
    return {
        "num_steps": result.num_steps,
        "policy_return_mean": evaluation.get("return_mean"),
        "policy_return_standard_error": evaluation.get("return_standard_error"),
        "num_evaluation_episodes": evaluation.get("num_episodes"),
        "weights_hash": result.weights_hash,
    }


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
