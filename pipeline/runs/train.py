"""Training: a job in, a run directory with its policy out. The same job again goes on where it was."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Client
from pydantic import TypeAdapter, ValidationError

from dask_rl.learners.config import LearnerGroupConfig
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.metrics import merge_results
from dask_rl.learners.policy import Policy
from dask_rl.learners.saved_module import reading
from dask_rl.storage.checkpoint import CheckpointStore
from dask_rl.storage.errors import CheckpointError, ConfigError, RunStateError, explain

from .cluster import open_cluster
from .environments import check_environment
from .evaluate import evaluate
from .job import TrainJob, job_differences, load_job
from .learning_curve import curve_row, losses_of
from .progress import Progress, no_progress
from .run_directory import RunDirectory, damaged, write_atomic
from .stop_request import StopRequest
from .trained_policy import by_module, hash_weights
from .training_data import TrainingData, open_training_data

MIN_STEPS_PER_CALL, MAX_STEPS_PER_CALL = 25, 200
"""Bounds how long a stop signal and the progress bar wait."""

MakeProgress = Callable[[str, int | None, str], Progress]


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    num_steps: int
    """Gradient steps done, over all starts of the run."""
    run: Path
    """The run's directory."""
    final_metrics: dict[str, Any]
    """The last row of the learning curve."""
    evaluation: dict[str, Any] | None
    """Return mean, standard error and number of episodes of the last evaluation."""
    weights_hash: str
    """sha256 over the weights in name order: the same for bit-identical runs."""
    interrupted: bool = False
    """Whether a signal stopped it; the same job resumes."""


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
        # Nothing is written before all of this fits together.
        with (
            _connect(resolved, client) as connected,
            _make_group(resolved, data, connected) as group,
            run.locked(),
            progress("train", job.num_steps, "steps") as display,
        ):
            _refuse_overtaken(run, job, resolved)
            write_atomic(run.path / "resolved.yaml", resolved.to_yaml())
            write_atomic(run.job_file, job.to_yaml())
            return _Training(run, resolved, data, group, connected).to_end(request, display)


@contextlib.contextmanager
def _connect(job: TrainJob, client: Client | None) -> Iterator[Client | None]:
    if client is not None:
        yield client
        return
    with open_cluster(job.cluster, num_workers=max(1, job.learners.num_learners)) as own:
        yield own


def _make_group(job: TrainJob, data: TrainingData, client: Client | None) -> LearnerGroup:
    config = LearnerGroupConfig(
        algorithm=job.algorithm,
        module_algorithms=job.modules,
        learners=job.learners,
        seed=job.seed,
        num_steps=job.num_steps,
    )
    return LearnerGroup(config, module_spec=data.module_spec, client=client)


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
    return _load_own(run.path / "resolved.yaml")


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


class _Training:
    """A run under way."""

    def __init__(
        self, run: RunDirectory, job: TrainJob, data: TrainingData, group: LearnerGroup, client: Client | None
    ) -> None:
        self._run = run
        self._job = job
        self._data = data
        self._group = group
        self._client = client
        keep = job.checkpoint
        self._store = CheckpointStore(run.checkpoints, keep_last=keep.keep_last, keep_best=keep.keep_best)
        self._step = 0
        self._saved_step = -1
        self._score: float | None = None
        self._every = min(max(MIN_STEPS_PER_CALL, job.num_steps // 100), MAX_STEPS_PER_CALL)

    def to_end(self, request: StopRequest, display: Progress) -> TrainResult:
        """Restore, train, evaluate, save."""
        self._restore()
        while self._step < self._job.num_steps and not request.requested:
            metrics = self._advance()
            self._show(display, metrics)
            if self._evaluation_is_due or _due(self._step, self._job.checkpoint.every_steps):
                self._save(None)  # before the evaluation: whatever becomes of that, the steps are kept
            if self._evaluation_is_due:
                self._evaluate()
                self._show(display, metrics)
        if self._saved_step != self._step:
            self._save(None)
        return self._result(interrupted=self._step < self._job.num_steps)

    def _show(self, display: Progress, metrics: dict[str, Any]) -> None:
        score = {} if self._score is None else {"return": self._score}
        display.update(self._step, None, **losses_of(metrics), **score)

    def _restore(self) -> None:
        if self._store.latest() is None:
            self._run.cut_after(-1)
            self._run.append("dataset", 0, self._data.facts)
            return
        state, metadata = self._store.load()
        with reading(self._store.directory):
            self._refuse_other_data(by_module(metadata["content_hash"], self._data.modules))
            step = int(metadata["step"])
        self._group.set_state(state)
        self._step = self._saved_step = step
        self._run.cut_after(self._step)
        self._run.append("event", self._step, {"name": "resumed"})
        if self._evaluation_is_due and metadata.get("score") is None:
            self._evaluate()

    def _refuse_other_data(self, saved: Mapping[str, str]) -> None:
        for module_id, module in self._data.modules.items():
            if saved[module_id] != module.content_hash:
                raise CheckpointError(
                    explain(
                        f"dataset {self._job.datasets[module_id]}",
                        got=f"content hash {module.content_hash[:12]}",
                        allowed=f"{saved[module_id][:12]}, with which the run began",
                        fix="restore that dataset, or start a new run",
                    )
                )

    def _advance(self) -> dict[str, Any]:
        """Take steps up to the next point of the curve, evaluation or checkpoint."""
        evaluation = self._job.evaluation
        periods = (self._every, self._job.checkpoint.every_steps, evaluation.every_steps if evaluation else None)
        ends = [(self._step // period + 1) * period for period in periods if period]
        num_iters = min(*ends, self._job.num_steps) - self._step
        results = self._group.update_from_iterators(self._data.data, num_iters=num_iters)
        self._step += num_iters
        metrics = curve_row(merge_results(results), self._data.epochs(self._step * self._job.batch_size))
        self._run.append("train", self._step, metrics)
        return metrics

    @property
    def _evaluation_is_due(self) -> bool:
        config = self._job.evaluation
        return config is not None and (self._step == self._job.num_steps or _due(self._step, config.every_steps))

    def _evaluate(self) -> None:
        """Evaluate and give the checkpoint of this step its score; a start that died in between evaluates again."""
        config = self._job.evaluation
        if config is None:
            return
        module_id = self._job.evaluated_module()
        data = self._data.modules[module_id]
        weights = self._group.get_weights([module_id], inference_only=True)[module_id]
        policy = Policy(data.spec, self._job.algorithm_of(module_id), weights, data.normalize)
        result = evaluate(policy, config, ref_scores=data.ref_scores, client=self._client)
        if not any(row["step"] == self._step for row in self._run.rows("evaluation")):
            named = {"module_id": module_id} if len(self._data.modules) > 1 else {}
            self._run.append("evaluation", self._step, named | result.summary())
        self._score = result.return_mean
        self._save(self._score)

    def _save(self, score: float | None) -> None:
        modules = self._data.modules
        metadata = self._group.get_metadata() | {
            "content_hash": {module_id: module.content_hash for module_id, module in modules.items()},
            "normalize": {
                module_id: None if module.normalize is None else module.normalize.to_json()
                for module_id, module in modules.items()
            },
        }
        self._store.save(self._step, self._group.get_state(), metadata, score=score)
        self._saved_step = self._step

    def _result(self, *, interrupted: bool) -> TrainResult:
        rows = self._run.rows()
        evaluations = [row for row in rows if row["kind"] == "evaluation"]
        curve = [row for row in rows if row["kind"] == "train"]
        result = TrainResult(
            num_steps=self._step,
            run=self._run.path,
            final_metrics=_without_row_keys(curve[-1]) if curve else {},
            evaluation=_without_row_keys(evaluations[-1]) if evaluations else None,
            weights_hash=hash_weights(self._group.get_weights()),
            interrupted=interrupted,
        )
        if not interrupted:
            write_atomic(self._run.result_file, json.dumps({**asdict(result), "run": str(self._run.path)}))
        return result


def _due(step: int, period: int | None) -> bool:
    return period is not None and step % period == 0


def _without_row_keys(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("version", "run", "time", "kind")}
