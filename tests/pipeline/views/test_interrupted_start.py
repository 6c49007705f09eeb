"""Signals that come while a command loads its modules: one line, exit code 3, and the same command goes on."""

import json
import signal
import subprocess
import sys

import pytest
import yaml

pytestmark = pytest.mark.service

TIMEOUT_SECONDS = 120
SIGNALLED = """
import os, sys

class SignalAt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, SignalAt())
from dask_rl.__main__ import main
main()
"""


@pytest.fixture
def job(feed_dataset, tmp_path):
    path = tmp_path / "job.yaml"
    algorithm = {"name": "bc", "hidden_sizes": [8]}
    content = {"dataset": str(feed_dataset), "algorithm": algorithm, "num_steps": 20, "batch_size": 32}
    path.write_text(yaml.safe_dump(content | {"run": str(tmp_path / "run")}))
    return path


def train(job, *options, module="", number=0):
    program = SIGNALLED.format(module=module, number=int(number))
    command = [sys.executable, "-c", program, "train", str(job), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_line_loads_is_one_line(job, number):
    done = train(job, module="dask_rl.pipeline.runs.logs", number=number)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: interrupted; the same command again goes on.\n"


def test_it_is_a_record_where_records_are_asked_for(job):
    done = train(job, "--log-format", "json", module="dask_rl.pipeline.views.cli", number=signal.SIGINT)
    assert done.returncode == 3
    record = json.loads(done.stderr)
    assert record.keys() == {"time", "level", "event", "fields"}
    assert (record["event"], record["fields"]["exit_code"]) == ("error", 3)


def test_a_signal_while_training_loads_ends_it_resumable_and_the_same_command_goes_on(job):
    done = train(job, "--json", module="dask_rl.pipeline.runs.train", number=signal.SIGTERM)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["num_steps"] == 0
    again = train(job, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["num_steps"] == 20
