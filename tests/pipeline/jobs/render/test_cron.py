"""Lines for crontabs: read by cron's rules, and really run."""

import json
import os
import subprocess

import pytest
from apscheduler.triggers.cron import CronTrigger
from render_cases import PLACE, refusal, render, write_job
from unquoting import read_by_cron

from dask_rl.pipeline.runs.run_directory import RunDirectory

pytestmark = pytest.mark.service


def test_the_line_runs_the_job_and_another_one_the_next_time(capsys, tmp_path, feed_dataset):
    directory = tmp_path / PLACE
    job = write_job(directory, feed_dataset)
    home = directory / "home"
    [text] = render(capsys, "cron", job, "--cron", "*/5 2 * * *", "--home", str(home)).values()
    comment, line = text.splitlines()
    assert comment.startswith("# ")
    minute, hour, *_ = fields = line.split(maxsplit=5)[:5]
    assert (minute, hour) == ("*/5", "2")
    CronTrigger.from_crontab(" ".join(fields))
    command = read_by_cron(line.split(maxsplit=5)[5])
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=tmp_path,
        env={"HOME": os.environ["HOME"], "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    current = directory / "runs" / "current"
    assert RunDirectory(current).is_complete
    record = json.loads((current / "batch.json").read_text())
    assert (record["job"], record["status"]) == ("small", "complete")
    assert (home / "jobs.sqlite").exists()
    assert os.listdir(tmp_path) == [PLACE]


def test_what_cron_cannot_do_is_refused(capsys, tmp_path, feed_dataset):
    job = write_job(tmp_path / "place", feed_dataset)
    assert "--cron: got none; allowed: when it is due, for cron" in refusal(capsys, "cron", job)
    assert "cron expression: got '@reboot'" in refusal(capsys, "cron", job, "--cron", "@reboot")
    zone = ("--cron", "@daily", "--timezone", "Europe/Berlin")
    assert "--timezone: got Europe/Berlin; allowed: none" in refusal(capsys, "cron", job, *zone)
    odd = write_job(tmp_path / "back\\slash", feed_dataset)
    assert "no backslashes" in refusal(capsys, "cron", odd, "--cron", "@daily")


def test_the_home_of_the_shell_is_written_down(capsys, tmp_path, feed_dataset, monkeypatch):
    """Whoever starts the line has not got this shell's environment."""
    monkeypatch.setenv("DASK_RL_HOME", str(tmp_path / "home"))
    [text] = render(capsys, "cron", write_job(tmp_path, feed_dataset), "--cron", "*/5 2 * * *").values()
    assert f"--home={tmp_path}/home" in text
