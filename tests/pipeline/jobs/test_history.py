"""Rows of the history: a damaged one costs nobody else's runs."""

import logging
import sqlite3
from datetime import timedelta

import pytest

from dask_rl.pipeline.jobs.history import History
from dask_rl.pipeline.jobs.home import JobsHome
from dask_rl.pipeline.jobs.run_record import RunRecord
from dask_rl.pipeline.jobs.times import iso, parse_time
from dask_rl.pipeline.views.cli import run

FIRST = parse_time("2027-01-01T02:00:00Z")
GOOD = RunRecord(job="bad", time=FIRST, status="due").model_dump_json()
ROWS = {
    "empty": ("2027-01-01T02:00:00Z", "due", "{}"),
    "no text": ("2027-01-01T02:00:00Z", "due", sqlite3.Binary(b"\xff\xfe")),
    "a number": ("2027-01-01T02:00:00Z", "due", "7"),
    "another run": ("2027-01-01T03:00:00Z", "due", GOOD),
    "another status": ("2027-01-01T02:00:00Z", "running", GOOD),
    "a time that is none": ("now", "due", GOOD),
    "a time before all": ("now", "due", GOOD.replace("2027-01-01T02:00:00Z", "0001-01-01T00:00:00+23:00")),
    "a time without a zone": ("2027-01-01T02:00:00Z", "due", GOOD.replace("00Z", "00")),
}


@pytest.fixture
def home(tmp_path):
    return JobsHome(tmp_path / "home").create()


def insert(home, *values):
    with sqlite3.connect(home.database) as connection:
        connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", values)


@pytest.mark.parametrize("kind", sorted(ROWS))
def test_a_row_that_holds_no_run_is_left_alone(home, kind, caplog):
    caplog.set_level(logging.ERROR)
    history = History(home.database)
    good = RunRecord(job="nightly", time=FIRST - timedelta(days=1))
    history.put(good)
    time, status, content = ROWS[kind]
    insert(home, "bad", time, status, content)
    for _ in range(2):
        assert history.open() == history.latest() == history.latest(limit=1) == [good]
    assert history.latest("bad") == []
    assert history.damaged == [f"bad {time}"]
    assert caplog.text.count(f"run 'bad {time}' is left alone: its row holds no run") == 1
    with sqlite3.connect(home.database) as connection:
        assert connection.execute("SELECT record FROM runs WHERE job = 'bad'").fetchall() == [(content,)]


def test_text_that_is_none_costs_no_other_row(home):
    history = History(home.database)
    good = RunRecord(job="nightly", time=FIRST)
    history.put(good)
    with sqlite3.connect(home.database) as connection:
        connection.execute("INSERT INTO runs VALUES (CAST(x'ff' AS TEXT), 'x', 'due', CAST(x'fffe' AS TEXT))")
    assert history.open() == [good]
    assert len(history.damaged) == 1


def test_a_row_that_is_damaged_is_named_by_the_command(home, capsys):
    History(home.database).put(RunRecord(job="nightly", time=FIRST, status="complete"))
    insert(home, "gone", "2026-01-01T00:00:00Z", "due", "{}")
    assert run(["jobs", "history", "--home", str(home.path)]) == 0
    shown = capsys.readouterr().out
    assert f"nightly  {iso(FIRST)}  complete" in shown
    assert "gone 2026-01-01T00:00:00Z: its row holds no run\n" in shown
