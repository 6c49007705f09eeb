"""`dask-rl jobs …` on the command line, beside a server or without one."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from job_cases import Jobs

from dask_rl.pipeline.jobs.history import MAX_ROWS_PER_JOB, History
from dask_rl.pipeline.jobs.home import JobsHome
from dask_rl.pipeline.jobs.run_record import RunRecord
from dask_rl.pipeline.jobs.running import MAX_DEATHS, Running
from dask_rl.pipeline.jobs.times import folder_name, iso, parse_time
from dask_rl.pipeline.views.cli import run
from dask_rl.storage.errors import ConfigError

pytestmark = pytest.mark.service


@pytest.fixture
def call(jobs, monkeypatch, capsys):
    """Run a command here; returns what it printed as JSON, of an error stderr."""
    monkeypatch.chdir(jobs.directory)

    def run_one(*words, code=0, text=False):
        as_json = [] if text else ["--json"]
        assert run(["jobs", *map(str, words), "--home", str(jobs.home), *as_json]) == code
        captured = capsys.readouterr()
        if code or text:
            return captured.err if code else captured.out
        return json.loads(captured.out)

    return run_one


def put(jobs: Jobs, **settings) -> RunRecord:
    record = RunRecord(**{"job": "nightly", "time": parse_time("2027-01-01T02:00:00Z"), "status": "failed"} | settings)
    History(JobsHome(jobs.home).create().database).put(record)
    return record


def test_a_job_from_adding_to_removing(jobs, call):
    added = call("add", jobs.write(), "--cron", "0 2 * * *", "--timezone", "Europe/Berlin")
    assert (added["name"], added["timezone"], added["server_pid"]) == ("nightly", "Europe/Berlin", None)
    (listed,) = call("list")["jobs"]
    assert (listed["name"], listed["paused"], listed["last"]) == ("nightly", False, None)
    assert listed["next"] == added["next"]
    shown = call("show", "nightly")
    assert (len(shown["next"]), shown["current"], shown["problem"]) == (5, None, None)
    assert shown["runs"] == str(jobs.base())
    assert call("pause", "nightly")["paused"]
    assert call("list")["jobs"][0]["next"] is None
    assert "paused" in call("list", text=True)
    assert call("resume", "nightly")["next"] == listed["next"]
    requested = call("run-now", "nightly")
    assert (requested["status"], requested["requested"]) == ("due", True)
    assert call("run-now", "nightly")["time"] > requested["time"]  # in the same second too
    call("remove", "nightly")
    assert call("list")["jobs"] == []
    assert len(call("history", "nightly")["runs"]) == 2


def test_the_text_of_commands_says_what_to_do_next(jobs, call):
    text = call("add", jobs.write(), "--cron", "0 2 * * *", "--timezone", "UTC", text=True)
    assert text.startswith("nightly is due at ")
    assert text.endswith("no server is running: start `dask-rl jobs serve`\n")
    assert "never ran" in call("list", text=True)
    assert call("history", text=True) == "nothing ran yet\n"
    put(jobs, message="x" * 500, evaluation={"return_mean": -1.5}, datasets={"d.zarr": "0123456789abcdef"})
    head, row = call("history", text=True).splitlines()
    assert head.split() == [
        "job",
        "time",
        "status",
        "exit_code",
        "attempts",
        "dataset",
        "return",
        "promoted",
        "message",
    ]
    assert row.endswith(f"{'x' * 80}…")
    assert " 01234567  -1.5 " in row
    assert "2027-01-01T02:00:00Z, failed" in call("show", "nightly", text=True)


def test_the_last_log_is_printed(jobs, call, tmp_path):
    put(jobs, status="missed")
    assert "log of nightly: got none" in call("logs", "nightly", code=2)
    (tmp_path / "log.txt").write_text("one\ntwo\nthree\n")
    put(jobs, run=str(tmp_path))
    put(jobs, time=parse_time("2027-01-02T02:00:00Z"), status="skipped")  # has none
    assert call("logs", "nightly", "--lines", 2, text=True) == "two\nthree\n"
    assert call("logs", "nightly", "--time", "2027-01-01T02-00-00Z")["log"] == "one\ntwo\nthree"
    assert "run of nightly: got 2027-01-03T00:00:00Z" in call("logs", "nightly", "--time", "2027-01-03", code=2)


def test_only_a_run_that_did_not_end_well_is_run_again(jobs, call):
    call("add", jobs.write(), "--cron", "0 2 * * *")
    put(jobs)
    again = call("run-now", "nightly", "--time", "2027-01-01T02:00:00Z")
    assert (again["status"], again["message"]) == ("due", None)
    for status in ("complete", "running", "due"):
        put(jobs, status=status)
        message = call("run-now", "nightly", "--time", "2027-01-01T02:00:00Z", code=2)
        assert f"run 2027-01-01T02:00:00Z: got {status}" in message
    assert "got '2027-13-01'; allowed: an ISO 8601 time" in call("run-now", "nightly", "--time", "2027-13-01", code=2)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a b", "a/b", "-x", "ünd", "a\nb", "a;rm", "x" * 64, "$(x)"])
def test_names_that_could_lead_elsewhere_are_refused(jobs, call, name):
    message = call("add", jobs.write(), "--cron", "0 2 * * *", f"--name={name}", code=2)
    assert "job name: got" in message
    assert call("list")["jobs"] == []


def test_a_file_whose_name_is_none_needs_another(jobs, call):
    assert "take --name my-job" in call("add", jobs.write("my job"), "--cron", "0 2 * * *", code=2)
    assert call("add", "my job.yaml", "--cron", "0 2 * * *", "--name", "my-job")["name"] == "my-job"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cron", "0 25 * * *"], "cron expression: got '0 25 * * *'"),
        (["--cron", "0 2 * * *", "--timezone", "Mars"], "timezone: got 'Mars'"),
        (["--cron", "0 2 * * *", "--misfire-grace-seconds", 0], "misfire-grace-seconds"),
        ([], "Missing option '--cron'"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_added(jobs, call, options, message):
    assert message in call("add", jobs.write(), *options, code=2)
    assert call("list")["jobs"] == []


def test_a_job_that_is_wrong_is_not_added(jobs, call):
    assert "num_steps: got -1" in call("add", jobs.write(num_steps=-1), "--cron", "0 2 * * *", code=2)
    assert "job file: got no.yaml" in call("add", "no.yaml", "--cron", "0 2 * * *", code=2)


def test_two_jobs_with_one_directory_of_runs_are_not_added(jobs, call):
    job = jobs.write()
    call("add", job, "--cron", "0 2 * * *", "--name", "aa")
    call("add", job, "--cron", "0 3 * * *", "--name", "aa")
    message = call("add", job, "--cron", "0 2 * * *", "--name", "bb", code=2)
    assert f"run: got {jobs.base()}, that of the job aa; allowed: a directory for each job" in message
    (jobs.directory / "link").symlink_to(jobs.directory / "runs")
    assert "that of the job aa" in call("add", jobs.write("other", run="link/nightly"), "--cron", "0 2 * * *", code=2)
    job.unlink()  # whose runs are where is not known then
    call("add", jobs.directory / "other.yaml", "--cron", "0 2 * * *")
    assert [found["name"] for found in call("list")["jobs"]] == ["aa", "other"]


def test_a_paused_job_that_is_added_again_stays_paused(jobs, call):
    job = jobs.write()
    call("add", job, "--cron", "0 2 * * *", "--timezone", "UTC")
    call("pause", "nightly")
    added = call("add", job, "--cron", "0 4 * * *", "--timezone", "UTC")
    assert (added["next"], added["paused"]) == (None, True)
    assert "nightly stays paused: `dask-rl jobs resume nightly`" in call("add", job, "--cron", "0 4 * * *", text=True)
    assert call("list")["jobs"][0]["paused"]
    assert call("resume", "nightly")["next"] is not None


def test_a_current_that_is_no_link_is_shown(jobs, call):
    call("add", jobs.write(), "--cron", "0 2 * * *")
    (jobs.base() / "current").mkdir(parents=True)
    shown = call("show", "nightly")
    assert (shown["runs"], shown["current"]) == (str(jobs.base()), None)
    assert "current: got something that is no link" in shown["problem"]


def test_a_job_file_that_went_wrong_is_shown(jobs, call):
    file = jobs.write()
    call("add", file, "--cron", "0 2 * * *")
    file.write_text("run: [")
    assert "nightly.yaml: got while parsing" in call("show", "nightly")["problem"]


def test_without_the_extra_one_line_says_what_to_install(jobs, tmp_path):
    """A package that cannot be found, as where it is not installed; `exec` and `history` need none."""
    code = (
        "import sys; sys.modules['apscheduler'] = None; from dask_rl.pipeline.views.cli import run;"
        f"sys.exit(run(['jobs', *sys.argv[1:], '--home', {str(tmp_path / 'home')!r}]))"
    )
    for command in (["serve"], ["add", str(jobs.write()), "--cron", "0 2 * * *"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: dask-rl jobs: got no package apscheduler")
        assert done.stderr.endswith("pip install 'dask-rl[jobs]'.\n")
    done = subprocess.run([sys.executable, "-c", code, "history"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "nothing ran yet\n")


def test_the_history_of_a_job_is_bounded(jobs):
    history = History(JobsHome(jobs.home).create().database)
    first = parse_time("2027-01-01")
    records = [
        RunRecord(job="nightly", time=first + timedelta(seconds=number), status="skipped")
        for number in range(MAX_ROWS_PER_JOB + 5)
    ]
    history.put(RunRecord(job="other", time=first, status="skipped"))
    with sqlite3.connect(jobs.home / "jobs.sqlite") as connection:
        rows = [(record.job, iso(record.time), record.status, record.model_dump_json()) for record in records]
        connection.executemany("INSERT INTO runs VALUES (?, ?, ?, ?)", rows)
    history.put(records[-1])
    records = history.latest("nightly")
    assert len(records) == MAX_ROWS_PER_JOB
    assert records[-1].time == first + timedelta(seconds=5)
    assert len(history.latest("other")) == 1


def test_a_run_is_known_once(jobs):
    history = History(JobsHome(jobs.home).create().database)
    record = RunRecord(job="nightly", time=parse_time("2027-01-01"), status="complete")
    assert history.add(record)
    assert not history.add(record.model_copy(update={"status": "due"}))
    assert history.latest() == [record]


@pytest.mark.parametrize("text", ["2027-01-01T02:00:00Z", "2027-01-01T02-00-00Z", "2027-01-01T03:00:00.9+01:00"])
def test_times_name_runs(text):
    assert iso(parse_time(text)) == "2027-01-01T02:00:00Z"
    assert folder_name(parse_time(text)) == "2027-01-01T02-00-00Z"


@pytest.mark.parametrize("text", ["", "now", "2027-01-01T02-00-00Z/..", "9999-12-31T23:59:59-23:59"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match="time: got"):
        parse_time(text)


def test_the_default_home_is_used_where_none_is_given(jobs, monkeypatch, capsys):
    monkeypatch.chdir(jobs.directory)
    assert run(["jobs", "list"]) == 0
    assert "no jobs" in capsys.readouterr().out
    assert os.path.isdir(os.environ["DASK_RL_HOME"])


def test_a_run_on_a_host_that_is_gone_becomes_due_again(jobs):
    """As after a container that came back under another name: the lock beside its runs tells."""
    base = jobs.base()
    base.mkdir(parents=True)
    record = put(jobs, status="running", host="another", pid=1, run=str(base / "2027-01-01T02-00-00Z"))
    home = JobsHome(jobs.home)
    running = Running(home, History(home.database), lambda name: None)
    lock = base / "batch.lock"
    lock.write_text(json.dumps({"host": "another", "pid": 1, "heartbeat": time.time()}))
    running.settle()
    assert jobs.history() == [record]
    lock.write_text(json.dumps({"host": "another", "pid": 1, "heartbeat": time.time() - 61}))
    running.settle()
    assert [run.status for run in jobs.history()] == ["due"]


def test_a_run_whose_process_dies_every_time_is_given_up(jobs):
    base = jobs.base()
    home = JobsHome(jobs.home)
    record = put(jobs, status="running", pid=1, process_start=0.0, run=str(base / "2027-01-01T02-00-00Z"))
    record = record.model_copy(update={"host": socket.gethostname()})
    history = History(home.database)
    running = Running(home, history, lambda name: None)
    for _ in range(MAX_DEATHS):
        history.put(record)
        running.settle()
        assert jobs.history()[0].status == "due"
    history.put(record)
    running.settle()
    assert jobs.history()[0].status == "failed"
    assert "again and again" in jobs.history()[0].message


def test_a_run_of_no_job_of_the_schedule_is_not_taken_up(jobs):
    """One that cron or another scheduler called `exec` for, and that was killed."""
    base = jobs.base()
    put(jobs, status="running", host=socket.gethostname(), pid=1, process_start=0.0, run=str(base / "x"))
    home = JobsHome(jobs.home)
    running = Running(home, History(home.database), lambda name: None)
    running.settle()
    running.start_due()
    (record,) = jobs.history()
    assert record.status == "interrupted"
    assert "`dask-rl jobs exec … --time 2027-01-01T02:00:00Z` goes on" in record.message
