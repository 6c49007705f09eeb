"""Schedules of other schedulers elapse at the minutes of the cron expression, by systemd's own reckoning."""

import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dask_rl.pipeline.jobs.cron_expression import parse_cron
from dask_rl.pipeline.jobs.render.schedules import check_timezone, to_calendar, to_kubernetes
from dask_rl.storage.errors import ConfigError

BEGIN = datetime(2027, 12, 25, 12, tzinfo=UTC)  # a leap year follows
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")


def elapses(events, number):
    """The first times after BEGIN at which one of the events elapses, as systemd says."""
    command = ["systemd-analyze", "calendar", f"--iterations={number}", f"--base-time={BEGIN:%Y-%m-%d %H:%M:%S} UTC"]
    done = subprocess.run([*command, *events], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"(?:Next elapse|Iter\. #\d+|\(in UTC\)): \w{3} ([\d-]+ [\d:]+) UTC", done.stdout)
    return sorted({datetime.strptime(time, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) for time in found})[:number]


def due(cron, number, days=1200):
    """The first minutes after BEGIN at which it is due, found one by one."""
    found = []
    for day in range(days):
        midnight = BEGIN.replace(hour=0) + timedelta(days=day)
        if not any(cron.is_due(midnight.replace(hour=hour, minute=min(cron.minutes))) for hour in cron.hours):
            continue
        clock = product(sorted(cron.hours), sorted(cron.minutes))
        times = (midnight.replace(hour=hour, minute=minute) for hour, minute in clock)
        found += [time for time in times if time > BEGIN and cron.is_due(time)]
        if len(found) >= number:
            return found[:number]
    return found


def fields(low, high, names=()):
    """Fields of a cron expression in all forms."""
    numbers = st.integers(low, high)
    ranges = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}")
    stepped = st.tuples(st.one_of(st.just("*"), ranges), st.integers(1, 12)).map("{0[0]}/{0[1]}".format)
    single = st.one_of(numbers.map(str), ranges, stepped, *([st.sampled_from(names)] if names else []))
    return st.one_of(st.just("*"), st.lists(single, min_size=1, max_size=3).map(",".join))


crons = st.tuples(
    fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12, ["feb", "Dec"]), fields(0, 7, ["sun", "WED"])
).map(" ".join)


@needs_systemd
@settings(max_examples=25)
@given(crons)
def test_systemd_elapses_at_the_minutes_of_the_expression(text):
    try:
        cron = parse_cron(text)
    except ConfigError:
        assume(False)
    assert elapses(to_calendar(cron, "UTC"), 5)[:5] == due(cron, 5)


@needs_systemd
def test_systemd_takes_one_of_both_kinds_of_days_as_two_events():
    assert to_calendar(parse_cron("0 0 13 * 5")) == ["*-*-13 0:0:00", "Fri *-*-* 0:0:00"]
    assert to_calendar(parse_cron("0 2 * * *"), "Europe/Berlin") == ["*-*-* 2:0:00 Europe/Berlin"]
    berlin = elapses(to_calendar(parse_cron("30 2 * * *"), "Europe/Berlin"), 1)
    assert berlin == [datetime(2027, 12, 26, 1, 30, tzinfo=UTC)]


def robfig(text):
    """The days of 2028 at which Kubernetes runs: its cron library ANDs days only where one of them is a bare star."""
    minute, hour, day, month, weekday = text.split()
    sets = [
        {n for part in word.split(",") for n in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
        if word != "*"
        else set(range(low, high + 1))
        for word, low, high in ((minute, 0, 59), (hour, 0, 23), (day, 1, 31), (month, 1, 12), (weekday, 0, 6))
    ]
    found = []
    for number in range(366):
        time = datetime(2028, 1, 1) + timedelta(days=number)
        in_month, in_week = time.day in sets[2], time.isoweekday() % 7 in sets[4]
        fits = in_month and in_week if "*" in (day, weekday) else in_month or in_week
        if time.month in sets[3] and fits:
            found.append(time)
    return found, sets[0], sets[1]


@given(crons)
def test_kubernetes_runs_at_the_minutes_of_the_expression(text):
    try:
        cron = parse_cron(text)
        schedule = to_kubernetes(cron)
    except ConfigError:
        assume(False)
    days, minutes, hours = robfig(schedule)
    assert (minutes, hours) == (cron.minutes, cron.hours)
    at = {"minute": min(minutes), "hour": min(hours)}
    year = [datetime(2028, 1, 1) + timedelta(days=number) for number in range(366)]
    assert days == [day for day in year if cron.is_due(day.replace(**at))]


def test_what_kubernetes_would_take_otherwise_is_refused():
    assert to_kubernetes(parse_cron("@weekly")) == "0 0 * * 0"
    assert to_kubernetes(parse_cron("0 0 13 * 5")) == "0 0 13 * 5"
    assert to_kubernetes(parse_cron("0 0 1-31 * 5")) == "0 0 1-31 * 5"
    with pytest.raises(ConfigError, match=r"'0 0 \*/2 \* 1'; allowed: for Kubernetes"):
        to_kubernetes(parse_cron("0 0 */2 * 1"))


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "UTC\nX=1"])
def test_a_time_zone_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match="--timezone: got"):
        check_timezone(name)
    assert check_timezone("Europe/Berlin") == "Europe/Berlin"
