"""DaskLogger: tells a run's rows and states to the scheduler, and takes requests from there."""

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client
from distributed.client import ClosedClientError

from dask_rl.pipeline.dashboard import CONTROL_TOPIC, TOPIC
from dask_rl.pipeline.runs.job import TrainJob
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.run_log import Row

from .control import ACTIONS, Answer, RunControl, RunState
from .topics import confirm, listen

ALIVE_EVERY_SECONDS = 5.0
INTRODUCTION_SECONDS = 5.0
"""Bound on the wait for the first message to go out."""
CLOSE_SECONDS = 5.0
"""Bound on the wait for the last messages to go out."""
EVERY_RUN = "*"
"""As the run of a request: all of them."""
MAX_MESSAGES_AHEAD = 10_000
_MAX_REQUEST_NAME = 64
_LOST = (
    OSError,
    RuntimeError,
    ValueError,
    AttributeError,  # of one that is being closed
    ClosedClientError,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
)
"""What a client says whose scheduler is gone; the learners will say so too."""

Message = dict[str, Any]


class DaskLogger:
    """A RunLogger whose messages go to the topic `dask-rl` of the scheduler.

    They are sent by a thread of its own, in order: but for the first, training never waits for the scheduler, and it
    does not fail with it.

    Args:
        client: of the scheduler.
        run: the run's directory.
        job: its job.
        control: takes the requests.
        group_id: of the run's learner group, under which its learners publish.
    """

    name = "dask"

    def __init__(self, client: Client, run: RunDirectory, job: TrainJob, control: RunControl, group_id: str) -> None:
        self._client = client
        self._control = control
        self._facts = _facts(run, job, group_id)
        self._rows: list[Row] = []
        """Those that were sent; only the sender knows them."""
        self._outbox: queue.Queue[Callable[[], Message] | None] = queue.Queue(MAX_MESSAGES_AHEAD)
        self._sender = threading.Thread(target=self._send_all, name=f"dask-rl topic of {run.name}", daemon=True)
        self._introduced = threading.Event()
        self._end_listening: Callable[[], None] | None = None
        control.on_change(lambda state: self._try_to_put(lambda: self._status(state)))

    def begin(self, rows: Sequence[Row]) -> None:
        """Tell that the run goes on after these rows."""
        if self._end_listening is None:
            self._end_listening = listen(self._client, CONTROL_TOPIC, self._on_request)
            self._sender.start()
        known = list(rows)
        self._put(lambda: self._begin(known))
        self._introduced.wait(INTRODUCTION_SECONDS)  # whoever sees it train can also find it

    def log(self, row: Row) -> None:
        """Tell one row more."""
        self._put(lambda: self._row(row))

    def close(self) -> None:
        """Send what is left, and listen no more."""
        if self._end_listening is None:
            return
        self._end_listening()
        try:
            self._outbox.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:  # a scheduler that answers nothing
            return
        self._sender.join(CLOSE_SECONDS)

    def _put(self, make: Callable[[], Message]) -> None:
        """Queue a message, which the sender makes: it alone knows what it has sent."""
        try:
            self._outbox.put_nowait(make)
        except queue.Full:
            raise TimeoutError(f"the scheduler took none of {MAX_MESSAGES_AHEAD} messages") from None

    def _try_to_put(self, make: Callable[[], Message]) -> None:
        """Queue a message whose loss costs nobody more than its news."""
        with contextlib.suppress(TimeoutError):
            self._put(make)

    def _send_all(self) -> None:
        with contextlib.suppress(*_LOST):  # before anybody hears of the run, and asks it for something
            confirm(self._client, CONTROL_TOPIC, INTRODUCTION_SECONDS / 2)
        while True:
            try:
                make = self._outbox.get(timeout=ALIVE_EVERY_SECONDS)
            except queue.Empty:
                make = self._alive
            if make is None:
                return
            try:
                self._client.log_event(TOPIC, make() | {"run_id": self._control.run_id})
            except _LOST:
                if self._client.status == "closed":
                    return
            finally:
                self._introduced.set()

    def _begin(self, rows: list[Row] | None = None) -> Message:
        if rows is not None:
            self._rows = rows
        return {"kind": "begin", **self._facts, "rows": self._rows, "time": time.time()}

    def _row(self, row: Row) -> Message:
        self._rows.append(row)
        return {"kind": "row", "row": row}

    def _status(self, state: RunState) -> Message:
        return {
            "kind": "status",
            "status": state.status,
            "step": state.step,
            "reason": state.reason,
            "time": time.time(),
        }

    def _alive(self) -> Message:
        return {"kind": "alive", "step": self._control.state.step, "time": time.time()}

    def _on_request(self, message: Message) -> None:
        """Take a request in; whoever is on the scheduler may send anything."""
        run_id, request, action = (message.get(key) for key in ("run_id", "request", "action"))
        if action == "describe" and run_id in (EVERY_RUN, self._control.run_id):
            self._try_to_put(self._begin)
            self._try_to_put(lambda: self._status(self._control.state))
            return
        if run_id != self._control.run_id or action not in ACTIONS or not isinstance(request, str):
            return
        name = request[:_MAX_REQUEST_NAME]
        self._control.ask(action).add_done_callback(lambda answer: self._answer(name, answer))

    def _answer(self, request: str, answer: Answer) -> None:
        error = answer.exception()
        value = None if error is not None else answer.result()
        text = None if error is None else str(error)
        self._try_to_put(lambda: {"kind": "answer", "request": request, "value": value, "error": text})


def _facts(run: RunDirectory, job: TrainJob, group_id: str) -> Message:
    """Return what stays the same as long as a run is under way."""
    return {
        "name": run.name,
        "path": str(run.path.absolute()),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "num_steps": job.num_steps,
        "modules": sorted(job.datasets),
        "group_id": group_id,
        "job": {
            "algorithm": ", ".join(sorted({job.algorithm_of(module_id).name for module_id in job.datasets})),
            "dataset": ", ".join(job.datasets[module_id] for module_id in sorted(job.datasets)),
            "batch_size": job.batch_size,
            "num_learners": job.learners.num_learners,
        },
    }
