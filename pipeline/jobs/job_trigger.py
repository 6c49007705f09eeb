"""When a job is due: a cron expression in a time zone, on APScheduler's CronTrigger."""

from collections.abc import Collection
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from tzlocal import get_localzone_name

from dask_rl.storage.errors import ConfigError, explain

from .cron_expression import parse_cron
from .times import now

_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")  # names: APScheduler counts from Monday, cron from Sunday


class JobTrigger(BaseTrigger):
    """Due times of a cron expression, in a time zone.

    Where clocks go forward, a time that is left out is due as much later; where they go back, one that comes twice is
    due the first time only, unless the hour is given by *.

    Args:
        cron: five fields as in crontab(5), or six with seconds first.
        timezone: IANA name.

    Raises:
        ConfigError: one of them is wrong, or it is never due.
    """

    def __init__(self, cron: str, timezone: str) -> None:
        self.zone = parse_timezone(timezone)
        words = cron.split()
        seconds = [0]
        if len(words) == 6:
            seconds = sorted(parse_cron(f"{words.pop(0)} * * * *").minutes)
        parsed = parse_cron(" ".join(words))
        self._is_hourly = parsed.text.split()[1].startswith("*")
        days, weekdays = _list(parsed.days, 31), _list([_WEEKDAYS[day] for day in sorted(parsed.weekdays)], 7)
        choices = [(days, weekdays)] if parsed.needs_both else [(days, "*"), ("*", weekdays)]
        common = {
            "month": _list(parsed.months, 12),
            "hour": _list(parsed.hours, 24),
            "minute": _list(parsed.minutes, 60),
            "second": _list(seconds, 60),
            "timezone": self.zone,
        }
        self._trigger = OrTrigger([CronTrigger(day=day, day_of_week=weekday, **common) for day, weekday in choices])
        if self.get_next_fire_time(None, now()) is None:
            fix = "correct it"
            raise ConfigError(
                explain("cron expression", got=f"{cron!r}, which is never due", allowed="a time", fix=fix)
            )

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first due time after the previous one, else at or after now; None where there is none."""
        time: datetime | None = self._trigger.get_next_fire_time(previous_fire_time, now)
        while time is not None and not self._is_hourly and _is_repeated(time):
            time = self._trigger.get_next_fire_time(time, time)
        return None if time is None else time.astimezone(UTC).astimezone(self.zone)  # one that clocks really show

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


def _list(values: Collection[Any], num_all: int) -> str:
    return "*" if len(values) == num_all else ",".join(map(str, sorted(values, key=str) if num_all == 7 else values))


def _is_repeated(time: datetime) -> bool:
    """Whether clocks have shown this time before, on the day on which they go back."""
    return time.utcoffset() != time.replace(fold=0).utcoffset()
