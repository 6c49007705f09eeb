"""A user's own modules: imported from the job that he starts, here and on workers; a run's directory imports none."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dask_rl.learners.algorithms import registry
from dask_rl.pipeline.runs.job import load_job, parse_job
from dask_rl.pipeline.runs.own_modules import import_modules
from dask_rl.pipeline.runs.train import train
from dask_rl.pipeline.views.cli import run as run_command
from dask_rl.storage.errors import ConfigError

NAME = "own-of-a-job"
SUPPORT = Path(__file__).parents[2] / "support"
CODE = (SUPPORT / "own_algorithm.py").read_text(encoding="utf-8").replace("own-importable", NAME)
LEAVES_A_MARK = "import pathlib; pathlib.Path(__file__).with_suffix('.mark').touch()"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Path]:
    """A working directory; what is imported from it is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write_job(directory: Path, dataset: Path, **settings) -> Path:
    job = {
        "imports": ["my_own"],
        "dataset": str(dataset),
        "algorithm": {"name": NAME, "hidden_sizes": [8]},
        "num_steps": 4,
        "batch_size": 16,
        "run": "run",
        **settings,
    }
    (directory / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    return directory / "job.yaml"


def command(directory: Path, *words: str) -> subprocess.CompletedProcess:
    """The installed command: unlike `python -m` it does not have the working directory on its path."""
    program = Path(sys.executable).with_name("dask-rl")
    return subprocess.run(
        [program, *words], cwd=directory, capture_output=True, text=True, timeout=150, check=False, env=os.environ
    )


@pytest.mark.service
def test_a_job_with_an_algorithm_of_ones_own_trains_on_workers_and_is_evaluated(feed_dataset, tmp_path):
    (tmp_path / "my_own.py").write_text(CODE, encoding="utf-8")
    write_job(tmp_path, feed_dataset, learners={"num_learners": 2})
    trained = command(tmp_path, "train", "job.yaml", "--json")
    assert trained.returncode == 0, trained.stderr
    assert {"policy_loss", "value_loss"} <= json.loads(trained.stdout)["final_metrics"].keys()
    assert yaml.safe_load((tmp_path / "run/resolved.yaml").read_text())["imports"] == ["my_own"]
    words = ("eval", "run", "--environment", "CartPole-v1", "--episodes", "2")
    refused = command(tmp_path, *words)
    assert refused.returncode == 2
    assert f"algorithm.name: got '{NAME}'" in refused.stderr
    evaluated = command(tmp_path, *words, "--import", "my_own")
    # It gets as far as the spaces: those of the dataset are of no environment.
    assert evaluated.returncode == 2
    assert "observation" in evaluated.stderr


def test_nothing_is_imported_because_a_run_names_it(feed_dataset, here):
    (here / "stranger.py").write_text(LEAVES_A_MARK, encoding="utf-8")
    sys.path.insert(0, str(here))
    algorithm = {"name": "bc", "hidden_sizes": [8]}
    job = write_job(here, feed_dataset, imports=[], algorithm=algorithm, num_steps=1)
    train(load_job(job))
    for file in (here / "run/job.yaml", here / "run/resolved.yaml"):
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "imports": ["stranger"]}))
    run_command(["eval", "run", "--environment", "CartPole-v1"])
    run_command(["report", "run"])
    (here / "run/result.json").unlink()
    with pytest.raises(ConfigError, match="imports"):  # the job's and the run's differ
        train(load_job(job))
    shutil.copy(here / "run/job.yaml", job)
    assert load_job(job).imports == ("stranger",)
    assert not (here / "stranger.mark").exists()
    assert run_command(["train", "job.yaml"]) == 0  # only now the user runs it himself
    assert (here / "stranger.mark").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["no_such"], r"imports: got no_such, ModuleNotFoundError: No module named 'no_such'; correct the module or"),
        (["broken"], r"imports: got broken, ZeroDivisionError: division by zero; correct the module"),
        (["takes_bc"], r"imports: takes_bc: Mine.name: got 'bc', which is taken; choose another"),
        (["two_names"], r"imports: two_names: BCConfig.name: got bc; allowed: 'mine'; write `name: Literal"),
    ],
)
def test_what_is_wrong_with_an_own_module_is_told(here, names, message):
    opening = "from dask_rl.learners.algorithms.bc import BC\nfrom dask_rl import register_algorithm\n"
    (here / "broken.py").write_text("1 / 0")
    (here / "takes_bc.py").write_text(f"{opening}@register_algorithm\nclass Mine(BC): pass")
    (here / "two_names.py").write_text(f"{opening}@register_algorithm\nclass Mine(BC): name = 'mine'")
    with pytest.raises(ConfigError, match=message):
        import_modules(names)


@pytest.mark.parametrize("imports", ["my_own", ["my_own.py; x"], ["../up"], [3], None])
def test_imports_are_names_of_modules(feed_dataset, here, imports):
    text = write_job(here, feed_dataset, imports=imports).read_text()
    with pytest.raises(ConfigError, match="imports"):
        parse_job(text, run_imports=True)
    with pytest.raises(ConfigError, match="imports"):
        parse_job(text)
