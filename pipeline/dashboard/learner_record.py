"""LearnerRecord: what is known of one learner, from the rows that its worker publishes."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import integer, number, text

SPLIT_SECONDS = 60.0
"""The time over which the shares of waiting, computing and exchanging are taken."""
MAX_SAMPLES = 240
PARTS = ("data_wait_seconds", "compute_seconds", "collective_seconds")
_RESET_SECONDS = 1.0
"""Sums that go back by more than this are those of another learner."""


@dataclass
class LearnerRecord:
    """One learner, alive or lost. Times are of the listener's clock."""

    address: str
    """Of its worker."""
    pid: int
    rank: int = -1
    generation: int = 0
    state: str = "starting"
    since: float = 0.0
    """When the state began."""
    step: int = 0
    num_rows: int = 0
    steps_per_second: float = 0.0
    last_error: str = ""
    heard: float = 0.0
    cause: str = ""
    """Why it was lost."""
    is_lost: bool = False
    samples: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    """Time, and the sums of PARTS by then."""

    def hear(self, row: Mapping[str, Any], now: float) -> None:
        """Take in what it publishes."""
        self.rank, self.generation = integer(row.get("rank"), -1), integer(row.get("generation"))
        self.state = text(row.get("state")) or "unknown"
        self.since = now - max(0.0, number(row.get("seconds_in_state")) or 0.0)
        self.step, self.num_rows = integer(row.get("step")), integer(row.get("num_rows"))
        self.steps_per_second = number(row.get("steps_per_second")) or 0.0
        self.last_error = text(row.get("last_error"))
        self.heard = now
        sums = tuple(number(row.get(part)) or 0.0 for part in PARTS)
        if self.samples and any(
            new < old - _RESET_SECONDS for new, old in zip(sums, self.samples[-1][1:], strict=True)
        ):
            self.samples.clear()
        self.samples.append((now, *sums))
        while len(self.samples) > 2 and now - self.samples[1][0] >= SPLIT_SECONDS:
            self.samples.popleft()

    def lose(self, cause: str, now: float) -> None:
        """Note that it is gone."""
        self.is_lost, self.state, self.since, self.cause, self.steps_per_second = True, "lost", now, cause, 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the last seconds spent on each of PARTS, from 0 to 1; the rest went to neither."""
        if len(self.samples) < 2 or self.is_lost:
            return dict.fromkeys(PARTS, 0.0)
        (began, *before), (now, *after) = self.samples[0], self.samples[-1]
        spent = [max(0.0, new - old) for new, old in zip(after, before, strict=True)]
        elapsed = max(now - began, sum(spent), 1e-9)
        return {part: seconds / elapsed for part, seconds in zip(PARTS, spent, strict=True)}

    def summary(self, now: float) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "rank": self.rank,
            "generation": self.generation,
            "state": self.state,
            "seconds_in_state": max(0.0, now - self.since),
            "step": self.step,
            "steps_per_second": self.steps_per_second,
            "num_rows": self.num_rows,
            **dict(zip(PARTS, self.samples[-1][1:] if self.samples else (0.0, 0.0, 0.0), strict=True)),
            "shares": self.shares,
            "last_error": self.last_error or None,
            "cause": self.cause or None,
            "worker": self.address,
            "pid": self.pid,
            "seconds_since_heard": now - self.heard,
        }
