"""Runs of the real command whose workers or scheduler die: they go on by themselves, or say what to do."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from run_commands import (
    NUM_STEPS,
    TIMEOUT_SECONDS,
    command,
    run_to_end,
    start_and_wait_for_checkpoint,
    wait_for,
    write_job,
)

pytestmark = pytest.mark.storm


def workers_of(process) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def events_of(job) -> list[dict]:
    rows = [json.loads(line) for line in (job.parent / "run/metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "event"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_learners", "num_killed", "names"),
    [
        (2, 1, ["learner_lost", "rejoined"]),
        (2, 2, ["learner_lost", "learner_lost", "restarted", "resumed"]),
        (1, 1, ["learner_lost", "restarted", "resumed"]),
    ],
)
def test_a_run_goes_on_when_workers_are_killed_and_ends_with_the_same_bits(
    tmp_path, continuous_dataset, undisturbed_hash, num_learners, num_killed, names
):
    job = write_job(tmp_path / "killed", continuous_dataset, num_learners)
    process = start_and_wait_for_checkpoint(job, 100)
    for worker in workers_of(process)[:num_killed]:
        worker.kill()
    stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["weights_hash"] == undisturbed_hash(num_learners)
    assert [event["name"] for event in events_of(job)] == names
    assert "was lost (" in stderr
    assert "learners go on after" in stderr or "new learners after" in stderr


@pytest.mark.slow
def test_with_a_worker_missing_for_good_it_saves_the_step_it_was_at_and_the_same_command_resumes(
    tmp_path, continuous_dataset, undisturbed_hash, outside_cluster
):
    start_scheduler, start_worker, stop_worker, scheduler_file = outside_cluster
    start_scheduler()
    workers = [start_worker(), start_worker()]
    learners = {"num_learners": 2, "compile": "off", "replacement_timeout_seconds": 1}
    cluster = {"kind": "scheduler_file", "scheduler_file": str(scheduler_file)}
    job = write_job(tmp_path / "run", continuous_dataset, 2, learners=learners, cluster=cluster, checkpoint={})
    process = subprocess.Popen(command(job), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = job.parent / "run/metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count('"train"') > 3, "some steps")
    stop_worker(workers[0])
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    [error] = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert "got 0 free workers of 1 in 1 s" in error
    assert "learners.elastic" in error
    saved = int((job.parent / "run/checkpoints/latest").read_text().removeprefix("step-"))
    assert 75 <= saved < NUM_STEPS
    start_worker()
    assert run_to_end(job)["weights_hash"] == undisturbed_hash(2)


@pytest.mark.slow
def test_a_loss_that_ends_its_process_every_time_ends_the_run_and_names_the_cause(tmp_path, continuous_dataset):
    learners = {"num_learners": 1, "compile": "off", "restart_window_seconds": 0.1}  # slower than that
    settings = {"algorithm": {"name": "deadly", "hidden_sizes": [8]}, "imports": ["deadly_algorithm"]}
    job = write_job(tmp_path / "run", continuous_dataset, 1, learners=learners, checkpoint={}, **settings)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    run = subprocess.run(
        command(job), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env=environment
    )
    assert run.returncode == 1
    [error] = [line for line in run.stderr.splitlines() if line.startswith("error:")]
    assert "nobody left (learner 0: Unable to contact Actor's worker)" in error
    names = [event["name"] for event in events_of(job)]
    assert names == ["learner_lost", "restarted"] * 3 + ["learner_lost"]


@pytest.mark.slow
def test_a_scheduler_that_dies_ends_the_run_with_one_line_and_the_same_command_resumes_on_another(
    tmp_path, continuous_dataset, undisturbed_hash, outside_cluster
):
    start_scheduler, start_worker, _, scheduler_file = outside_cluster
    scheduler = start_scheduler()
    for _ in range(2):
        start_worker()
    cluster = {"kind": "scheduler_file", "scheduler_file": str(scheduler_file)}
    job = write_job(tmp_path / "run", continuous_dataset, 2, cluster=cluster)
    process = start_and_wait_for_checkpoint(job, 100)
    scheduler.kill()
    began = time.monotonic()
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert time.monotonic() - began < 30
    assert process.returncode == 1
    [error] = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert "scheduler" in error
    assert "Traceback" not in stderr
    start_scheduler()
    for _ in range(2):
        start_worker()
    assert run_to_end(job)["weights_hash"] == undisturbed_hash(2)


@pytest.fixture
def outside_cluster(tmp_path):
    """A cluster of processes of its own: start_scheduler(), start_worker(), stop_worker(process), scheduler file."""
    file = tmp_path / "scheduler.json"
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", str(file), "--host", "127.0.0.1"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen([*command, "--no-dashboard"], env=environment, **quiet))
        return started[-1]

    def start_scheduler() -> subprocess.Popen:
        file.unlink(missing_ok=True)
        scheduler = start("scheduler", "--port", "0")
        wait_for(file.exists, "the scheduler's file")
        return scheduler

    def start_worker() -> subprocess.Popen:
        return start("worker", "--nthreads", "1")

    def stop_worker(worker: subprocess.Popen) -> None:
        family = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
        for process in family:  # the nanny first: it would start another
            process.kill()
        worker.wait(30)
        psutil.wait_procs(family, timeout=30)

    try:
        yield start_scheduler, start_worker, stop_worker, file
    finally:
        alive = [psutil.Process(parent.pid) for parent in started if parent.poll() is None]
        families = [process for parent in alive for process in (parent, *parent.children(recursive=True))]
        for process in families:
            if process.is_running():
                process.kill()
        for parent in started:
            parent.wait(30)
