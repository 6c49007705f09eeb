"""One run of a job, from its due time to its end: starts, retries that go on, promotion, and what follows it."""

import contextlib
import json
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask_rl.pipeline.runs.run_directory import RunDirectory, write_atomic
from dask_rl.pipeline.runs.run_lock import LockHeldError, RunLock
from dask_rl.storage.errors import ConfigError, DaskRLError, RunStateError, explain

from .at_work import describe, run_at_work, same_at_work
from .batch_job import LOCK_FILE, BatchJob
from .begun_job import check_begun_job
from .child_process import Ended, StopSignals, run_command
from .following import run_following
from .log_file import LogFile
from .promotion import initial_weights, judge, promote
from .reporter import Reporter
from .run_record import RunRecord, Status, load_record
from .run_results import dataset_hashes, load_result
from .times import now
from .unchanged import reason_not_to_run

_DONE, _USAGE, _INTERRUPTED = 0, 2, 3
_MAX_WAIT_SECONDS = 3600.0


class AnotherAtWorkError(RunStateError):
    """A run of the same job is not at its end."""


@dataclass(frozen=True)
class _Try:
    exit_code: int
    message: str | None
    timed_out: bool = False


class ScheduledRun:
    """One run, whose directory may hold what an earlier start of it left."""

    def __init__(
        self,
        job: BatchJob,
        known: RunRecord,
        directory: Path,
        log: LogFile,
        reporter: Reporter,
        stop: StopSignals,
    ) -> None:
        self._job = job
        self._batch = job.batch
        self._directory = directory
        self._log = log
        self._reporter = reporter
        self._stop = stop
        self._record = known
        self._is_held = self._is_ready = False
        self._num_failures_beside = 0
        self._deadline = (
            None if self._batch.time_limit_seconds is None else time.monotonic() + self._batch.time_limit_seconds
        )

    def execute(self) -> RunRecord:
        """Run it, and return what it came to."""
        with contextlib.ExitStack() as held:
            try:
                return self._to_end(held)
            except AnotherAtWorkError as error:
                return self._refused(error)
            except Exception as error:  # ours: else the run would be at work for ever, and nobody be told
                return self._failed_unexpectedly(error)

    def _to_end(self, held: contextlib.ExitStack) -> RunRecord:
        while True:
            try:
                tried = self._start(held)
                ended = tried if isinstance(tried, RunRecord) else self._judge(tried)
            except AnotherAtWorkError:
                raise
            except (OSError, DaskRLError) as error:
                tried = self._failed_beside_training(error)
                ended = self._judge(tried)
            if ended is not None:
                return ended
            assert isinstance(tried, _Try)
            if (ended := self._wait_for_retry(tried)) is not None:
                return ended

    def _start(self, held: contextlib.ExitStack) -> _Try | RunRecord:
        """Start once, and return how that went; or the end where there is nothing to start."""
        if not self._is_ready:
            self._hold(held)
            if (ended := self._look_before()) is not None:
                return ended
            self._is_ready = True
        if self._num_starts > self._batch.max_retries:
            return _Try(1, "its processes were killed again and again")
        return self._train()

    @property
    def _num_starts(self) -> int:
        """How often it was tried, also where it did not come to a start of `train`."""
        return self._record.attempts + self._num_failures_beside

    def _hold(self, held: contextlib.ExitStack) -> None:
        """Take the job's directory, and read what an earlier start of this run left."""
        if not self._is_held:
            self._job.base.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(RunLock(self._job.base / LOCK_FILE, subject=f"runs in {self._job.base}"))
            except LockHeldError as error:
                other = run_at_work(self._job.base)
                raise AnotherAtWorkError(describe(other, self._record.job, error.who)) from None
            self._is_held = True
        left = load_record(self._directory)
        if left is not None and left.job != self._record.job:
            self._leave_alone(left)
        known = {"run": str(self._directory), "started": now(), "ended": None, "exit_code": None, "message": None}
        if left is not None:
            known["started"] = left.started or known["started"]
            known["attempts"] = left.attempts if left.status == "running" else 0
            if left.status == "running" and left.attempts:
                self._log.say(f"start {left.attempts} ended: {_cause(self._record, left)}")
        self._record = self._record.mine().model_copy(update=known)

    def _leave_alone(self, other: RunRecord) -> None:
        """Refuse to go on with another job's run, and write nothing into it."""
        self._log = self._log.without_file()
        self._set(run=None)
        got, fix = f"{self._directory}, which is of the job {other.job}", "give one of the two jobs another `run`"
        raise ConfigError(explain("run", got=got, allowed="a directory for each job", fix=fix))

    def _look_before(self) -> RunRecord | None:
        """End where there is nothing to do."""
        left = load_record(self._directory)
        if left is not None and left.status == "complete":
            self._reporter.report_end(left)
            return left
        if left is None and self._batch.when == "dataset_changed" and not self._record.requested:
            reason = reason_not_to_run(self._job)
            if reason is not None:
                self._record = self._record.model_copy(update={"run": None})
                return self._put_end("skipped", _Try(_DONE, reason))
        return None

    def _train(self) -> _Try:
        """Start `dask-rl train` once and wait for its end."""
        self._set(attempts=self._record.attempts + 1)
        self._prepare()
        command = [sys.executable, "-P", "-m", "dask_rl", "train", str(self._directory / "job.yaml")]
        # A run's directory imports nothing: what is imported stands in the user's own file.
        command += ["--set", f"imports={json.dumps(self._job.imports)}"]
        self._log.say(f"start {self._record.attempts}, of {self._batch.max_retries + 1} at most, of {self._directory}")
        self._tell()
        ended = run_command(
            command,
            sink=self._log,
            stop=self._stop,
            directory=Path.cwd(),
            environment={},
            time_limit_seconds=self._seconds_left(),
            stop_wait_seconds=self._batch.stop_wait_seconds,
        )
        return _Try(ended.returncode, _reason(ended), ended.timed_out)

    def _prepare(self) -> None:
        """Write the job of this run, once: it keeps what it began with."""
        self._directory.mkdir(exist_ok=True)
        job_file = RunDirectory(self._directory).job_file
        if job_file.exists():
            check_begun_job(job_file, self._job)
        else:
            weights = initial_weights(self._batch, self._job.base)
            write_atomic(job_file, self._job.to_yaml(self._directory, weights))

    def _failed_beside_training(self, error: OSError | DaskRLError) -> _Try:
        """Return what failed before or after `train`, such as a full disk."""
        self._num_failures_beside += 1
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"{where}{reason or error}"
        self._log.say(message)
        return _Try(_USAGE if isinstance(error, ConfigError | RunStateError) else 1, message)

    def _judge(self, tried: _Try) -> RunRecord | None:
        """Return the end that a start led to, None where another start may help."""
        if tried.exit_code == _DONE:
            return self._complete()
        if tried.timed_out:
            limit = f"it took longer than {self._batch.time_limit_seconds:g} s"
            return self._end("timed_out", _Try(tried.exit_code, limit))
        if self._stop.requested or tried.exit_code == _INTERRUPTED:
            return self._put_end("interrupted", _Try(tried.exit_code, "stopped from outside; the same time goes on"))
        if tried.exit_code == _USAGE:
            return self._end("failed", tried)
        return None

    def _wait_for_retry(self, failure: _Try) -> RunRecord | None:
        """Wait before the next start; return the end where there is none, or the wait itself is ended."""
        if self._num_starts > self._batch.max_retries:
            return self._end("failed", failure)
        seconds = min(self._batch.retry_wait_seconds * 2.0 ** (self._num_starts - 1), _MAX_WAIT_SECONDS)
        self._log.say(f"failed: {failure.message}; next start in {seconds:g} s")
        self._set(exit_code=failure.exit_code, message=failure.message)
        self._tell()
        left = self._seconds_left()
        stopped = self._stop.wait(seconds if left is None else min(seconds, left))
        if stopped or (left is not None and left <= seconds):
            return self._judge(_Try(failure.exit_code, failure.message, timed_out=not stopped))
        return None

    def _complete(self) -> RunRecord:
        result, verdict = load_result(self._directory), judge(self._batch, self._directory)
        if verdict.is_promoted:
            promote(self._directory)
        evaluation = None if result.evaluation is None else result.evaluation.model_dump()
        self._set(evaluation=evaluation, weights_hash=result.weights_hash, promoted=verdict.is_promoted)
        return self._end("complete", _Try(_DONE, verdict.reason))

    def _end(self, status: Status, tried: _Try) -> RunRecord:
        """Run what is to follow, then report the end."""
        datasets = {} if self._record.run is None else dataset_hashes(self._directory)
        self._set(status=status, exit_code=tried.exit_code, message=tried.message, datasets=datasets)
        self._log.say(f"{status}{f': {tried.message}' if tried.message else ''}")
        problem = run_following(self._batch, self._record, self._log, self._stop)
        messages = [message for message in (tried.message, problem) if message]
        return self._put_end(status, _Try(tried.exit_code, "; ".join(messages) or None))

    def _put_end(self, status: Status, tried: _Try) -> RunRecord:
        self._set(status=status, exit_code=tried.exit_code, message=tried.message, ended=now())
        problem = self._reporter.report_end(self._record)
        if problem is not None:
            self._log.say(f"not reported: {problem}")
        return self._record

    def _failed_unexpectedly(self, error: Exception) -> RunRecord:
        """End as any failure does; what follows a run is not run a second time."""
        self._log.say("".join(traceback.format_exception(error)).rstrip())
        message = f"{type(error).__name__}: {error}"
        if not self._record.is_open:  # it came from what follows
            return self._put_end(self._record.status, _Try(self._record.exit_code or _DONE, message))
        try:
            return self._end("failed", _Try(1, message))
        except Exception as another:
            return self._failed_unexpectedly(another)

    def _refused(self, error: AnotherAtWorkError) -> RunRecord:
        """Leave the run of before alone; where that is this very one, its record too."""
        skipped = {"status": "skipped", "exit_code": _DONE, "message": str(error), "ended": now()}
        self._record = self._record.model_copy(update=skipped)
        known, same = self._reporter.known(self._record), same_at_work(self._record, self._directory)
        if same is not None:
            self._reporter.tell_history(same)  # which may have lost sight of it
        elif known is None or known.status == "due":
            self._reporter.report_end(self._record)
        return self._record

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0)

    def _set(self, **changes: Any) -> None:
        self._record = self._record.model_copy(update=changes)

    def _tell(self) -> None:
        problem = self._reporter.report(self._record)
        if problem is not None:
            self._log.say(f"not reported: {problem}")


def _cause(known: RunRecord, left: RunRecord) -> str:
    """Return what ended the process that had the run at work: its server knows, if it had one."""
    told = known.message if known.status == "due" else None
    return told or f"its process (pid {left.pid} on {left.host}) was killed, or the machine stopped"


def _reason(ended: Ended) -> str | None:
    return None if ended.returncode == _DONE else ended.reason
