"""AttachedRun: the link to a run in another process, through the scheduler."""

from pathlib import Path

from dask_rl.pipeline.runs.job import TrainJob, load_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import Row
from dask_rl.pipeline.runs.train_result import TrainResult, load_result, result_so_far
from dask_rl.pipeline.runs.trained_policy import hash_checkpoint
from dask_rl.storage.checkpoints.store import CheckpointStore
from dask_rl.storage.errors import RunStateError, explain

from .control import Answer, RunState
from .scheduler_link import RunSummary, SchedulerLink


class AttachedRun:
    """A run in another process; the link of its handle."""

    def __init__(self, scheduler: SchedulerLink, run: RunSummary) -> None:
        self.name = run.name
        self.path = run.path
        self.job_directory: Path | None = run.path
        self.num_steps = run.num_steps
        self.client = scheduler.client
        self.address: str | None = scheduler.client.scheduler.address
        self._run_id = run.run_id
        self._host = run.host
        self._scheduler = scheduler

    def look(self) -> RunState:
        """Return what the run says about itself."""
        return self._scheduler.state(self._run_id)

    def rows(self) -> list[Row]:
        """Return the rows of its metrics.jsonl; of many train rows, some."""
        return list(self._scheduler.rows(self._run_id))

    def job(self) -> TrainJob:
        """Return what it trains, as its directory says; its imports are not run.

        Raises:
            RunStateError: this machine does not see the directory.
        """
        return load_job(self._directory().job_file)

    def ask(self, action: str) -> Answer:
        """Ask it for one of control.ACTIONS."""
        answer = self._scheduler.ask(self._run_id, action)
        if action != "checkpoint":
            return answer
        checked = Answer()
        answer.add_done_callback(lambda said: self._check(said, checked))
        return checked

    def wait_for_end(self, seconds: float) -> bool:
        """Wait at most so long; return whether it is over."""
        if self.look().is_over:
            return True
        self._scheduler.wait_for_news(seconds)
        return self.look().is_over

    def result(self) -> TrainResult:
        """Return what it came to, as its directory says.

        Raises:
            RunStateError: it failed or is lost, or went on since, or this machine does not see its directory.
        """
        state = self.look()
        if state.status == "interrupted":
            return self._interrupted_at(state.step)
        if state.status != "complete":
            got, fix = state.describe(self.num_steps), "train the same job again: it goes on"
            raise RunStateError(
                explain(f"result of run {self.name}", got=got, allowed="one that did not fail", fix=fix)
            )
        return load_result(self._directory())

    def _interrupted_at(self, step: int) -> TrainResult:
        """Return what its owner has as its result: the rows to that step, and the weights saved there."""
        run = self._directory()
        path = CheckpointStore(run.checkpoints).checkpoints().get(step)
        if path is None:
            got, fix = f"no checkpoint of step {step}, at which it was interrupted", "it went on since: attach again"
            raise RunStateError(explain(f"result of run {self.name}", got=got, fix=fix))
        return result_so_far(run, step, hash_checkpoint(path), interrupted=True)

    def _directory(self) -> RunDirectory:
        run = RunDirectory(self.path)
        if not run.job_file.is_file():
            got = f"{self.path} on {self._host}, which is not there on this machine"
            fix = "attach from a machine that shares the file system"
            raise RunStateError(explain(f"directory of run {self.name}", got=got, fix=fix))
        return run

    def _check(self, said: Answer, checked: Answer) -> None:
        """Pass an answer on where it names a checkpoint of this run: anybody on the scheduler may have sent it."""
        error = said.exception()
        if error is not None:
            checked.set_exception(error)
            return
        path = Path(str(said.result()))
        if path.parent == RunDirectory(self.path).checkpoints and ".." not in path.parts:
            checked.set_result(str(path))
            return
        got, allowed = str(path), f"a directory in {self.path / 'checkpoints'}"
        fix = "ask again; somebody else may have answered"
        checked.set_exception(
            RunStateError(explain(f"checkpoint of run {self.name}", got=got, allowed=allowed, fix=fix))
        )
