"""Units: as systemd itself checks them, and their command as it would start it."""

import os
import re
import shutil
import subprocess

import pytest
from render_cases import PLACE, refusal, render, write_job
from unquoting import read_by_systemd

from dask_rl.pipeline.runs.run_directory import RunDirectory

pytestmark = pytest.mark.service

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")


def settings(unit, name):
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


@needs_systemd
@pytest.mark.parametrize("place", ["plain", PLACE])
def test_systemd_accepts_the_units(capsys, tmp_path, feed_dataset, place):
    job = write_job(tmp_path / place, feed_dataset)
    output = tmp_path / "units"
    render(capsys, "systemd", job, "--cron", "0 2 13 * 5", "--timezone", "Europe/Berlin", "--output", str(output))
    names = ["dask-rl-small.service", "dask-rl-small.timer"]
    assert sorted(file.name for file in output.iterdir()) == names
    command = ["systemd-analyze", "verify", "--man=no", *(str(output / name) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "small" in line]
    assert (done.returncode, ours) == (0, [])


@needs_systemd
def test_systemd_sees_what_is_wrong_with_a_unit(capsys, tmp_path, feed_dataset):
    """The check is one: a unit with a setting that there is not, and one with a time that there is not, fail it."""
    job = write_job(tmp_path / "place", feed_dataset)
    files = render(capsys, "systemd", job, "--cron", "0 2 * * *")
    for name, right, wrong in (
        ("dask-rl-small.service", "Type=exec", "Type=exek"),
        ("dask-rl-small.timer", "*-*-* 2:0:00", "*-*-* 25:0:00"),
    ):
        file = tmp_path / name
        file.write_text(files[name].replace(right, wrong))
        command = ["systemd-analyze", "verify", "--man=no", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert wrong.partition("=")[2] in done.stderr or "25" in done.stderr
        file.unlink()


@pytest.mark.storm
def test_its_command_runs_the_job(capsys, tmp_path, feed_dataset):
    directory = tmp_path / PLACE
    job = write_job(directory, feed_dataset)
    files = render(capsys, "systemd", job, "--home", str(directory / "home"), "--set", "num_steps=4")
    assert list(files) == ["dask-rl-small.service"]
    [unit] = files.values()
    [place], [command] = settings(unit, "WorkingDirectory"), settings(unit, "ExecStart")
    assert place.replace("%%", "%") == str(directory)
    words = read_by_systemd(command)
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]}
    done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert RunDirectory(directory / "runs" / "current").is_complete
    assert [row["step"] for row in RunDirectory(directory / "runs" / "current").rows("train")][-1] == 4


def test_it_stops_with_time_to_save_and_goes_on_after_an_interruption_only(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset, batch={"stop_wait_seconds": 12.5})
    [unit] = render(capsys, "systemd", job).values()
    found = {name: settings(unit, name) for name in re.findall(r"^(\w+)=", unit, re.MULTILINE)}
    assert found["TimeoutStopSec"] == ["43"]
    assert found["KillSignal"] == ["SIGTERM"]
    assert found["KillMode"] == ["mixed"]
    assert found["SuccessExitStatus"] == found["RestartForceExitStatus"] == ["3"]
    assert found["Restart"] == ["on-abnormal"]


def test_what_a_unit_cannot_hold_is_refused(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place ", feed_dataset)
    assert "no space at an end" in refusal(capsys, "systemd", job)
    job = write_job(tmp_path / "place", feed_dataset)
    assert "--timezone: got 'Mars'" in refusal(capsys, "systemd", job, "--cron", "@daily", "--timezone", "Mars")
