"""LiveRun: a handle on a run under way, whether it trains in this process or in another one."""

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from dask_rl.learners.batch import ModuleID
from dask_rl.learners.policy import Policy
from dask_rl.pipeline.rollouts.evaluate import EvaluationResult, evaluate
from dask_rl.pipeline.runs.chosen_evaluation import choose_evaluation
from dask_rl.pipeline.runs.module_choice import choose_module
from dask_rl.pipeline.runs.run_directory import RunDirectory, dataset_facts
from dask_rl.pipeline.runs.run_log import ROW_KINDS
from dask_rl.pipeline.runs.train_result import TrainResult
from dask_rl.pipeline.runs.trained_policy import find_checkpoint, load_checkpoint_policy
from dask_rl.storage.errors import CheckpointError, ConfigError, DaskRLError, RunStateError, explain
from dask_rl.storage.html import html_table

from .control import Status
from .curve_figure import draw_curves
from .live_progress import show_progress
from .run_link import RunLink, ask, left_alone, wait_for_end

if TYPE_CHECKING:
    import pandas

ANSWER_SECONDS = 120.0
"""Default bound on the wait for an answer."""
_TRIES = 3
"""To load a checkpoint: the run may have replaced it by a newer one meanwhile."""


class LiveRun:
    """A run under way. Made by `train(…, background=True)` and by `attach`.

    What it is asked for it does between two calls of its learners, 200 steps at most; until then, and during an
    evaluation of its own, the methods wait, `timeout_seconds` at most. Interrupting them ends the wait, not the run.
    """

    def __init__(self, link: RunLink) -> None:
        self._link = link

    @property
    def name(self) -> str:
        """The run's name: its directory's."""
        return self._link.name

    @property
    def path(self) -> Path:
        """The run's directory, on the machine that trains."""
        return self._link.path

    @property
    def num_steps(self) -> int:
        """Gradient steps of the whole run."""
        return self._link.num_steps

    @property
    def address(self) -> str | None:
        """Of the scheduler that it tells of itself, for `attach`; None where it has none, or none yet."""
        return self._link.address

    @property
    def status(self) -> Status:
        """starting, running, paused, evaluating or saving; at the end complete, interrupted, failed or lost."""
        return self._link.look().status

    @property
    def step(self) -> int:
        """Gradient steps done."""
        return self._link.look().step

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last evaluation; None before the first."""
        return self._link.look().score

    # -- control -------------------------------------------------------------------------------------------------

    def pause(self, timeout_seconds: float = ANSWER_SECONDS) -> int:
        """Have it wait where it is, with all in memory, until `resume`; return its step. No bit of its outcome changes.

        Raises:
            RunStateError: it is over.
            WaitTimeoutError: no answer in time; it pauses when it comes to that.
        """
        return int(ask(self._link, "pause", timeout_seconds))

    def resume(self, timeout_seconds: float = ANSWER_SECONDS) -> int:
        """Have it go on after `pause`; return its step. Raises as `pause` does."""
        return int(ask(self._link, "resume", timeout_seconds))

    def checkpoint(self, timeout_seconds: float = ANSWER_SECONDS) -> Path:
        """Have it save the step that it is at, and return the path; of a run that is over, its last one.

        It is one of those that the job's `checkpoint.keep_last` counts: copy what is to stay.

        Raises:
            RunStateError: it ended meanwhile, and failed.
            CheckpointError, OSError: it cannot be written, and the run goes on; or there is none.
            WaitTimeoutError: no answer in time.
        """
        if self._link.look().is_over:
            return find_checkpoint(RunDirectory(self.path)).absolute()
        return Path(ask(self._link, "checkpoint", timeout_seconds))

    def stop(self, timeout_seconds: float = ANSWER_SECONDS) -> Status:
        """Have it save the step that it is at and end; return its status: interrupted, or complete if it was faster.

        The same job resumes it, to the same bits. A `dask-rl train` process ends with 3.

        Raises:
            RunStateError: its process is lost.
            WaitTimeoutError: it is not over in time; it stops when it comes to that.
        """
        if not self._link.look().is_over:
            try:
                ask(self._link, "stop", timeout_seconds)
            except RunStateError:
                if self.status == "lost":
                    raise
        return self.wait(timeout_seconds)

    def wait(self, timeout_seconds: float | None = None) -> Status:
        """Wait for its end, however it comes, and return its status.

        Args:
            timeout_seconds: None waits as long as the run is alive.

        Raises:
            WaitTimeoutError: it is not over in time.
        """
        wait_for_end(self._link, timeout_seconds)
        return self._link.look().status

    def result(self, timeout_seconds: float | None = None) -> TrainResult:
        """Wait for its end and return what it came to, also where it was interrupted.

        Raises:
            WaitTimeoutError: it is not over in time.
            DaskRLError: what it failed with; of another process's run, RunStateError.
        """
        wait_for_end(self._link, timeout_seconds)
        return self._link.result()

    # -- what it learns ------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Show a live bar until it is over. Interrupting that leaves the run alone."""
        with left_alone(self._link, "its progress"):
            show_progress(self._link)

    def metrics(self, kind: str = "train") -> "pandas.DataFrame":
        """Return the rows of its metrics.jsonl of one kind: train, evaluation, event or dataset.

        Raises:
            ConfigError: another kind, or pandas is not installed.
        """
        if kind not in ROW_KINDS:
            raise ConfigError(explain("kind", got=repr(kind), allowed=", ".join(ROW_KINDS), fix="choose one"))
        try:
            import pandas
        except ImportError:
            got, fix = "a Python without pandas", "pip install 'dask-rl[notebook]'"
            raise ConfigError(explain("metrics()", got=got, fix=fix)) from None
        rows = [row for row in self._link.rows() if row.get("kind") == kind]
        return pandas.DataFrame(
            [{key: row[key] for key in row if key not in ("version", "run", "kind")} for row in rows]
        )

    def plot(self) -> Figure:
        """Return its losses and, where it was evaluated, its returns over the steps."""
        return draw_curves(self.name, self._link.rows())

    def policy(self, *, module_id: ModuleID | None = None, timeout_seconds: float = ANSWER_SECONDS) -> Policy:
        """Return its present policy: a function from one observation, or a batch, to actions, as Gymnasium takes them.

        Args:
            module_id: which module's; None: the only one's.
            timeout_seconds: bound on the wait for a checkpoint of the present step.

        Raises:
            CheckpointError: this machine does not see the run's checkpoints, or it is damaged. As `checkpoint` besides.
        """
        for tries_left in reversed(range(_TRIES)):
            path = self.checkpoint(timeout_seconds)
            try:
                return load_checkpoint_policy(path, module_id)[0]
            except CheckpointError:
                if path.is_dir() or not tries_left:
                    raise
        raise AssertionError("unreachable")

    def evaluate(
        self,
        num_episodes: int | None = None,
        *,
        environment: str | None = None,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> EvaluationResult:
        """Play with its present policy, on the client's workers or here; the training goes on meanwhile.

        Args:
            num_episodes: default: the job's.
            environment: Gymnasium id; default: the job's.
            timeout_seconds: bound on the wait for a checkpoint of the present step.

        Raises:
            ConfigError: neither the job nor the caller names an environment; that of another process's run would import
                a module that is not imported here.
            CheckpointError: as `policy` does.
        """
        job = self._link.job()
        given = {"num_episodes": num_episodes, "environment": environment}
        fix = 'name one: evaluate(environment="…")'
        config = choose_evaluation(job, given, directory=self._link.job_directory, fix=fix)
        module_id = choose_module(config.module_id, job.datasets, "evaluation.module_id")
        policy = self.policy(module_id=module_id, timeout_seconds=timeout_seconds)
        facts = dataset_facts(self._link.rows(), module_id).get("ref_scores")
        ref_scores = None if facts is None else (float(facts[0]), float(facts[1]))
        with left_alone(self._link, "an evaluation"):
            return evaluate(policy, config, ref_scores=ref_scores, client=self._link.client)

    # -- for people ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"LiveRun({self.name!r}, {self._described()})"

    def _repr_html_(self) -> str:
        rows = {"state": self._described(), "directory": self.path, "scheduler": self.address or "none"}
        return html_table(f"run {self.name}", rows)

    def _described(self) -> str:
        try:
            state = self._link.look()
        except DaskRLError:  # a repr that raises hides what it was for
            return "out of reach"
        score = "" if state.score is None else f", return {state.score:.6g}"
        return f"{state.describe(self.num_steps)}{score}"
