"""Watch: asks a group's learners how they do, and gives up those that are silent or stuck."""

import time

from .config import LearnersConfig
from .handles import LOST, PendingCall
from .health import HealthTable
from .manager import ActorManager

WATCH_EVERY_SECONDS = 1.0
_LISTENS_SECONDS = 3 * WATCH_EVERY_SECONDS
"""Who has not looked for longer than this was not listening."""


class Watch:
    """Feeds the health table of one set of actors."""

    def __init__(self, settings: LearnersConfig, manager: ActorManager) -> None:
        self.table = HealthTable(settings)
        self._manager = manager
        self._questions: dict[int, PendingCall] = {}
        now = time.monotonic()
        self._looked_at = now
        for actor_id in range(len(manager)):
            self.table.start(actor_id, now)

    def look(self, *, has_broken: bool = False) -> None:
        """Ask all that are healthy, at most once a second; mark the lost ones as such in the manager.

        Args:
            has_broken: whether the generation has broken already; see `HealthTable.review`.
        """
        now = time.monotonic()
        if now - self._looked_at < WATCH_EVERY_SECONDS:
            return
        away = now - self._looked_at - _LISTENS_SECONDS
        if away > 0:  # the process was stopped, or did something else: an answer may be there and not be taken in
            self.table.excuse(away)
        self._looked_at = now
        for actor_id in self._manager.healthy_actor_ids:
            self._ask(actor_id, now)
        for actor_id, cause in self.table.review(now, has_broken=has_broken).items():
            self._manager.lose(actor_id, cause)
        for actor_id, cause in self._manager.lost.items():
            self.table.lose(actor_id, cause, now)

    def _ask(self, actor_id: int, now: float) -> None:
        question = self._questions.get(actor_id)
        try:
            if question is not None and question.done():
                self.table.hear(actor_id, question.result(0), now)
                question = None
            if question is None:
                self._questions[actor_id] = self._manager.handles[actor_id].ask_health()
                self.table.ask(actor_id, now)
        except TimeoutError:
            self.table.hear_later(actor_id)  # the answer is here; the event loop that has it is busy
        except LOST as error:
            self._manager.lose(actor_id, " ".join(str(error).split()) or type(error).__name__)
