"""SchedulerLink: what a scheduler knows of runs, and requests to them through it."""

import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from distributed import Client

from dask_rl.learners.workers import ask_scheduler
from dask_rl.pipeline.dashboard import TOPIC, install
from dask_rl.pipeline.runs.learning_curve import losses_of
from dask_rl.storage.errors import RunStateError, WaitTimeoutError, explain

from .control import Answer, RunState, Status
from .scheduler_questions import num_unknown, publish, rows_of, summaries
from .topics import confirm, listen

ANSWER_SECONDS = 30.0
"""Bound on the wait for the scheduler to tell what it is told."""
DESCRIBE_SECONDS = 5.0
"""Bound on the wait for runs that began before the scheduler had the plugin."""
_LOOK_EVERY_SECONDS = 0.1
_STATUSES = get_args(Status)


@dataclass(frozen=True)
class RunSummary:
    """What a scheduler knows of a run, without its rows."""

    run_id: str
    name: str
    path: Path
    host: str
    num_steps: int
    state: RunState

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "RunSummary":
        """Read it from an item of the plugin's snapshot, which checked the types."""
        status: Status = values["status"] if values["status"] in _STATUSES else "lost"
        score = (values["last_evaluation"] or {}).get("return_mean")
        events = [str(event.get("name")) for event in values["events"]]
        losses = {
            name: value
            for name, value in losses_of(values["last_train"] or {}).items()
            if isinstance(value, int | float)
        }
        state = RunState(
            status,
            values["step"],
            score if isinstance(score, int | float) else None,
            values["reason"] or None,
            losses,
            events[-1] if events else None,
        )
        return cls(values["run_id"], values["name"], Path(values["path"]), values["host"], values["num_steps"], state)


class SchedulerLink:
    """A scheduler that keeps account of its runs.

    Args:
        client: of that scheduler.

    Raises:
        ConfigError: the scheduler has no dask-rl, or another version.
        WaitTimeoutError: it does not tell what it is told.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._asked: dict[str, tuple[str, Answer]] = {}
        self._news = threading.Condition()
        install(client)
        self._end_listening = listen(client, TOPIC, self._hear)
        if not confirm(client, TOPIC, ANSWER_SECONDS):
            got, fix = f"no message of topic {TOPIC} in {ANSWER_SECONDS:g} s", "look at its load, then attach again"
            raise WaitTimeoutError(explain(f"scheduler at {client.scheduler.address}", got=got, fix=fix))
        self._await_descriptions()

    def close(self) -> None:
        """Listen no more."""
        self._end_listening()

    def summaries(self) -> list[RunSummary]:
        """Return the runs that the scheduler knows, also some that are over, the newest first."""
        return [RunSummary.parse(values) for values in json.loads(ask_scheduler(self.client, summaries))]

    def state(self, run_id: str) -> RunState:
        """Return what a run says about itself."""
        for run in self.summaries():
            if run.run_id == run_id:
                return run.state
        return RunState("lost", reason="the scheduler does not know it any more")

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """Return the rows of a run's metrics.jsonl; of many train rows, some."""
        rows: list[dict[str, Any]] = json.loads(ask_scheduler(self.client, rows_of, run_id=run_id))
        return rows

    def ask(self, run_id: str, action: str) -> Answer:
        """Ask a run for an action of control.ACTIONS."""
        answer = Answer()
        request = secrets.token_hex(8)
        self._asked[request] = run_id, answer
        self._publish({"run_id": run_id, "request": request, "action": action})
        return answer

    def wait_for_news(self, seconds: float) -> None:
        """Wait until a run has said something, at most so long."""
        with self._news:
            self._news.wait(seconds)

    def _publish(self, message: Mapping[str, str]) -> None:
        ask_scheduler(self.client, publish, message=dict(message))

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("kind") == "answer" and isinstance(message.get("request"), str):
            run_id, answer = self._asked.pop(message["request"], (None, None))
            if answer is not None and run_id == message.get("run_id"):
                _settle(answer, message)
        elif message.get("kind") == "status":
            with self._news:
                self._news.notify_all()

    def _await_descriptions(self) -> None:
        """Have runs describe themselves that began before the scheduler listened to them."""
        deadline = time.monotonic() + DESCRIBE_SECONDS
        if not ask_scheduler(self.client, num_unknown):
            return
        self._publish({"run_id": "*", "request": secrets.token_hex(8), "action": "describe"})
        while ask_scheduler(self.client, num_unknown) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_SECONDS)


def _settle(answer: Answer, message: Mapping[str, Any]) -> None:
    error, value = message.get("error"), message.get("value")
    if error is None and isinstance(value, str | int):
        answer.set_result(value)
        return
    got = str(error).rstrip(".") if error is not None else "an answer that is none"
    answer.set_exception(RunStateError(explain("answer of the run", got=got, fix="look at what the run itself says")))
