"""The bound on how often lost learners are replaced: without IO or clocks of its own."""

from collections import deque

from dask_rl.storage.errors import RestartLimitError, explain


class RestartBudget:
    """At most `max_restarts` replacements within any `window_seconds`."""

    def __init__(self, max_restarts: int, window_seconds: float) -> None:
        self._max_restarts = max_restarts
        self._window_seconds = window_seconds
        self._times: deque[float] = deque()
        self._cause = ""
        self.total = 0
        """All that were ever spent."""

    def spend(self, count: int, now: float, cause: str | None) -> None:
        """Count `count` replacements at time `now`; with 0 of them it only tells whether there were too many.

        Raises:
            RestartLimitError: they are too many; names the cause.
        """
        while self._times and now - self._times[0] > self._window_seconds:
            self._times.popleft()
        self._times.extend([now] * count)
        self._cause = cause or self._cause
        self.total += count
        if len(self._times) > self._max_restarts:
            raise RestartLimitError(
                explain(
                    "learner group",
                    got=f"{len(self._times)} lost learners in {self._window_seconds:g} s, the last one: {self._cause}",
                    allowed=f"learners.max_restarts={self._max_restarts}",
                    fix="find what ends the workers (their logs and memory), then run the same job again",
                )
            )
