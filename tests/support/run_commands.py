"""Runs of the real command: started, waited for, ended."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

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
