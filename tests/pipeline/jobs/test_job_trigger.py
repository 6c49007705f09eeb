"""When jobs are due: as crontab(5) says, also where clocks are put forward or back."""

from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
        ("0 0 * * *", (3, 27, 12), ["03-28 00:00 +0100", "03-29 00:00 +0200", "03-30 00:00 +0200"]),
        ("0 0 * * 1", (3, 22, 0), ["03-22 00:00 +0100", "03-29 00:00 +0200", "04-05 00:00 +0200"]),
        ("0 0 1 * *", (3, 1, 0), ["03-01 00:00 +0100", "04-01 00:00 +0200", "05-01 00:00 +0200"]),
    ],
)
def test_a_job_is_due_once_a_day_whatever_clocks_do(cron, start, expected):
    assert due_times(cron, datetime(2027, *start, tzinfo=BERLIN), len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "day", "expected"),
    [
        ("0 0 * * *", "America/Santiago", (2027, 9, 5), "09-05 01:00 -0300"),
        ("30 0 * * *", "America/Havana", (2027, 3, 14), "03-14 01:30 -0400"),
        ("59 0 * * *", "Asia/Beirut", (2027, 3, 28), "03-28 01:59 +0300"),
        ("0 0 * * *", "Atlantic/Azores", (2027, 3, 28), "03-28 01:00 +0000"),
        ("0 0 * * *", "Africa/Cairo", (2027, 4, 30), "04-30 01:00 +0300"),
        ("10 2 * * *", "Australia/Lord_Howe", (2027, 10, 3), "10-03 02:40 +1100"),
        ("0 9 30 12 *", "Pacific/Apia", (2011, 12, 30), "12-31 09:00 +1400"),  # it had no 30 December
    ],
)
def test_a_time_that_is_left_out_is_due_as_much_later(cron, zone, day, expected):
    start = datetime(*day, tzinfo=UTC) - timedelta(hours=20)
    last = datetime.strptime(f"{day[0]}-{expected}", "%Y-%m-%d %H:%M %z")
    trigger = JobTrigger(cron, zone)
    due = trigger.get_next_fire_time(None, start)
    while due < last:
        due = trigger.get_next_fire_time(due, due + timedelta(seconds=2))
    assert due.strftime("%m-%d %H:%M %z") == expected


CHANGES = {  # days, in UTC, around which clocks changed: at night, at midnight, by half an hour, by a day
    "Europe/Berlin": [(2027, 3, 28), (2027, 10, 31)],
    "America/New_York": [(2027, 3, 14), (2027, 11, 7)],
    "America/Havana": [(2027, 3, 14), (2027, 11, 7)],
    "America/Sao_Paulo": [(2018, 2, 18), (2018, 11, 4)],
    "America/St_Johns": [(2010, 3, 14), (2010, 11, 7)],
    "Africa/Cairo": [(2027, 4, 30), (2027, 10, 29)],
    "Africa/Casablanca": [(2024, 3, 10), (2024, 4, 14)],
    "Antarctica/Troll": [(2027, 3, 28), (2027, 10, 31)],
    "Asia/Pyongyang": [(2015, 8, 14), (2018, 5, 4)],
    "Australia/Lord_Howe": [(2027, 4, 3), (2027, 10, 2)],
    "Pacific/Apia": [(2011, 12, 30), (2011, 9, 24)],
    "Pacific/Chatham": [(2027, 4, 3), (2027, 9, 25)],
}


def due_minutes(expression, zone, begin, end):
    """What README says, minute after minute."""
    is_hourly, minute = expression.text.split()[1].startswith("*"), timedelta(minutes=1)
    due, time = set(), begin - timedelta(days=1)
    before = time.astimezone(zone).replace(tzinfo=None)
    while time < end:
        local = time.astimezone(zone)
        shown = local.replace(tzinfo=None)
        if expression.is_due(shown) and (is_hourly or not local.fold):
            due.add(time)
        for number in range((shown - before) // minute - 1):  # those that clocks left out just now
            if expression.is_due(before + (number + 1) * minute):
                due.add(time + number * minute)
        before = shown
        time += minute
    return sorted(time for time in due if begin <= time < end)


def has_same_due_times(cron, zone, begin, days):
    """Whether a trigger is due when README says so."""
    end, trigger, found = begin + timedelta(days=days), JobTrigger(cron, zone), []
    time = trigger.get_next_fire_time(None, begin).astimezone(UTC)
    while time < end:
        found.append(time)
        assert trigger.get_next_fire_time(None, time - timedelta(seconds=30)).astimezone(UTC) == time
        time = trigger.get_next_fire_time(time, time).astimezone(UTC)
    return found == due_minutes(parse_cron(cron), ZoneInfo(zone), begin, end)


expressions = st.tuples(
    st.sampled_from(["0", "1", "30", "59", "*/15", "5-50/9", "*/7,3"]),
    st.sampled_from(["0", "1", "2", "23", "0,1", "0-3", "22-23", "*", "*/2", "*/5"]),
    st.sampled_from(["*", "1", "14,28-31", "*/2"]),
    st.sampled_from(["*", "3-4", "9-12"]),
    st.sampled_from(["*", "0", "1", "sun,fri"]),
).map(" ".join)
days = st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days])


@settings(max_examples=5, deadline=None)
@example("0 0 * * *", ("America/New_York", (2027, 3, 14)), 0)
@example("30 0 * * *", ("Africa/Cairo", (2027, 4, 30)), 2000)
@example("*/15 * * * *", ("Australia/Lord_Howe", (2027, 4, 3)), 1000)
@given(expressions, days, st.integers(0, 2 * 1440))
def test_due_times_are_those_of_whoever_looks_every_minute(cron, day, minutes_before):
    """Also from the middle of a change on."""
    zone, date = day
    begin = datetime(*date, tzinfo=UTC) + timedelta(days=1, minutes=-minutes_before)
    assert has_same_due_times(cron, zone, begin, days=1)


def changes_of(zone):
    """Days, in UTC, on which clocks change, since 1975."""
    days = [datetime.fromtimestamp(number * 86400, UTC) for number in range(1827, 25000)]
    offsets = [day.astimezone(zone).utcoffset() for day in days]
    return [day for day, offset, after in zip(days, offsets, offsets[1:], strict=False) if offset != after]


@pytest.mark.storm
@pytest.mark.parametrize("initial", "ABCDEFGHIJKLMNOPQRSTUVWYZ")
def test_due_times_are_those_of_whoever_looks_every_minute_in_all_zones(initial):
    random = Random(initial)
    crons = ["0 0 * * *", "30 */2 * * *", "*/20 0-3 * * 0,5", "15 23 * * *", "45 1,2 */2 * *", "7 * * * *"]
    zones = [name for name in available_timezones() if name.rpartition("/")[2].startswith(initial)]
    for zone in sorted(zones):
        changes = changes_of(ZoneInfo(zone))
        for day in random.sample(changes, min(3, len(changes))):
            cron, begin = random.choice(crons), day - timedelta(hours=12)
            assert has_same_due_times(cron, zone, begin, days=2), (cron, zone, begin)


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
