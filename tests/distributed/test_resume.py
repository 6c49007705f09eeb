"""Killing and stopping runs of the real command; the same command again ends with the same bits."""

import json
import os
import signal
import subprocess

import psutil
import pytest
from run_commands import (
    NUM_STEPS,
    TIMEOUT_SECONDS,
    command,
    has_checkpoint_beyond,
    run_to_end,
    start_and_wait_for_checkpoint,
    write_job,
)


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
