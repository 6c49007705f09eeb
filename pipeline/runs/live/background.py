"""Runs in a thread of this process: their handles, and their end with it."""

import atexit
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from distributed import Client

from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import Row
from dask_rl.pipeline.runs.train_result import TrainResult

from .control import Answer, RunControl, RunState
from .live_run import LiveRun

EXIT_SECONDS = 60.0
"""Bound on the wait for the runs' last checkpoints when the process ends."""

_under_way: dict[str, "BackgroundRun"] = {}
"""By run id."""


class BackgroundRun:
    """A run in a thread of its own; the link of its handle."""

    def __init__(
        self,
        train: Callable[[], TrainResult],
        run: RunDirectory,
        job: TrainJob,
        control: RunControl,
        client: Client | None,
    ) -> None:
        self.name = run.name
        self.path = run.path.absolute()
        self.num_steps = job.num_steps
        self.client = client
        self.job_directory: Path | None = None
        self._train = train
        self._run = RunDirectory(self.path)  # wherever the process goes meanwhile
        self._job = job
        self._control = control
        self._outcome: Future[TrainResult] = Future()
        # As a daemon it does not hold up the end of the process, which stops the run before.
        self._thread = threading.Thread(target=self._work, name=f"dask-rl run {run.name}", daemon=True)

    @property
    def address(self) -> str | None:
        """Of the scheduler that it tells of itself; None: of none, or not yet."""
        return self._control.address

    def start(self) -> None:
        """Begin."""
        _under_way[self._control.run_id] = self
        self._thread.start()

    def _work(self) -> None:
        try:
            result = self._train()
        except BaseException as error:  # whoever asks for the result gets it
            _say(f"run {self.name} {self.look().describe(self.num_steps)}; run.result() raises the error")
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(result)
        finally:
            _under_way.pop(self._control.run_id, None)

    def look(self) -> RunState:
        """Return what the run says about itself."""
        return self._control.state

    def rows(self) -> list[Row]:
        """Return the rows of its metrics.jsonl."""
        return list(self._run.rows())

    def job(self) -> TrainJob:
        """Return what it trains."""
        return self._job

    def ask(self, action: str) -> Answer:
        """Ask it for one of control.ACTIONS."""
        return self._control.ask(action)

    def wait_for_end(self, seconds: float) -> bool:
        """Wait at most so long; return whether it is over and has let go of everything."""
        return bool(wait([self._outcome], seconds).done)

    def result(self) -> TrainResult:
        """Return what it came to, or raise what it failed with."""
        return self._outcome.result()


def start_in_background(
    train: Callable[[], TrainResult], run: RunDirectory, job: TrainJob, control: RunControl, client: Client | None
) -> LiveRun:
    """Start a run in a thread and return its handle.

    Args:
        train: runs it to its end.
        run: its directory.
        job: what it trains.
        control: what it listens to.
        client: the client that the caller gave, for evaluations.
    """
    link = BackgroundRun(train, run, job, control, client)
    link.start()
    return LiveRun(link)


def stop_all(seconds: float = EXIT_SECONDS) -> None:
    """Stop the runs of this process, each with a checkpoint, and say so; at its end that is done by itself."""
    runs = list(_under_way.values())
    deadline = time.monotonic() + seconds
    for run in runs:
        _say(f"this process ends, so run {run.name} is stopped; it is {run.look().describe(run.num_steps)}")
        run.ask("stop")
    for run in runs:
        try:
            is_over = run.wait_for_end(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:  # in a hurry: the last checkpoint stands
            return
        state = run.look().describe(run.num_steps)
        if not is_over:
            state += f" after {seconds:g} s"
        _say(f"run {run.name} is {state}" + ("" if run.look().status == "complete" else "; the same job resumes it"))


def _stop_at_exit() -> None:
    if _under_way and threading.current_thread() is threading.main_thread():
        # A notebook server waits for a moment only, then sends SIGTERM: what that asks for is under way.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stop_all()


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed by then
        sys.stderr.write(f"dask-rl: {line}\n")
        sys.stderr.flush()


# Before atexit's functions, at which the pools of concurrent.futures take no more work, and Dask closes its clusters.
getattr(threading, "_register_atexit", atexit.register)(_stop_at_exit)
