"""Programs that are run to their end, and what they start themselves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job_cases import TIMEOUT_SECONDS, wait_for

from dask_rl.pipeline.jobs.child_process import StopSignals, run_command, signal_name
from dask_rl.pipeline.jobs.process_group import is_group_alive

pytestmark = pytest.mark.service

PARENT = """
import sys
from pathlib import Path
from dask_rl.pipeline.jobs.child_process import StopSignals, run_command

class Stdout:
    def write(self, data):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()

with StopSignals() as stop:
    settings = {"directory": Path.cwd(), "environment": {}, "time_limit_seconds": None, "stop_wait_seconds": 60}
    run_command(sys.argv[1:], sink=Stdout(), stop=stop, **settings)
"""


class Output:
    """What a program wrote."""

    def __init__(self):
        self.text = ""

    def write(self, data):
        self.text += data.decode()

    @property
    def group(self) -> int:
        """Of a shell that began with `echo $$`."""
        return int(self.text.split()[0])


def run(tmp_path, script, limit=None, **options):
    output = Output()
    settings = {"directory": tmp_path, "environment": {}, "time_limit_seconds": limit, "stop_wait_seconds": 20}
    with StopSignals() as stop:
        ended = run_command(["sh", "-c", script], sink=output, stop=stop, **(settings | options))
    return ended, output


@pytest.mark.parametrize("stops_group", [True, False])
def test_nothing_is_left_of_a_program_that_took_too_long(tmp_path, stops_group):
    """A shell ends by SIGTERM at once, and what it waited for would go on."""
    ended, output = run(tmp_path, "echo $$; sleep 777; true", 0.5, stops_group=stops_group)
    assert ended.timed_out
    assert not is_group_alive(output.group)


def test_what_a_program_started_has_its_time_to_stop_too(tmp_path):
    inner = "trap 'sleep 0.5; touch stopped; exit' TERM; while :; do sleep 0.05; done"
    ended, output = run(tmp_path, f'echo $$; sh -c "{inner}"; true', 1, stops_group=True)
    assert ended.timed_out
    assert (tmp_path / "stopped").exists()
    assert not is_group_alive(output.group)


def test_what_does_not_stop_is_killed(tmp_path):
    inner = "trap '' TERM; while :; do sleep 0.05; done"
    ended, output = run(tmp_path, f'echo $$; sh -c "{inner}"; true', 0.5, stops_group=True, stop_wait_seconds=0.5)
    assert ended.timed_out
    wait_for(lambda: not is_group_alive(output.group), "its end", 10)


def test_what_a_program_leaves_behind_when_it_ends_goes_on(tmp_path):
    ended, output = run(tmp_path, "echo $$; sleep 777 &")
    assert ended.returncode == 0
    assert is_group_alive(output.group)
    os.killpg(output.group, signal.SIGKILL)


def test_a_program_ends_with_all_that_it_started_where_whoever_waits_is_killed(tmp_path):
    command = [sys.executable, "-c", PARENT, "sh", "-c", "echo $$; sleep 777; true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as parent:
        group = int(parent.stdout.readline())
        assert is_group_alive(group)
        parent.kill()
        parent.wait(TIMEOUT_SECONDS)
        wait_for(lambda: not is_group_alive(group), "the end of its group", 10)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40"), (35, "signal 35"), (64, "SIGRTMAX")])
def test_every_signal_can_be_told(tmp_path, number, name):
    ended, _ = run(tmp_path, f"kill -{number} $$")
    assert ended.reason == f"ended by {name}"
    assert signal_name(number) == name


def test_a_run_that_is_ended_by_such_a_signal_goes_on(jobs):
    jobs.call("add", jobs.write(), "--cron", "0 0 1 1 *", "--timezone", "UTC")
    jobs.call("run-now", "nightly")
    jobs.serve()
    os.kill(jobs.at_work().pid, 40)
    jobs.ended(1)
    assert "was ended by signal 40: the run goes on" in jobs.server_log()
