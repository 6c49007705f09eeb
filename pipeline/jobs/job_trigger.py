"""When a job is due: a cron expression in a time zone, as a trigger of APScheduler's.

Its own CronTrigger leaves out days where clocks go forward, so due times are found here.
"""

import math
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.base import BaseTrigger
from tzlocal import get_localzone_name

from dask_rl.storage.errors import ConfigError, explain

from .cron_expression import parse_cron
from .due_times import DueTimes
from .times import now


class JobTrigger(BaseTrigger):
    """Due times of a cron expression, in a time zone.

    Where clocks go forward, a time that is left out is due as much later; where they go back, one that comes twice is
    due the first time only, unless the hour begins with *.

    Args:
        cron: five fields as in crontab(5), or six with seconds first.
        timezone: IANA name.

    Raises:
        ConfigError: one of them is wrong, or it is never due.
    """

    def __init__(self, cron: str, timezone: str) -> None:
        self.zone = parse_timezone(timezone)
        words = cron.split()
        seconds = parse_cron(f"{words.pop(0)} * * * *").minutes if len(words) == 6 else frozenset({0})
        self._due_times = DueTimes(parse_cron(" ".join(words)), seconds, self.zone)
        if self.get_next_fire_time(None, now()) is None:
            fix = "correct it"
            raise ConfigError(
                explain("cron expression", got=f"{cron!r}, which is never due", allowed="a time", fix=fix)
            )

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first due time after the previous one, else at or after now; None where there is none."""
        if previous_fire_time is None:
            time = self._due_times.first_from(math.ceil(now.timestamp()))
        else:
            time = self._due_times.first_from(math.floor(previous_fire_time.timestamp()) + 1)
        return None if time is None else datetime.fromtimestamp(time, UTC).astimezone(self.zone)

    def last_due(self, first: datetime, at: datetime) -> datetime:
        """Return the last due time not after `at`, where `first` is one; fast also if that was years ago."""
        seconds = 60.0
        while seconds < (at - first).total_seconds():
            start = datetime.fromtimestamp(at.timestamp() - seconds, UTC)
            due = self.get_next_fire_time(None, start)
            if due is not None and due <= at:
                first = due
                break
            seconds *= 2
        while (due := self.get_next_fire_time(first, first)) is not None and due <= at:
            first = due
        return first


def parse_timezone(name: str | None) -> tzinfo:
    """Return a time zone by its IANA name; None: this machine's.

    Raises:
        ConfigError: there is none of that name.
    """
    if name is None:
        name = local_timezone()
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        allowed, fix = "an IANA name such as Europe/Berlin or UTC", "correct it"
        raise ConfigError(explain("timezone", got=repr(name), allowed=allowed, fix=fix)) from None


def local_timezone() -> str:
    """Return the name of this machine's time zone, UTC where it has none."""
    return get_localzone_name() or "UTC"
