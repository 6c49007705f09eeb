"""Run directories: metrics that survive a crash, and one job at a time."""

import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dask_rl.pipeline.runs.run_directory import RunDirectory, write_atomic
from dask_rl.storage.errors import RunStateError

HOLD = """
import sys
from dask_rl.pipeline.runs.run_directory import RunDirectory
with RunDirectory(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "first")
    with directory.locked():
        yield directory


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_rows_are_versioned_and_come_back_in_order(run):
    run.append("dataset", 0, {"num_steps": np.int64(7)})
    run.append("train", 10, {"loss": np.float32(0.5), "worst": math.nan, "parts": {"a": [math.inf, 1]}})
    first, second = run.rows()
    assert {key: first[key] for key in ("version", "run", "step", "kind", "num_steps")} == {
        "version": 1,
        "run": "first",
        "step": 0,
        "kind": "dataset",
        "num_steps": 7,
    }
    assert (second["loss"], second["worst"], second["parts"]) == (0.5, None, {"a": [None, 1]})
    assert run.rows("train") == [second]


def test_cutting_drops_later_rows_and_a_torn_last_line(run):
    for step in (10, 20, 30):
        run.append("train", step, {})
    with run.metrics_file.open("a") as file:
        file.write('{"version": 1, "step": 4')
    assert [row["step"] for row in run.rows()] == [10, 20, 30]
    assert run.cut_after(20) == 1
    run.append("train", 25, {})
    assert [row["step"] for row in run.rows()] == [10, 20, 25]


def test_cutting_keeps_events_they_did_happen(run):
    run.append("train", 10, {})
    run.append("event", 30, {"name": "learner_lost"})
    run.append("train", 30, {})
    assert run.cut_after(20) == 1
    assert [row["kind"] for row in run.rows()] == ["train", "event"]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        "[" * 10_000,
        *(json.dumps({"version": 1, "step": 1, "kind": "train"} | wrong) for wrong in ({"version": 2}, {"step": "1"})),
    ],
    ids=range(5),
)
def test_a_line_that_is_no_row_is_named(run, line):
    run.append("train", 1, {})
    with run.metrics_file.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunStateError, match=r"metrics\.jsonl, line 2"):
        run.rows()


def test_a_live_run_refuses_a_second_job_and_names_the_first(tmp_path, holder):
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(RunStateError, match=rf"another job is at work \(pid {holder.pid} on"), run.locked():
        pass


def test_the_lock_of_a_killed_job_is_free_at_once(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with RunDirectory(tmp_path / "run").locked():
        pass
    with RunDirectory(tmp_path / "run").locked():  # and so is that of one that ended well
        pass


@pytest.mark.parametrize(("silent_seconds", "refused"), [(1, True), (3600, False)])
def test_another_hosts_heartbeat_decides_where_flock_does_not_reach(tmp_path, silent_seconds, refused):
    run = RunDirectory(tmp_path)
    beat = {"host": "elsewhere", "pid": 1, "heartbeat": time.time() - silent_seconds}
    (tmp_path / "run.lock").write_text(json.dumps(beat))
    if refused:
        with pytest.raises(RunStateError, match="pid 1 on elsewhere"), run.locked():
            pass
    else:
        with run.locked():
            assert json.loads((tmp_path / "run.lock").read_text())["host"] != "elsewhere"


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunStateError, match=r"holds no job\.yaml"):
        RunDirectory(tmp_path).require()


def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunStateError, match="choose another path"), RunDirectory(tmp_path / "file").locked():
        pass


def test_a_failed_atomic_write_leaves_the_old_text_and_no_litter(tmp_path):
    path = tmp_path / "job.yaml"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["job.yaml"]
