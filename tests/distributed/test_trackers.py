"""Trackers of a run of the real command that is killed and started again: every point once, and the right one."""

import os
import signal

import psutil
import pytest
from run_commands import NUM_STEPS, run_to_end, start_and_wait_for_checkpoint, write_job
from trackers import as_float32, mlflow_points, mlflow_runs, points_of, tensorboard_points

from dask_rl.pipeline.runs.run_directory import RunDirectory

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.mark.storm
@pytest.mark.slow
def test_a_killed_run_is_whole_at_both_trackers_and_ends_with_the_same_bits(
    tmp_path, continuous_dataset, undisturbed_hash
):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    loggers = [{"name": "tensorboard"}, {"name": "mlflow", "tracking_uri": uri, "experiment": "killed"}]
    job = write_job(tmp_path / "killed", continuous_dataset, 1, loggers=loggers)
    process = start_and_wait_for_checkpoint(job, 200)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not psutil.wait_procs(family, timeout=30)[1]

    assert run_to_end(job)["weights_hash"] == undisturbed_hash(1)
    rows = RunDirectory(tmp_path / "killed" / "run").rows()
    assert [row["name"] for row in rows if row["kind"] == "event"] == ["resumed"]  # and no logger failed
    expected = points_of(rows)
    assert expected["train/total_loss"][-1][0] == NUM_STEPS
    assert tensorboard_points(tmp_path / "killed" / "run") == as_float32(expected)

    (found,) = mlflow_runs(uri, "killed")
    told = mlflow_points(uri, found.info.run_id)
    assert found.info.status == "FINISHED"
    for name, curve in expected.items():
        if "second" in name:  # of steps that were made twice, MLflow has the time that they took at first
            assert [step for step, _ in told[name]] == [step for step, _ in curve]
        else:
            assert told[name] == curve
