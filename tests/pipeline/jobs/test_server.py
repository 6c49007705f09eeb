"""The real server: what it starts, what it takes up, what it leaves alone.

A job whose file is gone fails at once: where a test is about when runs start, it needs no more of them.
"""

import os
import pickle
import signal
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from job_cases import TIMEOUT_SECONDS, Hostile, Jobs, trainer_of, wait_for, zombies_of
from run_commands import has_checkpoint_beyond

from dask_rl.pipeline.jobs.times import now, whole_seconds

pytestmark = pytest.mark.service

YEARLY = "0 0 1 1 *"


def add_empty_job(jobs, cron: str, name: str = "empty", *options) -> None:
    """Add a job of which every run fails at once."""
    file = jobs.write(name)
    jobs.call("add", file, "--cron", cron, "--timezone", "UTC", *options)
    file.unlink()


def test_a_killed_run_and_a_killed_server_leave_a_complete_history(jobs):
    """Due every few seconds; one run and its server are killed: each time ran once, to the bits of the other runs."""
    job = jobs.write(num_steps=2000)
    jobs.call("add", job, "--cron", "*/5 * * * * *", "--timezone", "UTC")
    server = jobs.serve()
    first = jobs.at_work()
    trainer = wait_for(lambda: trainer_of(first), "the training process")
    wait_for(lambda: has_checkpoint_beyond(jobs.base() / first.run, 20), "a checkpoint")
    trainer.kill()
    server.kill()
    server.wait()
    server = jobs.serve()
    runs = jobs.ended(2)
    jobs.call("pause", "nightly")
    wait_for(lambda: not [run for run in jobs.history() if run.is_open], "the last run")
    assert (runs[0].time, runs[0].attempts) == (first.time, 2)
    assert len({run.weights_hash for run in jobs.history() if run.status == "complete"}) == 1
    history = jobs.history()
    assert {run.status for run in history} <= {"complete", "skipped"}
    times = [run.time for run in history]
    assert len(times) == len(set(times))
    assert {run.name for run in jobs.base().glob("2*")} == {
        os.path.basename(run.run) for run in history if run.status == "complete"
    }
    wait_for(lambda: not zombies_of(server.pid), "a look of the server's, once a second", 10)
    server.terminate()
    assert server.wait(TIMEOUT_SECONDS) == 0
    assert jobs.processes() == []


@pytest.mark.storm
def test_where_the_process_of_a_run_and_its_server_are_killed_the_next_server_goes_on(jobs):
    job = jobs.write(num_steps=2000)
    jobs.call("add", job, "--cron", YEARLY)
    server = jobs.serve()
    jobs.call("run-now", "nightly")
    record = jobs.at_work()
    wait_for(lambda: has_checkpoint_beyond(jobs.base() / record.run, 20), "a checkpoint")
    server.kill()
    server.wait()
    os.kill(record.pid, signal.SIGKILL)
    jobs.serve()
    (done,) = jobs.ended(1)
    assert (done.time, done.attempts, done.requested) == (record.time, 2, True)
    assert "died with its server: the run goes on" in jobs.server_log()
    assert '"name": "resumed"' in (jobs.base() / done.run / "metrics.jsonl").read_text()


def test_a_second_server_is_refused_and_names_the_first(jobs):
    server = jobs.serve()
    message = jobs.call("serve", code=2)
    assert f"another server is at work (pid {server.pid} on" in message
    assert "one server at a time" in message
    assert jobs.call("list")["server_pid"] == server.pid
    server.terminate()
    assert server.wait(TIMEOUT_SECONDS) == 0
    assert jobs.call("list")["server_pid"] is None


@pytest.mark.storm
def test_times_that_passed_without_a_server_are_made_up_for_once(jobs):
    """As after a clock that jumped forward: one run stands for all the due times."""
    add_empty_job(jobs, YEARLY)
    add_empty_job(jobs, "0 3 * * *", "strict", "--misfire-grace-seconds", 5)
    passed = datetime(2020, 1, 1, tzinfo=UTC)
    jobs.set_next_time("empty", passed)
    jobs.set_next_time("strict", passed.replace(hour=3))
    jobs.serve()
    (run,) = jobs.ended(1, "empty", "failed")
    this_year = datetime(now().year, 1, 1, tzinfo=UTC)
    assert run.time == this_year
    assert "empty.yaml: No such file or directory" in run.message
    (missed,) = jobs.ended(1, "strict", "missed")
    assert (missed.time.hour, missed.run) == (3, None)
    assert "more than the 5 s that are allowed" in missed.message
    due = [job["next"] for job in jobs.call("list")["jobs"]]
    assert due[0].startswith(f"{now().year + 1}-01-01T00:00:00")


@pytest.mark.storm
def test_a_server_that_was_stopped_for_long_runs_once(jobs):
    """SIGSTOP over several due times, as a machine that slept."""
    add_empty_job(jobs, "* * * * * *")
    server = jobs.serve()
    jobs.ended(1, status="failed")
    server.send_signal(signal.SIGSTOP)
    stopped = whole_seconds(now())
    wait_for(lambda: now() > stopped + timedelta(seconds=6), "six seconds")
    before = {run.time for run in jobs.history()}
    server.send_signal(signal.SIGCONT)
    continued = whole_seconds(now())
    wait_for(lambda: jobs.history()[-1].time >= continued, "the next time")
    made_up_for = {run.time for run in jobs.history() if run.time < continued} - before
    assert len(made_up_for) <= 2


@pytest.mark.storm
def test_a_clock_that_was_years_ahead_and_went_back_holds_nothing_up(jobs):
    add_empty_job(jobs, "*/2 * * * * *")
    jobs.set_next_time("empty", datetime(2050, 1, 1, tzinfo=UTC))
    jobs.serve()
    jobs.ended(2, status="failed")
    assert "not at 2050-01-01T00:00:00Z: the clock went back" in jobs.server_log()


@pytest.mark.storm
def test_times_that_ran_do_not_run_again_when_the_clock_goes_back(jobs):
    """The next due time is behind ones that ran: as after a clock that was set back a little."""
    add_empty_job(jobs, "*/2 * * * * *")
    jobs.serve()
    ran = jobs.ended(2, status="failed")
    jobs.set_next_time("empty", ran[0].time)
    later = jobs.ended(4, status="failed")
    assert [run.time for run in later[:2]] == [run.time for run in ran]
    assert len({run.time for run in later}) == len(later)


@pytest.mark.storm
def test_a_job_file_that_changes_counts_from_the_next_run_on_and_one_that_is_gone_fails(jobs):
    job = jobs.write(num_steps=20)
    jobs.call("add", job, "--cron", YEARLY)
    jobs.serve()
    jobs.call("run-now", "nightly")
    jobs.ended(1)
    jobs.write(num_steps=30)
    jobs.call("run-now", "nightly")
    first, second = jobs.ended(2)
    latest = [(jobs.base() / run.run / "checkpoints" / "latest").read_text() for run in (first, second)]
    assert [step[-2:] for step in latest] == ["20", "30"]
    job.rename(jobs.directory / "elsewhere.yaml")
    jobs.call("run-now", "nightly")
    (failed,) = jobs.ended(1, status="failed")
    assert (failed.exit_code, failed.run) == (2, None)
    assert f"job file: got {job}: No such file or directory" in failed.message
    (jobs.directory / "elsewhere.yaml").rename(job)
    jobs.call("run-now", "nightly", "--time", failed.values()["time"])
    assert jobs.ended(3)[-1].time == failed.time


@pytest.mark.storm
def test_a_hostile_row_is_left_alone_while_others_run(jobs):
    add_empty_job(jobs, "* * * * * *")
    with sqlite3.connect(jobs.home / "jobs.sqlite") as connection:
        row = pickle.dumps(Hostile(jobs.directory / "unpickled"))
        connection.execute("INSERT INTO apscheduler_jobs VALUES ('bad', 1.0, ?)", (row,))
    jobs.serve()
    jobs.ended(2, status="failed")
    assert jobs.server_log().count("job 'bad' is left alone") == 1
    assert not (jobs.directory / "unpickled").exists()
    assert jobs.call("list")["damaged"] == ["bad"]


@pytest.mark.storm
def test_a_job_that_is_removed_while_it_is_due_is_skipped_and_one_at_work_goes_on(jobs):
    job = jobs.write(num_steps=100)
    jobs.call("add", job, "--cron", YEARLY)
    server = jobs.serve()
    jobs.call("run-now", "nightly")
    record = jobs.at_work()
    jobs.call("run-now", "nightly")  # waits for the first
    jobs.call("remove", "nightly")
    server.terminate()
    server.wait(TIMEOUT_SECONDS)
    assert "still at work, and taken up by the next server: nightly" in jobs.server_log()
    jobs.serve()
    assert jobs.ended(1)[0].time == record.time
    (skipped,) = jobs.ended(1, status="skipped")
    assert skipped.message == "the job was removed"


@pytest.mark.storm
def test_directories_with_spaces_quotes_and_other_letters_work(tmp_path, feed_dataset):
    jobs = Jobs(tmp_path / 'it\'s a "place" $(true) ünd', feed_dataset)
    try:
        job = jobs.write(num_steps=5, run="runs/a b;c")
        jobs.call("add", job, "--cron", YEARLY)
        jobs.serve()
        jobs.call("run-now", "nightly")
        (run,) = jobs.ended(1)
        assert run.run.startswith(str(jobs.directory / "runs/a b;c"))
    finally:
        jobs.close()


def _mounted(path, megabytes):
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")


def _fill(path):
    """Take the room that is left on a file system."""
    with (path / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@pytest.mark.storm
def test_a_full_disk_under_the_runs_is_retried_and_goes_on(jobs):
    """Really full: the run fails with ENOSPC, again and again, until there is room; then it goes on to its end."""
    _mounted(jobs.directory / "runs", 4)
    try:
        job = jobs.write(num_steps=20_000, batch={"max_retries": 50, "retry_wait_seconds": 0.5})
        jobs.call("add", job, "--cron", YEARLY)
        jobs.serve()
        jobs.call("run-now", "nightly")
        record = jobs.at_work()
        wait_for(lambda: has_checkpoint_beyond(jobs.base() / record.run, 20), "a checkpoint")
        _fill(jobs.directory / "runs")
        wait_for(lambda: "No space left" in (jobs.history()[-1].message or ""), "a failure that is told")
        (jobs.directory / "runs" / "filler").unlink()
        (done,) = jobs.ended(1)
        assert done.attempts > 1
    finally:
        jobs.close()
        subprocess.run(["umount", "-l", str(jobs.directory / "runs")], check=True)


@pytest.mark.storm
def test_a_full_disk_under_the_home_delays_and_loses_nothing(jobs):
    """What is due waits; what runs goes on, and its end comes into the history when there is room."""
    _mounted(jobs.home, 2)
    jobs.home.chmod(0o700)
    try:
        job = jobs.write(num_steps=1000)
        jobs.call("add", job, "--cron", YEARLY)
        add_empty_job(jobs, "*/3 * * * * *")
        jobs.call("pause", "empty")
        jobs.serve()
        jobs.call("run-now", "nightly")
        record = jobs.at_work("nightly")
        jobs.call("resume", "empty")
        _fill(jobs.home)
        wait_for(lambda: "is due, and waits" in jobs.server_log(), "a due time")
        wait_for(lambda: (jobs.base() / record.run / "result.json").exists(), "the end of the run")
        assert jobs.servers[0].poll() is None
        (jobs.home / "filler").unlink()
        (done,) = jobs.ended(1, "nightly")
        assert done.time == record.time
        jobs.ended(1, "empty", "failed")
    finally:
        jobs.close()
        subprocess.run(["umount", "-l", str(jobs.home)], check=True)
