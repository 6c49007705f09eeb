"""How a group's learners do: one table without IO, fed with what they say and when they were asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .config import LearnersConfig


class HealthState(StrEnum):
    """What a learner is doing, or what is feared of it."""

    STARTING = "starting"
    READY = "ready"
    IN_FUNCTION = "running a function"
    UPDATING = "updating"
    WAITING_FOR_DATA = "waiting for data"
    IN_COLLECTIVE = "in collective"
    SUSPECT = "suspect"
    DEAD = "dead"


@dataclass(frozen=True)
class HealthReport:
    """What a learner says of itself."""

    state: HealthState
    seconds_in_state: float
    step: int = 0
    is_warm: bool = False
    """Whether it has made a step since it joined: the first one may compile."""
    last_error: str | None = None


@dataclass
class LearnerHealth:
    """One row of the table."""

    state: HealthState
    since: float
    """Time at which the state began."""
    heard: float | None = None
    """Time of its last report; how long it had been in its state is judged as of then."""
    step: int = 0
    is_warm: bool = False
    last_error: str | None = None
    cause: str | None = None
    """Why it is suspect or dead."""
    asked: float | None = None
    """Time of the oldest question that it has not answered."""
    spoke_of: HealthState = field(default=HealthState.STARTING)
    """The state that it last reported itself."""


class HealthTable:
    """States, their time limits and their transitions, by actor id. Times are seconds of one monotonic clock.

    starting → ready ⇄ updating ⇄ waiting for data, in collective; ready ⇄ running a function; any of them → suspect →
    dead; suspect goes back where the learner answers. A function takes the time that its caller gives it. A dead one
    stays dead until another is started in its place.
    """

    def __init__(self, settings: LearnersConfig) -> None:
        self._silence_limit = settings.health_timeout_seconds
        self._settings = settings
        self.rows: dict[int, LearnerHealth] = {}

    def start(self, actor_id: int, now: float) -> None:
        """Enter a new learner."""
        self.rows[actor_id] = LearnerHealth(HealthState.STARTING, now)

    def ask(self, actor_id: int, now: float) -> None:
        """Note that it was asked; an earlier question without an answer counts on."""
        row = self.rows[actor_id]
        row.asked = now if row.asked is None else row.asked

    def hear(self, actor_id: int, report: HealthReport, now: float) -> None:
        """Note its answer."""
        row = self.rows[actor_id]
        if row.state is HealthState.DEAD:
            return
        row.state = row.spoke_of = report.state
        row.since, row.heard, row.asked, row.cause = now - report.seconds_in_state, now, None, None
        row.step, row.is_warm, row.last_error = report.step, report.is_warm, report.last_error

    def hear_later(self, actor_id: int) -> None:
        """Note an answer that is here and cannot be read yet."""
        self.rows[actor_id].asked = None

    def excuse(self, seconds: float) -> None:
        """Leave time out of account in which nobody could have heard an answer."""
        for row in self.rows.values():
            row.asked = None if row.asked is None else row.asked + seconds

    def lose(self, actor_id: int, cause: str, now: float) -> None:
        """Note that its process is gone."""
        row = self.rows[actor_id]
        if row.state is not HealthState.DEAD:
            row.state, row.since, row.cause = HealthState.DEAD, now, cause

    def review(self, now: float, *, has_broken: bool = False) -> dict[int, str]:
        """Move those that are silent or over their time to suspect and dead; return the newly dead with the cause.

        Args:
            now: the time.
            has_broken: whether a peer has failed already: those that compute then have one exchange's time left.
        """
        dead: dict[int, str] = {}
        for actor_id, row in self.rows.items():
            if row.state is HealthState.DEAD:
                continue
            silent = 0.0 if row.asked is None else now - row.asked
            elapsed = 0.0 if row.heard is None else row.heard - row.since
            if silent > self._silence_limit:
                dead[actor_id] = f"no answer in {silent:.0f} s, last {row.spoke_of} at step {row.step}"
            elif row.state is not HealthState.SUSPECT and elapsed > self._limit(row, has_broken):
                dead[actor_id] = f"{row.spoke_of} for {elapsed:.0f} s at step {row.step}"
            elif silent > self._silence_limit / 2 and row.state is not HealthState.SUSPECT:
                row.state, row.cause = HealthState.SUSPECT, f"no answer in {silent:.0f} s"
        for actor_id, cause in dead.items():
            self.lose(actor_id, cause, now)
        return dead

    def _limit(self, row: LearnerHealth, has_broken: bool) -> float:
        settings = self._settings
        exchange = settings.collective_timeout_seconds if row.is_warm else settings.startup_timeout_seconds
        computing = exchange if has_broken else settings.startup_timeout_seconds
        # One step; a long one holds up its peers, who give up after `exchange`.
        limits: Mapping[HealthState, float] = {
            HealthState.STARTING: settings.startup_timeout_seconds,
            HealthState.UPDATING: computing,
            # These end by themselves, with an error that says more.
            HealthState.WAITING_FOR_DATA: settings.data_timeout_seconds + self._silence_limit,
            HealthState.IN_COLLECTIVE: exchange + self._silence_limit,
        }
        return limits.get(row.state, float("inf"))
