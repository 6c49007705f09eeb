"""Cron expressions mean what crontab(5) says, and nothing that it does not say."""

from datetime import datetime, timedelta

import pytest

from dask_rl.pipeline.jobs.cron_expression import in_ranges, parse_cron
from dask_rl.storage.errors import ConfigError

JANUARY = datetime(2026, 1, 1)  # a Thursday


def due(text, first=JANUARY, days=31):
    """The minutes of some days at which an expression is due."""
    cron = parse_cron(text)
    minutes = (first + timedelta(minutes=number) for number in range(days * 24 * 60))
    return [minute for minute in minutes if cron.is_due(minute)]


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("30 2 * * *", ["02:30"]),
        ("*/20 5-6 * * *", ["05:00", "05:20", "05:40", "06:00", "06:20", "06:40"]),
        ("5,1-3 0 * * *", ["00:01", "00:02", "00:03", "00:05"]),
        ("10-50/20 23 * * *", ["23:10", "23:30", "23:50"]),
        ("@daily", ["00:00"]),
        ("0 */8 1 jan *", ["00:00", "08:00", "16:00"]),
    ],
)
def test_times_of_a_day(text, times):
    assert [f"{time:%H:%M}" for time in due(text, days=1)] == times


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0 0 1,15 * *", [1, 15]),
        ("0 0 * * 0", [4, 11, 18, 25]),
        ("0 0 * * 7", [4, 11, 18, 25]),
        ("0 0 * * Sun", [4, 11, 18, 25]),
        ("0 0 * * fri-7", [2, 3, 4, 9, 10, 11, 16, 17, 18, 23, 24, 25, 30, 31]),
        ("0 0 * * */3", [3, 4, 7, 10, 11, 14, 17, 18, 21, 24, 25, 28, 31]),  # 0, 3, 6
        ("0 0 13 * 5", [2, 9, 13, 16, 23, 30]),  # neither begins with *: one of them will do
        ("0 0 */10 * 4", [1]),  # one does: both must fit, and of 1, 11, 21, 31 one is a Thursday
        ("0 0 1-31 * 1", list(range(1, 32))),
        ("@monthly", [1]),
        ("@weekly", [4, 11, 18, 25]),
    ],
)
def test_days_of_a_month(text, days):
    assert [time.day for time in due(text)] == days


def test_a_month_without_the_day_has_its_weekdays():
    assert [time.day for time in due("0 0 31 2 4", datetime(2026, 2, 1), days=28)] == [5, 12, 19, 26]


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "@reboot", "@fortnightly", "60 * * * *", "* 24 * * *", "* * 0 * *"),
        *("* * 32 * *", "* * * 13 *", "* * * 0 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *", "5/2 * * * *"),
        *("-1 * * * *", "1- * * * *", "* * L * *", "* * 15W * *", "* * * * 5#2", "* * ? * *", "H * * * *"),
        *("1~5 * * * *", "jan * * * *", "* * * mon *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "1,,2 * * * *"),
        *(f"{'9' * 5000} * * * *", "٣ * * * *", "* * * * 1\n* * * * 2"),
    ],
)
def test_what_is_no_cron_expression_is_refused_in_one_line(text):
    with pytest.raises(ConfigError, match="cron expression: got ") as caught:
        parse_cron(text)
    assert len(str(caught.value).splitlines()) == 1


def test_neighbours_become_ranges():
    assert in_ranges({1, 2, 3, 7, 9, 10}, 1, 31) == [(1, 3), (7, 7), (9, 10)]
    assert in_ranges(range(60), 0, 59) is None
    assert in_ranges(range(59), 0, 59) == [(0, 58)]
