"""Killing and stopping runs of the real command; the same command again ends with the same bits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

TIMEOUT_SECONDS = 120
NUM_STEPS = 800


def write_job(directory: Path, dataset: Path, num_learners: int, **settings) -> Path:
    job = {
        "dataset": str(dataset),
        "algorithm": {"name": "iql", "hidden_sizes": [64, 64], "dropout": 0.1},
        "num_steps": NUM_STEPS,
        "batch_size": 64,
        "learners": {"num_learners": num_learners, "compile": "off"},
        "checkpoint": {"every_steps": 50},
        "run": str(directory / "run"),
        **settings,
    }
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def command(job: Path) -> list[str]:
    return [sys.executable, "-m", "dask_rl", "train", str(job), "--json"]


def run_to_end(job: Path) -> dict:
    done = subprocess.run(command(job), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def undisturbed_hash(tmp_path_factory, continuous_dataset):
    """The weights of a run that nothing disturbed, by number of learners."""
    directory = tmp_path_factory.mktemp("undisturbed")
    hashes: dict[int, str] = {}

    def get(num_learners: int) -> str:
        if num_learners not in hashes:
            job = write_job(directory / str(num_learners), continuous_dataset, num_learners, checkpoint={})
            hashes[num_learners] = run_to_end(job)["weights_hash"]
        return hashes[num_learners]

    return get


def wait_for(condition, what: str):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {TIMEOUT_SECONDS} s for {what}")
        os.sched_yield()


def has_checkpoint_beyond(run: Path, step: int) -> bool:
    latest = run / "checkpoints" / "latest"
    return latest.exists() and int(latest.read_text().strip().removeprefix("step-")) >= step


def start_and_wait_for_checkpoint(job: Path, step: int) -> subprocess.Popen:
    process = subprocess.Popen(
        command(job), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    run = job.parent / "run"
    wait_for(lambda: has_checkpoint_beyond(run, step) or process.poll() is not None, "a checkpoint")
    if process.poll() is not None:
        pytest.fail(process.communicate()[1])
    return process


@pytest.mark.slow
@pytest.mark.parametrize("num_learners", [0, 1, 2])
def test_kill_9_and_the_same_command_again_gives_the_same_bits(
    tmp_path, continuous_dataset, undisturbed_hash, num_learners
):
    job = write_job(tmp_path / "killed", continuous_dataset, num_learners)
    process = start_and_wait_for_checkpoint(job, 100)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not psutil.wait_procs(family, timeout=30)[1]
    resumed = run_to_end(job)
    assert resumed["weights_hash"] == undisturbed_hash(num_learners)
    assert resumed["num_steps"] == NUM_STEPS
    rows = [json.loads(line) for line in (tmp_path / "killed/run/metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == sorted(set(steps))
    assert steps[-1] == NUM_STEPS
    assert [row["name"] for row in rows if row["kind"] == "event"] == ["resumed"]


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_with_one_line_and_the_same_command_resumes(
    tmp_path, continuous_dataset, undisturbed_hash
):
    job = write_job(tmp_path / "killed", continuous_dataset, 2)
    process = start_and_wait_for_checkpoint(job, 100)
    workers = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    workers[0].kill()
    _, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    error = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert len(error) == 1, stderr
    assert "lost" in error[0]
    assert "Traceback" not in stderr
    assert run_to_end(job)["weights_hash"] == undisturbed_hash(2)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "num_learners"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_stop_signal_checkpoints_and_exits_3(tmp_path, continuous_dataset, undisturbed_hash, number, num_learners):
    job = write_job(tmp_path / "stopped", continuous_dataset, num_learners)
    process = start_and_wait_for_checkpoint(job, 100)
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 3, stderr
    stopped = json.loads(stdout)
    assert 100 <= stopped["num_steps"] < NUM_STEPS
    assert has_checkpoint_beyond(tmp_path / "stopped/run", stopped["num_steps"])
    assert run_to_end(job)["weights_hash"] == undisturbed_hash(num_learners)


def test_a_changed_job_is_refused_and_a_complete_one_does_nothing(tmp_path, continuous_dataset):
    job = write_job(tmp_path, continuous_dataset, 0, num_steps=40)
    first = run_to_end(job)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert run_to_end(job) == first | {"was_complete": True}
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.is_file()}
    changed = subprocess.run(
        [*command(job), "--set", "seed=1"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert changed.returncode == 2
    assert "seed: 0 → 1" in changed.stderr


def test_a_second_job_on_a_live_run_is_refused_and_disturbs_nothing(tmp_path, continuous_dataset):
    job = write_job(tmp_path, continuous_dataset, 0, num_steps=1_000_000)
    process = start_and_wait_for_checkpoint(job, 50)
    second = subprocess.run(command(job), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert second.returncode == 2, second.stderr
    assert f"pid {process.pid}" in second.stderr
    os.killpg(process.pid, signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 3, stderr
    assert json.loads(stdout)["num_steps"] >= 50
