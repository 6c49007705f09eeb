"""The demo: as a user runs it, twice; then small ones for what can go wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dask_rl.pipeline.runs.job import load_job
from dask_rl.pipeline.views.demo import DemoConfig, describe_demo, run_demo
from dask_rl.storage.dataset import OfflineDataset
from dask_rl.storage.errors import ConfigError

SMALL = DemoConfig(num_episodes=4, num_steps=8, num_learners=0, num_evaluation_episodes=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    directory = tmp_path_factory.mktemp("small") / "demo"
    return run_demo(directory, config=SMALL)


@pytest.mark.service
@pytest.mark.slow
def test_the_policy_of_the_demo_is_better_than_its_data(tmp_path):
    command = [sys.executable, "-m", "dask_rl", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["directory"] == str(tmp_path.resolve() / "demo")
    assert values["policy_return_mean"] >= values["data_return_mean"]
    assert (values["num_episodes"], values["num_transitions"], values["num_learners"]) == (100, 20_000, 2)
    page = Path(values["report"]).read_text()
    assert "<svg" in page
    assert "mean of the data" in page

    again = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    repeated = json.loads(again.stdout)
    assert repeated["was_complete"]
    assert "collect:" not in again.stderr
    same = set(values) - {"was_complete", "seconds"}
    assert {key: repeated[key] for key in same} == {key: values[key] for key in same}


def test_a_demo_leaves_a_dataset_a_job_a_run_and_a_report(small):
    with OfflineDataset.open(small["dataset"]) as dataset:
        assert dataset.num_episodes == small["num_episodes"] == 4
        assert dataset.episode_returns().mean() == pytest.approx(small["data_return_mean"])
    job = load_job(small["job"])
    assert (job.dataset, job.run, job.algorithm.name) == (small["dataset"], small["run"], "iql")
    assert Path(small["report"]).read_text().startswith("<!")


def test_what_is_there_is_not_made_again_and_an_edited_job_is_kept(small):
    job = Path(small["job"])
    job.write_text(job.read_text() + "# mine\n")
    began = Path(small["dataset"], "commit.json").stat().st_mtime_ns
    again = run_demo(small["directory"], config=SMALL)
    assert again["was_complete"]
    assert again["weights_hash"] == small["weights_hash"]
    assert Path(small["dataset"], "commit.json").stat().st_mtime_ns == began
    assert job.read_text().endswith("# mine\n")


def test_a_demo_that_lost_its_run_keeps_its_data(tmp_path):
    first = run_demo(tmp_path, config=SMALL)
    Path(first["run"], "result.json").unlink()
    again = run_demo(tmp_path, config=SMALL)
    assert not again["was_complete"]
    assert again["weights_hash"] == first["weights_hash"]


@pytest.mark.parametrize("change", [{"seed": 1}, {"num_episodes": 5}])
def test_other_data_in_the_directory_is_refused(small, change):
    with pytest.raises(ConfigError, match=r"pendulum\.zarr: got data with .*; name another directory") as caught:
        run_demo(small["directory"], config=SMALL.model_copy(update=change))
    assert len(str(caught.value).splitlines()) == 1


def test_another_length_of_training_is_refused(small):
    with pytest.raises(ConfigError, match="num_steps: 8 → 9"):
        run_demo(small["directory"], config=SMALL.model_copy(update={"num_steps": 9}))


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"directory of the demo: got .*Not a directory.*dask-rl demo DIRECTORY"):
        run_demo(tmp_path / "file" / "demo", config=SMALL)


def test_the_text_says_what_came_out_and_how_to_go_on(small, monkeypatch):
    monkeypatch.chdir(Path(small["directory"]).parent)
    text = describe_demo(small)
    assert f"policy  mean return {small['policy_return_mean']:.1f} ±" in text
    assert "report  demo/run/report.html" in text
    assert "dask-rl eval demo/run" in text
    assert "nothing was done again" in describe_demo(small | {"was_complete": True})
    interrupted = describe_demo(small | {"interrupted": True, "policy_return_mean": None})
    assert interrupted.endswith("`dask-rl demo demo` goes on")
