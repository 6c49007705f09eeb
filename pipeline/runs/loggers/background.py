"""A logger in a thread of its own, so that a tracker that answers late, or not at all, holds up no training."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from dask_rl.pipeline.runs.run_log import Row, RunLogger
from dask_rl.storage.errors import WaitTimeoutError, explain


class BackgroundLogger:
    """Passes calls on to a logger, in their order, from a thread; its failure is raised by the call after it."""

    def __init__(self, logger: RunLogger, close_timeout_seconds: float) -> None:
        """Start the thread with the first call.

        Args:
            logger: does the work.
            close_timeout_seconds: bound on the wait for what is left to do at the end.
        """
        self.name = logger.name
        self._logger = logger
        self._timeout = close_timeout_seconds
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._error: Exception | None = None
        # A daemon: Python would wait at its exit for a tracker that never answers.
        self._thread = threading.Thread(target=self._work, name=f"logger-{logger.name}", daemon=True)

    def begin(self, rows: Sequence[Row]) -> None:
        """Have the logger begin."""
        rows = list(rows)
        self._pass_on(lambda: self._logger.begin(rows))

    def log(self, row: Row) -> None:
        """Have the logger take in a row."""
        self._pass_on(lambda: self._logger.log(row))

    def close(self) -> None:
        """Have the logger close, and wait for it.

        Raises:
            WaitTimeoutError: it has not done all that was to do in `close_timeout_seconds`.
        """
        self._pass_on(self._logger.close)
        self._calls.put(None)
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            got = f"no end within {self._timeout:g} s, {self._calls.qsize()} rows untold"
            fix = "see whether it answers; a later start of the run tells it what it has missed"
            raise WaitTimeoutError(explain(f"logger {self.name}", got=got, fix=fix))
        self._raise()

    def _pass_on(self, call: Callable[[], None]) -> None:
        self._raise()
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:  # whatever it is, the run's own thread hears of it
                self._error = error
                return
