"""Training: a job in, a run directory with its policy out. The same job again goes on where it was."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, overload

from distributed import Client

from dask_rl.learners.batch import ModuleID
from dask_rl.learners.config import LearnerGroupConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.workers import WorkerPool
from dask_rl.pipeline.dashboard import page_of
from dask_rl.pipeline.rollouts.environments import check_environment
from dask_rl.storage.checkpoints.store import CheckpointStore
from dask_rl.storage.errors import ConfigError, RunStateError, explain

from .clusters.config import JOINED_KINDS
from .clusters.opened import open_cluster
from .current_client import current_here
from .job import TrainJob, load_job
from .job_differences import job_differences
from .live.background import start_in_background
from .live.control import RunControl
from .live.dask_logger import DaskLogger
from .live.live_run import LiveRun
from .loggers.config import open_loggers
from .own_session import keep_interrupts_away
from .progress import Progress, no_progress
from .run_directory import RunDirectory, damaged, write_atomic
from .run_log import RunLog, RunLogger
from .saved_data import SavedData, load_saved_data
from .stop_request import StopRequest
from .train_result import TrainResult, load_result
from .trained_policy import find_checkpoint
from .training import Training
from .training_data import TrainingData, open_training_data

MakeProgress = Callable[[str, int | None, str], Progress]

_STARTING = threading.RLock()
"""Held while a run starts its cluster and its learners: it sets what is one for the whole process meanwhile, and two
would choose the same workers."""


@overload
def train(
    job: TrainJob,
    *,
    client: Client | None = None,
    progress: MakeProgress = no_progress,
    stop: StopRequest | None = None,
    background: Literal[False] = False,
) -> TrainResult: ...


@overload
def train(
    job: TrainJob,
    *,
    client: Client | None = None,
    progress: MakeProgress = no_progress,
    stop: StopRequest | None = None,
    background: Literal[True],
) -> LiveRun: ...


def train(
    job: TrainJob,
    *,
    client: Client | None = None,
    progress: MakeProgress = no_progress,
    stop: StopRequest | None = None,
    background: bool = False,
) -> TrainResult | LiveRun:
    """Run a job to its end, from where an earlier start of it stopped; do nothing if it is complete.

    Wherever it has a client, other processes on the same scheduler can follow and control it with `attach`.

    Args:
        job: what to train.
        client: the Dask client to use in place of the job's own cluster.
        progress: makes the progress display.
        stop: a request of the caller's own; SIGTERM and SIGINT set it too.
        background: return a handle at once and train in a thread of this process. Keep `client` open until it is
            over; at the end of the process it is stopped with a checkpoint.

    Raises:
        ConfigError: the job differs from the one that the run began with, or does not fit its dataset; in the
            background, other runs have the client's workers.
        RunStateError: another process works on the run, or this one does in the background.
        DatasetError, LearnerError, WaitTimeoutError: see their docstrings; the same job resumes.

    In the background a changed job and a run that is at work are errors at once; all others are raised by the
    handle's `result`.
    """
    run = RunDirectory(job.run)
    control = RunControl(run.name, job.num_steps, stop)
    if not background:
        return _train(run, job, client, progress, control)
    run = RunDirectory(run.path.absolute())  # wherever the process goes meanwhile
    if _finished(run, job) is None:
        run.refuse_if_live()
        _resolve(run, job)
    run_to_end = functools.partial(_train, run, job, client, progress, control, in_background=True)
    return start_in_background(run_to_end, run, job, control, client)


def _train(
    run: RunDirectory,
    job: TrainJob,
    client: Client | None,
    progress: MakeProgress,
    control: RunControl,
    *,
    in_background: bool = False,
) -> TrainResult:
    with control.stop, control.failing():
        done = _finished(run, job)
        if done is not None:
            control.tell(step=done.num_steps, score=(done.evaluation or {}).get("return_mean"))
            control.end("complete", checkpoint=str(find_checkpoint(run).absolute()))
            return done
        run.refuse_if_live()
        resolved = _resolve(run, job)
        saved = load_saved_data(run, resolved.datasets)
        data = open_training_data(resolved, saved)
        if resolved.evaluation is not None:
            check_environment(data.modules[resolved.evaluated_module()].spec, resolved.evaluation)
        loggers = open_loggers(resolved, run)
        # Nothing is written before all of this fits together.
        with (
            progress("train", job.num_steps, "steps") as display,
            _learners(resolved, data, client, in_background, control.stop, display) as (connected, group),
            run.locked(),
            RunLog(run, [*loggers, *_dask_loggers(run, resolved, control, connected, group)]) as log,
            control.failing(),  # before the loggers are closed, which say so
        ):
            _refuse_overtaken(run, job, resolved, saved, data)
            write_atomic(run.path / "resolved.yaml", resolved.to_yaml())
            write_atomic(run.job_file, job.to_yaml())
            if connected is not None:
                control.address = connected.scheduler.address
                if client is None and resolved.cluster.kind not in JOINED_KINDS:
                    display.note(f"dashboard: {page_of(connected)}; attach to {control.address}")
            return Training(run, log, resolved, data, group, connected, control).to_end(display)


def _dask_loggers(
    run: RunDirectory, job: TrainJob, control: RunControl, client: Client | None, group: LearnerGroup
) -> list[RunLogger]:
    """Return who tells the scheduler about the run, where there is one."""
    return [] if client is None else [DaskLogger(client, run, job, control, group.identity.group_id)]


@contextlib.contextmanager
def _learners(
    job: TrainJob, data: TrainingData, client: Client | None, in_background: bool, stop: StopRequest, display: Progress
) -> Iterator[tuple[Client | None, LearnerGroup]]:
    """Give the client, if there is one, and the learners; all is closed at the end but a client that was given."""
    with contextlib.ExitStack() as stack:
        with _STARTING:
            connected = stack.enter_context(_connect(job, client, in_background, stop))
            if in_background and connected is not None and job.learners.num_learners:
                _refuse_shared_workers(job, connected)
            if num_learners := job.learners.num_learners:  # it takes seconds, in which nothing else is shown
                display.note(f"starting {num_learners} learner{'s' * (num_learners > 1)}")
            group = stack.enter_context(_make_group(job, data, connected))
        yield connected, group


def _refuse_shared_workers(job: TrainJob, client: Client) -> None:
    """Refuse workers that have learners already: two groups that update at once would wait for each other."""
    needed = 1 if job.learners.elastic else job.learners.num_learners
    free = WorkerPool(client, job.learners).wait_for(needed, (), job.learners.workers_timeout_seconds)
    if len(free) < needed:
        raise ConfigError(
            explain(
                f"workers for run {job.run}",
                got=f"{len(free)} without a learner of another run or group",
                allowed=f"at least {needed}, one per learner",
                fix="start more workers, or wait for the end of the other",
            )
        )


@contextlib.contextmanager
def _connect(job: TrainJob, client: Client | None, in_background: bool, stop: StopRequest) -> Iterator[Client | None]:
    if client is not None:
        keep_interrupts_away(client)
        with current_here(client):
            yield client
        return
    config, needed = job.cluster.for_learners(job.learners), max(1, job.learners.num_learners)
    # A cluster on this machine has all its workers at once; an elastic group begins with those that others have.
    if job.learners.elastic and config.kind not in ("local", "cuda", "in_process"):
        config, needed = config.model_copy(update={"num_workers": config.num_workers or needed}), 1
    options: dict[str, Any] = {"set_as_default": not in_background, "is_stopped": lambda: stop.requested}
    with open_cluster(config, num_workers=needed, **options) as own, current_here(own):
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
    return load_result(run)


def _resolve(run: RunDirectory, job: TrainJob) -> TrainJob:
    """Return the job without any auto, as it was resolved at the first start; before the first checkpoint, anew."""
    if CheckpointStore(run.checkpoints).latest() is None:
        return job.model_copy(update={"learners": job.learners.resolved(job.num_steps)})
    _refuse_changes(run, job)
    # Of that file only what was auto counts: the rest stands in the user's own job, and the file may be a stranger's.
    saved = _load_own(run.path / "resolved.yaml").learners
    decided = {key: getattr(saved, key) for key, value in job.learners if value == "auto"}
    return job.model_copy(update={"learners": job.learners.model_copy(update=decided)})


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


def _refuse_overtaken(
    run: RunDirectory,
    job: TrainJob,
    resolved: TrainJob,
    saved: Mapping[ModuleID, SavedData] | None,
    data: TrainingData,
) -> None:
    """Refuse a run that another process began while this one was starting: only now the lock is held."""
    goes_on = _resolve(run, job) == resolved
    now = load_saved_data(run, resolved.datasets)
    # Of data that grew between the two starts, that one has other rows: its first checkpoint decides.
    goes_on &= saved is None if now is None else data.continues(now)
    if not goes_on:
        got, fix = "a start by another process meanwhile", "run the same command again"
        raise RunStateError(explain(f"run {run.path}", got=got, fix=fix))
