"""When jobs are due: as crontab(5) says, also where clocks are put forward or back."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from dask_rl.pipeline.jobs.cron_expression import parse_cron
from dask_rl.pipeline.jobs.job_trigger import JobTrigger, local_timezone, parse_timezone
from dask_rl.storage.errors import ConfigError

BERLIN = ZoneInfo("Europe/Berlin")


def due_times(cron, start, count, zone="Europe/Berlin"):
    trigger, times = JobTrigger(cron, zone), []
    time = trigger.get_next_fire_time(None, start)
    for _ in range(count):
        times.append(time.strftime("%m-%d %H:%M %z"))
        time = trigger.get_next_fire_time(time, time)
    return times


@pytest.mark.parametrize(
    ("cron", "start", "expected"),
    [
        # clocks go from 02:00 to 03:00 on 28 March 2027, and from 03:00 to 02:00 on 31 October
        ("30 2 * * *", (3, 27, 12), ["03-28 03:30 +0200", "03-29 02:30 +0200"]),
        ("30 2 * * *", (10, 30, 12), ["10-31 02:30 +0200", "11-01 02:30 +0100"]),
        ("*/30 2 * * *", (10, 30, 12), ["10-31 02:00 +0200", "10-31 02:30 +0200", "11-01 02:00 +0100"]),
        ("0 * * * *", (3, 28, 0), ["03-28 00:00 +0100", "03-28 01:00 +0100", "03-28 03:00 +0200"]),
        ("0 * * * *", (10, 31, 1), ["10-31 01:00 +0200", "10-31 02:00 +0200", "10-31 02:00 +0100"]),
        ("0 3 * * *", (10, 30, 12), ["10-31 03:00 +0100", "11-01 03:00 +0100"]),
        ("0 3 * * *", (3, 27, 12), ["03-28 03:00 +0200", "03-29 03:00 +0200"]),
    ],
)
def test_a_job_is_due_once_a_day_whatever_clocks_do(cron, start, expected):
    assert due_times(cron, datetime(2027, *start, tzinfo=BERLIN), len(expected)) == expected


def test_going_on_from_the_first_of_two_equal_times_leaves_the_second_out():
    """As a server does that was started between the two."""
    trigger = JobTrigger("30 2 * * *", "Europe/Berlin")
    between = datetime(2027, 10, 31, 0, 45, tzinfo=UTC)
    assert trigger.get_next_fire_time(None, between) == datetime(2027, 11, 1, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "cron", ["0 2 * * 0", "0 2 * * 7", "15 */6 1,15 * *", "0 0 13 * 5", "5 4 * 2-3 mon-fri", "0 0 */2 * 1", "@weekly"]
)
def test_it_is_due_at_every_minute_of_the_expression_and_at_no_other(cron):
    """Sunday is 0 and 7, and either day of month or of week is enough: not as APScheduler has it by itself."""
    expression = parse_cron(cron)
    start = datetime(2027, 1, 1, tzinfo=UTC)
    minutes = [start + timedelta(minutes=minute) for minute in range(0, 120 * 1440)]
    expected = [minute for minute in minutes if expression.is_due(minute)]
    trigger, found = JobTrigger(cron, "UTC"), []
    time = trigger.get_next_fire_time(None, start)
    while time is not None and time < minutes[-1]:
        found.append(time)
        time = trigger.get_next_fire_time(time, time)
    assert found == expected
    assert found


def test_six_fields_begin_with_seconds():
    trigger = JobTrigger("*/20 * * * * *", "UTC")
    start = datetime(2027, 1, 1, 0, 0, 1, tzinfo=UTC)
    first = trigger.get_next_fire_time(None, start)
    assert first == start.replace(second=20)
    assert trigger.get_next_fire_time(first, first) == start.replace(second=40)


@pytest.mark.parametrize(
    ("cron", "years", "expected_behind"),
    [("* * * * *", 30, 0), ("0 2 * * *", 30, 10 * 3600), ("*/7 * * * * *", 1, 0)],
)
def test_the_last_of_many_due_times_is_found_at_once(cron, years, expected_behind):
    trigger = JobTrigger(cron, "UTC")
    at = datetime(2027, 6, 1, 12, 0, 0, tzinfo=UTC)
    first = trigger.get_next_fire_time(None, at - timedelta(days=365 * years))
    last = trigger.last_due(first, at)
    assert (at - last).total_seconds() == expected_behind
    assert trigger.last_due(at.replace(hour=2), at) >= at.replace(hour=2)
    assert trigger.last_due(last, last) == last


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "../../etc/passwd", "/etc/localtime", "", "Europe", "a\0b", "x" * 5000]
)
def test_a_zone_that_there_is_not_is_refused(name):
    with pytest.raises(ConfigError, match="timezone: got"):
        JobTrigger("0 2 * * *", name)


def test_without_a_zone_it_is_this_machines():
    assert parse_timezone(None) == ZoneInfo(local_timezone())


@pytest.mark.parametrize(
    "cron", ["", "nightly", "61 * * * *", "* * * *", "0 0 30 2 *", "99 * * * * *", "1 2 3 4 5 6 7"]
)
def test_what_is_no_expression_is_refused(cron):
    with pytest.raises(ConfigError, match="cron expression: got"):
        JobTrigger(cron, "UTC")
