"""RunControl: what a run under way says about itself, and what it can be asked to do. Free of Dask and files."""

import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dask_rl.pipeline.runs.stop_request import StopRequest
from dask_rl.storage.errors import CheckpointError, ConfigError, RunStateError, explain

ACTIONS = ("pause", "resume", "stop", "checkpoint")
OVER = ("complete", "interrupted", "failed", "lost")
"""States that do not change any more."""
Status = Literal["starting", "running", "paused", "evaluating", "saving", "complete", "interrupted", "failed", "lost"]
Answer = Future[Any]


@dataclass(frozen=True)
class RunState:
    """What a run says about itself."""

    status: Status = "starting"
    step: int = 0
    score: float | None = None
    """Mean return of the last evaluation."""
    reason: str | None = None
    """Why it failed."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Of the last call of its learners, as `learning_curve.losses_of` names them."""
    event: str | None = None
    """What befell its learners last, as a sentence."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in OVER

    def describe(self, num_steps: int) -> str:
        """Return it for people: `paused at step 20 of 100`."""
        where = f"{self.status} at step {self.step} of {num_steps}"
        return where if self.reason is None else f"{where} ({self.reason})"


class RunControl:
    """Requests to a run from other threads and from signals; the run serves them between two updates.

    Args:
        name: the run's, for messages.
        num_steps: gradient steps of the whole run.
        stop: the request to stop that the run's own process may make, as by a signal.
    """

    def __init__(self, name: str, num_steps: int, stop: StopRequest | None = None) -> None:
        self.name = name
        self.num_steps = num_steps
        self.stop = stop or StopRequest()
        self.run_id = secrets.token_hex(6)
        self.address: str | None = None
        """Of the scheduler that the run tells of itself, from when it is there."""
        self._state = RunState()
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[tuple[str, Answer] | None] = queue.SimpleQueue()
        self._stopping: list[Answer] = []
        self._listeners: list[Callable[[RunState], None]] = []
        self._checkpoint: str | None = None
        self.stop.on_request(lambda: self._inbox.put(None))  # its put() is reentrant, so a signal may call it

    @property
    def state(self) -> RunState:
        """What the run says about itself now."""
        return self._state

    def on_change(self, listener: Callable[[RunState], None]) -> None:
        """Have `listener` told every state from now on, by the run's thread."""
        self._listeners.append(listener)

    def ask(self, action: str) -> Answer:
        """Ask for one of ACTIONS, from any thread; the answer is a step, for checkpoint a path, for stop a status.

        Fails with RunStateError where the run is over before it comes to that; its newest checkpoint is still told.

        Raises:
            ConfigError: no such action.
        """
        if action not in ACTIONS:
            raise ConfigError(explain("action", got=repr(action), allowed=", ".join(ACTIONS), fix="choose one"))
        answer: Answer = Future()
        with self._lock:
            if self._state.is_over:
                self._answer_after_end(action, answer)
            elif action == "stop":
                self._stopping.append(answer)
            else:
                self._inbox.put((action, answer))
        if action == "stop":
            self.stop.request()
        return answer

    def serve(self, save: Callable[[], str]) -> None:
        """Do what was asked for, and stay here while the run is paused; for the run's thread, between two updates.

        Args:
            save: writes a checkpoint of the step that the run is at and returns its path.
        """
        before, is_paused = self._state.status, False
        while not self.stop.requested:
            try:
                request = self._inbox.get(block=is_paused)
            except queue.Empty:
                break
            if request is None:
                continue
            action, answer = request
            if action == "checkpoint":
                self._save(save, answer)
                continue
            is_paused = action == "pause"
            self.tell(status="paused" if is_paused else before)
            answer.set_result(self._state.step)
        self.tell(status=before)

    def _save(self, save: Callable[[], str], answer: Answer) -> None:
        try:
            answer.set_result(save())
        except (OSError, CheckpointError) as error:  # who asked is told; the run did not need it
            answer.set_exception(error)
        except BaseException as error:
            answer.set_exception(RunStateError(f"run {self.name}: {error}"))
            raise

    def tell(self, **changes: Any) -> None:
        """Change the run's state, and tell the listeners where that is news; for the run's thread."""
        with self._lock:
            if self._state.is_over:
                return
            before, self._state = self._state, replace(self._state, **changes)
            state = self._state
        if (before.status, before.score) != (state.status, state.score):
            for listener in self._listeners:
                listener(state)

    @contextmanager
    def doing(self, status: Status) -> Iterator[None]:
        """Say that the run does something else than training while the block runs."""
        before = self._state.status
        self.tell(status=status)
        try:
            yield
        finally:
            self.tell(status=before)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Say why, where the block raises."""
        try:
            yield
        except BaseException as error:
            lines = str(error).splitlines() or [type(error).__name__]
            self.end("failed", reason=lines[0])
            raise

    def end(self, status: Status, *, checkpoint: str | None = None, reason: str | None = None) -> None:
        """Say that the run is over, and answer all who still wait; the first call counts."""
        self.tell(status=status, reason=reason)
        with self._lock:
            self._checkpoint = self._checkpoint or checkpoint
            stopping, self._stopping = self._stopping, []
            for answer in stopping:
                self._answer_after_end("stop", answer)
            while not self._inbox.empty():
                request = self._inbox.get()
                if request is not None:
                    self._answer_after_end(*request)

    def _answer_after_end(self, action: str, answer: Answer) -> None:
        if action == "stop":
            answer.set_result(self._state.status)
        elif action == "checkpoint" and self._checkpoint is not None:
            answer.set_result(self._checkpoint)
        else:
            got = f"{action}, and it is {self._state.describe(self.num_steps)}"
            fix = "train the same job again: it goes on" if self._state.status != "complete" else "choose a live run"
            answer.set_exception(RunStateError(explain(f"run {self.name}", got=got, fix=fix)))
