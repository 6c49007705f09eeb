"""README's commands for other people's schedulers, followed word by word; what is not here stands in for itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kubernetes_schemas import check

from dask_rl.pipeline.runs.job import TrainJob, parse_job

pytestmark = pytest.mark.service

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## Other people's schedulers")[2].partition("\n## ")[0]
PROGRAMS = ("crontab", "systemctl", "sbatch", "kubectl")
"""Each records its arguments, and keeps the file that it was given."""
SHIM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$RECORD/calls"
for last; do :; done
[ ! -f "$last" ] || cp "$last" "$RECORD"
"""


def subsection(title):
    return SECTION.partition(f"### {title}\n")[2].partition("\n### ")[0]


def block(title, language):
    return re.search(rf"^```{language}\n(.*?)^```$", subsection(title), re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Follow the commands of a subsection in a fresh directory; what the programs were called with."""
    programs, record, place = tmp_path / "bin", tmp_path / "record", tmp_path / "place"
    for folder in (programs, record, place, tmp_path / "home"):
        folder.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(SHIM)
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RECORD": str(record), "HOME": str(tmp_path / "home")}

    def run(title, job):
        (place / "nightly.yaml").write_text(yaml.safe_dump(job))
        script = f"set -euo pipefail\n{block(title, 'console')}"
        command = ["bash", "-c", script]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return (record / "calls").read_text().splitlines(), record

    return run


def job_with(title=None):
    job = {"dataset": "d.zarr", "algorithm": {"name": "bc"}, "num_steps": 5, "run": "runs/nightly"}
    return job | {"learners": {"num_learners": 2}} | (yaml.safe_load(block(title, "yaml")) if title else {})


def test_cron_and_systemd(follow, tmp_path):
    calls, record = follow("cron and systemd", job_with())
    assert calls == [
        "crontab my-crontab",
        "systemctl --user daemon-reload",
        "systemctl --user enable --now dask-rl-nightly.timer",
    ]
    assert re.search(r"^0 2 \* \* \* cd .* jobs exec ", (record / "my-crontab").read_text(), re.MULTILINE)
    units = tmp_path / "home" / ".config" / "systemd" / "user"
    assert sorted(file.name for file in units.iterdir()) == ["dask-rl-nightly.service", "dask-rl-nightly.timer"]


def test_slurm(follow):
    calls, record = follow("On SLURM", job_with("On SLURM"))
    assert calls == ["sbatch dask-rl-nightly.sbatch"]
    script = (record / "dask-rl-nightly.sbatch").read_text()
    assert "#SBATCH --qos=high" in script
    assert "module load cuda" in script
    subprocess.run(["bash", "-n", str(record / "dask-rl-nightly.sbatch")], check=True, timeout=60)


def test_what_a_command_needs_stands_before_it():
    kubernetes = subsection("On Kubernetes")
    assert kubernetes.index("```yaml") < kubernetes.index("```console")


def test_kubernetes(follow):
    calls, record = follow("On Kubernetes", job_with("On Kubernetes"))
    assert calls == ["kubectl apply -f dask-rl-nightly.yaml"]
    documents = list(yaml.safe_load_all((record / "dask-rl-nightly.yaml").read_text()))
    assert documents[-1]["kind"] == "CronJob"
    for document in documents:
        check(document)


def test_the_settings_are_some_and_the_other_kinds_take_them_too():
    for title, kind in (("On SLURM", "slurm"), ("On Kubernetes", "kubernetes")):
        job = job_with(title)
        assert isinstance(parse_job(yaml.safe_dump(job)), TrainJob)
        job["cluster"]["kind"] = kind
        assert parse_job(yaml.safe_dump(job)).cluster.kind == kind
