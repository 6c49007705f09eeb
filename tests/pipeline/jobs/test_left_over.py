"""What `exec --resume` goes on with."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
import yaml
from render_cases import write_job
from run_commands import has_checkpoint_beyond, wait_for

from dask_rl.pipeline.jobs.batch_job import load_batch_job
from dask_rl.pipeline.jobs.left_over import newest_unfinished
from dask_rl.pipeline.jobs.run_record import RunRecord, save_record
from dask_rl.pipeline.jobs.times import folder_name
from dask_rl.pipeline.runs.run_directory import RunDirectory
from dask_rl.storage.errors import ConfigError, RunStateError

pytestmark = pytest.mark.service

FIRST, SECOND = datetime(2026, 11, 9, 2, tzinfo=UTC), datetime(2026, 11, 10, 2, tzinfo=UTC)


@pytest.fixture
def job(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({"run": str(tmp_path / "runs"), "dataset": "d.zarr"}))
    return file


def record(job, time, status):
    folder = load_batch_job(job).base / folder_name(time)
    folder.mkdir(parents=True, exist_ok=True)
    save_record(RunRecord(job="job", time=time, status=status), folder)
    return folder


@pytest.mark.parametrize("status", ["interrupted", "running"])
def test_the_newest_run_is_gone_on_with_where_it_was_cut_short(job, status):
    assert newest_unfinished(job) is None
    record(job, FIRST, "complete")
    newest = record(job, SECOND, status)
    os.symlink(newest.name, newest.parent / "current")
    assert newest_unfinished(job) == SECOND


@pytest.mark.parametrize("status", ["complete", "failed", "timed_out", "skipped"])
def test_one_that_came_to_an_end_is_not_nor_one_that_was_overtaken(job, status):
    record(job, FIRST, "interrupted")
    record(job, SECOND, status)
    assert newest_unfinished(job) is None


def test_overrides_count_for_the_place_of_the_runs(job, tmp_path):
    record(job, FIRST, "interrupted")
    assert newest_unfinished(job, [f"run={tmp_path / 'elsewhere'}"]) is None
    assert load_batch_job(job, overrides=["cluster.kind=local"]).values["cluster"] == {"kind": "local"}
    with pytest.raises(ConfigError, match="--set: got 'nonsense'"):
        load_batch_job(job, overrides=["nonsense"])


def test_a_comparison_without_evaluations_is_refused_before_a_run_begins(job):
    job.write_text(job.read_text() + "batch: {keep_if: better}\n")
    with pytest.raises(ConfigError, match=r"batch.keep_if: got better, in a job without evaluation"):
        load_batch_job(job)
    assert load_batch_job(job, overrides=["evaluation={environment: Pendulum-v1}"]).batch.keep_if == "better"


def test_a_damaged_record_is_named_and_a_job_that_is_none_has_no_runs(job, tmp_path):
    folder = record(job, FIRST, "running")
    (folder / "batch.json").write_text("{")
    with pytest.raises(RunStateError, match=r"batch\.json"):
        newest_unfinished(job)
    assert newest_unfinished(tmp_path / "missing.yaml") is None


@pytest.mark.storm
def test_exec_that_was_stopped_goes_on_with_the_same_run(tmp_path, feed_dataset):
    settings = {"num_steps": 100_000, "batch_size": 16, "checkpoint": {"every_steps": 50}}
    job = write_job(tmp_path / "place", feed_dataset, **settings)
    command = [sys.executable, "-m", "dask_rl", "jobs", "exec", str(job), "--name=small", "--resume", "--quiet"]
    runs = job.parent / "runs"
    for number in range(2):
        process = subprocess.Popen(command, cwd=job.parent, stdout=subprocess.DEVNULL)

        def is_ahead(number=number, process=process):
            events = [row for run in runs.glob("2*") for row in RunDirectory(run).rows("event")]
            saved = any(has_checkpoint_beyond(run, 50) for run in runs.glob("2*"))
            return process.poll() is not None or (saved and len(events) == number)

        wait_for(is_ahead, "a checkpoint, and the second time that it resumed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 3
    [run] = runs.glob("2*")
    assert [row["name"] for row in RunDirectory(run).rows("event")] == ["resumed"]
