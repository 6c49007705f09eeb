"""What the clocks of a time zone show, as ranges of constant distance from UTC; all times in whole seconds."""

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

DAY_SECONDS = 86400
_HOUR_SECONDS = 3600


class Clock(NamedTuple):
    """From `begin` until before `end`, both since 1970 in UTC, this clock is `offset` ahead of UTC."""

    begin: int
    end: int
    offset: int


class _Change(NamedTuple):
    at: int
    before: int
    after: int


@lru_cache(4096)
def clocks_of_day(zone: tzinfo, day: int, shows_twice: bool) -> tuple[Clock, ...]:
    """Return the clocks by which due times of a day in UTC are read, counted from 1970.

    Where clocks go forward, the old one is read on for as long as they go: it shows the times that are left out.
    Where they go back, none is read until they are where they were.

    Args:
        zone: whose clocks.
        day: which.
        shows_twice: whether they are read nevertheless while they show times for the second time.
    """
    begin, end = day * DAY_SECONDS, (day + 1) * DAY_SECONDS
    changes = [change for near in range(day - 2, day + 1) for change in _changes(zone, near)]  # the longest are a day
    clocks = []
    since, offset = begin - 2 * DAY_SECONDS, _offset(zone, begin - 2 * DAY_SECONDS)
    for at, before, after in changes:
        clocks.append(Clock(since, at, before))
        if after > before:
            clocks.append(Clock(at, at + after - before, before))
        since, offset = at if shows_twice else max(at, at + before - after), after
    clocks.append(Clock(since, end, offset))
    cut = [Clock(max(clock.begin, begin), min(clock.end, end), clock.offset) for clock in clocks]
    return tuple(clock for clock in cut if clock.begin < clock.end)


@lru_cache(4096)
def _changes(zone: tzinfo, day: int) -> tuple[_Change, ...]:
    """Return where clocks change on a day in UTC; never twice in an hour."""
    changes = []
    for low in range(day * DAY_SECONDS, (day + 1) * DAY_SECONDS, _HOUR_SECONDS):
        before, after, high = _offset(zone, low - 1), _offset(zone, low + _HOUR_SECONDS - 1), low + _HOUR_SECONDS - 1
        if before == after:
            continue
        low -= 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
        changes.append(_Change(high, before, after))
    return tuple(changes)


def _offset(zone: tzinfo, time: int) -> int:
    offset = datetime.fromtimestamp(time, UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())
