"""Training: a run under way, from its last checkpoint to its end."""

import contextlib
import json
from dataclasses import asdict
from typing import Any

from distributed import Client

from dask_rl.learners.checkpointable import State
from dask_rl.learners.group import LearnerGroup
from dask_rl.learners.metrics import merge_results
from dask_rl.learners.policy import Policy
from dask_rl.learners.saved_module import reading
from dask_rl.pipeline.rollouts.evaluate import evaluate
from dask_rl.storage.checkpoints.store import CheckpointStore
from dask_rl.storage.errors import (
    CheckpointError,
    DaskRLError,
    GroupLostError,
    LearnerError,
    WaitTimeoutError,
    explain,
)

from .initial_weights import load_initial_weights
from .job import TrainJob
from .learning_curve import curve_row, losses_of
from .live.control import RunControl
from .progress import Progress
from .run_directory import RunDirectory, write_atomic
from .run_log import RunLog
from .standardisation import normalizers_to_json
from .train_result import TrainResult, result_so_far
from .trained_policy import hash_weights
from .training_data import TrainingData

MIN_STEPS_PER_CALL, MAX_STEPS_PER_CALL = 25, 200
"""Bounds how long a stop signal and the progress bar wait."""
MAX_LOSSES_PER_CHECKPOINT = 3
"""How often all learners may be lost before the next checkpoint; slower than learners.max_restarts counts."""


class Training:
    """A run under way: it goes on through what befalls its learners, and saves what it can where it cannot."""

    def __init__(
        self,
        run: RunDirectory,
        log: RunLog,
        job: TrainJob,
        data: TrainingData,
        group: LearnerGroup,
        client: Client | None,
        control: RunControl,
    ) -> None:
        self._run = run
        self._log = log
        self._job = job
        self._data = data
        self._group = group
        self._client = client
        self._control = control
        keep = job.checkpoint
        self._store = CheckpointStore(run.checkpoints, keep_last=keep.keep_last, keep_best=keep.keep_best)
        self._step = 0
        self._saved_step = -1
        self._num_logged_events = 0
        self._lost_after = -1
        """The checkpoint after which all learners were lost."""
        self._num_losses = 0
        """How often that befell them."""
        self._every = min(max(MIN_STEPS_PER_CALL, job.num_steps // 100), MAX_STEPS_PER_CALL)

    def to_end(self, display: Progress) -> TrainResult:
        """Restore, train, evaluate, save; between two updates, do what the run's control was asked for.

        Raises:
            WorkersMissingError, RestartLimitError: learners were lost and could not be replaced.
            GroupLostError: all of them were lost, again and again before the next checkpoint.
            DaskRLError: an error of the algorithm or of the data. In each case what the learners that are left know
                is saved before.
        """
        self._group.crew.on_event = lambda event: self._note(display, str(event))
        while True:
            try:
                return self._go_on(display)
            except GroupLostError as error:
                self._begin_again(error)
            except DaskRLError:
                self._save_what_is_left()
                raise
            finally:
                self._log_events()

    def _go_on(self, display: Progress) -> TrainResult:
        """Train on from the last checkpoint."""
        self._restore()
        self._control.tell(status="running")
        while self._step < self._job.num_steps:
            self._control.serve(self._checkpoint)
            if self._control.stop.requested:
                break
            self._turn(display)
        checkpoint = self._checkpoint()
        result = self._result(interrupted=self._step < self._job.num_steps)
        self._control.end("interrupted" if result.interrupted else "complete", checkpoint=checkpoint)
        return result

    def _checkpoint(self) -> str:
        """Save the step that the run is at, where that has not been done, and return the path."""
        if self._saved_step != self._step:
            self._save()
        path = self._store.latest()
        assert path is not None
        return str(path.absolute())

    def _begin_again(self, loss: GroupLostError) -> None:
        """Start other learners after a loss that nobody survived, or raise that loss."""
        self._num_losses = self._num_losses + 1 if self._lost_after == self._saved_step else 1
        self._lost_after = self._saved_step
        if self._num_losses > MAX_LOSSES_PER_CHECKPOINT:
            raise loss
        self._group.restart()

    def _turn(self, display: Progress) -> None:
        metrics = self._advance()
        self._show(display, metrics)
        if self._evaluation_is_due or _due(self._step, self._job.checkpoint.every_steps):
            self._save()  # before the evaluation: whatever becomes of that, the steps are kept
        if self._evaluation_is_due:
            self._evaluate()
            self._show(display, metrics)

    def _save_what_is_left(self) -> None:
        """Save the state of the learners that are left, which may stand in the middle of a call."""
        with contextlib.suppress(LearnerError, WaitTimeoutError):  # nobody: the last checkpoint stands
            state = self._group.get_surviving_state()
            self._step = int(state["learner"]["counters"]["step"])
            if self._step > max(self._saved_step, 0):
                self._save(state)

    def _log_events(self) -> None:
        """Record what befell the group since the last time."""
        events = self._group.events
        for event in events[self._num_logged_events :]:
            self._log.append("event", self._step, {"name": event.name, **event.details})
        self._num_logged_events = len(events)

    def _note(self, display: Progress, event: str) -> None:
        self._control.tell(event=event)
        display.note(event)

    def _show(self, display: Progress, metrics: dict[str, Any]) -> None:
        last = self._control.state.score
        score = {} if last is None else {"return": last}
        display.update(self._step, None, **losses_of(metrics), **score)

    def _restore(self) -> None:
        if self._store.latest() is None:
            self._step, self._saved_step = 0, -1
            if weights := load_initial_weights(self._job, self._data.module_spec):
                self._group.set_weights(weights, force=True)
            self._log.begin(-1)
            self._log.append("dataset", 0, self._data.facts)
            return
        state, metadata = self._store.load()
        with reading(self._store.directory):
            step = int(metadata["step"])
            _check_iterators(state, step)
        self._group.set_state(state)
        self._step = self._saved_step = step
        self._log.begin(self._step)
        evaluations = self._run.rows("evaluation")
        self._control.tell(step=step, score=evaluations[-1]["return_mean"] if evaluations else None)
        self._log.append("event", self._step, {"name": "resumed"})
        if self._evaluation_is_due and metadata.get("score") is None:
            self._evaluate()

    def _advance(self) -> dict[str, Any]:
        """Take steps up to the next point of the curve, evaluation or checkpoint."""
        evaluation = self._job.evaluation
        periods = (self._every, self._job.checkpoint.every_steps, evaluation.every_steps if evaluation else None)
        ends = [(self._step // period + 1) * period for period in periods if period]
        num_iters = min(*ends, self._job.num_steps) - self._step
        results = self._group.update_from_iterators(self._data.data, num_iters=num_iters)
        self._step += num_iters
        self._log_events()
        metrics = curve_row(merge_results(results), self._data.epochs(self._step * self._job.batch_size))
        self._control.tell(step=self._step, losses=losses_of(metrics))
        self._log.append("train", self._step, metrics)
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
        with self._control.doing("evaluating"):
            result = evaluate(policy, config, ref_scores=data.ref_scores, client=self._client)
        if not any(row["step"] == self._step for row in self._run.rows("evaluation")):
            named = {"module_id": module_id} if len(self._data.modules) > 1 else {}
            self._log.append("evaluation", self._step, named | result.summary())
        self._control.tell(score=result.return_mean)
        with self._control.doing("saving"):
            self._store.set_score(self._step, result.return_mean)

    def _save(self, state: State | None = None) -> None:
        modules = self._data.modules
        metadata = self._group.get_metadata() | {
            "content_hash": {module_id: module.content_hash for module_id, module in modules.items()},
            "normalize": {module_id: normalizers_to_json(module.normalize) for module_id, module in modules.items()},
        }
        with self._control.doing("saving"):
            self._store.save(self._step, state or self._group.get_state(), metadata)
        self._saved_step = self._step

    def _result(self, *, interrupted: bool) -> TrainResult:
        weights_hash = hash_weights(self._group.get_weights())
        result = result_so_far(self._run, self._step, weights_hash, interrupted=interrupted)
        if not interrupted:
            write_atomic(self._run.result_file, json.dumps({**asdict(result), "run": str(self._run.path)}))
        return result


def _check_iterators(state: State, step: int) -> None:
    """Refuse a checkpoint whose data are not where its weights are."""
    found = {key: iterator["step"] for key, iterator in state["learner"]["iterators"].items()}
    if any(position != step for position in found.values()) or (step and not found):
        fix = "delete this checkpoint: the run goes on from the one before"
        raise CheckpointError(explain("iterators", got=found, allowed=f"all at step {step}", fix=fix))


def _due(step: int, period: int | None) -> bool:
    return period is not None and step % period == 0
