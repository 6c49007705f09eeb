"""What a run says as it goes on: always its metrics.jsonl, and loggers that hear the same rows."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol

from .run_directory import RunDirectory

Row = Mapping[str, Any]
"""A row of metrics.jsonl; see run_directory."""
ROW_KINDS = ("train", "evaluation", "event", "dataset")


class RunLogger(Protocol):
    """Somebody else to whom a run's rows are told, such as a tracker or a dashboard."""

    name: str
    """For messages about it."""

    def begin(self, rows: Sequence[Row]) -> None:
        """Take in the rows before the step at which the run goes on; what it said beyond them is void."""
        ...

    def log(self, row: Row) -> None:
        """Take in one row more."""
        ...

    def close(self) -> None:
        """End; the run has ended or was interrupted."""
        ...


class RunLog:
    """Appends rows to a run's metrics.jsonl and tells them to its loggers.

    A logger that fails is left out from then on, and the run goes on: an event `logger_failed` says so.
    """

    def __init__(self, directory: RunDirectory, loggers: Sequence[RunLogger] = ()) -> None:
        self._directory = directory
        self._loggers = list(loggers)
        self._step = 0

    def __enter__(self) -> "RunLog":
        """Return the log."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the loggers, all of them."""
        loggers, self._loggers = self._loggers, []  # none hears of another's failure: it may be closed
        with ExitStack() as stack:
            for logger in loggers:
                stack.callback(self._try, logger, logger.close)

    def begin(self, step: int) -> None:
        """Cut the rows beyond `step`, at which the run goes on, and tell the loggers the ones before."""
        self._step = step
        self._directory.cut_after(step)
        rows = self._directory.rows()
        for logger in list(self._loggers):
            self._try(logger, logger.begin, rows)

    def append(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one row; numbers that are not finite become null."""
        self._step = step
        row = self._directory.append(kind, step, values)
        for logger in list(self._loggers):
            self._try(logger, logger.log, row)

    def _try(self, logger: RunLogger, tell: Any, *arguments: Any) -> None:
        try:
            tell(*arguments)
        except Exception as error:  # a tracker that is down is no reason to lose a night's training
            if logger in self._loggers:
                self._loggers.remove(logger)
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            self.append("event", self._step, {"name": "logger_failed", "logger": logger.name, "cause": cause})
