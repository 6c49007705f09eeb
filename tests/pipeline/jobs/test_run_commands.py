"""`dask-rl jobs stop`, and what `list`, `show`, `history`, `logs` and `add` say of jobs and their runs."""

import json
import os
import signal
from datetime import datetime
from pathlib import Path

import pytest
from job_cases import TIMEOUT_SECONDS, trainer_of, wait_for
from run_commands import has_checkpoint_beyond

from dask_rl.pipeline.jobs.at_work import describe
from dask_rl.pipeline.jobs.child_process import StopSignals
from dask_rl.pipeline.jobs.execute import execute
from dask_rl.pipeline.jobs.history import History
from dask_rl.pipeline.jobs.home import JobsHome
from dask_rl.pipeline.jobs.reporter import Reporter
from dask_rl.pipeline.jobs.run_record import RunRecord, save_record
from dask_rl.pipeline.jobs.times import parse_time
from dask_rl.pipeline.runs.run_lock import RunLock
from dask_rl.pipeline.views.cli import run

pytestmark = pytest.mark.service

FIRST, SECOND = "2027-01-01T02:00:00Z", "2027-01-02T02:00:00Z"
LONG = {"num_steps": 200_000, "checkpoint": {"every_steps": 100}}
BERLIN = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin")


@pytest.fixture
def call(jobs, monkeypatch, capsys):
    """Run a command here; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(jobs.directory)

    def run_one(*words):
        code = run(["jobs", *map(str, words), "--home", str(jobs.home)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_one


def put(jobs, **settings) -> RunRecord:
    record = RunRecord(**{"job": "nightly", "time": parse_time(FIRST)} | settings)
    History(JobsHome(jobs.home).create().database).put(record)
    return record


@pytest.mark.storm
def test_a_run_at_work_is_stopped_saves_and_is_not_gone_on_with_by_itself(jobs):
    jobs.call("add", jobs.write(**LONG), "--cron", "0 0 1 1 *")
    jobs.serve()
    jobs.call("run-now", "nightly")
    record = jobs.at_work()
    wait_for(lambda: has_checkpoint_beyond(Path(record.run), 100), "a checkpoint")
    assert "job: got 'other', of which no run is at work; allowed: nightly" in jobs.call("stop", "other", code=2)
    stopped = jobs.call("stop", "nightly")
    assert (stopped["status"], stopped["exit_code"], stopped["job"]) == ("interrupted", 3, "nightly")
    assert "allowed: none: no run is at work" in jobs.call("stop", "nightly", code=2)
    wait_for(lambda: f"nightly: {stopped['time']} is interrupted" in jobs.server_log(), "the server to see it")
    assert [found.status for found in jobs.history()] == ["interrupted"]
    jobs.call("run-now", "nightly", "--time", stopped["time"])
    assert jobs.at_work().time == record.time


def test_a_run_on_another_host_is_stopped_there(jobs, call):
    put(jobs, status="running", host="elsewhere", pid=1)
    code, _, error = call("stop", "nightly")
    assert code == 2
    assert "whose run is at work on elsewhere" in error


def test_the_run_at_work_is_listed_and_not_one_that_was_skipped_for_it(jobs, call):
    call("add", jobs.write(), *BERLIN)
    save = put(jobs).mine()
    put(jobs, **save.model_dump(exclude={"job", "time"}))
    put(jobs, time=parse_time(SECOND), status="skipped")
    assert call("list")[1].splitlines()[1].endswith("  running")
    assert f"{FIRST}, running" in call("show", "nightly")[1]
    put(jobs, **save.model_dump(exclude={"job", "time", "pid"}))  # whose process is gone
    assert call("list")[1].splitlines()[1].endswith("  skipped")


def test_who_is_skipped_says_for_which_run(jobs, monkeypatch):
    monkeypatch.chdir(jobs.directory)
    job, other = jobs.write(), jobs.base() / "2027-01-01T02-00-00Z"
    other.mkdir(parents=True)
    save_record(RunRecord(job="nightly", time=parse_time(FIRST)).mine(), other)
    history = History(JobsHome(jobs.home).create().database)
    with RunLock(jobs.base() / "batch.lock"), StopSignals() as stop:
        record = execute(
            job, RunRecord(job="nightly", time=parse_time(SECOND)), Reporter(history, stop), stop, echo=False
        )
    assert (record.status, record.exit_code) == ("skipped", 0)
    assert record.message.startswith(f"the run of {FIRST} is at work (pid {os.getpid()} on ")
    theirs = RunRecord(job="theirs", time=parse_time(FIRST))
    assert describe(theirs, "nightly", "pid 1") == (
        f"the run of {FIRST} of the job theirs, with the same `run`, is at work (pid 1)"
    )
    assert describe(None, "nightly", "pid 1") == "a run of this job begins (pid 1)"


def test_a_lock_that_cannot_be_made_is_a_failure_and_no_skip(jobs, monkeypatch):
    monkeypatch.chdir(jobs.directory)
    job = jobs.write(batch={"max_retries": 0})
    (jobs.base() / "batch.lock").mkdir(parents=True)
    history = History(JobsHome(jobs.home).create().database)
    with StopSignals() as stop:
        wanted = RunRecord(job="nightly", time=parse_time(FIRST))
        record = execute(job, wanted, Reporter(history, stop), stop, echo=False)
    assert (record.status, record.exit_code) == ("failed", 2)
    assert "batch.lock: Is a directory" in record.message


@pytest.mark.parametrize("command", ["history", "logs"])
def test_a_job_that_nobody_knows_is_named_beside_those_there_are(jobs, call, command):
    code, _, error = call(command, "nope")
    assert code == 2
    assert "job: got 'nope'; allowed: none: add one" in error
    call("add", jobs.write(), *BERLIN)
    put(jobs, job="removed", status="missed")
    code, _, error = call(command, "nope")
    assert code == 2
    assert "job: got 'nope'; allowed: nightly, removed; see `dask-rl jobs list`" in error
    assert call("history", "nightly")[:2] == (0, "nothing ran yet\n")
    assert "missed" in call("history", "removed")[1]


def test_a_dataset_that_is_not_there_yet_is_warned_of(jobs, call):
    code, out, error = call("add", jobs.write(dataset="nowhere.zarr"), *BERLIN, "--json")
    assert code == 0
    (warning,) = json.loads(out)["warnings"]
    assert error == f"warning: {warning}\n"
    assert "nowhere.zarr: got no such path" in warning
    code, out, error = call("add", jobs.write(), *BERLIN, "--json")
    assert (code, json.loads(out)["warnings"], error) == (0, [], "")


def test_due_times_are_those_of_the_job_s_zone_everywhere(jobs, call):
    added = json.loads(call("add", jobs.write(), *BERLIN, "--json")[1])["next"]
    assert datetime.fromisoformat(added).hour == 2
    assert added.endswith(("+01:00", "+02:00"))
    head, row = call("list")[1].splitlines()[:2]
    assert head.split() == ["name", "cron", "timezone", "next", "last", "run"]
    assert f"Europe/Berlin  {added}  never ran" in row
    call("pause", "nightly")
    assert call("resume", "nightly")[1] == f"nightly is due at {added}\n"
    shown = call("show", "nightly")[1]
    assert added in shown
    assert "misfire_grace_seconds  any\n" in shown


@pytest.mark.storm
def test_the_log_says_what_ended_a_start(jobs):
    jobs.call("add", jobs.write(num_steps=3000), "--cron", "0 0 1 1 *")
    jobs.serve()
    jobs.call("run-now", "nightly")
    record = jobs.at_work()
    wait_for(lambda: trainer_of(record), "the training process")
    os.kill(record.pid, signal.SIGKILL)
    jobs.ended(1)
    log = jobs.call("logs", "nightly")["log"]
    assert log.index("start 1, of 3") < log.index("start 1 ended: its process was ended by SIGKILL")
    assert log.index("start 1 ended") < log.index("start 2, of 3")


@pytest.mark.storm
def test_the_log_says_that_a_start_was_killed_where_no_server_saw_it(jobs):
    job = jobs.write(num_steps=3000)
    exec_ = jobs.start("exec", job, "--time", FIRST)
    record = jobs.at_work()
    exec_.kill()
    exec_.wait(TIMEOUT_SECONDS)
    jobs.call("exec", job, "--resume")
    log = jobs.call("logs", "nightly")["log"]
    assert f"start 1 ended: its process (pid {record.pid} on {record.host}) was killed, or the machine stopped" in log
