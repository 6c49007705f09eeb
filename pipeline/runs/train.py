"""Training: a job in, a run directory with its policy out. The same job again goes on where it was."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from distributed import Client
from pydantic import TypeAdapter, ValidationError

from dask_rl.learners.config import LearnerGroupConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.storage.checkpoint import CheckpointStore
from dask_rl.storage.errors import ConfigError, RunStateError, explain

from .clusters.opened import open_cluster
from .environments import check_environment
from .job import TrainJob, load_job
from .job_differences import MAY_CHANGE, job_differences
from .loggers.config import open_loggers
from .progress import Progress, no_progress
from .run_directory import RunDirectory, damaged, write_atomic
from .run_log import RunLog
from .stop_request import StopRequest
from .training import Training, TrainResult
from .training_data import TrainingData, open_training_data

MakeProgress = Callable[[str, int | None, str], Progress]


def train(
    job: TrainJob,
    *,
    client: Client | None = None,
    progress: MakeProgress = no_progress,
    stop: StopRequest | None = None,
) -> TrainResult:
    """Run a job to its end, from where an earlier start of it stopped; do nothing if it is complete.

    Args:
        job: what to train.
        client: the Dask client to use in place of the job's own cluster.
        progress: makes the progress display.
        stop: a request of the caller's own; SIGTERM and SIGINT set it too.

    Raises:
        ConfigError: the job does not fit its dataset, or differs from the one that the run began with.
        RunStateError: another process works on the run.
        DatasetError, LearnerError, WaitTimeoutError: see their docstrings; the same job resumes.
    """
    run = RunDirectory(job.run)
    with stop or StopRequest() as request:
        done = _finished(run, job)
        if done is not None:
            return done
        run.refuse_if_live()
        resolved = _resolve(run, job)
        data = open_training_data(resolved)
        if resolved.evaluation is not None:
            check_environment(data.modules[resolved.evaluated_module()].spec, resolved.evaluation)
        loggers = open_loggers(resolved, run)
        # Nothing is written before all of this fits together.
        with (
            _connect(resolved, client) as connected,
            _make_group(resolved, data, connected) as group,
            run.locked(),
            RunLog(run, loggers) as log,
            progress("train", job.num_steps, "steps") as display,
        ):
            _refuse_overtaken(run, job, resolved)
            write_atomic(run.path / "resolved.yaml", resolved.to_yaml())
            write_atomic(run.job_file, job.to_yaml())
            return Training(run, log, resolved, data, group, connected).to_end(request, display)


@contextlib.contextmanager
def _connect(job: TrainJob, client: Client | None) -> Iterator[Client | None]:
    if client is not None:
        yield client
        return
    # A cluster that we start has all its workers; an elastic group begins with those that another one has.
    is_ours = job.cluster.kind in ("local", "cuda", "in_process")
    needed = 1 if job.learners.elastic and not is_ours else max(1, job.learners.num_learners)
    num_cpus = job.learners.num_cpus_per_learner
    threads = max(job.cluster.threads_per_worker, num_cpus if isinstance(num_cpus, int) else 1)
    with open_cluster(job.cluster.model_copy(update={"threads_per_worker": threads}), num_workers=needed) as own:
        yield own


def _make_group(job: TrainJob, data: TrainingData, client: Client | None) -> LearnerGroup:
    config = LearnerGroupConfig(
        algorithm=job.algorithm,
        module_algorithms=job.modules,
        learners=job.learners,
        seed=job.seed,
        num_steps=job.num_steps,
    )
    name = RunDirectory(job.run).name
    return LearnerGroup(config, module_spec=data.module_spec, client=client, name=name)


def _finished(run: RunDirectory, job: TrainJob) -> TrainResult | None:
    """Return the result of a complete run of this very job."""
    if not run.is_complete:
        return None
    _refuse_changes(run, job)
    try:
        saved = TypeAdapter(TrainResult).validate_json(run.result_file.read_bytes())
    except ValidationError:
        fix = "delete it and run the same command again: it goes on from the last checkpoint"
        raise damaged(run.result_file, "something else", fix) from None
    return replace(saved, run=run.path)


def _resolve(run: RunDirectory, job: TrainJob) -> TrainJob:
    """Return the job without any auto, as it was resolved at the first start; before the first checkpoint, anew."""
    if CheckpointStore(run.checkpoints).latest() is None:
        return job.model_copy(update={"learners": job.learners.resolved(job.num_steps)})
    _refuse_changes(run, job)
    saved = _load_own(run.path / "resolved.yaml")
    return saved.model_copy(update={key: getattr(job, key) for key in MAY_CHANGE})


def _refuse_changes(run: RunDirectory, job: TrainJob) -> None:
    differences = job_differences(_load_own(run.job_file), job)
    if differences:
        raise ConfigError(
            explain(
                f"job of {run.path}",
                got=f"changes since the run began: {'; '.join(differences)}",
                allowed="the job that it began with",
                fix="undo them, or choose another directory for run",
            )
        )


def _load_own(file: Path) -> TrainJob:
    """Read a job that the run wrote itself: what is wrong with it is not the user's to correct."""
    try:
        return load_job(file)
    except ConfigError as error:
        raise damaged(file, str(error).splitlines()[0].rstrip(".")) from None


def _refuse_overtaken(run: RunDirectory, job: TrainJob, resolved: TrainJob) -> None:
    """Refuse a run that another process began while this one was starting: only now the lock is held."""
    if _resolve(run, job) != resolved:
        got, fix = "a start by another process meanwhile", "run the same command again"
        raise RunStateError(explain(f"run {run.path}", got=got, fix=fix))
