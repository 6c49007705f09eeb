"""Activity: what a learner is doing, for whoever watches it from another thread."""

import time
from collections.abc import Mapping

IDLE = "idle"
COMPUTING = "computing"
WAITING_FOR_DATA = "waiting for data"
IN_COLLECTIVE = "in the collective"
OPENING_DATA = "opening data"
IN_HOOK = "in a hook"


class Activity:
    """One thread notes what it begins and has done, any other may read it; neither ever waits."""

    __slots__ = ("now", "num_rows", "num_steps")

    def __init__(self) -> None:
        self.now: tuple[str, float, Mapping[str, float]] = (IDLE, time.monotonic(), {})
        """Name, time of beginning and the seconds of all that ended before, by name: one value, so that a reader never
        sees the one of this and the other of that."""
        self.num_steps = 0
        """Steps that this learner made itself, those that were skipped too; it takes over none."""
        self.num_rows = 0
        """Rows of its own that went into them."""

    def enter(self, name: str) -> None:
        """Note that something else begins now."""
        previous, since, spent = self.now
        now = time.monotonic()
        self.now = name, now, {**spent, previous: spent.get(previous, 0.0) + (now - since)}

    def count_step(self, num_rows: int) -> None:
        """Note that a step was made, of so many rows."""
        self.num_steps += 1
        self.num_rows += num_rows

    @property
    def name(self) -> str:
        """What is going on."""
        return self.now[0]

    @property
    def since(self) -> float:
        """When it began, by time.monotonic()."""
        return self.now[1]

    def seconds(self) -> dict[str, float]:
        """Return the time spent on each activity so far, with the one that is going on.

        Another thread may see a sum go back by the moment that noting a change takes.
        """
        name, since, spent = self.now
        return {**spent, name: spent.get(name, 0.0) + time.monotonic() - since}
