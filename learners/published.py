"""What the learners of a worker tell the scheduler of themselves: through the worker's metrics, with each heartbeat.

Nothing waits for anything here: a learner notes what it does (see activity), the worker's event loop reads it.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .activity import COMPUTING, IN_COLLECTIVE, IN_HOOK, OPENING_DATA, WAITING_FOR_DATA, Activity

if TYPE_CHECKING:
    from .health import HealthReport  # brings torch, which a scheduler that reads METRIC need not have

METRIC = "dask-rl"
"""The name under which the rows stand among the worker's metrics."""
RATE_SECONDS = 5.0
"""The time over which steps_per_second is taken."""
_MAX_ERROR_LETTERS = 500
_ADDING = threading.Lock()
"""Held where an actor is added, never where the actors are read."""


@dataclass(frozen=True)
class GroupIdentity:
    """By which a group is known on its cluster."""

    group_id: str = ""
    """Of this one group, as no other has it."""
    name: str = "group"
    """For people; several groups may have the same."""


class PublishedActor(Protocol):
    """What is read of an actor."""

    identity: GroupIdentity
    rank: int
    generation: int

    @property
    def activity(self) -> Activity | None:
        """Of its learner; None before it is built."""
        ...

    def get_health(self) -> "HealthReport":
        """Return how it does."""
        ...


@dataclass
class _Entry:
    actor: "weakref.ref[PublishedActor]"
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    """Time and number of steps at the last readings."""

    def rate(self, now: float, num_steps: int) -> float:
        if self.seen and num_steps < self.seen[-1][1]:  # another learner was built
            self.seen.clear()
        self.seen.append((now, num_steps))
        while len(self.seen) > 2 and now - self.seen[1][0] >= RATE_SECONDS:
            self.seen.popleft()
        began, before = self.seen[0]
        return (num_steps - before) / (now - began) if now > began else 0.0


class PublishedLearners:
    """The learners of one worker; Dask calls it with each heartbeat. One that was released is not there any more."""

    def __init__(self) -> None:
        self._entries: tuple[_Entry, ...] = ()

    def add(self, actor: PublishedActor) -> None:
        """Take in an actor; it is not kept alive."""
        living = [entry for entry in self._entries if entry.actor() is not None]
        self._entries = (*living, _Entry(weakref.ref(actor)))  # replaced as a whole: a reader may be at the old one

    def __call__(self, worker: Any = None) -> list[dict[str, Any]]:
        """Return a row per learner; seconds and rows are sums over its life.

        `{group_id, name, rank, generation, state, seconds_in_state, step, steps_per_second, data_wait_seconds,
        compute_seconds, collective_seconds, num_rows, last_error, pid, time}`
        """
        now, rows = time.monotonic(), []
        for entry in self._entries:
            actor = entry.actor()
            if actor is not None:
                rows.append(_row(actor, entry, now))
        return rows


def publish(actor: PublishedActor, worker: Any) -> None:
    """Have a worker's heartbeats tell of an actor for as long as it lives."""
    with _ADDING:
        published = worker.metrics.get(METRIC)
        if not isinstance(published, PublishedLearners):
            published = PublishedLearners()
            worker.metrics = {**worker.metrics, METRIC: published}  # a heartbeat may be iterating over the old one
        published.add(actor)


def _row(actor: PublishedActor, entry: _Entry, now: float) -> dict[str, Any]:
    health, activity = actor.get_health(), actor.activity
    seconds: Mapping[str, float] = {} if activity is None else activity.seconds()
    num_steps, num_rows = (0, 0) if activity is None else (activity.num_steps, activity.num_rows)
    error = health.last_error
    return {
        "group_id": actor.identity.group_id,
        "name": actor.identity.name,
        "rank": actor.rank,
        "generation": actor.generation,
        "state": str(health.state),
        "seconds_in_state": health.seconds_in_state,
        "step": health.step,
        "steps_per_second": entry.rate(now, num_steps),
        "data_wait_seconds": _sum(seconds, WAITING_FOR_DATA, OPENING_DATA),
        "compute_seconds": _sum(seconds, COMPUTING, IN_HOOK),
        "collective_seconds": _sum(seconds, IN_COLLECTIVE),
        "num_rows": num_rows,
        "last_error": None if error is None else " ".join(error.split())[:_MAX_ERROR_LETTERS],
        "pid": os.getpid(),
        "time": time.time(),
    }


def _sum(seconds: Mapping[str, float], *names: str) -> float:
    return sum(seconds.get(name, 0.0) for name in names)
