"""RunLink: how a handle reaches its run; and waits on it, which end with a sentence about the run."""

import concurrent.futures
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from distributed import Client

from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.run_log import Row
from dask_rl.pipeline.runs.train_result import TrainResult
from dask_rl.storage.errors import RunStateError, WaitTimeoutError, explain

from .control import Answer, RunState

LOOK_EVERY_SECONDS = 0.5
LAST_WORDS_SECONDS = 3.0
"""How long an answer may come after the news that the run is over."""


class RunLink(Protocol):
    """How a handle reaches its run."""

    name: str
    path: Path
    """The run's directory, on the machine that trains."""
    num_steps: int
    client: Client | None
    """Where evaluations play; None: in this process."""
    job_directory: Path | None
    """Where `job` is read, so that it may be a stranger's; None: it is that of the caller."""

    @property
    def address(self) -> str | None:
        """Of the scheduler that the run tells of itself; None: of none, or not yet."""
        ...

    def look(self) -> RunState:
        """Return what the run says about itself."""
        ...

    def rows(self) -> list[Row]:
        """Return the rows of its metrics.jsonl."""
        ...

    def job(self) -> TrainJob:
        """Return what it trains."""
        ...

    def ask(self, action: str) -> Answer:
        """Ask it for one of control.ACTIONS."""
        ...

    def wait_for_end(self, seconds: float) -> bool:
        """Wait at most so long; return whether it is over and has let go of everything."""
        ...

    def result(self) -> TrainResult:
        """Return what it came to, after its end, or raise what it failed with."""
        ...


def ask(link: RunLink, action: str, timeout_seconds: float) -> Any:
    """Return a run's answer to a request.

    Raises:
        RunStateError: it is over, or its process is lost.
        WaitTimeoutError: no answer in time.
    """
    with left_alone(link, f"the answer to {action}()"):
        answer, deadline, silent_since = link.ask(action), time.monotonic() + timeout_seconds, None
        while True:
            left = max(0.0, deadline - time.monotonic())
            if concurrent.futures.wait([answer], min(left, LOOK_EVERY_SECONDS)).done:
                return answer.result()
            state = link.look()
            silent_since = (silent_since or time.monotonic()) if state.is_over else None
            if silent_since is not None and time.monotonic() - silent_since > LAST_WORDS_SECONDS:
                got = f"no answer to {action}, and it is {state.describe(link.num_steps)}"
                raise RunStateError(explain(f"run {link.name}", got=got, fix="train the same job again: it goes on"))
            if not left:
                what, fix = f"{action} of run", "raise timeout_seconds; it will still do so when it comes to that"
                raise late(link, what, timeout_seconds, fix)


def wait_for_end(link: RunLink, timeout_seconds: float | None) -> None:
    """Wait until a run is over; raise WaitTimeoutError where that takes longer. None: as long as it is alive."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    with left_alone(link, "the wait for its end"):
        while True:
            left = LOOK_EVERY_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            if link.wait_for_end(min(left, LOOK_EVERY_SECONDS)):
                return
            if not left and timeout_seconds is not None:
                raise late(link, "end of run", timeout_seconds, "raise timeout_seconds, or stop() it")


def late(link: RunLink, what: str, timeout_seconds: float, fix: str) -> WaitTimeoutError:
    """Return the error for a wait that took too long: what the run was doing meanwhile."""
    got = f"none in {timeout_seconds:g} s; it is {link.look().describe(link.num_steps)}"
    return WaitTimeoutError(explain(f"{what} {link.name}", got=got, fix=fix))


@contextmanager
def left_alone(link: RunLink, what: str) -> Iterator[None]:
    """Where a Ctrl-C ends what the block does, say what becomes of the run."""
    try:
        yield
    except KeyboardInterrupt:
        state = link.look()
        end = "is" if state.is_over else "goes on: it is"
        fix = "" if state.is_over else "; run.stop() saves and ends it, run.wait() waits for it"
        sys.stderr.write(
            f"dask-rl: {what} was interrupted; run {link.name} {end} {state.describe(link.num_steps)}{fix}\n"
        )
        sys.stderr.flush()
        raise
