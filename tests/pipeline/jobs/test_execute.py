"""`jobs exec` where its surroundings went wrong: whatever it meets, the history tells the end and nobody else's run is
touched.

Where a test is about what follows training, training is one that ends at once.
"""

import logging
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from job_cases import TIMEOUT_SECONDS, trainer_of, wait_for
from run_commands import has_checkpoint_beyond

from dask_rl.pipeline.jobs import reporter, scheduled_run
from dask_rl.pipeline.jobs.child_process import Ended, StopSignals
from dask_rl.pipeline.jobs.execute import execute
from dask_rl.pipeline.jobs.history import History
from dask_rl.pipeline.jobs.home import JobsHome
from dask_rl.pipeline.jobs.reporter import Reporter
from dask_rl.pipeline.jobs.run_record import RunRecord, load_record
from dask_rl.pipeline.jobs.times import parse_time

pytestmark = pytest.mark.service

FIRST, SECOND = "2027-01-01T02:00:00Z", "2027-01-02T02:00:00Z"
LONG = {"num_steps": 200_000, "checkpoint": {"every_steps": 100}}
TELL = ["sh", "-c", "echo $DASK_RL_STATUS >> told"]


@pytest.fixture
def run(jobs, monkeypatch):
    """Run a job here, for a time, with a training that ends at once; returns its record."""
    monkeypatch.chdir(jobs.directory)
    monkeypatch.setattr(scheduled_run, "run_command", lambda *_, **__: Ended(0, (), False))
    database = JobsHome(jobs.home).create().database

    def run_one(job: Path, time: str = FIRST, name: str | None = None) -> RunRecord:
        with StopSignals() as stop:
            record = RunRecord(job=name or job.stem, time=parse_time(time))
            return execute(job, record, Reporter(History(database), stop), stop, echo=False)

    return run_one


def folder(time: str) -> str:
    return time.replace(":", "-")


def told(jobs) -> str:
    return (jobs.directory / "told").read_text()


@pytest.mark.parametrize("evaluation", ['{"return_mean": "high", "environment": "Pendulum-v1"}', '"x"'])
def test_a_damaged_result_of_the_run_in_use_costs_no_later_run(jobs, run, evaluation):
    job = jobs.write(batch={"keep_if": "better", "on_success": TELL}, evaluation={"environment": "Pendulum-v1"})
    run(job, FIRST)
    (jobs.base() / folder(FIRST) / "result.json").write_text(f'{{"evaluation": {evaluation}}}')
    record = run(job, SECOND)
    assert (record.status, record.promoted) == ("complete", True)
    assert f"promoted without a comparison: {jobs.base()}/{folder(FIRST)}/result.json: got" in record.message
    assert jobs.history()[-1] == record
    assert told(jobs) == "complete\ncomplete\n"


def test_a_damaged_result_of_its_own_fails_and_is_named(jobs, run):
    job = jobs.write(batch={"on_failure": TELL})
    (jobs.base() / folder(FIRST)).mkdir(parents=True)
    (jobs.base() / folder(FIRST) / "result.json").write_text("{")
    record = run(job)
    assert (record.status, record.exit_code) == ("failed", 2)
    assert f"{folder(FIRST)}/result.json: got something else" in record.message
    assert told(jobs) == "failed\n"


@pytest.mark.parametrize("place", ["initial_weights", "judge", "promote", "dataset_hashes"])
def test_what_nobody_thought_of_leaves_a_failed_run_and_is_told(jobs, run, monkeypatch, place):
    works = getattr(scheduled_run, place)

    def fail_once(*_):
        monkeypatch.setattr(scheduled_run, place, works)
        raise KeyError("surprise")

    monkeypatch.setattr(scheduled_run, place, fail_once)
    record = run(jobs.write(batch={"on_failure": TELL, "on_success": TELL}))
    assert (record.status, record.exit_code, record.message) == ("failed", 1, "KeyError: 'surprise'")
    assert jobs.history() == [record] == [load_record(record.run)]
    assert "Traceback" in Path(record.run, "log.txt").read_text()
    assert told(jobs) == "failed\n"


def test_a_surprise_in_what_follows_runs_it_no_second_time(jobs, run, monkeypatch):
    calls = []

    def fail(*_):
        calls.append(1)
        raise KeyError("surprise")

    monkeypatch.setattr(scheduled_run, "run_following", fail)
    record = run(jobs.write())
    assert (record.status, record.exit_code, record.message, len(calls)) == ("complete", 0, "KeyError: 'surprise'", 1)


def test_a_surprise_in_the_job_file_leaves_a_failed_run(jobs, run, monkeypatch):
    def fail(*_, **__):
        raise RecursionError("surprise")

    monkeypatch.setattr("dask_rl.pipeline.jobs.execute.load_batch_job", fail)
    record = run(jobs.write())
    assert (record.status, record.exit_code, record.message) == ("failed", 1, "RecursionError: surprise")
    assert jobs.history() == [record]


def test_another_job_s_run_is_not_gone_on_with(jobs, run):
    job = jobs.write(batch={"on_failure": TELL})
    first = run(job, FIRST, "aa")
    log = Path(first.run, "log.txt").read_text()
    second = run(job, FIRST, "bb")
    assert (second.status, second.exit_code, second.run) == ("failed", 2, None)
    assert f"run: got {first.run}, which is of the job aa; allowed: a directory for each job" in second.message
    assert jobs.history("aa") == [first] == [load_record(first.run)]
    assert jobs.history("bb") == [second]
    assert Path(first.run, "log.txt").read_text() == log
    assert told(jobs) == "failed\n"


STRANGE = {
    "environment": ({"evaluation": {"environment": "theirs:Evil-v0"}}, "an environment that imports 'theirs'"),
    "address": ({"cluster": {"kind": "address", "address": "tcp://evil:1"}}, "cluster.address: tcp://evil:1"),
    "python": ({"cluster": {"slurm": {"python": "/tmp/evil"}}}, "cluster.slurm.python: /tmp/evil"),
    "variable": ({"cluster": {"kubernetes": {"env": {"PYTHONPATH": "/evil"}}}}, "cluster.kubernetes.env.PYTHONPATH"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_a_run_s_directory_names_is_run_only_where_the_job_file_names_it_too(jobs, run, monkeypatch, name):
    """Somebody else may have put the directory there."""
    settings, words = STRANGE[name]
    place = jobs.base() / folder(FIRST)
    place.mkdir(parents=True)
    shutil.copy(jobs.write(imports=["theirs"], **settings), place / "job.yaml")
    started = []
    monkeypatch.setattr(scheduled_run, "run_command", lambda words, **_: started.append(words) or Ended(0, (), False))
    refused = run(jobs.write())
    assert (refused.status, refused.exit_code, started) == ("failed", 2, [])
    assert f"job.yaml: got {words}" in refused.message
    assert run(jobs.write(**settings)).status == "complete"
    assert "imports=[]" in started[0]  # of its own it imports nothing in any case


def test_a_run_keeps_its_directory_where_the_job_file_names_another_by_now(jobs):
    """Killed, then gone on with by a server, under a job file whose runs have another place."""
    job = jobs.write(num_steps=3000, batch={"retry_wait_seconds": 0.1})
    jobs.call("add", job, "--cron", "0 0 1 1 *")
    jobs.serve()
    jobs.call("run-now", "nightly")
    record = jobs.at_work()
    wait_for(lambda: has_checkpoint_beyond(Path(record.run), 20), "a checkpoint")
    jobs.write(num_steps=3000, run="runs/moved")
    os.kill(record.pid, signal.SIGKILL)
    (done,) = jobs.ended(1)
    assert (done.time, done.run, done.attempts) == (record.time, record.run, 2)
    assert '"name": "resumed"' in Path(record.run, "metrics.jsonl").read_text()
    assert os.readlink(jobs.base() / "current") == Path(record.run).name
    assert not (jobs.directory / "runs" / "moved").exists()


def test_a_run_that_the_history_lost_sight_of_is_found_again(jobs):
    """The history takes a run at work for one that is due: whoever starts it again sets that right."""
    job = jobs.write(**LONG)
    exec_ = jobs.start("exec", job, "--time", FIRST)
    record = jobs.at_work()
    wait_for(lambda: trainer_of(record), "the training process")
    History(jobs.home / "jobs.sqlite").put(record.model_copy(update={"status": "due", "pid": None}))
    assert jobs.call("exec", job, "--time", FIRST)["status"] == "skipped"
    assert [(found.status, found.pid) for found in jobs.history()] == [("running", exec_.pid)]
    assert load_record(record.run).status == "running"
    exec_.terminate()
    exec_.communicate(timeout=TIMEOUT_SECONDS)


def test_what_a_history_lacks_comes_into_it_with_the_next_run(jobs, run, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(reporter, "_AT_END_SECONDS", 0)
    job, database = jobs.write(), jobs.home / "jobs.sqlite"
    database.mkdir()  # what SQLite cannot open
    lost = run(job, FIRST)
    assert lost.status == "complete"
    assert f"nightly: that {FIRST} is complete is not in the history: " in caplog.text
    assert "the next `dask-rl jobs exec` of this job brings it there" in caplog.text
    database.rmdir()
    assert jobs.history() == []
    found = run(job, SECOND)
    assert jobs.history() == [lost, found]
    assert not list(jobs.base().glob("*/unreported"))


def test_a_note_is_taken_up_by_its_own_history_and_job_alone(jobs, run, tmp_path):
    first = run(jobs.write(), FIRST)
    note = Path(first.run, "unreported")
    for text, job in ((str(tmp_path / "another.sqlite"), "nightly"), (str(jobs.home / "jobs.sqlite"), "other")):
        note.write_text(text)
        with sqlite3.connect(jobs.home / "jobs.sqlite") as connection:
            connection.execute("DELETE FROM runs")
        with StopSignals() as stop:
            Reporter(History(jobs.home / "jobs.sqlite"), stop).take_up(job, jobs.base())
        assert jobs.history() == []


@pytest.mark.storm
def test_exec_says_that_its_home_is_full_and_the_next_one_brings_the_run_into_the_history(jobs):
    """Really full, and quiet; its last minute of trying is cut short by SIGTERM."""
    jobs.home.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(jobs.home)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        jobs.home.chmod(0o700)
        with (jobs.home / "filler").open("wb", buffering=0) as file:
            while shutil.disk_usage(jobs.home).free:
                file.write(bytes(4096))
        job = jobs.write(num_steps=2)
        exec_ = jobs.start("exec", job, "--time", FIRST, "--quiet")
        run = jobs.base() / folder(FIRST)
        wait_for(lambda: (run / "batch.json").exists() and load_record(run).status == "complete", "the end of the run")
        exec_.terminate()
        output = exec_.communicate(timeout=TIMEOUT_SECONDS)[0]
        assert exec_.returncode == 0, output
        assert f"nightly: that {FIRST} is complete is not in the history" in output
        (jobs.home / "filler").unlink()
        assert jobs.history() == []
        jobs.call("exec", job, "--time", SECOND)
        assert [(record.values()["time"], record.status) for record in jobs.history()] == [
            (FIRST, "complete"),
            (SECOND, "complete"),
        ]
    finally:
        jobs.close()
        subprocess.run(["umount", "-l", str(jobs.home)], check=True)
