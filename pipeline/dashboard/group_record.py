"""GroupRecord: the learners of one group, those that were lost, and how fast they were."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from .checks import integer, text
from .learner_record import LearnerRecord
from .thinned import Thinned

MAX_LEARNERS, MAX_LOST, MAX_RATES = 1024, 50, 600
WORKER_LEFT = "its worker left"
"""The cause of a loss as far as a scheduler knows it; the run says more later."""

Place = tuple[str, int]
"""Address of a worker and number of its process: one learner each."""


class GroupRecord:
    """One learner group. Times are of the listener's clock."""

    def __init__(self, group_id: str, now: float) -> None:
        self.group_id, self.name = group_id, "group"
        self.began = self.heard = now
        self.learners: dict[Place, LearnerRecord] = {}
        self.lost: deque[LearnerRecord] = deque(maxlen=MAX_LOST)
        self.num_lost = 0
        self.rates: Thinned[tuple[float, dict[int, float]]] = Thinned(MAX_RATES)
        """Time, and steps per second by rank."""

    @property
    def is_alive(self) -> bool:
        """Whether a learner is left."""
        return bool(self.learners)

    def hear(self, published: Iterable[tuple[str, Mapping[str, Any]]], now: float) -> None:
        """Take in the rows of all its learners, with their workers' addresses; those that are not there have left."""
        there: dict[Place, LearnerRecord] = {}
        for address, row in published:
            place = address, integer(row.get("pid"))
            if len(there) >= MAX_LEARNERS:
                break
            there[place] = self.learners.get(place) or LearnerRecord(*place)
            there[place].hear(row, now)
            self.name = text(row.get("name")) or self.name
        self.learners = there
        if there:
            self.heard = now
            self.rates.add((now, {each.rank: each.steps_per_second for each in there.values() if each.rank >= 0}))

    def lose_worker(self, address: str, now: float) -> None:
        """Note that a worker is gone, and its learner with it."""
        for place in [place for place in self.learners if place[0] == address]:
            record = self.learners.pop(place)
            record.lose(WORKER_LEFT, now)
            self._add_lost(record)

    def let_go(self, address: str | None = None) -> None:
        """Note that the run has ended: learners that leave from now on, or have left without its saying so, do no harm.

        Args:
            address: the worker that leaves; None: those that have left before.
        """
        self.learners = {place: record for place, record in self.learners.items() if place[0] != address}
        said = [record for record in self.lost if record.cause != WORKER_LEFT]
        self.num_lost -= len(self.lost) - len(said)
        self.lost = deque(said, maxlen=MAX_LOST)

    def hear_event(self, row: Mapping[str, Any], now: float) -> None:
        """Take in what a run tells of its group: why a learner was lost."""
        if row.get("name") != "learner_lost":
            return
        address, rank, cause = text(row.get("address")), integer(row.get("learner"), -1), text(row.get("cause"))
        self.lose_worker(address, now)
        for record in reversed(self.lost):
            if record.address == address:
                record.cause, record.rank = cause or record.cause, rank if record.rank < 0 else record.rank
                return
        record = LearnerRecord(address, 0, rank, step=integer(row.get("step")))
        record.lose(cause or WORKER_LEFT, now)
        self._add_lost(record)

    def _add_lost(self, record: LearnerRecord) -> None:
        self.lost.append(record)
        self.num_lost += 1

    def rows(self) -> list[LearnerRecord]:
        """Return the learners by rank, then those that were lost, the newest first."""
        living = sorted(self.learners.values(), key=lambda each: (each.rank < 0, each.rank, each.address))
        return [*living, *reversed(self.lost)]

    def summary(self, now: float, run_id: str | None) -> dict[str, Any]:
        """Return JSON values."""
        rows = self.rows()
        return {
            "group_id": self.group_id,
            "name": self.name,
            "run_id": run_id,
            "num_lost": self.num_lost,
            "seconds_since_heard": now - self.heard,
            "learners": [each.summary(now) for each in rows if not each.is_lost],
            "lost": [each.summary(now) for each in rows if each.is_lost],
        }
