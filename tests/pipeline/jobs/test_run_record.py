"""What is known about a run: whether its process is there, whatever the clock does."""

import subprocess
import sys

import psutil

from dask_rl.pipeline.jobs.process_identity import start_ticks
from dask_rl.pipeline.jobs.run_record import RunRecord
from dask_rl.pipeline.jobs.times import parse_time

RECORD = RunRecord(job="nightly", time=parse_time("2027-01-01T02:00:00Z"))


def test_a_clock_that_is_set_takes_no_process_for_another(monkeypatch):
    mine = RECORD.mine()
    assert mine.is_alive
    before = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: before + 1)  # as after settimeofday(2)
    assert mine.is_alive
    assert RECORD.mine() == mine


def test_a_later_process_of_the_same_pid_and_another_start_of_the_host_are_others():
    mine = RECORD.mine()
    assert not mine.model_copy(update={"process_start": mine.process_start - 1}).is_alive
    assert not mine.model_copy(update={"boot_id": "another"}).is_alive
    assert not mine.model_copy(update={"host": "another"}).is_alive


def test_a_process_that_has_ended_is_gone_also_before_it_was_waited_for():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert start_ticks(process.pid) is not None
        process.stdout.read()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        assert start_ticks(process.pid) is None
    assert start_ticks(process.pid) is None
