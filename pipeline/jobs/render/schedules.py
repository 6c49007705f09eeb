"""Cron expressions in the words of other schedulers; exactly, or not at all."""

from collections.abc import Collection
from zoneinfo import ZoneInfo

from dask_rl.pipeline.jobs.cron_expression import CronExpression, in_ranges
from dask_rl.storage.errors import ConfigError, explain

_WEEKDAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")


def to_calendar(cron: CronExpression, timezone: str | None = None) -> list[str]:
    """Return systemd's calendar events, of which each makes the timer elapse.

    systemd wants days of the month and of the week to fit both, so cron's "one of them" becomes two events.

    Args:
        cron: when.
        timezone: name of a time zone; None: that of the machine.
    """
    months, days = _numbers(cron.months, 1, 12), _numbers(cron.days, 1, 31)
    time = f"{_numbers(cron.hours, 0, 23)}:{_numbers(cron.minutes, 0, 59)}:00"
    zone = f" {timezone}" if timezone else ""
    weekdays = _weekdays(cron.weekdays)
    if cron.needs_both or not weekdays or days == "*":
        prefix = weekdays if cron.needs_both else ""
        return [f"{prefix}*-{months}-{days if cron.needs_both else '*'} {time}{zone}"]
    return [f"*-{months}-{days} {time}{zone}", f"{weekdays}*-{months}-* {time}{zone}"]


def to_kubernetes(cron: CronExpression) -> str:
    """Return the schedule of a CronJob: numbers only, Sunday as 0.

    Raises:
        ConfigError: Kubernetes takes `*/2` as a list of days: with both kinds of days, one of them would do.
    """
    both = len(cron.days) < 31 and len(cron.weekdays) < 7
    if both and cron.needs_both:
        message = explain(
            "cron expression",
            got=repr(cron.text),
            allowed="for Kubernetes: days of the month or of the week, where one begins with */",
            fix="list the days in place of */, where either kind of days may do",
        )
        raise ConfigError(message)
    fields = (cron.minutes, 0, 59), (cron.hours, 0, 23), (cron.days, 1, 31), (cron.months, 1, 12), (cron.weekdays, 0, 6)
    numbers = [_list(values, low, high, "-") for values, low, high in fields]
    if not cron.needs_both:  # one of them would do, and a star would make it both
        numbers[2], numbers[4] = (
            number.replace("*", every) for number, every in ((numbers[2], "1-31"), (numbers[4], "0-6"))
        )
    return " ".join(numbers)


def check_timezone(name: str) -> str:
    """Return the name of a time zone that there is; raise ConfigError otherwise."""
    try:
        return ZoneInfo(name).key
    except (OSError, ValueError, KeyError):
        got, allowed = repr(name), "a name of the IANA database, as in Europe/Berlin"
        raise ConfigError(explain("--timezone", got=got, allowed=allowed, fix="correct it")) from None


def _numbers(values: Collection[int], low: int, high: int) -> str:
    return _list(values, low, high, "..")


def _list(values: Collection[int], low: int, high: int, dash: str) -> str:
    runs = in_ranges(values, low, high)
    if runs is None:
        return "*"
    return ",".join(f"{first}" if first == last else f"{first}{dash}{last}" for first, last in runs)


def _weekdays(values: Collection[int]) -> str:
    """Return the days as a prefix; nothing for all of them."""
    if len(values) == len(_WEEKDAYS):
        return ""
    return ",".join(_WEEKDAYS[day] for day in sorted(values)) + " "
