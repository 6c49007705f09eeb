"""Cron expressions as crontab(5) means them: five fields, with its rule about days of month and of week."""

import calendar
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime

from dask_rl.storage.errors import ConfigError, explain

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(
    r"(?:(?P<star>\*)|(?P<first>[0-9]{1,4}|[a-z]{3})(?:-(?P<last>[0-9]{1,4}|[a-z]{3}))?)(?:/(?P<step>[0-9]{1,4}))?"
)


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    names: dict[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


@dataclass(frozen=True)
class CronExpression:
    """The minutes at which something is due."""

    text: str
    """As it was written, in five fields."""
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday, 6 Saturday."""
    needs_both: bool
    """Whether the days of the month and of the week must both fit, as where one begins with *; else one of them."""

    def is_due(self, time: datetime) -> bool:
        """Whether the minute of `time` is one of these."""
        return self.is_due_on(time) and time.hour in self.hours and time.minute in self.minutes

    def is_due_on(self, day: date) -> bool:
        """Whether some minute of a day is one of these."""
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        fits = in_month and in_week if self.needs_both else in_month or in_week
        return fits and day.month in self.months


def parse_cron(text: str) -> CronExpression:
    """Parse five fields (minute, hour, day of month, month, day of week), or @daily and its like.

    Raises:
        ConfigError: it is not one, or names no day that any year has.
    """
    words = _MACROS.get(text.strip().lower(), text).lower().split()
    if len(words) != len(_FIELDS):
        raise _refused(text, "five fields: minute hour day-of-month month day-of-week, or @daily, @hourly, …")
    values = [_parse_field(text, word, field) for word, field in zip(words, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = values
    needs_both = words[2].startswith("*") or words[4].startswith("*")
    if needs_both and not any(min(days) <= _LONGEST[month - 1] for month in months):
        raise _refused(text, "a day that its months have")
    folded = frozenset(day % 7 for day in weekdays)
    return CronExpression(" ".join(words), minutes, hours, days, months, folded, needs_both)


def in_ranges(values: Collection[int], low: int, high: int) -> list[tuple[int, int]] | None:
    """Return values as runs of neighbours (first, last); None where they are all from low to high."""
    if len(values) > high - low:
        return None
    runs: list[tuple[int, int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def _parse_field(text: str, word: str, field: _Field) -> frozenset[int]:
    return frozenset(value for part in word.split(",") for value in _parse_part(text, part, field))


def _parse_part(text: str, part: str, field: _Field) -> Iterable[int]:
    match = _PART.fullmatch(part)
    allowed = f"in {field.name}: *, or numbers from {field.low} to {field.high}, with , - and /"
    if match is None:
        raise _refused(text, allowed)
    if match["star"]:
        first, last = field.low, min(field.high, 6) if field.names is _DAYS else field.high
    else:
        first = _number(match["first"], field, text, allowed)
        last = _number(match["last"], field, text, allowed) if match["last"] else first
        if match["step"] and not match["last"]:
            raise _refused(text, f"in {field.name}: a step after * or after a range, as in {first}-{field.high}/…")
    step = int(match["step"] or 1)
    if not field.low <= first <= last <= field.high or step < 1:
        raise _refused(text, allowed)
    return range(first, last + 1, step)


def _number(word: str, field: _Field, text: str, allowed: str) -> int:
    if word.isdigit():
        return int(word)
    if word not in field.names:
        raise _refused(text, allowed)
    return field.names[word]


def _refused(text: str, allowed: str) -> ConfigError:
    return ConfigError(explain("cron expression", got=repr(text), allowed=allowed, fix='write it as in "0 2 * * *"'))
