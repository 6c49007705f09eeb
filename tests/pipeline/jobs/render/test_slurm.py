"""Scripts for sbatch: checked by shells, and run on this machine with stand-ins for srun and scontrol."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from fake_slurm import FakeSlurm
from render_cases import PLACE, refusal, render, write_job
from run_commands import has_checkpoint_beyond, run_to_end, wait_for

from dask_rl.pipeline.runs.job import load_job
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.pipeline.runs.train import train

pytestmark = pytest.mark.service

TWO = {"learners": {"num_learners": 2, "compile": "off", "num_threads_per_learner": 1}}
LOOPBACK = ("--set", "cluster.slurm.interface=lo")


def script_of(capsys, job, *options):
    [(name, text)] = render(capsys, "slurm", job, *options).items()
    assert name == "dask-rl-small.sbatch"
    return text


def directives_of(script):
    lines = re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE)
    return dict(line.partition("=")[::2] for line in lines)


@pytest.fixture
def slurm(tmp_path):
    fake = FakeSlurm(tmp_path / "slurm")
    yield fake
    fake.kill_all()


def start(script, slurm, tmp_path, number="7"):
    """Run a script as slurmd would: from a file of its own, anywhere, with the job's number."""
    file = tmp_path / "job.sh"
    file.write_text(script)
    environment = {**os.environ, **slurm.environment(), "SLURM_JOB_ID": number}
    return subprocess.Popen(
        ["bash", str(file)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process):
    try:
        error = process.communicate(timeout=150)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, error


@pytest.mark.parametrize("kind", ["local", "in_process", "slurm"])
def test_shells_accept_the_script(capsys, tmp_path, feed_dataset, kind):
    cluster = {"kind": kind, "memory_per_worker": "1GB", "slurm": {"prologue": ["module load cuda"]}}
    learners = {} if kind == "in_process" else TWO
    job = write_job(tmp_path / PLACE, feed_dataset, cluster=cluster, **learners)
    file = tmp_path / "job.sh"
    file.write_text(script_of(capsys, job, "--cron", "0 2 * * *"))
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=60)
    shellcheck = shutil.which("shellcheck", path=os.path.dirname(sys.executable))
    subprocess.run([shellcheck, "--severity=warning", str(file)], check=True, timeout=60)
    assert ("srun" in file.read_text()) == (kind == "local")


def test_it_asks_for_a_task_for_each_worker(capsys, tmp_path, feed_dataset):
    learners = {"learners": {"num_learners": 4, "num_cpus_per_learner": 3, "num_gpus_per_learner": 1}}
    slurm = {"partition": "gpu", "account": "my lab", "walltime": "12:00:00", "options": ["--qos=high"]}
    cluster = {"memory_per_worker": "3GiB", "slurm": slurm | {"log_directory": "/logs"}}
    job = write_job(tmp_path / "place", feed_dataset, cluster=cluster, batch={"stop_wait_seconds": 90}, **learners)
    script = script_of(capsys, job)
    assert directives_of(script) == {
        **{"job-name": "dask-rl-small", "output": "/logs/%x-%j.log", "open-mode": "append", "time": "12:00:00"},
        **{"dependency": "singleton", "requeue": "", "signal": "B:TERM@150", "partition": "gpu", "account": '"my lab"'},
        **{"ntasks": "4", "cpus-per-task": "3", "mem-per-cpu": "1024M", "gpus-per-task": "1", "qos": "high"},
    }
    assert re.search(r"srun --ntasks=4 ", script)
    assert "--resources GPU=1" in script
    typed = script_of(capsys, job, "--set", "cluster.slurm.gres=gpu:a100:2,nvme:1")
    assert directives_of(typed)["gpus-per-task"] == "a100:2"
    assert directives_of(typed)["gres"] == "nvme:1"


@pytest.mark.parametrize(
    ("slurm", "batch", "expected"),
    [
        ({}, {}, "01:00:00"),
        ({}, {"time_limit_seconds": 14400, "stop_wait_seconds": 60}, "04:07:00"),
        ({}, {"time_limit_seconds": 10 * 86400, "stop_wait_seconds": 60}, "240:07:00"),
        ({"walltime": "01:00:00"}, {"time_limit_seconds": 14400}, "01:00:00"),
    ],
)
def test_the_allocation_lasts_as_long_as_the_job_may_take(capsys, tmp_path, feed_dataset, slurm, batch, expected):
    job = write_job(tmp_path / "place", feed_dataset, cluster={"slurm": slurm}, batch=batch, **TWO)
    assert directives_of(script_of(capsys, job))["time"] == expected


@pytest.mark.parametrize("name", ["a\nrm -rf x", "a\rb", "a\x0bb", "a\u2028b"])
def test_a_directory_of_several_lines_is_refused(capsys, tmp_path, feed_dataset, name):
    """The second would be one of the script's, beside the directive."""
    job = write_job(tmp_path / name, feed_dataset, **TWO)
    assert "option of sbatch: got " in refusal(capsys, "slurm", job)


def test_a_job_of_kind_slurm_is_its_driver_alone(capsys, tmp_path, feed_dataset):
    cluster = {"kind": "slurm", "memory_per_worker": "1GB"}
    job = write_job(tmp_path / "place", feed_dataset, cluster=cluster, **TWO)
    asked = directives_of(script_of(capsys, job))
    assert asked["ntasks"] == "1"
    assert not {"mem-per-cpu", "cpus-per-task"} & asked.keys()


def test_credentials_for_an_allocation_are_files(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, cluster={"security": "temporary"}, **TWO)
    assert "cluster.security: got temporary; allowed: for an allocation: files" in refusal(capsys, "slurm", job)
    files = {"ca_file": "ca.pem", "cert": "cert.pem", "key": "my key.pem"}
    job = write_job(tmp_path / "place", feed_dataset, cluster={"security": files}, **TWO)
    script = script_of(capsys, job)
    assert script.count("--protocol tls --tls-ca-file ") == 2
    assert script.count("my key.pem'") == 2


def test_the_whole_script_trains_through_its_scheduler_file(capsys, tmp_path, feed_dataset, slurm):
    job = write_job(tmp_path / PLACE, feed_dataset, **TWO)
    script = script_of(capsys, job, *LOOPBACK, "--home", str(tmp_path / "home"))
    code, error = finish(start(script, slurm, tmp_path))
    assert code == 0, error
    [step] = slurm.lines("steps")
    assert step.startswith("2 ")
    run = RunDirectory(tmp_path / PLACE / "runs" / "current")
    assert run.is_complete
    assert load_job(run.job_file).cluster.kind == "scheduler_file"
    alone = load_job(job, [f"run={tmp_path / 'alone'}"])
    assert train(alone).weights_hash in (run.path / "result.json").read_text()
    assert slurm.lines("scontrol") == []


def test_a_scheduler_that_does_not_start_is_said(capsys, tmp_path, feed_dataset, slurm):
    job = write_job(tmp_path / "place", feed_dataset, **TWO)
    script = script_of(capsys, job, "--set", "cluster.slurm.interface=nosuch0")
    code, error = finish(start(script, slurm, tmp_path))
    assert code == 1
    assert "the scheduler did not start" in error


@pytest.mark.storm
@pytest.mark.parametrize("next_number", ["7", "8"])  # queued again, or submitted again
def test_signalled_before_its_end_it_is_queued_again_and_goes_on_to_the_same_bits(
    capsys, tmp_path, feed_dataset, slurm, next_number
):
    directory = tmp_path / "place"
    settings = {"num_steps": 2000, "checkpoint": {"every_steps": 20}, **TWO}
    job = write_job(directory, feed_dataset, **settings)
    script = script_of(capsys, job, *LOOPBACK, "--home", str(tmp_path / "home"))
    process = start(script, slurm, tmp_path)

    def run():
        return next((directory / "runs").glob("2*"), None)

    wait_for(lambda: process.poll() is not None or (run() and has_checkpoint_beyond(run(), 40)), "a checkpoint")
    os.kill(process.pid, signal.SIGTERM)  # the batch shell alone, as --signal=B:TERM has it
    code, error = finish(process)
    assert code == 3, error
    assert slurm.lines("scontrol") == ["requeue 7"]
    assert not RunDirectory(run()).is_complete
    code, error = finish(start(script, slurm, tmp_path, next_number))
    assert code == 0, error
    assert len(list((directory / "runs").glob("2*"))) == 1
    assert {row["name"] for row in RunDirectory(run()).rows("event")} == {"resumed"}
    alone = write_job(tmp_path / "alone", feed_dataset, **settings | {"run": str(tmp_path / "alone" / "run")})
    assert run_to_end(alone)["weights_hash"] in (run() / "result.json").read_text()
