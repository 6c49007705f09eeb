"""Jobs to be rendered, and what is done with the files."""

import json
from contextlib import chdir
from pathlib import Path

import yaml

from dask_rl.pipeline.views.cli import run

PLACE = 'it\'s 100% "my" $HOME & co'
"""A directory with everything in its name that shells, crons and units take for something of theirs."""


def write_job(directory: Path, dataset: Path, **settings) -> Path:
    """A job file; its runs go to `runs` beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    job = {
        "dataset": str(dataset),
        "algorithm": {"name": "bc", "hidden_sizes": [8]},
        "num_steps": 6,
        "batch_size": 16,
        "learners": {"num_learners": 0, "compile": "off", "num_threads_per_learner": 1},
        "run": "runs",
    }
    file = directory / "small job.yaml"
    file.write_text(yaml.safe_dump(job | settings))
    return file


def render(capsys, target: str, job: Path, *options: str) -> dict[str, str]:
    """The files, by their names, as `dask-rl jobs render` prints them in the job's directory."""
    with chdir(job.parent):
        capsys.readouterr()
        assert run(["jobs", "render", target, str(job), "--name", "small", "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)["files"]


def refusal(capsys, target: str, job: Path, *options: str) -> str:
    """What it says where it does not render."""
    with chdir(job.parent):
        capsys.readouterr()
        assert run(["jobs", "render", target, str(job), "--name", "small", *options]) == 2
        error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error
