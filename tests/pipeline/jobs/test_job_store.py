"""Rows of the schedule: JSON, checked; what else stands there is neither run nor unpickled nor removed."""

import json
import logging
import pickle
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from job_cases import Hostile

from dask_rl.pipeline.jobs.home import JobsHome
from dask_rl.pipeline.jobs.job_entry import JobEntry
from dask_rl.pipeline.jobs.job_store import JsonJobStore
from dask_rl.pipeline.jobs.schedule import _NoExecutor, make_scheduler, open_schedule
from dask_rl.storage.errors import ConfigError, RunStateError


@pytest.fixture
def home(tmp_path):
    return JobsHome(tmp_path / "home").create()


def entry(name="nightly", **settings):
    values = {
        "name": name,
        "cron": "0 2 * * *",
        "timezone": "UTC",
        "job_file": f"/jobs/{name}.yaml",
        "directory": "/jobs",
        "added": datetime(2027, 1, 1, tzinfo=UTC),
    }
    return JobEntry(**values | settings)


def execute(home, statement, *values):
    with sqlite3.connect(home.database) as connection:
        return connection.execute(statement, values).fetchall()


def test_jobs_come_back_as_they_were_added(home):
    with open_schedule(home) as schedule:
        due = schedule.add(entry())
        schedule.add(entry("weekly", cron="0 3 * * 0", timezone="Europe/Berlin", misfire_grace_seconds=60))
    with open_schedule(home) as schedule:
        (first, first_due), (second, _) = schedule.jobs()
        assert (first, first_due) == (entry(), due)
        assert second.misfire_grace_seconds == 60
    (row,) = execute(home, "SELECT job_state FROM apscheduler_jobs WHERE id = 'nightly'")
    assert json.loads(row[0])["cron"] == "0 2 * * *"


def test_pausing_resuming_removing(home):
    with open_schedule(home) as schedule:
        due = schedule.add(entry())
        schedule.pause("nightly")
        assert schedule.jobs() == [(entry(), None)]
        assert schedule.resume("nightly") == due
        schedule.remove("nightly")
        assert schedule.jobs() == []
        for act in (schedule.pause, schedule.resume, schedule.remove, schedule.get):
            with pytest.raises(ConfigError, match=r"job: got 'nightly'; allowed: none: add one with"):
                act("nightly")


def test_a_name_is_of_one_file(home):
    with open_schedule(home) as schedule:
        schedule.add(entry())
        schedule.add(entry(cron="0 4 * * *"))
        assert schedule.get("nightly")[0].cron == "0 4 * * *"
        with pytest.raises(ConfigError, match=r"job name: got nightly, that of /jobs/nightly.yaml"):
            schedule.add(entry(job_file="/elsewhere/nightly.yaml"))


def hostile_rows(tmp_path):
    good = entry("bad").model_dump_json()
    return {
        "pickle": pickle.dumps(Hostile(tmp_path / "unpickled")),
        "no text": b"\xff\xfe",
        "json of another kind": b"[1, 2]",
        "another key": good.replace('"cron"', '"command": "rm", "cron"').encode(),
        "another job": entry("other").model_dump_json().encode(),
        "a name that leads away": good.replace('"bad"', '"../bad"').encode(),
        "a relative file": good.replace("/jobs/bad.yaml", "bad.yaml").encode(),
        "no expression": good.replace("0 2 * * *", "now").encode(),
        "no zone": good.replace("UTC", "../../etc").encode(),
        "empty": b"",
    }


@pytest.mark.parametrize("kind", sorted(hostile_rows(Path())))
def test_a_row_that_holds_no_job_is_left_alone(home, tmp_path, kind, caplog):
    caplog.set_level(logging.ERROR)  # Dask's clusters set the level of pytest's handlers too
    content = hostile_rows(tmp_path)[kind]
    with open_schedule(home) as schedule:
        schedule.add(entry())
    execute(home, "INSERT INTO apscheduler_jobs VALUES ('bad', 1.0, ?)", content)
    with open_schedule(home) as schedule:
        assert [job.name for job, _ in schedule.jobs()] == ["nightly"]
        assert schedule.damaged() == ["bad"]
        with pytest.raises(ConfigError, match="job: got 'bad'"):
            schedule.pause("bad")
        with pytest.raises(ConfigError, match="damaged"):
            schedule.add(entry("bad"))
    assert not (tmp_path / "unpickled").exists()
    assert caplog.text.count("job 'bad' is left alone") == 1
    assert execute(home, "SELECT job_state FROM apscheduler_jobs WHERE id = 'bad'") == [(content,)]
    with open_schedule(home) as schedule:
        schedule.remove("bad")
        assert schedule.damaged() == []


@pytest.mark.parametrize(
    "row", ["'bad', 1.0, 'text'", "CAST(x'ff' AS TEXT), 1.0, x'00'", "'bad', 'soon', x'00'", "x'ff', 1.0, x'00'"]
)
def test_values_of_another_kind_stop_no_job_and_are_never_due(home, row):
    with open_schedule(home) as schedule:
        due = schedule.add(entry())
    execute(home, f"INSERT INTO apscheduler_jobs VALUES ({row})")
    with open_schedule(home) as schedule:
        assert schedule.jobs() == [(entry(), due)]
        assert len(schedule.damaged()) == 1
    store = JsonJobStore(home.database, yields=True)
    scheduler = make_scheduler(store, _NoExecutor())
    scheduler.start()
    assert scheduler.process() > 0
    scheduler.shutdown()


def test_the_pickle_is_one():
    """Else the test above could not fail."""
    with pytest.raises(FileExistsError):
        pickle.loads(pickle.dumps(Hostile("/")))  # noqa: S301


def test_a_file_that_is_no_database_is_refused(home):
    home.database.write_text("something else, and long enough to be taken for a header of SQLite's " * 20)
    with pytest.raises(RunStateError, match="file is not a database"), open_schedule(home) as schedule:
        schedule.jobs()


@pytest.mark.parametrize(
    ("mode", "who"), [(0o777, "everybody"), (0o703, "everybody"), (0o775, "its group"), (0o720, "its group")]
)
def test_a_home_that_others_can_write_is_refused(tmp_path, mode, who):
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(mode)
    with pytest.raises(ConfigError, match=rf"open to {who}; allowed: one that others cannot write; chmod go-w"):
        JobsHome(tmp_path / "home").create()


def test_a_home_is_made_for_its_owner(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_RL_HOME", str(tmp_path / "a" / "home"))
    home = JobsHome().create()
    assert home.path == tmp_path / "a" / "home"
    assert home.path.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("DASK_RL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert JobsHome().path == tmp_path / ".dask-rl"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"home .*file"):
        JobsHome(tmp_path / "file" / "x").create()
