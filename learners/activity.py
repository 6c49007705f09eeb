"""Activity: what a learner is doing, for whoever watches it from another thread."""

import time

IDLE = "idle"
COMPUTING = "computing"
WAITING_FOR_DATA = "waiting for data"
IN_COLLECTIVE = "in the collective"
OPENING_DATA = "opening data"
IN_HOOK = "in a hook"


class Activity:
    """One thread notes what it begins, any other may read it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.enter(IDLE)

    def enter(self, name: str) -> None:
        """Note that something else begins now."""
        self.now: tuple[str, float] = (name, time.monotonic())
        """Name and time of beginning as one value: a reader never sees the one of this and the other of that."""

    @property
    def name(self) -> str:
        """What is going on."""
        return self.now[0]

    @property
    def since(self) -> float:
        """When it began, by time.monotonic()."""
        return self.now[1]
