"""Recruiting: actors that start on free workers while their group goes on, to be taken in by it."""

import time
from collections.abc import Sequence

from .config import LearnersConfig
from .dask_handle import DaskHandle
from .handles import ActorHandle
from .hiring import Hiring

_LOOK_EVERY_SECONDS = 1.0
_TOGETHER_SECONDS = 10.0
"""How long those that are constructed wait for the others, so that the group meets once for all of them."""


class Recruiting:
    """The actors that an elastic group may grow by, up to the number of learners asked for."""

    def __init__(self, settings: LearnersConfig, hiring: Hiring) -> None:
        self._settings = settings
        self._hiring = hiring
        self._recruits: list[DaskHandle] = []
        self._looked_at = 0.0

    def take(self, members: Sequence[ActorHandle]) -> list[DaskHandle]:
        """Return actors that are constructed by now, and begin to start those that are missing; does not wait.

        Args:
            members: the actors of the group.
        """
        if not self._settings.elastic:
            return []
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_SECONDS:
            missing = self._settings.num_learners - len(members)
            if missing or self._recruits:
                self._looked_at = now
                self._recruits = self._hiring.keep(self._recruits)
                taken = {handle.where for handle in (*members, *self._recruits)}
                self._recruits += self._hiring.submit(taken, max(0, missing - len(self._recruits)))
        ready = [recruit for recruit in self._recruits if recruit.is_constructed]
        late = [recruit for recruit in self._recruits if recruit not in ready]
        if not ready or any(now - recruit.submitted_at < _TOGETHER_SECONDS for recruit in late):
            return []
        self._recruits = late
        return [recruit for recruit in ready if self._hiring.is_there(recruit)]

    def release(self) -> None:
        """Let go of those that were not taken in."""
        for recruit in self._recruits:
            recruit.release()
        self._recruits = []
