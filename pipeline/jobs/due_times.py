"""The next second at which a cron expression is due in a time zone."""

from bisect import bisect_left
from collections.abc import Collection
from datetime import date, tzinfo

from .cron_expression import CronExpression
from .zone_clocks import DAY_SECONDS, clocks_of_day

_EPOCH = date(1970, 1, 1).toordinal()
_MAX_DAYS = 366 * 41
"""29 February is a Sunday once in 28 years, in 40 where a century comes between."""


class DueTimes:
    """Due times, in seconds since 1970.

    Args:
        cron: the minutes.
        seconds: of each minute.
        zone: whose clocks are meant.
    """

    def __init__(self, cron: CronExpression, seconds: Collection[int], zone: tzinfo) -> None:
        self._cron = cron
        self._zone = zone
        self._seconds = sorted(seconds)
        self._minutes = sorted(60 * hour + minute for hour in cron.hours for minute in cron.minutes)
        self._is_hourly = cron.text.split()[1].startswith("*")

    def first_from(self, time: int) -> int | None:
        """Return the first due time not before `time`, None where there is none for a lifetime."""
        day = time // DAY_SECONDS
        last = min(day + _MAX_DAYS, date.max.toordinal() - _EPOCH - 1)
        while (due_day := self._due_day(day - 1, last)) is not None:
            day = max(day, due_day - 1)  # clocks are less than a day away from UTC
            clocks = clocks_of_day(self._zone, day, self._is_hourly)
            found = [self._in_clock(max(clock.begin, time), clock.end, clock.offset) for clock in clocks]
            due = min((time for time in found if time is not None), default=None)
            if due is not None:
                return due
            day += 1
        return None

    def _due_day(self, day: int, last: int) -> int | None:
        """Return the first due day from a day to the last one, whatever the zone; counted from 1970."""
        while day <= last:
            found = date.fromordinal(day + _EPOCH)
            if found.month not in self._cron.months:
                following = (found.year + 1, 1) if found.month == 12 else (found.year, found.month + 1)
                day = date(*following, 1).toordinal() - _EPOCH
            elif self._cron.is_due_on(found):
                return day
            else:
                day += 1
        return None

    def _in_clock(self, begin: int, end: int, offset: int) -> int | None:
        """Return the first due time in a range in which local time is `offset` ahead of UTC."""
        day, second = divmod(begin + offset, DAY_SECONDS)
        while (midnight := day * DAY_SECONDS - offset) < end:
            found = None
            if self._cron.is_due_on(date.fromordinal(day + _EPOCH)):
                found = self._in_day(second)
            if found is not None:
                return midnight + found if midnight + found < end else None
            day, second = day + 1, 0
        return None

    def _in_day(self, second: int) -> int | None:
        """Return the first due second of a due day from one on."""
        minute, second = divmod(second, 60)
        place = bisect_left(self._minutes, minute)
        if place < len(self._minutes) and self._minutes[place] == minute:
            if second <= self._seconds[-1]:
                return 60 * minute + self._seconds[bisect_left(self._seconds, second)]
            place += 1
        return 60 * self._minutes[place] + self._seconds[0] if place < len(self._minutes) else None
