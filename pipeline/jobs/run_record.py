"""What is known about one run of a job: a row of the history, and batch.json in the run's directory."""

import os
import socket
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from dask_rl.pipeline.runs.run_directory import damaged, write_atomic

from .process_identity import boot_id, start_ticks
from .times import iso

RECORD_FILE = "batch.json"

Status = Literal["due", "running", "complete", "failed", "timed_out", "interrupted", "skipped", "missed"]
OPEN: tuple[Status, ...] = ("due", "running")
"""Not at an end yet."""


class RunRecord(BaseModel):
    """One run of a job. Times are UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    job: str
    """The job's name."""
    time: AwareDatetime
    """When it was due; names the run."""
    status: Status = "due"
    """due: to be started; interrupted: stopped from outside, resumable; skipped: the run before was still at work, or
    nothing had changed; missed: due too long ago."""
    requested: bool = False
    """Whether somebody asked for it (`jobs run-now`): then it does not matter whether a dataset changed."""
    run: str | None = None
    """Its directory, absolute."""
    host: str | None = None
    """Where it is, or was, at work."""
    pid: int | None = None
    """The process that runs it: `dask-rl jobs exec`."""
    process_start: float | None = None
    """When that process began, since pids come again: in clock ticks since the host was started, as a time of day would
    be another one where the clock is set."""
    boot_id: str | None = None
    """Which start of the host that was."""
    started: AwareDatetime | None = None
    """First start."""
    ended: AwareDatetime | None = None
    """End."""
    attempts: int = Field(0, ge=0)
    """Starts of `dask-rl train`."""
    exit_code: int | None = None
    """Of the last of them; minus a signal's number where one ended it."""
    message: str | None = None
    """Why it ended so."""
    datasets: dict[str, str] = {}
    """Content hash of each module's dataset."""
    evaluation: dict[str, Any] | None = None
    """Of the last evaluation: environment, return_mean, return_standard_error, num_episodes."""
    weights_hash: str | None = None
    """sha256 of the final weights."""
    promoted: bool | None = None
    """Whether `current` points, or pointed, to it."""

    @property
    def is_open(self) -> bool:
        """Whether it has not come to an end."""
        return self.status in OPEN

    @property
    def is_elsewhere(self) -> bool:
        """Whether its process is on another host, of which nothing can be known from here."""
        return self.host not in (None, socket.gethostname())

    @property
    def is_alive(self) -> bool:
        """Whether the process that runs it is there."""
        if self.pid is None or self.is_elsewhere or self.boot_id != boot_id():
            return False
        ticks = start_ticks(self.pid)
        return ticks is not None and ticks == self.process_start

    @property
    def is_at_work(self) -> bool:
        """Whether a process has it at work, as far as that can be known from here."""
        return self.status == "running" and (self.is_alive or self.is_elsewhere)

    def mine(self) -> "RunRecord":
        """Return the record of a run that this process has at work."""
        me = os.getpid()
        identity = {"host": socket.gethostname(), "pid": me, "process_start": start_ticks(me), "boot_id": boot_id()}
        return self.model_copy(update=identity | {"status": "running"})

    def values(self) -> dict[str, Any]:
        """Return it as JSON values, times as people and sorting want them."""
        values = self.model_dump(mode="json")
        for key in ("time", "started", "ended"):
            time = getattr(self, key)
            values[key] = None if time is None else iso(time)
        return values


def save_record(record: RunRecord, directory: Path) -> None:
    """Write a run's record into its directory, whole or not at all."""
    write_atomic(directory / RECORD_FILE, record.model_dump_json(indent=1) + "\n")


def load_record(directory: str | os.PathLike[str]) -> RunRecord | None:
    """Return the record in a run's directory; None where there is none.

    Raises:
        RunStateError: it is no record.
    """
    path = Path(directory, RECORD_FILE)
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError:
        raise damaged(path, "something else", "delete it: the run then counts as one that was never started") from None
